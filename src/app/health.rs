//! Whether the daemon serves, told to gRPC health and systemd.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;

use crate::ledger::Health;

/// The services whose health is told one by one and is that of the ledger; `""` stands for the whole.
const SERVICES: &[&str] = &[
    "",
    "cns.v1.IpamService",
    "cns.v1.NetworkContainerService",
    "cns.v1.EndpointService",
    "cns.v1.NodeService",
    "cns.v1.DebugService",
    "cns.CNS",
];

/// The services that are part of the contract and have no call that does anything in this version. They are known to health as not
/// serving, whatever the ledger does: who probes one of them wants to use it, and "unknown" would say that the contract lacks it.
/// They do not count for the whole.
const NOT_SERVED: &[&str] = &["cns.v1.DeviceService"];

/// Served where the mode has agents to ask.
const OF_AGENTS: &str = "cns.v1.NMAgentService";

/// systemd is told if it wants to know; that it does not listen is no reason to fail.
pub(super) fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd cannot be told");
    }
}

pub(super) async fn writer_ended(health: &mut watch::Receiver<Health>) {
    while health.changed().await.is_ok() {}
}

/// A service serves as soon as the ledger does; the whole, once what the channel mode waits for is there.
pub(super) async fn tell_health(reporter: &HealthReporter, serving: bool, ready: bool, has_agents: bool) {
    let status = |serves| {
        if serves { tonic_health::ServingStatus::Serving } else { tonic_health::ServingStatus::NotServing }
    };
    for service in SERVICES {
        reporter.set_service_status(*service, status(serving && (ready || !service.is_empty()))).await;
    }
    reporter.set_service_status(OF_AGENTS, status(serving && has_agents)).await;
    for service in NOT_SERVED {
        reporter.set_service_status(*service, status(false)).await;
    }
}

/// Tells gRPC health what the ledger and the channel mode say, and every change of it.
pub(super) async fn report_health(
    reporter: HealthReporter,
    mut health: watch::Receiver<Health>,
    mut waiting: watch::Receiver<Option<String>>,
    has_agents: bool,
    stop: CancellationToken,
) {
    loop {
        let serving = *health.borrow_and_update() == Health::Serving && !stop.is_cancelled();
        let ready = waiting.borrow_and_update().is_none();
        tell_health(&reporter, serving, ready, has_agents).await;
        if stop.is_cancelled() {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            changed = health.changed() => if changed.is_err() { stop.cancelled().await },
            // Once its sender is gone it changes no more.
            Ok(()) = waiting.changed() => {}
        }
    }
}

/// Pets systemd's watchdog while the runtime turns. A failing disk is no reason to be restarted: that is tried again here.
pub(super) async fn watchdog(
    health: watch::Receiver<Health>,
    waiting: watch::Receiver<Option<String>>,
    stop: CancellationToken,
) {
    let Some(period) = sd_notify::watchdog_enabled() else {
        stop.cancelled().await;
        return;
    };
    let mut tick = tokio::time::interval(period / 2);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {
                let status = match (&*health.borrow(), &*waiting.borrow()) {
                    (Health::Serving, None) => "serving".to_owned(),
                    (Health::Serving, Some(what)) => format!("waiting for {what}"),
                    (Health::Failing { error, .. }, _) => format!("the state cannot be made durable: {error}"),
                };
                notify(&[sd_notify::NotifyState::Watchdog, sd_notify::NotifyState::Status(&status)]);
            }
        }
    }
}
