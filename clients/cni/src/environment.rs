//! What the runtime says in environment variables (CNI spec 1.1, "CNI operations"; spec/cni-plugin.md §2).

use std::{env, path::PathBuf};

use cns::model::{ContainerId, IfName, PodIdentity};

use crate::{
    error::{CniError, Code},
    version::CniVersion,
};

/// `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Command {
    pub(crate) fn from_environment() -> Result<Self, CniError> {
        let text = text("CNI_COMMAND")?;
        Ok(match text.as_str() {
            "ADD" => Self::Add,
            "DEL" => Self::Del,
            "CHECK" => Self::Check,
            "GC" => Self::Gc,
            "STATUS" => Self::Status,
            "VERSION" => Self::Version,
            other => {
                return Err(invalid(format!(
                    "CNI_COMMAND `{}` is not known: it must be ADD, DEL, CHECK, GC, STATUS or VERSION",
                    other.escape_default()
                )));
            }
        })
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    /// Whether the configuration's version has the command at all.
    pub(crate) fn needs(self, configured: CniVersion) -> Result<(), CniError> {
        let since = match self {
            Self::Check => CniVersion::V0_4_0,
            Self::Gc | Self::Status => CniVersion::V1_1_0,
            Self::Add | Self::Del | Self::Version => return Ok(()),
        };
        if configured >= since {
            return Ok(());
        }
        Err(CniError::new(
            Code::IncompatibleVersion,
            format!(
                "{} exists since CNI {}, and the configuration has cniVersion {}",
                self.as_str(),
                since.as_str(),
                configured.as_str()
            ),
        ))
    }

    /// The variables that must be there, besides `CNI_COMMAND`.
    const fn required(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            Self::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Self::Gc | Self::Status => &["CNI_PATH"],
            Self::Version => &[],
        }
    }
}

/// The other variables.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    /// `CNI_CONTAINERID` and `CNI_IFNAME`; none for commands without a container.
    interface: Option<(ContainerId, IfName)>,
    /// `CNI_NETNS`, if not empty.
    pub(crate) netns: Option<PathBuf>,
    /// The pod by `CNI_ARGS`; its parts are empty where the runtime knows no pods.
    pub(crate) pod: PodIdentity,
}

impl Environment {
    pub(crate) fn read(command: Command) -> Result<Self, CniError> {
        let missing: Vec<_> = command
            .required()
            .iter()
            .copied()
            .filter(|name| env::var_os(name).is_none_or(|value| value.is_empty()))
            .collect();
        if !missing.is_empty() {
            return Err(invalid(format!(
                "{} needs these environment variables, which are missing or empty: {}",
                command.as_str(),
                missing.join(", ")
            )));
        }
        let interface = match command {
            Command::Add | Command::Del | Command::Check => {
                let container = text("CNI_CONTAINERID")?
                    .parse::<ContainerId>()
                    .map_err(|error| invalid(format!("CNI_CONTAINERID: {error}")))?;
                let ifname = text("CNI_IFNAME")?
                    .parse::<IfName>()
                    .map_err(|error| invalid(format!("CNI_IFNAME: {error}")))?;
                Some((container, ifname))
            }
            Command::Gc | Command::Status | Command::Version => None,
        };
        let pod = match pod(&text("CNI_ARGS")?) {
            Ok(pod) => pod,
            // What is to be deleted is known by its container; malformed words about it must not keep it alive.
            Err(_) if command == Command::Del => PodIdentity::default(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            interface,
            netns: env::var_os("CNI_NETNS").filter(|value| !value.is_empty()).map(PathBuf::from),
            pod,
        })
    }

    /// Container and interface. Every command that asks has them.
    pub(crate) fn interface(&self) -> Result<(&ContainerId, &IfName), CniError> {
        let pair = self.interface.as_ref().map(|(container, ifname)| (container, ifname));
        pair.ok_or_else(|| invalid("CNI_CONTAINERID and CNI_IFNAME are needed".to_owned()))
    }
}

fn invalid(message: String) -> CniError {
    CniError::new(Code::Environment, message)
}

/// A variable's text; empty if it is not set.
fn text(name: &str) -> Result<String, CniError> {
    match env::var(name) {
        Ok(text) => Ok(text),
        Err(env::VarError::NotPresent) => Ok(String::new()),
        Err(env::VarError::NotUnicode(_)) => Err(invalid(format!("{name} is not UTF-8"))),
    }
}

/// The pod's names from `CNI_ARGS`. Keys that we do not know are no error with `IgnoreUnknown`, which runtimes set, and
/// neither without: a plugin that refuses a pod for a word meant for another plugin helps nobody (spec/cni-plugin.md §13.14).
fn pod(arguments: &str) -> Result<PodIdentity, CniError> {
    let (mut namespace, mut name) = ("", "");
    for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(invalid(format!(
                "CNI_ARGS: `{}` is not KEY=VALUE (pairs are separated by `;`)",
                pair.escape_default()
            )));
        };
        match key {
            "K8S_POD_NAMESPACE" => namespace = value,
            "K8S_POD_NAME" => name = value,
            _ => {}
        }
    }
    PodIdentity::new(namespace, name).map_err(|error| invalid(format!("CNI_ARGS: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_names_come_from_the_arguments() {
        let known = pod("IgnoreUnknown=1;K8S_POD_NAMESPACE=web;K8S_POD_NAME=nginx-0;K8S_POD_UID=7").unwrap();
        assert_eq!((known.namespace(), known.name()), ("web", "nginx-0"));
        for nameless in ["", ";", "IgnoreUnknown=1", "K8S_POD_NAME="] {
            assert!(!pod(nameless).unwrap().is_known(), "{nameless}");
        }
        for bad in ["K8S_POD_NAME", "a=b;c", "K8S_POD_NAME=a b", "K8S_POD_NAME=a\nb"] {
            assert_eq!(pod(bad).unwrap_err().code, Code::Environment, "{bad}");
        }
    }

    #[test]
    fn commands_know_since_when_they_exist() {
        for (command, version, known) in [
            (Command::Check, CniVersion::V0_3_1, false),
            (Command::Check, CniVersion::V0_4_0, true),
            (Command::Gc, CniVersion::V1_0_0, false),
            (Command::Status, CniVersion::V1_1_0, true),
            (Command::Del, CniVersion::V0_3_0, true),
        ] {
            assert_eq!(command.needs(version).is_ok(), known, "{command:?} {version:?}");
        }
    }
}
