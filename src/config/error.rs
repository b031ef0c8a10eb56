//! What is wrong with what the daemon was told.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use super::ChannelMode;
use crate::{host::keyvault::KeyVaultConfigError, pool::static_cidr::StaticNcError};

/// Why the daemon cannot start as told.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file itself.
    #[error("{file}: {why}", file = file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A value in the file.
    #[error("{key} {given} (in {file}): {allowed}", file = file.display())]
    InFile {
        /// The key, with those that it is in.
        key: String,
        /// As given.
        given: String,
        /// Where.
        file: PathBuf,
        /// What is allowed.
        allowed: String,
    },
    /// A value of a flag, of the environment, or of several keys taken together.
    #[error("{key} {given}: {allowed}")]
    Value {
        /// The flag, the variable or the key.
        key: String,
        /// As given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// A channel mode that this version cannot run.
    #[error(
        "{key} {mode}: this version runs {}; {mode} is not part of it yet",
        ChannelMode::ALL.into_iter().filter(|mode| mode.is_supported()).map(ChannelMode::as_str).collect::<Vec<_>>().join(", ")
    )]
    Mode {
        /// What said so, and where.
        key: String,
        /// The mode.
        mode: ChannelMode,
    },
    /// Networks in a mode that has none.
    #[error(
        "{cidrs}: static networks exist only in ChannelMode Standalone, but {mode_key} says {mode}; \
         take one of them away"
    )]
    NetworksWithoutStandalone {
        /// What gave the networks.
        cidrs: String,
        /// What gave the mode.
        mode_key: String,
        /// The mode.
        mode: ChannelMode,
    },
    /// A network that cannot be.
    #[error("{key} {given}: {source}")]
    Cidr {
        /// The flag or key.
        key: String,
        /// As given.
        given: String,
        /// What is wrong.
        source: StaticNcError,
    },
    /// Two networks share addresses.
    #[error("{key}: {first} and {second} overlap; an address can belong to one network container only")]
    Overlap {
        /// The flag or key.
        key: String,
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// The listener would be open to the network.
    #[error(
        "--grpc-bind-address {address}: an address other than loopback needs --tls-cert, --tls-key and --tls-client-ca; \
         without them anyone on the network could give and take addresses"
    )]
    OpenListener {
        /// As given.
        address: SocketAddr,
    },
    /// Half of TLS.
    #[error("--tls-cert, --tls-key and --tls-client-ca go together; {missing} is missing")]
    HalfTls {
        /// Which.
        missing: &'static str,
    },
    /// TLS without a listener to use it.
    #[error("--tls-cert needs --grpc-bind-address: the unix socket knows its callers without certificates")]
    TlsWithoutListener,
    /// A certificate in Key Vault that cannot be fetched as told.
    #[error("{source}{place}", place = in_file(file.as_deref()))]
    KeyVault {
        /// The file.
        file: Option<PathBuf>,
        /// What is wrong.
        source: KeyVaultConfigError,
    },
    /// The REST API has no address.
    #[error(
        "the REST API has no address: this machine has no default route that would name one; give -c tcp://ADDRESS:PORT"
    )]
    NoPrimaryAddress,
    /// A directive that tracing does not understand.
    #[error("{key} {given}: {why}; e.g. `info` or `info,cns::ledger=debug`")]
    LogLevel {
        /// The flag or key.
        key: String,
        /// As given.
        given: String,
        /// What is wrong.
        why: String,
    },
    /// Paths that only look like one.
    #[error("--{key} {path}: an absolute path is expected")]
    Relative {
        /// The flag.
        key: &'static str,
        /// As given.
        path: PathBuf,
    },
}

fn in_file(file: Option<&Path>) -> String {
    file.map(|file| format!(" (in {})", file.display())).unwrap_or_default()
}

impl ConfigError {
    pub(super) fn value(key: impl ToString, given: impl ToString, allowed: impl ToString) -> Self {
        Self::Value { key: key.to_string(), given: given.to_string(), allowed: allowed.to_string() }
    }

    /// The file's faults are 1, as with the reference; those of a command line are 2.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::File { .. } | Self::InFile { .. }) { 1 } else { 2 }
    }
}
