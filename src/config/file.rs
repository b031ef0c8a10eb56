//! `cns_config.json`: every field of the reference under its name, with its default, and ours under the object `Node`.
//!
//! A value that cannot be meant is an error that names it; a key that nobody knows is ignored and told.

use std::{
    fmt, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Serialize, Serializer};

use super::{
    ConfigError, LogFormat,
    json::{Found, Json, Read, Section, Seen},
    mode::ChannelMode,
    rest::listen_address,
};
use crate::{
    conflist::{Scenario, UnknownScenario},
    host::{
        docker::{DockerUrl, InvalidDockerUrl},
        http::BaseUrl,
    },
};

/// The largest number that Go's fields and timers take without overflow in any unit here.
const MOST: i64 = i32::MAX as i64;

/// A text that must not be shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text, for whom it is meant for.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn masked(&self) -> &'static str {
        if self.is_empty() { "" } else { "***" }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.masked())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.masked())
    }
}

/// A struct of fields, each with its key and how it is read.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty = $key:literal, $read:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(#[$field_meta])* #[serde(rename = $key)] pub $field: $type,)*
        }

        impl $name {
            fn read(mut section: Section<'_>) -> Read<Self> {
                Ok(Self { $($field: section.take($key, $read)?,)* })
            }
        }
    };
}

// How fields are read. `None` is absent.

fn switch(found: Option<Found<'_>>) -> Read<bool> {
    found.map_or(Ok(false), |found| found.flag())
}

fn given<T>(read: impl FnOnce(Found<'_>) -> Read<T>) -> impl FnOnce(Option<Found<'_>>) -> Read<Option<T>> {
    move |found| found.map(read).transpose()
}

fn flag(found: Found<'_>) -> Read<bool> {
    found.flag()
}

/// A text; empty is absent.
fn text(default: &'static str) -> impl FnOnce(Option<Found<'_>>) -> Read<String> {
    move |found| {
        let text = found.map(|found| found.text()).transpose()?;
        Ok(text.filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned()))
    }
}

fn secret(found: Option<Found<'_>>) -> Read<Secret> {
    found.map_or_else(
        || Ok(Secret::default()),
        |mut found| match std::mem::replace(&mut found.value, Json::Text("***".into())) {
            Json::Text(text) => Ok(Secret(text)),
            _ => found.wrong("a text is expected"),
        },
    )
}

/// A number that counts something there must be, such as the time between two rounds.
fn positive(default: i64) -> impl FnOnce(Option<Found<'_>>) -> Read<i64> {
    whole(1, MOST, default)
}

fn whole(least: i64, most: i64, default: i64) -> impl FnOnce(Option<Found<'_>>) -> Read<i64> {
    move |found| found.map_or(Ok(default), |found| found.integer(least, most))
}

fn choice(
    default: &'static str,
    choices: &'static [&'static str],
) -> impl FnOnce(Option<Found<'_>>) -> Read<String> {
    move |found| {
        let Some(found) = found else { return Ok(default.to_owned()) };
        match found.text()? {
            empty if empty.is_empty() => Ok(default.to_owned()),
            text if choices.contains(&text.as_str()) => Ok(text),
            _ => found.wrong(format!("one of {} is allowed", choices.join(", "))),
        }
    }
}

/// A port as a text; empty is none.
fn port(found: Option<Found<'_>>) -> Read<Option<u16>> {
    let Some(found) = found else { return Ok(None) };
    let text = found.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<u16>() {
        Ok(port) if port != 0 => Ok(Some(port)),
        _ => found.wrong("a text with a port from 1 to 65535 is expected, such as \"10091\""),
    }
}

/// As a text, which it is in the file.
#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn serialize_port<S: Serializer>(port: &Option<u16>, serializer: S) -> Result<S::Ok, S::Error> {
    port.map(|port| port.to_string()).unwrap_or_default().serialize(serializer)
}

fn port_number(found: Option<Found<'_>>) -> Read<u16> {
    let Some(found) = found else { return Ok(8080) };
    // The range is that of the type.
    Ok(u16::try_from(found.integer(1, i64::from(u16::MAX))?).unwrap_or(8080))
}

fn bind_address(found: Found<'_>) -> Read<SocketAddr> {
    match listen_address(&found.text()?) {
        Ok(address) => Ok(address),
        Err(why) => found.wrong(why),
    }
}

/// A path; relative to where the daemon was started would be another place at the next start.
fn path(found: Found<'_>) -> Read<PathBuf> {
    let path = PathBuf::from(found.text()?);
    if path.is_absolute() { Ok(path) } else { found.wrong("an absolute path is expected") }
}

/// A path where empty is absent.
fn optional_path(found: Option<Found<'_>>) -> Read<Option<PathBuf>> {
    match found {
        Some(found) if found.value != Json::Text(String::new()) => path(found).map(Some),
        _ => Ok(None),
    }
}

fn url(found: Option<Found<'_>>) -> Read<String> {
    let Some(found) = found else { return Ok(String::new()) };
    let text = found.text()?;
    // Cleartext only where nobody can listen, which is for trying it out.
    let takes = |url: &BaseUrl| text.starts_with("https://") || url.is_loopback();
    if text.is_empty() || text.contains("://") && text.parse().is_ok_and(|url| takes(&url)) {
        Ok(text)
    } else {
        found.wrong("a URL that begins with https:// is expected")
    }
}

/// A host or host:port, perhaps with a scheme.
fn host(default: &'static str) -> impl FnOnce(Option<Found<'_>>) -> Read<String> {
    move |found| {
        let Some(found) = found else { return Ok(default.to_owned()) };
        let text = found.text()?;
        if text.is_empty() {
            return Ok(default.to_owned());
        }
        let authority = text.strip_prefix("http://").unwrap_or(&text);
        let uri = authority.parse::<http::uri::Authority>();
        if uri.is_ok_and(|uri| !uri.host().is_empty() && !uri.as_str().contains('@')) {
            Ok(text)
        } else {
            found.wrong("an address or a name is expected, with a port if it is another than 80")
        }
    }
}

fn level(found: Option<Found<'_>>) -> Read<String> {
    const LEVELS: [&str; 7] = ["debug", "info", "warn", "error", "dpanic", "panic", "fatal"];
    let Some(found) = found else { return Ok("info".into()) };
    let text = found.text()?;
    if text.is_empty() {
        return Ok("info".into());
    }
    let lower = text.to_ascii_lowercase();
    let spelled = text == lower || text == text.to_ascii_uppercase();
    if spelled && LEVELS.contains(&lower.as_str()) {
        Ok(lower)
    } else {
        found.wrong(format!("one of {} is allowed", LEVELS.join(", ")))
    }
}

/// A time in Go's form.
fn go_duration(default: &'static str) -> impl FnOnce(Option<Found<'_>>) -> Read<String> {
    move |found| {
        let Some(found) = found else { return Ok(default.to_owned()) };
        let text = found.text()?;
        let parsed = text.parse::<jiff::SignedDuration>();
        if parsed.is_ok_and(|duration| duration.is_positive()) {
            Ok(text)
        } else {
            found.wrong("a time is expected, such as \"30s\" or \"1m30s\"")
        }
    }
}

/// An object that is always there, with its defaults.
fn always<T>(read: impl FnOnce(Section<'_>) -> Read<T>) -> impl FnOnce(Option<Found<'_>>) -> Read<T> {
    move |found| {
        if let Some(found) = found {
            return read(Section::of(found)?);
        }
        let mut seen = Seen::default();
        read(Section::of_document(Json::Object(Vec::new()), Path::new(""), &mut seen)?)
    }
}

fn object<T>(read: impl FnOnce(Section<'_>) -> Read<T>) -> impl FnOnce(Option<Found<'_>>) -> Read<Option<T>> {
    move |found| found.map(|found| read(Section::of(found)?)).transpose()
}

fn channel_mode(found: Option<Found<'_>>) -> Read<Option<ChannelMode>> {
    let Some(found) = found else { return Ok(None) };
    match found.text()?.as_str() {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .or_else(|error: super::mode::UnknownChannelMode| found.wrong(error.to_string())),
    }
}

/// Whole seconds or parts of them.
fn seconds(found: Found<'_>) -> Read<Duration> {
    let number = if let Json::Number(number) = &found.value { number.as_f64() } else { None };
    match number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(duration) => Ok(duration),
        None => found.wrong("a number of seconds is expected, not below 0"),
    }
}

#[allow(clippy::ref_option, reason = "the signature is serde's")]
fn serialize_seconds<S: Serializer>(seconds: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    seconds.map(|duration| duration.as_secs_f64()).serialize(serializer)
}

fn count(found: Found<'_>) -> Read<u64> {
    // Not below 1, so the sign is no matter.
    Ok(u64::try_from(found.integer(1, MOST)?).unwrap_or(1))
}

fn ids(found: Found<'_>) -> Read<Vec<u32>> {
    found.list(|item| Ok(u32::try_from(item.integer(0, i64::from(u32::MAX))?).unwrap_or(u32::MAX)))
}

fn texts(found: Found<'_>) -> Read<Vec<String>> {
    found.list(|item| item.text())
}

fn base_url(found: Found<'_>) -> Read<BaseUrl> {
    match found.text()?.parse::<BaseUrl>() {
        Ok(url) => Ok(url),
        Err(error) => found.wrong(error.to_string()),
    }
}

fn docker_url(found: Found<'_>) -> Read<DockerUrl> {
    match found.text()?.parse() {
        Ok(url) => Ok(url),
        Err(error) => {
            let error: InvalidDockerUrl = error;
            found.wrong(error.to_string())
        }
    }
}

fn log_format(found: Found<'_>) -> Read<LogFormat> {
    match found.text()?.as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => found.wrong("one of text, json is allowed"),
    }
}

/// What the CNI list is written for; empty is absent.
fn scenario(found: Option<Found<'_>>) -> Read<Option<Scenario>> {
    let Some(found) = found else { return Ok(None) };
    match found.text()?.as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).or_else(|error: UnknownScenario| found.wrong(error.to_string())),
    }
}

/// As the text that it is in the file.
#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn serialize_scenario<S: Serializer>(scenario: &Option<Scenario>, serializer: S) -> Result<S::Ok, S::Error> {
    scenario.map(Scenario::as_str).unwrap_or_default().serialize(serializer)
}

section! {
    /// Everything that `cns_config.json` says, with the reference's defaults for what it does not say.
    FileSettings {
        /// Where NCs come from.
        channel_mode: Option<ChannelMode> = "ChannelMode", channel_mode;
        /// Whether endpoint records are kept.
        manage_endpoint_state: Option<bool> = "ManageEndpointState", given(flag);
        /// Whether the state begins with the CNI's.
        initialize_from_cni: bool = "InitializeFromCNI", switch;
        /// Whether the CNI's endpoints are taken over once.
        enable_state_migration: bool = "EnableStateMigration", switch;
        /// Whether the CNI list is written.
        enable_cni_conflist_generation: bool = "EnableCNIConflistGeneration", switch;
        /// Where to.
        cni_conflist_filepath: String = "CNIConflistFilepath", text("");
        /// What for.
        #[serde(serialize_with = "serialize_scenario")]
        cni_conflist_scenario: Option<Scenario> = "CNIConflistScenario", scenario;
        /// Whether undelivered releases are looked for.
        enable_async_pod_delete: Option<bool> = "EnableAsyncPodDelete", given(flag);
        /// Where.
        async_pod_delete_path: Option<PathBuf> = "AsyncPodDeletePath", optional_path;
        /// The demand-driven pool monitor.
        enable_ipam_v2: bool = "EnableIPAMv2", switch;
        /// Whether ClusterSubnetState is watched.
        enable_subnet_scarcity: bool = "EnableSubnetScarcity", switch;
        /// Delegated NICs.
        enable_swift_v2: bool = "EnableSwiftV2", switch;
        /// Prefixes on delegated NICs.
        enable_swift_v2_prefix_allocation: bool = "EnableSwiftV2PrefixAllocation", switch;
        /// NodeInfo for dual stack.
        enable_swift_v1_dual_stack: bool = "EnableSwiftV1DualStack", switch;
        /// NodeInfo with the home zone.
        enable_home_az: bool = "EnableHomeAZ", switch;
        /// Kubelet device plugins.
        enable_k8s_device_plugin: bool = "EnableK8sDevicePlugin", switch;
        /// Windows only.
        enable_stale_hns_cleanup_on_nc_create: bool = "EnableStaleHNSCleanupOnNCCreate", switch;
        /// SNAT rules with an NC.
        program_snat_iptables: bool = "ProgramSNATIPTables", switch;
        /// The shortest IPv6 prefix whose addresses are made one by one.
        ipv6_prefix_clamp: i64 = "IPv6PrefixClamp", whole(i64::from(i32::MIN), MOST, 120);
        /// How often NC versions are asked for, ms.
        sync_host_nc_version_interval_ms: i64 = "SyncHostNCVersionIntervalMs", positive(1000);
        /// Never used.
        sync_host_nc_timeout_ms: i64 = "SyncHostNCTimeoutMs", positive(500);
        /// NMAgent and wireserver.
        wireserver_ip: String = "WireserverIP", host("168.63.129.16");
        /// The listener of metrics and probes.
        metrics_bind_address: Option<SocketAddr> = "MetricsBindAddress", |found| match found {
            Some(found) if found.value != Json::Text(String::new()) => bind_address(found).map(Some),
            _ => Ok(None),
        };
        /// Whether `/healthz` asks the API server.
        enable_api_server_health_ping: bool = "EnableAPIServerHealthPing", switch;
        /// Go's profiles.
        enable_pprof: bool = "EnablePprof", switch;
        /// The structured logger.
        enable_logger_v2: bool = "EnableLoggerV2", switch;
        /// Its settings.
        logger: LoggerSettings = "Logger", always(LoggerSettings::read);
        /// Whether REST is served with TLS too.
        use_https: bool = "UseHTTPS", switch;
        /// Its port.
        #[serde(serialize_with = "serialize_port")]
        tls_port: Option<u16> = "TLSPort", port;
        /// Its certificate and key.
        tls_certificate_path: Option<PathBuf> = "TLSCertificatePath", optional_path;
        /// Carried only.
        tls_subject_name: String = "TLSSubjectName", text("");
        /// Never used.
        tls_endpoint: String = "TLSEndpoint", text("");
        /// Whether clients need a certificate.
        use_mtls: bool = "UseMTLS", switch;
        /// Whose.
        mtls_client_cert_subject_name: String = "MtlsClientCertSubjectName", text("");
        /// The oldest TLS version.
        min_tls_version: String = "MinTLSVersion", choice("TLS 1.2", &["TLS 1.2", "TLS 1.3"]);
        /// Where the certificate is kept otherwise.
        key_vault: KeyVaultSettings = "KeyVaultSettings", always(KeyVaultSettings::read);
        /// Whom the vault knows.
        msi: MsiSettings = "MSISettings", always(MsiSettings::read);
        /// DNC, polled.
        managed: ManagedSettings = "ManagedSettings", always(ManagedSettings::read);
        /// The home zone.
        azr: AzrSettings = "AZRSettings", always(AzrSettings::read);
        /// Windows only.
        mellanox_monitor_interval_secs: i64 = "MellanoxMonitorIntervalSecs", whole(0, MOST, 0);
        /// A further gRPC listener.
        grpc: GrpcSettings = "GRPCSettings", always(GrpcSettings::read);
        /// Application Insights.
        telemetry: TelemetrySettings = "TelemetrySettings", always(TelemetrySettings::read);
        /// Ours.
        node: NodeSettings = "Node", always(NodeSettings::read);
    }
}

section! {
    /// The structured logger.
    LoggerSettings {
        /// What is logged.
        level: String = "level", level;
        /// A file.
        file: Option<LoggerFile> = "file", object(LoggerFile::read);
        /// Application Insights.
        app_insights: Option<LoggerAppInsights> = "appInsights", object(LoggerAppInsights::read);
        /// Windows only.
        etw: Option<LoggerEtw> = "etw", object(LoggerEtw::read);
    }
}

section! {
    /// The structured logger's file.
    LoggerFile {
        /// Which.
        filepath: String = "filepath", text("/var/log/azure-cns.log");
        /// What goes there.
        level: String = "level", level;
        /// How many are kept.
        max_backups: i64 = "maxBackups", whole(0, MOST, 10);
        /// How large one may be, MB.
        max_size: i64 = "maxSize", positive(10);
    }
}

section! {
    /// The structured logger's telemetry.
    LoggerAppInsights {
        /// What goes there.
        level: String = "level", level;
        /// The key.
        ikey: Secret = "ikey", secret;
        /// How long a stop waits.
        grace_period: String = "grace_period", go_duration("30s");
        /// How often it is sent.
        max_batch_interval: String = "max_batch_interval", go_duration("30s");
        /// How much at once.
        max_batch_size: i64 = "max_batch_size", positive(32_000);
    }
}

section! {
    /// Windows' event tracing.
    LoggerEtw {
        /// The event.
        event_name: String = "eventname", text("AzureCNS");
        /// What goes there.
        level: String = "level", level;
        /// The provider.
        provider_name: String = "providername", text("ACN-Monitoring");
    }
}

section! {
    /// The certificate in Key Vault.
    KeyVaultSettings {
        /// The vault.
        url: String = "URL", url;
        /// The certificate.
        certificate_name: String = "CertificateName", text("");
        /// How often it is looked at, hours.
        refresh_interval_in_hrs: i64 = "RefreshIntervalInHrs", positive(12);
    }
}

section! {
    /// The managed identity.
    MsiSettings {
        /// Its resource.
        resource_id: String = "ResourceID", text("");
    }
}

section! {
    /// DNC, polled. What it needs is only checked in the mode that uses it.
    ManagedSettings {
        /// DNC.
        private_endpoint: String = "PrivateEndpoint", text("");
        /// The network.
        infrastructure_network_id: String = "InfrastructureNetworkID", text("");
        /// The node.
        node_id: String = "NodeID", text("");
        /// How often DNC is asked, s.
        node_sync_interval_in_seconds: i64 = "NodeSyncIntervalInSeconds", positive(30);
    }
}

section! {
    /// The home zone.
    AzrSettings {
        /// How often it is asked for until it is known, s.
        populate_home_az_cache_retry_interval_secs: i64 = "PopulateHomeAzCacheRetryIntervalSecs", positive(60);
    }
}

section! {
    /// The reference's gRPC server, which it never starts; here a further listener of the gRPC services.
    GrpcSettings {
        /// Whether it is wanted.
        enable: bool = "Enable", switch;
        /// Where: an address or `localhost`.
        ip_address: String = "IPAddress", text("localhost");
        /// Its port.
        port: u16 = "Port", port_number;
    }
}

section! {
    /// Application Insights.
    TelemetrySettings {
        /// Nothing is sent.
        disable_all: bool = "DisableAll", switch;
        /// No traces.
        disable_trace: bool = "DisableTrace", switch;
        /// No metrics.
        disable_metric: bool = "DisableMetric", switch;
        /// No events.
        disable_event: bool = "DisableEvent", switch;
        /// How much at once.
        batch_size_bytes: i64 = "TelemetryBatchSizeBytes", positive(32_768);
        /// How often, s.
        batch_interval_in_secs: i64 = "TelemetryBatchIntervalInSecs", positive(30);
        /// A sign of life, min.
        heart_beat_interval_in_mins: i64 = "HeartBeatIntervalInMins", positive(30);
        /// The NCs, min.
        snapshot_interval_in_mins: i64 = "SnapshotIntervalInMins", positive(60);
        /// The configuration, min; 0 is off.
        config_snapshot_interval_in_mins: i64 = "ConfigSnapshotIntervalInMins", whole(0, MOST, 0);
        /// How often the machine's metadata is asked for until it is known, s.
        refresh_interval_in_secs: i64 = "RefreshIntervalInSecs", positive(15);
        /// The machine's metadata is not asked for.
        disable_metadata_refresh_thread: bool = "DisableMetadataRefreshThread", switch;
        /// More about itself.
        debug_mode: bool = "DebugMode", switch;
        /// Where to; wins over the key.
        app_insights_connection_string: Secret = "AppInsightsConnectionString", secret;
        /// Where to.
        app_insights_instrumentation_key: Secret = "AppInsightsInstrumentationKey", secret;
    }
}

section! {
    /// Our own options; each is the flag of the same name, if it names one.
    NodeSettings {
        /// `--state-dir`
        state_dir: Option<PathBuf> = "StateDir", given(path);
        /// `--grpc-socket`
        grpc_socket: Option<PathBuf> = "GRPCSocket", given(path);
        /// `--grpc-bind-address`
        grpc_bind_address: Option<SocketAddr> = "GRPCBindAddress", given(bind_address);
        /// `--tls-cert`
        grpc_tls_cert: Option<PathBuf> = "GRPCTLSCertPath", given(path);
        /// `--tls-key`
        grpc_tls_key: Option<PathBuf> = "GRPCTLSKeyPath", given(path);
        /// `--tls-client-ca`
        grpc_tls_client_ca: Option<PathBuf> = "GRPCTLSClientCAPath", given(path);
        /// The REST listeners, where they are to be under our own name too.
        rest: Option<NodeRest> = "REST", object(NodeRest::read);
        /// `--standalone-cidr`
        standalone_cidrs: Option<Vec<String>> = "StandaloneCIDRs", given(texts);
        /// `--masquerade`
        masquerade: Option<bool> = "Masquerade", given(flag);
        /// `--allow-uid`
        allow_uids: Option<Vec<u32>> = "AllowUIDs", given(ids);
        /// `--allow-gid`
        allow_gids: Option<Vec<u32>> = "AllowGIDs", given(ids);
        /// `--cool-down`
        #[serde(serialize_with = "serialize_seconds")]
        cool_down_secs: Option<Duration> = "CoolDownSecs", given(seconds);
        /// `--reconcile-interval`
        #[serde(serialize_with = "serialize_seconds")]
        reconcile_interval_secs: Option<Duration> = "ReconcileIntervalSecs", given(seconds);
        /// `--reconcile-grace`
        #[serde(serialize_with = "serialize_seconds")]
        reconcile_grace_secs: Option<Duration> = "ReconcileGraceSecs", given(seconds);
        /// `--import-legacy`
        import_legacy: Option<PathBuf> = "ImportLegacy", given(path);
        /// `--journal-entries`
        journal_entries: Option<u64> = "JournalEntries", given(count);
        /// `--max-concurrent-requests`
        max_concurrent_requests: Option<u64> = "MaxConcurrentRequests", given(count);
        /// `--drain-timeout`
        #[serde(serialize_with = "serialize_seconds")]
        drain_timeout_secs: Option<Duration> = "DrainTimeoutSecs", given(seconds);
        /// `--log-level`
        log_level: Option<String> = "LogLevel", given(|found| found.text());
        /// `--log-format`
        log_format: Option<LogFormat> = "LogFormat", given(log_format);
        /// `--otlp-endpoint`
        otlp_endpoint: Option<BaseUrl> = "OTLPEndpoint", given(base_url);
        /// Where docker's API is; a constant in the reference, and no flag here.
        docker_url: Option<DockerUrl> = "DockerURL", given(docker_url);
        /// Where the instance metadata service is; a constant in the reference, and no flag here.
        imds_url: Option<BaseUrl> = "IMDSURL", given(base_url);
    }
}

section! {
    /// The REST listeners. An empty object is what `azure-cns` does by itself.
    NodeRest {
        /// `-c`
        url: String = "URL", text("");
        /// `-p`
        port: Option<u16> = "Port", given(|found| Ok(u16::try_from(found.integer(1, 65_535)?).unwrap_or(u16::MAX)));
        /// Authorities whose clients are trusted, PEM; without it, only the one that has the served certificate itself.
        client_ca: Option<PathBuf> = "ClientCAPath", given(path);
        /// How often a certificate is fetched from Key Vault; counts before `KeyVaultSettings.RefreshIntervalInHrs`.
        #[serde(serialize_with = "serialize_seconds")]
        key_vault_refresh_secs: Option<Duration> = "KeyVaultRefreshSecs", given(seconds);
    }
}

impl Default for FileSettings {
    /// What an empty file says.
    fn default() -> Self {
        let mut seen = Seen::default();
        let empty = Section::of_document(Json::Object(Vec::new()), Path::new(""), &mut seen);
        // Nothing is there that could be wrong; a test reads it.
        match empty.and_then(Self::read) {
            Ok(settings) => settings,
            Err(error) => unreachable!("an empty file is refused: {error}"),
        }
    }
}

/// Settings that this version takes and does not act on, by their path. The mode that would use them cannot be run, or
/// they are about what it does otherwise.
const NOT_ACTED_ON: &[&str] = &[
    "/InitializeFromCNI",
    "/EnableStateMigration",
    "/EnableIPAMv2",
    "/EnableSubnetScarcity",
    "/EnableSwiftV2",
    "/EnableSwiftV2PrefixAllocation",
    "/EnableSwiftV1DualStack",
    "/EnableHomeAZ",
    "/EnableK8sDevicePlugin",
    "/EnableStaleHNSCleanupOnNCCreate",
    "/IPv6PrefixClamp",
    "/SyncHostNCVersionIntervalMs",
    "/SyncHostNCTimeoutMs",
    "/EnableAPIServerHealthPing",
    "/EnablePprof",
    "/Logger/appInsights",
    "/Logger/etw",
    "/TLSSubjectName",
    "/TLSEndpoint",
    "/MellanoxMonitorIntervalSecs",
    "/TelemetrySettings/DebugMode",
];

impl FileSettings {
    /// Reads the file. Also returns what is worth saying about it. `None` if it is not there.
    pub(super) fn load(file: &Path) -> Result<Option<(Self, Vec<String>)>, ConfigError> {
        match fs::read_to_string(file) {
            Ok(text) => Self::parse(&text, file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ConfigError::File { file: file.to_owned(), why: error.to_string() }),
        }
    }

    pub(super) fn parse(text: &str, file: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        let json: Json =
            serde_json::from_str(text.strip_prefix('\u{feff}').unwrap_or(text)).map_err(|error| {
                ConfigError::File { file: file.to_owned(), why: format!("this is not JSON: {error}") }
            })?;
        let mut seen = Seen::default();
        let mut settings = Self::read(Section::of_document(json, file, &mut seen)?)?;
        let mut notes = Vec::new();
        if !seen.unknown.is_empty() {
            notes.push(format!("{}: unknown and ignored: {}", file.display(), seen.unknown.join(", ")));
        }
        if !(120..=128).contains(&settings.ipv6_prefix_clamp) {
            // The reference corrects this itself, so files that say so work.
            notes.push(format!(
                "IPv6PrefixClamp {}: from 120 to 128 is allowed; 120 is used",
                settings.ipv6_prefix_clamp
            ));
            settings.ipv6_prefix_clamp = 120;
        }
        notes.extend(settings.not_acted_on());
        Ok((settings, notes))
    }

    /// One line about what was set and is not acted on.
    fn not_acted_on(&self) -> Option<String> {
        let (Ok(set), Ok(default)) = (serde_json::to_value(self), serde_json::to_value(Self::default()))
        else {
            return None;
        };
        let mut changed = Vec::new();
        for pointer in NOT_ACTED_ON {
            let (set, default) = (set.pointer(pointer), default.pointer(pointer));
            let name = pointer.trim_start_matches('/').replace('/', ".");
            match (set.and_then(|set| set.as_object()), default.and_then(|default| default.as_object())) {
                (Some(set), Some(default)) => {
                    let keys = set.iter().filter(|(key, value)| default.get(*key) != Some(value));
                    changed.extend(keys.map(|(key, _)| format!("{name}.{key}")));
                }
                _ if set != default => changed.push(name),
                _ => {}
            }
        }
        (!changed.is_empty())
            .then(|| format!("this version does not act on these settings yet: {}", changed.join(", ")))
    }
}

#[cfg(test)]
#[path = "file/tests.rs"]
mod tests;
