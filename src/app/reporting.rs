//! What is reported of the daemon, and where to, as `TelemetrySettings` say.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ChannelMode, Config, TelemetrySettings},
    host::{
        http::{AgentState, ClientError, Limits, Roots},
        imds::Imds,
        insights::{Destination, Insights},
    },
    ledger::{BatchReport, Ledger, LedgerObserver},
    service::home_az::HomeAzState,
    telemetry::{
        metrics::Metrics,
        outlet::{MachineSearch, Outlet, Pace, Sender},
        report::{ChangedNcs, Reporter, Schedule},
        traces::Traces,
    },
};

/// Who is told of every batch of the ledger.
pub(super) struct Observers {
    pub(super) metrics: Arc<Metrics>,
    pub(super) ncs: ChangedNcs,
}

impl LedgerObserver for Observers {
    fn committed(&self, report: &BatchReport<'_>) {
        self.metrics.committed(report);
        self.ncs.committed(report);
    }

    fn failed(&self, error: &str) {
        self.metrics.failed(error);
    }
}

/// The parts that report; none with `DisableAll`.
#[derive(Debug, Default)]
pub(super) struct Reporting {
    reporter: Option<Reporter>,
    sending: Option<Sending>,
}

#[derive(Debug)]
struct Sending {
    sender: Sender,
    state: AgentState,
    search: Option<MachineSearch>,
}

impl Reporting {
    /// As the configuration has it. `imds` is the mode's own client, where it has one.
    pub(super) fn new(
        config: &Config,
        ledger: &Ledger,
        changed: ChangedNcs,
        metrics: &Arc<Metrics>,
        imds: Option<Imds>,
        home_az: watch::Receiver<HomeAzState>,
        traces: &Traces,
    ) -> Self {
        let settings = &config.settings.telemetry;
        if settings.disable_all {
            return Self::default();
        }
        let (mut outlet, mut sending) = (None, None);
        if let Some(destination) = &config.insights {
            match sending_to(destination.clone(), config, ledger, metrics, imds) {
                Ok((out, parts)) => {
                    if !settings.disable_trace {
                        traces.connect(out.clone());
                    }
                    (outlet, sending) = (Some(out), Some(parts));
                }
                // A node does not go without network because its telemetry cannot be sent.
                Err(error) => tracing::error!(%error, "nothing is sent to Application Insights"),
            }
        }
        let reporter = Reporter {
            schedule: schedule(settings),
            ledger: ledger.clone(),
            changed,
            config_json: config.to_json(),
            home_az: (config.channel_mode == ChannelMode::Direct).then_some(home_az),
            metrics: metrics.clone(),
            outlet,
        };
        Self { reporter: Some(reporter), sending }
    }

    /// How the service that is reported to is doing.
    pub(super) fn state(&self) -> Option<AgentState> {
        self.sending.as_ref().map(|sending| sending.state.clone())
    }

    /// Starts the parts.
    pub(super) fn spawn(self, parts: &mut JoinSet<()>, stop: &CancellationToken) {
        if let Some(reporter) = self.reporter {
            parts.spawn(reporter.run(stop.clone()));
        }
        if let Some(Sending { sender, search, .. }) = self.sending {
            parts.spawn(sender.run(stop.clone()));
            if let Some(search) = search {
                parts.spawn(search.run(stop.clone()));
            }
        }
    }
}

fn sending_to(
    destination: Destination,
    config: &Config,
    ledger: &Ledger,
    metrics: &Arc<Metrics>,
    imds: Option<Imds>,
) -> Result<(Outlet, Sending), ClientError> {
    let settings = &config.settings.telemetry;
    let seconds = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let insights = Insights::new(&destination.endpoint, Limits::default(), Roots::System)?;
    let state = insights.state().clone();
    let (told, known) = watch::channel(None);
    let search = if settings.disable_metadata_refresh_thread && !destination.only_in_public_cloud {
        None
    } else {
        let imds = match imds {
            Some(imds) => imds,
            None => Imds::new(&config.imds_url, Limits::default())?,
        };
        Some(MachineSearch { imds, every: seconds(settings.refresh_interval_in_secs), told })
    };
    let pace = Pace {
        bytes: usize::try_from(settings.batch_size_bytes).unwrap_or(usize::MAX),
        interval: seconds(settings.batch_interval_in_secs),
    };
    let (outlet, sender) = Outlet::new(insights, destination, pace, ledger.clone(), metrics.clone(), known);
    Ok((outlet, Sending { sender, state, search }))
}

fn schedule(settings: &TelemetrySettings) -> Schedule {
    let minutes = |minutes: i64| Duration::from_mins(minutes.unsigned_abs());
    let events = !settings.disable_event;
    Schedule {
        heartbeat: minutes(settings.heart_beat_interval_in_mins),
        ncs: events.then(|| minutes(settings.snapshot_interval_in_mins)),
        config: Some(minutes(settings.config_snapshot_interval_in_mins))
            .filter(|every| events && !every.is_zero()),
        send_heartbeat: !settings.disable_metric,
    }
}
