//! Where an agent is.

use std::{fmt, net::Ipv6Addr, str::FromStr};

/// The address that a client's targets are appended to: `host`, `host:port`, an IPv6 address with or without brackets, each with
/// or without `http://` or `https://`, and with a path if the agent has one. Without a scheme it is HTTP.
///
/// The reference takes `WireserverIP` verbatim in one place and parses it in another, and breaks IPv6 addresses at their first colon
/// (spec/host-agents.md §2, §6.1). Here one text means one thing. Displays without a default port.
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl {
    https: bool,
    /// With brackets where it is an IPv6 address.
    host: String,
    port: u16,
    /// Empty, or begins with `/` and does not end so.
    path: String,
}

/// The text is no address of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is not an agent's address: {why}; give host, host:port or a URL, e.g. 168.63.129.16 or http://[fd00::1]:8080"
)]
pub struct InvalidBaseUrl {
    given: String,
    why: &'static str,
}

impl BaseUrl {
    /// Whether it is reached by TLS.
    pub fn is_https(&self) -> bool {
        self.https
    }

    /// The host without a port; an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, the scheme's own if none was given.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same without its path: what is left of a `WireserverIP` that was given as a URL (spec/host-agents.md §2).
    #[must_use]
    pub fn origin(&self) -> Self {
        Self { path: String::new(), ..self.clone() }
    }

    /// Whether only this machine can be reached there.
    pub fn is_loopback(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        self.host == "localhost"
            || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The URL of a target, which is a path with its query.
    pub(super) fn uri(&self, target: &str) -> String {
        format!("{self}{target}")
    }

    fn default_port(https: bool) -> u16 {
        if https { 443 } else { 80 }
    }
}

impl FromStr for BaseUrl {
    type Err = InvalidBaseUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |why| InvalidBaseUrl {
            // Userinfo may hold a password.
            given: text.rsplit_once('@').map_or(text, |(_, rest)| rest).chars().take(128).collect(),
            why,
        };
        let (https, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some(_) => return Err(invalid("its scheme is neither http nor https")),
            None => (false, text),
        };
        if rest.contains(|c: char| {
            c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '@' | '\\' | '%')
        }) {
            return Err(invalid("white space, `?`, `#`, `@`, `\\` and `%` are not allowed"));
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
            let (address, after) = bracketed.split_once(']').ok_or(invalid("`]` is missing"))?;
            let address: Ipv6Addr = address.parse().map_err(|_| invalid("no IPv6 address is in brackets"))?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err(invalid("`:` and a port are expected after `]`")),
            };
            (format!("[{address}]"), port)
        } else if let Ok(address) = authority.parse::<Ipv6Addr>() {
            (format!("[{address}]"), None)
        } else {
            match authority.split_once(':') {
                Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
                None => (authority.to_ascii_lowercase(), None),
            }
        };
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        let bracketed = host.starts_with('[');
        if !bracketed && !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
            return Err(invalid("the host is no name and no address"));
        }
        let port = match port {
            None => Self::default_port(https),
            Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
                port.parse().ok().filter(|port| *port != 0).ok_or(invalid("the port is not 1 to 65535"))?
            }
            Some(_) => return Err(invalid("the port is not a number")),
        };
        if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:".contains(&b)) {
            return Err(invalid("its path has characters that a URL's path cannot have"));
        }
        Ok(Self { https, host, port, path: path.trim_end_matches('/').to_owned() })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port != Self::default_port(self.https) {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path)
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for BaseUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<std::net::SocketAddr> for BaseUrl {
    /// HTTP at a socket's address.
    fn from(address: std::net::SocketAddr) -> Self {
        let host = match address.ip() {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Self { https: false, host, port: address.port(), path: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_parses_is_a_url_and_means_itself(
            text in "(https?://)?(\\[|[a-z0-9.:_-]{0,12}|fd00::1|10\\.0\\.0\\.4)\\]?(:[0-9]{0,6})?(/[ -~]{0,9})?|.{0,20}",
        ) {
            if let Ok(base) = text.parse::<BaseUrl>() {
                let uri: ::http::Uri = base.uri("/a?b=c").parse().unwrap();
                prop_assert_eq!(uri.query(), Some("b=c"));
                prop_assert_eq!(uri.host(), Some(base.host()));
                prop_assert_eq!(base.to_string().parse::<BaseUrl>().unwrap(), base);
            }
        }
    }

    #[test]
    fn every_spelling_of_an_address_means_one_thing() {
        for (given, expected) in [
            ("168.63.129.16", "http://168.63.129.16"),
            ("168.63.129.16:80", "http://168.63.129.16"),
            ("http://168.63.129.16/", "http://168.63.129.16"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("fd00::1", "http://[fd00::1]"),
            ("[FD00:0::1]:81", "http://[fd00::1]:81"),
            ("http://[fd00::1]", "http://[fd00::1]"),
            ("HTTPS://Vault.Azure.Net:443", "https://vault.azure.net"),
            ("https://dnc.local/base/", "https://dnc.local/base"),
        ] {
            let parsed: BaseUrl = given.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.to_string(), expected, "{given}");
        }
        let dnc: BaseUrl = "https://dnc.local:8443/base".parse().unwrap();
        assert_eq!(dnc.uri("/networks/x?a=b"), "https://dnc.local:8443/base/networks/x?a=b");
        assert_eq!(dnc.origin().to_string(), "https://dnc.local:8443");
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_reason() {
        for bad in [
            "",
            "http://",
            "ftp://h",
            "h:0",
            "h:65536",
            "h:port",
            "[fd00::1",
            "[fd00::1]x",
            "[10.0.0.1]",
            "h?x=y",
            "h#x",
            "h%41",
            "a b",
            "h\r\nX: y",
            "user:secret@h",
            "ho$t",
            "h/\u{e9}",
            "h/<",
            "h/{x}",
            "h\\x",
        ] {
            let error = bad.parse::<BaseUrl>().unwrap_err().to_string();
            assert!(error.contains("is not an agent's address"), "{bad:?}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn loopback_is_known_by_address_and_name() {
        for (text, loopback) in
            [("127.0.0.9:1", true), ("[::1]:1", true), ("localhost", true), ("10.0.0.4", false)]
        {
            assert_eq!(text.parse::<BaseUrl>().unwrap().is_loopback(), loopback, "{text}");
        }
    }
}
