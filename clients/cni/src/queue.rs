//! Releases that cannot be delivered: files that the daemon reads (spec/cni-plugin.md §5.3).

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use cns::model::ContainerId;

/// Leaves a release in `directory`: a file named by the container, which says which interface. It is there whole or not at
/// all; the daemon takes no name that begins with a dot.
pub(crate) fn leave(directory: &Path, container: &ContainerId, interface_id: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let path = directory.join(container.as_str());
    let temporary = directory.join(format!(".tmp-{}", std::process::id()));
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(interface_id.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_named_by_container_and_says_the_interface() {
        let dir = tempfile::tempdir().unwrap();
        let queue = dir.path().join("not/there/yet");
        let container = "1f2e3d4c5b6a".parse().unwrap();
        for _ in 0..2 {
            let path = leave(&queue, &container, "1f2e3d4c-eth0").unwrap();
            assert_eq!(path, queue.join("1f2e3d4c5b6a"));
            assert_eq!(fs::read_to_string(path).unwrap(), "1f2e3d4c-eth0");
        }
        assert_eq!(fs::read_dir(&queue).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_directory_that_cannot_be_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("file");
        fs::write(&blocked, "").unwrap();
        assert!(leave(&blocked, &"c1".parse().unwrap(), "").is_err());
    }
}
