//! Agents to try against: NMAgent behind wireserver, IMDS, DNC, Key Vault and Application Insights on local TCP ports, in the wire
//! format of spec/host-agents.md, with faults on demand. For tests, and for operators who want to see a channel mode without a cloud
//! (`cargo run -p cns-fake-agents`).
//!
//! HTTP is spoken by hand here, because a server library would not let a body be cut, an answer hang or a length lie. It is as
//! strict as the real ones are known to be: 411 for a POST without a length, 400 for IMDS without `Metadata: true`, and 400 for a
//! wireserver query that has anything but `comp` and `type` in it, which is what an injected value would cause.

mod answer;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Which of the agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Agent {
    /// Wireserver, with NMAgent behind it.
    Wireserver,
    /// IMDS.
    Imds,
    /// DNC.
    Dnc,
    /// Key Vault.
    KeyVault,
    /// Application Insights' ingestion.
    Insights,
}

impl Agent {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Wireserver, Self::Imds, Self::Dnc, Self::KeyVault, Self::Insights];
}

/// What the agents know. Changed at any time by [`FakeAgents::world`].
#[derive(Clone, Debug)]
pub struct World {
    /// What NMAgent says it supports.
    pub supported_apis: Vec<String>,
    /// The node's availability zone; 0 where the region has none.
    pub home_az: u32,
    /// `apiVersion` of the home AZ answer: 2 when the IPv6 fix is applied.
    pub home_az_api_version: u32,
    /// NMAgent's network containers: id and programmed version, as text, in the order of the list.
    pub ncs: Vec<(String, String)>,
    /// The host's interfaces.
    pub interfaces: Vec<Interface>,
    /// Virtual networks that were joined.
    pub joined: BTreeSet<String>,
    /// The VM's unique id.
    pub vm_id: String,
    /// API versions that IMDS lists.
    pub imds_versions: Vec<String>,
    /// IMDS' interfaces: MAC and `interfaceCompartmentID`.
    pub imds_interfaces: Vec<(String, String)>,
    /// The access token that IMDS gives and Key Vault takes.
    pub access_token: String,
    /// How long it is good for, s.
    pub token_expires_in: u64,
    /// What DNC answers to a registration: orchestrator type and partition.
    pub registration: (String, String),
    /// The last registration's body.
    pub registered: Option<Value>,
    /// The node's network containers in DNC: `CreateNetworkContainerRequest` objects.
    pub dnc_ncs: Vec<Value>,
    /// Key Vault's secrets by name: content type and value.
    pub secrets: BTreeMap<String, (String, String)>,
    /// The items that Application Insights took, the latest last.
    pub tracked: Vec<Value>,
}

/// One interface of the host.
#[derive(Clone, Debug)]
pub struct Interface {
    /// 12 hexadecimal digits.
    pub mac: String,
    /// Whether it is the primary one.
    pub is_primary: bool,
    /// The subnet, CIDR.
    pub prefix: String,
    /// Addresses, and whether each is the interface's primary one.
    pub addresses: Vec<(String, bool)>,
}

impl Default for World {
    /// A node in zone 2 with one interface, three secondary addresses and no network container.
    fn default() -> Self {
        let addresses =
            [("10.240.0.4", true), ("10.240.0.5", false), ("10.240.0.6", false), ("10.240.0.7", false)];
        Self {
            supported_apis: ["GetHomeAz", "GetSupportedApis"].map(Into::into).into(),
            home_az: 2,
            home_az_api_version: 2,
            ncs: Vec::new(),
            interfaces: vec![Interface {
                mac: "000D3AF9DCA6".into(),
                is_primary: true,
                prefix: "10.240.0.0/16".into(),
                addresses: addresses.map(|(address, primary)| (address.into(), primary)).into(),
            }],
            joined: BTreeSet::new(),
            vm_id: "5d7e0f3c-6a2b-4c1d-8e9f-001122334455".into(),
            imds_versions: ["2017-03-01", "2021-01-01", "2025-07-24"].map(Into::into).into(),
            imds_interfaces: vec![("000D3AF9DCA6".into(), String::new())],
            access_token: "fake-access-token".into(),
            token_expires_in: 86_399,
            registration: ("Kubernetes".into(), "partition-1".into()),
            registered: None,
            dnc_ncs: Vec::new(),
            secrets: BTreeMap::new(),
            tracked: Vec::new(),
        }
    }
}

/// How an answer goes wrong, or is unusual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This HTTP status with a short text.
    Status(u16),
    /// 200 with the right body, but this `httpStatusCode` (NMAgent's own status, also 102).
    InnerStatus(String),
    /// 200 with a JSON object that has no `httpStatusCode`.
    NoInnerStatus,
    /// The answer never comes.
    Hang,
    /// The head and half the body come, and then nothing.
    Stall,
    /// The connection is closed without an answer.
    Drop,
    /// The connection is closed in the middle of the body.
    Truncate,
    /// The right answer, in small chunks without a length.
    Chunked,
    /// Chunked, and closed before the last chunk.
    TruncateChunked,
    /// The right answer with this content type.
    ContentType(String),
    /// 200 with this body.
    Body(Bytes),
    /// 200 with a body of so many bytes.
    Huge(usize),
    /// A redirection to this address.
    Redirect(String),
    /// The right answer, so much later.
    Late(Duration),
}

/// A request that an agent received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Who received it.
    pub agent: Agent,
    /// E.g. `GET`.
    pub method: String,
    /// Path and query as they came.
    pub target: String,
    /// Header names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Bytes,
}

/// One line for people, without tokens.
impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut target = answer::percent_decoded(&self.target);
        if let Some(token) = target.find("authenticationToken/").map(|at| at + "authenticationToken/".len()) {
            let end = target[token..].find("/api-version").map_or(target.len(), |at| token + at);
            target.replace_range(token..end, "<redacted>");
        }
        write!(f, "{:?}  {} {} ({} bytes)", self.agent, self.method, target.escape_debug(), self.body.len())
    }
}

#[derive(Debug)]
struct Rule {
    target: String,
    fault: Fault,
    left: Option<u32>,
}

#[derive(Debug, Default)]
struct Shared {
    world: World,
    rules: Vec<Rule>,
    requests: Vec<Recorded>,
}

/// The running agents. They stop when this is dropped.
#[derive(Debug)]
pub struct FakeAgents {
    shared: Arc<Mutex<Shared>>,
    addresses: BTreeMap<Agent, SocketAddr>,
    stop: CancellationToken,
}

impl FakeAgents {
    /// All agents, each on a free port of 127.0.0.1.
    pub async fn start() -> io::Result<Self> {
        Self::listen(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    /// All agents, each at the address that `at` gives it.
    pub async fn listen(at: impl Fn(Agent) -> SocketAddr) -> io::Result<Self> {
        let shared = Arc::<Mutex<Shared>>::default();
        let stop = CancellationToken::new();
        let mut addresses = BTreeMap::new();
        for agent in Agent::ALL {
            let listener = TcpListener::bind(at(agent)).await?;
            addresses.insert(agent, listener.local_addr()?);
            tokio::spawn(serve(agent, listener, shared.clone(), stop.clone()));
        }
        Ok(Self { shared, addresses, stop })
    }

    /// Where an agent listens.
    pub fn address(&self, agent: Agent) -> SocketAddr {
        self.addresses[&agent]
    }

    /// The same for a client.
    pub fn url(&self, agent: Agent) -> String {
        format!("http://{}", self.address(agent))
    }

    /// What points telemetry at the ingestion service.
    pub fn connection_string(&self) -> String {
        let url = self.url(Agent::Insights);
        format!("InstrumentationKey=00000000-0000-0000-0000-0000000a11ce;IngestionEndpoint={url}")
    }

    /// Reads or changes what the agents know.
    pub fn world<T>(&self, with: impl FnOnce(&mut World) -> T) -> T {
        with(&mut self.shared().world)
    }

    /// From now on, requests whose percent-decoded target contains `target` go wrong. The first matching rule counts.
    pub fn fail(&self, target: &str, fault: Fault) {
        self.shared().rules.push(Rule { target: target.to_owned(), fault, left: None });
    }

    /// The same for the next `times` requests only.
    pub fn fail_times(&self, target: &str, fault: Fault, times: u32) {
        self.shared().rules.push(Rule { target: target.to_owned(), fault, left: Some(times) });
    }

    /// Everything goes well again.
    pub fn heal(&self) {
        self.shared().rules.clear();
    }

    /// What was received since the last time this was asked.
    pub fn take_requests(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.shared().requests)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

impl Drop for FakeAgents {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests remembered; a program that runs for days must not keep them all.
const REMEMBERED: usize = 4096;

async fn serve(agent: Agent, listener: TcpListener, shared: Arc<Mutex<Shared>>, stop: CancellationToken) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((mut stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (shared, stop) = (shared.clone(), stop.clone());
        connections.spawn(async move {
            let one = async {
                let Ok(Some(request)) = wire::read(agent, &mut stream).await else { return };
                let (reply, fault) = respond(&shared, request);
                // A client that has gone away is its own affair.
                let _ = wire::write(&mut stream, reply, fault).await;
            };
            tokio::select! {
                () = one => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

fn respond(shared: &Mutex<Shared>, request: Recorded) -> (wire::Reply, Option<Fault>) {
    let mut shared = lock(shared);
    let target = answer::percent_decoded(&request.target);
    let rule = shared.rules.iter_mut().find(|rule| rule.left != Some(0) && target.contains(&rule.target));
    let fault = rule.map(|rule| {
        rule.left = rule.left.map(|left| left - 1);
        rule.fault.clone()
    });
    // What fails must not have an effect.
    let changes = match &fault {
        None | Some(Fault::Chunked | Fault::ContentType(_) | Fault::Late(_)) => true,
        Some(_) => false,
    };
    let reply = if changes {
        answer::answer(&mut shared.world, &request)
    } else {
        answer::answer(&mut shared.world.clone(), &request)
    };
    if shared.requests.len() >= REMEMBERED {
        shared.requests.drain(..REMEMBERED / 2);
    }
    shared.requests.push(request);
    (reply, fault)
}
