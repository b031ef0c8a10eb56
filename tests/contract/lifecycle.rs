//! Starting and stopping: what cannot work says why in one line, and an orderly stop loses nothing.

use std::{os::unix::net::UnixListener, process::Command};

use super::{
    addresses, ask,
    cns_under_test::{Cns, free_port},
    pb,
};

#[tokio::test]
async fn a_stop_is_orderly_and_a_restart_knows_everything() {
    let mut cns = Cns::start(&[]).await;
    let before = cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap().into_inner();
    // A watcher must not hold the stop up.
    let mut debug = cns.debug().await;
    let mut stream = debug.watch_events(pb::WatchEventsRequest::default()).await.unwrap().into_inner();
    assert!(cns.terminate().await.unwrap().success(), "{}", cns.log());
    assert!(!matches!(stream.message().await, Ok(Some(_))));
    assert!(!cns.socket().exists(), "the socket's file goes with the daemon");
    cns.launch().await;
    let after = cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap().into_inner();
    assert_eq!(addresses(&after), addresses(&before));
    assert!(after.repeated_request);
}

#[tokio::test]
async fn the_socket_of_a_killed_daemon_is_replaced_and_a_living_one_is_not() {
    let mut cns = Cns::start(&[]).await;
    cns.kill9();
    assert!(cns.socket().exists());
    cns.launch().await;
    let mut second = Cns::prepared(&[]);
    let socket = cns.socket().display().to_string();
    second.set_args(&["--grpc-socket", &socket]);
    second.spawn();
    let status = second.wait().unwrap();
    assert_eq!(status.code(), Some(2), "clap takes one socket: {}", second.log());
    let output = Command::new(env!("CARGO_BIN_EXE_cns"))
        .args(["--masquerade=false", "--grpc-socket", &socket, "--state-dir"])
        .arg(second.state_dir())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("another process answers there"), "{text}");
    cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap();
}

#[tokio::test]
async fn a_second_daemon_on_the_same_state_is_refused_by_name() {
    let cns = Cns::start(&[]).await;
    let output = Command::new(env!("CARGO_BIN_EXE_cns"))
        .args(["--masquerade=false", "--grpc-socket"])
        .arg(cns.directory().join("other.sock"))
        .arg("--state-dir")
        .arg(cns.state_dir())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&cns.pid().to_string()) && text.contains("--state-dir"), "{text}");
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let cns = Cns::prepared(&[]);
    let path = cns.directory().join("precious");
    std::fs::write(&path, "data").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cns"))
        .args(["--masquerade=false", "--grpc-socket"])
        .arg(&path)
        .arg("--state-dir")
        .arg(cns.state_dir())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
}

#[test]
fn configuration_errors_exit_with_2_and_say_what_is_allowed() {
    for (args, expected) in [
        (&["--standalone-cidr", "10.244.0.1/24"][..], "10.244.0.0/24 is meant?"),
        (&["--metrics-bind-address", "nonsense"], "--metrics-bind-address"),
        (&["--no-such-flag"], "--no-such-flag"),
        (&["--cool-down", "soon"], "is not a duration"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_cns")).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let cns = Cns::prepared(&[]);
    let output = Command::new(env!("CARGO_BIN_EXE_cns"))
        .args(["--masquerade=false", "--metrics-bind-address", &address, "--grpc-socket"])
        .arg(cns.socket())
        .arg("--state-dir")
        .arg(cns.state_dir())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains(&address) && text.contains("choose another port"), "{text}");
}

#[test]
fn check_config_prints_what_would_be_in_force() {
    let output = Command::new(env!("CARGO_BIN_EXE_cns"))
        .args(["--check-config", "--standalone-cidr", "10.1.0.0/24,fd00::/120"])
        .output()
        .unwrap();
    assert!(output.status.success());
    let config: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(config["standalone_cidrs"][0], "10.1.0.0/24,fd00::/120");
    assert_eq!(config["channel_mode"], "Standalone");
}

#[tokio::test]
async fn probes_and_metrics_are_served_over_http() {
    use std::io::{Read as _, Write as _};
    let port = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let cns = Cns::start(&["--metrics-bind-address", &port.to_string()]).await;
    cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap();
    let mut nmagent = pb::nm_agent_service_client::NmAgentServiceClient::new(cns.channel().await);
    nmagent.sync_host_nc_versions(pb::SyncHostNcVersionsRequest {}).await.unwrap_err();
    // What nobody offers becomes no label.
    let mut grpc = tonic::client::Grpc::new(cns.channel().await);
    grpc.ready().await.unwrap();
    let uri = http::uri::PathAndQuery::from_static("/cns.v1.IpamService/Invented");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let status = grpc.unary(tonic::Request::new(()), uri, codec).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
    assert!(
        status.message().contains("cns.v1.IpamService/Invented is not an rpc of this daemon"),
        "{status}"
    );
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(port).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(get("/readyz").starts_with("HTTP/1.1 200"));
    let metrics = get("/metrics");
    for expected in [
        "cx_assigned_ips_v2{customer_metric=\"customer metric\"} 1",
        "cx_available_ips_v2{customer_metric=\"customer metric\"} 252",
        "ip_assignment_latency_seconds_count 1",
        "has_networkcontainer 0",
        "cns_ledger_commands_total{operation=\"RequestIPConfigs\",outcome=\"done\"} 1",
        "cns_rpc_duration_seconds_count{method=\"cns.v1.IpamService/RequestIPConfigs\",code=\"OK\"} 1",
        "cns_rpc_duration_seconds_count{method=\"cns.v1.NMAgentService/SyncHostNCVersions\",code=\"UNIMPLEMENTED\"} 1",
        "cns_rpc_duration_seconds_count{method=\"other\",code=\"UNIMPLEMENTED\"} 1",
    ] {
        assert!(metrics.contains(expected), "{expected} is missing in:\n{metrics}");
    }
}

#[tokio::test]
async fn a_log_that_is_no_terminal_has_no_colours() {
    let mut cns = Cns::start(&[]).await;
    assert!(cns.terminate().await.unwrap().success());
    let log = cns.log();
    assert!(log.contains("ready") && !log.contains('\u{1b}'), "{log:?}");
}

#[tokio::test]
async fn systemd_is_told_when_the_daemon_is_ready_and_when_it_stops() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let systemd = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let cns = Cns::prepared(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_cns"))
        .env("NOTIFY_SOCKET", &path)
        .args(["--masquerade=false", "--grpc-socket"])
        .arg(cns.socket())
        .arg("--state-dir")
        .arg(cns.state_dir())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut buffer = [0; 1024];
    let length = systemd.recv(&mut buffer).unwrap();
    assert!(String::from_utf8_lossy(&buffer[..length]).contains("READY=1"));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    // The daemon may be gone without a word: that must fail, not hang.
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    systemd.set_nonblocking(true).unwrap();
    let length = systemd.recv(&mut buffer).unwrap();
    assert!(String::from_utf8_lossy(&buffer[..length]).contains("STOPPING=1"));
}

/// A supervisor that changes its mind at once: from the first moment on at which anybody can know of the daemon.
#[tokio::test]
async fn a_sigterm_right_after_ready_is_orderly() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let cns = Cns::prepared(&[]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_cns"))
            .env("NOTIFY_SOCKET", &path)
            .args(["--masquerade=false", "--grpc-socket"])
            .arg(cns.socket())
            .arg("--state-dir")
            .arg(cns.state_dir())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        systemd.recv(&mut [0; 1024]).unwrap();
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(!cns.socket().exists());
    }
}

#[tokio::test]
async fn a_sigterm_before_ready_is_orderly_too() {
    let mut cns = Cns::prepared(&[]);
    cns.spawn();
    // Bound, and not announced yet.
    super::cns_under_test::until("it is starting", || async { cns.socket().exists() }).await;
    assert_eq!(cns.terminate().await.unwrap().code(), Some(0), "{}", cns.log());
}

#[test]
fn a_stale_socket_without_a_listener_is_recognised() {
    // A listener that is gone leaves its file: connecting is refused.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stale.sock");
    drop(UnixListener::bind(&path).unwrap());
    let mut child = Command::new(env!("CARGO_BIN_EXE_cns"))
        .args(["--masquerade=false", "--grpc-socket"])
        .arg(&path)
        .arg("--state-dir")
        .arg(directory.path().join("state"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    while std::os::unix::net::UnixStream::connect(&path).is_err() {
        assert!(begun.elapsed().as_secs() < 60);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
