//! Addresses of links.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage},
};

use super::{
    link::Link,
    netlink::{Change, KernelError, Netlink},
};

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

impl Netlink {
    /// Gives a link an address, with its prefix but without the prefix's route: in transparent mode nothing is on the
    /// link but the gateway. No duplicate address detection: the allocator gives an address once, and a tentative address
    /// would make the pod's first second useless.
    pub(crate) async fn put_address(&self, link: &Link, address: IpNet) -> Result<(), KernelError> {
        let mut message = AddressMessage::default();
        message.header.family = family_of(address.addr());
        message.header.prefix_len = address.prefix_len();
        message.header.index = link.index;
        let mut flags = AddressFlags::Noprefixroute;
        if address.addr().is_ipv6() {
            flags |= AddressFlags::Nodad;
        }
        message.attributes = vec![
            AddressAttribute::Local(address.addr()),
            AddressAttribute::Address(address.addr()),
            AddressAttribute::Flags(flags),
        ];
        self.change(Change::Replace, RouteNetlinkMessage::NewAddress(message), || {
            format!("give {} the address {address}", link.name)
        })
        .await
    }

    /// The addresses of a link, with their prefixes.
    pub async fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, KernelError> {
        let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let found = self.dump(all, "list addresses").await?;
        Ok(found
            .iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewAddress(message) if message.header.index == link.index => {
                    own_address(message)
                }
                _ => None,
            })
            .collect())
    }
}

/// IPv4 tells the own address as `IFA_LOCAL` (`IFA_ADDRESS` is the other end of a point-to-point link); IPv6 usually has
/// only `IFA_ADDRESS`.
fn own_address(message: &AddressMessage) -> Option<IpNet> {
    let mut own = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => own = Some(*address),
            AddressAttribute::Address(address) => own = own.or(Some(*address)),
            _ => {}
        }
    }
    IpNet::new(own?, message.header.prefix_len).ok()
}
