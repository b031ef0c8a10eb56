//! The port with TLS (spec/rest-contract.md §8, spec/security.md §2 and §8): what is served, who is let in, and that both can change.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    cns_under_test::{Cns, free_port, until},
    http::request,
    lab::{HOST_V4, Lab},
};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn params(common_name: &str, dns: &[&str], is_ca: bool) -> CertificateParams {
    let dns: Vec<_> = dns.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(dns).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
}

pub(super) fn authority(name: &str) -> Authority {
    CertifiedIssuer::self_signed(params(name, &[], true), KeyPair::generate().unwrap()).unwrap()
}

/// A certificate with its chain and key, in one PEM text.
pub(super) fn issue(by: &Authority, common_name: &str, dns: &[&str]) -> String {
    let key = KeyPair::generate().unwrap();
    let certificate = params(common_name, dns, false).signed_by(&key, by).unwrap();
    certificate.pem() + &key.serialize_pem()
}

/// A root, and an authority under it whose certificate servers have to send along.
pub(super) struct Chain {
    pub(super) root: Authority,
    below: Authority,
}

impl Chain {
    pub(super) fn new() -> Self {
        let root = authority("root");
        let below = params("below", &[], true);
        let below = CertifiedIssuer::signed_by(below, KeyPair::generate().unwrap(), &root).unwrap();
        Self { root, below }
    }

    pub(super) fn issue(&self, common_name: &str, dns: &[&str]) -> String {
        issue(&self.below, common_name, dns) + &self.below.pem()
    }
}

/// Settings of a test, beside those that all have.
fn daemon_in(lab: Option<&Lab>, host: Ipv4Addr, identity: &str, more: Value) -> Daemon {
    let (clear, tls) = (SocketAddr::from((host, free_port())), SocketAddr::from((host, free_port())));
    let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let mut cns = Cns::prepared(&[]);
    if let Some(lab) = lab {
        cns = cns.in_netns(lab.host.path());
    }
    let certificate = cns.directory().join("cert.pem");
    std::fs::write(&certificate, identity).unwrap();
    let mut config = json!({
        "ChannelMode": "Standalone", "UseHTTPS": true, "TLSPort": tls.port().to_string(),
        "TLSCertificatePath": certificate, "MetricsBindAddress": metrics.to_string(),
        "Node": {"StandaloneCIDRs": ["10.244.0.0/24"]},
    });
    merge(&mut config, more);
    let path = cns.directory().join("cns_config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    cns.set_args(&["-c", &format!("tcp://{clear}"), "--config-path", path.to_str().unwrap()]);
    Daemon { cns, clear, tls, metrics, certificate }
}

pub(super) fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

pub(super) struct Daemon {
    pub(super) cns: Cns,
    clear: SocketAddr,
    pub(super) tls: SocketAddr,
    metrics: SocketAddr,
    certificate: PathBuf,
}

impl Daemon {
    /// Starts it, and waits for the listener.
    pub(super) async fn launch(&mut self) {
        self.cns.launch().await;
        until("the listener with TLS", || async { TcpStream::connect(self.tls).await.is_ok() }).await;
    }

    /// What a scraper reads.
    pub(super) async fn metrics(&self) -> String {
        let sent = request("GET", "/metrics", &[], None);
        let answer = super::http::exchange(self.metrics, &sent, "GET").await.unwrap();
        String::from_utf8(answer.body).unwrap()
    }
}

/// A daemon with these settings and no certificate in a file, not started.
pub(super) fn prepared(more: Value) -> Daemon {
    daemon_in(None, Ipv4Addr::LOCALHOST, "", more)
}

async fn daemon(identity: &str, more: Value) -> Daemon {
    let mut daemon = daemon_in(None, Ipv4Addr::LOCALHOST, identity, more);
    daemon.launch().await;
    daemon
}

/// How a client comes.
#[derive(Clone, Copy)]
pub(super) struct Client<'a> {
    trusts: &'a Authority,
    shows: Option<&'a str>,
    speaks: &'static [&'static str],
    versions: &'static [&'static SupportedProtocolVersion],
}

static ANY: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
static OLD: [&SupportedProtocolVersion; 1] = [&version::TLS12];

impl<'a> Client<'a> {
    pub(super) fn trusting(trusts: &'a Authority) -> Self {
        Self { trusts, shows: None, speaks: &[], versions: &ANY }
    }

    pub(super) fn showing(self, pem: &'a str) -> Self {
        Self { shows: Some(pem), ..self }
    }

    pub(super) async fn connect(self, server: SocketAddr) -> Result<TlsStream<TcpStream>, String> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.trusts.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.shows {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect();
                let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = self.speaks.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(server).await.map_err(|error| error.to_string())?;
        let name = ServerName::try_from("node-1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| error.to_string())
    }

    /// In TLS 1.3 a client learns only from the first answer that it is not welcome.
    pub(super) async fn ask(self, server: SocketAddr) -> Result<String, String> {
        let mut stream = self.connect(server).await?;
        let text = post(&mut stream, "close").await?;
        if text.starts_with("HTTP/1.1 200 ") { Ok(text) } else { Err(text) }
    }
}

/// Asks for an address; gives all that comes.
pub(super) async fn post(stream: &mut TlsStream<TcpStream>, connection: &str) -> Result<String, String> {
    let body = json!({
        "podInterfaceID": "x", "infraContainerID": "c", "orchestratorContext": {"podName": "p", "podNamespace": "n"},
    });
    let headers = [("Connection".to_owned(), connection.to_owned())];
    let sent = request("POST", "/network/requestipconfigs", &headers, Some(body.to_string().as_bytes()));
    stream.write_all(&sent).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    if connection == "close" {
        stream.read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
    } else {
        while !answer.ends_with(b"}\n") {
            if stream.read_buf(&mut answer).await.map_err(|error| error.to_string())? == 0 {
                return Err("it was closed".into());
            }
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_chain_is_served_over_both_versions_and_both_protocols() {
    let chain = Chain::new();
    let daemon = daemon(&chain.issue("node", &["node-1"]), json!({})).await;
    let client = Client::trusting(&chain.root);
    // Who knows the root only can connect: the reference serves the leaf alone (security §8 row 4).
    for versions in [&ANY[..], &OLD[..]] {
        for speaks in [&[][..], &["http/1.1"]] {
            let answer = Client { speaks, versions, ..client }.ask(daemon.tls).await.unwrap();
            assert!(answer.contains("Cns_return_code: Success"), "{answer}");
        }
    }
    let stream = Client { speaks: &["h2", "http/1.1"], ..client }.connect(daemon.tls).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, talking) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(talking);
    for _ in 0..2 {
        let uri = format!("https://node-1:{}/hostcpucores", daemon.tls.port());
        let asked = hyper::Request::get(uri).body(Full::<bytes::Bytes>::default()).unwrap();
        let answer = sender.send_request(asked).await.unwrap();
        assert_eq!(answer.status(), 200);
        let body: Value =
            serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(body["Response"]["ReturnCode"], 0, "{body}");
    }
    // Cleartext goes on beside it.
    let clear = super::http::exchange(daemon.clear, &request("GET", "/hostcpucores", &[], None), "GET").await;
    assert_eq!(clear.unwrap().status, 200);
    daemon.cns.assert_sound().await;
}

#[tokio::test]
async fn a_client_older_than_the_minimum_is_refused() {
    let chain = Chain::new();
    let daemon = daemon(&chain.issue("node", &["node-1"]), json!({"MinTLSVersion": "TLS 1.3"})).await;
    let client = Client::trusting(&chain.root);
    client.ask(daemon.tls).await.unwrap();
    let refused = Client { versions: &OLD, ..client }.ask(daemon.tls).await.unwrap_err();
    assert!(refused.contains("ProtocolVersion"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_authorities_for_clients_only_the_served_certificate_itself_gets_in() {
    let chain = Chain::new();
    let served = chain.issue("node", &["node-1"]);
    let daemon = daemon(&served, json!({"UseMTLS": true})).await;
    let client = Client::trusting(&chain.root);
    client.showing(&served).ask(daemon.tls).await.unwrap();
    client.ask(daemon.tls).await.unwrap_err();
    // Of the same authority: the reference trusts intermediates as roots, and would let it in.
    client.showing(&chain.issue("node", &["node-1"])).ask(daemon.tls).await.unwrap_err();
    until("the reason in the log", || async { daemon.cns.log().contains("Node.REST.ClientCAPath") }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_authority_with_the_right_name_get_in_and_nobody_else() {
    let (chain, ours, theirs) = (Chain::new(), authority("dnc-ca"), authority("stranger"));
    let mut daemon = daemon_in(
        None,
        Ipv4Addr::LOCALHOST,
        &chain.issue("node", &["node-1"]),
        json!({"UseMTLS": true, "MtlsClientCertSubjectName": "dnc.example"}),
    );
    let bundle = daemon.cns.directory().join("clients.pem");
    std::fs::write(&bundle, authority("other").pem() + &ours.pem()).unwrap();
    set(&daemon, |config| config["Node"]["REST"] = json!({"ClientCAPath": bundle}));
    daemon.cns.launch().await;
    until("the listener with TLS", || async { TcpStream::connect(daemon.tls).await.is_ok() }).await;
    let client = Client::trusting(&chain.root);
    for (name, dns, common_name) in [
        ("a DNS name", &["other.example", "dnc.example"][..], "x"),
        ("in another case", &["DNC.Example"], "x"),
        ("the common name", &[], "dnc.EXAMPLE"),
        ("the common name beside other DNS names", &["other.example"], "dnc.example"),
    ] {
        let shown = issue(&ours, common_name, dns);
        assert!(client.showing(&shown).ask(daemon.tls).await.is_ok(), "{name}");
    }
    for (name, shown) in [
        ("another name", issue(&ours, "other.example", &["other.example"])),
        ("a wildcard", issue(&ours, "x", &["*.example"])),
        ("part of the name", issue(&ours, "x", &["dnc.example.org", "dnc"])),
        ("the right name by a stranger", issue(&theirs, "dnc.example", &["dnc.example"])),
        ("the authority of the served certificate", issue(&chain.below, "dnc.example", &["dnc.example"])),
    ] {
        assert!(client.showing(&shown).ask(daemon.tls).await.is_err(), "{name}");
    }
    assert!(client.ask(daemon.tls).await.is_err(), "none");
    let log = || daemon.cns.log();
    until("the names in the log", || async {
        log().contains("other.example") && log().contains("dnc.example")
    })
    .await;
}

/// Changes the configuration of a daemon that has not started.
fn set(daemon: &Daemon, change: impl FnOnce(&mut Value)) {
    let path = daemon.cns.directory().join("cns_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_certificate_is_served_without_a_restart_and_a_broken_one_is_not() {
    let (first, second) = (Chain::new(), Chain::new());
    let daemon = daemon(&first.issue("node", &["node-1"]), json!({})).await;
    let (old, new) = (Client::trusting(&first.root), Client::trusting(&second.root));
    let mut open = old.connect(daemon.tls).await.unwrap();
    assert!(post(&mut open, "keep-alive").await.unwrap().starts_with("HTTP/1.1 200 "));

    std::fs::write(&daemon.certificate, "-----BEGIN CERTIFICATE-----\nno\n").unwrap();
    until("the refusal in the log", || async { daemon.cns.log().contains("goes on being served") }).await;
    old.ask(daemon.tls).await.unwrap();

    replace(&daemon.certificate, &second.issue("node", &["node-1"]));
    until("the new certificate", || async { new.ask(daemon.tls).await.is_ok() }).await;
    assert!(old.ask(daemon.tls).await.is_err());
    // Who was connected stays so.
    assert!(post(&mut open, "keep-alive").await.unwrap().starts_with("HTTP/1.1 200 "));
}

/// As programs do that write certificates: a new file under the old name.
fn replace(path: &Path, content: &str) {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, content).unwrap();
    std::fs::rename(fresh, path).unwrap();
}

#[tokio::test]
async fn a_certificate_that_cannot_be_served_is_an_error_at_the_start() {
    let chain = Chain::new();
    for (identity, more, expected) in [
        ("", json!({}), "no PEM block PRIVATE KEY"),
        (
            &chain.issue("node", &["node-1"])[..],
            json!({"UseMTLS": true, "Node": {"REST": {"ClientCAPath": "/nowhere"}}}),
            "/nowhere",
        ),
    ] {
        let mut daemon = daemon_in(None, Ipv4Addr::LOCALHOST, identity, more);
        daemon.cns.spawn();
        assert!(!daemon.cns.wait().unwrap().success());
        assert!(daemon.cns.log().contains(expected), "{expected}: {}", daemon.cns.log());
    }
}

/// The reference leaves the cleartext listener open beside mutual TLS (security §8 row 1): mutual TLS then protects nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_mutual_tls_other_machines_may_only_read_in_cleartext() {
    let test = "beside_mutual_tls_other_machines_may_only_read_in_cleartext";
    let Some(lab) = Lab::new(test).await else { return };
    let chain = Chain::new();
    let served = chain.issue("node", &["node-1"]);
    for (mutual, expected) in [(false, "HTTP/1.1 200 "), (true, "HTTP/1.1 403 ")] {
        let mut daemon = daemon_in(Some(&lab), HOST_V4.parse().unwrap(), &served, json!({"UseMTLS": mutual}));
        daemon.cns.launch().await;
        let from = |space: &super::lab::Space, method: &str, path: &str| {
            let sent =
                request(method, path, &[], Some(b"{\"orchestratorContext\":null,\"podInterfaceID\":\"x\"}"));
            space
                .netns
                .run(|| {
                    use std::io::{Read as _, Write as _};
                    let mut stream = std::net::TcpStream::connect(daemon.clear).unwrap();
                    stream.write_all(&sent).unwrap();
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).unwrap();
                    answer
                })
                .unwrap()
        };
        let change = "/network/releaseipconfigs";
        let answer = from(&lab.world, "POST", change);
        assert!(answer.starts_with(expected), "mutual: {mutual}: {answer}");
        assert!(from(&lab.world, "GET", "/debug/podcontext").starts_with("HTTP/1.1 200 "));
        // This machine's root is known by the kernel, whatever address it takes.
        assert!(from(&lab.host, "POST", change).starts_with("HTTP/1.1 200 "));
    }
}
