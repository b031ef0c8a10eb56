//! Files that others read while we write them: the new content is there whole or not at all, also after a crash.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Whether a file had to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was not there.
    Created,
    /// It had another content or mode.
    Replaced,
    /// It was just so.
    Unchanged,
}

/// A temporary file of a writer that has been silent for so long is left over from one that died.
const LEFT_OVER: Duration = Duration::from_mins(10);

/// Makes `content` the content of `path`, with permission bits `mode`.
///
/// It goes to a temporary file in the same directory (whose name ends in `.tmp`, so that no runtime takes it for a
/// configuration), is flushed to the disk, and takes the name over. Nothing is written if nothing would change.
pub fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<Written> {
    let before = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(found) = &before
        && found.is_file()
        && found.permissions().mode() & 0o7777 == mode
        && found.len() == content.len() as u64
        && fs::read(path)? == content
    {
        return Ok(Written::Unchanged);
    }
    let dir = directory_of(path);
    sweep(dir, path);
    let temporary = temporary_beside(path)?;
    let written = fill(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // The failure to report is the first one; a temporary that stays is swept by a later run.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(dir)?;
    Ok(if before.is_some() { Written::Replaced } else { Written::Created })
}

/// Removes `path` for good; `false` if it was not there.
pub fn remove_durably(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(directory_of(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn fill(temporary: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    file.write_all(content)?;
    // Not at creation: the umask would take bits away.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn temporary_prefix(path: &Path) -> io::Result<String> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    Ok(format!(".{}.", name.to_string_lossy()))
}

fn temporary_beside(path: &Path) -> io::Result<PathBuf> {
    let name = format!("{}{}.tmp", temporary_prefix(path)?, std::process::id());
    Ok(directory_of(path).join(name))
}

/// Removes what writers of `path` that died have left. Best effort: it is only litter.
fn sweep(dir: &Path, path: &Path) {
    let Ok(prefix) = temporary_prefix(path) else {
        return;
    };
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".tmp"));
        if number.is_none_or(|number| number.parse::<u32>().is_err()) {
            continue;
        }
        let silent = entry
            .metadata()
            .and_then(|found| found.modified())
            .is_ok_and(|last| SystemTime::now().duration_since(last).is_ok_and(|since| since > LEFT_OVER));
        if silent {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_created_replaced_and_then_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.conflist");
        assert_eq!(write_atomically(&path, b"one", 0o644).unwrap(), Written::Created);
        assert_eq!(write_atomically(&path, b"one", 0o644).unwrap(), Written::Unchanged);
        assert_eq!(write_atomically(&path, b"two", 0o644).unwrap(), Written::Replaced);
        assert_eq!(write_atomically(&path, b"two", 0o755).unwrap(), Written::Replaced);
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(names(dir.path()), ["a.conflist"]);
        assert!(remove_durably(&path).unwrap());
        assert!(!remove_durably(&path).unwrap());
    }

    #[test]
    fn a_link_is_replaced_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, b"theirs").unwrap();
        symlink(&target, &link).unwrap();
        write_atomically(&link, b"ours", 0o644).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"theirs");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name");
        fs::create_dir(&path).unwrap();
        assert_eq!(write_atomically(&path, b"x", 0o644).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(dir.path()), ["name"]);
        let missing = dir.path().join("no/such/dir/file");
        assert_eq!(write_atomically(&missing, b"x", 0o644).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn litter_of_dead_writers_is_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * LEFT_OVER;
        for (name, changed) in [
            (".a.conflist.4711.tmp", Some(old)),
            (".a.conflist.4712.tmp", None),
            (".a.conflist.mine.tmp", Some(old)),
            (".b.conflist.4711.tmp", Some(old)),
        ] {
            let file = File::create(dir.path().join(name)).unwrap();
            if let Some(changed) = changed {
                file.set_modified(changed).unwrap();
            }
        }
        write_atomically(&dir.path().join("a.conflist"), b"x", 0o644).unwrap();
        assert_eq!(
            names(dir.path()),
            [".a.conflist.4712.tmp", ".a.conflist.mine.tmp", ".b.conflist.4711.tmp", "a.conflist"]
        );
    }
}
