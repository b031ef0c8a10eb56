//! One secondary address, its state, and what remembers a container that was deleted.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{BootTime, ContainerId, IfName, IpConfigId, NcId, PodIdentity, PodKey, Timestamp};

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The key that owns it.
    pub key: PodKey,
    /// The sandbox's container id; absent only for a legacy caller of the interface-id scheme that sent none.
    pub container: Option<ContainerId>,
    /// `podInterfaceID` as sent; may be empty.
    pub interface_id: String,
    /// The interface inside the pod; absent for a caller that sent none.
    pub ifname: Option<IfName>,
    /// The pod's names, possibly empty.
    pub pod: PodIdentity,
    /// When the plugin that asked began, if it said so (design §4).
    pub began: Option<BootTime>,
    /// The request said that the pod has delegated NICs (legacy `SecondaryInterfaceSet`).
    #[serde(default)]
    pub secondary_interfaces: bool,
}

/// The state of an address (spec/ipam.md §2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpState {
    /// Free to be given to a pod.
    Available,
    /// Given to a pod. Boxed: most addresses of a large pool are free, and should not carry the room of an owner.
    Assigned(Box<Assignment>),
    /// Known, but the host does not route it yet: its NC version is above the host's.
    PendingProgramming,
    /// To be given back to the control plane; never handed out, and growing the pool does not revive it.
    PendingRelease,
}

/// The state without its owner, for filters, counts and labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum IpStateKind {
    /// See [`IpState::Available`].
    Available,
    /// See [`IpState::Assigned`].
    Assigned,
    /// See [`IpState::PendingProgramming`].
    PendingProgramming,
    /// See [`IpState::PendingRelease`].
    PendingRelease,
}

impl IpStateKind {
    /// All four.
    pub const ALL: [Self; 4] =
        [Self::Available, Self::Assigned, Self::PendingProgramming, Self::PendingRelease];

    /// The legacy contract's text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Available => "Available",
            Self::Assigned => "Assigned",
            Self::PendingProgramming => "PendingProgramming",
            Self::PendingRelease => "PendingRelease",
        }
    }

    /// Its position in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for IpStateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl IpState {
    /// The state without its owner.
    pub const fn kind(&self) -> IpStateKind {
        match self {
            Self::Available => IpStateKind::Available,
            Self::Assigned(_) => IpStateKind::Assigned,
            Self::PendingProgramming => IpStateKind::PendingProgramming,
            Self::PendingRelease => IpStateKind::PendingRelease,
        }
    }

    /// The owner while assigned.
    pub fn assignment(&self) -> Option<&Assignment> {
        match self {
            Self::Assigned(assignment) => Some(assignment),
            _ => None,
        }
    }
}

/// What becomes of an assigned address when its pod lets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnRelease {
    /// Back to the free list.
    #[default]
    Free,
    /// The control plane asked for it while it was in use (`ipsNotInUse`): it becomes `PendingRelease`.
    GiveBack,
    /// Its source or NC no longer lists it: the record goes. Until then it belongs to the pod and to nobody else.
    Remove,
}

/// One secondary address of a network container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpRecord {
    /// Unique on the node.
    pub id: IpConfigId,
    /// Unique on the node.
    pub address: IpAddr,
    /// The NC that it belongs to.
    pub nc: NcId,
    /// The version of the NC in which it first appeared.
    pub nc_version: u64,
    /// Its state.
    pub state: IpState,
    /// When the state was last written.
    pub since: Timestamp,
    /// When a pod last let it go in this boot; absent when no pod had it.
    pub freed: Option<BootTime>,
    /// Only meaningful while assigned.
    #[serde(default)]
    pub on_release: OnRelease,
}

/// Remembers that a container was deleted, so that an ADD that began before cannot win afterwards (design §4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// The container.
    pub container: ContainerId,
    /// When the DEL began; of several, the latest.
    pub deleted: BootTime,
    /// When the ledger saw the DEL: ages the tombstone, and blocks callers that carry no time.
    pub recorded: BootTime,
    /// For people.
    pub at: Timestamp,
}
