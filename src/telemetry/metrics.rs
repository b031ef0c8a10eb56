//! Prometheus metrics: the reference's names, fed as it feeds them (spec/metrics.md), and ours beside them.

use std::{collections::HashSet, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::sync::watch;
use tonic::Code;

use super::{process::Process, watched::Watched};
use crate::{
    conflist::FileState,
    host::http::AgentState,
    ledger::{BatchReport, LedgerObserver},
    model::{ChangeNote, IpStateKind, Outcome},
    proto,
    service::{ServiceObserver, layers::RpcObserver},
    sources::host_versions::SyncObserver,
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Customer {
    customer_metric: &'static str,
}

const CUSTOMER: Customer = Customer { customer_metric: "customer metric" };

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Transition {
    previous_state: &'static str,
    next_state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Rpc {
    method: String,
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Command {
    operation: &'static str,
    outcome: &'static str,
}

/// All metrics of the daemon.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// `package.Service/Method` of every rpc of the contract.
    known: HashSet<String>,
    by_state: [Family<Customer, Gauge>; 4],
    allocated: Family<Customer, Gauge>,
    transitions: Family<Transition, Histogram>,
    rpcs: Family<Rpc, Histogram>,
    commands: Family<Command, Counter>,
    batch: Histogram,
    commit: Histogram,
    commit_failures: Counter,
    queued: Gauge,
    reconciled: Counter,
    async_deletes: Counter,
    veths: Counter,
    legacy: Family<Legacy, Histogram>,
    assignment: Histogram,
    version_syncs: Family<WentWell, Counter>,
    version_sync_latency: Family<WentWell, Histogram>,
    host_ncs: Gauge,
    mac_parse_errors: Counter,
    certificate_ends: Family<Listener, Gauge>,
    certificate_refused: Family<Listener, Gauge>,
    source_doubted: Gauge,
    heartbeats: Counter,
    reported: Family<Reported, Counter>,
    watched: Watched,
}

/// An item for Application Insights and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reported {
    /// `metric`, `event` or `trace`.
    kind: &'static str,
    /// `sent`, `refused` by the service, or `dropped` because the queue was full or the service did not answer.
    outcome: &'static str,
}

/// Whether it went well: `true` or `false`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WentWell {
    ok: &'static str,
}

/// A listener with TLS: `grpc` or `rest`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Listener {
    listener: &'static str,
}

/// A request of the legacy contract.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Legacy {
    /// The route's path. The reference has the whole request URI here, which any caller can make endless.
    url: &'static str,
    verb: String,
    cns_return_code: &'static str,
}

fn latency() -> Histogram {
    // The reference's buckets: 1 ms × 2^0..14.
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn fast() -> Histogram {
    Histogram::new(exponential_buckets(0.000_05, 2.0, 18))
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::default();
        let by_state: [Family<Customer, Gauge>; 4] = Default::default();
        let names = ["available", "assigned", "pending_programming", "pending_release"];
        for (gauge, name) in by_state.iter().zip(names) {
            registry.register(
                format!("cx_{name}_ips_v2"),
                format!("Addresses that are {name}"),
                gauge.clone(),
            );
        }
        let allocated = Family::default();
        registry.register("cx_allocated_ips_v2", "Addresses of the node, in any state", allocated.clone());
        let transitions = Family::new_with_constructor(latency as fn() -> Histogram);
        registry.register(
            "ipconfigstatus_state_transition_seconds",
            "Time that addresses spent in the former state",
            transitions.clone(),
        );
        let rpcs = Family::new_with_constructor(fast as fn() -> Histogram);
        registry.register(
            "cns_rpc_duration_seconds",
            "Duration of gRPC calls by method and status",
            rpcs.clone(),
        );
        let commands = Family::default();
        registry.register(
            "cns_ledger_commands",
            "Commands of the ledger by operation and outcome",
            commands.clone(),
        );
        let batch = Histogram::new(exponential_buckets(1.0, 2.0, 10));
        registry.register("cns_ledger_batch_size", "Commands that shared one disk flush", batch.clone());
        let commit = fast();
        registry.register("cns_ledger_commit_seconds", "Duration of one durable transaction", commit.clone());
        let commit_failures = Counter::default();
        registry.register(
            "cns_ledger_commit_failures",
            "Batches that the disk did not take",
            commit_failures.clone(),
        );
        let queued = Gauge::default();
        registry.register(
            "cns_ledger_queued_commands",
            "Commands that waited after the last batch",
            queued.clone(),
        );
        let reconciled = Counter::default();
        registry.register(
            "cns_reconciled_sandboxes",
            "Dead sandboxes whose addresses were released",
            reconciled.clone(),
        );
        let async_deletes = Counter::default();
        registry.register(
            "cns_async_deletes",
            "Releases taken from the async-delete directory",
            async_deletes.clone(),
        );
        let veths = Counter::default();
        registry.register(
            "cns_stray_veths_deleted",
            "Host veths deleted because they had outlived their container",
            veths.clone(),
        );
        let legacy = Family::<Legacy, Histogram>::new_with_constructor(latency);
        registry.register(
            "http_request_latency_seconds",
            "Time to answer requests of the legacy contract",
            legacy.clone(),
        );
        let assignment = latency();
        registry.register(
            "ip_assignment_latency_seconds",
            "Time from a pod's first request to its first success",
            assignment.clone(),
        );
        let version_syncs = Family::default();
        // The encoder appends `_total`.
        registry.register(
            "sync_host_nc_version",
            "Rounds in which the host was asked what it has programmed",
            version_syncs.clone(),
        );
        let version_sync_latency = Family::<WentWell, Histogram>::new_with_constructor(latency);
        registry.register(
            "sync_host_nc_version_latency_seconds",
            "Duration of such a round",
            version_sync_latency.clone(),
        );
        let host_ncs = Gauge::default();
        registry.register(
            "has_networkcontainer",
            "Network containers that the machine's agents listed when they were last asked",
            host_ncs.clone(),
        );
        let mac_parse_errors = Counter::default();
        registry.register(
            "cns_nicresources_mac_parse_errors",
            "MAC addresses of the node's NICs that are none",
            mac_parse_errors.clone(),
        );
        registry.register_collector(Box::new(Process::new()));
        let watched = Watched::default();
        registry.register_collector(Box::new(watched.clone()));
        let certificate_ends = Family::default();
        registry.register(
            "cns_tls_certificate_not_after_seconds",
            "End of the served certificate's validity, seconds since 1970",
            certificate_ends.clone(),
        );
        let certificate_refused = Family::default();
        registry.register(
            "cns_tls_certificate_refused",
            "1 while a newer certificate is there that cannot be used",
            certificate_refused.clone(),
        );
        let source_doubted = Gauge::default();
        registry.register(
            "cns_source_doubted",
            "1 while what the source of network containers says is gone is not believed",
            source_doubted.clone(),
        );
        let heartbeats = Counter::default();
        registry.register("cns_heartbeats", "Heartbeats of the daemon", heartbeats.clone());
        let reported = Family::default();
        registry.register(
            "cns_telemetry_items",
            "Items for Application Insights by kind and what became of them",
            reported.clone(),
        );
        let metrics = Self {
            registry,
            known: proto::methods().into_iter().collect(),
            by_state,
            allocated,
            transitions,
            rpcs,
            commands,
            batch,
            commit,
            commit_failures,
            queued,
            reconciled,
            async_deletes,
            veths,
            legacy,
            assignment,
            version_syncs,
            version_sync_latency,
            host_ncs,
            mac_parse_errors,
            certificate_ends,
            certificate_refused,
            source_doubted,
            heartbeats,
            reported,
            watched,
        };
        metrics.set_totals([0; 4]);
        Arc::new(metrics)
    }

    /// Addresses by state, in the order of [`IpStateKind::ALL`].
    pub fn set_totals(&self, totals: [u32; 4]) {
        for (gauge, total) in self.by_state.iter().zip(totals) {
            gauge.get_or_create(&CUSTOMER).set(total.into());
        }
        self.allocated.get_or_create(&CUSTOMER).set(totals.into_iter().map(i64::from).sum());
    }

    /// A dead sandbox was released.
    pub fn sandbox_reconciled(&self) {
        self.reconciled.inc();
    }

    /// A host veth that had outlived its container was deleted.
    pub fn veth_reconciled(&self) {
        self.veths.inc();
    }

    /// A request of the legacy contract was answered.
    pub fn legacy_request(&self, url: &'static str, verb: &str, code: &'static str, took: Duration) {
        // Methods are words of the caller's choice.
        let known = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
        let verb = known.into_iter().find(|known| *known == verb).unwrap_or("other").to_owned();
        let labels = Legacy { url, verb, cns_return_code: code };
        self.legacy.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// The certificate of a listener changed, or one that was to follow cannot be used.
    pub fn certificate(&self, listener: &'static str, not_after: i64, is_refused: bool) {
        let listener = Listener { listener };
        self.certificate_ends.get_or_create(&listener).set(not_after);
        self.certificate_refused.get_or_create(&listener).set(is_refused.into());
    }

    /// Whether the source of network containers is not believed.
    pub fn source_doubted(&self, is_doubted: bool) {
        self.source_doubted.set(is_doubted.into());
    }

    /// From now on these agents' accounts are shown. Only the first call counts.
    pub fn watch_agents(&self, agents: Vec<AgentState>) {
        self.watched.agents(agents);
    }

    /// The same of the CNI configuration list.
    pub fn watch_conflist(&self, state: watch::Receiver<FileState>) {
        self.watched.conflist(state);
    }

    /// The daemon lives.
    pub fn heartbeat(&self) {
        self.heartbeats.inc();
    }

    /// What became of an item for Application Insights.
    pub fn reported(&self, kind: &'static str, outcome: &'static str) {
        self.reported.get_or_create(&Reported { kind, outcome }).inc();
    }

    /// A MAC of the node's NICs was none.
    pub fn mac_parse_error(&self) {
        self.mac_parse_errors.inc();
    }

    /// A release was taken from the async-delete directory.
    pub fn async_delete(&self) {
        self.async_deletes.inc();
    }

    /// The text that a scraper reads (OpenMetrics 1.0).
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl LedgerObserver for Metrics {
    fn committed(&self, report: &BatchReport<'_>) {
        self.set_totals(report.totals);
        #[allow(clippy::cast_precision_loss, reason = "a batch has hundreds of commands")]
        self.batch.observe(report.committed.len() as f64);
        self.commit.observe(report.commit.as_secs_f64());
        self.queued.set(i64::try_from(report.queued).unwrap_or(i64::MAX));
        for committed in report.committed {
            let entry = &committed.entry;
            let outcome = match entry.outcome {
                Outcome::Done => "done",
                Outcome::Unchanged => "unchanged",
                Outcome::Refused { .. } => "refused",
            };
            let command = Command { operation: entry.operation.as_str(), outcome };
            self.commands.get_or_create(&command).inc();
            for note in &entry.changes {
                let ChangeNote::Ip { from: Some(from), to: Some(to), after_ms, .. } = note else { continue };
                let transition =
                    Transition { previous_state: IpStateKind::as_str(*from), next_state: to.as_str() };
                self.transitions
                    .get_or_create(&transition)
                    .observe(Duration::from_millis(*after_ms).as_secs_f64());
            }
        }
    }

    fn failed(&self, _: &str) {
        self.commit_failures.inc();
    }
}

impl ServiceObserver for Metrics {
    fn pod_waited(&self, waited: Duration) {
        self.assignment.observe(waited.as_secs_f64());
    }
}

impl SyncObserver for Metrics {
    fn host_versions_synced(&self, ok: bool, listed: Option<usize>, took: Duration) {
        let label = WentWell { ok: if ok { "true" } else { "false" } };
        self.version_syncs.get_or_create(&label).inc();
        self.version_sync_latency.get_or_create(&label).observe(took.as_secs_f64());
        if let Some(listed) = listed {
            self.host_ncs.set(i64::try_from(listed).unwrap_or(i64::MAX));
        }
    }
}

impl RpcObserver for Metrics {
    fn observe(&self, method: &str, code: Code, elapsed: Duration) {
        // A caller can invent paths; only ours become labels. An answer to anything else of gRPC's own is proof enough.
        let known = self.known.contains(method)
            || (method.starts_with("grpc.") && !matches!(code, Code::Unimplemented | Code::Cancelled));
        let method = if known { method } else { "other" };
        let rpc = Rpc { method: method.to_owned(), code: code_name(code) };
        self.rpcs.get_or_create(&rpc).observe(elapsed.as_secs_f64());
    }
}

const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests;
