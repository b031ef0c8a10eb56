//! Flags and environment → one validated, typed [`Config`]. What can be judged without touching the machine is judged here,
//! with an error that names the key, the value and what is allowed.

mod args;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

pub use args::{Args, LogFormat};
use serde::Serialize;

use crate::{
    paths::DefaultPaths,
    pool::static_cidr::{StaticNc, StaticNcError, check_overlap},
};

/// The network of a node that was told nothing.
pub const DEFAULT_CIDR: &str = "10.244.0.0/24";

/// Everything the daemon was told, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// The channel mode; only `Standalone` is part of this daemon yet.
    pub channel_mode: &'static str,
    /// The static network containers.
    pub standalone_cidrs: Vec<StaticNc>,
    /// Directory of `state.redb`.
    pub state_dir: PathBuf,
    /// The gRPC unix socket.
    pub grpc_socket: PathBuf,
    /// An additional gRPC TCP listener.
    pub grpc_bind_address: Option<SocketAddr>,
    /// What the TCP listener proves itself with and whom it trusts; absent on loopback without TLS.
    pub tls: Option<TlsFiles>,
    /// The HTTP listener of metrics and probes.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Whether traffic that leaves the pod CIDRs is masqueraded.
    pub masquerade: bool,
    /// Users that may change state, beside root and the daemon's own.
    pub allow_uids: Vec<u32>,
    /// Primary groups that may change state.
    pub allow_gids: Vec<u32>,
    /// How long a freed address rests.
    #[serde(serialize_with = "seconds")]
    pub cool_down: Duration,
    /// How often sandboxes are looked at.
    #[serde(serialize_with = "seconds")]
    pub reconcile_interval: Duration,
    /// How long a sandbox must be gone before what it holds is released.
    #[serde(serialize_with = "seconds")]
    pub reconcile_grace: Duration,
    /// Where plugins leave releases that they could not deliver.
    pub async_delete_dir: PathBuf,
    /// Where the reference's files are taken over from at the first start.
    pub import_legacy: Option<PathBuf>,
    /// Journal entries kept of commands that took effect; a quarter as many are kept of refused ones.
    pub journal_entries: u64,
    /// Calls worked on at once.
    pub max_concurrent_requests: usize,
    /// How long a stop waits for calls that are being worked on.
    #[serde(serialize_with = "seconds")]
    pub drain_timeout: Duration,
    /// What is logged, in tracing's directive syntax.
    pub log_level: String,
    /// How.
    pub log_format: LogFormat,
}

/// PEM files of the TCP listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TlsFiles {
    /// The chain, leaf first.
    pub cert: PathBuf,
    /// Its key; the path is no secret, the content never leaves the file.
    pub key: PathBuf,
    /// Authorities whose clients may connect.
    pub client_ca: PathBuf,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Why the daemon cannot start as told.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A network that cannot be.
    #[error("--standalone-cidr {given}: {source}")]
    Cidr {
        /// As given.
        given: String,
        /// What is wrong.
        source: StaticNcError,
    },
    /// Two networks share addresses.
    #[error(
        "--standalone-cidr: {first} and {second} overlap; an address can belong to one network container only"
    )]
    Overlap {
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
    /// A value outside its range.
    #[error("--{key} {given}: {allowed}")]
    OutOfRange {
        /// The flag.
        key: &'static str,
        /// As given.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A directive that tracing does not understand.
    #[error("--log-level {given}: {why}; e.g. `info` or `info,cns::ledger=debug`")]
    LogLevel {
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

impl Config {
    /// Checks what was given and fills what was not.
    pub fn from_args(args: &Args) -> Result<Self, ConfigError> {
        let defaults = DefaultPaths::current();
        let standalone_cidrs = static_ncs(&args.standalone_cidr)?;
        let tls = tls(args)?;
        if let Some(address) = args.grpc_bind_address {
            if !address.ip().is_loopback() && tls.is_none() {
                return Err(ConfigError::OpenListener { address });
            }
        } else if tls.is_some() {
            return Err(ConfigError::TlsWithoutListener);
        }
        let out_of_range = |key, given: &dyn ToString, allowed| {
            Err(ConfigError::OutOfRange { key, given: given.to_string(), allowed })
        };
        if args.max_concurrent_requests == 0 || args.max_concurrent_requests > 1 << 20 {
            let allowed = "between 1 and 1048576 is allowed";
            return out_of_range("max-concurrent-requests", &args.max_concurrent_requests, allowed);
        }
        if args.journal_entries == 0 || args.journal_entries > 10_000_000 {
            return out_of_range(
                "journal-entries",
                &args.journal_entries,
                "between 1 and 10000000 is allowed",
            );
        }
        if args.reconcile_interval.is_zero() {
            return out_of_range("reconcile-interval", &"0", "more than zero is expected");
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&args.log_level) {
            return Err(ConfigError::LogLevel { given: args.log_level.clone(), why: error.to_string() });
        }
        Ok(Self {
            channel_mode: "Standalone",
            standalone_cidrs,
            state_dir: absolute("state-dir", args.state_dir.as_deref().unwrap_or(&defaults.state_dir))?,
            grpc_socket: absolute("grpc-socket", args.grpc_socket.as_deref().unwrap_or(&defaults.socket))?,
            grpc_bind_address: args.grpc_bind_address,
            tls,
            metrics_bind_address: args.metrics_bind_address,
            masquerade: args.masquerade.unwrap_or_else(|| nix::unistd::geteuid().is_root()),
            allow_uids: args.allow_uid.clone(),
            allow_gids: args.allow_gid.clone(),
            cool_down: args.cool_down,
            reconcile_interval: args.reconcile_interval,
            reconcile_grace: args.reconcile_grace,
            async_delete_dir: absolute("async-delete-dir", &args.async_delete_dir)?,
            import_legacy: args.import_legacy.clone(),
            journal_entries: args.journal_entries,
            max_concurrent_requests: args.max_concurrent_requests,
            drain_timeout: args.drain_timeout,
            log_level: args.log_level.clone(),
            log_format: args.log_format,
        })
    }

    /// The effective configuration, one JSON object. It holds no secrets: keys and certificates are named by their files.
    pub fn to_json(&self) -> String {
        // Plain data: strings, numbers, paths. A path that is no UTF-8 is the only thing that JSON cannot hold.
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

fn static_ncs(given: &[String]) -> Result<Vec<StaticNc>, ConfigError> {
    let default = [DEFAULT_CIDR.to_owned()];
    let given = if given.is_empty() { &default[..] } else { given };
    let parse = |text: &String| {
        text.parse::<StaticNc>().map_err(|source| ConfigError::Cidr { given: text.clone(), source })
    };
    let ncs: Vec<StaticNc> = given.iter().map(parse).collect::<Result<_, _>>()?;
    match check_overlap(&ncs) {
        None => Ok(ncs),
        Some((first, second)) => {
            Err(ConfigError::Overlap { first: first.to_string(), second: second.to_string() })
        }
    }
}

fn tls(args: &Args) -> Result<Option<TlsFiles>, ConfigError> {
    match (&args.tls_cert, &args.tls_key, &args.tls_client_ca) {
        (None, None, None) => Ok(None),
        (Some(cert), Some(key), Some(client_ca)) => {
            Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.clone() }))
        }
        (None, _, _) => Err(ConfigError::HalfTls { missing: "--tls-cert" }),
        (_, None, _) => Err(ConfigError::HalfTls { missing: "--tls-key" }),
        (_, _, None) => Err(ConfigError::HalfTls { missing: "--tls-client-ca" }),
    }
}

/// A relative path would mean another place after the daemon was restarted from elsewhere; relative to where it was started
/// is what a person means who types one.
fn absolute(key: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    std::path::absolute(path).map_err(|_| ConfigError::Relative { key, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn config(args: &[&str]) -> Result<Config, ConfigError> {
        Config::from_args(&Args::parse_from([&["cns"], args].concat()))
    }

    #[test]
    fn with_nothing_said_it_is_standalone_with_the_default_network() {
        let config = config(&[]).unwrap();
        assert_eq!((config.channel_mode, config.standalone_cidrs.len()), ("Standalone", 1));
        assert_eq!(config.standalone_cidrs[0].to_string(), DEFAULT_CIDR);
        assert!(config.to_json().contains("\"cool_down\": 30.0"));
    }

    #[test]
    fn each_flag_is_one_nc_of_one_or_two_families() {
        let config =
            config(&["--standalone-cidr", "10.1.0.0/24,fd00:1::/120", "--standalone-cidr", "10.2.0.0/24"])
                .unwrap();
        let texts: Vec<String> = config.standalone_cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.1.0.0/24,fd00:1::/120", "10.2.0.0/24"]);
    }

    #[test]
    fn errors_name_the_key_the_value_and_what_is_allowed() {
        for (args, expected) in [
            (&["--standalone-cidr", "10.1.0.0"][..], "--standalone-cidr 10.1.0.0"),
            (&["--standalone-cidr", "10.1.0.0/24", "--standalone-cidr", "10.1.0.128/25"], "overlap"),
            (&["--grpc-bind-address", "0.0.0.0:1"], "--tls-client-ca"),
            (&["--grpc-bind-address", "127.0.0.1:1", "--tls-cert", "x"], "--tls-key is missing"),
            (&["--tls-cert", "x", "--tls-key", "x", "--tls-client-ca", "x"], "--grpc-bind-address"),
            (&["--max-concurrent-requests", "0"], "--max-concurrent-requests 0: between 1 and"),
            (&["--log-level", "cns=loud"], "--log-level cns=loud"),
        ] {
            let error = config(args).unwrap_err().to_string();
            assert!(error.contains(expected), "{args:?}: {error}");
        }
    }
}
