//! The durable store: one redb file, schema-versioned, locked against a second daemon (design §5).
//!
//! [`Store`] is the ledger's [`Persist`]: a batch of changes is one transaction, on disk when [`Persist::commit`] returns. After
//! an I/O error redb refuses further work on an open database; the store then opens the file anew at the next attempt, so a
//! full disk needs no restart.

mod codec;
pub mod legacy;
mod lock;
mod quarantine;
mod tables;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use redb::{Database, Durability};

use self::lock::Lock;
use crate::{
    ledger::{Change, Loaded, Persist, PersistError},
    model::JournalEntry,
};

/// The state file's name in the state directory.
pub const STATE_FILE: &str = "state.redb";

/// What redb may keep in memory. The records are all in the ledger's memory too; a cache only has to hold the pages that
/// commits touch.
const CACHE_BYTES: usize = 2 << 20;

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

type Shared = Arc<RwLock<Option<Arc<Database>>>>;

/// The open store.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    database: Shared,
    boot_id: String,
    /// The boot id on disk is an earlier one until the first commit, which carries what the reboot ended.
    boot_is_recorded: bool,
    _lock: Lock,
}

/// Reads the journal while the store is in use.
#[derive(Clone, Debug)]
pub struct JournalReader(Shared);

impl Store {
    /// Opens the store and reads everything. A damaged file is set aside and an empty state begun; an error that is not damage
    /// leaves everything as it is.
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
        let (database, mut loaded, boot_id) = match open_and_load(&path) {
            Err(StoreError::Corrupt { why, .. }) => {
                let aside = quarantine::set_aside(&path)?;
                report = OpenReport { is_new: true, set_aside: Some((aside, why)) };
                open_and_load(&path)?
            }
            opened => opened?,
        };
        sync_directory(directory)?;
        loaded.rebooted = boot_id.as_ref().is_some_and(|recorded| *recorded != options.boot_id);
        let store = Self {
            path,
            database: Arc::new(RwLock::new(Some(Arc::new(database)))),
            boot_is_recorded: boot_id.as_ref() == Some(&options.boot_id),
            boot_id: options.boot_id.clone(),
            _lock: lock,
        };
        Ok((store, loaded, report))
    }

    /// A reader of the journal that can be used from any thread.
    pub fn journal(&self) -> JournalReader {
        JournalReader(self.database.clone())
    }

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

    fn write(
        &mut self,
        act: impl FnOnce(&redb::WriteTransaction) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let database = self.database()?;
        let boot_id = (!self.boot_is_recorded).then(|| self.boot_id.clone());
        let written = guarded(&self.path, || {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            act(&transaction)?;
            if let Some(boot_id) = &boot_id {
                tables::put_meta(&transaction, tables::BOOT_ID, boot_id.as_bytes())?;
            }
            transaction.commit()?;
            Ok(())
        });
        match written {
            Ok(()) => {
                self.boot_is_recorded = true;
                Ok(())
            }
            Err(error) => {
                self.give_up_on(database);
                Err(error)
            }
        }
    }
}

impl Persist for Store {
    fn commit(&mut self, changes: &[Change]) -> Result<(), PersistError> {
        Ok(self.write(|transaction| tables::apply(transaction, changes))?)
    }

    fn probe(&mut self) -> Result<(), PersistError> {
        // As large as a batch: a disk that has room for a few bytes only is still full.
        let filler = vec![0_u8; 64 << 10];
        self.write(|transaction| tables::put_meta(transaction, tables::PROBE, &filler))?;
        Ok(self.write(|transaction| tables::put_meta(transaction, tables::PROBE, &[]))?)
    }

    fn reload(&mut self) -> Result<Loaded, PersistError> {
        let database = self.database()?;
        Ok(guarded(&self.path, || tables::load(&database, &self.path).map(|(loaded, _)| loaded))?)
    }
}

impl JournalReader {
    /// The kept entries that the filter takes, oldest first. Blocks on the disk.
    pub fn read(&self, filter: &dyn Fn(&JournalEntry) -> bool) -> Result<Vec<JournalEntry>, StoreError> {
        let database = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        match database {
            Some(database) => tables::journal(&database, filter),
            None => Ok(Vec::new()),
        }
    }
}

impl crate::service::Journal for JournalReader {
    fn read(&self, filter: &dyn Fn(&JournalEntry) -> bool) -> Result<Vec<JournalEntry>, String> {
        Self::read(self, filter).map_err(|error| error.to_string())
    }
}

fn open_and_load(path: &Path) -> Result<(Database, Loaded, Option<String>), StoreError> {
    guarded(path, || {
        let (database, is_new) = open_database(path)?;
        if is_new {
            tables::create(&database)?;
        }
        let (loaded, boot_id) = tables::load(&database, path)?;
        Ok((database, loaded, boot_id))
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
