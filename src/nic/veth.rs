//! Veth pairs: their names (spec/linux-dataplane.md §2) and how one is made.

use std::fmt::Write as _;

use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage},
};
use sha1::{Digest, Sha1};

use super::{
    netlink::{Change, KernelError, Netlink},
    netns::Netns,
};
use crate::model::MacAddr;

/// What every host veth's name begins with.
pub(crate) const PREFIX: &str = "azv";

/// The name of the host's end for a key: `azv` and the first 11 hexadecimal digits of the key's SHA-1.
pub fn host_veth_name(key: &str) -> String {
    let mut name = String::with_capacity(PREFIX.len() + 12);
    name.push_str(PREFIX);
    for octet in Sha1::digest(key.as_bytes()).iter().take(6) {
        // Writing to a string cannot fail.
        let _ = write!(name, "{octet:02x}");
    }
    name.truncate(PREFIX.len() + 11);
    name
}

/// The key that the reference uses in transparent mode. We find its veths by it, and make none: a recreated pod of a
/// stateful set would collide with its predecessor (spec/linux-dataplane.md §10.11).
pub fn pod_name_key(namespace: &str, name: &str) -> String {
    format!("{namespace}.{name}")
}

impl Netlink {
    /// Makes a veth pair: one end here, the other directly in `pod` under its final name, so that nothing is renamed or
    /// moved and no temporary name can collide.
    pub(crate) async fn create_veth(
        &self,
        name: &str,
        mac: MacAddr,
        mtu: Option<u32>,
        pod: &Netns,
        peer_name: &str,
    ) -> Result<(), KernelError> {
        let mtu = mtu.map(LinkAttribute::Mtu);
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(peer_name.to_owned()));
        peer.attributes.push(LinkAttribute::NetNsFd(pod.raw_fd()));
        peer.attributes.extend(mtu.clone());

        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::Address(mac.octets().to_vec()));
        message.attributes.extend(mtu);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.change(Change::Create, RouteNetlinkMessage::NewLink(message), || {
            format!("create veth pair {name} with {peer_name} in {}", pod.path().display())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hash_as_the_reference_does() {
        for (namespace, pod, name) in [
            ("default", "nginx-0", "azvc048fd9a750"),
            ("kube-system", "metrics-server-77c8679d7d-6ksdh", "azvd805fb1b0f8"),
            ("kube-system", "tunnelfront-5d96f9b987-65xbn", "azvc214c1237ce"),
        ] {
            assert_eq!(host_veth_name(&pod_name_key(namespace, pod)), name);
        }
    }
}
