//! ChannelMode AzureHost: pods have secondary addresses of the host's own interface, which NMAgent lists (spec/ipam.md §12,
//! spec/host-agents.md §5.2). They are one synthetic network container, without a subnet and a gateway.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Alarm, Alarms, Doubt, doubt::loses_most, outage::Outage};
use crate::{
    host::{http::varied, nmagent::Nmagent, wireserver::HostInterfaces},
    ledger::{Ledger, LedgerError, MissingAssigned, NcOrigin, RequestIps, Requester, UpsertNc, View},
    model::{
        Actor, Endpoint, IpStateKind, NODE_SUBNET_NC_ID, NcId, NcLifecycle, NcSpec, NcType, OnRelease,
        SecondaryIpConfig,
    },
    readiness::Readiness,
};

/// Between two fetches, at least and at most.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(1024));
/// After a failure the next one comes no later, however long nothing had changed.
const AFTER_FAILURE: Duration = Duration::from_secs(32);
/// A list that lost most of what it had counts when it came so often in a row.
const CONFIRMATIONS: u32 = 2;

/// The id of the synthetic network container.
pub fn nc_id() -> NcId {
    match NODE_SUBNET_NC_ID.parse() {
        Ok(id) => id,
        Err(_) => unreachable!("{NODE_SUBNET_NC_ID} is an id"),
    }
}

fn actor() -> Actor {
    Actor::internal("node subnet")
}

/// What the network container lists. What only its pods still hold is not among it.
fn listed(view: &View) -> BTreeSet<IpAddr> {
    let id = nc_id();
    let of_nc = view.ips_from(None).filter(|ip| ip.nc == id && ip.on_release != OnRelease::Remove);
    of_nc.map(|ip| ip.address).collect()
}

/// Makes the network container list exactly these. What pods hold beyond stays theirs until they let go (spec/ipam.md §15 H3).
async fn list(ledger: &Ledger, addresses: &BTreeSet<IpAddr>) -> Result<Vec<IpAddr>, LedgerError> {
    let mut spec = NcSpec::new(nc_id(), NcType::Docker, 0);
    spec.status = "NCUpdateSuccess".into();
    spec.secondary_ip_configs = addresses
        .iter()
        .map(|address| ((*address).into(), SecondaryIpConfig { address: *address, nc_version: 0 }))
        .collect();
    let (origin, missing) = (NcOrigin::ControlPlane, MissingAssigned::Keep);
    let upsert = UpsertNc { spec, origin, missing, programmed: Some(0) };
    ledger.upsert_nc(actor(), upsert).await.map(|upserted| upserted.withdrawn)
}

/// The state as the mode needs it, before anything is fetched: the synthetic network container and no other, and the addresses of
/// pods that run with them (spec/ipam.md §10.2, §15 H1, H4). One bad record stops nothing (§13.10).
pub async fn restore(ledger: &Ledger) -> Result<(), LedgerError> {
    let (others, endpoints, known, has_nc) = {
        let view = ledger.view();
        let id = nc_id();
        let is_active = |lifecycle| lifecycle == NcLifecycle::Active;
        let others: Vec<NcId> = view
            .ncs()
            .filter(|nc| *nc.record.id() != id && is_active(nc.record.lifecycle))
            .map(|nc| nc.record.id().clone())
            .collect();
        let mut endpoints: Vec<Arc<Endpoint>> = view.endpoints_from(None).cloned().collect();
        // Of two that name one address the newer one is right: the older is gone or was lost (spec/ipam.md §15 C4).
        endpoints.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.updated));
        let has_nc = view.nc(&id).is_some_and(|nc| is_active(nc.record.lifecycle));
        (others, endpoints, listed(&view), has_nc)
    };
    for other in others {
        let (_, kept) = ledger.delete_nc(actor(), other.clone()).await?;
        tracing::warn!(nc = %other, in_use = kept.len(), "a network container of another channel mode was removed");
    }
    let unowned = |endpoint: &Endpoint| {
        let view = ledger.view();
        let infra = endpoint.interfaces.iter().filter(|nic| nic.is_infra());
        let addresses = infra.flat_map(|nic| nic.addresses().map(ipnet::IpNet::addr));
        let is_free = |address: &IpAddr| view.ip(*address).is_none_or(|ip| ip.state.assignment().is_none());
        addresses.filter(is_free).collect::<Vec<_>>()
    };
    let mut all = known.clone();
    all.extend(endpoints.iter().flat_map(|endpoint| unowned(endpoint)));
    if !has_nc || all != known {
        list(ledger, &all).await?;
    }
    for endpoint in endpoints {
        let desired = unowned(&endpoint);
        if desired.is_empty() {
            continue;
        }
        let shown = format!("{desired:?}");
        let request = RequestIps {
            requester: Requester::Reconcile,
            container: Some(endpoint.container.clone()),
            interface_id: endpoint.interface_id.clone(),
            ifname: endpoint.interfaces.iter().find(|nic| nic.is_infra()).and_then(|nic| nic.ifname.clone()),
            pod: endpoint.pod.clone(),
            desired,
            sandbox: endpoint.sandbox.clone(),
            witnessed: endpoint.witnessed,
            began: endpoint.began,
            secondary_interfaces: false,
            single: false,
        };
        match ledger.request_ips(actor(), request).await {
            Ok(_) => {
                tracing::info!(container = %endpoint.container, addresses = shown, "a pod that runs has its addresses again");
            }
            Err(error @ LedgerError::Rejected(_)) => {
                tracing::warn!(container = %endpoint.container, addresses = shown, %error, "a record's addresses cannot be given to its pod");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether pods can be given addresses that an earlier run fetched.
pub fn has_free_addresses(ledger: &Ledger) -> bool {
    let view = ledger.view();
    let available = IpStateKind::Available.index();
    view.nc(&nc_id()).is_some_and(|nc| nc.counts.iter().any(|counts| counts[available] > 0))
}

/// How a fetch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetched {
    Changed,
    Unchanged,
    Failed,
}

/// How long to wait: twice as long each time that nothing changed.
#[derive(Debug)]
struct Pace(Duration);

impl Pace {
    fn after(&mut self, fetched: Fetched) -> Duration {
        let (least, most) = INTERVAL;
        match fetched {
            Fetched::Changed => self.0 = least,
            Fetched::Unchanged => self.0 = (self.0 * 2).min(most),
            Fetched::Failed => return self.0.min(AFTER_FAILURE),
        }
        self.0
    }
}

/// The source.
#[derive(Debug)]
pub struct NodeSubnet {
    ledger: Ledger,
    nmagent: Nmagent,
    alarms: Alarms,
    readiness: Readiness,
    outage: Outage,
    /// Whether pods can be given addresses: what the CNI configuration list waits for.
    fetched: watch::Sender<bool>,
    doubt: Doubt<IpAddr>,
    /// What could not be read, so that it is told once.
    unreadable: Vec<String>,
}

impl NodeSubnet {
    /// Over this ledger, whose state [`restore`] brought in line.
    pub fn new(ledger: Ledger, nmagent: Nmagent, alarms: Alarms, readiness: Readiness) -> Self {
        Self {
            ledger,
            nmagent,
            alarms,
            outage: Outage::new("NMAgent", readiness.clone()),
            readiness,
            fetched: watch::Sender::new(false),
            doubt: Doubt::new(CONFIRMATIONS),
            unreadable: Vec::new(),
        }
    }

    /// Becomes true with the first fetch that brought addresses.
    pub fn fetched(&self) -> watch::Receiver<bool> {
        self.fetched.subscribe()
    }

    /// Fetches until told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        // The first unchanged answer is that of a restart; it is asked again soon, too.
        let mut pace = Pace(INTERVAL.0);
        loop {
            let Some(fetched) = stop.run_until_cancelled(self.fetch()).await else { return };
            let pause = varied(pace.after(fetched));
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    async fn fetch(&mut self) -> Fetched {
        let interfaces = match self.nmagent.interfaces().await {
            Ok(interfaces) => interfaces,
            // The client tells when NMAgent stops answering, and when it answers again.
            Err(error) => return self.failed(&error),
        };
        if !interfaces.interfaces.iter().any(|interface| interface.is_primary) {
            return self.failed(&"NMAgent lists no primary interface");
        }
        self.apply(&interfaces).await
    }

    fn failed(&mut self, why: &dyn std::fmt::Display) -> Fetched {
        tracing::debug!(%why, "the secondary addresses cannot be fetched");
        self.doubt.forget();
        if !self.outage.failed(why) {
            self.readiness.wait_for(format!("the host's secondary addresses: {why}"));
        }
        Fetched::Failed
    }

    async fn apply(&mut self, interfaces: &HostInterfaces) -> Fetched {
        self.outage.ended();
        if self.unreadable != interfaces.refused {
            for why in &interfaces.refused {
                tracing::warn!(why, "NMAgent's list of interfaces cannot be read whole");
            }
            self.unreadable.clone_from(&interfaces.refused);
        }
        let told: BTreeSet<IpAddr> = interfaces.secondary_addresses().into_iter().collect();
        let known = listed(&self.ledger.view());
        let confirmed = self.doubt.is_confirmed(&told);
        let lost = known.difference(&told).count();
        let is_doubtful = lost > 0 && (loses_most(&known, &told) || !interfaces.refused.is_empty());
        let is_doubted = is_doubtful && !confirmed;
        let wanted = if is_doubted { &known | &told } else { told };
        if is_doubted {
            self.alarms.raise(Alarm {
                message: format!(
                    "NMAgent's list lacks {} of {} addresses at once: they are kept until it says so again",
                    lost,
                    known.len()
                ),
                remedy: "look at the addresses of the host's interface if this lasts".into(),
            });
        } else {
            self.alarms.clear();
        }
        if wanted != known {
            match list(&self.ledger, &wanted).await {
                Ok(withdrawn) if withdrawn.is_empty() => {
                    tracing::info!(
                        addresses = wanted.len(),
                        before = known.len(),
                        "the host's secondary addresses changed"
                    );
                }
                Ok(withdrawn) => tracing::warn!(
                    addresses = wanted.len(),
                    ?withdrawn,
                    "the host lost addresses that pods hold; they keep them until they end"
                ),
                // Not forgotten: the next fetch compares with the ledger, and tries again (spec/ipam.md §13.11).
                Err(error) => {
                    tracing::error!(%error, "the host's secondary addresses cannot be taken over");
                    self.doubt.forget();
                    self.readiness.wait_for(format!("the host's secondary addresses: {error}"));
                    return Fetched::Failed;
                }
            }
        }
        if wanted.is_empty() {
            self.readiness.wait_for("secondary addresses of the host's interface: it has none");
        } else {
            self.fetched.send_if_modified(|fetched| !std::mem::replace(fetched, true));
            self.readiness.set_ready();
        }
        if wanted != known || is_doubted { Fetched::Changed } else { Fetched::Unchanged }
    }
}

#[cfg(test)]
mod tests {
    use cns_fake_agents::{Agent, FakeAgents, Fault};

    use super::*;
    use crate::{
        host::http::Limits,
        ledger::{Command, LedgerConfig},
        model::OrchestratorType,
        store::{Store, StoreOptions},
        telemetry::metrics::Metrics,
    };

    const FETCH: &str = "getinterfaceinfov1";

    /// As the mode makes it before it fetches.
    async fn ledger(directory: &std::path::Path) -> Ledger {
        let (store, loaded, _) = Store::open(&StoreOptions::new(directory.to_owned()).unwrap()).unwrap();
        let config = LedgerConfig::default();
        let ledger = Ledger::start(Box::new(store), loaded, config, Metrics::new()).unwrap().0;
        let command = Command::SetOrchestrator {
            kind: OrchestratorType::KubernetesCrd,
            node_id: "n".into(),
            partition_key: String::new(),
        };
        ledger.submit(actor(), command).await.unwrap();
        restore(&ledger).await.unwrap();
        ledger
    }

    fn source(agents: &FakeAgents, ledger: &Ledger, readiness: &Readiness) -> NodeSubnet {
        let wireserver = agents.url(Agent::Wireserver).parse().unwrap();
        let nmagent = Nmagent::new(&wireserver, Limits::default()).unwrap();
        NodeSubnet::new(ledger.clone(), nmagent, Alarms::default(), readiness.clone())
    }

    /// A list that is doubted is one, and so is one without addresses.
    #[tokio::test]
    async fn readiness_goes_with_the_third_failure_in_a_row_and_comes_with_any_list() {
        let agents = FakeAgents::start().await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (ledger, readiness) = (ledger(directory.path()).await, Readiness::waiting("addresses"));
        let mut source = source(&agents, &ledger, &readiness);
        source.outage.at_least = Duration::ZERO;
        let (told, alarm) = (readiness.told(), source.alarms.told());
        let is_ready = || told.borrow().is_none();
        // A node that has none yet does not become ready by an answer alone.
        agents.world(|world| world.interfaces[0].addresses.truncate(1));
        agents.fail_times(FETCH, Fault::Status(500), 4);
        for words in ["the host's", "the host's", "NMAgent, which", "NMAgent, which", "secondary addresses"] {
            source.fetch().await;
            assert!(told.borrow().as_ref().is_some_and(|what| what.starts_with(words)), "{words}: {told:?}");
        }
        agents.world(|world| {
            world.interfaces[0].addresses.extend((5..9).map(|host| (format!("10.240.0.{host}"), false)));
        });
        source.fetch().await;
        assert!(is_ready());
        for fault in [Fault::Drop, Fault::Body(b"<Interfaces/>".as_slice().into())] {
            agents.fail_times(FETCH, fault, 3);
            for ready in [true, true, false, true] {
                source.fetch().await;
                assert_eq!(is_ready(), ready, "{told:?}");
            }
        }
        // Suddenly none: kept at first, then believed.
        agents.fail_times(FETCH, Fault::Status(500), 3);
        agents.world(|world| world.interfaces[0].addresses.truncate(1));
        for (ready, doubted) in [(true, false), (true, false), (false, false), (true, true), (true, false)] {
            source.fetch().await;
            assert_eq!((is_ready(), alarm.borrow().is_some()), (ready, doubted), "{told:?}");
        }
        assert!(listed(&ledger.view()).is_empty());
        ledger.stop().await;
    }

    /// spec/host-agents.md §5.2
    #[test]
    fn the_pace_doubles_while_nothing_changes_and_a_failure_does_not_wait_long() {
        let mut pace = Pace(INTERVAL.0);
        let mut after = |fetched| pace.after(fetched).as_secs();
        assert_eq!([Fetched::Changed, Fetched::Unchanged, Fetched::Unchanged].map(&mut after), [4, 8, 16]);
        assert_eq!(after(Fetched::Failed), 16, "a failure leaves it");
        assert_eq!((0..9).map(|_| after(Fetched::Unchanged)).last(), Some(1024));
        assert_eq!(after(Fetched::Failed), 32);
        assert_eq!((after(Fetched::Unchanged), after(Fetched::Changed)), (1024, 4));
    }
}
