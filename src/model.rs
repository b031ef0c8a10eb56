//! Plain values of the node's container networking: ids, addresses, network containers, IP configs, endpoints, pods.
//!
//! Nothing here does I/O, reads a clock or uses randomness. A value that exists is well-formed: ids and addresses are
//! made by parsing only, and the parse error says what is wrong with the given text.

mod addr;
mod endpoint;
mod host_interface;
mod ids;
mod ip_config;
mod journal;
mod nc;
mod nic_type;
mod pod;
mod return_code;
mod time;

pub use addr::{Family, InvalidMacAddr, MacAddr, NotAnAddress, parse_ip};
pub use endpoint::{Endpoint, EndpointInterface, Sandbox};
pub use host_interface::HostInterface;
#[cfg(feature = "daemon")]
pub(crate) use ids::dashed_nc_id;
pub use ids::{ContainerId, IfName, InvalidId, IpConfigId, NODE_SUBNET_NC_ID, NcId, NetworkName};
pub use ip_config::{Assignment, IpRecord, IpState, IpStateKind, OnRelease, Tombstone};
pub use journal::{Actor, ChangeNote, JournalEntry, Operation, Outcome};
pub use nc::{
    EndpointPolicy, Environment, HostVersion, IpConfiguration, MultiTenancyInfo, NcLifecycle, NcRecord,
    NcRoute, NcSpec, NcType, NetworkInterfaceInfo, Orchestrator, OrchestratorType, SecondaryIpConfig,
    UnknownNcType, UnknownOrchestratorType,
};
pub use nic_type::{NicType, UnknownNicType};
pub use pod::{InvalidPodIdentity, PodIdentity, PodKey, PodKeyScheme};
pub use return_code::ReturnCode;
pub use time::{BootTime, Now, Timestamp};
