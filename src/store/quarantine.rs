//! A damaged file is set aside, never deleted: it is evidence, and may hold what a person can still read.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::StoreError;

/// The head of a state file as it was before it was opened. redb notes there how long it finds the file to be, and only then
/// finds out that something is missing.
#[derive(Debug)]
pub(super) struct Head(Vec<u8>);

impl Head {
    pub(super) fn of(path: &Path) -> Self {
        let mut head = Vec::new();
        // A file that is not there has none; one that cannot be read will not be opened either.
        if let Ok(file) = File::open(path) {
            let _ = file.take(4096).read_to_end(&mut head);
        }
        Self(head)
    }

    /// Makes it again what it was.
    pub(super) fn restore(&self, path: &Path) -> Result<(), StoreError> {
        let written = File::options().write(true).open(path).and_then(|file| file.write_all_at(&self.0, 0));
        written.map_err(|source| StoreError::io("restore the head of", path, source))
    }
}

/// Renames the file to `<name>.corrupt-<time>`, a name that is not taken.
pub(super) fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let candidates = (0..1000).map(|i| {
        let suffix = if i == 0 { String::new() } else { format!(".{i}") };
        path.with_file_name(format!("{name}.corrupt-{time}{suffix}"))
    });
    let aside = candidates.into_iter().find(|candidate| !candidate.exists());
    let aside = aside.unwrap_or_else(|| path.with_file_name(format!("{name}.corrupt")));
    fs::rename(path, &aside).map_err(|source| StoreError::io("set aside", path, source))?;
    Ok(aside)
}
