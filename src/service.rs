//! The tonic services over the ledger, one file per proto service. They translate and ask; every rule about addresses,
//! network containers and endpoints is the ledger's.

mod compat;
mod convert;
mod debug;
mod device;
pub mod docker_rules;
mod endpoint;
mod first_request;
pub mod home_az;
mod host;
mod ipam;
pub mod layers;
mod network_container;
mod nic_resources;
mod nmagent;
mod node;
pub mod peer;
mod programming;
mod publishing;
pub mod sandbox;
pub mod status;
pub mod veth;
mod watch;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{Stream, StreamExt};
use tokio::sync::{Semaphore, watch::Receiver};
use tokio_util::sync::CancellationToken;
use tonic::{Request, service::Routes};

use self::{
    first_request::FirstRequests, home_az::HomeAzState, peer::Caller, publishing::Joined, sandbox::Sandboxes,
};
use crate::{
    host::{Agents, docker::Docker, http::AgentState},
    ledger::{Ledger, LegacyState, View},
    model::{
        Actor, ContainerId, HostInterface, IpRecord, JournalEntry, NcSpec, NcType, OrchestratorType,
        PodIdentity, PodKey, PodKeyScheme,
    },
    proto::{compat::cns_server, v1 as pb},
    sources::{SourceHandle, cni_update::CniUpdates, host_versions::SyncObserver},
};

/// The longest that a call may take; ours end well inside the 15 s after which legacy clients give up (design §3). Streams
/// are bound only until they begin.
pub const RPC_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// What the services know of the daemon beside the ledger.
#[derive(Debug)]
pub struct Facts {
    /// E.g. `Standalone`.
    pub channel_mode: String,
    /// Where the state is kept.
    pub state_directory: PathBuf,
    /// When the daemon started.
    pub started: Instant,
    /// The effective configuration, one JSON object, secrets masked.
    pub config_json: String,
    /// The version that a pushed NC is taken to be programmed at: where no host agent will ever report one, pushed
    /// addresses are usable at once.
    pub programmed: Option<u64>,
}

/// What the services know of the machine that they run on.
#[derive(Clone, Debug)]
pub struct Host {
    /// The host's primary interface as it was last read; kept up to date by whoever made this.
    pub interface: Receiver<Option<HostInterface>>,
    /// docker on this machine.
    pub docker: Docker,
    /// The agents of an Azure machine; `None` in modes that have none.
    pub agents: Option<Agents>,
    /// What is known of the home zone; who watches it is the mode's affair.
    pub home_az: Receiver<HomeAzState>,
    /// Further agents whose state is told, such as Key Vault.
    pub told: Vec<AgentState>,
    /// What the mode waits for, in words; `None` if nothing.
    pub waiting_for: Receiver<Option<String>>,
}

/// The journal's reading side.
pub trait Journal: Send + Sync + 'static {
    /// The kept entries that the filter takes, oldest first. Blocks on the disk.
    fn read(&self, filter: &dyn Fn(&JournalEntry) -> bool) -> Result<Vec<JournalEntry>, String>;
}

/// The reference's three state files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyDocuments {
    /// `azure-cns.json`; empty when there is none.
    pub azure_cns: Vec<u8>,
    /// `azure-endpoints.json`; empty when there is none.
    pub azure_endpoints: Vec<u8>,
    /// The stateful CNI's `azure-vnet.json`; empty when there is none.
    pub azure_vnet: Vec<u8>,
}

/// Reads and writes the reference's state files.
pub trait LegacyFormat: Send + Sync + 'static {
    /// What the documents say, and what of it was skipped and why; an error when one is no such document at all.
    fn parse(&self, documents: &LegacyDocuments) -> Result<(LegacyState, Vec<String>), String>;
    /// The documents that say what the ledger holds.
    fn render(&self, view: &View) -> Result<LegacyDocuments, String>;
}

/// Told of what the services see beside calls and commands.
pub trait ServiceObserver: SyncObserver {
    /// A pod got its addresses, so long after it first asked.
    fn pod_waited(&self, _: Duration) {}
}

/// What every service has.
#[derive(Clone)]
pub struct Context {
    ledger: Ledger,
    sandboxes: Sandboxes,
    facts: Arc<Facts>,
    host: Host,
    journal: Arc<dyn Journal>,
    legacy: Arc<dyn LegacyFormat>,
    joined: Joined,
    first_requests: FirstRequests,
    programming: programming::Check,
    /// Whom to tell of changed network containers of Azure Container Instances, where there is somebody.
    cni_updates: Option<CniUpdates>,
    /// The mode's source of network containers, where it has one.
    source: Option<SourceHandle>,
    /// Places of watchers and bundles.
    streams: Arc<Semaphore>,
    stopping: CancellationToken,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Context {
    /// `stopping` ends the streams: a watcher must not hold up a drain.
    pub fn new(
        ledger: Ledger,
        facts: Facts,
        host: Host,
        journal: Arc<dyn Journal>,
        legacy: Arc<dyn LegacyFormat>,
        stopping: CancellationToken,
    ) -> Self {
        let sandboxes = Sandboxes::new(ledger.clone());
        let streams = Arc::new(Semaphore::new(watch::WATCHERS));
        Self {
            ledger,
            sandboxes,
            facts: Arc::new(facts),
            host,
            journal,
            legacy,
            joined: Joined::default(),
            first_requests: FirstRequests::default(),
            programming: programming::Check::default(),
            cni_updates: None,
            source: None,
            streams,
            stopping,
        }
    }

    /// The same, observed.
    #[must_use]
    pub fn observed(mut self, observer: Arc<dyn ServiceObserver>) -> Self {
        self.first_requests.observer = Some(observer);
        self
    }

    fn observer(&self) -> Option<&dyn ServiceObserver> {
        self.first_requests.observer.as_deref()
    }

    /// The same with a source of network containers that can be asked.
    #[must_use]
    pub fn with_source(self, source: SourceHandle) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The same with a CNI plugin that is told of changed network containers.
    #[must_use]
    pub fn with_cni_updates(self, updates: Option<CniUpdates>) -> Self {
        Self { cni_updates: updates, ..self }
    }

    /// The sandboxes' keeper, shared with the reconciler.
    pub fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// The ledger that the services are over.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The IPAM service, for callers in this process.
    pub(crate) fn ipam(&self) -> impl pb::ipam_service_server::IpamService + use<> {
        ipam::Ipam(self.clone())
    }

    /// The network container service, for callers in this process.
    pub(crate) fn network_containers(
        &self,
    ) -> impl pb::network_container_service_server::NetworkContainerService + use<> {
        network_container::NetworkContainers(self.clone())
    }

    /// The endpoint service, for callers in this process.
    pub(crate) fn endpoints(&self) -> impl pb::endpoint_service_server::EndpointService + use<> {
        endpoint::Endpoints(self.clone())
    }

    /// The NMAgent service, for callers in this process.
    pub(crate) fn nmagent(&self) -> impl pb::nm_agent_service_server::NmAgentService + use<> {
        nmagent::NmAgent(self.clone())
    }

    /// The node service, for callers in this process.
    pub(crate) fn node(&self) -> impl pb::node_service_server::NodeService + use<> {
        node::Node(self.clone())
    }

    /// Whether pods get the interfaces of NCs of their own, and not addresses of a pool: DNC makes the NCs. Standalone's pool serves
    /// whoever comes, whatever orchestrator a client has named.
    fn pods_have_ncs(&self) -> bool {
        self.host.agents.is_some() && self.ledger.view().orchestrator().kind.is_some_and(is_indexed_by_pod)
    }

    /// The host's primary interface, if it has one. Asks nobody.
    fn host_interface(&self) -> Option<HostInterface> {
        *self.host.interface.borrow()
    }

    /// How every agent that this daemon uses is doing.
    pub fn agent_states(&self) -> Vec<AgentState> {
        let agents = self.host.agents.iter();
        let agents =
            agents.flat_map(|known| [known.nmagent.state(), known.wireserver.state(), known.imds.state()]);
        agents.chain(&self.host.told).cloned().collect()
    }

    /// All services of the contract.
    pub fn routes(&self) -> Routes {
        Routes::new(pb::ipam_service_server::IpamServiceServer::new(ipam::Ipam(self.clone())))
            .add_service(pb::network_container_service_server::NetworkContainerServiceServer::new(
                network_container::NetworkContainers(self.clone()),
            ))
            .add_service(pb::endpoint_service_server::EndpointServiceServer::new(endpoint::Endpoints(
                self.clone(),
            )))
            .add_service(pb::nm_agent_service_server::NmAgentServiceServer::new(nmagent::NmAgent(
                self.clone(),
            )))
            .add_service(pb::node_service_server::NodeServiceServer::new(node::Node(self.clone())))
            .add_service(pb::device_service_server::DeviceServiceServer::new(device::Devices))
            .add_service(cns_server::CnsServer::new(compat::Compat(self.clone())))
            .add_service(
                pb::debug_service_server::DebugServiceServer::new(debug::Debug(self.clone()))
                    // The reference's files of a large node come in one message.
                    .max_decoding_message_size(64 << 20),
            )
    }

    /// Who sent the request, for the journal.
    fn actor<T>(request: &Request<T>) -> Actor {
        let caller = request.extensions().get::<Caller>().cloned().unwrap_or_default();
        let id = request.metadata().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        Actor {
            uid: caller.uid,
            pid: caller.pid,
            origin: caller.origin,
            request_id: id.chars().take(64).collect(),
        }
    }

    /// What a pod holds over all its sandboxes, or what one container holds.
    fn held_by(&self, pod: Option<&PodIdentity>, container: Option<&ContainerId>) -> Vec<Arc<IpRecord>> {
        let scheme = self.ledger.config().scheme;
        let view = self.ledger.view();
        let mut containers: Vec<ContainerId> = container.cloned().into_iter().collect();
        containers.extend(pod.into_iter().flat_map(|pod| view.containers_of_pod(pod).cloned()));
        containers.sort();
        containers.dedup();
        let key = |container: &ContainerId| match scheme {
            PodKeyScheme::InfraContainerId => PodKey::new(container.as_str()),
            PodKeyScheme::InterfaceId => PodKey::new(&view.endpoint(container)?.interface_id),
        };
        let mut found: Vec<_> =
            containers.iter().filter_map(key).flat_map(|key| view.ips_of_key(&key)).collect();
        found.sort_by_key(|record| record.address);
        found.dedup_by_key(|record| record.address);
        found
    }

    /// The stream, ended when the daemon stops.
    fn until_stopped<S: Stream + Send>(&self, stream: S) -> impl Stream<Item = S::Item> + Send + use<S> {
        stream.take_until(self.stopping.clone().cancelled_owned())
    }
}

pub(crate) use network_container::is_indexed_by_pod;
pub(crate) use node::{DOCKER_DELETE_FAILED, NO_DEFAULT_ROUTE, UNKNOWN_ENVIRONMENT};

/// The contract's number of an NC type.
pub(crate) fn nc_type_number(kind: NcType) -> i32 {
    convert::pb_nc_type(kind).into()
}

/// The contract's number of an orchestrator.
pub(crate) fn orchestrator_number(kind: OrchestratorType) -> i32 {
    convert::pb_orchestrator(Some(kind)).into()
}

/// Whether a definition is well-formed: what CreateOrUpdateNetworkContainer would refuse before it asks the ledger.
pub(crate) fn check_nc(nc: &pb::NetworkContainer) -> Result<(), status::InvalidField> {
    convert::nc_spec("network_container", Some(nc.clone())).map(drop)
}

/// The definition in our terms.
pub(crate) fn nc_spec(nc: pb::NetworkContainer) -> Result<NcSpec, status::InvalidField> {
    convert::nc_spec("network_container", Some(nc))
}

/// A page's size: the server's choice for 0, never more than the most.
fn page_size(asked: u32, (usual, most): (usize, usize)) -> usize {
    match usize::try_from(asked).unwrap_or(most) {
        0 => usual,
        asked => asked.min(most),
    }
}
