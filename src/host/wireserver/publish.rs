//! What a publish call may name: an interface, a network container and a token, each parsed.

use std::{fmt, net::IpAddr, str::FromStr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::interfaces::shown;
use crate::model::{NODE_SUBNET_NC_ID, NcId, NotAnAddress, parse_ip};

/// Everything but RFC 3986's unreserved characters.
pub(in crate::host) const SEGMENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The token that authorises one network container at NMAgent: 1 to 36 of `A-Z a-z 0-9 . _ ~ + / = -` (spec/security.md §3; GUIDs in
/// practice). Never printed: its text leaves only in the URL of a call.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthToken(Box<str>);

/// The text is no authentication token. It is not shown, for it may be one with a mistake in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAuthToken {
    /// Empty or too long.
    #[error("the authentication token (redacted) has {0} characters; 1 to 36 are expected")]
    Length(usize),
    /// A character that has a meaning in a URL, or none in a token.
    #[error(
        "the authentication token (redacted) has an invalid character at position {0}; A-Z a-z 0-9 . _ ~ + / = - are allowed"
    )]
    Character(usize),
    /// It would change the path that it stands in.
    #[error("the authentication token (redacted) holds a path segment `..`, `.`, `method` or `api-version`")]
    Path,
}

impl AuthToken {
    /// As a part of a URL's query.
    pub(in crate::host) fn encoded(&self) -> String {
        utf8_percent_encode(&self.0, SEGMENT).to_string()
    }

    pub(in crate::host) fn secret(&self) -> &str {
        &self.0
    }
}

impl FromStr for AuthToken {
    type Err = InvalidAuthToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let length = text.chars().count();
        if !(1..=36).contains(&length) {
            return Err(InvalidAuthToken::Length(length));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._~+/=-".contains(c);
        if let Some(at) = text.chars().position(|c| !allowed(c)) {
            return Err(InvalidAuthToken::Character(at + 1));
        }
        // Base64 has slashes, and the host decodes before it reads the path: such a token could otherwise turn a publish into
        // another call. No base64 text has these segments by chance worth mentioning.
        if text.split('/').any(|segment| matches!(segment, "." | ".." | "method" | "api-version")) {
            return Err(InvalidAuthToken::Path);
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Debug for AuthToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthToken(redacted)")
    }
}

/// A virtual network's id: a UUID, optionally with the prefix `Swift_`. The text is sent as it came.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct VnetId(NcId);

impl FromStr for VnetId {
    type Err = NotAUuid;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        uuid(text, "virtual network id").map(Self)
    }
}

impl fmt::Display for VnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for VnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The text is no id that NMAgent could know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a {what}: a UUID is expected, optionally prefixed `Swift_`")]
pub struct NotAUuid {
    given: String,
    what: &'static str,
}

/// A UUID with its optional prefix. The synthetic id of node subnet mode is an `NcId`, but nothing that NMAgent knows.
fn uuid(text: &str, what: &'static str) -> Result<NcId, NotAUuid> {
    text.parse::<NcId>()
        .ok()
        .filter(|id| id.canonical() != NODE_SUBNET_NC_ID)
        .ok_or_else(|| NotAUuid { given: shown(text), what })
}

/// Which network container is published or unpublished, at which interface, and by which right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishTarget {
    /// The primary address of the host's interface.
    pub interface: IpAddr,
    /// The network container.
    pub nc: NcId,
    /// DNC's right to do so.
    pub token: AuthToken,
}

/// A `CreateNetworkContainerURL` or `DeleteNetworkContainerURL` that names no target. Says which part is bad.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPublishTarget {
    /// No `type` in the query.
    #[error("the URL has no query parameter `type`")]
    NoType,
    /// The path in `type` lacks a part.
    #[error(
        "`{missing}` is missing in the URL's parameter `type`: NetworkManagement/interfaces/<IP>/networkContainers/<id>/authenticationToken/<token>/api-version/1 is expected"
    )]
    Form {
        /// The part.
        missing: &'static str,
    },
    /// The interface.
    #[error("the interface in the URL is not valid: {0}")]
    Interface(NotAnAddress),
    /// The id.
    #[error("the network container in the URL is not valid: {0}")]
    NetworkContainer(#[from] NotAUuid),
    /// The token.
    #[error(transparent)]
    Token(#[from] InvalidAuthToken),
}

const NC: &str = "network container id";

impl PublishTarget {
    /// From parts, e.g. of a request that has them apart. The node subnet's synthetic id is refused.
    pub fn new(interface: IpAddr, nc: &NcId, token: AuthToken) -> Result<Self, NotAUuid> {
        Ok(Self { interface, nc: uuid(nc.as_str(), NC)?, token })
    }

    /// From the URL that a legacy caller sends. Only its query parameter `type` counts; host and path are ignored, as the reference
    /// ignores them (spec/rest-contract.md §6.17). What stands before and after the pattern is ignored, too, and does not get into the
    /// URL that is made of it.
    pub fn from_url(url: &str) -> Result<Self, InvalidPublishTarget> {
        let query = url.split_once('?').map_or("", |(_, query)| query);
        // A fragment is never sent.
        let query = query.split_once('#').map_or(query, |(query, _)| query);
        let kind = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("type="))
            .ok_or(InvalidPublishTarget::NoType)?
            .replace('+', " ");
        let kind = percent_decode_str(&kind).decode_utf8_lossy();
        let after = |text: &'_ str, missing: &'static str| -> Result<(usize, usize), InvalidPublishTarget> {
            text.find(missing)
                .map(|at| (at, at + missing.len()))
                .ok_or(InvalidPublishTarget::Form { missing: missing.trim_matches('/') })
        };
        let (_, end) = after(&kind, "NetworkManagement/interfaces/")?;
        let rest = &kind[end..];
        let (at, end) = after(rest, "/networkContainers/")?;
        let (interface, rest) = (&rest[..at], &rest[end..]);
        let (at, end) = after(rest, "/authenticationToken/")?;
        let (nc, rest) = (&rest[..at], &rest[end..]);
        // The reference's pattern is greedy; a token may hold slashes.
        let version = "/api-version/1";
        let at = rest.rfind(version).ok_or(InvalidPublishTarget::Form { missing: "api-version/1" })?;
        let token = &rest[..at];
        let interface = parse_ip(interface)
            .map_err(|_| InvalidPublishTarget::Interface(NotAnAddress { given: shown(interface) }))?;
        let nc = uuid(nc, NC)?;
        // A `+` that was not encoded has become a space. No token has a space, so a `+` it was.
        Ok(Self { interface, nc, token: token.replace(' ', "+").parse()? })
    }

    /// The value of the proxy's parameter `type`, encoded.
    pub(super) fn kind(&self) -> String {
        let interface = self.interface.to_string();
        format!(
            "NetworkManagement/interfaces/{}/networkContainers/{}/authenticationToken/{}/api-version/1",
            utf8_percent_encode(&interface, SEGMENT),
            self.nc,
            self.token.encoded()
        )
    }
}

#[cfg(test)]
mod tests;
