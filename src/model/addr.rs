//! Addresses: IP families and MACs.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An address family. `V4` sorts first: the reference's callers get v4 before v6 (spec/ipam.md §14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, v4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// 0 for v4, 1 for v6.
    #[cfg(feature = "daemon")]
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::V4 => 0,
            Self::V6 => 1,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        })
    }
}

/// The text is no IP address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not an IP address")]
pub struct NotAnAddress {
    /// The text as it came.
    pub given: String,
}

/// Parses an address to its canonical form: an IPv4-mapped IPv6 address is the IPv4 address it stands for, so that one
/// address has one value (spec/ipam.md, scenario P10).
pub fn parse_ip(text: &str) -> Result<IpAddr, NotAnAddress> {
    text.parse::<IpAddr>()
        .map(|address| address.to_canonical())
        .map_err(|_| NotAnAddress { given: text.to_owned() })
}

/// A 48-bit hardware address. Displays as `aa:bb:cc:00:11:22`; parses that, `-` as separator, and any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr([u8; 6]);

/// The text is no MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a MAC address: six hexadecimal octets separated by `:` or `-` are expected")]
pub struct InvalidMacAddr {
    given: String,
}

impl MacAddr {
    /// From its octets.
    pub const fn new(octets: [u8; 6]) -> Self {
        Self(octets)
    }

    /// Its octets.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for MacAddr {
    type Err = InvalidMacAddr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidMacAddr { given: text.to_owned() };
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part =
                parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()));
            *octet = u8::from_str_radix(part.ok_or_else(invalid)?, 16).map_err(|_| invalid())?;
        }
        if parts.next().is_some() {
            return Err(invalid());
        }
        Ok(Self(octets))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, octet) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ":" };
            write!(f, "{separator}{octet:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for MacAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_parses_every_common_spelling_to_one_value() {
        let mac = MacAddr::new([0xaa, 0xbb, 0xcc, 0, 0x11, 0x22]);
        for text in ["aa:bb:cc:00:11:22", "AA:BB:CC:00:11:22", "aa-bb-cc-00-11-22"] {
            assert_eq!(text.parse(), Ok(mac), "{text}");
        }
        assert_eq!(mac.to_string(), "aa:bb:cc:00:11:22");
    }

    #[test]
    fn mac_refuses_what_is_none() {
        for text in
            ["", "aa:bb:cc:00:11", "aa:bb:cc:00:11:22:33", "a:b:c:0:1:2", "aa:bb:cc:00:11:+2", "aabbcc001122"]
        {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn p10_one_address_has_one_value() {
        assert_eq!(parse_ip("FD00:0::11"), parse_ip("fd00::11"));
        assert_eq!(parse_ip("::ffff:10.0.0.1"), parse_ip("10.0.0.1"));
        assert_eq!(parse_ip("abc"), Err(NotAnAddress { given: "abc".into() }));
    }
}
