//! Links: what is there, up and down, name, alias, MTU.

use std::net::IpAddr;

use nix::errno::Errno;
use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State},
    route::{RouteMessage, RouteType},
};

use super::{
    netlink::{Change, KernelError, Netlink},
    route,
};
use crate::model::{Family, MacAddr};

/// Of what kind a link is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// One end of a veth pair.
    Veth,
    /// Another virtual kind.
    OtherVirtual,
    /// No kind: a device with hardware (or a hypervisor) behind it, or the loopback.
    Device,
}

/// A network interface as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its alias (`IFLA_IFALIAS`); empty when it has none.
    pub alias: String,
    /// Its hardware address, if it has one of six octets.
    pub mac: Option<MacAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Operationally up: it has a carrier, and the kernel passes packets to it.
    pub operational: bool,
    /// Its kind.
    pub kind: LinkKind,
    /// Index of the veth's other end, in that end's namespace.
    pub peer_index: Option<u32>,
}

impl Link {
    fn from_message(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            alias: String::new(),
            mac: None,
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            operational: false,
            kind: LinkKind::Device,
            peer_index: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::IfAlias(alias) => link.alias.clone_from(alias),
                LinkAttribute::Address(octets) => {
                    link.mac = <[u8; 6]>::try_from(octets.as_slice()).ok().map(MacAddr::new);
                }
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::OperState(state) => link.operational = *state == State::Up,
                LinkAttribute::Link(index) => link.peer_index = Some(*index),
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        if let LinkInfo::Kind(kind) = info {
                            link.kind =
                                if *kind == InfoKind::Veth { LinkKind::Veth } else { LinkKind::OtherVirtual };
                        }
                    }
                }
                _ => {}
            }
        }
        link
    }
}

fn found(messages: Vec<RouteNetlinkMessage>) -> impl Iterator<Item = Link> {
    messages.into_iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewLink(message) => Some(Link::from_message(&message)),
        _ => None,
    })
}

impl Netlink {
    /// The link of this name, if there is one.
    pub async fn link(&self, name: &str) -> Result<Option<Link>, KernelError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.one_link(message, || format!("look for interface {name}")).await
    }

    /// The link of this index, if there is one.
    pub async fn link_by_index(&self, index: u32) -> Result<Option<Link>, KernelError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.one_link(message, || format!("look for the interface with index {index}")).await
    }

    async fn one_link(
        &self,
        message: LinkMessage,
        doing: impl FnOnce() -> String,
    ) -> Result<Option<Link>, KernelError> {
        match self.get(RouteNetlinkMessage::GetLink(message), doing).await {
            Ok(messages) => Ok(found(messages).next()),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All links of the namespace.
    pub async fn links(&self) -> Result<Vec<Link>, KernelError> {
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        Ok(found(self.dump(all, "list interfaces").await?).collect())
    }

    /// The link that carries the default route of `family`, if there is one.
    pub async fn default_route_link(&self, family: Family) -> Result<Option<Link>, KernelError> {
        match self.default_route(family).await?.and_then(|route| route.oif) {
            Some(index) => self.link_by_index(index).await,
            None => Ok(None),
        }
    }

    /// The index of the link through which a packet to `address` would leave, if there is a route.
    pub(crate) async fn oif_towards(&self, address: IpAddr) -> Result<Option<u32>, KernelError> {
        Ok(self.route_towards(address).await?.as_ref().and_then(route::oif))
    }

    /// Whether a packet to `address` is for this namespace itself.
    pub(crate) async fn is_local(&self, address: IpAddr) -> Result<bool, KernelError> {
        let route = self.route_towards(address).await?;
        Ok(route.is_some_and(|route| route.header.kind == RouteType::Local))
    }

    async fn route_towards(&self, address: IpAddr) -> Result<Option<RouteMessage>, KernelError> {
        let message = RouteNetlinkMessage::GetRoute(route::lookup(address));
        match self.get(message, || format!("look up the route to {address}")).await {
            Ok(messages) => Ok(messages.into_iter().find_map(|message| match message {
                RouteNetlinkMessage::NewRoute(message) => Some(message),
                _ => None,
            })),
            Err(error) if error.errno() == Some(Errno::ENETUNREACH) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings a link up, and gives it `alias` if one is given, in one request.
    pub(crate) async fn bring_up(&self, link: &Link, alias: Option<&str>) -> Result<(), KernelError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.extend(alias.map(|alias| LinkAttribute::IfAlias(alias.to_owned())));
        self.change(Change::Set, RouteNetlinkMessage::SetLink(message), || {
            format!("bring interface {} up", link.name)
        })
        .await
    }

    /// Deletes a link; that it is gone already is success.
    pub async fn delete_link(&self, link: &Link) -> Result<(), KernelError> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let deleted = self
            .change(Change::Delete, RouteNetlinkMessage::DelLink(message), || {
                format!("delete interface {}", link.name)
            })
            .await;
        match deleted {
            Err(error) if error.is_absent() => Ok(()),
            other => other,
        }
    }
}
