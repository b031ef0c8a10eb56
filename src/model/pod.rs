//! Who asks: the pod, and the key under which the ledger files it.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::ContainerId;

/// A pod's namespace and name. Informational: neither is part of the key (spec/ipam.md §1.2), and both are empty where a
/// runtime knows no pods or a legacy caller sent a `null` context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodIdentity {
    namespace: Arc<str>,
    name: Arc<str>,
}

/// The names cannot be a pod's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {part} `{given}` is {why}")]
pub struct InvalidPodIdentity {
    part: &'static str,
    given: String,
    why: &'static str,
}

impl PodIdentity {
    /// At most 253 bytes each (RFC 1123 subdomain, as Kubernetes has it), printable, no white space: they reach log lines.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidPodIdentity> {
        for (part, given) in [("namespace", namespace), ("name", name)] {
            let why = if given.len() > 253 {
                "longer than 253 bytes"
            } else if given.chars().any(|c| c.is_control() || c.is_whitespace()) {
                "not printable text without white space"
            } else {
                continue;
            };
            let given = given.chars().take(64).flat_map(char::escape_default).collect();
            return Err(InvalidPodIdentity { part, given, why });
        }
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }

    /// The namespace; may be empty.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name; may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it names a pod at all.
    pub fn is_known(&self) -> bool {
        !self.name.is_empty()
    }
}

impl fmt::Display for PodIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Which field of a request is the pod key. Fixed for the life of the process (spec/ipam.md §1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PodKeyScheme {
    /// 1: `podInterfaceID`.
    InterfaceId,
    /// 2: `infraContainerID`.
    InfraContainerId,
}

impl PodKeyScheme {
    /// The number that legacy JSON shows as `Version`.
    pub const fn number(self) -> u8 {
        match self {
            Self::InterfaceId => 1,
            Self::InfraContainerId => 2,
        }
    }
}

/// The key that owns addresses. Never empty: an empty key would be shared by all who send none (spec/ipam.md §13.12).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodKey(Arc<str>);

impl PodKey {
    /// `None` for an empty text, one longer than 512 bytes or with control characters.
    pub fn new(text: &str) -> Option<Self> {
        let usable = !text.is_empty() && text.len() <= 512 && !text.chars().any(char::is_control);
        usable.then(|| Self(text.into()))
    }

    /// Of a request, by what the scheme takes.
    pub fn of(scheme: PodKeyScheme, container: Option<&ContainerId>, interface_id: &str) -> Option<Self> {
        Self::new(match scheme {
            PodKeyScheme::InterfaceId => interface_id,
            PodKeyScheme::InfraContainerId => container.map_or("", ContainerId::as_str),
        })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
