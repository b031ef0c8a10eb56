//! Whether sandboxes live, and what becomes of what dead ones hold (design §4).
//!
//! A sandbox is only ever taken for dead if this daemon itself has seen it alive, at that path with that inode: a daemon that
//! cannot see the runtime's namespaces concludes nothing.

use std::{
    path::{Component, Path},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Mutex, task::spawn_blocking};

use crate::{
    ledger::{Ledger, ReleaseOutcome},
    model::{Actor, ContainerId, Endpoint, PodIdentity, Sandbox},
    nic::{Liveness, NetnsId, liveness},
};

/// How often a shortage may start a look at all sandboxes.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Looks after sandboxes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    ledger: Ledger,
    last_sweep: Arc<Mutex<Option<Instant>>>,
}

/// Whether the sandbox is there. Blocks for a few system calls.
pub fn look(sandbox: &Sandbox) -> Liveness {
    if sandbox.inode == 0 {
        return Liveness::Unknown;
    }
    liveness(&sandbox.netns, NetnsId { device: sandbox.device, inode: sandbox.inode })
}

/// Whether the path is where runtimes bind namespaces, in file systems that the kernel keeps in memory: to look there takes less
/// time than to hand the look to another thread, which is a good part of a request's. Anything else could be a disk that
/// does not answer.
fn is_kernels(netns: &Path) -> bool {
    if let Ok(below) = netns.strip_prefix("/proc") {
        // Not beyond: `/proc/PID/root` leads anywhere.
        return below.ends_with("ns/net") && below.components().count() == 3;
    }
    let plain = netns.file_name().is_some() && !netns.components().any(|part| part == Component::ParentDir);
    plain
        && netns.parent().is_some_and(|at| at == Path::new("/run/netns") || at == Path::new("/var/run/netns"))
}

/// Whether the sandbox is dead for certain, as far as this daemon sees.
pub fn is_dead(found: Liveness) -> bool {
    matches!(found, Liveness::Gone | Liveness::Replaced)
}

/// A finding's words for the journal.
pub fn describe(sandbox: &Sandbox, found: Liveness) -> String {
    let path = sandbox.netns.display();
    match found {
        Liveness::Alive => format!("sandbox {path} lives"),
        Liveness::Gone => format!("sandbox {path} is gone"),
        Liveness::Replaced => format!("sandbox {path} is another namespace now"),
        Liveness::Unknown => format!("sandbox {path} cannot be seen"),
    }
}

impl Sandboxes {
    /// Over this ledger.
    pub fn new(ledger: Ledger) -> Self {
        Self { ledger, last_sweep: Arc::default() }
    }

    /// Whether this daemon sees the sandbox alive now.
    pub async fn witness(&self, sandbox: Option<&Sandbox>) -> bool {
        let Some(sandbox) = sandbox else { return false };
        if is_kernels(&sandbox.netns) {
            return look(sandbox) == Liveness::Alive;
        }
        let sandbox = sandbox.clone();
        spawn_blocking(move || look(&sandbox) == Liveness::Alive).await.unwrap_or(false)
    }

    /// Releases what earlier sandboxes of the pod hold, if they are dead: a sandbox that is made anew under another
    /// container id must not have to wait for the clean-up of the old one.
    pub async fn release_earlier_of(&self, pod: &PodIdentity, now: Option<&ContainerId>) {
        if !pod.is_known() {
            return;
        }
        let earlier: Vec<Arc<Endpoint>> = {
            let view = self.ledger.view();
            let others = view.containers_of_pod(pod).filter(|container| Some(*container) != now);
            others.filter_map(|container| view.endpoint(container)).cloned().collect()
        };
        if !earlier.is_empty() {
            self.release_dead("request", earlier).await;
        }
    }

    /// Looks for dead sandboxes everywhere, once for all who wait: before "no address available" is said. Says whether
    /// anything was released, by this look or one that has just ended.
    pub async fn sweep(&self) -> bool {
        let asked = Instant::now();
        let mut last = self.last_sweep.lock().await;
        if let Some(ended) = *last
            && (ended >= asked || asked.duration_since(ended) < SWEEP_EVERY)
        {
            return ended >= asked;
        }
        let all: Vec<Arc<Endpoint>> = self.ledger.view().endpoints_from(None).cloned().collect();
        let released = self.release_dead("shortage", all).await;
        *last = Some(Instant::now());
        released > 0
    }

    async fn release_dead(&self, part: &str, endpoints: Vec<Arc<Endpoint>>) -> usize {
        let judged = spawn_blocking(move || {
            let candidates = endpoints.into_iter().filter(|endpoint| endpoint.witnessed);
            let found = candidates.filter_map(|endpoint| {
                let sandbox = endpoint.sandbox.clone()?;
                let found = look(&sandbox);
                is_dead(found).then(|| (endpoint.container.clone(), describe(&sandbox, found), sandbox))
            });
            found.collect::<Vec<_>>()
        });
        let mut released = 0;
        for (container, why, sandbox) in judged.await.unwrap_or_default() {
            tracing::warn!(%container, why, part, "a dead sandbox still held addresses");
            let outcome = self
                .ledger
                .release_dead_sandbox(Actor::internal(part), container.clone(), sandbox, why)
                .await;
            match outcome {
                Ok(done) => released += usize::from(done.outcome == ReleaseOutcome::Released),
                Err(error) => {
                    tracing::error!(%container, %error, "what a dead sandbox holds could not be released");
                }
            }
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_nothing_can_hang_is_looked_at_without_a_thread() {
        for path in ["/run/netns/cni-1", "/var/run/netns/cni-1", "/proc/17/ns/net"] {
            assert!(is_kernels(Path::new(path)), "{path}");
        }
        let others = [
            "/proc/17/root/mnt/ns/net",
            "/proc/self/fd/3",
            "/run/netns/../nfs",
            "/run/netns/a/b",
            "/run/netns",
            "/mnt/netns/a",
            "",
        ];
        for path in others {
            assert!(!is_kernels(Path::new(path)), "{path}");
        }
    }
}
