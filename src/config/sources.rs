//! What single channel modes need, and what their combinations with other settings come to. Checked where it is used: a file that
//! serves several modes may hold settings of all of them.

use std::{path::PathBuf, time::Duration};

use serde::Serialize;

use super::{
    ChannelMode, ConfigError, FileRead, FileSettings, LegacyFlags, TelemetrySettings, agent_url, seconds,
};
use crate::{
    conflist::Scenario,
    host::{http::BaseUrl, insights::Destination},
};

/// What ChannelMode Managed needs to know of DNC (spec/config.md §2, `ManagedSettings`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManagedConfig {
    /// DNC.
    pub endpoint: BaseUrl,
    /// The infrastructure network's id in DNC.
    pub infrastructure_network_id: String,
    /// This node's id in DNC.
    pub node_id: String,
    /// Between two looks at DNC's list.
    #[serde(serialize_with = "seconds")]
    pub sync_interval: Duration,
}

impl ManagedConfig {
    /// From `ManagedSettings`, or the flags that come with `-m`. Where `-m` says the mode the flags count first, else the file
    /// (spec/config.md §5).
    pub(super) fn read(legacy: &LegacyFlags, file: &FileRead) -> Result<Self, ConfigError> {
        let settings = &file.settings.managed;
        let by_flag = legacy.switch("managed") == Some(true);
        let get = |flag: &'static str, short: &str, in_file: &str, name: &str| {
            let flagged = legacy.text(flag).filter(|text| !text.trim().is_empty());
            let filed = Some(in_file).filter(|text| !text.trim().is_empty());
            let path = file.key(&format!("ManagedSettings.{name}"));
            let flagged = flagged.map(|text| (text.trim().to_owned(), format!("--{flag}")));
            let filed = filed.map(|text| (text.trim().to_owned(), path.clone()));
            let found = if by_flag { flagged.or(filed) } else { filed.or(flagged) };
            found.ok_or_else(|| {
                let allowed =
                    format!("ChannelMode Managed needs it; give it there, or with -{short} beside -m");
                ConfigError::value(path, "is missing", allowed)
            })
        };
        let (endpoint, key) = get("private-endpoint", "pe", &settings.private_endpoint, "PrivateEndpoint")?;
        let (infrastructure_network_id, _) =
            get("infra-vnet", "iv", &settings.infrastructure_network_id, "InfrastructureNetworkID")?;
        let (node_id, _) = get("node-id", "n", &settings.node_id, "NodeID")?;
        let interval = u64::try_from(settings.node_sync_interval_in_seconds).unwrap_or(30).max(1);
        Ok(Self {
            endpoint: agent_url(&key, &endpoint)?,
            infrastructure_network_id,
            node_id,
            sync_interval: Duration::from_secs(interval),
        })
    }
}

/// Application Insights, if it is wanted. A node does not go without network because a key of its telemetry is wrong: that is noted.
pub(super) fn insights(
    settings: &TelemetrySettings,
    file: &FileRead,
    notes: &mut Vec<String>,
) -> Option<Destination> {
    if settings.disable_all {
        return None;
    }
    let (connection, key) =
        (&settings.app_insights_connection_string, &settings.app_insights_instrumentation_key);
    let (name, destination) = if !connection.is_empty() {
        ("AppInsightsConnectionString", Destination::of_connection_string(connection.reveal()))
    } else if !key.is_empty() {
        ("AppInsightsInstrumentationKey", Destination::of_key(key.reveal()))
    } else {
        return None;
    };
    let noted = |why| {
        let path = file.key(&format!("TelemetrySettings.{name}"));
        notes.push(format!("{path}: {why}; nothing is sent to Application Insights"));
    };
    destination.map_err(noted).ok()
}

/// The CNI configuration list that is to be written (spec/conflist.md §1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConflistConfig {
    /// Where to.
    pub path: PathBuf,
    /// Which.
    pub scenario: Scenario,
    /// Where the plugins that it names are expected.
    pub programs: PathBuf,
}

impl ConflistConfig {
    /// What is switched on must be whole, in every mode: the reference fails in confusing ways later (spec/conflist.md §6.6).
    pub(super) fn read(
        settings: &FileSettings,
        file: &FileRead,
        programs: PathBuf,
    ) -> Result<Option<Self>, ConfigError> {
        if !settings.enable_cni_conflist_generation {
            return Ok(None);
        }
        let missing = |name: &str, flag: &str, allowed: &str| {
            let allowed =
                format!("EnableCNIConflistGeneration needs it; give it there or with -{flag}: {allowed}");
            ConfigError::value(file.key(name), "is missing", allowed)
        };
        let path = PathBuf::from(&settings.cni_conflist_filepath);
        if path.as_os_str().is_empty() {
            let example = "e.g. /etc/cni/net.d/05-cilium.conflist";
            return Err(missing("CNIConflistFilepath", "cniconflist", example));
        }
        if !path.is_absolute() || path.file_name().is_none() {
            let key = file.key("CNIConflistFilepath");
            return Err(ConfigError::value(key, path.display(), "the absolute path of a file is expected"));
        }
        let scenario = settings.cni_conflist_scenario.ok_or_else(|| {
            let names = Scenario::ALL.map(Scenario::as_str).join(", ");
            missing("CNIConflistScenario", "cniconflistscenario", &format!("one of {names}"))
        })?;
        Ok(Some(Self { path, scenario, programs }))
    }
}

/// What contradicts the mode is an error; what the mode has no use for is told.
pub(super) fn check_mode(
    mode: ChannelMode,
    settings: &FileSettings,
    file: &FileRead,
    conflist: Option<&ConflistConfig>,
    notes: &mut Vec<String>,
) -> Result<(), ConfigError> {
    if mode == ChannelMode::AzureHost {
        if settings.manage_endpoint_state != Some(true) {
            let given = if settings.manage_endpoint_state.is_some() { "false" } else { "is missing" };
            let allowed =
                "ChannelMode AzureHost needs true: pods' addresses are known by their endpoint records";
            return Err(ConfigError::value(file.key("ManageEndpointState"), given, allowed));
        }
        if settings.program_snat_iptables {
            // spec/network-containers.md §16 N8: with it the reference cannot start while pods run.
            notes.push(
                "ProgramSNATIPTables is without effect: in ChannelMode AzureHost pods have addresses of the host's own subnet"
                    .into(),
            );
        }
    }
    if conflist.is_some() && matches!(mode, ChannelMode::Direct | ChannelMode::Managed) {
        notes.push(format!(
            "EnableCNIConflistGeneration is without effect: in ChannelMode {mode} the orchestrator configures the runtime"
        ));
    }
    Ok(())
}
