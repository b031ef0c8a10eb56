//! Standalone's source: one static network container per configured network. Pure.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Serialize, Serializer};

use crate::model::{NcId, NcSpec, NcType, SecondaryIpConfig};

/// At most that many addresses of one family are served: more than any node has pods, and little enough to keep.
pub const MOST_ADDRESSES: usize = 65_536;

/// How many NCs there can be: their ids are fixed, so that a changed network is recognised as the same NC.
pub const MOST_NCS: usize = 256;

/// One static NC: an IPv4 network, an IPv6 network, or one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticNc {
    v4: Option<Ipv4Net>,
    v6: Option<Ipv6Net>,
}

/// Why a text is no static NC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaticNcError {
    /// Not a CIDR.
    #[error("`{0}` is not a CIDR such as 10.244.0.0/24 or fd00:10:244::/120")]
    NotACidr(String),
    /// Two networks of one family.
    #[error("two {0} networks; give each a --standalone-cidr of its own")]
    SameFamily(&'static str),
    /// No room for a pod.
    #[error("{0} is too small: beside its own address and the reserved ones, no address is left for a pod")]
    TooSmall(IpNet),
    /// Host bits.
    #[error("{given} has bits beyond its prefix; {meant} is meant?")]
    HostBits {
        /// As given.
        given: IpNet,
        /// Without them.
        meant: IpNet,
    },
    /// Addresses that no pod can have.
    #[error("{0} is not a network that pods can have (loopback, multicast, link-local or unspecified)")]
    NotForPods(IpNet),
}

impl FromStr for StaticNc {
    type Err = StaticNcError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut nc = Self { v4: None, v6: None };
        for part in text.split(',') {
            let net: IpNet =
                part.trim().parse().map_err(|_| StaticNcError::NotACidr(part.trim().to_owned()))?;
            if net.trunc() != net {
                return Err(StaticNcError::HostBits { given: net, meant: net.trunc() });
            }
            let address = net.addr();
            let link_local = match address {
                IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            };
            if address.is_loopback() || address.is_multicast() || address.is_unspecified() || link_local {
                return Err(StaticNcError::NotForPods(net));
            }
            if pod_addresses(net).next().is_none() {
                return Err(StaticNcError::TooSmall(net));
            }
            match net {
                IpNet::V4(_) if nc.v4.is_some() => return Err(StaticNcError::SameFamily("IPv4")),
                IpNet::V6(_) if nc.v6.is_some() => return Err(StaticNcError::SameFamily("IPv6")),
                IpNet::V4(net) => nc.v4 = Some(net),
                IpNet::V6(net) => nc.v6 = Some(net),
            }
        }
        Ok(nc)
    }
}

impl fmt::Display for StaticNc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.v4.is_some() && self.v6.is_some() { "," } else { "" };
        let v4 = self.v4.map(|net| net.to_string()).unwrap_or_default();
        let v6 = self.v6.map(|net| net.to_string()).unwrap_or_default();
        write!(f, "{v4}{comma}{v6}")
    }
}

impl Serialize for StaticNc {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl StaticNc {
    /// Its networks, IPv4 first.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> + use<> {
        self.v4.map(IpNet::V4).into_iter().chain(self.v6.map(IpNet::V6))
    }

    /// What the ledger is asked for. `index` is the NC's place on the command line.
    pub fn spec(&self, index: usize) -> NcSpec {
        let mut spec = NcSpec::new(nc_id(index), NcType::Docker, 0);
        let primary = |net: IpNet| IpNet::new(primary_address(net), net.prefix_len()).ok();
        let (v4, v6) = (self.v4.map(IpNet::V4), self.v6.map(IpNet::V6));
        // An NC has a primary subnet; where there is no IPv4 it is the IPv6 one.
        spec.ip_configuration.subnet = v4.or(v6).and_then(primary);
        spec.ip_configuration.subnet_v6 = v6.and_then(primary);
        let addresses = self.networks().flat_map(|net| pod_addresses(net).take(MOST_ADDRESSES));
        spec.secondary_ip_configs = addresses
            .map(|address| (address.into(), SecondaryIpConfig { address, nc_version: 0 }))
            .collect::<BTreeMap<_, _>>();
        spec.status = "NCUpdateSuccess".into();
        spec
    }

    /// The networks of which only the first [`MOST_ADDRESSES`] addresses are served.
    pub fn clamped(&self) -> impl Iterator<Item = IpNet> + use<> {
        self.networks().filter(|net| pod_addresses(*net).nth(MOST_ADDRESSES).is_some())
    }
}

/// The fixed id of the NC at this place.
pub fn nc_id(index: usize) -> NcId {
    let text = format!("57a71c00-0000-4000-8000-{index:012x}");
    match text.parse() {
        Ok(id) => id,
        Err(_) => unreachable!("a UUID by construction: {text}"),
    }
}

/// The NC's own address: the first host address. Reserved, so that a later mode can give it to the host.
fn primary_address(net: IpNet) -> IpAddr {
    match net {
        IpNet::V4(v4) if v4.prefix_len() >= 31 => net.addr(),
        IpNet::V4(v4) => IpAddr::V4((u32::from(v4.network()) + 1).into()),
        IpNet::V6(v6) if v6.prefix_len() >= 127 => net.addr(),
        IpNet::V6(v6) => IpAddr::V6((u128::from(v6.network()) + 1).into()),
    }
}

/// What pods can have, ascending: without the network, broadcast (IPv4) and subnet-router anycast (IPv6, RFC 4291 §2.6.1)
/// addresses, and without the NC's own.
fn pod_addresses(net: IpNet) -> impl Iterator<Item = IpAddr> + use<> {
    let (first, last): (IpAddr, IpAddr) = match net {
        IpNet::V4(v4) => (IpAddr::V4(v4.network()), IpAddr::V4(v4.broadcast())),
        IpNet::V6(v6) => (IpAddr::V6(v6.network()), IpAddr::V6(v6.broadcast())),
    };
    let primary = primary_address(net);
    let (small, v4) = match net {
        IpNet::V4(v4) => (v4.prefix_len() >= 31, true),
        IpNet::V6(v6) => (v6.prefix_len() >= 127, false),
    };
    // One more than is served and what is left out: enough to see that there are more.
    let bound = MOST_ADDRESSES + 4;
    let all: Box<dyn Iterator<Item = IpAddr>> = match net {
        IpNet::V4(v4) => Box::new(
            (u32::from(v4.network())..=u32::from(v4.broadcast()))
                .take(bound)
                .map(|bits| IpAddr::V4(bits.into())),
        ),
        IpNet::V6(v6) => Box::new(
            (u128::from(v6.network())..=u128::from(v6.broadcast()))
                .take(bound)
                .map(|bits| IpAddr::V6(bits.into())),
        ),
    };
    all.filter(move |address| {
        let reserved = !small && (*address == first || (v4 && *address == last));
        !reserved && *address != primary
    })
}

/// Two networks that share addresses, if there are any.
pub fn check_overlap(ncs: &[StaticNc]) -> Option<(IpNet, IpNet)> {
    let all: Vec<IpNet> = ncs.iter().flat_map(StaticNc::networks).collect();
    all.iter().enumerate().find_map(|(i, a)| {
        let other = all.iter().skip(i + 1).find(|b| a.contains(&b.addr()) || b.contains(&a.addr()));
        other.map(|b| (*a, *b))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nc(text: &str) -> StaticNc {
        text.parse().unwrap()
    }

    #[test]
    fn a_v4_network_keeps_its_ends_and_the_ncs_own_address_back() {
        let spec = nc("10.244.0.0/24").spec(0);
        assert_eq!(spec.secondary_ip_configs.len(), 253);
        assert_eq!(spec.ip_configuration.subnet, Some("10.244.0.1/24".parse().unwrap()));
        let has = |text: &str| spec.secondary_ip_configs.values().any(|c| c.address.to_string() == text);
        assert!(has("10.244.0.2") && has("10.244.0.254"));
        assert!(!has("10.244.0.0") && !has("10.244.0.1") && !has("10.244.0.255"));
    }

    #[test]
    fn dual_stack_is_one_nc_and_v6_only_is_one_too() {
        let spec = nc("10.244.0.0/24,fd00:10:244::/120").spec(1);
        assert_eq!(spec.secondary_ip_configs.len(), 253 + 254);
        assert_eq!(spec.ip_configuration.subnet_v6, Some("fd00:10:244::1/120".parse().unwrap()));
        let spec = nc("fd00:10:244::/120").spec(1);
        assert_eq!(spec.ip_configuration.subnet, Some("fd00:10:244::1/120".parse().unwrap()));
    }

    #[test]
    fn large_networks_are_clamped() {
        for text in ["10.0.0.0/8", "fd00::/64"] {
            let nc = nc(text);
            assert_eq!(nc.spec(0).secondary_ip_configs.len(), MOST_ADDRESSES, "{text}");
            assert_eq!(nc.clamped().count(), 1, "{text}");
        }
        assert_eq!(nc("10.0.0.0/16").spec(0).secondary_ip_configs.len(), 65_533);
        assert_eq!(nc("10.0.0.0/16").clamped().count(), 0);
    }

    #[test]
    fn ids_are_fixed_and_distinct() {
        assert_eq!(nc_id(0), nc_id(0));
        assert_ne!(nc_id(0), nc_id(1));
    }

    #[test]
    fn bad_networks_are_refused_in_words() {
        for (text, expected) in [
            ("10.244.0.0", "is not a CIDR"),
            ("", "is not a CIDR"),
            ("10.244.0.1/24", "10.244.0.0/24 is meant?"),
            ("10.244.0.0/32", "too small"),
            ("10.244.0.0/24,10.245.0.0/24", "two IPv4 networks"),
            ("127.0.0.0/8", "not a network that pods can have"),
            ("fe80::/64", "not a network that pods can have"),
        ] {
            let error = text.parse::<StaticNc>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn overlaps_are_found_across_ncs() {
        assert!(check_overlap(&[nc("10.1.0.0/16"), nc("10.1.2.0/24")]).is_some());
        assert!(check_overlap(&[nc("10.1.0.0/24,fd00::/120"), nc("10.2.0.0/24,fd01::/120")]).is_none());
    }
}
