//! The daemon's answers as this program shows them.
//!
//! Keys are those of the contract's own JSON mapping (lowerCamelCase), so that they are as stable as the contract. Enum
//! values are the short texts that operators know from the reference (`Assigned`, `Docker`, `InfraNIC`).

use std::fmt;

use cns::{
    model::{IpStateKind, NcType, NicType},
    proto::v1 as pb,
};
use serde::{Deserialize, Serialize, Serializer};

use crate::output::{Cell, Tone, age};

/// A moment, RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(jiff::Timestamp);

impl Time {
    /// `None` for an absent time and for one that no calendar has.
    pub(crate) fn from_wire(time: Option<prost_types::Timestamp>) -> Option<Self> {
        let time = time?;
        jiff::Timestamp::new(time.seconds, time.nanos).ok().map(Self)
    }

    /// How long ago it is.
    pub(crate) fn ago(self, now: jiff::Timestamp) -> String {
        age(self.0, now)
    }

    /// To the second.
    pub(crate) fn short(self) -> String {
        self.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Whether it is still to come.
    pub(crate) fn is_after(self, now: jiff::Timestamp) -> bool {
        self.0 > now
    }

    /// How long it is until then.
    pub(crate) fn until(self, now: jiff::Timestamp) -> String {
        age(now, self.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `3 min`, or nothing for a time that is not known.
pub(crate) fn ago(time: Option<Time>, now: jiff::Timestamp) -> Cell {
    time.map_or_else(Cell::default, |time| time.ago(now).into())
}

/// A pod's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Pod {
    /// `None` where the runtime knows no pods.
    pub(crate) fn from_wire(pod: Option<pb::PodIdentity>) -> Option<Self> {
        let pb::PodIdentity { namespace, name } = pod?;
        (!(namespace.is_empty() && name.is_empty())).then_some(Self { namespace, name })
    }

    pub(crate) fn into_wire(self) -> pb::PodIdentity {
        pb::PodIdentity { namespace: self.namespace, name: self.name }
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The pod of the model as the wire has it.
pub(crate) fn pod_to_wire(pod: &cns::model::PodIdentity) -> pb::PodIdentity {
    pb::PodIdentity { namespace: pod.namespace().to_owned(), name: pod.name().to_owned() }
}

/// A pod's names for a table; nothing for one that is not known.
pub(crate) fn pod_cell(pod: Option<&Pod>) -> Cell {
    pod.map_or_else(Cell::default, |pod| pod.to_string().into())
}

/// A container id for a table: whole for scripts (`whole`), its first 12 characters as runtimes show it otherwise.
pub(crate) fn container_cell(id: &str, whole: bool) -> Cell {
    match id.char_indices().nth(12) {
        Some((end, _)) if !whole && id.len() > 16 => id[..end].into(),
        _ => id.into(),
    }
}

/// An enum of the wire whose value this build does not know: the daemon is newer.
fn unknown(value: i32) -> String {
    format!("Unknown({value})")
}

/// An address's state; `None` is "no record" in a change, and never in a record.
pub(crate) fn state(value: i32) -> Option<String> {
    let kind = match pb::IpState::try_from(value) {
        Ok(pb::IpState::Unspecified) => return None,
        Ok(pb::IpState::Available) => IpStateKind::Available,
        Ok(pb::IpState::Assigned) => IpStateKind::Assigned,
        Ok(pb::IpState::PendingProgramming) => IpStateKind::PendingProgramming,
        Ok(pb::IpState::PendingRelease) => IpStateKind::PendingRelease,
        Err(_) => return Some(unknown(value)),
    };
    Some(kind.as_str().to_owned())
}

/// A state of the model as the wire has it.
pub(crate) fn state_to_wire(kind: IpStateKind) -> pb::IpState {
    match kind {
        IpStateKind::Available => pb::IpState::Available,
        IpStateKind::Assigned => pb::IpState::Assigned,
        IpStateKind::PendingProgramming => pb::IpState::PendingProgramming,
        IpStateKind::PendingRelease => pb::IpState::PendingRelease,
    }
}

/// A state with its colour.
pub(crate) fn state_cell(state: &str) -> Cell {
    let tone = match state {
        "Assigned" => Tone::Good,
        "Available" => Tone::Plain,
        _ => Tone::Attention,
    };
    Cell::toned(state, tone)
}

/// What becomes of an address when its pod lets go; `None` if nothing special.
pub(crate) fn on_release(value: i32) -> Option<String> {
    match pb::OnRelease::try_from(value) {
        Ok(pb::OnRelease::Unspecified | pb::OnRelease::Free) => None,
        Ok(pb::OnRelease::GiveBack) => Some("GiveBack".to_owned()),
        Ok(pb::OnRelease::Remove) => Some("Remove".to_owned()),
        Err(_) => Some(unknown(value)),
    }
}

/// A NIC type's legacy text; `None` if the record does not say.
pub(crate) fn nic_type(value: i32) -> Option<String> {
    let known = match pb::NicType::try_from(value) {
        Ok(pb::NicType::Unspecified) => return None,
        Ok(pb::NicType::Infra) => NicType::Infra,
        Ok(pb::NicType::DelegatedVm) => NicType::DelegatedVm,
        Ok(pb::NicType::Backend) => NicType::Backend,
        Ok(pb::NicType::AccelnetFrontend) => NicType::AccelnetFrontend,
        Ok(pb::NicType::Apipa) => NicType::Apipa,
        Err(_) => return Some(unknown(value)),
    };
    Some(known.as_str().to_owned())
}

/// The reverse of [`nic_type`].
pub(crate) fn nic_type_to_wire(text: &str) -> Result<pb::NicType, String> {
    Ok(match text.parse().map_err(|error: cns::model::UnknownNicType| error.to_string())? {
        NicType::Infra => pb::NicType::Infra,
        NicType::DelegatedVm => pb::NicType::DelegatedVm,
        NicType::Backend => pb::NicType::Backend,
        NicType::AccelnetFrontend => pb::NicType::AccelnetFrontend,
        NicType::Apipa => pb::NicType::Apipa,
    })
}

/// A network container type's legacy text.
pub(crate) fn nc_type(value: i32) -> String {
    let known = match pb::NetworkContainerType::try_from(value) {
        Ok(pb::NetworkContainerType::Unspecified) | Err(_) => return unknown(value),
        Ok(pb::NetworkContainerType::AzureContainerInstance) => NcType::AzureContainerInstance,
        Ok(pb::NetworkContainerType::WebApps) => NcType::WebApps,
        Ok(pb::NetworkContainerType::Docker) => NcType::Docker,
        Ok(pb::NetworkContainerType::Basic) => NcType::Basic,
        Ok(pb::NetworkContainerType::JobObject) => NcType::JobObject,
        Ok(pb::NetworkContainerType::Cow) => NcType::Cow,
        Ok(pb::NetworkContainerType::BackendNicNc) => NcType::BackendNicNc,
        Ok(pb::NetworkContainerType::Kubernetes) => NcType::Kubernetes,
    };
    known.as_str().to_owned()
}

/// The reverse of [`nc_type`].
pub(crate) fn nc_type_to_wire(text: &str) -> Result<pb::NetworkContainerType, String> {
    Ok(match text.parse().map_err(|error: cns::model::UnknownNcType| error.to_string())? {
        NcType::AzureContainerInstance => pb::NetworkContainerType::AzureContainerInstance,
        NcType::WebApps => pb::NetworkContainerType::WebApps,
        NcType::Docker => pb::NetworkContainerType::Docker,
        NcType::Basic => pb::NetworkContainerType::Basic,
        NcType::JobObject => pb::NetworkContainerType::JobObject,
        NcType::Cow => pb::NetworkContainerType::Cow,
        NcType::BackendNicNc => pb::NetworkContainerType::BackendNicNc,
        NcType::Kubernetes => pb::NetworkContainerType::Kubernetes,
    })
}

/// Empty text is the wire's "not known".
pub(crate) fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// An address with a prefix length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Subnet {
    pub(crate) ip_address: String,
    pub(crate) prefix_length: u32,
}

impl Subnet {
    pub(crate) fn from_wire(subnet: Option<pb::IpSubnet>) -> Option<Self> {
        subnet
            .filter(|subnet| !subnet.ip_address.is_empty())
            .map(|subnet| Self { ip_address: subnet.ip_address, prefix_length: subnet.prefix_length })
    }

    pub(crate) fn into_wire(self) -> pb::IpSubnet {
        pb::IpSubnet { ip_address: self.ip_address, prefix_length: self.prefix_length }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip_address, self.prefix_length)
    }
}

/// Addresses, gateway and resolvers of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Configuration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ip_subnet: Option<Subnet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ip_subnet_v6: Option<Subnet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) dns_servers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) gateway_ip_address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) gateway_ipv6_address: String,
}

impl Configuration {
    /// `None` if nothing is configured.
    pub(crate) fn from_wire(configuration: Option<pb::IpConfiguration>) -> Option<Self> {
        let wire = configuration?;
        let configuration = Self {
            ip_subnet: Subnet::from_wire(wire.ip_subnet),
            ip_subnet_v6: Subnet::from_wire(wire.ip_subnet_v6),
            dns_servers: wire.dns_servers,
            gateway_ip_address: wire.gateway_ip_address,
            gateway_ipv6_address: wire.gateway_ipv6_address,
        };
        (configuration != Self::default()).then_some(configuration)
    }

    pub(crate) fn into_wire(self) -> pb::IpConfiguration {
        pb::IpConfiguration {
            ip_subnet: self.ip_subnet.map(Subnet::into_wire),
            ip_subnet_v6: self.ip_subnet_v6.map(Subnet::into_wire),
            dns_servers: self.dns_servers,
            gateway_ip_address: self.gateway_ip_address,
            gateway_ipv6_address: self.gateway_ipv6_address,
        }
    }
}

/// A route for a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Route {
    pub(crate) destination: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) gateway_ip_address: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) interface_to_use: String,
}

impl Route {
    pub(crate) fn from_wire(route: pb::Route) -> Self {
        Self {
            destination: route.destination,
            gateway_ip_address: route.gateway_ip_address,
            interface_to_use: route.interface_to_use,
        }
    }

    pub(crate) fn into_wire(self) -> pb::Route {
        pb::Route {
            destination: self.destination,
            gateway_ip_address: self.gateway_ip_address,
            interface_to_use: self.interface_to_use,
        }
    }
}

/// Addresses by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    pub(crate) available: u32,
    pub(crate) assigned: u32,
    pub(crate) pending_programming: u32,
    pub(crate) pending_release: u32,
}

impl Counts {
    pub(crate) fn from_wire(counts: Option<pb::IpStateCounts>) -> Self {
        counts.map_or_else(Self::default, |counts| Self {
            available: counts.available,
            assigned: counts.assigned,
            pending_programming: counts.pending_programming,
            pending_release: counts.pending_release,
        })
    }

    pub(crate) fn total(self) -> u32 {
        [self.available, self.assigned, self.pending_programming, self.pending_release]
            .into_iter()
            .fold(0, u32::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_numbers_of_the_wire_agree_both_ways() {
        for kind in NcType::ALL {
            let wire = nc_type_to_wire(kind.as_str()).unwrap();
            assert_eq!(nc_type(wire as i32), kind.as_str());
        }
        for number in 1..=5 {
            let text = nic_type(number).unwrap();
            assert_eq!(nic_type_to_wire(&text).unwrap() as i32, number);
        }
        for kind in IpStateKind::ALL {
            assert_eq!(state(state_to_wire(kind) as i32).as_deref(), Some(kind.as_str()));
        }
        assert!(nc_type_to_wire("Dockr").unwrap_err().contains("Docker"), "says what is allowed");
        assert!(nic_type_to_wire("eth").unwrap_err().contains("InfraNIC"));
    }

    #[test]
    fn what_a_newer_daemon_sends_is_shown_not_hidden() {
        assert_eq!(state(77).as_deref(), Some("Unknown(77)"));
        assert_eq!(nic_type(77).as_deref(), Some("Unknown(77)"));
        assert_eq!(nc_type(77), "Unknown(77)");
    }

    #[test]
    fn times_are_rfc_3339() {
        let time =
            Time::from_wire(Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 5 })).unwrap();
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2023-11-14T22:13:20.000000005Z\"");
        assert_eq!(time.short(), "2023-11-14T22:13:20Z");
        assert_eq!(Time::from_wire(Some(prost_types::Timestamp { seconds: i64::MAX, nanos: 0 })), None);
    }

    #[test]
    fn long_container_ids_are_cut_for_people_only() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(container_cell(id, false), "0123456789ab".into());
        assert_eq!(container_cell(id, true), id.into());
        assert_eq!(container_cell("short", false), "short".into());
    }
}
