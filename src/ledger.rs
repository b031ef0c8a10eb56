//! The node's single source of truth: state, commands, transitions, indices, and the group-committing writer (design §4).
//!
//! [`Ledger`] is the handle. A [`Command`] goes to the one writer, whose transition is a plain function of state, command
//! and time; its [`Change`]s are made durable in one transaction with those of the commands that waited beside it, and only
//! then is anybody answered. [`View`] is what readers see: committed records.

mod change;
mod command;
mod free_list;
mod invariant;
mod state;
mod transition;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use change::{
    Change, Committed, Effect, JournalClass, JournalKey, JournalPosition, Loaded, Persist, PersistError,
};
pub use command::{
    Command, Granted, HostVersionsReply, Imported, LedgerConfig, LegacyNc, LegacyState, MarkPendingRelease,
    Marked, MissingAssigned, NcOrigin, NcShortage, Rejection, ReleaseIps, ReleaseOutcome, Released, Reply,
    RequestIps, Requester, UpdateEndpoint, UpsertNc, UpsertedNc,
};
pub use view::{NcView, View};
pub use writer::{BatchReport, Health, Inspection, Ledger, LedgerError, LedgerObserver, WriterThread};
