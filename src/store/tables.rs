//! The tables, and how changes become rows.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::{
    StoreError,
    codec::{decode, encode, ip_key},
};
use crate::{
    ledger::{Change, JournalClass, JournalKey, JournalPosition, Loaded},
    model::JournalEntry,
};

type Rows<K> = TableDefinition<'static, K, &'static [u8]>;

const META: Rows<&str> = TableDefinition::new("meta");
const NCS: Rows<&str> = TableDefinition::new("network_containers");
const IPS: Rows<&[u8]> = TableDefinition::new("ip_configs");
const ENDPOINTS: Rows<&str> = TableDefinition::new("endpoints");
const TOMBSTONES: Rows<&str> = TableDefinition::new("tombstones");
const JOURNAL: Rows<(u8, u64)> = TableDefinition::new("journal");

/// The schema that this version writes and reads.
const SCHEMA: u32 = 1;
const SCHEMA_KEY: &str = "schema";
const ORCHESTRATOR: &str = "orchestrator";
const LEGACY_EXTRA: &str = "legacy_extra";
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

pub(super) fn put_meta(transaction: &WriteTransaction, key: &str, value: &[u8]) -> Result<(), StoreError> {
    transaction.open_table(META)?.insert(key, value)?;
    Ok(())
}

/// A table that is opened when the first change needs it: a batch that releases addresses does not touch the pages of NCs.
struct Lazy<'t, K: redb::Key + 'static> {
    transaction: &'t WriteTransaction,
    definition: Rows<K>,
    table: Option<Table<'t, K, &'static [u8]>>,
}

impl<'t, K: redb::Key + 'static> Lazy<'t, K> {
    fn new(transaction: &'t WriteTransaction, definition: Rows<K>) -> Self {
        Self { transaction, definition, table: None }
    }

    fn get(&mut self) -> Result<&mut Table<'t, K, &'static [u8]>, StoreError> {
        match &mut self.table {
            Some(table) => Ok(table),
            none => Ok(none.insert(self.transaction.open_table(self.definition)?)),
        }
    }
}

fn journal_key(key: &JournalKey) -> (u8, u64) {
    let class = match key.class {
        JournalClass::Effect => 0,
        JournalClass::Refusal => 1,
    };
    (class, key.index)
}

/// Puts and deletes the rows of all changes, in their order.
pub(super) fn apply(transaction: &WriteTransaction, changes: &[Change]) -> Result<(), StoreError> {
    let mut meta = Lazy::new(transaction, META);
    let mut ncs = Lazy::new(transaction, NCS);
    let mut ips = Lazy::new(transaction, IPS);
    let mut endpoints = Lazy::new(transaction, ENDPOINTS);
    let mut tombstones = Lazy::new(transaction, TOMBSTONES);
    let mut journal = Lazy::new(transaction, JOURNAL);
    for change in changes {
        match change {
            Change::SetOrchestrator(orchestrator) => {
                meta.get()?.insert(ORCHESTRATOR, &encode(orchestrator)?[..])?;
            }
            Change::PutNc(nc) => {
                ncs.get()?.insert(nc.id().canonical().as_str(), &encode(&**nc)?[..])?;
            }
            Change::DeleteNc(id) => {
                ncs.get()?.remove(id.canonical().as_str())?;
            }
            Change::PutIp(ip) => {
                ips.get()?.insert(&ip_key(ip.address)[..], &encode(&**ip)?[..])?;
            }
            Change::DeleteIp(address) => {
                ips.get()?.remove(&ip_key(*address)[..])?;
            }
            Change::PutEndpoint(endpoint) => {
                endpoints.get()?.insert(endpoint.container.as_str(), &encode(&**endpoint)?[..])?;
            }
            Change::DeleteEndpoint(container) => {
                endpoints.get()?.remove(container.as_str())?;
            }
            Change::PutTombstone(tombstone) => {
                tombstones.get()?.insert(tombstone.container.as_str(), &encode(tombstone)?[..])?;
            }
            Change::DeleteTombstone(container) => {
                tombstones.get()?.remove(container.as_str())?;
            }
            Change::AppendJournal(key, entry) => {
                journal.get()?.insert(journal_key(key), &encode(&**entry)?[..])?;
            }
            Change::DropJournal(key) => {
                journal.get()?.remove(journal_key(key))?;
            }
            Change::SetLegacyExtra(extra) => {
                meta.get()?.insert(LEGACY_EXTRA, extra.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Reads everything, and the boot id that is on disk.
pub(super) fn load(database: &Database, path: &Path) -> Result<(Loaded, Option<String>), StoreError> {
    let transaction = database.begin_read()?;
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
        Some(SCHEMA) => {}
        Some(found) if found > SCHEMA => {
            return Err(StoreError::NewerSchema { path: path.to_owned(), found, known: SCHEMA });
        }
        _ => return Err(corrupt("it has no schema version")),
    }
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

/// The kept entries that the filter takes, oldest first.
pub(super) fn journal(
    database: &Database,
    filter: &dyn Fn(&JournalEntry) -> bool,
) -> Result<Vec<JournalEntry>, StoreError> {
    let transaction = database.begin_read()?;
    let journal = transaction.open_table(JOURNAL)?;
    let mut entries = Vec::new();
    for row in journal.iter()? {
        let entry: JournalEntry = decode(Path::new(super::STATE_FILE), "the journal", row?.1.value())?;
        if filter(&entry) {
            entries.push(entry);
        }
    }
    entries.sort_by_key(|entry| entry.seq);
    Ok(entries)
}
