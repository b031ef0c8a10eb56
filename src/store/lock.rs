//! One daemon per state directory.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nix::fcntl::{Flock, FlockArg};

use super::StoreError;

/// Held as long as the store is open; the kernel drops it with the process, however that ends.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code, reason = "held, not used")] Flock<File>);

impl Lock {
    pub(super) fn take(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join("lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| StoreError::io("open", &path, source))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                // Who holds it, for the message of the next one; the lock itself does not depend on it.
                let _ = lock.set_len(0).and_then(|()| lock.rewind());
                let _ = writeln!(lock, "{}", std::process::id());
                Ok(Self(lock))
            }
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim().to_owned();
                Err(StoreError::InUse {
                    path,
                    holder: if holder.is_empty() { "unknown".into() } else { holder },
                })
            }
            Err((_, errno)) => Err(StoreError::io("lock", &path, errno.into())),
        }
    }
}
