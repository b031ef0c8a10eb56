//! Routes of the main table.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType},
};

use super::{
    address::family_of,
    link::Link,
    netlink::{Change, KernelError, Netlink},
};
use crate::model::Family;

/// A route of the main table as the kernel tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) destination: IpNet,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) oif: Option<u32>,
    /// The address that packets by this route are sent from, where the route says so (`src`).
    pub(crate) source: Option<IpAddr>,
    /// Metric; lower wins.
    pub(crate) priority: u32,
}

/// Where packets to a destination are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// To the destination itself on the link. `scope link`.
    OnLink,
    /// As `OnLink`, scope global: what the reference gives host routes to pods.
    Device,
    /// To this gateway, which a route must lead to already.
    Via(IpAddr),
}

impl Netlink {
    /// Sets the route to `destination`, whatever was there before.
    pub(crate) async fn put_route(
        &self,
        link: &Link,
        destination: IpNet,
        hop: NextHop,
    ) -> Result<(), KernelError> {
        let mut message = towards(destination.addr(), destination.prefix_len());
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if hop == NextHop::OnLink { RouteScope::Link } else { RouteScope::Universe };
        message.attributes.push(RouteAttribute::Oif(link.index));
        if let NextHop::Via(gateway) = hop {
            message.attributes.push(RouteAttribute::Gateway(gateway.into()));
        }
        self.change(Change::Replace, RouteNetlinkMessage::NewRoute(message), || {
            let via = if let NextHop::Via(gateway) = hop { format!(" via {gateway}") } else { String::new() };
            format!("set the route to {destination}{via} on {}", link.name)
        })
        .await
    }

    /// The routes of the main table.
    pub(crate) async fn routes(&self, family: Family) -> Result<Vec<Route>, KernelError> {
        let mut all = RouteMessage::default();
        all.header.address_family = match family {
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        };
        let found = self.dump(RouteNetlinkMessage::GetRoute(all), "list routes").await?;
        Ok(found
            .iter()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewRoute(message) => from_message(message),
                _ => None,
            })
            .collect())
    }

    /// The default route of `family` that wins, if there is one.
    pub(crate) async fn default_route(&self, family: Family) -> Result<Option<Route>, KernelError> {
        let routes = self.routes(family).await?;
        Ok(routes
            .into_iter()
            .filter(|route| route.destination.prefix_len() == 0)
            .min_by_key(|route| route.priority))
    }
}

/// A question for the route that a packet to `address` would take.
pub(crate) fn lookup(address: IpAddr) -> RouteMessage {
    towards(address, if address.is_ipv4() { 32 } else { 128 })
}

fn towards(address: IpAddr, prefix_length: u8) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family_of(address);
    message.header.destination_prefix_length = prefix_length;
    message.attributes.push(RouteAttribute::Destination(address.into()));
    message
}

pub(crate) fn oif(message: &RouteMessage) -> Option<u32> {
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

fn from_message(message: &RouteMessage) -> Option<Route> {
    let main = message.header.table == RouteHeader::RT_TABLE_MAIN;
    if !main || message.header.kind != RouteType::Unicast {
        return None;
    }
    let (mut destination, mut gateway, mut source, mut priority) = (None, None, None, 0);
    let mut oif = oif(message);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::PrefSource(address) => source = plain(address),
            // Several next hops stand in a list instead; the first one speaks for the route.
            RouteAttribute::MultiPath(hops) if oif.is_none() => {
                let Some(hop) = hops.first() else { continue };
                oif = Some(hop.interface_index);
                gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Gateway(address) => plain(address),
                    _ => None,
                });
            }
            RouteAttribute::Destination(address) => destination = plain(address),
            RouteAttribute::Gateway(address) => gateway = plain(address),
            RouteAttribute::Priority(metric) => priority = *metric,
            _ => {}
        }
    }
    let any = || -> Option<IpAddr> {
        match message.header.address_family {
            AddressFamily::Inet => Some(std::net::Ipv4Addr::UNSPECIFIED.into()),
            AddressFamily::Inet6 => Some(std::net::Ipv6Addr::UNSPECIFIED.into()),
            _ => None,
        }
    };
    let destination = IpNet::new(destination.or_else(any)?, message.header.destination_prefix_length).ok()?;
    Some(Route { destination, gateway, oif, source, priority })
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
