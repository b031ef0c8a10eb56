//! Ids. What makes two of them equal is decided here and nowhere else.

use std::{
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The id of the synthetic network container of node subnet mode: 37 characters, so it can never be a real UUID
/// (spec/ipam.md §12).
pub const NODE_SUBNET_NC_ID: &str = "55022629-3854-499b-7133-5e6887959f4ea";

/// A text that is not the id it was given as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a {what}: {why}")]
pub struct InvalidId {
    given: String,
    what: &'static str,
    why: &'static str,
}

impl InvalidId {
    fn new(given: &str, what: &'static str, why: &'static str) -> Self {
        // The text may be hostile and long; enough of it to recognise it is enough.
        let given = given.chars().take(64).flat_map(char::escape_default).collect();
        Self { given, what, why }
    }
}

/// Network container id: a UUID, optionally with the prefix `Swift_` (spec/network-containers.md §1.1), or
/// [`NODE_SUBNET_NC_ID`].
///
/// Peers differ in prefix and case for one NC (spec/network-containers.md §12.11), so neither matters to a comparison;
/// the text is echoed as it came.
#[derive(Clone)]
pub struct NcId(Arc<str>);

const SWIFT_PREFIX: &str = "Swift_";

impl NcId {
    /// The text as it came, for the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that identifies: without prefix, in lower case.
    pub fn canonical(&self) -> String {
        self.bare().to_ascii_lowercase()
    }

    fn bare(&self) -> &str {
        self.0.strip_prefix(SWIFT_PREFIX).unwrap_or(&self.0)
    }
}

/// A legacy NC id in the form that [`NcId`] parses. Go's parser of UUIDs takes it as a URN, in braces and without dashes, too
/// (spec/rest-contract.md §6.8); what is none of these is left to be refused.
#[cfg(feature = "daemon")]
pub(crate) fn dashed_nc_id(id: &str) -> String {
    let (prefix, bare) = id.strip_prefix(SWIFT_PREFIX).map_or(("", id), |bare| (SWIFT_PREFIX, bare));
    let braced = bare.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let urn = bare.split_at_checked(9).filter(|(urn, _)| urn.eq_ignore_ascii_case("urn:uuid:"));
    if let Some(uuid) = braced.or(urn.map(|(_, uuid)| uuid)) {
        return format!("{prefix}{uuid}");
    }
    if bare.len() == 32 && bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let parts = [&bare[..8], &bare[8..12], &bare[12..16], &bare[16..20], &bare[20..]];
        return format!("{prefix}{}", parts.join("-"));
    }
    id.to_owned()
}

impl FromStr for NcId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.strip_prefix(SWIFT_PREFIX).unwrap_or(text);
        if bare == NODE_SUBNET_NC_ID {
            return Ok(Self(text.into()));
        }
        let hyphen = |index| matches!(index, 8 | 13 | 18 | 23);
        let well_formed = bare.len() == 36
            && bare.bytes().enumerate().all(
                |(i, b)| {
                    if hyphen(i) { b == b'-' } else { b.is_ascii_hexdigit() }
                },
            );
        if well_formed {
            Ok(Self(text.into()))
        } else {
            Err(InvalidId::new(
                text,
                "network container id",
                "a UUID is expected, optionally prefixed `Swift_`",
            ))
        }
    }
}

impl PartialEq for NcId {
    fn eq(&self, other: &Self) -> bool {
        self.bare().eq_ignore_ascii_case(other.bare())
    }
}

impl Eq for NcId {}

impl Hash for NcId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for byte in self.bare().bytes() {
            state.write_u8(byte.to_ascii_lowercase());
        }
    }
}

impl PartialOrd for NcId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NcId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let bytes = |id: &'_ Self| id.bare().bytes().map(|b| b.to_ascii_lowercase()).collect::<Vec<_>>();
        bytes(self).cmp(&bytes(other))
    }
}

impl fmt::Debug for NcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let check: fn(&str) -> Result<(), &'static str> = $check;
                check(text).map_err(|why| InvalidId::new(text, $what, why))?;
                Ok(Self(text.into()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! text_wire {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

text_wire!(NcId, ContainerId, IfName, IpConfigId, NetworkName);

text_id! {
    /// A sandbox's container id as the runtime gives it: an alphanumeric character, then alphanumerics, `_`, `.` or `-`
    /// (CNI spec 1.1, `CNI_CONTAINERID`), at most 253 bytes. It also names files, so nothing else may pass.
    ContainerId, "container id", |text| match text.as_bytes() {
        [] => Err("it is empty"),
        long if long.len() > 253 => Err("it is longer than 253 bytes"),
        [first, ..] if !first.is_ascii_alphanumeric() => Err("it must begin with a letter or digit"),
        rest if rest.iter().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(b)) => Ok(()),
        _ => Err("only letters, digits, `_`, `.` and `-` are allowed"),
    }
}

text_id! {
    /// A network interface's name: 1 to 15 bytes, not `.` or `..`, no `/`, `:` or white space (CNI spec 1.1,
    /// `CNI_IFNAME`, which is the kernel's rule).
    IfName, "network interface name", |text| match text {
        "" => Err("it is empty"),
        "." | ".." => Err("it is a path component"),
        long if long.len() > 15 => Err("it is longer than 15 bytes"),
        bad if bad.chars().any(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control()) => {
            Err("`/`, `:`, white space and control characters are not allowed")
        }
        _ => Ok(()),
    }
}

text_id! {
    /// The key of one secondary IP configuration: the name of the assignment in a dynamic network container, the IP text
    /// in a static one (spec/ipam.md §1.1). 1 to 128 printable bytes.
    IpConfigId, "IP configuration id", |text| match text {
        "" => Err("it is empty"),
        long if long.len() > 128 => Err("it is longer than 128 bytes"),
        bad if bad.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Err("white space and control characters are not allowed")
        }
        _ => Ok(()),
    }
}

text_id! {
    /// The name of a docker network, by the rule that docker has for names: an alphanumeric character, then alphanumerics, `_`,
    /// `.` or `-`; at most 128 bytes. It stands in a URL's path and in a packet rule's comment, so nothing else may pass.
    NetworkName, "network name", |text| match text.as_bytes() {
        [] => Err("it is empty"),
        long if long.len() > 128 => Err("it is longer than 128 bytes"),
        [first, ..] if !first.is_ascii_alphanumeric() => Err("it must begin with a letter or digit"),
        rest if rest.iter().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(b)) => Ok(()),
        _ => Err("only letters, digits, `_`, `.` and `-` are allowed"),
    }
}

impl From<std::net::IpAddr> for IpConfigId {
    /// The id of an address in a static network container.
    fn from(address: std::net::IpAddr) -> Self {
        Self(address.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const NC1: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

    #[test]
    fn nc_ids_are_equal_whatever_prefix_or_case_and_echo_their_text() {
        let plain: NcId = NC1.parse().unwrap();
        let other: NcId = format!("Swift_{}", NC1.to_uppercase()).parse().unwrap();
        assert_eq!(plain, other);
        assert_eq!(HashSet::from([plain, other.clone()]).len(), 1);
        assert_eq!(other.as_str(), format!("Swift_{}", NC1.to_uppercase()));
    }

    #[cfg(feature = "daemon")]
    #[test]
    fn legacy_nc_ids_have_four_forms() {
        let bare = NC1.replace('-', "");
        for text in
            [NC1.to_owned(), format!("{{{NC1}}}"), format!("urn:uuid:{NC1}"), format!("URN:UUID:{NC1}"), bare]
        {
            assert_eq!(dashed_nc_id(&text), NC1);
            assert_eq!(dashed_nc_id(&format!("Swift_{text}")), format!("Swift_{NC1}"));
        }
        for other in ["", "{", "x", "{x", "urn:uuid:", "ü".repeat(16).as_str()] {
            assert!(dashed_nc_id(other).parse::<NcId>().is_err(), "{other}");
        }
    }

    #[test]
    fn t9_nc_id_refuses_what_is_no_uuid() {
        for text in ["", "abc", "Swift_", &format!("Swift_Swift_{NC1}"), &NC1[1..], &format!("{NC1}0")] {
            assert!(text.parse::<NcId>().is_err(), "{text}");
        }
        assert!(NODE_SUBNET_NC_ID.parse::<NcId>().is_ok());
    }

    #[test]
    fn container_ids_cannot_leave_a_directory() {
        for text in ["", "../x", "a/b", ".hidden", "-x", "a b", "a\0b"] {
            assert!(text.parse::<ContainerId>().is_err(), "{text:?}");
        }
        assert!("1f2e3d4c_x.y-z".parse::<ContainerId>().is_ok());
    }

    #[test]
    fn ifnames_follow_the_kernel() {
        for text in ["", ".", "..", "a/b", "a b", "sixteen-bytes-xx"] {
            assert!(text.parse::<IfName>().is_err(), "{text:?}");
        }
        assert!("fifteen-bytes-x".parse::<IfName>().is_ok());
        for text in ["", ".", "..", "-a", "a/b", "a?b", "a b", "a\n", "ä", "a%2e", &"a".repeat(129)] {
            assert!(text.parse::<NetworkName>().is_err(), "{text:?}");
        }
        for text in ["azurenet", "7", "a.b-c_d"] {
            assert!(text.parse::<NetworkName>().is_ok(), "{text}");
        }
    }
}
