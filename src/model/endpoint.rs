//! The record of one sandbox's interfaces.

use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{BootTime, ContainerId, IfName, MacAddr, NcId, NicType, PodIdentity, Timestamp};

/// A sandbox's network namespace as the plugin saw it. A path alone proves nothing: it is reused, so device and inode of
/// the namespace are recorded with it (spec/cni-plugin.md §10.5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// `CNI_NETNS`.
    pub netns: PathBuf,
    /// Device of the namespace file (nsfs); zero when not known.
    pub device: u64,
    /// Inode of the namespace; zero when not known.
    pub inode: u64,
}

/// One interface of an endpoint (spec/endpoint-state.md §2, `IPInfo`). Absent means "not known", as in the legacy record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointInterface {
    /// Name inside the pod, or the host's name of a delegated NIC. Absent when the caller of the request sent none.
    pub ifname: Option<IfName>,
    /// IPv4 addresses with their prefix lengths.
    pub ipv4: Vec<IpNet>,
    /// IPv6 addresses with their prefix lengths.
    pub ipv6: Vec<IpNet>,
    /// Absent is legacy for infra.
    pub nic_type: Option<NicType>,
    /// The veth's end on the host.
    pub host_veth_name: Option<String>,
    /// The MAC inside the pod.
    pub mac: Option<MacAddr>,
    /// Windows: the HNS endpoint.
    pub hns_endpoint_id: Option<String>,
    /// Windows: the HNS network.
    pub hns_network_id: Option<String>,
    /// The network container that an APIPA interface belongs to.
    pub nc: Option<NcId>,
    /// A delegated NIC's name on the host, to give it back under.
    pub host_name: Option<String>,
    /// A delegated NIC's ifindex on the host.
    pub host_ifindex: Option<u32>,
}

impl EndpointInterface {
    /// Whether the interface is the pod's infra NIC; a record without a type is.
    pub fn is_infra(&self) -> bool {
        matches!(self.nic_type, None | Some(NicType::Infra))
    }

    /// All addresses, v4 first.
    pub fn addresses(&self) -> impl Iterator<Item = &IpNet> {
        self.ipv4.iter().chain(&self.ipv6)
    }
}

/// What is known of one sandbox (spec/endpoint-state.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The sandbox's container id: the record's key.
    pub container: ContainerId,
    /// Empty for a record that a PATCH created.
    pub pod: PodIdentity,
    /// `podInterfaceID` of the request; may be empty.
    pub interface_id: String,
    /// In the order in which they appeared.
    pub interfaces: Vec<EndpointInterface>,
    /// Where the sandbox lives, if the plugin said so.
    pub sandbox: Option<Sandbox>,
    /// Whether the daemon itself has seen the sandbox alive. Only then may its absence be taken for death: a daemon that
    /// cannot see the runtime's namespaces must not conclude that all pods are gone.
    pub witnessed: bool,
    /// When the plugin that made the record began, if it said so.
    pub began: Option<BootTime>,
    /// When the record was made.
    pub created: Timestamp,
    /// When it last changed.
    pub updated: Timestamp,
}
