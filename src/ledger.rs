//! The node's single source of truth: state, commands, transitions, indices, and the group-committing writer.

mod change;

pub use change::{Change, JournalClass, JournalKey, JournalPosition, Loaded, Persist, PersistError};
