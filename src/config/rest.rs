//! Where the REST API of the legacy clients is served.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use serde::{Serialize, Serializer};

use crate::host::keyvault::KeyVaultConfig;

/// The port that legacy clients know.
pub const DEFAULT_PORT: u16 = 10_090;

/// The listeners of the REST API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestListeners {
    /// All routes, cleartext HTTP/1.1.
    pub main: RestAddress,
    /// The routes of node-local clients; only where the main address was not given.
    pub local: Option<SocketAddr>,
    /// All routes, with TLS, beside the main listener.
    pub tls: Option<RestTls>,
}

/// The main listener's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestAddress {
    /// A TCP address. The unspecified IPv6 address means all interfaces, of both families.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for RestAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl Serialize for RestAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The TLS listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestTls {
    /// The main listener's host, another port.
    pub address: SocketAddr,
    /// Where the certificate and its key come from.
    pub source: TlsSource,
    /// The oldest version spoken.
    pub min_version: TlsVersion,
    /// Whether clients need a certificate.
    pub client_auth: bool,
    /// Authorities whose clients are trusted; without it, those that came with a certificate of Key Vault, else whoever presents the
    /// served certificate itself.
    pub client_ca: Option<PathBuf>,
    /// The name that a client's certificate must bear: a DNS name, else the common name, in any case.
    pub client_subject: Option<String>,
}

/// Where a listener's certificate comes from (spec/security.md §2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum TlsSource {
    /// PEM: the certificate, its authorities, and its key. Read again when it changes.
    File(PathBuf),
    /// Key Vault.
    KeyVault {
        /// Which certificate, and who reads it.
        vault: KeyVaultConfig,
        /// How often it is fetched again.
        #[serde(serialize_with = "super::seconds")]
        refresh: Duration,
    },
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TlsVersion {
    /// `TLS 1.2`
    #[serde(rename = "TLS 1.2")]
    Tls12,
    /// `TLS 1.3`
    #[serde(rename = "TLS 1.3")]
    Tls13,
}

/// What a listening address looks like, for an error.
const ADDRESS_FORM: &str =
    "an address and a port are expected, such as 127.0.0.1:10090, [::1]:10090, or :10090 for all interfaces";

/// Reads an address to listen on, as Go does: without a host it is all interfaces. Names are not looked up, but `localhost`.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return if address.port() == 0 {
            Err("a port from 1 to 65535 is expected".into())
        } else {
            Ok(address)
        };
    }
    let Some((host, port)) = text.rsplit_once(':') else { return Err(ADDRESS_FORM.into()) };
    let port = match port.parse::<u16>() {
        Ok(port) if port != 0 => port,
        _ => return Err("a port from 1 to 65535 is expected".into()),
    };
    match host {
        "" => Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
        _ if host.eq_ignore_ascii_case("localhost") => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        _ => Err(ADDRESS_FORM.into()),
    }
}

/// Why a text is no URL of a listener.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestUrlError {
    /// The scheme is the network.
    #[error("the scheme names the network, tcp or unix; tcp://{0} is meant?")]
    Http(String),
    /// Neither.
    #[error("tcp://ADDRESS:PORT or unix:///PATH is expected")]
    Scheme,
    /// A path behind an address.
    #[error("a tcp URL has no path; {0} is meant?")]
    Path(String),
    /// Not an address.
    #[error("{0}")]
    Address(String),
    /// A unix socket that depends on where the daemon was started.
    #[error("a unix socket has an absolute path, as in unix:///run/azure-cns/rest.sock")]
    Relative,
}

impl FromStr for RestAddress {
    type Err = RestUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((scheme, rest)) = text.split_once("://") else { return Err(RestUrlError::Scheme) };
        match scheme.to_ascii_lowercase().as_str() {
            "tcp" => {
                if let Some((address, _)) = rest.split_once(['/', '?', '#']) {
                    return Err(RestUrlError::Path(format!("tcp://{address}")));
                }
                listen_address(rest).map(Self::Tcp).map_err(RestUrlError::Address)
            }
            "unix" if rest.starts_with('/') && rest.len() > 1 => Ok(Self::Unix(rest.into())),
            "unix" => Err(RestUrlError::Relative),
            "http" | "https" => {
                let address = rest.split_once('/').map_or(rest, |(address, _)| address);
                Err(RestUrlError::Http(address.to_owned()))
            }
            _ => Err(RestUrlError::Scheme),
        }
    }
}

impl RestListeners {
    /// What the reference does without `-c`: the primary address, and a local listener.
    pub(super) fn of_machine(primary: IpAddr, port: u16) -> Self {
        Self {
            main: RestAddress::Tcp((primary, port).into()),
            local: Some((Ipv4Addr::LOCALHOST, port).into()),
            tls: None,
        }
    }

    /// What it does with `-c`.
    pub(super) fn at(main: RestAddress) -> Self {
        Self { main, local: None, tls: None }
    }
}

/// The address with which this machine reaches the world: that of the default route's interface. Nothing is sent.
pub(super) fn primary_address() -> Option<IpAddr> {
    // Documentation addresses: nobody has a route of their own to them.
    let worlds: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    ];
    worlds.into_iter().find_map(|(any, world)| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((world, 9)).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_unspecified() && !address.is_loopback()).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_go_reads_them() {
        for (text, meant) in [
            ("tcp://127.0.0.1:10090", "tcp://127.0.0.1:10090"),
            ("TCP://[::1]:10090", "tcp://[::1]:10090"),
            ("tcp://:10090", "tcp://[::]:10090"),
            ("tcp://localhost:1", "tcp://127.0.0.1:1"),
            ("unix:///run/x/y.sock", "unix:///run/x/y.sock"),
        ] {
            assert_eq!(text.parse::<RestAddress>().unwrap().to_string(), meant, "{text}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_listened_at_says_what_is_meant() {
        for (text, expected) in [
            ("http://127.0.0.1:10090/x", "tcp://127.0.0.1:10090 is meant?"),
            ("https://127.0.0.1:10090", "tcp://127.0.0.1:10090 is meant?"),
            ("tcp://127.0.0.1:10090/", "no path; tcp://127.0.0.1:10090 is meant?"),
            ("tcp://127.0.0.1", "an address and a port"),
            ("tcp://127.0.0.1:0", "from 1 to 65535"),
            ("tcp://127.0.0.1:99999", "from 1 to 65535"),
            ("tcp://::1:10090", "an address and a port"),
            ("tcp://node-1:10090", "an address and a port"),
            ("unix://run/x", "absolute path"),
            ("unix:///", "absolute path"),
            ("udp://127.0.0.1:1", "tcp://ADDRESS:PORT or unix"),
            ("127.0.0.1:10090", "tcp://ADDRESS:PORT or unix"),
        ] {
            let error = text.parse::<RestAddress>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
