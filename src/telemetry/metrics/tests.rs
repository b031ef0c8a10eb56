use super::*;
use crate::{
    ledger::Committed,
    model::{Actor, JournalEntry, Now, Operation},
};

fn entry(
    container: &str,
    operation: Operation,
    outcome: Outcome,
    changes: Vec<ChangeNote>,
) -> Arc<Committed> {
    let entry = JournalEntry {
        seq: 1,
        at: Now::read().wall,
        actor: Actor::default(),
        operation,
        container: Some(container.parse().unwrap()),
        pod: None,
        nc: None,
        addresses: Vec::new(),
        outcome,
        changes,
        why: String::new(),
    };
    Arc::new(Committed { entry: Arc::new(entry), effects: Vec::new() })
}

fn commit(metrics: &Metrics, entries: &[Arc<Committed>]) {
    let report =
        BatchReport { committed: entries, commit: Duration::from_millis(1), totals: [3, 2, 1, 0], queued: 0 };
    metrics.committed(&report);
}

/// The value of a series.
fn value(metrics: &Metrics, series: &str) -> f64 {
    let text = metrics.render().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().unwrap()
}

/// spec/metrics.md §2, as far as the modes that there are feed it, and ours.
const NAMES: &[(&str, &str)] = &[
    ("cns_agent_call_seconds", "counter"),
    ("cns_agent_calls", "counter"),
    ("cns_agent_failing", "gauge"),
    ("cns_async_deletes", "counter"),
    ("cns_cni_conflist_written", "gauge"),
    ("cns_heartbeats", "counter"),
    ("cns_ledger_batch_size", "histogram"),
    ("cns_ledger_commands", "counter"),
    ("cns_ledger_commit_failures", "counter"),
    ("cns_ledger_commit_seconds", "histogram"),
    ("cns_ledger_queued_commands", "gauge"),
    ("cns_nicresources_mac_parse_errors", "counter"),
    ("cns_reconciled_sandboxes", "counter"),
    ("cns_rpc_duration_seconds", "histogram"),
    ("cns_source_doubted", "gauge"),
    ("cns_stray_veths_deleted", "counter"),
    ("cns_telemetry_items", "counter"),
    ("cns_tls_certificate_not_after_seconds", "gauge"),
    ("cns_tls_certificate_refused", "gauge"),
    ("cx_allocated_ips_v2", "gauge"),
    ("cx_assigned_ips_v2", "gauge"),
    ("cx_available_ips_v2", "gauge"),
    ("cx_pending_programming_ips_v2", "gauge"),
    ("cx_pending_release_ips_v2", "gauge"),
    ("has_networkcontainer", "gauge"),
    ("http_request_latency_seconds", "histogram"),
    ("ip_assignment_latency_seconds", "histogram"),
    ("ipconfigstatus_state_transition_seconds", "histogram"),
    ("process_cpu_seconds", "counter"),
    ("process_max_fds", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
    ("sync_host_nc_version", "counter"),
    ("sync_host_nc_version_latency_seconds", "histogram"),
];

fn fed() -> Arc<Metrics> {
    let metrics = Metrics::new();
    let note = ChangeNote::Ip {
        address: "10.0.0.1".parse().unwrap(),
        from: Some(IpStateKind::Available),
        to: Some(IpStateKind::Assigned),
        after_ms: 5,
    };
    commit(&metrics, &[entry("c1", Operation::RequestIpConfigs, Outcome::Done, vec![note])]);
    metrics.host_versions_synced(true, Some(4), Duration::from_millis(5));
    metrics.host_versions_synced(false, None, Duration::from_millis(5));
    metrics.pod_waited(Duration::from_millis(5));
    metrics.legacy_request("/network/requestipconfigs", "POST", "Success", Duration::from_millis(5));
    metrics.certificate("rest", 5, false);
    metrics.reported("event", "sent");
    let agent = AgentState::new("NMAgent", "http://h".into());
    agent.succeeded(Duration::from_millis(500));
    agent.failed("why".into(), Duration::from_secs(1));
    metrics.watch_agents(vec![agent]);
    metrics.watch_conflist(watch::channel(FileState::Written).1);
    metrics.observe("cns.v1.NodeService/GetNodeInfo", Code::Ok, Duration::from_millis(5));
    metrics
}

#[test]
fn names_and_types_are_those_of_the_table() {
    let text = fed().render().unwrap();
    let mut found: Vec<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    found.sort_unstable();
    assert_eq!(found, NAMES);
}

#[test]
fn labels_and_buckets_are_those_of_the_reference() {
    let metrics = fed();
    for (series, expected) in [
        ("cx_allocated_ips_v2{customer_metric=\"customer metric\"}", 6.0),
        ("sync_host_nc_version_total{ok=\"true\"}", 1.0),
        ("sync_host_nc_version_total{ok=\"false\"}", 1.0),
        ("sync_host_nc_version_latency_seconds_bucket{le=\"0.004\",ok=\"true\"}", 0.0),
        ("sync_host_nc_version_latency_seconds_bucket{le=\"0.008\",ok=\"true\"}", 1.0),
        ("has_networkcontainer", 4.0),
        ("cns_agent_calls_total{agent=\"NMAgent\",outcome=\"ok\"}", 1.0),
        ("cns_agent_calls_total{agent=\"NMAgent\",outcome=\"failed\"}", 1.0),
        ("cns_agent_call_seconds_total{agent=\"NMAgent\"}", 1.5),
        ("cns_agent_failing{agent=\"NMAgent\"}", 1.0),
        ("cns_cni_conflist_written", 1.0),
        ("cns_nicresources_mac_parse_errors_total", 0.0),
        ("ip_assignment_latency_seconds_count", 1.0),
        ("ip_assignment_latency_seconds_bucket{le=\"16.384\"}", 1.0),
        (
            "ipconfigstatus_state_transition_seconds_count{previous_state=\"Available\",next_state=\"Assigned\"}",
            1.0,
        ),
        (
            "http_request_latency_seconds_count{url=\"/network/requestipconfigs\",verb=\"POST\",cns_return_code=\"Success\"}",
            1.0,
        ),
    ] {
        assert!((value(&metrics, series) - expected).abs() < f64::EPSILON, "{series}");
    }
    let text = metrics.render().unwrap();
    let buckets =
        text.lines().filter(|line| line.starts_with("ip_assignment_latency_seconds_bucket")).count();
    assert_eq!(buckets, 16, "1 ms × 2^0..14 and +Inf");
    for series in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"] {
        assert!(value(&metrics, series) > 0.0, "{series}");
    }
}
