//! The environment variables that the reference reads. Ours belong to the options (`cns --help`), and clap reads them.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    net::IpAddr,
    path::PathBuf,
};

use ipnet::IpNet;
use serde::Serialize;

use super::{ConfigError, rest::primary_address};

/// What the process was started in: handed over, so that a test needs no process of its own.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The variables.
    pub variables: BTreeMap<OsString, OsString>,
    /// Where the executable is.
    pub executable_dir: Option<PathBuf>,
    /// The machine's address in the world.
    pub primary_address: Option<IpAddr>,
    /// Whether the process may do anything.
    pub is_root: bool,
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Self {
        let executable = std::env::current_exe().ok();
        Self {
            variables: std::env::vars_os().collect(),
            executable_dir: executable.and_then(|path| path.parent().map(ToOwned::to_owned)),
            primary_address: primary_address(),
            is_root: nix::unistd::geteuid().is_root(),
        }
    }

    /// A variable that is set and not empty.
    pub fn text(&self, name: &'static str) -> Result<Option<&str>, ConfigError> {
        let Some(value) = self.variables.get(OsStr::new(name)).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        match value.to_str() {
            Some(text) => Ok(Some(text)),
            None => Err(ConfigError::value(name, value.to_string_lossy(), "the value is not UTF-8")),
        }
    }
}

/// What the environment says about the node and the cluster. Nothing acts on it in the modes that this version can run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EnvironmentSettings {
    /// `NODENAME`
    pub node_name: Option<String>,
    /// `NODE_IP`
    pub node_ip: Option<IpAddr>,
    /// `POD_CIDRs`
    pub pod_cidrs: Vec<IpNet>,
    /// `SERVICE_CIDRs`
    pub service_cidrs: Vec<IpNet>,
    /// `INFRA_VNET_CIDRs`
    pub infra_vnet_cidrs: Vec<IpNet>,
    /// `CNS_ENABLE_CNI_CONFLIST_GENERATION`: whether it is there at all.
    pub cni_conflist_generation: bool,
}

impl EnvironmentSettings {
    /// Checks them at the start: the reference finds a malformed network with the first pod.
    pub(super) fn read(environment: &Environment) -> Result<Self, ConfigError> {
        let node_ip = match environment.text("NODE_IP")? {
            None => None,
            Some(text) => Some(
                text.trim()
                    .parse()
                    .map_err(|_| ConfigError::value("NODE_IP", text, "an IP address is expected"))?,
            ),
        };
        Ok(Self {
            node_name: environment.text("NODENAME")?.map(ToOwned::to_owned),
            node_ip,
            pod_cidrs: cidrs(environment, "POD_CIDRs")?,
            service_cidrs: cidrs(environment, "SERVICE_CIDRs")?,
            infra_vnet_cidrs: cidrs(environment, "INFRA_VNET_CIDRs")?,
            cni_conflist_generation: environment
                .variables
                .contains_key(OsStr::new("CNS_ENABLE_CNI_CONFLIST_GENERATION")),
        })
    }
}

fn cidrs(environment: &Environment, name: &'static str) -> Result<Vec<IpNet>, ConfigError> {
    let Some(text) = environment.text(name)? else { return Ok(Vec::new()) };
    let parse = |part: &str| {
        part.trim().parse().map_err(|_| {
            ConfigError::value(
                name,
                part.trim(),
                "CIDRs separated by commas are expected, such as 10.0.0.0/8,fd00::/8",
            )
        })
    };
    text.split(',').map(parse).collect()
}
