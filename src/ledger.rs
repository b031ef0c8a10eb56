//! The node's single source of truth: state, commands, transitions, indices, and the group-committing writer.

mod change;
mod command;

pub use change::{Change, JournalClass, JournalKey, JournalPosition, Loaded, Persist, PersistError};
pub use command::{
    Command, Granted, HostVersionsReply, Imported, LedgerConfig, LegacyNc, LegacyState, MarkPendingRelease,
    Marked, MissingAssigned, NcOrigin, NcShortage, Rejection, ReleaseIps, ReleaseOutcome, Released, Reply,
    RequestIps, Requester, UpdateEndpoint, UpsertNc, UpsertedNc,
};
