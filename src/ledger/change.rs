//! What a transition changes, as records: the store persists them, the read view applies them, and a start replays them.

use std::{error::Error, net::IpAddr, sync::Arc};

use crate::model::{ContainerId, Endpoint, IpRecord, JournalEntry, NcId, NcRecord, Orchestrator, Tombstone};

/// One record put or deleted. A batch of them is one durable transaction.
///
/// Records are shared, not copied: the ledger's state, the read view and the batch on its way to disk hold the same one.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The one orchestrator record.
    SetOrchestrator(Orchestrator),
    /// Keyed by [`NcRecord::id`].
    PutNc(Arc<NcRecord>),
    /// The NC is gone. Its address records have deletions of their own.
    DeleteNc(NcId),
    /// Keyed by [`IpRecord::address`].
    PutIp(Arc<IpRecord>),
    /// The address is gone.
    DeleteIp(IpAddr),
    /// Keyed by [`Endpoint::container`].
    PutEndpoint(Arc<Endpoint>),
    /// The sandbox's record is gone.
    DeleteEndpoint(ContainerId),
    /// Keyed by [`Tombstone::container`].
    PutTombstone(Tombstone),
    /// The tombstone has aged out.
    DeleteTombstone(ContainerId),
    /// A new journal entry under a key never used before.
    AppendJournal(JournalKey, Arc<JournalEntry>),
    /// The oldest entry of its class, pushed out by a new one.
    DropJournal(JournalKey),
    /// What the legacy state file holds beside what is modelled here (`Networks`, `PnpIDByMacAddress`, unknown top-level
    /// keys …), as one JSON object, kept so that an export gives it back (spec/network-containers.md §17).
    SetLegacyExtra(Arc<str>),
}

/// One command that is durable, as watchers are told: its journal entry and every record that it changed, in order. The
/// entry sums many addresses up and the records have gone on by the time that a watcher looks; these are as they were.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// Who wanted what, and how it ended.
    pub entry: Arc<JournalEntry>,
    /// What it changed; empty for a refusal.
    pub effects: Vec<Effect>,
}

/// A record before and after. Absent before: it is new; absent after: it is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// An address.
    Ip {
        /// As it was.
        before: Option<Arc<IpRecord>>,
        /// As it is.
        after: Option<Arc<IpRecord>>,
    },
    /// An endpoint record.
    Endpoint {
        /// As it was.
        before: Option<Arc<Endpoint>>,
        /// As it is.
        after: Option<Arc<Endpoint>>,
    },
}

/// The two rings of the journal. Refusals have their own, so that a pod that is refused every few seconds for a night
/// cannot push out the biography of the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JournalClass {
    /// Commands that took effect or were accepted.
    Effect,
    /// Commands that were refused.
    Refusal,
}

/// Where a journal entry is kept. `index` counts up within the class without gaps; the oldest is dropped when the ring is
/// full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JournalKey {
    /// The ring.
    pub class: JournalClass,
    /// Position, never reused.
    pub index: u64,
}

/// Everything that was on disk, in no particular order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// See [`Change::SetOrchestrator`].
    pub orchestrator: Orchestrator,
    /// All network containers.
    pub ncs: Vec<NcRecord>,
    /// All addresses.
    pub ips: Vec<IpRecord>,
    /// All endpoints.
    pub endpoints: Vec<Endpoint>,
    /// All tombstones.
    pub tombstones: Vec<Tombstone>,
    /// Where the journal stands.
    pub journal: JournalPosition,
    /// The machine was rebooted since the store was last opened.
    pub rebooted: bool,
    /// See [`Change::SetLegacyExtra`]; empty when there is none.
    pub legacy_extra: Arc<str>,
}

/// Where the journal stands: the next free positions and the oldest kept ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalPosition {
    /// The next entry's `seq`.
    pub next_seq: u64,
    /// Oldest kept index and next free index of [`JournalClass::Effect`].
    pub effects: (u64, u64),
    /// The same of [`JournalClass::Refusal`].
    pub refusals: (u64, u64),
}

/// The disk's side of the ledger.
pub trait Persist: Send + 'static {
    /// Makes all changes durable in one transaction, or none of them. Blocks until the disk has them; called on the
    /// ledger's own thread. After an error the next call may succeed: the implementation recovers by itself.
    fn commit(&mut self, changes: &[Change]) -> Result<(), PersistError>;

    /// Writes and flushes something harmless: whether the disk takes writes again after a failed commit.
    fn probe(&mut self) -> Result<(), PersistError>;

    /// Reads everything back, as a start would. For `doctor`, which compares it with what is in memory.
    fn reload(&mut self) -> Result<Loaded, PersistError>;
}

/// The disk did not take a batch; nothing of it is durable.
#[derive(Debug, thiserror::Error)]
#[error("the state could not be made durable: {0}")]
pub struct PersistError(#[source] pub Box<dyn Error + Send + Sync>);
