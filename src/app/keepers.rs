//! What is kept in line beside the state: the packet rules of `ProgramSNATIPTables`, the metric of the source's alarm, and what
//! systemd knows.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{broadcast::error::RecvError, watch},
    task::spawn_blocking,
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::health::notify;
use crate::{
    ledger::{Ledger, View},
    model::{Family, NcId, NcLifecycle, OnRelease, Operation, OrchestratorType},
    nic::{Netns, Snat},
    sources::Alarm,
    telemetry::metrics::Metrics,
};

/// How long systemd shall wait for the next word from a start that takes its time, and how often it hears one.
const PATIENCE: (Duration, Duration) = (Duration::from_mins(1), Duration::from_secs(20));

/// The rules as the ledger wants them: one subnet for each network container that feeds the pool. Also those whose pods get none,
/// because the container has no host address (spec/network-containers.md §16 N9).
fn wanted(view: &View) -> (Snat, Vec<NcId>) {
    if view.orchestrator().kind != Some(OrchestratorType::KubernetesCrd) {
        return (Snat::default(), Vec::new());
    }
    let v4 = Family::V4.index();
    let mut missing: HashSet<&NcId> = view
        .ncs()
        .filter(|nc| nc.counts[v4].iter().any(|count| *count > 0))
        .map(|nc| nc.record.id())
        .collect();
    let mut pods: HashMap<&NcId, IpAddr> = HashMap::new();
    for ip in view.ips_from(None) {
        if missing.is_empty() || ip.address.is_ipv6() {
            break;
        }
        // What an active container lists no longer may be of another subnet than its present one.
        let is_retired = view.nc(&ip.nc).is_some_and(|nc| nc.record.lifecycle == NcLifecycle::Deleting);
        if (is_retired || ip.on_release != OnRelease::Remove) && missing.remove(&ip.nc) {
            pods.insert(&ip.nc, ip.address);
        }
    }
    let mut without_host = Vec::new();
    let sources = view.ncs().filter_map(|nc| {
        let (spec, pod) = (&nc.record.spec, *pods.get(nc.record.id())?);
        if spec.host_primary_ip.is_none() {
            without_host.push(spec.id.clone());
        }
        Some((pod, spec.ip_configuration.subnet?.prefix_len(), spec.host_primary_ip))
    });
    let snat = Snat::new(sources.collect::<Vec<_>>());
    (snat, without_host)
}

/// Makes the rules say what the network containers want, with each change of these and now and then, as whoever reloads the
/// firewall does not know them. Rules of a refused change are never made: only committed state is looked at (§16 U12). Where the
/// option is off, what an earlier run made goes.
pub(super) async fn snat(ledger: Ledger, is_on: bool, every: Duration, stop: CancellationToken) {
    let mut events = ledger.events();
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut applied, mut told, mut known) = (None, String::new(), HashSet::new());
    loop {
        let is_tick = tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => true,
            event = events.recv() => match event {
                Ok(event) if changes_ncs(event.entry.operation) => false,
                Ok(_) => continue,
                Err(RecvError::Lagged(_)) => false,
                // The ledger has ended; so will the daemon.
                Err(RecvError::Closed) => return stop.cancelled().await,
            },
        };
        let (rules, without_host) =
            if is_on { wanted(&ledger.view()) } else { (Snat::default(), Vec::new()) };
        for nc in without_host {
            if known.insert(nc.clone()) {
                tracing::warn!(%nc, "the network container has no host address: no rule is made for its pods");
            }
        }
        if !is_tick && applied.as_ref() == Some(&rules) {
            continue;
        }
        let networks: Vec<_> = rules.networks().collect();
        let made = rules.clone();
        let outcome = spawn_blocking(move || {
            let host = Netns::current().map_err(|error| error.to_string())?;
            made.apply(&host).map_err(|error| error.to_string())
        });
        match outcome.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(changed) => {
                if changed || !told.is_empty() {
                    tracing::info!(
                        ?networks,
                        "pods' packets to Azure's own addresses have the host's as their source"
                    );
                }
                told.clear();
                applied = Some(rules);
            }
            // Tried again with the next look.
            Err(error) => {
                if told != error {
                    tracing::error!(error, "the packet rules of ProgramSNATIPTables cannot be made");
                }
                told = error;
                applied = None;
            }
        }
    }
}

fn changes_ncs(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::UpsertNc
            | Operation::DeleteNc
            | Operation::SetOrchestrator
            | Operation::ImportLegacyState
            | Operation::Reboot
    )
}

/// Shows the alarm in the metrics.
pub(super) async fn alarm(
    mut alarm: watch::Receiver<Option<Alarm>>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    loop {
        metrics.source_doubted(alarm.borrow_and_update().is_some());
        tokio::select! {
            () = stop.cancelled() => return,
            changed = alarm.changed() => if changed.is_err() { return stop.cancelled().await },
        }
    }
}

/// Says when the daemon is ready, to systemd and in the log; until then, and whenever it is no longer, what for it waits. To systemd a
/// start ends once: what comes later is status.
pub(super) async fn announce(mut waiting: watch::Receiver<Option<String>>, stop: CancellationToken) {
    use sd_notify::NotifyState::{ExtendTimeoutUsec, Ready, Status};

    let patience = u32::try_from(PATIENCE.0.as_micros()).unwrap_or(u32::MAX);
    let (mut told, mut was_ready, mut has_started) = (String::new(), false, false);
    loop {
        let what = waiting.borrow_and_update().clone();
        let is_ready = what.is_none();
        let status = what.map_or("serving".to_owned(), |what| format!("waiting for {what}"));
        if has_started {
            notify(&[Status(&status)]);
        } else if is_ready {
            notify(&[Ready, Status(&status)]);
        } else {
            notify(&[ExtendTimeoutUsec(patience), Status(&status)]);
        }
        // What comes between the begin and the end of an outage is its last error, and told where somebody asks.
        if is_ready && !was_ready {
            tracing::info!(version = env!("CARGO_PKG_VERSION"), "ready");
        } else if !is_ready && was_ready {
            tracing::warn!("no longer ready: {status}; what is known is served");
        } else if !has_started && told != status {
            tracing::info!("{status}");
        }
        (told, was_ready, has_started) = (status, is_ready, has_started || is_ready);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = waiting.changed() => if changed.is_err() { return stop.cancelled().await },
            () = tokio::time::sleep(PATIENCE.1), if !has_started => {}
        }
    }
}

/// Whether it has become ready, for those who only want to know that; it stays so.
pub(super) async fn until_ready(
    mut waiting: watch::Receiver<Option<String>>,
    ready: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let told = stop.run_until_cancelled(async { waiting.wait_for(Option::is_none).await.is_ok() }).await;
    if told == Some(true) {
        ready.send_replace(true);
    }
    stop.cancelled().await;
}
