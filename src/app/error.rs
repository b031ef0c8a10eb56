//! Why the daemon cannot start or go on.

use crate::{
    config::ChannelMode,
    host::{http::ClientError, keyvault::KeyVaultError},
    ledger::LedgerError,
    sources::managed::NotRegistered,
    store::StoreError,
    tls::TlsError,
};

/// Why the daemon cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ledger.
    #[error("the ledger cannot start: {0}")]
    Ledger(#[from] LedgerError),
    /// A listener.
    #[error("{what} {at}: {source}{remedy}")]
    Listen {
        /// Which flag.
        what: &'static str,
        /// Its value.
        at: String,
        /// What the kernel says.
        source: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// TLS of a listener.
    #[error("{what}: {source}")]
    Tls {
        /// Which setting asks for it.
        what: &'static str,
        /// What is wrong.
        source: TlsError,
    },
    /// The certificate in Key Vault.
    #[error("UseHTTPS: the certificate cannot be fetched: {0}")]
    KeyVault(KeyVaultError),
    /// The gRPC server.
    #[error("gRPC: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// Reflection's descriptors.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// Files of an earlier implementation that cannot be read.
    #[error(
        "the reference's state cannot be imported: {0}; with --import-legacy an empty directory, the start is without it"
    )]
    Import(String),
    /// A channel mode that is not part of this version.
    #[error("ChannelMode {0} is not part of this version")]
    Mode(ChannelMode),
    /// DNC, which a Managed node belongs to.
    #[error("ChannelMode Managed: {0}")]
    NotRegistered(#[from] NotRegistered),
    /// A client of an agent of the machine.
    #[error("{0}")]
    Agent(#[from] ClientError),
    /// Packet rules.
    #[error("--masquerade: {0}; run with --masquerade=false to do without")]
    Masquerade(String),
    /// Without signals there is no orderly stop.
    #[error("the handlers of SIGTERM and SIGINT cannot be installed: {0}")]
    Signals(std::io::Error),
    /// A part ended that must not.
    #[error("{0} ended unexpectedly; this is a bug, the daemon stops so that it can be started anew")]
    PartEnded(&'static str),
}
