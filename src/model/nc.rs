//! Network containers: what the control plane asks for, and what the ledger keeps of it.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{IpConfigId, MacAddr, NcId, NicType, PodIdentity, Timestamp};

macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident, $error:ident, $what:literal, { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The legacy contract's text.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text).ok_or_else(|| $error(text.to_owned()))
            }
        }

        /// The text names none.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        #[error("`{0}` is not {what}: one of {all} is expected", what = $what, all = [$($text),*].join(", "))]
        pub struct $error(pub String);
    };
}

wire_enum! {
    /// What kind of workload an NC serves (spec/network-containers.md §2). It decides acceptance and nothing else here.
    NcType, UnknownNcType, "a network container type", {
        /// Azure Container Instances.
        AzureContainerInstance => "AzureContainerInstance",
        /// App Service.
        WebApps => "WebApps",
        /// The pool NCs of Kubernetes nodes.
        Docker => "Docker",
        /// Basic.
        Basic => "Basic",
        /// Windows job objects.
        JobObject => "JobObject",
        /// Copy-on-write containers.
        Cow => "COW",
        /// InfiniBand NIC.
        BackendNicNc => "BackendNICNC",
        /// Multitenant Kubernetes.
        Kubernetes => "Kubernetes",
    }
}

wire_enum! {
    /// Who schedules this node's containers. `KubernetesCRD` makes NCs feed the IP pool; the others index NCs by pod
    /// (spec/network-containers.md §14).
    OrchestratorType, UnknownOrchestratorType, "an orchestrator type", {
        /// Kubernetes, multitenant: NC per pod.
        Kubernetes => "Kubernetes",
        /// Service Fabric.
        ServiceFabric => "ServiceFabric",
        /// Batch.
        Batch => "Batch",
        /// Managed PostgreSQL.
        DbForPostgreSql => "DBforPostgreSQL",
        /// First party.
        AzureFirstParty => "AzureFirstParty",
        /// Kubernetes with NCs from custom resources: NCs are the node's pool.
        KubernetesCrd => "KubernetesCRD",
        /// App Service.
        WebApps => "WebApps",
    }
}

/// Orchestrator and node identity, as registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orchestrator {
    /// Absent until registered.
    pub kind: Option<OrchestratorType>,
    /// Empty until registered.
    pub node_id: String,
    /// The DNC partition that the node belongs to; kept for the process only in the reference.
    pub partition_key: String,
    /// Absent until it was set.
    #[serde(default)]
    pub environment: Option<Environment>,
}

/// Where the node lives, in the legacy contract's words; interpreted by nobody here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// E.g. `Azure`.
    pub location: String,
    /// `Underlay` or `Overlay`.
    pub network_type: String,
}

/// Addresses, gateway and resolvers of one network (spec/rest-contract.md §5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfiguration {
    /// Primary address with the subnet's prefix length; absent for the legacy zero value.
    pub subnet: Option<IpNet>,
    /// The same for IPv6.
    pub subnet_v6: Option<IpNet>,
    /// Passed through.
    pub dns_servers: Vec<String>,
    /// Gateway.
    pub gateway: Option<IpAddr>,
    /// IPv6 gateway.
    pub gateway_v6: Option<IpAddr>,
}

/// One secondary address as the control plane lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondaryIpConfig {
    /// The address.
    pub address: IpAddr,
    /// The NC version in which it appeared.
    pub nc_version: u64,
}

/// VLAN or VXLAN encapsulation of a multitenant NC; passed to the CNI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultiTenancyInfo {
    /// `Vlan` or `Vxlan`.
    pub encap_type: String,
    /// VLAN id or VNI.
    pub id: i64,
}

/// A route that the CNI programs in the pod; passed through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcRoute {
    /// Destination, CIDR.
    pub destination: IpNet,
    /// Absent: on-link.
    pub gateway: Option<IpAddr>,
    /// May be empty.
    pub interface: String,
}

/// An endpoint policy; only `ACLPolicy` on `APIPA` endpoints means anything (spec/network-containers.md §1.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPolicy {
    /// E.g. `ACLPolicy`.
    pub policy_type: String,
    /// E.g. `APIPA`.
    pub endpoint_type: String,
    /// Raw JSON, passed through.
    pub settings: String,
}

/// The NIC that an NC rides on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkInterfaceInfo {
    /// Absent when not given.
    pub nic_type: Option<NicType>,
    /// Absent when not given.
    pub mac: Option<MacAddr>,
}

/// What the control plane asks for: the legacy `CreateNetworkContainerRequest` (spec/network-containers.md §1.1), less
/// the authorization token, which is never kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcSpec {
    /// The NC.
    pub id: NcId,
    /// What it serves.
    pub nc_type: NcType,
    /// Goal version as it came; [`Self::version_number`] is what is compared.
    pub version: String,
    /// SNAT target.
    pub host_primary_ip: Option<IpAddr>,
    /// The host's NIC (IP or CIDR) that a multitenant CNI looks for.
    pub primary_interface_identifier: String,
    /// The host side of host-to-container traffic.
    pub local_ip_configuration: IpConfiguration,
    /// The pod that a multitenant NC belongs to; absent when the request had none.
    pub orchestrator_context: Option<PodIdentity>,
    /// Primary network.
    pub ip_configuration: IpConfiguration,
    /// Second configuration of dual-stack multitenant and standalone NCs.
    pub ipv6_configuration: IpConfiguration,
    /// The pool.
    pub secondary_ip_configs: BTreeMap<IpConfigId, SecondaryIpConfig>,
    /// Absent when not given.
    pub multi_tenancy: Option<MultiTenancyInfo>,
    /// What the CNI must route or SNAT.
    pub cnet_address_space: Vec<IpNet>,
    /// Routes for the pod.
    pub routes: Vec<NcRoute>,
    /// Host may open connections to the container over the link-local path.
    pub allow_host_to_nc: bool,
    /// The reverse.
    pub allow_nc_to_host: bool,
    /// The pod's default route does not go here.
    pub skip_default_routes: bool,
    /// Passed through.
    pub endpoint_policies: Vec<EndpointPolicy>,
    /// The control plane's status text; quoted in shortage messages, otherwise without effect
    /// (spec/network-containers.md §15). Unknown texts are kept.
    pub status: String,
    /// NIC of the NC.
    pub network_interface_info: NetworkInterfaceInfo,
}

impl NcSpec {
    /// An NC with nothing but an id, a type and a version.
    pub fn new(id: NcId, nc_type: NcType, version: u64) -> Self {
        Self {
            id,
            nc_type,
            version: version.to_string(),
            host_primary_ip: None,
            primary_interface_identifier: String::new(),
            local_ip_configuration: IpConfiguration::default(),
            orchestrator_context: None,
            ip_configuration: IpConfiguration::default(),
            ipv6_configuration: IpConfiguration::default(),
            secondary_ip_configs: BTreeMap::new(),
            multi_tenancy: None,
            cnet_address_space: Vec::new(),
            routes: Vec::new(),
            allow_host_to_nc: false,
            allow_nc_to_host: false,
            skip_default_routes: false,
            endpoint_policies: Vec::new(),
            status: String::new(),
            network_interface_info: NetworkInterfaceInfo::default(),
        }
    }

    /// The goal version as a number: versions are compared as numbers, never as text (spec/network-containers.md §12.6).
    pub fn version_number(&self) -> Option<u64> {
        self.version.parse().ok()
    }
}

/// The version that the host reports as programmed. Absent is the legacy `-1`: nothing reported yet.
pub type HostVersion = Option<u64>;

/// Whether an NC serves new requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NcLifecycle {
    /// It does.
    #[default]
    Active,
    /// It was deleted while pods held its addresses: hidden from new requests, and gone with the last of them
    /// (spec/network-containers.md §16 E4).
    Deleting,
}

/// What the ledger keeps of an NC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcRecord {
    /// The last accepted request. Where the NC feeds the pool, `secondary_ip_configs` is empty here: the IP records are
    /// the one copy.
    pub spec: NcSpec,
    /// What the host has programmed.
    pub host_version: HostVersion,
    /// The host's data path is known to be programmed for the goal version (query path of the modes without a pool).
    pub vfp_update_complete: bool,
    /// See [`NcLifecycle`].
    pub lifecycle: NcLifecycle,
    /// When it was first accepted.
    pub created: Timestamp,
    /// When it last changed.
    pub updated: Timestamp,
}

impl NcRecord {
    /// The NC's id.
    pub fn id(&self) -> &NcId {
        &self.spec.id
    }
}
