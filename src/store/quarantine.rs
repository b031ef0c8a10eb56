//! A damaged file is set aside, never deleted: it is evidence, and may hold what a person can still read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::StoreError;

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
