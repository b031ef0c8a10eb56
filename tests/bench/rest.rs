//! Request + release over REST and over gRPC, on one daemon, in turns: what the translation costs. Both kinds of client keep
//! their connections, and neither is told anything before it is durable.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpStream, sync::Barrier};

use super::{
    Failure,
    daemon::{Daemon, MIDDLE, Pod},
    report::{Aim, Report, Times, micros, times},
};

const CLIENTS: [usize; 3] = [1, 8, 64];
/// How long the clients of one kind work in a round.
const TOGETHER: Duration = Duration::from_millis(700);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Grpc,
    Rest,
}

/// A legacy client on a connection of its own.
struct Legacy {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Legacy {
    async fn connect(server: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, host: server.to_string() })
    }

    async fn call(&mut self, path: &str, body: &Value) -> Result<(), Failure> {
        let request = hyper::Request::post(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::from(body.to_string()))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        let answer: Value = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
        if answer["response"]["ReturnCode"] == 0 { Ok(()) } else { Err(format!("{path}: {answer}").into()) }
    }

    async fn pair(&mut self, pod: &Pod) -> Result<(), Failure> {
        // What azure-vnet sends (spec/rest-contract.md §6.20).
        let body = json!({
            "desiredIPAddresses": null,
            "podInterfaceID": pod.interface(),
            "infraContainerID": pod.container(),
            "orchestratorContext": {"podName": pod.name(), "podNamespace": "default"},
            "ifname": "eth0",
            "secondaryInterfacesExist": false,
            "BackendInterfaceExist": false,
            "BacknendInterfaceMacAddress": null,
        });
        self.call("/network/requestipconfigs", &body).await?;
        self.call("/network/releaseipconfigs", &body).await
    }
}

#[derive(Default)]
struct Found {
    pairs: Times,
    rounds: Vec<f64>,
}

impl Found {
    fn per_second(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}

async fn round(
    daemon: &Daemon,
    server: SocketAddr,
    kind: Kind,
    clients: usize,
    found: &mut Found,
) -> Result<(), Failure> {
    let connected = Arc::new(Barrier::new(clients));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (grpc, connected) = (daemon.client()?, connected.clone());
        workers.spawn(async move {
            let mut legacy = Legacy::connect(server).await?;
            grpc.health("").await?;
            connected.wait().await;
            let (mut pairs, started) = (Times::default(), Instant::now());
            while started.elapsed() < TOGETHER {
                let pod = Pod::new();
                let begun = Instant::now();
                match kind {
                    Kind::Rest => legacy.pair(&pod).await?,
                    Kind::Grpc => {
                        grpc.request_ip_configs(pod.request()).await?;
                        grpc.release_ip_configs(pod.release()).await?;
                    }
                }
                pairs.add(begun.elapsed());
            }
            Ok::<_, Failure>((pairs, started.elapsed()))
        });
    }
    let (mut all, mut longest) = (0, Duration::ZERO);
    while let Some(done) = workers.join_next().await {
        let (pairs, spent) = done??;
        found.pairs.extend(&pairs);
        all += pairs.len();
        longest = longest.max(spent);
    }
    #[allow(clippy::cast_precision_loss, reason = "thousands")]
    found.rounds.push(all as f64 / longest.as_secs_f64().max(1e-9));
    Ok(())
}

pub(crate) async fn measure(at: &std::path::Path, rounds: usize, report: &mut Report) -> Result<(), Failure> {
    let mut daemon = Daemon::new(at, "rest", &MIDDLE)?;
    let server = daemon.serve_rest()?;
    daemon.start().await?;
    let mut found: [[Found; 2]; 3] = Default::default();
    for round_number in 1..=rounds {
        eprintln!("rest: round {round_number} of {rounds}");
        for (cell, clients) in found.iter_mut().zip(CLIENTS) {
            let [grpc, rest] = cell;
            // Who comes second finds a warmer machine: each is it in turn.
            let order =
                if round_number % 2 == 0 { [Kind::Grpc, Kind::Rest] } else { [Kind::Rest, Kind::Grpc] };
            for kind in order {
                let into = if kind == Kind::Grpc { &mut *grpc } else { &mut *rest };
                round(&daemon, server, kind, clients, into).await?;
            }
        }
    }
    for ([grpc, rest], clients) in found.iter().zip(CLIENTS) {
        report.ratio(
            format!("REST / gRPC, {clients} clients: request + release in a second"),
            rest.per_second() / grpc.per_second(),
            Aim::AtLeast(0.6),
            format!("{:.0}/s / {:.0}/s", rest.per_second(), grpc.per_second()),
        );
    }
    let [grpc, rest] = &found[0];
    report.ratio(
        "REST / gRPC, one client: p50 of request + release",
        times(rest.pairs.median(), grpc.pairs.median()),
        Aim::AtMost(1.5),
        format!("{} / {}", micros(rest.pairs.median()), micros(grpc.pairs.median())),
    );
    Ok(())
}
