//! The host's primary interface: read once, and again when the kernel tells that something of it changed.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use rtnetlink::{
    MulticastGroup,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{RouteNetlinkMessage, route::RouteMessage},
    sys::SocketAddr,
};
use tokio_stream::{Stream, StreamExt};

use super::netlink::{KernelError, Netlink};
use crate::model::{Family, HostInterface};

/// How long after a change the interface is read again: what configures an interface changes it in several steps.
const SETTLE: Duration = Duration::from_millis(200);

/// The kernel does not tell everything (and what is told can be lost when much happens), so it is read again after this time
/// at the latest.
const AT_LATEST: Duration = Duration::from_secs(30);

/// What the kernel tells, unasked.
type Notifications = Box<dyn Stream<Item = (NetlinkMessage<RouteNetlinkMessage>, SocketAddr)> + Send + Unpin>;

/// The host's primary interface, and what tells that it changed.
pub struct HostInterfaceWatch {
    netlink: Netlink,
    notifications: Notifications,
    /// Its connection lives as long as this.
    _listening: rtnetlink::Handle,
    /// By which link the default route leaves, for either family.
    links: Vec<u32>,
}

impl std::fmt::Debug for HostInterfaceWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostInterfaceWatch").field("links", &self.links).finish_non_exhaustive()
    }
}

impl HostInterfaceWatch {
    /// Begins to watch in the namespace of the calling thread, which is the daemon's own on every thread of a runtime: entering it
    /// once more would need a privilege, and reading needs none. Must be called within a tokio runtime with I/O enabled.
    pub fn open() -> Result<Self, KernelError> {
        const GROUPS: &[MulticastGroup] = &[
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv6Route,
        ];
        let failed = |source| KernelError { doing: "open a netlink socket".to_owned(), source };
        let netlink = Netlink::open().map_err(failed)?;
        let opened = rtnetlink::new_multicast_connection(GROUPS);
        let (connection, listening, notifications) = opened.map_err(failed)?;
        tokio::spawn(connection);
        let notifications = Box::new(notifications);
        Ok(Self { netlink, notifications, _listening: listening, links: Vec::new() })
    }

    /// The primary interface as it is now: that of the IPv4 default route, or else that of the IPv6 one; `None` where there is
    /// neither, or where its link has no address that the world can answer to.
    pub async fn read(&mut self) -> Result<Option<HostInterface>, KernelError> {
        let mut links = Vec::new();
        let mut found = None;
        for family in Family::ALL {
            let Some(route) = self.netlink.default_route(family).await? else { continue };
            let Some(index) = route.oif else { continue };
            let Some(link) = self.netlink.link_by_index(index).await? else { continue };
            links.push(index);
            if found.is_none() {
                let addresses = self.netlink.addresses(&link).await?;
                found = primary_address(&addresses, family, route.source, route.gateway)
                    .map(|address| HostInterface::new(address, route.gateway));
            }
        }
        self.links = links;
        Ok(found)
    }

    /// Returns when the interface may have changed since it was read, and after some time in any case.
    pub async fn changed(&mut self) {
        let relevant = async {
            while let Some((message, _)) = self.notifications.next().await {
                if is_relevant(&message, &self.links) {
                    return;
                }
            }
            // The connection ended: what remains is to look now and then.
            std::future::pending::<()>().await;
        };
        if tokio::time::timeout(AT_LATEST, relevant).await.is_err() {
            return;
        }
        // What comes meanwhile is about the same change, or will be seen by the reading.
        let more = async { while self.notifications.next().await.is_some() {} };
        let _ = tokio::time::timeout(SETTLE, more).await;
    }
}

/// Which of a link's addresses is its primary one: the one that the default route says, else the first one whose subnet the
/// gateway is in, else the first. The kernel lists addresses in the order in which they were given; secondary ones of a subnet
/// come after its primary one.
fn primary_address(
    addresses: &[IpNet],
    family: Family,
    source: Option<IpAddr>,
    gateway: Option<IpAddr>,
) -> Option<IpNet> {
    let of_use = |net: &&IpNet| {
        Family::of(net.addr()) == family
            && match net.addr() {
                IpAddr::V4(address) => !address.is_loopback(),
                IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
            }
    };
    let mut candidates = addresses.iter().filter(of_use);
    let of_use = candidates.clone();
    of_use
        .clone()
        .find(|net| source == Some(net.addr()))
        .or_else(|| of_use.clone().find(|net| gateway.is_some_and(|gateway| net.contains(&gateway))))
        .or_else(|| candidates.next())
        .copied()
}

/// Whether a notification is about a default route, or about a link that one leaves by. Pods that come and go change routes
/// and links of their own all the time. (When a link goes down the kernel removes its IPv4 routes and tells nothing of them.)
fn is_relevant(message: &NetlinkMessage<RouteNetlinkMessage>, links: &[u32]) -> bool {
    let is_default = |route: &RouteMessage| route.header.destination_prefix_length == 0;
    match &message.payload {
        NetlinkPayload::InnerMessage(inner) => match inner {
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => is_default(route),
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                links.contains(&address.header.index)
            }
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                links.contains(&link.header.index)
            }
            _ => false,
        },
        // Something was lost, and nobody knows what.
        NetlinkPayload::Overrun(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_address_is_the_one_that_the_default_route_means() {
        let nets: Vec<IpNet> = [
            "127.0.0.2/8",
            "172.16.0.9/24",
            "10.224.0.4/16",
            "10.224.0.5/16",
            "fe80::1/64",
            "2001:db8::4/64",
        ]
        .iter()
        .map(|net| net.parse().unwrap())
        .collect();
        let of = |family, source: &str, gateway: &str| {
            primary_address(&nets, family, source.parse().ok(), gateway.parse().ok())
                .map(|net| net.to_string())
                .unwrap_or_default()
        };
        assert_eq!(of(Family::V4, "10.224.0.5", "10.224.0.1"), "10.224.0.5/16", "the route's own source");
        assert_eq!(of(Family::V4, "", "10.224.0.1"), "10.224.0.4/16", "the subnet of the gateway");
        assert_eq!(of(Family::V4, "", ""), "172.16.0.9/24", "the first that is no loopback");
        assert_eq!(of(Family::V4, "192.0.2.1", "169.254.1.1"), "172.16.0.9/24", "neither is of the link");
        assert_eq!(of(Family::V6, "", "fe80::2"), "2001:db8::4/64", "no link-local one");
        assert_eq!(primary_address(&nets[4..5], Family::V6, None, None), None);
        assert_eq!(primary_address(&[], Family::V4, None, None), None);
    }
}
