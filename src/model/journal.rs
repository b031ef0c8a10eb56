//! What happened, for which request, and what it changed: the biography behind `explain`.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{ContainerId, IpStateKind, NcId, PodIdentity, Timestamp};

/// Who sent a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The caller's user id where the listener knows it.
    pub uid: Option<u32>,
    /// The caller's process id where the listener knows it.
    pub pid: Option<u32>,
    /// Where it came from: `unix`, `tcp 127.0.0.1:5000`, or the daemon's own part, e.g. `reconciler`.
    pub origin: String,
    /// The request's id, the same in logs; empty for the daemon's own.
    pub request_id: String,
}

impl Actor {
    /// The daemon's own part of that name.
    pub fn internal(part: &str) -> Self {
        Self { origin: part.to_owned(), ..Self::default() }
    }
}

/// What a command wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// Register orchestrator and node.
    SetOrchestrator,
    /// Record location and network type.
    SetEnvironment,
    /// Create or update a network container.
    UpsertNc,
    /// Delete a network container.
    DeleteNc,
    /// Addresses for a pod.
    RequestIpConfigs,
    /// Addresses back from a pod.
    ReleaseIpConfigs,
    /// Addresses back from a sandbox that is gone.
    ReleaseDeadSandbox,
    /// Mark addresses to be given back to the control plane.
    MarkPendingRelease,
    /// The host's programmed versions.
    SetHostVersions,
    /// Record a sandbox's interfaces.
    UpdateEndpoint,
    /// Drop a sandbox's record.
    DeleteEndpoint,
    /// Records from legacy files.
    ImportLegacyState,
    /// The machine was rebooted: what belonged to the earlier boot is dropped.
    Reboot,
}

impl Operation {
    /// The name shown to people and in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SetOrchestrator => "SetOrchestrator",
            Self::SetEnvironment => "SetEnvironment",
            Self::UpsertNc => "UpsertNc",
            Self::DeleteNc => "DeleteNc",
            Self::RequestIpConfigs => "RequestIPConfigs",
            Self::ReleaseIpConfigs => "ReleaseIPConfigs",
            Self::ReleaseDeadSandbox => "ReleaseDeadSandbox",
            Self::MarkPendingRelease => "MarkPendingRelease",
            Self::SetHostVersions => "SetHostVersions",
            Self::UpdateEndpoint => "UpdateEndpoint",
            Self::DeleteEndpoint => "DeleteEndpoint",
            Self::ImportLegacyState => "ImportLegacyState",
            Self::Reboot => "Reboot",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It took effect.
    Done,
    /// It was accepted and there was nothing to change (an idempotent repeat, a release of what is not held).
    Unchanged,
    /// It was refused and changed nothing.
    Refused {
        /// The return code's name in UPPER_SNAKE, or a finer reason.
        reason: String,
        /// The message that the caller got.
        message: String,
    },
}

/// One visible effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeNote {
    /// An address changed its state. `None` is "no record".
    Ip {
        /// The address.
        address: IpAddr,
        /// Before.
        from: Option<IpStateKind>,
        /// After.
        to: Option<IpStateKind>,
        /// Milliseconds it had been in the former state; metrics use it.
        after_ms: u64,
    },
    /// More addresses than are listed one by one changed alike.
    Ips {
        /// How many.
        count: u32,
        /// Before.
        from: Option<IpStateKind>,
        /// After.
        to: Option<IpStateKind>,
    },
    /// A network container was created, updated or removed.
    Nc {
        /// Which.
        id: NcId,
        /// What happened: `created`, `updated`, `deleting`, `deleted`, `host version 3`.
        what: String,
    },
    /// An endpoint record was created, updated or removed.
    Endpoint {
        /// Which.
        container: ContainerId,
        /// What happened.
        what: String,
    },
}

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Ascending over all entries, never reused; gaps are possible.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: Actor,
    /// What was wanted.
    pub operation: Operation,
    /// For which container.
    pub container: Option<ContainerId>,
    /// For which pod; absent or empty names where not known.
    pub pod: Option<PodIdentity>,
    /// On which network container.
    pub nc: Option<NcId>,
    /// The addresses that the reply named or the command touched, at most 64.
    pub addresses: Vec<IpAddr>,
    /// How it ended.
    pub outcome: Outcome,
    /// What it changed, at most 64 notes.
    pub changes: Vec<ChangeNote>,
    /// Why, where the operation alone does not say it: `sandbox /run/netns/x is gone`, `stale: the container was added again`.
    pub why: String,
}
