//! What a wired interface belongs to, and the marks by which it is found again.

use std::fmt;

use super::veth::host_veth_name;
use crate::model::{ContainerId, IfName};

/// `IFALIASZ` less the terminating zero: more the kernel does not keep.
const LONGEST_ALIAS: usize = 255;

/// One interface of one container on one network: CNI's key of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attachment {
    network: String,
    container: ContainerId,
    ifname: IfName,
}

/// The three together cannot name an attachment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAttachment {
    /// The name of the network is not one that CNI allows.
    #[error(
        "`{}` is not a network name: a letter or digit, then letters, digits, `_`, `.` or `-` are allowed",
        .0.escape_default()
    )]
    Network(String),
    /// The mark on the host veth would not fit.
    #[error(
        "container id, interface name and network name are {0} bytes together, more than the {LONGEST_ALIAS} of an interface alias"
    )]
    TooLong(usize),
}

impl Attachment {
    /// From its three parts.
    pub fn new(network: &str, container: ContainerId, ifname: IfName) -> Result<Self, InvalidAttachment> {
        let well_formed = network.starts_with(|c: char| c.is_ascii_alphanumeric())
            && network.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        if !well_formed {
            return Err(InvalidAttachment::Network(network.to_owned()));
        }
        let attachment = Self { network: network.to_owned(), container, ifname };
        let length = attachment.alias().len();
        if length > LONGEST_ALIAS { Err(InvalidAttachment::TooLong(length)) } else { Ok(attachment) }
    }

    /// Reads a host veth's alias back; `None` if it is not one of ours.
    pub fn from_alias(alias: &str) -> Option<Self> {
        let mut parts = alias.split('/');
        let (container, ifname, network) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        Self::new(network, container.parse().ok()?, ifname.parse().ok()?).ok()
    }

    /// The network's name in the CNI configuration.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// The sandbox's container id.
    pub fn container(&self) -> &ContainerId {
        &self.container
    }

    /// The interface's name in the sandbox.
    pub fn ifname(&self) -> &IfName {
        &self.ifname
    }

    /// The alias of its host veth: container id, interface, network.
    pub fn alias(&self) -> String {
        self.to_string()
    }

    /// The name of its host veth. The key is unique to the attachment, so a recreated pod never meets its predecessor's
    /// veth (spec/cni-plugin.md §13.12).
    pub fn host_veth(&self) -> String {
        host_veth_name(&format!("{}{}{}", self.network, self.container.as_str(), self.ifname.as_str()))
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.container, self.ifname, self.network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(network: &str) -> Result<Attachment, InvalidAttachment> {
        Attachment::new(network, "c1".parse().unwrap(), "eth0".parse().unwrap())
    }

    #[test]
    fn alias_reads_back() {
        let attachment = attachment("azure.net-1_x").unwrap();
        assert_eq!(attachment.alias(), "c1/eth0/azure.net-1_x");
        assert_eq!(Attachment::from_alias(&attachment.alias()), Some(attachment));
        for alias in
            ["", "c1", "c1/eth0", "c1/eth0/net/more", "/eth0/net", "c1/et h0/net", "uplink to rack 7"]
        {
            assert_eq!(Attachment::from_alias(alias), None, "{alias}");
        }
    }

    #[test]
    fn names_of_attachments_differ_and_fit() {
        let (one, other) = (attachment("a").unwrap(), attachment("b").unwrap());
        assert_ne!(one.host_veth(), other.host_veth());
        assert_eq!(one.host_veth().len(), 14);
    }

    #[test]
    fn bad_networks_and_endless_ids_are_refused() {
        for network in ["", "-x", "a/b", "a b", "ä"] {
            assert!(matches!(attachment(network), Err(InvalidAttachment::Network(_))), "{network}");
        }
        let long = Attachment::new("net", "c".repeat(250).parse().unwrap(), "eth0".parse().unwrap());
        assert_eq!(long, Err(InvalidAttachment::TooLong(259)));
    }
}
