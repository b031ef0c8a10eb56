//! The tables, and how changes become rows.

use std::{collections::HashMap, path::Path};

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::{
    StoreError,
    codec::decode,
    log::LogId,
    rows::{LEGACY_EXTRA, ORCHESTRATOR, Row, Rows, TableId, table_key},
};
use crate::{
    ledger::{Change, JournalPosition, Loaded},
    model::JournalEntry,
};

type Definition<K> = TableDefinition<'static, K, &'static [u8]>;

const META: Definition<&str> = TableDefinition::new("meta");
const NCS: Definition<&str> = TableDefinition::new("network_containers");
const IPS: Definition<&[u8]> = TableDefinition::new("ip_configs");
const ENDPOINTS: Definition<&str> = TableDefinition::new("endpoints");
const TOMBSTONES: Definition<&str> = TableDefinition::new("tombstones");
const JOURNAL: Definition<(u8, u64)> = TableDefinition::new("journal");

/// The schema that this version writes and reads.
const SCHEMA: u32 = 1;
const SCHEMA_KEY: &str = "schema";
/// [`LogPosition`].
const LOG: &str = "log";
/// The boot of the machine in which the store was last written.
pub(super) const BOOT_ID: &str = "boot_id";
/// Scratch room of a probe.
pub(super) const PROBE: &str = "probe";

/// Makes the tables of a new file.
pub(super) fn create(database: &Database) -> Result<(), StoreError> {
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert(SCHEMA_KEY, &SCHEMA.to_be_bytes()[..])?;
    transaction.open_table(NCS)?;
    transaction.open_table(IPS)?;
    transaction.open_table(ENDPOINTS)?;
    transaction.open_table(TOMBSTONES)?;
    transaction.open_table(JOURNAL)?;
    transaction.commit()?;
    Ok(())
}

/// A table that is opened when the first change needs it: a batch that releases addresses does not touch the pages of NCs.
struct Lazy<'t, K: redb::Key + 'static> {
    transaction: &'t WriteTransaction,
    definition: Definition<K>,
    table: Option<Table<'t, K, &'static [u8]>>,
}

impl<'t, K: redb::Key + 'static> Lazy<'t, K> {
    fn new(transaction: &'t WriteTransaction, definition: Definition<K>) -> Self {
        Self { transaction, definition, table: None }
    }

    fn set(&mut self, key: K::SelfType<'_>, value: Option<&[u8]>) -> Result<(), StoreError> {
        let table = match &mut self.table {
            Some(table) => table,
            none => none.insert(self.transaction.open_table(self.definition)?),
        };
        match value {
            Some(value) => drop(table.insert(key, value)?),
            None => drop(table.remove(key)?),
        }
        Ok(())
    }
}

/// Puts rows into the tables of one transaction.
pub(super) struct Writer<'t> {
    meta: Lazy<'t, &'static str>,
    ncs: Lazy<'t, &'static str>,
    ips: Lazy<'t, &'static [u8]>,
    endpoints: Lazy<'t, &'static str>,
    tombstones: Lazy<'t, &'static str>,
    journal: Lazy<'t, (u8, u64)>,
}

impl<'t> Writer<'t> {
    pub(super) fn new(transaction: &'t WriteTransaction) -> Self {
        Self {
            meta: Lazy::new(transaction, META),
            ncs: Lazy::new(transaction, NCS),
            ips: Lazy::new(transaction, IPS),
            endpoints: Lazy::new(transaction, ENDPOINTS),
            tombstones: Lazy::new(transaction, TOMBSTONES),
            journal: Lazy::new(transaction, JOURNAL),
        }
    }

    pub(super) fn meta(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.meta.set(key, Some(value))
    }

    fn row(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        match table {
            TableId::Meta => self.meta.set(text(key)?, value),
            TableId::Ncs => self.ncs.set(text(key)?, value),
            TableId::Ips => self.ips.set(key, value),
            TableId::Endpoints => self.endpoints.set(text(key)?, value),
            TableId::Tombstones => self.tombstones.set(text(key)?, value),
            TableId::Journal => self.journal.set(table_key(key).ok_or_else(no_key)?, value),
        }
    }

    /// Puts and deletes the rows.
    pub(super) fn rows(&mut self, rows: &Rows) -> Result<(), StoreError> {
        rows.iter().try_for_each(|(table, key, value)| self.row(table, key, value))
    }

    /// Puts and deletes the rows of all changes, in their order.
    pub(super) fn changes(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        for change in changes {
            let row = Row::of(change)?;
            self.row(row.table, &row.key, row.value.as_deref())?;
        }
        Ok(())
    }

    /// Records which log belongs to the tables, and how much of it they have.
    pub(super) fn log(&mut self, position: LogPosition) -> Result<(), StoreError> {
        let mut value = position.id.to_vec();
        value.extend(position.applied.to_be_bytes());
        self.meta(LOG, &value)
    }
}

fn text(key: &[u8]) -> Result<&str, StoreError> {
    std::str::from_utf8(key).map_err(|_| no_key())
}

fn no_key() -> StoreError {
    let path = super::log::LOG_FILE.into();
    StoreError::Corrupt { path, why: "a row has a key that is none".into() }
}

/// What the tables know of their log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) id: LogId,
    /// The last record that they have.
    pub(super) applied: u64,
}

impl LogPosition {
    fn decode(value: &[u8]) -> Option<Self> {
        let (id, applied) = value.split_at_checked(16)?;
        Some(Self { id: id.try_into().ok()?, applied: u64::from_be_bytes(applied.try_into().ok()?) })
    }
}

/// Which log the tables belong to; `None` for tables that never had one. Fails for tables that are not ours to read.
pub(super) fn log_position(database: &Database, path: &Path) -> Result<Option<LogPosition>, StoreError> {
    let meta = open_meta(&database.begin_read()?, path)?;
    let corrupt =
        || StoreError::Corrupt { path: path.to_owned(), why: "what it says of its log is nothing".into() };
    meta.get(LOG)?.map(|row| LogPosition::decode(row.value()).ok_or_else(corrupt)).transpose()
}

fn open_meta(
    transaction: &redb::ReadTransaction,
    path: &Path,
) -> Result<redb::ReadOnlyTable<&'static str, &'static [u8]>, StoreError> {
    let corrupt = |why: &str| StoreError::Corrupt { path: path.to_owned(), why: why.to_owned() };
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_)) => {
            return Err(corrupt("it is no state file of this daemon"));
        }
        Err(error) => return Err(error.into()),
    };
    let schema = meta.get(SCHEMA_KEY)?.and_then(|row| Some(u32::from_be_bytes(row.value().try_into().ok()?)));
    match schema {
        Some(SCHEMA) => Ok(meta),
        Some(found) if found > SCHEMA => {
            Err(StoreError::NewerSchema { path: path.to_owned(), found, known: SCHEMA })
        }
        _ => Err(corrupt("it has no schema version")),
    }
}

/// Reads everything, and the boot id that is on disk.
pub(super) fn load(database: &Database, path: &Path) -> Result<(Loaded, Option<String>), StoreError> {
    let transaction = database.begin_read()?;
    let corrupt = |why: &str| StoreError::Corrupt { path: path.to_owned(), why: why.to_owned() };
    let meta = open_meta(&transaction, path)?;
    let text = |key: &str| -> Result<Option<String>, StoreError> {
        let row = meta.get(key)?;
        row.map(|row| String::from_utf8(row.value().to_vec()).map_err(|_| corrupt("a text is no UTF-8")))
            .transpose()
    };
    let orchestrator = match meta.get(ORCHESTRATOR)? {
        Some(row) => decode(path, ORCHESTRATOR, row.value())?,
        None => Default::default(),
    };
    let mut loaded = Loaded {
        orchestrator,
        legacy_extra: text(LEGACY_EXTRA)?.unwrap_or_default().into(),
        journal: position(&transaction, path)?,
        ..Loaded::default()
    };
    let boot_id = text(BOOT_ID)?;
    for row in transaction.open_table(NCS)?.iter()? {
        loaded.ncs.push(decode(path, "network containers", row?.1.value())?);
    }
    let ips = transaction.open_table(IPS)?;
    for row in ips.iter()? {
        loaded.ips.push(decode(path, "addresses", row?.1.value())?);
    }
    for row in transaction.open_table(ENDPOINTS)?.iter()? {
        loaded.endpoints.push(decode(path, "endpoints", row?.1.value())?);
    }
    for row in transaction.open_table(TOMBSTONES)?.iter()? {
        loaded.tombstones.push(decode(path, "tombstones", row?.1.value())?);
    }
    Ok((loaded, boot_id))
}

/// Where the journal stands: from the ends of its two rings.
fn position(transaction: &redb::ReadTransaction, path: &Path) -> Result<JournalPosition, StoreError> {
    let journal = transaction.open_table(JOURNAL)?;
    let mut position = JournalPosition::default();
    for class in [0_u8, 1] {
        let mut ring = journal.range((class, 0)..=(class, u64::MAX))?;
        let Some(first) = ring.next() else { continue };
        let first = first?;
        let ends = match ring.next_back() {
            Some(last) => (first.0.value().1, last?),
            None => (first.0.value().1, first),
        };
        let (first, last) = ends;
        let entry: JournalEntry = decode(path, "the journal", last.1.value())?;
        position.next_seq = position.next_seq.max(entry.seq + 1);
        let ring = (first, last.0.value().1 + 1);
        if class == 0 {
            position.effects = ring;
        } else {
            position.refusals = ring;
        }
    }
    Ok(position)
}

/// The kept entries that the filter takes, oldest first: those of the tables, as the later rows change them.
pub(super) fn journal(
    database: &Database,
    later: [&Rows; 2],
    filter: &dyn Fn(&JournalEntry) -> bool,
) -> Result<Vec<JournalEntry>, StoreError> {
    let transaction = database.begin_read()?;
    let journal = transaction.open_table(JOURNAL)?;
    let later: HashMap<_, _> = later
        .into_iter()
        .flat_map(Rows::journal)
        .filter_map(|(key, value)| Some((table_key(key)?, value)))
        .collect();
    let mut entries = Vec::new();
    let mut take = |bytes: &[u8]| -> Result<(), StoreError> {
        let entry: JournalEntry = decode(Path::new(super::STATE_FILE), "the journal", bytes)?;
        if filter(&entry) {
            entries.push(entry);
        }
        Ok(())
    };
    for row in journal.iter()? {
        let (key, value) = row?;
        if !later.contains_key(&key.value()) {
            take(value.value())?;
        }
    }
    later.values().flatten().try_for_each(|value| take(value))?;
    entries.sort_by_key(|entry| entry.seq);
    Ok(entries)
}
