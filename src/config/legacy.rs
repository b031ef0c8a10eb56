//! What the reference's flags say that no other setting stands for, and where its state files are.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use super::{CommandLine, ConfigError, Environment, LegacyFlags, NodeSettings, Program, absolute, seconds};
use crate::host::cni_plugin::CniPlugin;

/// What precedes the reference's `azure-cns.json`.
const STORE_PREFIX: &str = "/var/lib/azure-network/";
/// What precedes its `azure-endpoints.json`.
const ENDPOINT_STORE_PREFIX: &str = "/var/run/azure-cns/";

/// The reference's state files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LegacyPaths {
    /// `azure-cns.json`
    pub azure_cns: PathBuf,
    /// `azure-endpoints.json`
    pub azure_endpoints: PathBuf,
    /// `azure-vnet.json`, the CNI's; only on demand: in the modes that this version runs it is not the pods' truth.
    pub azure_vnet: Option<PathBuf>,
    /// Nobody asked for it: most nodes have none of these files.
    pub by_default: bool,
}

/// The reference's flags that no other setting stands for, with its defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LegacySettings {
    /// `-np`: where the CNI's binaries are.
    pub net_plugin_path: PathBuf,
    /// `-npconfig`: the CNI's configuration.
    pub net_plugin_config_file: PathBuf,
    /// `-httpcontimeout`: how long connecting to DNC may take.
    #[serde(serialize_with = "seconds")]
    pub http_connection_timeout: Duration,
    /// `-httprespheadertimeout`: how long its answer may take.
    #[serde(serialize_with = "seconds")]
    pub http_response_header_timeout: Duration,
    /// `-pe`: DNC, for `-m`.
    pub private_endpoint: Option<String>,
    /// `-iv`: the infrastructure network, for `-m`.
    pub infra_vnet: Option<String>,
    /// `-n`: the node, for `-m`.
    pub node_id: Option<String>,
    /// `-ts`: whether the CNI's telemetry socket is wanted.
    pub telemetry_service: bool,
}

impl LegacySettings {
    /// The CNI plugin that these flags are about.
    pub(super) fn cni_plugin(&self) -> CniPlugin {
        CniPlugin { path: self.net_plugin_path.clone(), list: self.net_plugin_config_file.clone() }
    }

    pub(super) fn of(flags: &LegacyFlags) -> Self {
        let text = |long| flags.text(long).map(ToOwned::to_owned);
        // The flags' table lets no other number through.
        let timeout = |long, default| {
            Duration::from_secs(flags.text(long).and_then(|text| text.parse().ok()).unwrap_or(default))
        };
        Self {
            net_plugin_path: flags.text("net-plugin-path").unwrap_or("/opt/cni/bin").into(),
            net_plugin_config_file: flags
                .text("net-plugin-config-file")
                .unwrap_or("/etc/cni/net.d/10-azure.conflist")
                .into(),
            http_connection_timeout: timeout("http-connection-timeout", 5),
            http_response_header_timeout: timeout("http-response-header-timeout", 120),
            private_endpoint: text("private-endpoint"),
            infra_vnet: text("infra-vnet"),
            node_id: text("node-id"),
            telemetry_service: flags.switch("telemetry-service").unwrap_or(false),
        }
    }
}

/// Where the reference left its state, if it is to be taken over.
pub(super) fn import_paths(
    command: &CommandLine,
    environment: &Environment,
    node: &NodeSettings,
    notes: &mut Vec<String>,
) -> Result<Option<LegacyPaths>, ConfigError> {
    let directory = command.args.import_legacy.as_ref().or(node.import_legacy.as_ref());
    if let Some(directory) = directory {
        let directory = absolute("import-legacy", directory)?;
        return Ok(Some(LegacyPaths {
            azure_cns: directory.join("azure-cns.json"),
            azure_endpoints: directory.join("azure-endpoints.json"),
            azure_vnet: Some(directory.join("azure-vnet.json")),
            by_default: false,
        }));
    }
    let store = command.legacy.text("store-file-path");
    if store.is_none() && command.program == Program::Cns {
        return Ok(None);
    }
    let endpoints = environment.text("CNSStoreFilePath")?;
    for (key, prefix) in [("--store-file-path", store), ("CNSStoreFilePath", endpoints)] {
        if let Some(prefix) = prefix.filter(|prefix| !prefix.ends_with('/')) {
            // It may be meant: the reference writes such files.
            notes
                .push(format!("{key} {prefix}: this precedes the file's name and does not end with a slash"));
        }
    }
    let file = |key, prefix: &str, name: &str| absolute(key, Path::new(&format!("{prefix}{name}")));
    Ok(Some(LegacyPaths {
        azure_cns: file("store-file-path", store.unwrap_or(STORE_PREFIX), "azure-cns.json")?,
        azure_endpoints: file(
            "store-file-path",
            endpoints.unwrap_or(ENDPOINT_STORE_PREFIX),
            "azure-endpoints.json",
        )?,
        azure_vnet: None,
        by_default: store.is_none(),
    }))
}

/// What makes use of some of the flags.
#[derive(Clone, Copy, Debug)]
pub(super) struct InEffect {
    pub(super) managed: bool,
    pub(super) conflist: bool,
    pub(super) cni_plugin: bool,
}

/// One line about legacy flags that were given and change nothing.
pub(super) fn without_effect(legacy: &LegacyFlags, in_effect: InEffect) -> Option<String> {
    const FLAGS: [&str; 6] = [
        "create-defaultextnetwork-type",
        "telemetry",
        "telemetry-service",
        "api-url",
        "ipam-query-url",
        "ipam-query-interval",
    ];
    const OF_MANAGED: [&str; 5] = [
        "http-connection-timeout",
        "http-response-header-timeout",
        "private-endpoint",
        "infra-vnet",
        "node-id",
    ];
    const OF_CONFLIST: [&str; 2] = ["cni-conflist-filepath", "cni-conflist-scenario"];
    let is_without = |long: &&str| {
        FLAGS.contains(long)
            || (!in_effect.managed && OF_MANAGED.contains(long))
            || (!in_effect.conflist && OF_CONFLIST.contains(long))
            || (!in_effect.conflist && !in_effect.cni_plugin && *long == "net-plugin-path")
    };
    let given: Vec<String> = legacy
        .given()
        .filter(|(long, value)| is_without(long) && !value.is_empty())
        // What it is by itself.
        .filter(|given| *given != ("telemetry", "true"))
        .map(|(long, _)| format!("--{long}"))
        .collect();
    (!given.is_empty()).then(|| format!("this version does not act on these flags: {}", given.join(", ")))
}
