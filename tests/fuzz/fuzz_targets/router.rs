//! Any bytes as requests to a gateway over a store on disk, without a network: each gets an answer or a closed connection,
//! and the ledger stays sound.
//!
//! An input is a request's parts in lines: method, path, a header, and the body from the fourth line on.

#![no_main]

use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use cns::{
    gateway::{Gateway, Settings, listen},
    host::docker::{Docker, DockerUrl},
    ledger::{Command, Ledger, LedgerConfig},
    model::{Actor, OrchestratorType, PodKeyScheme},
    service::{Context, Facts, Host, home_az::HomeAzState, peer::Policy},
    store::{Store, StoreOptions, legacy::LegacyFiles},
    telemetry::metrics::Metrics,
};
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    runtime::{Builder, Runtime},
    sync::watch,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Longer than an answer takes; a request that announces more than it has gets none.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);
/// Only there so that a hang is found.
const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    runtime: Runtime,
    gateway: Gateway,
    ledger: Ledger,
    _directory: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        // In memory where there is such a place: flushes cost nothing there.
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let directory = tempfile::tempdir_in(base).expect("a directory");
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (gateway, ledger) = runtime.block_on(gateway(directory.path()));
        Self { runtime, gateway, ledger, _directory: directory }
    }

    fn ask(&self, input: &[u8]) {
        let mut lines = input.splitn(4, |byte| *byte == b'\n');
        let mut part = || lines.next().unwrap_or_default();
        let (method, path, header, body) = (part(), part(), part(), part());
        let length = body.len().to_string();
        let request = [
            method,
            b" ",
            path,
            b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ",
            length.as_bytes(),
            if header.is_empty() { b"" } else { b"\r\n" },
            header,
            b"\r\n\r\n",
            body,
        ]
        .concat();
        let answer = self.runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let serving =
                tokio::spawn(listen::serve_stream(self.gateway.clone(), server, listen::Kind::Main));
            let _ = client.write_all(&request).await;
            let mut answer = Vec::new();
            if timeout(ANSWER_WITHIN, client.read_to_end(&mut answer)).await.is_err() {
                let _ = client.shutdown().await;
                timeout(PATIENCE, client.read_to_end(&mut answer)).await.expect("the connection hangs").ok();
            }
            serving.await.expect("the connection's task ends well");
            let inspected = self.ledger.inspect().await.expect("the ledger lives");
            assert!(inspected.violations.is_empty(), "{:#?}", inspected.violations);
            answer
        });
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", String::from_utf8_lossy(&answer));
        let failed = [&b"500"[..], b"502", b"503", b"504"];
        let status = answer.get(9..12).unwrap_or_default();
        // No metadata service here (spec/rest-contract.md §6.31).
        let is_known =
            String::from_utf8_lossy(&answer).contains("failed to get vmuniqueid") || method == b"HEAD";
        assert!(!failed.contains(&status) || is_known, "{}", String::from_utf8_lossy(&answer));
    }
}

async fn gateway(directory: &Path) -> (Gateway, Ledger) {
    let options = StoreOptions::new(directory.to_owned()).expect("options of the store");
    let (store, loaded, _) = Store::open(&options).expect("a store");
    let journal = Arc::new(store.journal());
    let config = LedgerConfig {
        scheme: PodKeyScheme::InfraContainerId,
        manage_endpoints: true,
        ..LedgerConfig::default()
    };
    let metrics = Metrics::new();
    let (ledger, _, _) = Ledger::start(Box::new(store), loaded, config, metrics.clone()).expect("a ledger");
    let (kind, node_id) = (OrchestratorType::KubernetesCrd, "node-1".into());
    let command = Command::SetOrchestrator { kind, node_id, partition_key: String::new() };
    ledger.submit(Actor::internal("fuzz"), command).await.expect("an orchestrator");
    let facts = Facts {
        channel_mode: "Direct".into(),
        state_directory: directory.to_owned(),
        started: Instant::now(),
        config_json: "{}".into(),
        programmed: Some(0),
    };
    let legacy = Arc::new(LegacyFiles);
    // Nobody beside it: neither docker nor the agents of an Azure machine.
    let host = Host {
        interface: watch::channel(None).1,
        docker: Docker::new(DockerUrl::default()),
        agents: None,
        home_az: watch::channel(HomeAzState::default()).1,
        told: Vec::new(),
        waiting_for: watch::channel(None).1,
    };
    let context = Context::new(ledger.clone(), facts, host, journal, legacy, CancellationToken::new());
    let settings = Settings { direct: true, manage_endpoints: true, mutual_tls: false };
    let gateway = Gateway::new(context, settings, Policy::new(Vec::new(), Vec::new()), metrics);
    (gateway, ledger)
}

static WORLD: OnceLock<World> = OnceLock::new();

fuzz_target!(|input: &[u8]| WORLD.get_or_init(World::new).ask(input));
