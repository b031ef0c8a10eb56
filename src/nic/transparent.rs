//! Transparent mode: one veth per pod, host routes to its addresses, everything else over a virtual gateway
//! (spec/linux-dataplane.md §3, improved by §9).
//!
//! ```text
//!   host:  azv…  aa:aa:aa:aa:aa:aa, proxy_arp, alias = attachment
//!            route <pod address>/32 (/128) dev azv…       neighbour <pod address> = pod MAC, permanent
//!   pod:   eth0  <pod address>/<NC prefix>, no prefix route
//!            169.254.1.1/32 dev eth0                      neighbour 169.254.1.1 = aa:…, permanent
//!            default via 169.254.1.1                      (IPv6: fe80::1234:5678:9abc the same way)
//! ```
//!
//! Both directions use permanent neighbours, so neither ARP nor neighbour discovery takes place between host and pod:
//! the first packet is never lost to it, IPv6 needs no proxy, and strict reverse-path filtering cannot break it. The
//! host owns neither virtual gateway address. Deleting the host veth takes all of this away, which is what makes undo
//! and teardown one step.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, Instant},
};

use ipnet::IpNet;

use super::{
    attachment::Attachment,
    link::{Link, LinkKind},
    netlink::{KernelError, Netlink},
    netns::{Netns, NetnsError},
    route::NextHop,
    sysctl::{self, Setting, SysctlError, enable_forwarding},
    undo::{Teardown, TeardownError, Undo},
    veth,
};
use crate::model::{Family, MacAddr};

/// The virtual IPv4 gateway of every pod.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The virtual IPv6 gateway of every pod.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0x1234, 0x5678, 0x9abc);
/// The MAC of the host's end of every veth.
pub const HOST_VETH_MAC: MacAddr = MacAddr::new([0xaa; 6]);

/// How long the kernel may take to work up what it does later. It takes milliseconds, and longer while its network lock is held, as
/// by the end of many namespaces.
const KERNEL_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked.
const KERNEL_PACE: Duration = Duration::from_millis(1);

/// The virtual gateway of a family.
pub const fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(GATEWAY_V4),
        Family::V6 => IpAddr::V6(GATEWAY_V6),
    }
}

/// Why a pod could not be wired, unwired or checked.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// A namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A kernel setting could not be made.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The pod has an interface of this name that is not this attachment's.
    #[error("interface {ifname} exists in {netns} already; delete it, or attach under another name")]
    InterfaceExists {
        /// The name.
        ifname: String,
        /// The namespace.
        netns: String,
    },
    /// The host veth's name is in use by something that is not this attachment's.
    #[error("interface {name} on the host belongs to {by}, not to {attachment}; delete it if that is gone")]
    NameTaken {
        /// The name.
        name: String,
        /// What its alias says, or what it is.
        by: String,
        /// Who wanted it.
        attachment: String,
    },
    /// The NIC that the configuration names is not there.
    #[error("there is no interface {0} on the host: correct `master` in the network configuration")]
    NoParent(String),
    /// A link that was just made is not there.
    #[error("interface {0} vanished while it was being set up; something else deleted it")]
    Vanished(String),
    /// A veth's ends are up and yet not connected.
    #[error(
        "interface {name} is up and has no carrier after {} s: look for what sets its other end down",
        KERNEL_PATIENCE.as_secs()
    )]
    NoCarrier {
        /// The interface.
        name: String,
    },
    /// The pod has the address and does not take packets to it.
    #[error(
        "{address} is set on {ifname}, and the kernel does not take packets to it after {} s: see `ip route get {address}` and the kernel's log",
        KERNEL_PATIENCE.as_secs()
    )]
    AddressNotUsable {
        /// The address.
        address: IpAddr,
        /// The pod's interface.
        ifname: String,
    },
    /// Nothing to wire.
    #[error("{0} has no address to be wired with")]
    NoAddress(String),
    /// The host would not send the pod's packets to the pod.
    #[error(
        "the host's packets to {address} would leave by {found} instead of {expected}: look for a policy rule or a local address with `ip route get {address}`"
    )]
    HostRoute {
        /// The pod's address.
        address: IpAddr,
        /// Where they would go.
        found: String,
        /// Where they should go.
        expected: String,
    },
    /// The pod could not be wired, and what had been done could not all be taken back.
    #[error("{cause}; and taking it back failed: {undo}")]
    NotUndone {
        /// Why it was taken back.
        cause: Box<NicError>,
        /// What is left.
        undo: TeardownError,
    },
}

/// A route inside the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PodRoute {
    /// Where to.
    pub destination: IpNet,
    /// Over which gateway; none means on the link.
    pub gateway: Option<IpAddr>,
}

/// How a pod is to be wired.
#[derive(Clone, Debug)]
pub struct WireSpec {
    /// Whose interface it is.
    pub attachment: Attachment,
    /// The pod's addresses, with the prefix of their network container.
    pub addresses: Vec<IpNet>,
    /// Destinations to be reached over this interface beside the default. In transparent mode whatever leaves the pod goes
    /// to the host, so each is set over the virtual gateway of its family; one of a family of which the pod has no address
    /// is left out.
    pub routes: Vec<IpNet>,
    /// Set no default route of either family.
    pub skip_default_routes: bool,
    /// The host NIC whose MTU the pod gets; none means that of the default route.
    pub parent: Option<String>,
}

impl WireSpec {
    fn families(&self) -> impl Iterator<Item = Family> {
        Family::ALL
            .into_iter()
            .filter(|family| self.addresses.iter().any(|net| Family::of(net.addr()) == *family))
    }

    /// The routes that [`Transparent::wire`] sets over a gateway, without repetition.
    pub fn pod_routes(&self) -> Vec<PodRoute> {
        let mut routes: Vec<PodRoute> = Vec::new();
        for family in self.families() {
            let gateway = gateway(family);
            let default = (!self.skip_default_routes).then(|| default_route(family));
            let given = self.routes.iter().map(IpNet::trunc);
            let of_family = given.filter(|net| Family::of(net.addr()) == family && *net != host_net(gateway));
            for destination in default.into_iter().chain(of_family) {
                let route = PodRoute { destination, gateway: Some(gateway) };
                if !routes.contains(&route) {
                    routes.push(route);
                }
            }
        }
        routes
    }
}

/// A pod's interface as it was wired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wired {
    /// The host's end.
    pub host: Link,
    /// The pod's end.
    pub pod: Link,
    /// Routes over a gateway inside the pod.
    pub routes: Vec<PodRoute>,
}

/// A host veth that bears our name and, unless the reference made it or its maker died, our mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVeth {
    /// The link.
    pub link: Link,
    /// Whose it is, by its alias.
    pub attachment: Option<Attachment>,
}

/// One thing that is not as it was wired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deviation {
    /// The pod's end is missing.
    #[error("interface {0} is missing in the pod")]
    PodInterface(String),
    /// The host's end is missing.
    #[error("host veth {0} is missing")]
    HostVeth(String),
    /// The two ends are not of one pair, or not marked as this attachment's.
    #[error("host veth {host} (alias `{alias}`) is not the other end of {pod}")]
    NotPaired {
        /// The host's end.
        host: String,
        /// Its alias.
        alias: String,
        /// The pod's end.
        pod: String,
    },
    /// A link is down.
    #[error("interface {0} is down")]
    Down(String),
    /// An address is missing.
    #[error("address {0} is missing in the pod")]
    Address(IpNet),
    /// A route is missing in the pod.
    #[error("route to {} is missing in the pod", describe(.0))]
    Route(PodRoute),
    /// A permanent neighbour is missing or wrong.
    #[error("permanent neighbour {address} with MAC {mac} is missing on {on}")]
    Neighbour {
        /// The neighbour.
        address: IpAddr,
        /// Its MAC.
        mac: MacAddr,
        /// The interface.
        on: String,
    },
    /// The host sends the pod's packets elsewhere.
    #[error("the host's route to {address} leads to {found}")]
    HostRoute {
        /// The pod's address.
        address: IpAddr,
        /// Where packets go.
        found: String,
    },
}

fn describe(route: &PodRoute) -> String {
    match route.gateway {
        Some(gateway) => format!("{} via {gateway}", route.destination),
        None => route.destination.to_string(),
    }
}

fn default_route(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(ipnet::Ipv4Net::default()),
        Family::V6 => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

fn host_net(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Whether the two are the ends of one veth pair. Indices are per namespace, so both must point at each other.
fn paired(host: &Link, pod: &Link) -> bool {
    host.kind == LinkKind::Veth
        && pod.kind == LinkKind::Veth
        && host.peer_index == Some(pod.index)
        && pod.peer_index == Some(host.index)
}

/// Whether a link that bears the attachment's veth name is the attachment's. One without alias was left by a process that
/// died between making and marking it.
fn is_of(link: &Link, attachment: &Attachment) -> bool {
    link.kind == LinkKind::Veth && (link.alias.is_empty() || link.alias == attachment.alias())
}

/// Wires pods to one host namespace.
#[derive(Debug)]
pub struct Transparent {
    netns: Netns,
    netlink: Netlink,
}

impl Transparent {
    /// For the host namespace `host`. Must be called within a tokio runtime.
    pub fn new(host: Netns) -> Result<Self, NicError> {
        let netlink = host.netlink()?;
        Ok(Self { netns: host, netlink })
    }

    /// The host's namespace.
    pub fn host(&self) -> &Netns {
        &self.netns
    }

    /// Netlink in the host's namespace.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// Wires a pod. Wiring it again the same way changes nothing; a half-wired pod is completed. On failure what this call
    /// made is taken back.
    pub async fn wire(&self, pod: &Netns, spec: &WireSpec) -> Result<Wired, NicError> {
        let mut undo = Undo::new();
        let cause = match self.wire_with(pod, spec, &mut undo).await {
            Ok(wired) => return Ok(wired),
            Err(cause) => cause,
        };
        match undo.run().await {
            Ok(()) => Err(cause),
            Err(undo) => Err(NicError::NotUndone { cause: Box::new(cause), undo }),
        }
    }

    async fn wire_with<'a>(
        &'a self,
        pod: &Netns,
        spec: &'a WireSpec,
        undo: &mut Undo<'a>,
    ) -> Result<Wired, NicError> {
        if spec.addresses.is_empty() {
            return Err(NicError::NoAddress(spec.attachment.to_string()));
        }
        let inside = pod.netlink()?;
        let (host_link, pod_link) = self.veth(pod, &inside, spec, undo).await?;

        self.prepare_host_end(&host_link, spec)?;
        self.netlink.bring_up(&host_link, Some(&spec.attachment.alias())).await?;
        prepare_pod_end(pod, &pod_link, spec)?;
        inside.bring_up(&pod_link, None).await?;
        until_operational(&self.netlink, &host_link).await?;
        until_operational(&inside, &pod_link).await?;

        for address in &spec.addresses {
            inside.put_address(&pod_link, *address).await?;
        }
        for family in spec.families() {
            let gateway = gateway(family);
            inside.put_route(&pod_link, host_net(gateway), NextHop::OnLink).await?;
            inside.put_neighbour(&pod_link, gateway, HOST_VETH_MAC).await?;
        }
        let routes = spec.pod_routes();
        for route in &routes {
            let hop = route.gateway.map_or(NextHop::OnLink, NextHop::Via);
            inside.put_route(&pod_link, route.destination, hop).await?;
        }

        let pod_mac = pod_link.mac.ok_or_else(|| NicError::Vanished(pod_link.name.clone()))?;
        for address in spec.addresses.iter().map(IpNet::addr) {
            self.netlink.put_neighbour(&host_link, address, pod_mac).await?;
            self.netlink.put_route(&host_link, host_net(address), NextHop::Device).await?;
            if let Some(found) = self.misrouted(&host_link, address).await? {
                return Err(NicError::HostRoute { address, found, expected: host_link.name.clone() });
            }
            until_local(&inside, &pod_link, address).await?;
        }
        Ok(Wired { host: host_link, pod: pod_link, routes })
    }

    /// Finds the attachment's veth pair, or makes it.
    async fn veth<'a>(
        &'a self,
        pod: &Netns,
        inside: &Netlink,
        spec: &WireSpec,
        undo: &mut Undo<'a>,
    ) -> Result<(Link, Link), NicError> {
        let name = spec.attachment.host_veth();
        let ifname = spec.attachment.ifname().as_str();
        let on_host = self.netlink.link(&name).await?;
        if let Some(link) = on_host.as_ref().filter(|link| !is_of(link, &spec.attachment)) {
            let by =
                if link.alias.is_empty() { "something that is no veth".into() } else { link.alias.clone() };
            return Err(NicError::NameTaken { name, by, attachment: spec.attachment.to_string() });
        }
        match (on_host, inside.link(ifname).await?) {
            (Some(host_link), Some(pod_link)) if paired(&host_link, &pod_link) => {
                return Ok((host_link, pod_link));
            }
            (_, Some(pod_link)) => {
                let netns = pod.path().display().to_string();
                return Err(NicError::InterfaceExists { ifname: pod_link.name, netns });
            }
            // Left over from a sandbox whose namespace is not this one.
            (Some(stale), None) => self.netlink.delete_link(&stale).await?,
            (None, None) => {}
        }

        let mtu = self.mtu(spec.parent.as_deref()).await?;
        self.netlink.create_veth(&name, HOST_VETH_MAC, mtu, pod, ifname).await?;
        let made = name.clone();
        undo.push(format!("delete interface {name}"), async move {
            match self.netlink.link(&made).await? {
                Some(link) => self.netlink.delete_link(&link).await,
                None => Ok(()),
            }
        });
        let host_link = self.netlink.link(&name).await?.ok_or(NicError::Vanished(name))?;
        let pod_link = inside.link(ifname).await?;
        let pod_link = pod_link.ok_or_else(|| NicError::Vanished(ifname.to_owned()))?;
        Ok((host_link, pod_link))
    }

    async fn mtu(&self, parent: Option<&str>) -> Result<Option<u32>, NicError> {
        if let Some(name) = parent {
            let link = self.netlink.link(name).await?;
            return Ok(Some(link.ok_or_else(|| NicError::NoParent(name.to_owned()))?.mtu));
        }
        for family in Family::ALL {
            if let Some(link) = self.netlink.default_route_link(family).await? {
                return Ok(Some(link.mtu));
            }
        }
        Ok(None)
    }

    fn prepare_host_end(&self, link: &Link, spec: &WireSpec) -> Result<(), NicError> {
        let name = link.name.as_str();
        let v6 = spec.families().any(|family| family == Family::V6);
        if v6 {
            enable_forwarding(&self.netns, &[Family::V6])?;
        }
        sysctl::apply(
            &self.netns,
            &[
                Setting { path: &["ipv4", "conf", name, "proxy_arp"], value: "1", optional: false },
                // The pod must not be able to advertise itself as the host's router.
                Setting { path: &["ipv6", "conf", name, "accept_ra"], value: "0", optional: true },
                Setting { path: &["ipv6", "conf", name, "autoconf"], value: "0", optional: true },
                Setting {
                    path: &["ipv6", "conf", name, "disable_ipv6"],
                    value: if v6 { "0" } else { "1" },
                    optional: !v6,
                },
            ],
        )?;
        Ok(())
    }

    /// The name of the link by which the host sends packets to `address`, if that is not `link`.
    async fn misrouted(&self, link: &Link, address: IpAddr) -> Result<Option<String>, NicError> {
        match self.netlink.oif_towards(address).await? {
            Some(index) if index == link.index => Ok(None),
            Some(index) => {
                let other = self.netlink.link_by_index(index).await?;
                Ok(Some(other.map_or_else(|| format!("interface {index}"), |other| other.name)))
            }
            None => Ok(Some("nowhere".into())),
        }
    }

    /// Takes an attachment's interface away, with everything that hangs on it. Says whether there was one.
    ///
    /// Without `pod` only the host's end is looked for. With it, a veth that the reference wired (and that therefore bears
    /// another name and no alias) is found too, by the pod's end.
    pub async fn unwire(&self, pod: Option<&Netns>, attachment: &Attachment) -> Result<bool, TeardownError> {
        let mut teardown = Teardown::new();
        let mut found = None;
        let name = attachment.host_veth();
        if let Some(on_host) = teardown.step(format!("find {name}"), self.netlink.link(&name).await) {
            found = on_host.filter(|link| is_of(link, attachment));
        }
        if let (None, Some(pod)) = (&found, pod) {
            let step = format!("find the host's end of {} in {}", attachment.ifname(), pod.path().display());
            found = teardown.step(step, self.host_end(pod, attachment).await).flatten();
        }
        let mut removed = false;
        if let Some(link) = found {
            let deleted = self.netlink.delete_link(&link).await;
            removed = teardown.step(format!("delete {}", link.name), deleted).is_some();
        }
        teardown.finish().map(|()| removed)
    }

    /// The host's end of the pod's interface, if it bears our prefix and nobody else's mark.
    async fn host_end(&self, pod: &Netns, attachment: &Attachment) -> Result<Option<Link>, NicError> {
        let inside = match pod.netlink() {
            Err(NetnsError::Gone { .. }) => return Ok(None),
            other => other?,
        };
        let Some(pod_link) = inside.link(attachment.ifname().as_str()).await? else { return Ok(None) };
        let Some(index) = pod_link.peer_index.filter(|_| pod_link.kind == LinkKind::Veth) else {
            return Ok(None);
        };
        let host_link = self.netlink.link_by_index(index).await?;
        Ok(host_link.filter(|link| {
            link.name.starts_with(veth::PREFIX) && paired(link, &pod_link) && is_of(link, attachment)
        }))
    }

    /// Compares what is there with how it was wired. An empty answer means that all is well.
    ///
    /// `addresses` and `routes` are those that must be there; more may be, as a later plugin of a chain may add its own.
    pub async fn check(
        &self,
        pod: &Netns,
        attachment: &Attachment,
        addresses: &[IpNet],
        routes: &[PodRoute],
    ) -> Result<Vec<Deviation>, NicError> {
        let mut deviations = Vec::new();
        let inside = pod.netlink()?;
        let (veth, ifname) = (attachment.host_veth(), attachment.ifname().as_str());
        let on_host = self.netlink.link(&veth).await?;
        let in_pod = inside.link(ifname).await?;
        if let (Some(host_link), Some(pod_link)) = (&on_host, &in_pod)
            && (!paired(host_link, pod_link) || host_link.alias != attachment.alias())
        {
            let (host, alias) = (host_link.name.clone(), host_link.alias.clone());
            deviations.push(Deviation::NotPaired { host, alias, pod: pod_link.name.clone() });
        }
        match &in_pod {
            Some(link) => {
                deviations.extend(check_inside(&inside, link, addresses, routes).await?);
            }
            None => deviations.push(Deviation::PodInterface(ifname.to_owned())),
        }
        match &on_host {
            Some(link) => {
                let pod_mac = in_pod.and_then(|link| link.mac);
                deviations.extend(self.check_host(link, pod_mac, addresses).await?);
            }
            None => deviations.push(Deviation::HostVeth(veth)),
        }
        Ok(deviations)
    }

    async fn check_host(
        &self,
        link: &Link,
        pod_mac: Option<MacAddr>,
        addresses: &[IpNet],
    ) -> Result<Vec<Deviation>, NicError> {
        let mut deviations = Vec::new();
        if !link.up {
            deviations.push(Deviation::Down(link.name.clone()));
        }
        let neighbours = self.netlink.neighbours(link).await?;
        for address in addresses.iter().map(IpNet::addr) {
            if let Some(found) = self.misrouted(link, address).await? {
                deviations.push(Deviation::HostRoute { address, found });
            }
            if let Some(mac) = pod_mac {
                let told =
                    neighbours.iter().any(|n| n.address == address && n.mac == Some(mac) && n.permanent);
                if !told {
                    deviations.push(Deviation::Neighbour { address, mac, on: link.name.clone() });
                }
            }
        }
        Ok(deviations)
    }

    /// Deletes a host veth that was listed, and with it everything that hangs on it. That it is gone already is success.
    pub async fn delete_stray(&self, veth: &HostVeth) -> Result<(), NicError> {
        Ok(self.netlink.delete_link(&veth.link).await?)
    }

    /// Every host veth that bears our prefix.
    pub async fn list_ours(&self) -> Result<Vec<HostVeth>, NicError> {
        let links = self.netlink.links().await?;
        Ok(links
            .into_iter()
            .filter(|link| link.kind == LinkKind::Veth && link.name.starts_with(veth::PREFIX))
            .map(|link| HostVeth { attachment: Attachment::from_alias(&link.alias), link })
            .collect())
    }
}

fn prepare_pod_end(pod: &Netns, link: &Link, spec: &WireSpec) -> Result<(), NicError> {
    let name = link.name.as_str();
    let v6 = spec.families().any(|family| family == Family::V6);
    let setting = |path, value, optional| Setting { path, value, optional };
    let (enable, ra, auto) = (
        ["ipv6", "conf", name, "disable_ipv6"],
        ["ipv6", "conf", name, "accept_ra"],
        ["ipv6", "conf", name, "autoconf"],
    );
    let mut settings = vec![setting(&ra, "0", true), setting(&auto, "0", true)];
    if v6 {
        settings.push(setting(&enable, "0", false));
    }
    sysctl::apply(pod, &settings)?;
    Ok(())
}

/// Waits until the kernel passes packets to the link. A veth has no carrier until its other end is up, and that it has one now is
/// worked up later; until then what is sent to it is dropped. (A kernel since 6.8 catches up when it is asked for the link.)
async fn until_operational(netlink: &Netlink, link: &Link) -> Result<(), NicError> {
    let settled = async || {
        let now = netlink.link_by_index(link.index).await?;
        Ok(now.is_some_and(|link| link.operational))
    };
    if settle(settled).await? { Ok(()) } else { Err(NicError::NoCarrier { name: link.name.clone() }) }
}

/// Waits until the pod takes packets to its address as its own. The kernel makes an IPv6 address's local route later, also if it
/// is not to be checked for duplicates; until then what comes for it is dropped.
async fn until_local(inside: &Netlink, link: &Link, address: IpAddr) -> Result<(), NicError> {
    let settled = async || Ok(inside.is_local(address).await?);
    if settle(settled).await? {
        return Ok(());
    }
    Err(NicError::AddressNotUsable { address, ifname: link.name.clone() })
}

/// Waits for the kernel to be done; says whether it is.
async fn settle(mut settled: impl AsyncFnMut() -> Result<bool, NicError>) -> Result<bool, NicError> {
    let begun = Instant::now();
    while !settled().await? {
        if begun.elapsed() > KERNEL_PATIENCE {
            return Ok(false);
        }
        tokio::time::sleep(KERNEL_PACE).await;
    }
    Ok(true)
}

async fn check_inside(
    inside: &Netlink,
    link: &Link,
    addresses: &[IpNet],
    routes: &[PodRoute],
) -> Result<Vec<Deviation>, NicError> {
    let mut deviations = Vec::new();
    if !link.up {
        deviations.push(Deviation::Down(link.name.clone()));
    }
    let present = inside.addresses(link).await?;
    deviations
        .extend(addresses.iter().filter(|net| !present.contains(net)).map(|net| Deviation::Address(*net)));

    let neighbours = inside.neighbours(link).await?;
    for family in Family::ALL {
        let mut set = Vec::new();
        if addresses.iter().any(|net| Family::of(net.addr()) == family) {
            let address = gateway(family);
            set.push(PodRoute { destination: host_net(address), gateway: None });
            let told = |n: &super::neighbour::Neighbour| {
                n.address == address && n.mac == Some(HOST_VETH_MAC) && n.permanent
            };
            if !neighbours.iter().any(told) {
                deviations.push(Deviation::Neighbour { address, mac: HOST_VETH_MAC, on: link.name.clone() });
            }
        }
        set.extend(routes.iter().filter(|route| Family::of(route.destination.addr()) == family));
        if set.is_empty() {
            continue;
        }
        let present = inside.routes(family).await?;
        let missing = set.into_iter().filter(|wanted| {
            !present.iter().any(|route| {
                route.destination == wanted.destination.trunc() && route.gateway == wanted.gateway
            })
        });
        deviations.extend(missing.map(Deviation::Route));
    }
    Ok(deviations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(addresses: &[&str], routes: &[&str], skip_default_routes: bool) -> WireSpec {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        WireSpec {
            attachment: Attachment::new("net", "c1".parse().unwrap(), "eth0".parse().unwrap()).unwrap(),
            addresses: nets(addresses),
            routes: nets(routes),
            skip_default_routes,
            parent: None,
        }
    }

    fn texts(spec: &WireSpec) -> Vec<String> {
        spec.pod_routes().iter().map(describe).collect()
    }

    #[test]
    fn default_routes_of_each_family_come_first_and_once() {
        let spec = spec(&["10.0.0.5/24", "fd00::5/64"], &["0.0.0.0/0", "10.9.0.0/16", "10.9.0.0/16"], false);
        assert_eq!(
            texts(&spec),
            ["0.0.0.0/0 via 169.254.1.1", "10.9.0.0/16 via 169.254.1.1", "::/0 via fe80::1234:5678:9abc"]
        );
    }

    #[test]
    fn skipped_defaults_leave_the_given_routes_of_both_families() {
        let spec = spec(&["10.0.0.5/24", "fd00::5/64"], &["10.9.0.7/16", "fd01::/48"], true);
        assert_eq!(texts(&spec), ["10.9.0.0/16 via 169.254.1.1", "fd01::/48 via fe80::1234:5678:9abc"]);
    }

    #[test]
    fn routes_of_a_family_without_address_and_to_the_gateway_are_left_out() {
        let spec = spec(&["10.0.0.5/24"], &["fd01::/48", "169.254.1.1/32"], true);
        assert!(texts(&spec).is_empty());
    }
}
