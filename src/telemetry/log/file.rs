//! A log file of bounded size: full, it is renamed to `.1`, that to `.2`, and so on.

use std::{
    fs::{File, OpenOptions, rename},
    io::{self, Write},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How large a file grows.
    pub(super) most_bytes: u64,
    /// How many full ones there are, beside the one that is written.
    pub(super) backups: usize,
}

/// The file that is written.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    bounds: Bounds,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    length: u64,
}

impl Open {
    fn at(path: &PathBuf) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, length })
    }
}

impl RotatingFile {
    pub(super) fn open(path: PathBuf, bounds: Bounds) -> io::Result<Self> {
        let open = Mutex::new(Open::at(&path)?);
        Ok(Self { path, bounds, open })
    }

    fn rotated(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    fn rotate(&self, open: &mut Open) -> io::Result<()> {
        if self.bounds.backups == 0 {
            open.file.set_len(0)?;
            open.length = 0;
            return Ok(());
        }
        for number in (1..self.bounds.backups).rev() {
            match rename(self.rotated(number), self.rotated(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        rename(&self.path, self.rotated(1))?;
        *open = Open::at(&self.path)?;
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for RotatingFile {
    type Writer = FileWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        // A thread that panicked while it logged leaves a line half written, nothing worse.
        FileWriter { log: self, open: self.open.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

/// Writes one line, alone.
pub(super) struct FileWriter<'a> {
    log: &'a RotatingFile,
    open: MutexGuard<'a, Open>,
}

impl Write for FileWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.open.length >= self.log.bounds.most_bytes && self.log.rotate(&mut self.open).is_err() {
            // A file that is too large is better than none. It is tried again after as many bytes.
            self.open.length = 0;
        }
        let written = self.open.file.write(line)?;
        self.open.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.open.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::read_to_string;

    use super::*;

    #[test]
    fn a_full_file_is_renamed_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("azure-cns.log");
        let log = RotatingFile::open(path.clone(), Bounds { most_bytes: 4, backups: 7 }).unwrap();
        for line in 0..20 {
            log.make_writer().write_all(format!("l{line:02}\n").as_bytes()).unwrap();
        }
        assert_eq!(read_to_string(&path).unwrap(), "l19\n");
        assert_eq!(read_to_string(log.rotated(7)).unwrap(), "l12\n");
        assert!(!log.rotated(8).exists());
        // What an earlier process wrote is gone on with.
        drop(log);
        let log = RotatingFile::open(path.clone(), Bounds { most_bytes: 100, backups: 7 }).unwrap();
        log.make_writer().write_all(b"more\n").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "l19\nmore\n");
    }

    #[test]
    fn without_backups_a_full_file_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("azure-cns.log");
        let log = RotatingFile::open(path.clone(), Bounds { most_bytes: 6, backups: 0 }).unwrap();
        for line in 0..5 {
            log.make_writer().write_all(format!("l{line:02}\n").as_bytes()).unwrap();
        }
        assert_eq!(read_to_string(&path).unwrap(), "l04\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
