//! Static neighbours: who an address is, told to the kernel once instead of asked for on the link.

use std::net::IpAddr;

use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::RouteType,
};

use super::{
    address::family_of,
    link::Link,
    netlink::{Change, KernelError, Netlink},
};
use crate::model::MacAddr;

/// An entry of the neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) address: IpAddr,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) permanent: bool,
}

impl Netlink {
    /// Sets a permanent neighbour.
    pub(crate) async fn put_neighbour(
        &self,
        link: &Link,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), KernelError> {
        let mut message = NeighbourMessage::default();
        message.header.family = family_of(address);
        message.header.ifindex = link.index;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(match address {
                IpAddr::V4(address) => NeighbourAddress::Inet(address),
                IpAddr::V6(address) => NeighbourAddress::Inet6(address),
            }),
            NeighbourAttribute::LinkLayerAddress(mac.octets().to_vec()),
        ];
        self.change(Change::Replace, RouteNetlinkMessage::NewNeighbour(message), || {
            format!("set the neighbour {address} to {mac} on {}", link.name)
        })
        .await
    }

    /// The neighbours of a link.
    pub(crate) async fn neighbours(&self, link: &Link) -> Result<Vec<Neighbour>, KernelError> {
        let all = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let found = self.dump(all, "list neighbours").await?;
        Ok(found
            .iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewNeighbour(message) if message.header.ifindex == link.index => {
                    from_message(message)
                }
                _ => None,
            })
            .collect())
    }
}

fn from_message(message: &NeighbourMessage) -> Option<Neighbour> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(found)) => address = Some((*found).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(found)) => {
                address = Some((*found).into());
            }
            NeighbourAttribute::LinkLayerAddress(octets) => {
                mac = <[u8; 6]>::try_from(octets.as_slice()).ok().map(MacAddr::new);
            }
            _ => {}
        }
    }
    let permanent = message.header.state == NeighbourState::Permanent;
    Some(Neighbour { address: address?, mac, permanent })
}
