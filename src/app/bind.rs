//! Binds what the configuration wants: everything that can be refused is refused before anything serves.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tokio::net::TcpListener;

use super::{
    AppError,
    certificate::{self, Keeping},
    listeners::{SocketFile, UnixSocket},
};
use crate::{
    config::{Config, RestAddress, TlsSource, TlsVersion},
    gateway,
    host::keyvault::KeyVault,
    tls,
};

/// A bound listener of the gateway.
#[derive(Debug)]
pub(super) struct RestListener {
    pub(super) at: String,
    pub(super) listener: gateway::listen::Listener,
    pub(super) kind: gateway::listen::Kind,
    /// Removed in the end.
    pub(super) file: Option<SocketFile>,
}

/// Binds what the configuration wants of the gateway.
pub(super) async fn rest(
    config: &Config,
    vault: Option<KeyVault>,
    certificates: &mut Vec<(&'static str, Keeping)>,
) -> Result<Vec<RestListener>, AppError> {
    use gateway::listen::{Kind, Listener};

    let Some(wanted) = &config.rest else { return Ok(Vec::new()) };
    let (listener, file) = match &wanted.main {
        RestAddress::Tcp(address) => (Listener::Tcp(bind_tcp("--cns-url", *address).await?), None),
        RestAddress::Unix(path) => {
            let (listener, file) = UnixSocket::bind("--cns-url", path)?.into_parts();
            (Listener::Unix(listener), Some(file))
        }
    };
    let mut bound = vec![RestListener { at: wanted.main.to_string(), listener, kind: Kind::Main, file }];
    if let Some(address) = wanted.local {
        let listener = Listener::Tcp(bind_tcp("the local REST listener", address).await?);
        bound.push(RestListener { at: address.to_string(), listener, kind: Kind::Local, file: None });
    }
    if let Some(wanted) = &wanted.tls {
        let terms = tls::Terms {
            oldest: match wanted.min_version {
                TlsVersion::Tls12 => tls::Oldest::Tls12,
                TlsVersion::Tls13 => tls::Oldest::Tls13,
            },
            protocols: &["h2", "http/1.1"],
            clients: wanted.client_auth.then(|| tls::ClientTerms {
                authorities: wanted.client_ca.clone(),
                // So it is with certificates of Key Vault; a file's chain is no list of clients' authorities.
                trust_served_chain: matches!(wanted.source, TlsSource::KeyVault { .. }),
                subject: wanted.client_subject.clone(),
            }),
        };
        let (server, keeping) = certificate::serve(config, &wanted.source, terms, vault).await?;
        certificates.push(("rest", keeping));
        let listener = Listener::Tls(bind_tcp("TLSPort", wanted.address).await?, server);
        let at = format!("{} with TLS", wanted.address);
        bound.push(RestListener { at, listener, kind: Kind::Main, file: None });
    }
    Ok(bound)
}

/// Binds an address. The unspecified IPv6 address stands for all interfaces, also where there is no IPv6.
pub(super) async fn bind_tcp(what: &'static str, address: SocketAddr) -> Result<TcpListener, AppError> {
    let mut bound = TcpListener::bind(address).await;
    let no_ipv6 = bound.as_ref().is_err_and(|error| {
        let code = error.raw_os_error();
        code == Some(nix::libc::EAFNOSUPPORT) || code == Some(nix::libc::EADDRNOTAVAIL)
    });
    if no_ipv6 && address.is_ipv6() && address.ip().is_unspecified() {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
    }
    bound.map_err(|source| AppError::Listen {
        what,
        at: address.to_string(),
        remedy: if source.kind() == std::io::ErrorKind::AddrInUse { "; choose another port" } else { "" },
        source,
    })
}

pub(super) fn grpc_tls(
    config: &Config,
    certificates: &mut Vec<(&'static str, Keeping)>,
) -> Result<Option<Arc<tls::Server>>, AppError> {
    let Some(wanted) = &config.tls else { return Ok(None) };
    let terms = tls::Terms {
        oldest: tls::Oldest::Tls12,
        protocols: &["h2"],
        clients: Some(tls::ClientTerms {
            authorities: Some(wanted.client_ca.clone()),
            ..tls::ClientTerms::default()
        }),
    };
    let files = tls::Files { identity: wanted.cert.clone(), key: Some(wanted.key.clone()) };
    let (server, following) = files
        .serve(terms)
        .map_err(|source| AppError::Tls { what: "--tls-cert, --tls-key, --tls-client-ca", source })?;
    certificates.push(("grpc", Keeping::Files(following)));
    Ok(Some(server))
}
