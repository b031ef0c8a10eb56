//! Flags, environment and `cns_config.json` → one validated, typed [`Config`]. What can be judged without touching the machine
//! is judged here, with an error that names the key, the value and what is allowed.
//!
//! A flag counts before the environment, that before the file, and that before the default. Which defaults are in force
//! depends on the name that the daemon was invoked under ([`Program`]).

mod args;
mod command_line;
mod environment;
mod error;
mod file;
mod go_flags;
mod json;
mod legacy;
mod listeners;
mod log;
mod mode;
mod program;
mod rest;
mod sources;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

pub use args::{Args, LogFormat};
pub use command_line::{CommandLine, Stop};
pub use environment::{Environment, EnvironmentSettings};
pub use error::ConfigError;
pub use file::{
    AzrSettings, FileSettings, GrpcSettings, KeyVaultSettings, LoggerAppInsights, LoggerEtw, LoggerFile,
    LoggerSettings, ManagedSettings, MsiSettings, NodeRest, NodeSettings, Secret, TelemetrySettings,
};
pub use go_flags::{FlagError, GO_FLAGS, GoFlag, Kind, LegacyFlags};
pub use legacy::{LegacyPaths, LegacySettings};
pub use log::{LogFile, LogTarget};
pub use mode::{ChannelMode, UnknownChannelMode};
pub use program::Program;
pub use rest::{DEFAULT_PORT, RestAddress, RestListeners, RestTls, RestUrlError, TlsSource, TlsVersion};
use serde::Serialize;
pub use sources::{ConflistConfig, ManagedConfig};

use self::{
    legacy::{InEffect, import_paths, without_effect},
    listeners::{agent_url, grpc_settings, rest_listeners, tls},
    log::{log_level, log_target},
};
use crate::{
    conflist::UnknownScenario,
    host::{cni_plugin::CniPlugin, docker::DockerUrl, http::BaseUrl, imds::IMDS, insights::Destination},
    model::PodKeyScheme,
    paths::DefaultPaths,
    pool::static_cidr::{StaticNc, check_overlap},
};

/// The network of a node that was told nothing.
pub const DEFAULT_CIDR: &str = "10.244.0.0/24";

/// Where plugins leave releases that they could not deliver.
const ASYNC_DELETE_DIR: &str = "/var/run/azure-vnet/deleteIDs";
/// Where the reference's log file is.
const LOG_DIRECTORY: &str = "/var/log/";
/// The reference's listener of metrics and probes.
const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), 9090);

/// Everything the daemon was told, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// The name that the daemon was invoked under.
    pub program: Program,
    /// Where network containers and addresses come from.
    pub channel_mode: ChannelMode,
    /// The static network containers; none but in Standalone mode.
    pub standalone_cidrs: Vec<StaticNc>,
    /// Directory of `state.redb`.
    pub state_dir: PathBuf,
    /// The gRPC unix socket.
    pub grpc_socket: PathBuf,
    /// An additional gRPC TCP listener.
    pub grpc_bind_address: Option<SocketAddr>,
    /// Another one, where `GRPCSettings` asks for it.
    pub grpc_settings_address: Option<SocketAddr>,
    /// What the TCP listener proves itself with and whom it trusts; absent on loopback without TLS.
    pub tls: Option<TlsFiles>,
    /// The listeners of the legacy REST API, if it is served.
    pub rest: Option<RestListeners>,
    /// The HTTP listener of metrics and probes. The unspecified IPv6 address means all interfaces, of both families.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Nobody asked for that listener: it is there because the reference has it, and may fail as the reference's may.
    pub metrics_by_default: bool,
    /// Whether endpoint records are kept (legacy `ManageEndpointState`).
    pub manage_endpoint_state: bool,
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
    /// Whether releases that plugins could not deliver are looked for.
    pub async_delete: bool,
    /// Where.
    pub async_delete_dir: PathBuf,
    /// Where the reference's files are taken over from at the first start.
    pub import_legacy: Option<LegacyPaths>,
    /// Journal entries kept of commands that took effect; a quarter as many are kept of refused ones.
    pub journal_entries: u64,
    /// Calls worked on at once.
    pub max_concurrent_requests: usize,
    /// How long a stop waits for calls that are being worked on.
    #[serde(serialize_with = "seconds")]
    pub drain_timeout: Duration,
    /// DNC, in ChannelMode Managed.
    pub managed: Option<ManagedConfig>,
    /// The CNI configuration list, if it is to be written.
    pub conflist: Option<ConflistConfig>,
    /// The CNI plugin that is told when a network container of Azure Container Instances changes; in Standalone only if one was named.
    pub cni_plugin: Option<CniPlugin>,
    /// Whether pods' packets to Azure's own addresses get the host's as their source (`ProgramSNATIPTables`).
    pub program_snat: bool,
    /// Where docker's API is.
    pub docker_url: DockerUrl,
    /// Where wireserver is, with NMAgent behind it (`WireserverIP`).
    pub wireserver_url: BaseUrl,
    /// Where the instance metadata service is (`Node.IMDSURL`).
    pub imds_url: BaseUrl,
    /// Application Insights, if reports are to be sent there. Stands masked in `settings`.
    #[serde(skip)]
    pub insights: Option<Destination>,
    /// A collector of OpenTelemetry.
    pub otlp_endpoint: Option<BaseUrl>,
    /// What is logged, in tracing's directive syntax.
    pub log_level: String,
    /// How.
    pub log_format: LogFormat,
    /// Where to.
    pub log_target: LogTarget,
    /// Directory of the log file, for the targets that have one.
    pub log_directory: PathBuf,
    /// A further file, of JSON lines.
    pub log_file: Option<LogFile>,
    /// The file that was read.
    pub config_file: Option<PathBuf>,
    /// All of its settings, with defaults; the modes that use the others will find them here.
    pub settings: FileSettings,
    /// The reference's flags that no other setting stands for.
    pub legacy_flags: LegacySettings,
    /// What the environment says about the node and the cluster.
    pub environment: EnvironmentSettings,
    /// What an operator should know about all this.
    pub notes: Vec<String>,
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

/// The file, and what is worth saying about it.
#[derive(Default)]
struct FileRead {
    path: Option<PathBuf>,
    settings: FileSettings,
    notes: Vec<String>,
}

impl FileRead {
    /// Reads the file that is named, else the one beside the executable.
    fn load(command: &CommandLine, environment: &Environment) -> Result<Self, ConfigError> {
        let (key, path) =
            match (command.legacy.text("config-path"), environment.text("CNS_CONFIGURATION_PATH")?) {
                (Some(path), _) => ("--config-path", Some(PathBuf::from(path.trim()))),
                (None, Some(path)) if !path.trim().is_empty() => {
                    ("CNS_CONFIGURATION_PATH", Some(path.trim().into()))
                }
                _ => ("", None),
            };
        let named = path.is_some();
        let beside =
            || environment.executable_dir.as_ref().map(|directory| directory.join("cns_config.json"));
        let Some(path) = path.or_else(beside) else { return Ok(Self::default()) };
        match FileSettings::load(&path)? {
            Some((settings, notes)) => Ok(Self { path: Some(path), settings, notes }),
            None if !named => Ok(Self::default()),
            None if command.program == Program::AzureCns => {
                let note =
                    format!("{key} {}: there is no such file; the defaults are in force", path.display());
                Ok(Self { notes: vec![note], ..Self::default() })
            }
            // Who names a file and mistypes it would get another network than they think.
            None => Err(ConfigError::value(key, path.display(), "there is no such file")),
        }
    }

    /// How to call a key of the file.
    fn key(&self, name: &str) -> String {
        self.path.as_ref().map_or_else(|| name.to_owned(), |path| format!("{name} (in {})", path.display()))
    }
}

/// The flag's value if there is one, else the file's; each under its name.
fn told<T>(
    flag: Option<T>,
    flag_key: &str,
    file: &FileRead,
    value: Option<T>,
    key: &str,
) -> Option<(T, String)> {
    flag.map(|value| (value, flag_key.to_owned())).or_else(|| value.map(|value| (value, file.key(key))))
}

impl Config {
    /// Checks what was given and fills what was not.
    pub fn load(command: &CommandLine, environment: &Environment) -> Result<Self, ConfigError> {
        let mut file = FileRead::load(command, environment)?;
        let CommandLine { program, args, legacy, .. } = command;
        let defaults = DefaultPaths::current();
        let environment_settings = EnvironmentSettings::read(environment)?;
        let mut notes = std::mem::take(&mut file.notes);
        let settings =
            conflist_settings(file.settings.clone(), legacy, environment_settings.cni_conflist_generation)?;
        let node = &settings.node;

        let cidrs = Some(args.standalone_cidr.clone()).filter(|cidrs| !cidrs.is_empty());
        let in_file = node.standalone_cidrs.clone().filter(|cidrs| !cidrs.is_empty());
        let cidrs = told(
            cidrs,
            command.key("standalone_cidr", "--standalone-cidr"),
            &file,
            in_file,
            "Node.StandaloneCIDRs",
        );
        let channel_mode = channel_mode(command, &file, cidrs.as_ref().map(|(_, key)| key.as_str()))?;
        let standalone = channel_mode == ChannelMode::Standalone;
        let standalone_cidrs = if standalone { static_ncs(cidrs)? } else { Vec::new() };

        let grpc_bind_address = args.grpc_bind_address.or(node.grpc_bind_address);
        let tls = tls(
            args.tls_cert.as_ref().or(node.grpc_tls_cert.as_ref()),
            args.tls_key.as_ref().or(node.grpc_tls_key.as_ref()),
            args.tls_client_ca.as_ref().or(node.grpc_tls_client_ca.as_ref()),
        )?;
        if let Some(address) = grpc_bind_address {
            if !address.ip().is_loopback() && tls.is_none() {
                return Err(ConfigError::OpenListener { address });
            }
        } else if tls.is_some() && !settings.grpc.enable {
            return Err(ConfigError::TlsWithoutListener);
        }
        let grpc_settings_address = grpc_settings(&file, tls.is_some())?
            // Asked for twice.
            .filter(|address| grpc_bind_address != Some(*address));
        let rest = rest_listeners(command, environment, &file)?;
        if rest.is_none() && settings.use_https {
            notes.push(
                "UseHTTPS is without effect: the REST API is not served; see -c, -p and Node.REST".into(),
            );
        }
        if settings.use_mtls && !settings.use_https {
            notes.push("UseMTLS is without effect: UseHTTPS is not set".into());
        }

        let max_concurrent_requests = told(
            args.max_concurrent_requests,
            "--max-concurrent-requests",
            &file,
            node.max_concurrent_requests,
            "Node.MaxConcurrentRequests",
        );
        let max_concurrent_requests = within(max_concurrent_requests, 1_024, 1 << 20)?;
        let journal_entries = told(
            args.journal_entries,
            "--journal-entries",
            &file,
            node.journal_entries,
            "Node.JournalEntries",
        );
        let journal_entries = within(journal_entries, 16_384, 10_000_000)?;
        let reconcile_interval = told(
            args.reconcile_interval,
            "--reconcile-interval",
            &file,
            node.reconcile_interval_secs,
            "Node.ReconcileIntervalSecs",
        );
        if let Some((interval, key)) = &reconcile_interval
            && interval.is_zero()
        {
            return Err(ConfigError::value(key, "0", "more than zero is expected"));
        }
        let minute = Duration::from_mins(1);

        let masquerade = args.masquerade.or(node.masquerade);
        if masquerade == Some(true) && !standalone {
            notes.push(format!(
                "--masquerade is without effect: in ChannelMode {channel_mode} there are no networks of ours"
            ));
        }
        let metrics_told = args.metrics_bind_address.or(settings.metrics_bind_address);
        let azure = *program == Program::AzureCns;
        let log_target = log_target(legacy.text("log-target"), azure);
        let async_delete_dir =
            args.async_delete_dir.clone().or_else(|| settings.async_pod_delete_path.clone());
        let import_legacy = import_paths(command, environment, &settings.node, &mut notes)?;
        let legacy_flags = LegacySettings::of(legacy);
        let managed = (channel_mode == ChannelMode::Managed).then(|| ManagedConfig::read(legacy, &file));
        let managed = managed.transpose()?;
        let conflist = ConflistConfig::read(&settings, &file, legacy_flags.net_plugin_path.clone())?;
        sources::check_mode(channel_mode, &settings, &file, conflist.as_ref(), &mut notes)?;
        let named = !standalone || legacy.text("net-plugin-config-file").is_some();
        let cni_plugin = named.then(|| legacy_flags.cni_plugin());
        let in_effect = InEffect {
            managed: managed.is_some(),
            conflist: conflist.is_some(),
            cni_plugin: cni_plugin.is_some(),
        };
        notes.extend(without_effect(legacy, in_effect));
        let log_file = LogFile::read(&file, &mut notes)?;
        let insights = sources::insights(&settings.telemetry, &file, &mut notes);
        Ok(Self {
            program: *program,
            channel_mode,
            standalone_cidrs,
            state_dir: absolute(
                "state-dir",
                args.state_dir.as_ref().or(node.state_dir.as_ref()).unwrap_or(&defaults.state_dir),
            )?,
            grpc_socket: absolute(
                "grpc-socket",
                args.grpc_socket.as_ref().or(node.grpc_socket.as_ref()).unwrap_or(&defaults.socket),
            )?,
            grpc_bind_address,
            grpc_settings_address,
            tls,
            rest,
            metrics_bind_address: metrics_told.or(azure.then_some(METRICS)),
            metrics_by_default: metrics_told.is_none() && azure,
            manage_endpoint_state: settings.manage_endpoint_state.unwrap_or(standalone),
            masquerade: standalone && masquerade.unwrap_or(environment.is_root),
            allow_uids: list(&args.allow_uid, node.allow_uids.as_ref()),
            allow_gids: list(&args.allow_gid, node.allow_gids.as_ref()),
            cool_down: args.cool_down.or(node.cool_down_secs).unwrap_or(Duration::from_secs(30)),
            reconcile_interval: reconcile_interval.map_or(minute, |(interval, _)| interval),
            reconcile_grace: args.reconcile_grace.or(node.reconcile_grace_secs).unwrap_or(minute),
            async_delete: settings.enable_async_pod_delete.unwrap_or(true),
            async_delete_dir: absolute(
                "async-delete-dir",
                &async_delete_dir.unwrap_or_else(|| ASYNC_DELETE_DIR.into()),
            )?,
            import_legacy,
            journal_entries,
            max_concurrent_requests: usize::try_from(max_concurrent_requests).unwrap_or(1 << 20),
            drain_timeout: args.drain_timeout.or(node.drain_timeout_secs).unwrap_or(Duration::from_secs(10)),
            managed,
            conflist,
            cni_plugin,
            program_snat: settings.program_snat_iptables && channel_mode != ChannelMode::AzureHost,
            docker_url: node.docker_url.clone().unwrap_or_default(),
            wireserver_url: agent_url(&file.key("WireserverIP"), &settings.wireserver_ip)?,
            imds_url: match &node.imds_url {
                Some(url) => url.clone(),
                None => agent_url("IMDS", IMDS)?,
            },
            insights,
            otlp_endpoint: args.otlp_endpoint.clone().or_else(|| settings.node.otlp_endpoint.clone()),
            log_level: log_level(command, &file)?,
            log_format: args.log_format.or(node.log_format).unwrap_or_default(),
            log_target,
            log_directory: absolute(
                "log-location",
                Path::new(legacy.text("log-location").unwrap_or(LOG_DIRECTORY)),
            )?,
            log_file,
            config_file: file.path,
            settings,
            legacy_flags,
            environment: environment_settings,
            notes,
        })
    }

    /// Which field of a request is the pod's key: the reference takes the container where it keeps endpoint records.
    pub fn pod_key_scheme(&self) -> PodKeyScheme {
        if self.manage_endpoint_state { PodKeyScheme::InfraContainerId } else { PodKeyScheme::InterfaceId }
    }

    /// The effective configuration, one JSON object. Secrets are masked; keys and certificates are named by their files.
    pub fn to_json(&self) -> String {
        // Plain data: strings, numbers, paths. A path that is no UTF-8 is the only thing that JSON cannot hold.
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// The mode: what says it, or what the name and the networks imply.
fn channel_mode(
    command: &CommandLine,
    file: &FileRead,
    cidrs: Option<&str>,
) -> Result<ChannelMode, ConfigError> {
    let flag_key = command.key("channel_mode", "--channel-mode");
    let parse = |text: &str| {
        text.parse().map_err(|error: UnknownChannelMode| ConfigError::value(flag_key, text, error))
    };
    let flag = command.args.channel_mode.as_deref().filter(|text| !text.is_empty()).map(parse).transpose()?;
    let said = if command.legacy.switch("managed") == Some(true) {
        Some((ChannelMode::Managed, "--managed".to_owned()))
    } else {
        told(flag, flag_key, file, file.settings.channel_mode, "ChannelMode")
    };
    let Some((mode, key)) = said else {
        let direct = command.program == Program::AzureCns && cidrs.is_none();
        return Ok(if direct { ChannelMode::Direct } else { ChannelMode::Standalone });
    };
    if !mode.is_supported() {
        return Err(ConfigError::Mode { key, mode });
    }
    match cidrs {
        Some(cidrs) if mode != ChannelMode::Standalone => {
            Err(ConfigError::NetworksWithoutStandalone { cidrs: cidrs.to_owned(), mode_key: key, mode })
        }
        _ => Ok(mode),
    }
}

/// The flags and the variable about the CNI list, put where the file's settings about it are.
fn conflist_settings(
    mut settings: FileSettings,
    legacy: &LegacyFlags,
    by_environment: bool,
) -> Result<FileSettings, ConfigError> {
    settings.enable_cni_conflist_generation |= by_environment;
    if let Some(path) = legacy.text("cni-conflist-filepath") {
        path.clone_into(&mut settings.cni_conflist_filepath);
    }
    if let Some(scenario) = legacy.text("cni-conflist-scenario") {
        let parsed = scenario.parse().map_err(|error: UnknownScenario| {
            ConfigError::value("--cni-conflist-scenario", scenario, error)
        })?;
        settings.cni_conflist_scenario = Some(parsed);
    }
    Ok(settings)
}

fn list(flags: &[u32], file: Option<&Vec<u32>>) -> Vec<u32> {
    if flags.is_empty() { file.cloned().unwrap_or_default() } else { flags.to_vec() }
}

/// A count from 1 to `most`.
fn within(told: Option<(u64, String)>, default: u64, most: u64) -> Result<u64, ConfigError> {
    match told {
        None => Ok(default),
        Some((count, _)) if (1..=most).contains(&count) => Ok(count),
        Some((count, key)) => Err(ConfigError::value(key, count, format!("between 1 and {most} is allowed"))),
    }
}

fn static_ncs(told: Option<(Vec<String>, String)>) -> Result<Vec<StaticNc>, ConfigError> {
    let (given, key) = told.unwrap_or_else(|| (vec![DEFAULT_CIDR.to_owned()], String::new()));
    let parse = |text: &String| {
        text.parse::<StaticNc>().map_err(|source| ConfigError::Cidr {
            key: key.clone(),
            given: text.clone(),
            source,
        })
    };
    let ncs: Vec<StaticNc> = given.iter().map(parse).collect::<Result<_, _>>()?;
    match check_overlap(&ncs) {
        None => Ok(ncs),
        Some((first, second)) => {
            Err(ConfigError::Overlap { key, first: first.to_string(), second: second.to_string() })
        }
    }
}

/// A relative path would mean another place after the daemon was restarted from elsewhere; relative to where it was started
/// is what a person means who types one.
fn absolute(key: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    std::path::absolute(path).map_err(|_| ConfigError::Relative { key, path: path.to_owned() })
}

#[cfg(test)]
mod tests;
