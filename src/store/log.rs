//! The log in front of the tables: a batch is durable with one write in place and one flush, however large the state is.
//!
//! The tables (redb) are a tree on disk: every transaction writes each page on the way to each row that it changes, a dozen
//! for one request, and more the larger the state. The log takes the rows alone. They reach the tables later, many batches
//! at a time, on another thread ([`Store`](super::Store)).
//!
//! - The file has its full size from the start, so a write changes nothing but data and one flush of data is enough.
//! - Records begin at blocks of their own: a block that was acknowledged is never written again while it counts.
//! - Each record has a number, one more than the one before, and a checksum over number, place, rows and the log's own id, which
//!   the tables keep too. A record counts if it is whole and later than what the tables have. So an old record, a torn one,
//!   or one of another state's log counts for nothing, and nothing ever needs to be erased.
//! - Only the last record can be torn by a crash, since the next is written after it was flushed. A later whole record
//!   without the ones before it means that acknowledged data was lost: that is damage, and told.
//! - There are two halves: while the rows of one are brought to the tables, the other takes new ones.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use sha1::{Digest, Sha1};

use super::{
    StoreError,
    rows::{Row, Rows},
    sync_directory,
};

/// The log's name in the state directory.
pub(super) const LOG_FILE: &str = "state.log";

const MAGIC: &[u8; 8] = b"cns-log1";
const BLOCK: usize = 4096;
/// Magic, number, length, zero, checksum.
const HEADER: usize = 8 + 8 + 4 + 4 + 20;
/// Some hundreds of one client's requests, or of many clients' as many more: enough that bringing them to the tables is little
/// work for each, and little enough that the flush at its end does not hold up those of the log for long.
const HALF: u64 = 1 << 20;
/// Records beyond that go to the tables themselves.
const LONGEST: usize = 512 << 10;

/// Which log belongs to which tables.
pub(super) type LogId = [u8; 16];

/// A record's number and its encoded rows.
type Record = (u64, Vec<u8>);

/// What a log holds beyond the tables.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    pub(super) rows: Rows,
    /// The number of the last record that counts.
    pub(super) last: u64,
    /// Acknowledged records are missing.
    pub(super) damage: Option<String>,
}

/// The open log.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
    id: LogId,
    /// Where the half in use begins, and where the next record goes.
    half: u64,
    at: u64,
    buffer: Vec<u8>,
}

/// The room that the rows take; `None` if they are too many for a record.
pub(super) fn room_for(rows: &[Row]) -> Option<u64> {
    let length = HEADER + rows.iter().map(Row::encoded_len).sum::<usize>();
    let blocks = length.div_ceil(BLOCK) * BLOCK;
    if blocks <= LONGEST { u64::try_from(blocks).ok() } else { None }
}

impl Log {
    /// Opens the log of those tables, or makes one. What it holds already is to be asked with [`Self::recover`] before the
    /// first record is appended.
    pub(super) fn open(directory: &Path, id: LogId) -> Result<Self, StoreError> {
        let path = directory.join(LOG_FILE);
        let open = || OpenOptions::new().read(true).write(true).open(&path);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(directory, &path)?;
                open()
            }
            opened => opened,
        };
        let file = file.map_err(|source| StoreError::io("open", &path, source))?;
        Ok(Self { file, path, id, half: 0, at: 0, buffer: Vec::new() })
    }

    /// Whether a record of that size fits into what is left of this half.
    pub(super) fn has_room(&self, room: u64) -> bool {
        self.at + room <= self.half + HALF
    }

    /// Goes on in the other half, whose records the tables must have.
    pub(super) fn turn(&mut self) {
        self.half = HALF - self.half;
        self.at = self.half;
    }

    /// Starts over: the tables have every record.
    pub(super) fn restart(&mut self) {
        (self.half, self.at) = (0, 0);
    }

    /// Appends a record; it is on disk when this returns. After an error, this log must not be used until the tables have
    /// this record's number: the record may or may not be there.
    pub(super) fn append(&mut self, number: u64, rows: &[Row]) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.resize(HEADER, 0);
        for row in rows {
            row.encode_into(&mut self.buffer);
        }
        let length = u32::try_from(self.buffer.len() - HEADER).map_err(io::Error::other)?;
        self.buffer[..8].copy_from_slice(MAGIC);
        self.buffer[8..16].copy_from_slice(&number.to_le_bytes());
        self.buffer[16..20].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&self.id, self.at, number, &self.buffer[HEADER..]);
        self.buffer[24..HEADER].copy_from_slice(&sum);
        let padded = self.buffer.len().div_ceil(BLOCK) * BLOCK;
        self.buffer.resize(padded, 0);
        if let Err(error) = self.write(&self.buffer) {
            // Callers will be told that nothing was changed: a start should not find the record, as far as that is in our hands.
            let _ = self.write(&[0; BLOCK]);
            return Err(error);
        }
        self.at += u64::try_from(padded).map_err(io::Error::other)?;
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.at)?;
        self.file.sync_data()
    }

    /// From now on it takes no record, as on a disk that fails.
    #[cfg(test)]
    pub(super) fn break_off(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }

    /// What counts: whole records with numbers after `applied`, without a gap.
    pub(super) fn recover(&self, applied: u64) -> Result<Recovered, StoreError> {
        let failed = |source| StoreError::io("read", &self.path, source);
        let length = self.file.metadata().map_err(failed)?.len();
        let mut found = BTreeMap::new();
        let mut at = 0;
        // A torn record may be followed by others only if it was damaged later; so the search goes on at the next block.
        while at < length {
            let (blocks, record) = self.record_at(at, applied).map_err(failed)?;
            found.extend(record);
            at += blocks;
        }
        let mut recovered = Recovered { last: applied, ..Recovered::default() };
        // A longer one was made with longer halves.
        if length < 2 * HALF {
            recovered.damage = Some(format!("it has {length} bytes and should have {}", 2 * HALF));
        }
        for (number, payload) in found {
            if number != recovered.last + 1 {
                recovered.damage =
                    Some(format!("record {number} is there, and record {} is not", recovered.last + 1));
                break;
            }
            if recovered.rows.add_encoded(&payload).is_none() {
                recovered.damage = Some(format!("record {number} holds something that is no row"));
                break;
            }
            recovered.last = number;
        }
        Ok(recovered)
    }

    /// The record at a block, if it is whole and later than `applied`; and how far the next one is.
    fn record_at(&self, at: u64, applied: u64) -> io::Result<(u64, Option<Record>)> {
        const NEXT: u64 = BLOCK as u64;
        let mut header = [0; HEADER];
        if let Err(error) = self.file.read_exact_at(&mut header, at) {
            let short = error.kind() == io::ErrorKind::UnexpectedEof;
            return if short { Ok((NEXT, None)) } else { Err(error) };
        }
        let number = |range: std::ops::Range<usize>| -> Option<u64> {
            let mut bytes = [0; 8];
            bytes[..range.len()].copy_from_slice(header.get(range)?);
            Some(u64::from_le_bytes(bytes))
        };
        let (Some(number), Some(length)) = (number(8..16), number(16..20)) else { return Ok((NEXT, None)) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if header[..8] != *MAGIC || number <= applied || length > LONGEST - HEADER {
            return Ok((NEXT, None));
        }
        let mut payload = vec![0; length];
        match self.file.read_exact_at(&mut payload, at + HEADER as u64) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok((NEXT, None)),
            Err(error) => return Err(error),
        }
        if header[24..] != checksum(&self.id, at, number, &payload) {
            return Ok((NEXT, None));
        }
        let blocks = (HEADER + length).div_ceil(BLOCK) * BLOCK;
        Ok((u64::try_from(blocks).unwrap_or(NEXT), Some((number, payload))))
    }
}

fn checksum(id: &LogId, at: u64, number: u64, payload: &[u8]) -> [u8; 20] {
    let mut sum = Sha1::new();
    sum.update(id);
    sum.update(at.to_le_bytes());
    sum.update(number.to_le_bytes());
    sum.update(payload);
    sum.finalize().into()
}

/// Makes the file whole or not at all: a log of another size is damage. Zeros are written rather than room reserved: the first
/// write to reserved room changes more than data.
fn make(directory: &Path, path: &Path) -> Result<(), StoreError> {
    let new = path.with_extension("log.new");
    let failed = |source| StoreError::io("make", path, source);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
    let zeros = vec![0; 64 << 10];
    for _ in 0..2 * HALF / (64 << 10) {
        file.write_all(&zeros).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    sync_directory(directory)
}
