//! What a change is on disk: one row, put or deleted. The log and the tables hold the same rows.

use std::collections::BTreeMap;

use super::{
    StoreError,
    codec::{encode, ip_key},
};
use crate::ledger::{Change, JournalClass, JournalKey};

/// Which table. The numbers are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TableId {
    Meta = 0,
    Ncs = 1,
    Ips = 2,
    Endpoints = 3,
    Tombstones = 4,
    Journal = 5,
}

impl TableId {
    fn of(number: u8) -> Option<Self> {
        [Self::Meta, Self::Ncs, Self::Ips, Self::Endpoints, Self::Tombstones, Self::Journal]
            .into_iter()
            .find(|table| *table as u8 == number)
    }
}

pub(super) const ORCHESTRATOR: &str = "orchestrator";
pub(super) const LEGACY_EXTRA: &str = "legacy_extra";

/// One row; without a value it is deleted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) table: TableId,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

impl Row {
    pub(super) fn put(table: TableId, key: impl Into<Vec<u8>>, value: Vec<u8>) -> Self {
        Self { table, key: key.into(), value: Some(value) }
    }

    fn delete(table: TableId, key: impl Into<Vec<u8>>) -> Self {
        Self { table, key: key.into(), value: None }
    }

    pub(super) fn of(change: &Change) -> Result<Self, StoreError> {
        use TableId::{Endpoints, Ips, Journal, Meta, Ncs, Tombstones};
        Ok(match change {
            Change::SetOrchestrator(orchestrator) => Self::put(Meta, ORCHESTRATOR, encode(orchestrator)?),
            Change::PutNc(nc) => Self::put(Ncs, nc.id().canonical(), encode(&**nc)?),
            Change::DeleteNc(id) => Self::delete(Ncs, id.canonical()),
            Change::PutIp(ip) => Self::put(Ips, ip_key(ip.address), encode(&**ip)?),
            Change::DeleteIp(address) => Self::delete(Ips, ip_key(*address)),
            Change::PutEndpoint(endpoint) => {
                Self::put(Endpoints, endpoint.container.as_str(), encode(&**endpoint)?)
            }
            Change::DeleteEndpoint(container) => Self::delete(Endpoints, container.as_str()),
            Change::PutTombstone(tombstone) => {
                Self::put(Tombstones, tombstone.container.as_str(), encode(tombstone)?)
            }
            Change::DeleteTombstone(container) => Self::delete(Tombstones, container.as_str()),
            Change::AppendJournal(key, entry) => Self::put(Journal, journal_key(key), encode(&**entry)?),
            Change::DropJournal(key) => Self::delete(Journal, journal_key(key)),
            Change::SetLegacyExtra(extra) => Self::put(Meta, LEGACY_EXTRA, extra.as_bytes().to_vec()),
        })
    }

    /// How long it is in the log.
    pub(super) fn encoded_len(&self) -> usize {
        1 + 1 + 4 + 4 + self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }

    /// Appends its form in the log: table, whether it is put, the lengths, key, value.
    pub(super) fn encode_into(&self, buffer: &mut Vec<u8>) {
        let value = self.value.as_deref().unwrap_or_default();
        // A row of 4 GiB does not fit into any record; the log refuses it by its size before.
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        buffer.extend([self.table as u8, u8::from(self.value.is_some())]);
        buffer.extend(length(&self.key));
        buffer.extend(length(value));
        buffer.extend(&self.key);
        buffer.extend(value);
    }

    /// Takes a row off the front; `None` for what is no row.
    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(10)?;
        let number = |at: usize| -> Option<usize> {
            usize::try_from(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?)).ok()
        };
        let (key, rest) = rest.split_at_checked(number(2)?)?;
        let (value, rest) = rest.split_at_checked(number(6)?)?;
        let value = match head[1] {
            0 => None,
            1 => Some(value.to_vec()),
            _ => return None,
        };
        *bytes = rest;
        Some(Self { table: TableId::of(head[0])?, key: key.to_vec(), value })
    }
}

/// A journal entry's key, in the order of the table's own.
fn journal_key(key: &JournalKey) -> Vec<u8> {
    let class = match key.class {
        JournalClass::Effect => 0,
        JournalClass::Refusal => 1,
    };
    let mut bytes = vec![class];
    bytes.extend(key.index.to_be_bytes());
    bytes
}

/// The key of the journal's table.
pub(super) fn table_key(journal_key: &[u8]) -> Option<(u8, u64)> {
    let (class, index) = journal_key.split_first()?;
    Some((*class, u64::from_be_bytes(index.try_into().ok()?)))
}

/// Rows in the order of their keys; of several for one key, the last. What a thousand batches wrote to the log becomes few
/// writes to the tables: a pod that came and went in between leaves little.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows(BTreeMap<(TableId, Vec<u8>), Option<Vec<u8>>>);

impl Rows {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, row: Row) {
        self.0.insert((row.table, row.key), row.value);
    }

    pub(super) fn extend(&mut self, later: &Self) {
        self.0.extend(later.0.iter().map(|(key, value)| (key.clone(), value.clone())));
    }

    /// Adds the rows of a record of the log; `None` if it holds something else.
    pub(super) fn add_encoded(&mut self, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            self.add(Row::decode(&mut bytes)?);
        }
        Some(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TableId, &[u8], Option<&[u8]>)> {
        self.0.iter().map(|((table, key), value)| (*table, key.as_slice(), value.as_deref()))
    }

    pub(super) fn journal(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.0
            .range((TableId::Journal, Vec::new())..)
            .map(|((_, key), value)| (key.as_slice(), value.as_deref()))
    }
}
