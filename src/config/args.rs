//! The daemon's command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Parser, ValueEnum, ValueHint};
use serde::Serialize;

use super::rest::listen_address;
use crate::host::http::BaseUrl;

/// Container networking node service: pod addresses, network containers, endpoints.
///
/// Without any option it runs in Standalone mode with the network 10.244.0.0/24: no cloud, no cluster, nothing to set up.
///
/// An option counts before the environment, that before cns_config.json, and that before the default. Invoked under the name
/// azure-cns, the defaults are those of Azure CNS.
#[derive(Clone, Debug, Parser)]
#[command(name = "cns", version, max_term_width = 110)]
pub struct Args {
    /// Where network containers and addresses come from: Standalone or Direct
    ///
    /// Default: what the configuration file says, else Standalone; under the name azure-cns Direct, unless a network is given.
    #[arg(long, value_name = "MODE", env = "CNS_CHANNEL_MODE")]
    pub channel_mode: Option<String>,

    /// Network of a static network container: an IPv4 CIDR, an IPv6 CIDR, or one of each separated by a comma
    ///
    /// May be given several times; each is one network container. Default: 10.244.0.0/24.
    #[arg(long, value_name = "CIDR[,CIDR]", env = "CNS_STANDALONE_CIDR", action = ArgAction::Append)]
    pub standalone_cidr: Vec<String>,

    /// Directory of the durable state
    ///
    /// Default: /var/lib/azure-cns for root, else a directory of the user's own.
    #[arg(long, value_name = "DIR", env = "CNS_STATE_DIR", value_hint = ValueHint::DirPath)]
    pub state_dir: Option<PathBuf>,

    /// Unix socket of the gRPC API
    ///
    /// Default: /run/azure-cns/cns.sock for root, else one in a directory of the user's own.
    #[arg(long, value_name = "PATH", env = "CNS_SOCKET", value_hint = ValueHint::FilePath)]
    pub grpc_socket: Option<PathBuf>,

    /// Serve gRPC on this TCP address too; any but loopback needs the --tls options
    #[arg(long, value_name = "ADDR:PORT", env = "CNS_GRPC_BIND_ADDRESS")]
    pub grpc_bind_address: Option<SocketAddr>,

    /// Certificate chain of the TCP listener, PEM, leaf first
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_cert: Option<PathBuf>,

    /// Private key of the TCP listener, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_key: Option<PathBuf>,

    /// Authorities whose clients may connect to the TCP listener, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub tls_client_ca: Option<PathBuf>,

    /// Serve /metrics, /healthz and /readyz over HTTP on this address; :PORT is all interfaces
    #[arg(long, value_name = "ADDR:PORT", env = "CNS_METRICS_BIND_ADDRESS", value_parser = listen_address)]
    pub metrics_bind_address: Option<SocketAddr>,

    /// Masquerade traffic that leaves the pod networks, and switch forwarding on (default: yes for root)
    ///
    /// With `false`, rules that an earlier run made are removed.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade: Option<bool>,

    /// Remove the masquerade rules and exit
    #[arg(long)]
    pub remove_masquerade: bool,

    /// A user who may change state, beside root and the daemon's own; may be given several times
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<u32>,

    /// A primary group whose members may change state; may be given several times
    #[arg(long, value_name = "GID")]
    pub allow_gid: Vec<u32>,

    /// How long a freed address rests before another pod gets it while others are free [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub cool_down: Option<Duration>,

    /// How often the daemon looks for sandboxes that are gone [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub reconcile_interval: Option<Duration>,

    /// How long a sandbox must be gone before the addresses that it holds are released [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub reconcile_grace: Option<Duration>,

    /// Where CNI plugins leave releases that they could not deliver [default: /var/run/azure-vnet/deleteIDs]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub async_delete_dir: Option<PathBuf>,

    /// At the first start, take over azure-cns.json, azure-endpoints.json and azure-vnet.json from this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub import_legacy: Option<PathBuf>,

    /// Journal entries to keep, for `cnsctl explain` [default: 16384]
    #[arg(long, value_name = "COUNT")]
    pub journal_entries: Option<u64>,

    /// Calls to work on at once; more are told to come back [default: 1024]
    #[arg(long, value_name = "COUNT")]
    pub max_concurrent_requests: Option<u64>,

    /// How long a stop waits for calls that are being worked on [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub drain_timeout: Option<Duration>,

    /// An OpenTelemetry collector that gets the log and a span for each call, over gRPC, e.g. http://127.0.0.1:4317
    #[arg(long, value_name = "URL", env = "CNS_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<BaseUrl>,

    /// What to log: error, warn, info, debug, trace, or tracing directives [-l] [default: info]
    #[arg(long, value_name = "LEVEL", env = "CNS_LOG_LEVEL")]
    pub log_level: Option<String>,

    /// How to log [default: text]
    #[arg(long, value_enum, env = "CNS_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,

    /// Print the effective configuration as JSON and exit
    #[arg(long)]
    pub check_config: bool,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// `30s`, `1m30s`, `500ms`, or a plain number of seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let friendly = || text.parse::<jiff::SignedDuration>().ok().and_then(|duration| duration.try_into().ok());
    seconds.or_else(friendly).ok_or_else(|| format!("`{text}` is not a duration such as `30s` or `1m30s`"))
}
