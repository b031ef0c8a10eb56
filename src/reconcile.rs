//! Finds what leaks and cleans it up, never silently (design §7).
//!
//! - Sandboxes that are gone: an endpoint whose namespace this daemon once saw and does not find any more loses what it holds
//!   after a grace period. When most of them vanish at once, the fault is more likely in what the daemon can see than in the
//!   pods: then nothing is released until it was confirmed over a longer time.
//! - Host veths that outlived their container.
//! - Releases that plugins could not deliver: files in the async-delete directory (spec/endpoint-state.md §6). The directory is
//!   read anew each time; nothing depends on having seen an event.

mod veths;

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::spawn_blocking, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::{
    ledger::{Ledger, ReleaseIps, ReleaseOutcome},
    model::{Actor, BootTime, ContainerId, Endpoint, PodIdentity, Sandbox},
    nic::Liveness,
    service::{
        sandbox::{describe, is_dead, look},
        veth::host_network,
    },
    telemetry::metrics::Metrics,
};

/// How often the async-delete directory is read.
const ASYNC_DELETE_EVERY: Duration = Duration::from_secs(15);
/// More of them vanishing at once than this share is suspicious …
const SUSPICIOUS_SHARE: (usize, usize) = (1, 2);
/// … if it is at least so many.
const SUSPICIOUS_COUNT: usize = 3;
/// By how much a suspicious vanishing must outlast the grace period.
const SUSPICIOUS_FACTOR: u32 = 5;
/// An async-delete file names an interface; it is not read further than this.
const MOST_CONTENT: usize = 512;

/// Sandboxes that were found gone, and since when.
#[derive(Debug, Default)]
pub struct Missing(HashMap<ContainerId, (Sandbox, Instant)>);

/// One look at a sandbox.
#[derive(Clone, Debug)]
pub struct Look {
    /// Whose.
    pub container: ContainerId,
    /// Which.
    pub sandbox: Sandbox,
    /// What was found.
    pub found: Liveness,
}

/// What to do about dead sandboxes now.
#[derive(Debug, Default)]
pub struct Plan {
    /// To be released.
    pub release: Vec<Look>,
    /// Gone, and waiting for the grace period.
    pub waiting: usize,
    /// So many vanished at once that nothing is believed yet.
    pub suspicious: bool,
}

impl Missing {
    /// Decides what to release, from one look at every witnessed sandbox. Remembers since when each is gone.
    pub fn plan(&mut self, looks: Vec<Look>, now: Instant, grace: Duration) -> Plan {
        let all = looks.len();
        let (gone, _): (Vec<Look>, Vec<Look>) = looks.into_iter().partition(|look| is_dead(look.found));
        // Since when, for those that were gone before; one that was seen again, or has another sandbox now, begins anew.
        let mut before = std::mem::take(&mut self.0);
        for look in &gone {
            let since = before.remove(&look.container).filter(|(sandbox, _)| *sandbox == look.sandbox);
            self.0.insert(look.container.clone(), since.unwrap_or_else(|| (look.sandbox.clone(), now)));
        }
        let suspicious =
            gone.len() >= SUSPICIOUS_COUNT && gone.len() * SUSPICIOUS_SHARE.1 > all * SUSPICIOUS_SHARE.0;
        let needed = if suspicious { grace * SUSPICIOUS_FACTOR } else { grace };
        let (release, waiting): (Vec<Look>, Vec<Look>) = gone.into_iter().partition(|look| {
            self.0.get(&look.container).is_some_and(|(_, since)| now.duration_since(*since) >= needed)
        });
        Plan { release, waiting: waiting.len(), suspicious }
    }
}

/// The reconciler's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often sandboxes are looked at.
    pub interval: Duration,
    /// How long one must be gone.
    pub grace: Duration,
    /// Where plugins leave releases; nowhere, if they are not to be looked for.
    pub async_delete_dir: Option<PathBuf>,
}

/// Runs until told to stop.
pub async fn run(ledger: Ledger, metrics: Arc<Metrics>, settings: Settings, stop: CancellationToken) {
    let mut sandboxes = tokio::time::interval(settings.interval);
    let mut deletes = tokio::time::interval(ASYNC_DELETE_EVERY.min(settings.interval));
    sandboxes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    deletes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missing = Missing::default();
    let mut strays = veths::Strays::default();
    let network = host_network();
    if let Err(error) = &network {
        tracing::warn!(%error, "the host's network cannot be seen: veths that outlive their container stay");
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = sandboxes.tick() => {
                release_dead(&ledger, &metrics, &mut missing, settings.grace).await;
                if let Ok(network) = &network {
                    veths::clean(&ledger, &metrics, network, &mut strays, settings.grace).await;
                }
            }
            _ = deletes.tick() => if let Some(directory) = &settings.async_delete_dir {
                async_deletes(&ledger, &metrics, directory).await;
            },
        }
    }
}

async fn release_dead(ledger: &Ledger, metrics: &Metrics, missing: &mut Missing, grace: Duration) {
    let endpoints: Vec<Arc<Endpoint>> = ledger.view().endpoints_from(None).cloned().collect();
    let looks = spawn_blocking(move || {
        let witnessed = endpoints.into_iter().filter(|endpoint| endpoint.witnessed);
        let looked = witnessed.filter_map(|endpoint| {
            let sandbox = endpoint.sandbox.clone()?;
            Some(Look { container: endpoint.container.clone(), found: look(&sandbox), sandbox })
        });
        looked.collect::<Vec<_>>()
    });
    let Ok(looks) = looks.await else { return };
    let plan = missing.plan(looks, Instant::now(), grace);
    if plan.suspicious && plan.waiting > 0 {
        tracing::warn!(
            gone = plan.waiting,
            "most sandboxes vanished at once; nothing is released until this lasts {} s",
            (grace * SUSPICIOUS_FACTOR).as_secs()
        );
    }
    for Look { container, sandbox, found } in plan.release {
        let why = describe(&sandbox, found);
        match ledger
            .release_dead_sandbox(Actor::internal("reconciler"), container.clone(), sandbox, why.clone())
            .await
        {
            Ok(released) if released.outcome == ReleaseOutcome::Released => {
                tracing::warn!(%container, why, addresses = ?released.addresses, "released what a dead sandbox held");
                metrics.sandbox_reconciled();
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%container, %error, "what a dead sandbox holds could not be released");
            }
        }
    }
}

/// A release that a plugin left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftRelease {
    /// The file.
    pub path: PathBuf,
    /// Its name.
    pub container: ContainerId,
    /// Its content.
    pub interface_id: String,
    /// How long ago it was written; none if the file does not tell.
    pub age: Option<Duration>,
}

/// Reads the directory. Names that are no container id are not the plugins' and are left alone; a file that is still empty
/// may be half written and is taken the next time, unless it is older than a minute.
pub fn left_releases(directory: &Path) -> io::Result<Vec<LeftRelease>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Some(container) = entry.file_name().to_str().and_then(|name| name.parse::<ContainerId>().ok())
        else {
            continue;
        };
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_file() {
            continue;
        }
        let Ok(content) = fs::read(entry.path()) else { continue };
        let age = meta.modified().ok().and_then(|time| time.elapsed().ok());
        if content.is_empty() && age.unwrap_or_default() < Duration::from_mins(1) {
            continue;
        }
        let interface_id =
            String::from_utf8_lossy(&content[..content.len().min(MOST_CONTENT)]).trim().to_owned();
        found.push(LeftRelease { path: entry.path(), container, interface_id, age });
    }
    found.sort_by(|a, b| a.container.cmp(&b.container));
    Ok(found)
}

async fn async_deletes(ledger: &Ledger, metrics: &Metrics, directory: &Path) {
    let at = directory.to_owned();
    let left = match spawn_blocking(move || left_releases(&at)).await {
        Ok(Ok(left)) => left,
        Ok(Err(error)) => {
            tracing::error!(directory = %directory.display(), %error, "the async-delete directory cannot be read");
            return;
        }
        Err(_) => return,
    };
    for LeftRelease { path, container, interface_id, age } in left {
        // The plugin gave up when it wrote the file. A container that was added again since then keeps what it has.
        let now = BootTime::read();
        let began = age.map(|age| now.before(age));
        let release = ReleaseIps {
            container: Some(container.clone()),
            interface_id,
            ifname: None,
            pod: PodIdentity::default(),
            began,
            single: false,
        };
        match ledger.release_ips(Actor::internal("async-delete"), release).await {
            Ok(released) => {
                tracing::info!(%container, addresses = ?released.addresses, "released as a plugin had asked in vain");
                metrics.async_delete();
                // If it stays, the same release is repeated, which is harmless.
                let gone = spawn_blocking(move || fs::remove_file(path)).await;
                if let Ok(Err(error)) = gone {
                    tracing::warn!(%container, %error, "the async-delete file could not be removed");
                }
            }
            Err(error) => tracing::warn!(%container, %error, "an async delete has to wait"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(found: &[Liveness]) -> Vec<Look> {
        let one = |(i, found): (usize, &Liveness)| Look {
            container: format!("c{i}").parse().unwrap(),
            sandbox: Sandbox { netns: "/run/netns/x".into(), device: 4, inode: i as u64 + 1 },
            found: *found,
        };
        found.iter().enumerate().map(one).collect()
    }

    const GRACE: Duration = Duration::from_mins(1);
    use Liveness::{Alive, Gone, Replaced, Unknown};

    #[test]
    fn a_sandbox_is_released_after_the_grace_period_and_not_before() {
        let (mut missing, start) = (Missing::default(), Instant::now());
        let plan = missing.plan(looks(&[Gone, Alive, Alive, Unknown]), start, GRACE);
        assert_eq!((plan.release.len(), plan.waiting), (0, 1));
        let plan = missing.plan(looks(&[Gone, Alive, Alive, Unknown]), start + GRACE, GRACE);
        assert_eq!(plan.release.len(), 1);
    }

    #[test]
    fn one_that_was_seen_again_begins_anew() {
        let (mut missing, start) = (Missing::default(), Instant::now());
        missing.plan(looks(&[Replaced, Alive, Alive]), start, GRACE);
        missing.plan(looks(&[Alive, Alive, Alive]), start + GRACE / 2, GRACE);
        let plan = missing.plan(looks(&[Replaced, Alive, Alive]), start + GRACE, GRACE);
        assert_eq!((plan.release.len(), plan.waiting), (0, 1));
    }

    #[test]
    fn when_most_vanish_at_once_nothing_is_believed_for_a_while() {
        let (mut missing, start) = (Missing::default(), Instant::now());
        let most = [Gone, Gone, Gone, Alive, Alive];
        missing.plan(looks(&most), start, GRACE);
        let plan = missing.plan(looks(&most), start + GRACE, GRACE);
        assert!(plan.suspicious && plan.release.is_empty());
        let plan = missing.plan(looks(&most), start + GRACE * SUSPICIOUS_FACTOR, GRACE);
        assert_eq!(plan.release.len(), 3);
    }

    #[test]
    fn left_releases_are_read_and_foreign_names_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(left_releases(&dir.path().join("missing")).unwrap(), []);
        fs::write(dir.path().join("1f2e3d4c"), "1f2e3d4c-eth0").unwrap();
        fs::write(dir.path().join("half"), "").unwrap();
        fs::write(dir.path().join(".tmp123"), "x").unwrap();
        fs::create_dir(dir.path().join("directory")).unwrap();
        let left = left_releases(dir.path()).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(
            (left[0].container.as_str(), left[0].interface_id.as_str()),
            ("1f2e3d4c", "1f2e3d4c-eth0")
        );
    }
}
