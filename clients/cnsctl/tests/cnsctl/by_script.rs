//! Against a daemon that answers by script: refusals, findings, streams.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    time::Duration,
};

use cns::proto::v1 as pb;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    fixture::{Ran, cnsctl, ran},
    scripted::{Answer, Daemon, reply, stream},
};

const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

fn command(daemon: &Daemon, line: &[&str]) -> Command {
    let mut command = cnsctl(["--socket"]);
    command.arg(daemon.socket()).args(line);
    command
}

fn run(daemon: &Daemon, line: &[&str]) -> Ran {
    ran(&mut command(daemon, line))
}

fn health(serving: bool) -> Answer {
    // HealthCheckResponse { status: 1 serving, 2 not serving }
    Answer::Messages(vec![vec![8, if serving { 1 } else { 2 }].into()])
}

fn refusal(code: Code, message: &str, reason: &str, return_code: &str, retry: Option<Duration>) -> Answer {
    let mut details = ErrorDetails::new();
    details.set_error_info(
        reason,
        "cns.azure.com",
        HashMap::from([("return_code".into(), return_code.into())]),
    );
    if let Some(delay) = retry {
        details.set_retry_info(Some(delay));
    }
    Answer::Refusal(Status::with_error_details(code, message, details))
}

fn pod() -> pb::PodIdentity {
    pb::PodIdentity { namespace: "default".into(), name: "web-0".into() }
}

fn event(sequence: u64) -> pb::WatchEventsResponse {
    let event = pb::Event {
        sequence,
        time: Some(pb_time()),
        operation: "RequestIPConfigs".into(),
        container_id: "c1".into(),
        pod: Some(pod()),
        ip_addresses: vec!["10.244.0.5".into()],
        outcome: pb::EventOutcome::Done as i32,
        ..Default::default()
    };
    pb::WatchEventsResponse { event: Some(event), missed: 0 }
}

fn pb_time() -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }
}

#[test]
fn a_refusal_is_code_1_and_says_reason_and_when_to_try_again() {
    let daemon = Daemon::start([(
        "IpamService/RequestIPConfigs",
        refusal(
            Code::ResourceExhausted,
            "not enough IPs available of type ipv4",
            "FAILED_TO_ALLOCATE_IP_CONFIG",
            "32",
            Some(Duration::from_secs(90)),
        ),
    )]);
    let told = run(&daemon, &["ip", "request", "--container-id", "c1", "--pod", "default/web-0"]).fails(1);
    assert_eq!(
        told,
        "cnsctl: RequestIPConfigs refused: not enough IPs available of type ipv4 \
         (FAILED_TO_ALLOCATE_IP_CONFIG, return code 32); try again in 90.0 s\n"
    );
    let sent: pb::RequestIpConfigsRequest = daemon.last("IpamService/RequestIPConfigs");
    assert_eq!((sent.infra_container_id.as_str(), sent.pod_interface_id.as_str()), ("c1", "c1-eth0"));
    assert!(sent.began_boottime_ns.is_some_and(|began| began > 0));
}

#[test]
fn what_does_not_exist_is_code_4() {
    let not_found = || refusal(Code::NotFound, "there is none", "NOT_FOUND", "14", None);
    let daemon = Daemon::start([
        ("EndpointService/GetEndpoint", not_found()),
        ("NetworkContainerService/GetNetworkContainer", not_found()),
        (
            "NetworkContainerService/DeleteNetworkContainer",
            reply(&pb::DeleteNetworkContainerResponse::default()),
        ),
        (
            "DebugService/Explain",
            reply(&pb::ExplainResponse {
                summary: "10.9.9.9 is not known here".into(),
                ..Default::default()
            }),
        ),
    ]);
    run(&daemon, &["endpoint", "get", "c1"]).fails(4);
    run(&daemon, &["nc", "get", NC]).fails(4);
    run(&daemon, &["nc", "delete", NC]).fails(4);
    assert_eq!(run(&daemon, &["explain", "10.9.9.9"]).fails(4), "cnsctl: 10.9.9.9 is not known here\n");
}

#[test]
fn an_rpc_that_the_daemon_lacks_is_named() {
    let daemon = Daemon::start([]);
    let told = run(&daemon, &["doctor"]).fails(1);
    assert!(told.contains("Diagnose is not implemented by this daemon"), "{told}");
}

#[test]
fn a_daemon_that_does_not_answer_is_code_3() {
    let daemon = Daemon::start([("DebugService/Diagnose", Answer::MessagesThenSilence(Vec::new()))]);
    let told = run(&daemon, &["doctor", "--timeout", "0.2"]).fails(3);
    assert!(told.contains("Diagnose was not answered within 200ms"), "{told}");
}

#[test]
fn findings_are_code_5_in_every_form() {
    let finding = pb::Finding {
        severity: pb::FindingSeverity::Warning as i32,
        kind: "DEAD_SANDBOX".into(),
        message: "the sandbox of container c1 is gone".into(),
        remedy: "its addresses are released in 40 s".into(),
        container_id: "c1".into(),
        ip_addresses: vec!["10.244.0.5".into()],
    };
    let answer =
        pb::DiagnoseResponse { findings: vec![finding], checked_ip_configs: 254, ..Default::default() };
    let daemon = Daemon::start([("DebugService/Diagnose", reply(&answer))]);
    let table = run(&daemon, &["doctor"]).exits(5);
    assert_eq!(
        table.out,
        "warning: the sandbox of container c1 is gone (DEAD_SANDBOX)\n  container c1, 10.244.0.5\n  \
         its addresses are released in 40 s\n\
         checked 254 addresses, 0 sandboxes, 0 network containers: 0 errors, 1 warnings\n"
    );
    let json: serde_json::Value =
        serde_json::from_str(&run(&daemon, &["doctor", "-o", "json"]).exits(5).out).unwrap();
    assert_eq!(json["findings"][0]["kind"], "DEAD_SANDBOX");
    assert_eq!(json["healthy"], false);
    assert!(run(&daemon, &["doctor", "-o", "yaml"]).exits(5).out.contains("kind: DEAD_SANDBOX"));
}

#[test]
fn a_daemon_that_does_not_serve_is_code_5_and_says_why() {
    let node = pb::GetNodeInfoResponse {
        channel_mode: "Standalone".into(),
        not_serving_reason: "the disk is full since 15:00".into(),
        ..Default::default()
    };
    let daemon = Daemon::start([
        ("Health/Check", health(false)),
        ("NodeService/GetNodeInfo", reply(&node)),
        (
            "NetworkContainerService/ListNetworkContainers",
            reply(&pb::ListNetworkContainersResponse::default()),
        ),
    ]);
    let status = run(&daemon, &["status"]).exits(5);
    assert!(status.out.contains("health: not serving\n"), "{}", status.out);
    assert!(
        status.out.contains("problem: the daemon takes no requests that change anything: the disk is full"),
        "{}",
        status.out
    );
}

#[test]
fn agents_and_what_is_waited_for_are_told() {
    let failing = pb::AgentStatus {
        name: "NMAgent".into(),
        address: "http://168.63.129.16".into(),
        since: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
        last_error: "NMAgent at http://168.63.129.16, GetHomeAz: cannot connect: refused".into(),
        failed_in_a_row: 7,
        ..Default::default()
    };
    let node = pb::GetNodeInfoResponse {
        channel_mode: "Managed".into(),
        serving: true,
        agents: vec![failing],
        waiting_for: "the registration at DNC".into(),
        ..Default::default()
    };
    let daemon = Daemon::start([
        ("Health/Check", health(false)),
        ("NodeService/GetNodeInfo", reply(&node)),
        (
            "NetworkContainerService/ListNetworkContainers",
            reply(&pb::ListNetworkContainersResponse::default()),
        ),
    ]);
    let status = run(&daemon, &["status"]).exits(5);
    let told = "agent: NMAgent at http://168.63.129.16: no good answer since 2023-11-14T22:13:20Z (";
    assert!(
        status.out.contains(told) && status.out.contains("7 calls in a row: GetHomeAz: cannot"),
        "{}",
        status.out
    );
    let told = "problem: the node is not ready: it waits for the registration at DNC";
    assert!(status.out.contains(told) && status.out.contains("serving, but not healthy"), "{}", status.out);
    let json: serde_json::Value =
        serde_json::from_str(&run(&daemon, &["status", "-o", "json"]).exits(5).out).unwrap();
    assert_eq!(json["agents"][0]["healthy"], false);
    assert_eq!(json["agents"][0]["failedInARow"], 7);
    assert_eq!(json["waitingFor"], "the registration at DNC");
    assert!(run(&daemon, &["status", "-o", "yaml"]).exits(5).out.contains("name: NMAgent"));
}

#[test]
fn every_page_is_asked_for() {
    let page = |address: &str, next: &str| pb::ListIpConfigsResponse {
        ip_configs: vec![pb::IpConfig {
            ip_address: address.into(),
            state: pb::IpState::Available as i32,
            ..Default::default()
        }],
        next_page_token: next.into(),
    };
    let pages =
        vec![reply(&page("10.0.0.1", "1")), reply(&page("10.0.0.2", "2")), reply(&page("10.0.0.3", ""))];
    let daemon = Daemon::start([("IpamService/ListIPConfigs", Answer::InTurn(pages))]);
    let listed = run(&daemon, &["ip", "list", "--state", "available", "--pod", "a/b", "--nc", NC]).succeeds();
    assert_eq!(listed.lines().count(), 4, "{listed}");
    let sent: pb::ListIpConfigsRequest = daemon.last("IpamService/ListIPConfigs");
    assert_eq!(sent.states, [pb::IpState::Available as i32]);
    assert_eq!(sent.network_container_id, NC);
    assert_eq!(sent.pod.unwrap().name, "b");
    assert_eq!(sent.page_token, "2");
}

#[test]
fn watch_prints_what_comes_and_ends_with_ctrl_c() {
    let daemon = Daemon::start([("DebugService/WatchEvents", stream(&[event(7), event(8)]))]);
    for (output, first) in [
        (
            "table",
            "2023-11-14T22:13:20Z #7 RequestIPConfigs pod default/web-0 container c1: done; 10.244.0.5 (by unknown)\n",
        ),
        (
            "json",
            "{\"sequence\":7,\"time\":\"2023-11-14T22:13:20Z\",\"operation\":\"RequestIPConfigs\",\"outcome\":\"Done\",\"containerId\":\"c1\",\"pod\":{\"namespace\":\"default\",\"name\":\"web-0\"},\"ipAddresses\":[\"10.244.0.5\"],\"changes\":[],\"actor\":{\"origin\":\"\"}}\n",
        ),
        ("yaml", "---\n"),
    ] {
        let mut child = command(&daemon, &["watch", "--after", "6", "-o", output])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, first);
        let from: pb::WatchEventsRequest = daemon.last("DebugService/WatchEvents");
        assert_eq!(from.from_sequence, 7);
        kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert!(rest.contains('8'), "{rest}");
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), b"".as_slice()), "{ended:?}");
    }
}

#[test]
fn watch_ends_when_nobody_reads_though_nothing_happens() {
    let daemon = Daemon::start([("DebugService/WatchEvents", stream(&[event(1)]))]);
    let mut child =
        command(&daemon, &["watch"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // The reader is dropped here; no second event will ever make `watch` write.
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), b"".as_slice()), "{ended:?}");
}

#[test]
fn a_bundle_is_written_for_its_owner_only_and_overwrites_nothing() {
    use std::os::unix::fs::PermissionsExt;

    let chunk = |file: &str, chunk: &'static [u8]| pb::CollectBundleResponse {
        file_name: file.into(),
        chunk: chunk.into(),
    };
    let chunks =
        [chunk("config.json", b"{}"), chunk("journal.jsonl", b"1\n"), chunk("journal.jsonl", b"2\n")];
    let bytes = chunks.iter().map(|message| prost::Message::encode_to_vec(message).into()).collect();
    let daemon = Daemon::start([("DebugService/CollectBundle", Answer::Messages(bytes))]);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("case");
    let bundle = || {
        let mut command = command(&daemon, &["bundle", "--dir"]);
        ran(command.arg(&target))
    };
    assert_eq!(bundle().succeeds().lines().count(), 3);
    assert_eq!(std::fs::read(target.join("journal.jsonl")).unwrap(), b"1\n2\n");
    let mode = std::fs::metadata(target.join("config.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(bundle().fails(1).contains("config.json"), "an existing file is not overwritten");
}

#[test]
fn watch_says_when_the_daemon_stopped() {
    let end = Answer::Messages(Vec::new());
    let daemon = Daemon::start([("DebugService/WatchEvents", end)]);
    let told = run(&daemon, &["watch"]).fails(3);
    assert!(told.contains("the cns daemon stopped"), "{told}");
}

#[test]
fn names_from_pods_cannot_steer_the_terminal() {
    let hostile = pb::ListIpConfigsResponse {
        ip_configs: vec![pb::IpConfig {
            ip_address: "10.0.0.1".into(),
            state: pb::IpState::Assigned as i32,
            owner: Some(pb::IpOwner {
                pod: Some(pb::PodIdentity { namespace: "x\u{1b}[2J".into(), name: "y\nz".into() }),
                ..Default::default()
            }),
            ..Default::default()
        }],
        ..Default::default()
    };
    let daemon = Daemon::start([("IpamService/ListIPConfigs", reply(&hostile))]);
    let listed = run(&daemon, &["ip", "list"]).succeeds();
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(!listed.contains('\u{1b}'), "{listed:?}");
}
