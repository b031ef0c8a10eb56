//! Server-side TLS whose certificate can change while it serves.
//!
//! What a listener needs is one [`rustls::ServerConfig`]; a [`Server`] holds the current one, and each new connection takes it.
//! A change replaces it whole: certificate, key and whom it trusts belong together, and sessions of the earlier one cannot be
//! resumed past a changed trust. Connections that are open go on. A change that cannot be used leaves everything as it was and is
//! reported (spec/security.md §8 rows 4 and 5: the reference serves the leaf only, never reads the file again, and ends when a
//! refresh fails).

mod clients;
mod identity;
mod refresh;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{ServerConfig, SupportedProtocolVersion, crypto::CryptoProvider, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use self::clients::{Clients, Trust};
pub use self::{
    identity::{Identity, IdentityError},
    refresh::{Fetch, Pace, Refreshing},
};

/// How often files are looked at. Kubernetes replaces a mounted secret by turning a link, editors replace files, others write in
/// place: reading a few kilobytes sees all of it.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long a handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Larger files are no certificates.
const LARGEST_FILE: u64 = 1 << 20;

/// Why TLS cannot be served with what was given.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What a file holds is no identity.
    #[error("{path}: {source}", path = path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: IdentityError,
    },
    /// A file of authorities without one that can be used.
    #[error("{path}: {why}; PEM blocks CERTIFICATE of the authorities that sign clients' certificates are expected", path = path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The TLS library takes no such combination.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
    /// The client verifier takes no such authorities.
    #[error("clients cannot be verified: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// The oldest version that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oldest {
    /// TLS 1.2 and 1.3.
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

impl Oldest {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        use rustls::version::{TLS12, TLS13};

        static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        static NEW: [&SupportedProtocolVersion; 1] = [&TLS13];
        match self {
            Self::Tls12 => &BOTH,
            Self::Tls13 => &NEW,
        }
    }
}

/// What stays the same whatever the certificate.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Oldest version.
    pub oldest: Oldest,
    /// Protocols offered by ALPN, the preferred first.
    pub protocols: &'static [&'static str],
    /// Whether clients must show a certificate, and which.
    pub clients: Option<ClientTerms>,
}

/// Whom a listener with mutual TLS lets in.
#[derive(Clone, Debug, Default)]
pub struct ClientTerms {
    /// PEM of the authorities that sign clients' certificates. Without it, the authorities that came with the served certificate
    /// if `trust_served_chain`, else the holder of the served certificate itself (spec/security.md §2).
    pub authorities: Option<PathBuf>,
    /// The authorities of the served chain sign clients, too: so it is with certificates of Key Vault.
    pub trust_served_chain: bool,
    /// A name that the client's certificate must bear.
    pub subject: Option<String>,
}

/// Where the certificate comes from.
#[derive(Clone, Debug)]
pub struct Files {
    /// PEM: the certificate, the authorities between it and a root, and the key.
    pub identity: PathBuf,
    /// The key, where it has a file of its own.
    pub key: Option<PathBuf>,
}

/// What the files hold, to see that it changed.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    identity: Vec<u8>,
    key: Option<Vec<u8>>,
    authorities: Option<Vec<u8>>,
}

/// How the certificate is, for those who ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateState {
    /// Its subject.
    pub subject: String,
    /// End of its validity, seconds since 1970.
    pub not_after: i64,
    /// Why what came after it is not used; `None` if nothing did.
    pub refused: Option<String>,
}

/// A TLS server: the configuration that the next connection gets.
pub struct Server {
    terms: Terms,
    provider: Arc<CryptoProvider>,
    config: ArcSwap<ServerConfig>,
    state: ArcSwap<CertificateState>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("terms", &self.terms)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// With this identity.
    pub fn new(terms: Terms, identity: &Identity) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = read_authorities(&terms)?;
        let config = configure(&terms, &provider, identity, authorities.as_deref())?;
        let state = state_of(identity);
        Ok(Self {
            terms,
            provider,
            config: ArcSwap::from_pointee(config),
            state: ArcSwap::from_pointee(state),
        })
    }

    /// Shakes hands with a client that connected from `from`. `None` if that failed or took too long, which is told here.
    pub async fn accept<S>(&self, stream: S, from: &str) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        let why = match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            // Who connects and says nothing is a probe of the port, and no news.
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                tracing::debug!(from, %error, "a client left without a TLS handshake");
                return None;
            }
            Ok(Err(error)) => failure(&error),
            Err(_) => "it took too long".into(),
        };
        tracing::info!(from, why, "a TLS handshake failed");
        None
    }

    /// Whether clients must show a certificate.
    pub fn wants_certificates(&self) -> bool {
        self.terms.clients.is_some()
    }

    /// How the certificate is.
    pub fn state(&self) -> Arc<CertificateState> {
        self.state.load_full()
    }

    /// Serves another identity from the next connection on. If that cannot be, the earlier one stays.
    pub fn replace(&self, identity: &Identity) -> Result<(), TlsError> {
        let authorities = read_authorities(&self.terms)?;
        self.install(identity, authorities.as_deref())
    }

    fn install(&self, identity: &Identity, authorities: Option<&[u8]>) -> Result<(), TlsError> {
        self.config.store(Arc::new(configure(&self.terms, &self.provider, identity, authorities)?));
        self.state.store(Arc::new(state_of(identity)));
        Ok(())
    }

    /// Says that what was to follow cannot be used.
    pub fn refuse(&self, why: String) {
        let state = CertificateState { refused: Some(why), ..CertificateState::clone(&self.state.load()) };
        self.state.store(Arc::new(state));
    }
}

/// Why a handshake failed, in words. The TLS library shows what our own checks say in its debugging form.
fn failure(error: &io::Error) -> String {
    use rustls::{CertificateError, Error};

    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::InvalidCertificate(CertificateError::Other(why))) => {
            format!("the client's certificate is refused: {}", why.0)
        }
        _ => error.to_string(),
    }
}

fn state_of(identity: &Identity) -> CertificateState {
    CertificateState { subject: identity.subject.clone(), not_after: identity.not_after, refused: None }
}

fn configure(
    terms: &Terms,
    provider: &Arc<CryptoProvider>,
    identity: &Identity,
    authorities: Option<&[u8]>,
) -> Result<ServerConfig, TlsError> {
    let versions = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(terms.oldest.versions())?;
    let builder = match &terms.clients {
        None => versions.with_no_client_auth(),
        Some(clients) => {
            let verifier = |certificates: Vec<CertificateDer<'static>>, path: &Path| {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in certificates {
                    roots.add(certificate).map_err(|error| TlsError::Authorities {
                        path: path.to_owned(),
                        why: error.to_string(),
                    })?;
                }
                Ok::<_, TlsError>(
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?,
                )
            };
            let trust = match (&clients.authorities, authorities) {
                (Some(path), Some(pem)) => Trust::Authorities(verifier(authorities_of(path, pem)?, path)?),
                _ if clients.trust_served_chain && !identity.authorities.is_empty() => {
                    Trust::Authorities(verifier(identity.authorities.clone(), Path::new("the served chain"))?)
                }
                _ => Trust::Exactly(identity.chain.first().cloned()),
            };
            let verifier = Clients::new(trust, clients.subject.clone(), provider.clone());
            versions.with_client_cert_verifier(Arc::new(verifier))
        }
    };
    let mut config = builder.with_single_cert(identity.chain.clone(), identity.key.clone_key())?;
    config.alpn_protocols = terms.protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(config)
}

fn read_authorities(terms: &Terms) -> Result<Option<Vec<u8>>, TlsError> {
    terms.clients.as_ref().and_then(|clients| clients.authorities.as_deref()).map(read).transpose()
}

fn authorities_of(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why| TlsError::Authorities { path: path.to_owned(), why };
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(error.to_string()))?;
    if certificates.is_empty() { Err(wrong("it has no certificate".into())) } else { Ok(certificates) }
}

/// Reads a file that is small.
fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read as _;

    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .map_err(failed)?
        .take(LARGEST_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(failed(io::Error::other(format!("larger than {LARGEST_FILE} bytes"))));
    }
    Ok(bytes)
}

impl Files {
    fn read(&self, terms: &Terms) -> Result<Contents, TlsError> {
        Ok(Contents {
            identity: read(&self.identity)?,
            key: self.key.as_deref().map(read).transpose()?,
            authorities: read_authorities(terms)?,
        })
    }

    fn parse(&self, contents: &Contents) -> Result<Identity, TlsError> {
        let key = contents.key.as_ref().unwrap_or(&contents.identity);
        Identity::from_pem(&contents.identity, key).map_err(|source| {
            let is_of_key = self.key.is_some() && source.is_about_the_key();
            let path = self.key.clone().filter(|_| is_of_key).unwrap_or_else(|| self.identity.clone());
            TlsError::Identity { path, source }
        })
    }

    /// A server of what these files hold. [`Following::run`] keeps it so.
    pub fn serve(self, terms: Terms) -> Result<(Arc<Server>, Following), TlsError> {
        let contents = self.read(&terms)?;
        let identity = self.parse(&contents)?;
        warn_if_open(self.key.as_ref().unwrap_or(&self.identity));
        let server = Arc::new(Server::new(terms, &identity)?);
        tell(&server, "serving TLS");
        Ok((server.clone(), Following { files: self, server, contents, failed: None }))
    }
}

fn tell(server: &Server, what: &str) {
    let state = server.state();
    let ends = jiff::Timestamp::from_second(state.not_after).map(|end| end.to_string()).unwrap_or_default();
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
    if state.not_after <= now {
        tracing::error!(
            subject = state.subject,
            not_after = ends,
            "{what}, with a certificate that is no longer valid"
        );
    } else {
        tracing::info!(subject = state.subject, not_after = ends, "{what}");
    }
}

/// The key is what others must not read.
fn warn_if_open(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;

    let mode = std::fs::metadata(path).map(|found| found.permissions().mode() & 0o777).unwrap_or_default();
    if mode & 0o007 != 0 {
        let mode = format!("{mode:o}");
        tracing::warn!(path = %path.display(), mode, "the key can be read by every user of this machine; chmod 600 is meant?");
    }
}

/// Keeps a server's certificate what its files hold.
#[derive(Debug)]
pub struct Following {
    files: Files,
    server: Arc<Server>,
    contents: Contents,
    /// What could not be used, so that it is told once.
    failed: Option<String>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Contents(..)")
    }
}

impl Following {
    /// Looks at the files again and again until told to stop. `on_change` is called first and after each change, also of what is
    /// wrong.
    pub async fn run(self, on_change: impl Fn(&CertificateState) + Send, stop: CancellationToken) {
        let mut following = self;
        on_change(&following.server.state());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            // Reading may block, on a network file system for long.
            let looked = tokio::task::spawn_blocking(move || {
                let changed = following.look();
                (following, changed)
            });
            let Ok((back, changed)) = looked.await else { return };
            following = back;
            if changed {
                on_change(&following.server.state());
            }
        }
    }

    /// Takes over what the files hold now; whether something changed.
    fn look(&mut self) -> bool {
        let taken = self.files.read(&self.server.terms).and_then(|contents| {
            if contents == self.contents {
                return Ok(None);
            }
            let identity = self.files.parse(&contents)?;
            self.server.install(&identity, contents.authorities.as_deref())?;
            Ok(Some(contents))
        });
        match taken {
            Ok(Some(contents)) => {
                self.contents = contents;
                self.failed = None;
                tell(&self.server, "the TLS certificate changed");
                true
            }
            Ok(None) if self.failed.take().is_some() => {
                self.server
                    .state
                    .rcu(|state| CertificateState { refused: None, ..CertificateState::clone(state) });
                tracing::info!("the TLS files are as they were before");
                true
            }
            Ok(None) => false,
            Err(error) => {
                let why = error.to_string();
                if self.failed.as_ref() == Some(&why) {
                    return false;
                }
                tracing::error!(
                    error = why,
                    "the TLS files changed and cannot be used; the earlier certificate goes on being served"
                );
                self.server.refuse(why.clone());
                self.failed = Some(why);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests;
