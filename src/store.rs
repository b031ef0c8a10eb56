//! The durable store: one redb file, schema-versioned, locked against a second daemon (design §5).
//!
//! [`Store`] is the ledger's [`Persist`]: a batch of changes is one transaction, on disk when [`Persist::commit`] returns.
//!
//! A batch goes to the log, which costs one flush whatever the state's size; the rows of many batches are brought to the tables
//! together, on another thread, while the log's other half takes more. A start brings over what a crash left in the log.
//! What is too much for the log, or comes while the log or that thread fails, goes to the tables at once, with all that
//! is still only in the log; so a disk that is full is told to callers at the latest when one half of the log is full.
//!
//! After an I/O error redb refuses further work on an open database; the store then opens the file anew at the next attempt,
//! so a full disk needs no restart.

mod codec;
pub mod legacy;
mod lock;
mod log;
mod quarantine;
mod rows;
mod tables;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    thread::{self, JoinHandle},
};

use redb::{Database, Durability};

use self::{
    lock::Lock,
    log::{LOG_FILE, Log},
    rows::{Row, Rows, TableId},
    tables::LogPosition,
};
use crate::{
    ledger::{Change, Loaded, Persist, PersistError},
    model::JournalEntry,
};

/// The state file's name in the state directory.
pub const STATE_FILE: &str = "state.redb";

/// What redb may keep in memory. The records are all in the ledger's memory too; a cache only has to hold the pages that
/// commits touch.
const CACHE_BYTES: usize = 2 << 20;

/// Batches with more changes are not tried with the log.
const LOGGED_CHANGES: usize = 4096;

/// How to open.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The state directory; made if it is not there, for its user alone.
    pub directory: PathBuf,
    /// Identifies this boot of the machine: the content of `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

impl StoreOptions {
    /// For this boot of this machine.
    pub fn new(directory: PathBuf) -> Result<Self, StoreError> {
        let path = "/proc/sys/kernel/random/boot_id";
        let boot_id =
            fs::read_to_string(path).map_err(|source| StoreError::io("read", Path::new(path), source))?;
        Ok(Self { directory, boot_id: boot_id.trim().to_owned() })
    }
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refuses.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// Another daemon has it.
    #[error("{path} is in use by process {holder}; stop that daemon, or give this one another --state-dir", path = path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
        /// What the lock file says of its holder.
        holder: String,
    },
    /// A later version of the daemon wrote it.
    #[error(
        "{path} has schema {found}, and this version of the daemon knows {known}; run the version that wrote it, or move \
         the file away to begin with an empty state", path = path.display()
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// What is in the file cannot be right.
    #[error("{path} is damaged: {why}", path = path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// How it shows.
        why: String,
    },
    /// The database refuses.
    #[error("database: {0}")]
    Database(#[source] Box<redb::Error>),
}

impl StoreError {
    fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

impl From<StoreError> for PersistError {
    fn from(error: StoreError) -> Self {
        Self(Box::new(error))
    }
}

/// What opening found beside the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// There was no state file: this is a first start, or the file was moved away.
    pub is_new: bool,
    /// A damaged file was set aside: where it is now, and what was wrong with it.
    pub set_aside: Option<(PathBuf, String)>,
}

/// The tables' file, shared with the thread that brings rows to it and with readers.
#[derive(Clone, Debug)]
struct Tables {
    path: PathBuf,
    database: Arc<RwLock<Option<Arc<Database>>>>,
}

impl Tables {
    fn database(&self) -> Result<Arc<Database>, StoreError> {
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*slot {
            return Ok(database.clone());
        }
        let (database, _) = guarded(&self.path, || open_database(&self.path))?;
        let database = Arc::new(database);
        *slot = Some(database.clone());
        Ok(database)
    }

    /// A database that failed is of no use any more; the next attempt opens the file anew. A reader that is at work keeps it
    /// a moment longer, and the next attempt fails once more.
    fn give_up_on(&self, database: Arc<Database>) {
        *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
        drop(database);
    }

    /// One durable transaction.
    fn write(
        &self,
        act: impl FnOnce(&mut tables::Writer<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let database = self.database()?;
        let written = guarded(&self.path, || {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            act(&mut tables::Writer::new(&transaction))?;
            transaction.commit()?;
            Ok(())
        });
        if written.is_err() {
            self.give_up_on(database);
        }
        written
    }
}

/// Rows that are durable in the log and not yet in the tables. The earlier ones are on their way there.
#[derive(Clone, Debug, Default)]
struct Pending {
    settling: Arc<Rows>,
    fresh: Arc<Rows>,
}

impl Pending {
    fn merged(&self) -> Rows {
        let mut rows = (*self.settling).clone();
        rows.extend(&self.fresh);
        rows
    }
}

type SharedPending = Arc<Mutex<Pending>>;

fn locked(pending: &SharedPending) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open store.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    tables: Tables,
    pending: SharedPending,
    /// Absent after it failed, until the tables have taken what it holds.
    log: Option<Log>,
    /// Which log, and the last number that was given to one of its records.
    position: LogPosition,
    settling: Option<JoinHandle<Result<(), StoreError>>>,
    boot_id: String,
    /// The boot id on disk is an earlier one until the first commit, which carries what the reboot ended.
    boot_is_recorded: bool,
    _lock: Lock,
}

/// Reads the journal while the store is in use.
#[derive(Clone, Debug)]
pub struct JournalReader {
    tables: Tables,
    pending: SharedPending,
}

impl Store {
    /// Opens the store and reads everything. A damaged file is set aside: without the tables an empty state is begun, without
    /// the log the state is what the tables have and what of the log is sound. An error that is not damage leaves everything
    /// as it is.
    pub fn open(options: &StoreOptions) -> Result<(Self, Loaded, OpenReport), StoreError> {
        let directory = &options.directory;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| StoreError::io("create directory", directory, source))?;
        let lock = Lock::take(directory)?;
        let path = directory.join(STATE_FILE);
        let mut report = OpenReport { is_new: !path.exists(), set_aside: None };
        let head = quarantine::Head::of(&path);
        let mut opened = match open_and_load(directory) {
            Err(StoreError::Corrupt { why, .. }) => {
                head.restore(&path)?;
                let aside = quarantine::set_aside(&path)?;
                // Worth nothing to other tables, and with these it may be to a person.
                let log = directory.join(LOG_FILE);
                if log.exists() {
                    quarantine::set_aside(&log)?;
                }
                report = OpenReport { is_new: true, set_aside: Some((aside, why)) };
                open_and_load(directory)?
            }
            opened => opened?,
        };
        if let Some(damage) = opened.log_damage.take() {
            report.set_aside = Some(damage);
        }
        sync_directory(directory)?;
        let Opened { database, log, position, mut loaded, boot_id, .. } = opened;
        loaded.rebooted = boot_id.as_ref().is_some_and(|recorded| *recorded != options.boot_id);
        let store = Self {
            directory: directory.clone(),
            tables: Tables { path, database: Arc::new(RwLock::new(Some(Arc::new(database)))) },
            pending: SharedPending::default(),
            log: Some(log),
            position,
            settling: None,
            boot_is_recorded: boot_id.as_ref() == Some(&options.boot_id),
            boot_id: options.boot_id.clone(),
            _lock: lock,
        };
        Ok((store, loaded, report))
    }

    /// A reader of the journal that can be used from any thread.
    pub fn journal(&self) -> JournalReader {
        JournalReader { tables: self.tables.clone(), pending: self.pending.clone() }
    }

    /// Whether the log took the changes. If not, they must go to the tables.
    fn logged(&mut self, changes: &[Change]) -> Result<bool, StoreError> {
        if changes.len() > LOGGED_CHANGES || self.log.is_none() {
            return Ok(false);
        }
        let mut rows = changes.iter().map(Row::of).collect::<Result<Vec<_>, _>>()?;
        if !self.boot_is_recorded {
            rows.push(Row::put(TableId::Meta, tables::BOOT_ID, self.boot_id.as_bytes().to_vec()));
        }
        let Some(room) = log::room_for(&rows) else { return Ok(false) };
        if self.log.as_ref().is_some_and(|log| !log.has_room(room)) {
            self.settle();
        }
        let Some(log) = &mut self.log else { return Ok(false) };
        // Also of a record that fails: whether it is on disk is not known, so its number is never used again.
        self.position.applied += 1;
        if let Err(error) = log.append(self.position.applied, &rows) {
            tracing::warn!(%error, "the log of the state takes no record; the state file does without it");
            self.log = None;
            return Ok(false);
        }
        let mut pending = locked(&self.pending);
        let fresh = Arc::make_mut(&mut pending.fresh);
        for row in rows {
            fresh.add(row);
        }
        Ok(true)
    }

    /// Goes on in the log's other half, and lets a thread bring what this half holds to the tables.
    fn settle(&mut self) {
        self.join();
        let Some(log) = &mut self.log else { return };
        let (tables, pending, position) = (self.tables.clone(), self.pending.clone(), self.position);
        let rows = {
            let mut pending = locked(&self.pending);
            pending.settling = std::mem::take(&mut pending.fresh);
            pending.settling.clone()
        };
        let thread = thread::Builder::new().name("settle".into()).spawn(move || {
            tables.write(|writer| {
                writer.rows(&rows)?;
                writer.log(position)
            })?;
            // Readers find them in the tables from now on.
            locked(&pending).settling = Arc::default();
            Ok(())
        });
        match thread {
            Ok(thread) => {
                self.settling = Some(thread);
                log.turn();
            }
            Err(error) => {
                tracing::warn!(%error, "no thread to bring the log to the state file");
                self.log = None;
            }
        }
    }

    /// Waits until no rows are on their way. If they did not arrive, the log is not used until they do.
    fn join(&mut self) {
        let Some(thread) = self.settling.take() else { return };
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the state file does not take what the log holds");
                self.log = None;
            }
            Err(_) => self.log = None,
        }
    }

    /// Brings everything to the tables, with what `act` adds, in one durable transaction.
    fn write(
        &mut self,
        act: impl FnOnce(&mut tables::Writer<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.join();
        let pending = locked(&self.pending).clone();
        let boot_id = (!self.boot_is_recorded).then(|| self.boot_id.clone());
        let position = self.position;
        self.tables.write(|writer| {
            writer.rows(&pending.settling)?;
            writer.rows(&pending.fresh)?;
            act(writer)?;
            if let Some(boot_id) = &boot_id {
                writer.meta(tables::BOOT_ID, boot_id.as_bytes())?;
            }
            writer.log(position)
        })?;
        *locked(&self.pending) = Pending::default();
        self.boot_is_recorded = true;
        match &mut self.log {
            Some(log) => log.restart(),
            // Its records count for nothing any more, whatever state they are in.
            none => match Log::open(&self.directory, position.id) {
                Ok(log) => *none = Some(log),
                Err(error) => tracing::debug!(%error, "there is no log"),
            },
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.join();
        let pending = locked(&self.pending).clone();
        if pending.settling.is_empty() && pending.fresh.is_empty() {
            return;
        }
        // The log has it all; the next start brings it over.
        if let Err(error) = self.write(|_| Ok(())) {
            tracing::warn!(%error, "the log stays ahead of the state file");
        }
    }
}

impl Persist for Store {
    fn commit(&mut self, changes: &[Change]) -> Result<(), PersistError> {
        if self.settling.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join();
        }
        if self.logged(changes)? {
            self.boot_is_recorded = true;
            return Ok(());
        }
        Ok(self.write(|writer| writer.changes(changes))?)
    }

    fn probe(&mut self) -> Result<(), PersistError> {
        // As large as a batch: a disk that has room for a few bytes only is still full.
        let filler = vec![0_u8; 64 << 10];
        self.write(|writer| writer.meta(tables::PROBE, &filler))?;
        Ok(self.write(|writer| writer.meta(tables::PROBE, &[]))?)
    }

    fn reload(&mut self) -> Result<Loaded, PersistError> {
        self.join();
        let pending = locked(&self.pending).merged();
        let database = self.tables.database()?;
        // What a start would find in the log now must be what is still to be brought over.
        if let Some(log) = &self.log {
            let applied = guarded(&self.tables.path, || tables::log_position(&database, &self.tables.path))?;
            let found = log.recover(applied.map_or(0, |position| position.applied))?;
            let why = match found.damage {
                None if found.rows == pending => None,
                None => Some("it holds other rows than were written".to_owned()),
                damage => damage,
            };
            if let Some(why) = why {
                return Err(StoreError::Corrupt { path: self.directory.join(LOG_FILE), why }.into());
            }
        }
        if !pending.is_empty() {
            self.write(|_| Ok(()))?;
        }
        let database = self.tables.database()?;
        let path = &self.tables.path;
        Ok(guarded(path, || tables::load(&database, path).map(|(loaded, _)| loaded))?)
    }
}

impl JournalReader {
    /// The kept entries that the filter takes, oldest first. Blocks on the disk.
    pub fn read(&self, filter: &dyn Fn(&JournalEntry) -> bool) -> Result<Vec<JournalEntry>, StoreError> {
        // Before the tables are looked at: what leaves here meanwhile is found there.
        let pending = locked(&self.pending).clone();
        let database = self.tables.database.read().unwrap_or_else(PoisonError::into_inner).clone();
        match database {
            Some(database) => tables::journal(&database, [&pending.settling, &pending.fresh], filter),
            None => Ok(Vec::new()),
        }
    }
}

impl crate::service::Journal for JournalReader {
    fn read(&self, filter: &dyn Fn(&JournalEntry) -> bool) -> Result<Vec<JournalEntry>, String> {
        Self::read(self, filter).map_err(|error| error.to_string())
    }
}

struct Opened {
    database: Database,
    log: Log,
    position: LogPosition,
    loaded: Loaded,
    boot_id: Option<String>,
    /// Where a damaged log is now, and what was wrong with it.
    log_damage: Option<(PathBuf, String)>,
}

fn open_and_load(directory: &Path) -> Result<Opened, StoreError> {
    let path = &directory.join(STATE_FILE);
    guarded(path, || {
        let (database, is_new) = open_database(path)?;
        if is_new {
            tables::create(&database)?;
        }
        let known = tables::log_position(&database, path)?;
        let mut position =
            known.unwrap_or_else(|| LogPosition { id: uuid::Uuid::new_v4().into_bytes(), applied: 0 });
        let mut log = Log::open(directory, position.id)?;
        let recovered = log.recover(position.applied)?;
        position.applied = recovered.last;
        if known != Some(position) {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            let mut writer = tables::Writer::new(&transaction);
            writer.rows(&recovered.rows)?;
            writer.log(position)?;
            drop(writer);
            transaction.commit()?;
        }
        let mut log_damage = None;
        if let Some(why) = recovered.damage {
            let aside = quarantine::set_aside(&directory.join(LOG_FILE))?;
            log = Log::open(directory, position.id)?;
            log_damage = Some((aside, why));
        }
        let (loaded, boot_id) = tables::load(&database, path)?;
        Ok(Opened { database, log, position, loaded, boot_id, log_damage })
    })
}

/// Opens or creates the file; says whether it is new.
fn open_database(path: &Path) -> Result<(Database, bool), StoreError> {
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| StoreError::io("open", path, source))?;
    let is_new = file.metadata().map_err(|source| StoreError::io("stat", path, source))?.len() == 0;
    let corrupt = |why: String| StoreError::Corrupt { path: path.to_owned(), why };
    let backend = redb::backends::FileBackend::new(file)?;
    let database =
        redb::Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend).map_err(|error| {
            match error {
                redb::DatabaseError::Storage(redb::StorageError::Corrupted(why)) => corrupt(why),
                redb::DatabaseError::Storage(redb::StorageError::Io(error)) if is_damage(&error) => {
                    corrupt(error.to_string())
                }
                redb::DatabaseError::UpgradeRequired(version) => corrupt(format!("file format {version}")),
                other => other.into(),
            }
        })?;
    Ok((database, is_new))
}

/// Content that cannot be right shows as one of these; everything else is the disk's trouble and no damage.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput
    )
}

/// redb asserts what a sound file guarantees; a file that breaks an assertion is damaged, and no reason to end the process.
fn guarded<T>(path: &Path, act: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>().cloned();
        let why = why.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(StoreError::Corrupt {
            path: path.to_owned(),
            why: why.unwrap_or_else(|| "an inner check failed".into()),
        })
    })
}

fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| StoreError::io("flush directory", directory, source))
}

#[cfg(test)]
mod tests;
