//! What the ledger can be asked to do, what it answers, and why it refuses.

use std::{fmt::Write as _, net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;

use crate::model::{
    BootTime, ContainerId, Endpoint, EndpointInterface, Environment, Family, IfName, IpConfigId, IpRecord,
    IpStateKind, NcId, NcRecord, NcSpec, Operation, OrchestratorType, PodIdentity, PodKeyScheme, ReturnCode,
    Sandbox,
};

/// Settings that transitions depend on. Fixed for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Which field of a request is the pod key.
    pub scheme: PodKeyScheme,
    /// Whether endpoint records are kept (legacy `ManageEndpointState`).
    pub manage_endpoints: bool,
    /// How long a freed address rests before it is given to another pod while others are free (design §4).
    pub cool_down: Duration,
    /// How long a DEL is remembered (design §4).
    pub tombstone_ttl: Duration,
    /// How long a DEL without a time blocks an ADD without a time; zero where container ids are re-used (design §4).
    pub legacy_block: Duration,
    /// How many journal entries of commands that took effect are kept.
    pub journal_effects: u64,
    /// How many journal entries of refused commands are kept.
    pub journal_refusals: u64,
}

impl Default for LedgerConfig {
    /// What Standalone mode uses.
    fn default() -> Self {
        Self {
            scheme: PodKeyScheme::InfraContainerId,
            manage_endpoints: true,
            cool_down: Duration::from_secs(30),
            tombstone_ttl: Duration::from_hours(1),
            legacy_block: Duration::ZERO,
            journal_effects: 16_384,
            journal_refusals: 4_096,
        }
    }
}

/// One command. Its transition is a plain function of the state, the command and the time.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Register orchestrator and node id (spec/network-containers.md §2).
    SetOrchestrator {
        /// The orchestrator.
        kind: OrchestratorType,
        /// This node's id.
        node_id: String,
        /// The DNC partition.
        partition_key: String,
    },
    /// Record location and network type (spec/rest-contract.md §6.1).
    SetEnvironment(Environment),
    /// Create or update an NC.
    UpsertNc(Box<UpsertNc>),
    /// Delete an NC; unknown is success.
    DeleteNc {
        /// Which.
        id: NcId,
    },
    /// Addresses for a pod.
    RequestIps(RequestIps),
    /// Addresses back from a pod.
    ReleaseIps(ReleaseIps),
    /// What a sandbox that is gone still holds, back. Only if its record still names this sandbox.
    ReleaseDeadSandbox {
        /// The container.
        container: ContainerId,
        /// The sandbox that was found dead.
        sandbox: Sandbox,
        /// How it was found, for the journal.
        why: String,
    },
    /// Mark addresses to be given back (spec/ipam.md §6).
    MarkPendingRelease(MarkPendingRelease),
    /// What the host has programmed (spec/network-containers.md §7.2).
    SetHostVersions {
        /// As the host lists them.
        versions: Vec<(NcId, u64)>,
        /// Whether programmed addresses become available (the pool modes do, others only record the version).
        promote: bool,
    },
    /// Record a sandbox's interfaces (spec/endpoint-state.md §3.2).
    UpdateEndpoint(UpdateEndpoint),
    /// Drop a sandbox's record (spec/endpoint-state.md §3.4).
    DeleteEndpoint {
        /// Which.
        container: ContainerId,
    },
    /// Take over what an earlier implementation left in its files.
    ImportLegacy(Box<LegacyState>),
    /// Drop what belonged to the earlier boot.
    Reboot,
}

impl Command {
    /// What the journal calls it.
    pub fn operation(&self) -> Operation {
        match self {
            Self::SetOrchestrator { .. } => Operation::SetOrchestrator,
            Self::SetEnvironment(_) => Operation::SetEnvironment,
            Self::UpsertNc(_) => Operation::UpsertNc,
            Self::DeleteNc { .. } => Operation::DeleteNc,
            Self::RequestIps(_) => Operation::RequestIpConfigs,
            Self::ReleaseIps(_) => Operation::ReleaseIpConfigs,
            Self::ReleaseDeadSandbox { .. } => Operation::ReleaseDeadSandbox,
            Self::MarkPendingRelease(_) => Operation::MarkPendingRelease,
            Self::SetHostVersions { .. } => Operation::SetHostVersions,
            Self::UpdateEndpoint(_) => Operation::UpdateEndpoint,
            Self::DeleteEndpoint { .. } => Operation::DeleteEndpoint,
            Self::ImportLegacy(_) => Operation::ImportLegacyState,
            Self::Reboot => Operation::Reboot,
        }
    }
}

/// Where an NC comes from decides which checks bind (spec/network-containers.md §4.1 and §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcOrigin {
    /// Pushed over the API: any field may change.
    Api,
    /// From the mode's own source (custom resource, static CIDR, node subnet): the primary subnet may only widen.
    ControlPlane,
}

/// What to do with an assigned address that the new list lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingAssigned {
    /// Refuse the update whole (return code 29).
    Refuse,
    /// Apply it; the pod keeps the address, which goes when the pod lets go (design §6).
    Keep,
}

/// See [`Command::UpsertNc`].
#[derive(Clone, Debug, PartialEq)]
pub struct UpsertNc {
    /// What is wanted.
    pub spec: NcSpec,
    /// Who wants it.
    pub origin: NcOrigin,
    /// What binds when pods hold addresses that it lacks.
    pub missing: MissingAssigned,
    /// The version that the source itself vouches for as programmed; absent where the host reports it later.
    pub programmed: Option<u64>,
}

/// Whose request this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A plugin or operator.
    Client,
    /// The start-up reconcile, which says what runs already: it may take addresses that are not programmed yet and more
    /// than one per family (spec/ipam.md §15 P2, C2), and no tombstone stops it.
    Reconcile,
}

/// See [`Command::RequestIps`].
#[derive(Clone, Debug, PartialEq)]
pub struct RequestIps {
    /// Whose request.
    pub requester: Requester,
    /// `infraContainerID`.
    pub container: Option<ContainerId>,
    /// `podInterfaceID`; may be empty in the infra-container scheme.
    pub interface_id: String,
    /// The interface inside the pod, if said.
    pub ifname: Option<IfName>,
    /// Possibly empty names.
    pub pod: PodIdentity,
    /// Exactly these addresses; empty for any, one per family.
    pub desired: Vec<IpAddr>,
    /// Where the sandbox lives, if said.
    pub sandbox: Option<Sandbox>,
    /// The daemon has seen that sandbox alive.
    pub witnessed: bool,
    /// When the plugin began, if said.
    pub began: Option<BootTime>,
    /// The pod has delegated NICs; recorded with the owner.
    pub secondary_interfaces: bool,
    /// The legacy singular call: exactly one NC, exactly one address, or nothing.
    pub single: bool,
}

/// See [`Command::ReleaseIps`].
#[derive(Clone, Debug, PartialEq)]
pub struct ReleaseIps {
    /// `infraContainerID`.
    pub container: Option<ContainerId>,
    /// `podInterfaceID`.
    pub interface_id: String,
    /// If said and the record knows the container under other names only, the release is not about its addresses.
    pub ifname: Option<IfName>,
    /// For the journal.
    pub pod: PodIdentity,
    /// When the plugin began, if said.
    pub began: Option<BootTime>,
    /// The legacy singular call: exactly one NC.
    pub single: bool,
}

/// See [`Command::MarkPendingRelease`].
#[derive(Clone, Debug, PartialEq)]
pub enum MarkPendingRelease {
    /// That many, not yet programmed ones first, never assigned ones; zero marks nothing.
    Count {
        /// How many.
        count: usize,
        /// Refuse if there are not that many.
        all_or_nothing: bool,
    },
    /// Exactly these. One that is assigned is marked when its pod lets go; unknown ones are reported.
    Ids(Vec<IpConfigId>),
}

/// See [`Command::UpdateEndpoint`].
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateEndpoint {
    /// The record's key; made if unknown.
    pub container: ContainerId,
    /// Fills the names of a record that has none.
    pub pod: Option<PodIdentity>,
    /// Each names its interface; what is present overwrites, what is absent stays.
    pub interfaces: Vec<EndpointInterface>,
    /// Replaces the sandbox if present.
    pub sandbox: Option<Sandbox>,
    /// The daemon has seen that sandbox alive.
    pub witnessed: bool,
    /// When the plugin began, if said.
    pub began: Option<BootTime>,
}

/// What legacy files held, already in our terms.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LegacyState {
    /// Orchestrator, node id.
    pub orchestrator: Option<(OrchestratorType, String)>,
    /// Location and network type.
    pub environment: Option<Environment>,
    /// NCs with their host version and data-path flag; secondaries inside the spec.
    pub ncs: Vec<LegacyNc>,
    /// Endpoint records; their infra addresses are assigned to them.
    pub endpoints: Vec<Endpoint>,
    /// What is not modelled here, one JSON object; empty for none.
    pub extra: Arc<str>,
}

/// One NC of a legacy file.
#[derive(Clone, Debug, PartialEq)]
pub struct LegacyNc {
    /// The stored request.
    pub spec: NcSpec,
    /// The stored host version; absent for `-1`.
    pub host_version: Option<u64>,
    /// The stored flag.
    pub vfp_update_complete: bool,
}

/// What a command that was accepted answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Nothing to say.
    Done,
    /// To [`Command::RequestIps`].
    Granted(Granted),
    /// To [`Command::ReleaseIps`] and [`Command::ReleaseDeadSandbox`].
    Released(Released),
    /// To [`Command::UpsertNc`].
    Nc(UpsertedNc),
    /// To [`Command::DeleteNc`].
    NcDeleted {
        /// Whether there was one.
        existed: bool,
        /// Addresses that pods still hold.
        kept: Vec<IpAddr>,
    },
    /// To [`Command::MarkPendingRelease`].
    Marked(Marked),
    /// To [`Command::SetHostVersions`].
    HostVersions(HostVersionsReply),
    /// To [`Command::UpdateEndpoint`].
    Endpoint(Arc<Endpoint>),
    /// To [`Command::ImportLegacy`].
    Imported(Imported),
}

/// Addresses of a pod, v4 first.
#[derive(Clone, Debug, PartialEq)]
pub struct Granted {
    /// The addresses with their NCs.
    pub ips: Vec<(Arc<IpRecord>, Arc<NcRecord>)>,
    /// The pod had them already.
    pub repeated: bool,
    /// Things that the caller should know and that stopped nothing.
    pub warnings: Vec<String>,
}

/// What a release did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The addresses that were let go.
    pub addresses: Vec<IpAddr>,
    /// How it went.
    pub outcome: ReleaseOutcome,
}

/// How a release went; all of these are success for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// Addresses or a record were let go.
    Released,
    /// The key held nothing.
    NothingHeld,
    /// The container was added again after this release began: nothing was let go.
    Stale,
    /// The container's addresses belong to another interface than the one named.
    OtherInterface,
}

/// The NC after an upsert.
#[derive(Clone, Debug, PartialEq)]
pub struct UpsertedNc {
    /// As stored.
    pub record: Arc<NcRecord>,
    /// It is new.
    pub created: bool,
    /// Addresses that are no longer listed and that pods still hold.
    pub withdrawn: Vec<IpAddr>,
}

/// What was marked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Marked {
    /// Now `PendingRelease`.
    pub marked: Vec<Arc<IpRecord>>,
    /// Assigned: will be when let go.
    pub deferred: Vec<Arc<IpRecord>>,
    /// No such id.
    pub unknown: Vec<IpConfigId>,
}

/// How the host's versions compare now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostVersionsReply {
    /// NCs with anything programmed.
    pub programmed: usize,
    /// NCs whose goal is not reached and that the host did not list, or listed with a lower version than before.
    pub outdated: Vec<NcId>,
    /// Addresses that became available.
    pub promoted: usize,
}

/// What an import took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// NCs taken.
    pub ncs: usize,
    /// Endpoint records taken.
    pub endpoints: usize,
    /// Addresses assigned to them.
    pub assigned: usize,
    /// What was not taken, and why.
    pub skipped: Vec<String>,
}

/// Why a request found nothing in one NC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcShortage {
    /// The NC.
    pub nc: NcId,
    /// The control plane's status text; may be empty.
    pub status: String,
    /// Its addresses of the family by state, in the order of [`IpStateKind::ALL`].
    pub counts: [u32; 4],
}

/// Why a command was refused. It changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// The node has no NC.
    #[error("no NCs found in the CNS internal state")]
    NoNcs,
    /// A family that the node serves has no free address.
    #[error("{}", shortage_message(*family, ncs))]
    Exhausted {
        /// Which family is short.
        family: Family,
        /// The NCs that serve it.
        ncs: Vec<NcShortage>,
    },
    /// There are NCs, but none lists an address.
    #[error("not enough IPs available: none of the network containers {} has secondary addresses", list(ncs))]
    NoAddresses {
        /// The NCs.
        ncs: Vec<NcId>,
    },
    /// Another pod has it.
    #[error("[AssignDesiredIPConfigs] Desired IP is already assigned: {address} belongs to {owner}")]
    DesiredTaken {
        /// The address.
        address: IpAddr,
        /// Pod key that has it.
        owner: String,
    },
    /// Its state forbids it.
    #[error("IP not available: {address} is {state}")]
    DesiredUnavailable {
        /// The address.
        address: IpAddr,
        /// Its state.
        state: IpStateKind,
    },
    /// The node does not have them.
    #[error("not enough desired IPs found in pool: {} not known on this node", list(addresses))]
    DesiredUnknown {
        /// The addresses.
        addresses: Vec<IpAddr>,
    },
    /// The request lacks what the pod key is made of.
    #[error("{}", match scheme {
        PodKeyScheme::InterfaceId => "need interfaceID for pod info but request was empty",
        PodKeyScheme::InfraContainerId => "need infraContainerID for pod info but request was empty",
    })]
    NoPodKey {
        /// The scheme.
        scheme: PodKeyScheme,
    },
    /// The container has its addresses on another interface, and one address cannot be on two.
    #[error(
        "container {container} has its addresses on interface {has}; a second interface, {asked}, needs addresses of its \
         own, which this node does not give"
    )]
    OtherInterface {
        /// The container.
        container: ContainerId,
        /// The interface that was asked for.
        asked: IfName,
        /// The interface that has them.
        has: IfName,
    },
    /// The container was deleted after this call began.
    #[error(
        "container {container} was deleted {} ms after this call began: it will not be given addresses any more; \
         start a new call, or a new sandbox", late_by.as_millis()
    )]
    Tombstoned {
        /// The container.
        container: ContainerId,
        /// By how much the call is late.
        late_by: Duration,
    },
    /// The container was deleted a moment ago, and the caller cannot tell whether it began before.
    #[error("container {container} was deleted a moment ago; ask again in {} s", retry_after.as_secs() + 1)]
    RecentlyDeleted {
        /// The container.
        container: ContainerId,
        /// When an ADD is taken again.
        retry_after: Duration,
    },
    /// The singular call with another number of NCs than one.
    #[error("Expected 1 NC when calling this API but found {found} NCs")]
    NotExactlyOneNc {
        /// How many there are.
        found: usize,
    },
    /// The singular call on a pool that gives more than one address.
    #[error("request returned incorrect number of IPs. Expected 1 and returned {found}")]
    NotExactlyOneIp {
        /// How many there would be.
        found: usize,
    },
    /// No orchestrator, or one that does not allow this.
    #[error("Unsupported orchestrator type: {}", given.map_or("", OrchestratorType::as_str))]
    UnsupportedOrchestrator {
        /// What is registered.
        given: Option<OrchestratorType>,
    },
    /// The orchestrator indexes NCs by pod, and the request names none.
    #[error("Unmarshalling {nc_type} failed with error orchestrator context is missing")]
    MissingContext {
        /// The NC's type.
        nc_type: String,
    },
    /// Primary address missing, or present where there must be none.
    #[error("network container {nc}: {why}")]
    InvalidPrimary {
        /// The NC.
        nc: NcId,
        /// What is wrong.
        why: &'static str,
    },
    /// The primary subnet may only widen.
    #[error(
        "network container {nc}: primary subnet may not change from {from} to {to}; it may only be widened"
    )]
    PrimaryChanged {
        /// The NC.
        nc: NcId,
        /// Stored.
        from: String,
        /// Wanted.
        to: String,
    },
    /// The update or list lacks addresses that pods hold.
    #[error(
        "Failed to delete an Assigned IP: {} of network container {nc}; release their pods first",
        list(addresses)
    )]
    AssignedMissing {
        /// The NC.
        nc: NcId,
        /// The addresses.
        addresses: Vec<IpAddr>,
    },
    /// A secondary that cannot be taken.
    #[error("network container {nc}: secondary IP config {id} ({address}): {why}")]
    InvalidSecondary {
        /// The NC.
        nc: NcId,
        /// Its id.
        id: IpConfigId,
        /// Its address.
        address: IpAddr,
        /// What is wrong.
        why: String,
    },
    /// The node belongs to another id.
    #[error("Invalid request since this node has already been registered as {node_id}")]
    NodeAlreadyRegistered {
        /// The id.
        node_id: String,
    },
    /// Fewer addresses can be given back than asked for.
    #[error("unable to release requested number of IPs: {wanted} asked for, {possible} not in use")]
    NotEnoughToRelease {
        /// Asked for.
        wanted: usize,
        /// There are.
        possible: usize,
    },
    /// No record.
    #[error("[updateEndpoint] endpoint {container} could not be found in the statefile")]
    EndpointNotFound {
        /// The container.
        container: ContainerId,
    },
    /// An update that says nothing, or no interface.
    #[error("endpoint {container}: {why}")]
    InvalidEndpoint {
        /// The container.
        container: ContainerId,
        /// What is wrong.
        why: String,
    },
    /// The record would name an address that another has, or nobody.
    #[error("endpoint {container}: {address} is not assigned to it{}", owner.as_ref().map(|o| format!(" but to {o}")).unwrap_or_default())]
    AddressNotHeld {
        /// The container.
        container: ContainerId,
        /// The address.
        address: IpNet,
        /// Who has it.
        owner: Option<String>,
    },
    /// Deleting the record would leave its addresses without one.
    #[error(
        "endpoint {container} still holds {}; release them, which removes the record too",
        list(addresses)
    )]
    EndpointHoldsAddresses {
        /// The container.
        container: ContainerId,
        /// The addresses.
        addresses: Vec<IpAddr>,
    },
    /// Endpoint records are not kept in this mode.
    #[error("endpoint state is not managed by this daemon in its present mode")]
    EndpointsNotManaged,
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    let mut text = items.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if items.len() > 8 {
        let _ = write!(text, " and {} more", items.len() - 8);
    }
    text
}

/// The reference's words, which operators search logs for, then the facts that its message lacks (spec/ipam.md §13.19).
fn shortage_message(family: Family, ncs: &[NcShortage]) -> String {
    let mut text = format!("not enough IPs available of type {family}");
    for (i, short) in ncs.iter().enumerate().take(8) {
        let [available, assigned, programming, release] = short.counts;
        let lead = if i == 0 { " for" } else { "; also none in" };
        let _ = write!(
            text,
            "{lead} {}, waiting on Azure CNS to allocate more with NC Status: {} ({assigned} assigned, \
             {programming} pending programming, {release} pending release, {available} available)",
            short.nc, short.status,
        );
    }
    text
}

impl Rejection {
    /// The legacy return code (spec/rest-contract.md §4).
    pub fn return_code(&self) -> ReturnCode {
        match self {
            Self::NoNcs
            | Self::Exhausted { .. }
            | Self::NoAddresses { .. }
            | Self::DesiredTaken { .. }
            | Self::DesiredUnavailable { .. }
            | Self::DesiredUnknown { .. }
            | Self::OtherInterface { .. }
            | Self::Tombstoned { .. }
            | Self::RecentlyDeleted { .. } => ReturnCode::FailedToAllocateIpConfig,
            Self::NoPodKey { .. } => ReturnCode::UnsupportedOrchestratorContext,
            Self::NotExactlyOneNc { .. }
            | Self::NodeAlreadyRegistered { .. }
            | Self::InvalidEndpoint { .. }
            | Self::EndpointHoldsAddresses { .. } => ReturnCode::InvalidRequest,
            Self::NotExactlyOneIp { .. }
            | Self::MissingContext { .. }
            | Self::NotEnoughToRelease { .. }
            | Self::EndpointsNotManaged => ReturnCode::UnexpectedError,
            Self::UnsupportedOrchestrator { .. } => ReturnCode::UnsupportedOrchestratorType,
            Self::InvalidPrimary { .. } => ReturnCode::InvalidPrimaryIpConfig,
            Self::PrimaryChanged { .. } => ReturnCode::PrimaryCaNotSame,
            Self::AssignedMissing { .. } | Self::AddressNotHeld { .. } => {
                ReturnCode::InconsistentIpConfigState
            }
            Self::InvalidSecondary { .. } => ReturnCode::InvalidSecondaryIpConfig,
            Self::EndpointNotFound { .. } => ReturnCode::NotFound,
        }
    }

    /// A machine-readable reason, finer than the return code.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoNcs => "NO_NETWORK_CONTAINERS",
            Self::Exhausted { .. } => "POOL_EXHAUSTED",
            Self::NoAddresses { .. } => "NO_ADDRESSES",
            Self::DesiredTaken { .. } => "DESIRED_TAKEN",
            Self::DesiredUnavailable { .. } => "DESIRED_UNAVAILABLE",
            Self::DesiredUnknown { .. } => "DESIRED_UNKNOWN",
            Self::NoPodKey { .. } => "NO_POD_KEY",
            Self::OtherInterface { .. } => "OTHER_INTERFACE",
            Self::Tombstoned { .. } => "CONTAINER_DELETED",
            Self::RecentlyDeleted { .. } => "CONTAINER_RECENTLY_DELETED",
            Self::NotExactlyOneNc { .. } => "NOT_EXACTLY_ONE_NC",
            Self::NotExactlyOneIp { .. } => "NOT_EXACTLY_ONE_IP",
            Self::UnsupportedOrchestrator { .. } => "UNSUPPORTED_ORCHESTRATOR",
            Self::MissingContext { .. } => "MISSING_CONTEXT",
            Self::InvalidPrimary { .. } => "INVALID_PRIMARY",
            Self::PrimaryChanged { .. } => "PRIMARY_CHANGED",
            Self::AssignedMissing { .. } => "ASSIGNED_MISSING",
            Self::InvalidSecondary { .. } => "INVALID_SECONDARY",
            Self::NodeAlreadyRegistered { .. } => "NODE_ALREADY_REGISTERED",
            Self::NotEnoughToRelease { .. } => "NOT_ENOUGH_TO_RELEASE",
            Self::EndpointNotFound { .. } => "ENDPOINT_NOT_FOUND",
            Self::InvalidEndpoint { .. } => "INVALID_ENDPOINT",
            Self::AddressNotHeld { .. } => "ADDRESS_NOT_HELD",
            Self::EndpointHoldsAddresses { .. } => "ENDPOINT_HOLDS_ADDRESSES",
            Self::EndpointsNotManaged => "ENDPOINTS_NOT_MANAGED",
        }
    }
}
