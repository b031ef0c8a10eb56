//! Who may do what: peer credentials on the socket, the kernel's socket table on loopback TCP, certificates elsewhere.

use std::{
    os::unix::fs::{PermissionsExt as _, chown},
    process::Command,
    time::Duration,
};

use cns::proto::v1::{ipam_service_client::IpamServiceClient, node_service_client::NodeServiceClient};
use tonic::{
    Code,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_types::StatusExt as _;

use super::{
    ask,
    cns_under_test::{Cns, free_port, sibling, until},
    need, pb,
};

const NOBODY: u32 = 65534;

/// Runs cnsctl as another user.
fn as_nobody(cns: &Cns, args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("setpriv")
        .args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"])
        .arg(cns.directory().join("cnsctl"))
        .arg("--socket")
        .arg(cns.socket())
        .args(args)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Lets the other user reach the socket, as membership in its group would.
fn open_to_nobody(cns: &Cns) {
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(cns.directory(), mode).unwrap();
    std::fs::copy(sibling("cnsctl"), cns.directory().join("cnsctl")).unwrap();
    chown(cns.socket(), None, Some(NOBODY)).unwrap();
}

#[tokio::test]
async fn another_user_reads_and_does_not_change_unless_allowed() {
    if !need::need_root("another_user_reads_and_does_not_change_unless_allowed") {
        return;
    }
    let mut cns = Cns::start(&[]).await;
    assert_eq!(std::fs::metadata(cns.socket()).unwrap().permissions().mode() & 0o777, 0o660);
    open_to_nobody(&cns);
    let (code, text) = as_nobody(&cns, &["status"]);
    assert_eq!(code, Some(0), "{text}");
    let change = ["ip", "request", "--container-id", "c1", "--pod", "prod/x"];
    let (code, text) = as_nobody(&cns, &change);
    assert_ne!(code, Some(0));
    assert!(text.contains("uid 65534") && text.contains("--allow-uid"), "{text}");
    for allow in [["--allow-uid", "65534"], ["--allow-gid", "65534"]] {
        assert!(cns.terminate().await.unwrap().success());
        cns.set_args(&allow);
        cns.launch().await;
        open_to_nobody(&cns);
        let (code, text) = as_nobody(&cns, &change);
        assert_eq!(code, Some(0), "{allow:?}: {text}");
    }
}

async fn tcp(port: u16) -> Channel {
    Endpoint::try_from(format!("http://127.0.0.1:{port}")).unwrap().connect().await.unwrap()
}

#[tokio::test]
async fn loopback_tcp_knows_its_callers() {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let cns = Cns::start(&["--grpc-bind-address", &address]).await;
    let mut ipam = IpamServiceClient::new(tcp(port).await);
    ipam.request_ip_configs(ask("c1")).await.unwrap();
    let subject = pb::explain_request::Subject::ContainerId("c1".into());
    let told =
        cns.debug().await.explain(pb::ExplainRequest { subject: Some(subject) }).await.unwrap().into_inner();
    let actor = told.events[0].actor.clone().unwrap();
    assert_eq!(actor.uid, Some(nix::unistd::geteuid().as_raw()));
    assert!(actor.origin.starts_with("tcp 127.0.0.1:"), "{actor:?}");
}

#[tokio::test]
async fn a_listener_open_to_the_network_without_certificates_is_refused() {
    let mut cns = Cns::prepared(&["--grpc-bind-address", "0.0.0.0:0"]);
    cns.spawn();
    assert_eq!(cns.wait().unwrap().code(), Some(2));
    assert!(cns.log().contains("--tls-client-ca"), "{}", cns.log());
}

struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: rcgen::Issuer::new(params, key), pem }
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

#[tokio::test]
async fn tls_takes_clients_of_the_authority_and_nobody_else() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (cert, key) = ours.issue("localhost");
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let mut cns = Cns::prepared(&[]);
    let file = |name: &str, content: &str| {
        let path = cns.directory().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let (cert, key, ca) = (file("cert.pem", &cert), file("key.pem", &key), file("ca.pem", &ours.pem));
    cns.set_args(&[
        "--grpc-bind-address",
        &address,
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ]);
    cns.launch().await;
    let connect = |identity: Option<(String, String)>| {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ours.pem)).domain_name("localhost");
        if let Some((cert, key)) = identity {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        let endpoint = Endpoint::try_from(format!("https://127.0.0.1:{port}")).unwrap();
        let endpoint = endpoint.connect_timeout(Duration::from_secs(30)).tls_config(tls).unwrap();
        async move {
            let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
            let mut ipam = IpamServiceClient::new(channel);
            ipam.request_ip_configs(ask("c1")).await.map_err(|status| status.to_string())
        }
    };
    let trusted = connect(Some(ours.issue("client"))).await;
    assert!(trusted.is_ok(), "{trusted:?}");
    assert!(connect(None).await.is_err(), "without a certificate");
    assert!(connect(Some(theirs.issue("client"))).await.is_err(), "with a stranger's certificate");
}

#[tokio::test]
async fn more_calls_than_places_are_told_to_come_back_and_probes_pass() {
    let cns = Cns::start(&["--max-concurrent-requests", "2"]).await;
    let channel = cns.channel().await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..200 {
        let mut ipam = IpamServiceClient::new(channel.clone());
        tasks.spawn(async move { ipam.request_ip_configs(ask(&format!("c{i}"))).await });
    }
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    health.check(tonic_health::pb::HealthCheckRequest { service: String::new() }).await.unwrap();
    let outcomes = tasks.join_all().await;
    let shed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(!shed.is_empty(), "two places and two hundred calls");
    for status in &shed {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert_eq!(status.get_details_error_info().unwrap().reason, "OVERLOADED");
        assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
    }
    let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.endpoints as usize, outcomes.len() - shed.len(), "a shed call had no effect");
    cns.assert_sound().await;
}

#[tokio::test]
async fn a_callers_deadline_is_honoured_and_a_late_answer_is_no_harm() {
    let cns = Cns::start(&[]).await;
    let channel = cns.channel().await;
    let ask_within = async |container: String, deadline: Duration| {
        let mut request = tonic::Request::new(ask(&container));
        request.set_timeout(deadline);
        let answer = IpamServiceClient::new(channel.clone()).request_ip_configs(request).await;
        if let Err(status) = &answer {
            assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
        }
        answer
    };
    // Where there is no time, nothing is begun.
    for i in 0..20 {
        ask_within(format!("late{i}"), Duration::from_nanos(1)).await.unwrap_err();
    }
    // Where there is little, it may be done or not.
    for i in 0..20 {
        let _ = ask_within(format!("c{i}"), Duration::from_micros(2_000 + 100 * i)).await;
    }
    until("the daemon is quiet", || async {
        NodeServiceClient::new(channel.clone()).get_node_info(pb::GetNodeInfoRequest {}).await.is_ok()
    })
    .await;
    // Whatever took effect is what asking again returns.
    for i in 0..20 {
        IpamServiceClient::new(channel.clone()).request_ip_configs(ask(&format!("c{i}"))).await.unwrap();
    }
    let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.ip_counts.unwrap().assigned, 20);
    cns.assert_sound().await;
}
