//! Host veths that outlived their container.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    ledger::Ledger,
    nic::Transparent,
    service::veth::{StrayVeth, strays},
    telemetry::metrics::Metrics,
};

/// Since when each link is a stray. A veth that is made anew under the same name is another link.
#[derive(Debug, Default)]
pub(super) struct Strays(HashMap<(u32, String), Instant>);

impl Strays {
    /// Those that have been strays for the grace period, and whose container was deleted at this daemon.
    fn due(&mut self, found: Vec<StrayVeth>, now: Instant, grace: Duration) -> Vec<StrayVeth> {
        let mut before = std::mem::take(&mut self.0);
        let mut due = Vec::new();
        for stray in found.into_iter().filter(|stray| stray.deleted_here) {
            let key = (stray.veth.link.index, stray.attachment.alias());
            let since = before.remove(&key).unwrap_or(now);
            self.0.insert(key, since);
            if now.duration_since(since) >= grace {
                due.push(stray);
            }
        }
        due
    }
}

/// Deletes strays that are due, and says so.
pub(super) async fn clean(
    ledger: &Ledger,
    metrics: &Metrics,
    network: &Transparent,
    known: &mut Strays,
    grace: Duration,
) {
    let found = match strays(ledger, network).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "host veths cannot be listed");
            return;
        }
    };
    for StrayVeth { veth, attachment, .. } in known.due(found, Instant::now(), grace) {
        // By index: if the container was added again at this very moment, its new veth is another link.
        match network.delete_stray(&veth).await {
            Ok(()) => {
                tracing::warn!(veth = veth.link.name, %attachment, "deleted a host veth that had outlived its container");
                metrics.veth_reconciled();
            }
            Err(error) => {
                tracing::error!(veth = veth.link.name, %attachment, %error, "a host veth that outlived its container stays");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::{Attachment, HostVeth, Link, LinkKind};

    fn stray(container: &str, index: u32, deleted_here: bool) -> StrayVeth {
        let attachment = Attachment::new("n", container.parse().unwrap(), "eth0".parse().unwrap()).unwrap();
        let link = Link {
            index,
            name: attachment.host_veth(),
            alias: attachment.alias(),
            mac: None,
            mtu: 1500,
            up: true,
            operational: true,
            kind: LinkKind::Veth,
            peer_index: None,
        };
        StrayVeth { veth: HostVeth { link, attachment: Some(attachment.clone()) }, attachment, deleted_here }
    }

    const GRACE: Duration = Duration::from_mins(1);

    #[test]
    fn a_stray_is_due_after_the_grace_period_if_its_container_was_deleted_here() {
        let (mut strays, start) = (Strays::default(), Instant::now());
        let found = || vec![stray("deleted", 7, true), stray("unknown", 8, false)];
        assert!(strays.due(found(), start, GRACE).is_empty());
        let due = strays.due(found(), start + GRACE, GRACE);
        assert_eq!(due.iter().map(|stray| stray.veth.link.index).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_veth_that_was_made_anew_begins_anew() {
        let (mut strays, start) = (Strays::default(), Instant::now());
        strays.due(vec![stray("c", 7, true)], start, GRACE);
        assert!(strays.due(vec![stray("c", 9, true)], start + GRACE, GRACE).is_empty());
    }
}
