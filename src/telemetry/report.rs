//! What the daemon reports of itself (spec/metrics.md §6): that it lives, its network containers, its configuration. Each report is a
//! structured line of the log under the target `cns::telemetry`, and an item for Application Insights where that is set up.
//!
//! | report | when |
//! |---|---|
//! | `HeartBeat` | every `HeartBeatIntervalInMins`, first after one interval; also counted as `cns_heartbeats_total` |
//! | `CNSNCSnapshot`, one per network container | at start, every `SnapshotIntervalInMins`, and of one that was created or changed |
//! | `ConfigSnapshot` | at start and every `ConfigSnapshotIntervalInMins`, unless that is 0 |

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    item::{self, Item},
    metrics::Metrics,
    outlet::Outlet,
};
use crate::{
    ledger::{BatchReport, Ledger, LedgerObserver},
    model::{NcId, NcLifecycle, Operation, Outcome},
    service::home_az::HomeAzState,
};

/// Where reports are logged.
const TARGET: &str = "cns::telemetry";

/// Network containers that were created or changed since they were last looked at. Told by the ledger's writer, which waits for nobody.
#[derive(Clone, Debug, Default)]
pub struct ChangedNcs(Arc<(Mutex<BTreeSet<NcId>>, Notify)>);

impl ChangedNcs {
    async fn take(&self) -> BTreeSet<NcId> {
        let (changed, notify) = &*self.0;
        loop {
            let taken = std::mem::take(&mut *changed.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                return taken;
            }
            notify.notified().await;
        }
    }
}

impl LedgerObserver for ChangedNcs {
    fn committed(&self, report: &BatchReport<'_>) {
        for committed in report.committed {
            let entry = &committed.entry;
            // A repetition that changed nothing is no news.
            let (Operation::UpsertNc, Outcome::Done, Some(nc)) = (entry.operation, &entry.outcome, &entry.nc)
            else {
                continue;
            };
            let (changed, notify) = &*self.0;
            changed.lock().unwrap_or_else(PoisonError::into_inner).insert(nc.clone());
            notify.notify_one();
        }
    }

    fn failed(&self, _: &str) {}
}

/// When what is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// `HeartBeatIntervalInMins`
    pub heartbeat: Duration,
    /// `SnapshotIntervalInMins`; absent with `DisableEvent`.
    pub ncs: Option<Duration>,
    /// `ConfigSnapshotIntervalInMins`; absent if it is 0, and with `DisableEvent`.
    pub config: Option<Duration>,
    /// Whether a heartbeat is sent too; not with `DisableMetric`.
    pub send_heartbeat: bool,
}

/// Reports.
#[derive(Debug)]
pub struct Reporter {
    /// When.
    pub schedule: Schedule,
    /// Whose network containers.
    pub ledger: Ledger,
    /// Which of them changed.
    pub changed: ChangedNcs,
    /// The configuration, secrets masked.
    pub config_json: String,
    /// The node's zone, in a mode that watches it.
    pub home_az: Option<watch::Receiver<HomeAzState>>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Application Insights, if it is set up.
    pub outlet: Option<Outlet>,
}

impl Reporter {
    /// Reports until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let mut heartbeat = every(self.schedule.heartbeat);
        let mut ncs = self.schedule.ncs.map(every);
        let mut config = self.schedule.config.map(every);
        if config.is_some() {
            self.config();
        }
        if ncs.is_some() {
            self.ncs(|_| true);
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = heartbeat.tick() => self.heartbeat(),
                () = tick(&mut config) => self.config(),
                () = tick(&mut ncs) => self.ncs(|_| true),
                changed = self.changed.take(), if self.schedule.ncs.is_some() => {
                    self.ncs(|id| changed.contains(id));
                }
            }
        }
    }

    fn heartbeat(&self) {
        let zone = self.home_az.as_ref().map(|zone| zone.borrow().clone());
        let item = item::heartbeat(zone.as_ref());
        self.metrics.heartbeat();
        tracing::info!(target: TARGET, event = "HeartBeat", "{}", said(&item));
        if self.schedule.send_heartbeat {
            self.send(item);
        }
    }

    fn config(&self) {
        let item = item::config_snapshot(&self.config_json);
        tracing::info!(target: TARGET, event = "ConfigSnapshot", "{}", said(&item));
        self.send(item);
    }

    fn ncs(&self, wanted: impl Fn(&NcId) -> bool) {
        let items: Vec<Item> = {
            let view = self.ledger.view();
            let ncs = view.ncs().map(|nc| &nc.record);
            ncs.filter(|nc| nc.lifecycle == NcLifecycle::Active && wanted(nc.id()))
                .map(|nc| item::nc_snapshot(nc))
                .collect()
        };
        for item in items {
            if let Item::Event { operation, .. } = &item {
                tracing::info!(target: TARGET, event = "CNSNCSnapshot", nc = operation, "{}", said(&item));
            }
            self.send(item);
        }
    }

    fn send(&self, item: Item) {
        if let Some(outlet) = &self.outlet {
            outlet.put(item);
        }
    }
}

/// An item's texts for the log: one JSON object, so that a value of several words stays one.
fn said(item: &Item) -> String {
    let (Item::Metric { properties, .. } | Item::Event { properties, .. } | Item::Trace { properties, .. }) =
        item;
    let texts = properties.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into()));
    serde_json::Value::Object(texts.collect()).to_string()
}

fn every(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

/// The next tick; never, where there are none.
async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ledger::{Command, LedgerConfig, MissingAssigned, NcOrigin, UpsertNc},
        model::{Actor, NcSpec, NcType, OrchestratorType},
        store::{Store, StoreOptions},
        telemetry::outlet::Outlet,
    };

    const IDS: [&str; 2] = ["5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11", "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a12"];

    async fn put_nc(ledger: &Ledger, id: &str, version: u64) {
        let mut spec = NcSpec::new(id.parse().unwrap(), NcType::Docker, version);
        spec.ip_configuration.subnet = Some("10.7.0.9/24".parse().unwrap());
        let upsert =
            UpsertNc { spec, origin: NcOrigin::Api, missing: MissingAssigned::Keep, programmed: Some(0) };
        ledger.upsert_nc(Actor::default(), upsert).await.unwrap();
    }

    #[tokio::test]
    async fn everything_is_reported_when_it_is_due() {
        let directory = tempfile::tempdir().unwrap();
        let (store, loaded, _) =
            Store::open(&StoreOptions::new(directory.path().to_owned()).unwrap()).unwrap();
        let changed = ChangedNcs::default();
        let observer = Arc::new(changed.clone());
        let (ledger, _, _) =
            Ledger::start(Box::new(store), loaded, LedgerConfig::default(), observer).unwrap();
        let kind = OrchestratorType::KubernetesCrd;
        let (node_id, partition_key) = ("n".into(), String::new());
        let command = Command::SetOrchestrator { kind, node_id, partition_key };
        ledger.submit(Actor::default(), command).await.unwrap();
        put_nc(&ledger, IDS[0], 1).await;
        let metrics = Metrics::new();
        let (outlet, mut items) = Outlet::tapped(metrics.clone());
        let minutes = Duration::from_mins;
        let (_zone, home_az) = watch::channel(HomeAzState::Zone { zone: 3, ipv6_fix: false });
        // Started before: what changed earlier is told with the first look.
        let reporter = Reporter {
            schedule: Schedule {
                heartbeat: minutes(30),
                ncs: Some(minutes(60)),
                config: Some(minutes(50)),
                send_heartbeat: true,
            },
            ledger: ledger.clone(),
            changed,
            config_json: "{\"a\": 1}".into(),
            home_az: Some(home_az),
            metrics: metrics.clone(),
            outlet: Some(outlet),
        };
        let stop = CancellationToken::new();
        let running = tokio::spawn(reporter.run(stop.clone()));
        let mut next = async || match items.recv().await.unwrap().item {
            Item::Metric { name, properties, .. } => format!("{name} {}", properties.len()),
            Item::Event { name, operation, .. } => format!("{name} {operation}"),
            Item::Trace { .. } => unreachable!(),
        };
        let (first, second) = (format!("CNSNCSnapshot {}", IDS[0]), format!("CNSNCSnapshot {}", IDS[1]));
        let config = next().await;
        assert!(config.starts_with("ConfigSnapshot "), "{config}");
        assert_eq!(next().await, first, "at start");
        assert_eq!(next().await, first, "it was created before anybody looked");
        put_nc(&ledger, IDS[1], 1).await;
        assert_eq!(next().await, second, "created");
        put_nc(&ledger, IDS[1], 1).await;
        put_nc(&ledger, IDS[0], 2).await;
        assert_eq!(next().await, first, "changed; the repetition before it is no news");
        // From here on nobody but the clock is waited for, so minutes pass at once.
        tokio::time::pause();
        let begun = Instant::now();
        let mut rest = Vec::new();
        while begun.elapsed() < minutes(61) {
            rest.push(next().await);
        }
        for (report, times) in [("HeartBeat 3", 3), (&first, 1), (&second, 1), (&config, 1)] {
            let found = rest.iter().filter(|found| *found == report).count();
            assert_eq!(found, times, "{report} in {rest:?}");
        }
        assert!(metrics.render().unwrap().contains("cns_heartbeats_total 3"));
        stop.cancel();
        running.await.unwrap();
        ledger.stop().await;
    }
}
