//! The host's primary interface: the one that its default route leaves by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Address, subnet and gateway of the host's primary interface, as legacy plugins want them (`HostPrimaryIPInfo`,
/// spec/rest-contract.md §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInterface {
    address: IpNet,
    next_hop: Option<IpAddr>,
}

impl HostInterface {
    /// From the interface's primary address with its prefix, and the next hop of the default route if it has one.
    pub fn new(address: IpNet, next_hop: Option<IpAddr>) -> Self {
        Self { address, next_hop }
    }

    /// The primary address.
    pub fn primary_ip(&self) -> IpAddr {
        self.address.addr()
    }

    /// The subnet that the primary address is of, without host bits.
    pub fn subnet(&self) -> IpNet {
        self.address.trunc()
    }

    /// The first address after the subnet's base (spec/rest-contract.md §6.20), whatever the route says: that is what the
    /// cloud's networks have there and what the reference tells. A subnet of one address has no such address; there it is the
    /// default route's next hop, where the reference fails.
    pub fn gateway(&self) -> Option<IpAddr> {
        let subnet = self.subnet();
        if subnet.prefix_len() == subnet.max_prefix_len() {
            return self.next_hop;
        }
        Some(match subnet.addr() {
            // A base address has a zero as its last bit, so this cannot overflow.
            IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits().saturating_add(1)).into(),
            IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits().saturating_add(1)).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_the_first_address_after_the_base() {
        let told = |address: &str, next_hop: &str| {
            let interface = HostInterface::new(address.parse().unwrap(), next_hop.parse().ok());
            (
                interface.primary_ip().to_string(),
                interface.subnet().to_string(),
                interface.gateway().map(|gateway| gateway.to_string()).unwrap_or_default(),
            )
        };
        for (address, next_hop, primary, subnet, gateway) in [
            ("10.224.0.4/16", "10.224.0.1", "10.224.0.4", "10.224.0.0/16", "10.224.0.1"),
            // The route's next hop does not matter where the subnet has room.
            ("192.0.2.130/25", "192.0.2.254", "192.0.2.130", "192.0.2.128/25", "192.0.2.129"),
            ("192.0.2.7/31", "192.0.2.6", "192.0.2.7", "192.0.2.6/31", "192.0.2.7"),
            ("192.0.2.7/32", "169.254.1.1", "192.0.2.7", "192.0.2.7/32", "169.254.1.1"),
            ("192.0.2.7/32", "", "192.0.2.7", "192.0.2.7/32", ""),
            ("2001:db8::4/64", "fe80::1", "2001:db8::4", "2001:db8::/64", "2001:db8::1"),
        ] {
            let expected = (primary.to_owned(), subnet.to_owned(), gateway.to_owned());
            assert_eq!(told(address, next_hop), expected, "{address}");
        }
    }
}
