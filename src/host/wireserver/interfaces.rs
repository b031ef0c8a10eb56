//! The host's interfaces, as XML (spec/host-agents.md §6.1).

use std::{
    collections::HashSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};

use super::super::http::ReadFault;
use crate::model::{MacAddr, parse_ip};

/// The host's interfaces, in the agent's order, and what of the answer could not be read. One bad address does not lose the others;
/// the reference drops the whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInterfaces {
    /// The interfaces.
    pub interfaces: Vec<HostInterface>,
    /// What was left out and why, each for one log line.
    pub refused: Vec<String>,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// Absent if the agent's text is none; told in [`HostInterfaces::refused`].
    pub mac: Option<MacAddr>,
    /// Whether it is the host's primary interface.
    pub is_primary: bool,
    /// Its subnets.
    pub subnets: Vec<HostSubnet>,
}

/// One subnet of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSubnet {
    /// The subnet as the agent writes it, host bits included.
    pub prefix: IpNet,
    /// Addresses of the host in it.
    pub addresses: Vec<HostAddress>,
}

/// One address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The address.
    pub address: IpAddr,
    /// Whether it is the interface's own; the others are for pods.
    pub is_primary: bool,
}

/// The interface that the node's traffic leaves by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryInterface {
    /// Its MAC, if it could be read.
    pub mac: Option<MacAddr>,
    /// Its first subnet, as the agent writes it.
    pub subnet: IpNet,
    /// The subnet's first address after the network's.
    pub gateway: IpAddr,
    /// The last address that is marked primary, as in the reference; absent if none is.
    pub primary_ip: Option<IpAddr>,
}

/// No interface is usable as the primary one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPrimaryInterface {
    /// None is marked primary and has a subnet.
    #[error("no primary interface found among {interfaces} interfaces")]
    None {
        /// How many there are.
        interfaces: usize,
    },
    /// Its subnet has room for one address only.
    #[error("insufficient address space to generate gateway IP in {subnet}")]
    NoGateway {
        /// The subnet.
        subnet: IpNet,
    },
}

impl HostInterfaces {
    /// The first interface that is primary and has a subnet.
    pub fn primary(&self) -> Result<PrimaryInterface, NoPrimaryInterface> {
        let (interface, subnet) = self
            .interfaces
            .iter()
            .filter(|interface| interface.is_primary)
            .find_map(|interface| Some((interface, interface.subnets.first()?)))
            .ok_or(NoPrimaryInterface::None { interfaces: self.interfaces.len() })?;
        let gateway =
            gateway(subnet.prefix).ok_or(NoPrimaryInterface::NoGateway { subnet: subnet.prefix })?;
        let primary_ip =
            subnet.addresses.iter().rev().find(|address| address.is_primary).map(|address| address.address);
        Ok(PrimaryInterface { mac: interface.mac, subnet: subnet.prefix, gateway, primary_ip })
    }

    /// The pool of node subnet mode: every address of the primary interfaces that is not their own, in the agent's order
    /// (spec/host-agents.md §5.2).
    pub fn secondary_addresses(&self) -> Vec<IpAddr> {
        self.interfaces
            .iter()
            .filter(|interface| interface.is_primary)
            .flat_map(|interface| &interface.subnets)
            .flat_map(|subnet| &subnet.addresses)
            .filter(|address| !address.is_primary)
            .map(|address| address.address)
            .collect()
    }

    /// Reads the XML. What is not well-formed, or has no interface list, is a fault; what is wrong with a single entry is told in
    /// `refused`.
    pub(in crate::host) fn decode(body: &[u8]) -> Result<Self, ReadFault> {
        let fault = |why: String| ReadFault::decode("interface list", why);
        let mut decoder = Decoder::default();
        let root = read(body, |depth, element| {
            match (depth, element.name) {
                (1, "Interface") => decoder.interface(element),
                (2, "IPSubnet") => decoder.subnet(element),
                (3, "IPAddress") => decoder.address(element),
                _ => {}
            }
            Ok(())
        })
        .map_err(fault)?;
        if root != "Interfaces" {
            return Err(fault(format!("the root element is `{}`, not `Interfaces`", shown(&root))));
        }
        Ok(decoder.found)
    }
}

/// The list so far.
#[derive(Default)]
struct Decoder {
    found: HostInterfaces,
    seen: HashSet<IpAddr>,
    /// The subnet whose element is open could be read, and is the last one found.
    in_subnet: bool,
}

impl Decoder {
    fn refuse(&mut self, why: impl fmt::Display) {
        // A hostile answer must not fill the log.
        if self.found.refused.len() < 32 {
            self.found.refused.push(why.to_string());
        }
    }

    fn mac(&mut self, element: &Element<'_>) -> Option<MacAddr> {
        let text = element.attribute("MacAddress").unwrap_or_default();
        let mac = parse_mac(text);
        if mac.is_none() {
            self.refuse(format_args!("`{}` is not the MAC address of an interface", shown(text)));
        }
        mac
    }

    /// `IsPrimary`, in the forms that Go reads.
    fn flag(&mut self, element: &Element<'_>) -> bool {
        match element.attribute("IsPrimary").map(str::trim).unwrap_or_default() {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => true,
            "" | "0" | "f" | "F" | "false" | "False" | "FALSE" => false,
            other => {
                self.refuse(format_args!("`{}` of {} is neither true nor false", shown(other), element.name));
                false
            }
        }
    }

    fn interface(&mut self, element: &Element<'_>) {
        let mac = self.mac(element);
        let is_primary = self.flag(element);
        self.found.interfaces.push(HostInterface { mac, is_primary, subnets: Vec::new() });
        self.in_subnet = false;
    }

    fn subnet(&mut self, element: &Element<'_>) {
        let text = element.attribute("Prefix").unwrap_or_default();
        self.in_subnet = false;
        let Ok(prefix) = text.trim().parse() else {
            return self.refuse(format_args!("`{}` is not the prefix of a subnet", shown(text)));
        };
        if let Some(interface) = self.found.interfaces.last_mut() {
            interface.subnets.push(HostSubnet { prefix, addresses: Vec::new() });
            self.in_subnet = true;
        }
    }

    fn address(&mut self, element: &Element<'_>) {
        let text = element.attribute("Address").unwrap_or_default();
        let is_primary = self.flag(element);
        let Ok(address) = parse_ip(text.trim()) else {
            return self.refuse(format_args!("`{}` is not an IP address", shown(text)));
        };
        let interface = self.found.interfaces.last_mut();
        let Some(subnet) =
            interface.and_then(|interface| interface.subnets.last_mut()).filter(|_| self.in_subnet)
        else {
            return self.refuse(format_args!("{address} stands in no subnet that can be read"));
        };
        let prefix = subnet.prefix;
        if !prefix.contains(&address) {
            self.refuse(format_args!("{address} is not an address of its subnet {prefix}"));
        } else if !self.seen.insert(address) {
            self.refuse(format_args!("{address} stands in the list more than once"));
        } else {
            subnet.addresses.push(HostAddress { address, is_primary });
        }
    }
}

/// The network's address plus one; none where there is no such host.
fn gateway(subnet: IpNet) -> Option<IpAddr> {
    if subnet.prefix_len() == subnet.max_prefix_len() {
        return None;
    }
    Some(match subnet.network() {
        IpAddr::V4(network) => Ipv4Addr::from(u32::from(network).wrapping_add(1)).into(),
        IpAddr::V6(network) => Ipv6Addr::from(u128::from(network).wrapping_add(1)).into(),
    })
}

/// A MAC address as agents write it: 12 hexadecimal digits, or with `:`, `-` or (three groups of four) `.` between them.
pub(in crate::host) fn parse_mac(text: &str) -> Option<MacAddr> {
    let text = text.trim();
    let dotted = text.len() == 14 && text.bytes().enumerate().all(|(i, b)| matches!(i, 4 | 9) == (b == b'.'));
    let digits = if dotted { text.replace('.', "") } else { text.to_owned() };
    if digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        let mut octets = [0; 6];
        for (octet, at) in octets.iter_mut().zip((0..12).step_by(2)) {
            *octet = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
        }
        return Some(MacAddr::new(octets));
    }
    text.parse().ok()
}

/// An agent's text for people: short and printable.
pub(in crate::host) fn shown(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_default).collect()
}

/// An element that was opened.
pub(in crate::host) struct Element<'a> {
    pub(in crate::host) name: &'a str,
    attributes: Vec<(String, String)>,
}

impl Element<'_> {
    pub(in crate::host) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Deeper XML is none of the agents'.
const DEEPEST: usize = 16;

/// Reads a document, hands each element with its depth (the root's is 0) to `open`, and returns the root's name. A document type is
/// refused, so there are no entities but XML's own five, and nothing grows while it is read.
pub(in crate::host) fn read(
    body: &[u8],
    mut open: impl FnMut(usize, &Element<'_>) -> Result<(), String>,
) -> Result<String, String> {
    events(body, |event| match event {
        Parsed::Open(depth, element) => open(depth, element),
        Parsed::Text(..) => Ok(()),
    })
}

/// What [`events`] hands on.
pub(in crate::host) enum Parsed<'a> {
    Open(usize, &'a Element<'a>),
    /// Text, and how many elements are open around it.
    Text(usize, &'a str),
}

pub(in crate::host) fn events(
    body: &[u8],
    mut handle: impl FnMut(Parsed<'_>) -> Result<(), String>,
) -> Result<String, String> {
    let text =
        std::str::from_utf8(body).map_err(|error| format!("not UTF-8 at byte {}", error.valid_up_to()))?;
    let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
    let mut root: Option<String> = None;
    let mut depth = 0_usize;
    loop {
        let at = reader.buffer_position();
        let malformed = |error: &dyn fmt::Display| format!("malformed XML at byte {at}: {error}");
        match reader.read_event().map_err(|error| malformed(&error))? {
            Event::Start(start) => {
                let element = element(&start).map_err(|error| malformed(&error))?;
                opened(&mut root, depth, element.name)?;
                handle(Parsed::Open(depth, &element))?;
                depth += 1;
                if depth > DEEPEST {
                    return Err(format!("more than {DEEPEST} elements are nested at byte {at}"));
                }
            }
            Event::Empty(start) => {
                let element = element(&start).map_err(|error| malformed(&error))?;
                opened(&mut root, depth, element.name)?;
                handle(Parsed::Open(depth, &element))?;
            }
            // The reader checks that it is the right one.
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Text(text) => handle(Parsed::Text(depth, &text.xml10_content()))?,
            Event::CData(text) => handle(Parsed::Text(depth, &text.xml10_content()))?,
            Event::GeneralRef(reference) => {
                let character = match reference.resolve_char_ref().map_err(|error| malformed(&error))? {
                    Some(character) => Some(character.to_string()),
                    None => quick_xml::escape::resolve_predefined_entity(&reference).map(str::to_owned),
                };
                let character = character.ok_or_else(|| malformed(&"an entity that XML does not define"))?;
                handle(Parsed::Text(depth, &character))?;
            }
            Event::DocType(_) => return Err(format!("a document type at byte {at}, which no agent sends")),
            Event::Eof if depth > 0 => return Err("the document ends inside an element".into()),
            Event::Eof => return root.ok_or_else(|| "there is no element".into()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
        }
    }
}

fn opened(root: &mut Option<String>, depth: usize, name: &str) -> Result<(), String> {
    if depth > 0 {
        return Ok(());
    }
    match root.replace(name.to_owned()) {
        None => Ok(()),
        Some(first) => Err(format!("a second root element `{}` follows `{}`", shown(name), shown(&first))),
    }
}

fn element<'a>(start: &'a BytesStart<'_>) -> Result<Element<'a>, quick_xml::Error> {
    let name = start.local_name().into_inner();
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute?;
        let value = attribute.normalized_value(quick_xml::XmlVersion::Implicit1_0)?;
        attributes.push((attribute.key.local_name().into_inner().to_owned(), value.into_owned()));
    }
    Ok(Element { name, attributes })
}

#[cfg(test)]
mod tests;
