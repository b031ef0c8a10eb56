use super::*;
use cns_fake_agents::{Agent, FakeAgents, Fault};

const VERSIONS: &str = "/metadata/versions";

fn limits() -> Limits {
    let (connect, attempt, total) =
        (Duration::from_millis(500), Duration::from_millis(300), Duration::from_secs(2));
    Limits { connect, attempt, total, ..Limits::default() }
}

fn client(agents: &FakeAgents) -> HttpClient {
    HttpClient::new("IMDS", agents.url(Agent::Imds).parse().unwrap(), limits(), Roots::System).unwrap()
}

fn versions() -> Outgoing {
    Outgoing::get("versions", VERSIONS)
        .header(HeaderName::from_static("metadata"), HeaderValue::from_static("true"))
}

async fn ask(client: &HttpClient) -> Result<Bytes, AgentError> {
    client.call(&versions(), &Retry::NEVER, |answer| Ok(answer.ok()?)).await
}

async fn fault(client: &HttpClient) -> AgentFault {
    ask(client).await.unwrap_err().fault
}

#[tokio::test]
async fn each_way_of_failing_has_its_own_error() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let body = ask(&client).await.unwrap();

    let with = async |injected| {
        agents.heal();
        agents.fail(VERSIONS, injected);
        fault(&client).await
    };
    let half = body.len() / 2;
    assert!(matches!(with(Fault::Drop).await, AgentFault::Broken { .. }));
    assert!(
        matches!(with(Fault::Truncate).await, AgentFault::Truncated { received, .. } if received == half)
    );
    assert!(
        matches!(with(Fault::TruncateChunked).await, AgentFault::Truncated { received, .. } if received == half)
    );
    assert!(matches!(with(Fault::Hang).await, AgentFault::Timeout { waiting: Waiting::Answer, .. }));
    assert!(matches!(with(Fault::Stall).await, AgentFault::Timeout { waiting: Waiting::Body, .. }));
    let status = with(Fault::Status(500)).await;
    assert_eq!(status.to_string(), "status 500 Internal Server Error: the fake agent says 500");
    for right in [Fault::Chunked, Fault::ContentType("image/png".into())] {
        agents.heal();
        agents.fail(VERSIONS, right);
        assert_eq!(ask(&client).await.unwrap(), body);
    }
}

#[tokio::test]
async fn nobody_there_is_a_connect_error_that_names_the_address() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = HttpClient::new("DNC", port.into(), limits(), Roots::System).unwrap();
    let error = ask(&client).await.unwrap_err();
    assert!(matches!(error.fault, AgentFault::Connect { .. }), "{error}");
    assert!(
        error.to_string().starts_with(&format!("DNC at http://{port}, versions: cannot connect: ")),
        "{error}"
    );
    assert!(error.to_string().contains("refused"), "{error}");
}

/// The reference reads 4096 bytes of a chunked reply and no more (spec/host-agents.md §10.1).
#[tokio::test]
async fn large_chunked_bodies_are_read_whole_up_to_the_limit() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let versions: Vec<String> = (0..20_000).map(|n| format!("version-{n}")).collect();
    agents.world(|world| world.imds_versions = versions);
    agents.fail(VERSIONS, Fault::Chunked);
    assert!(ask(&client).await.unwrap().len() > 300_000);

    agents.world(|world| world.imds_versions = vec!["x".repeat(1 << 20)]);
    let error = ask(&client).await.unwrap_err();
    assert_eq!(error.fault, AgentFault::TooLarge { limit: 1 << 20 });
    assert!(error.to_string().contains("1048576 bytes"), "{error}");
    agents.heal();
    assert_eq!(
        fault(&client).await,
        AgentFault::TooLarge { limit: 1 << 20 },
        "announced lengths are believed"
    );
}

/// A reply must not send the daemon, which may reach what others may not, to another address (spec/security.md §3).
#[tokio::test]
async fn redirects_are_not_followed() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let elsewhere = format!("{}/metadata/versions", agents.url(Agent::Dnc));
    agents.fail(VERSIONS, Fault::Redirect(elsewhere));
    assert_eq!(fault(&client).await.status().unwrap(), 307);
    assert!(agents.take_requests().iter().all(|request| request.agent == Agent::Imds));
}

#[tokio::test]
async fn retries_end_with_success_attempts_or_time() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let retry = Retry {
        attempts: 3,
        pause: Pause::Fixed(Duration::from_millis(5)),
        on: |error: &AgentError| error.fault.may_pass(),
    };
    let ask = async |client: &HttpClient| {
        client.call(&versions(), &retry, |answer| Ok::<_, ReadError<AgentError>>(answer.ok()?)).await
    };
    agents.fail_times(VERSIONS, Fault::Drop, 2);
    ask(&client).await.unwrap();
    assert_eq!(agents.take_requests().len(), 3);

    agents.fail(VERSIONS, Fault::Status(400));
    assert_eq!(ask(&client).await.unwrap_err().fault.status().unwrap(), 400);
    assert_eq!(agents.take_requests().len(), 1, "another attempt would not cure it");

    agents.heal();
    agents.fail(VERSIONS, Fault::Hang);
    let began = Instant::now();
    let error = ask(&client.within(Duration::from_millis(150))).await.unwrap_err();
    assert!(matches!(error.fault, AgentFault::Timeout { waiting: Waiting::Answer, .. }), "{error}");
    assert!(began.elapsed() < Duration::from_millis(290), "the total holds for all attempts");
}

#[tokio::test]
async fn the_state_tells_the_last_success_and_the_last_failure() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    assert_eq!(client.state().status().is_answering(), None);
    ask(&client).await.unwrap();
    assert_eq!(client.state().status().is_answering(), Some(true));
    agents.fail(VERSIONS, Fault::Status(503));
    ask(&client.within(Duration::from_secs(1))).await.unwrap_err();
    let status = client.state().status();
    assert_eq!((status.is_answering(), status.failed_in_a_row), (Some(false), 1));
    assert!(status.last_failure.as_ref().unwrap().error.contains("status 503"));
    agents.heal();
    agents.fail(VERSIONS, Fault::Status(404));
    ask(&client).await.unwrap_err();
    assert_eq!(client.state().status().is_answering(), Some(true), "`not found` is an answer");
}

/// With TLS, and only from someone whose certificate is believed.
#[tokio::test]
async fn https_is_checked_against_the_roots() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            let _ = stream.shutdown().await;
        }
    });
    let base: BaseUrl = format!("https://localhost:{port}").parse().unwrap();
    let trusting = Roots::These(vec![made.cert.der().clone()]);
    let client = HttpClient::new("DNC", base.clone(), limits(), trusting).unwrap();
    assert_eq!(ask(&client).await.unwrap(), "ok");
    let client = HttpClient::new("DNC", base, limits(), Roots::These(Vec::new())).unwrap();
    let error = ask(&client).await.unwrap_err();
    assert!(matches!(&error.fault, AgentFault::Connect { why } if why.contains("UnknownIssuer")), "{error}");
}

/// The time to connect holds for TLS, too: a peer may accept and then say nothing.
#[tokio::test]
async fn connecting_has_its_own_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base: BaseUrl = format!("https://{}", silent.local_addr().unwrap()).parse().unwrap();
    let limits = Limits { connect: Duration::from_millis(50), ..limits() };
    let client = HttpClient::new("DNC", base, limits, Roots::These(Vec::new())).unwrap();
    assert_eq!(
        fault(&client).await,
        AgentFault::Timeout { waiting: Waiting::Connect, after: limits.connect }
    );
}

/// The reference's clients honour the environment's proxy, which would see tokens and this VM's metadata (spec/security.md §8.7).
/// Another test runs in a process whose environment names proxies that nobody answers at.
#[test]
fn proxies_of_the_environment_are_not_used() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "host::http::tests::redirects_are_not_followed"]);
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, "http://127.0.0.1:1");
    }
    let output = child.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
