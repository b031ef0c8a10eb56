//! The intent record: written before anything is done, removed when DEL has undone it all.
//!
//! It lets DEL and GC find what an ADD that was killed had begun, without the daemon and without `prevResult`
//! (spec/cni-plugin.md §10.5). It is a hint: the kernel and the daemon are the truth, and a lost record loses no pod.
//!
//! It also says whose the attachment is at present. A runtime gives an ADD up, sends DEL and perhaps another ADD, while the
//! first still runs: whoever touches the kernel does so under a lock and looks first whether the record still is their own.
//! The daemon is never asked under the lock.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cns::{
    model::BootTime,
    nic::{Attachment, Netns, NetnsId},
};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use serde::{Deserialize, Serialize};

use crate::error::{CniError, Code};

/// How long to wait for another run that is at the kernel for the same attachment: far longer than its work takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Locks are files that stay, so that nobody locks a file that is just being removed: a few for all attachments.
const LOCKS: u8 = 32;

/// No record is larger; what is, is not ours.
const LARGEST: u64 = 64 << 10;

/// What an ADD is about to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Intent {
    pub(crate) network: String,
    pub(crate) container_id: String,
    pub(crate) ifname: String,
    /// The sandbox's namespace.
    pub(crate) netns: PathBuf,
    pub(crate) netns_device: u64,
    pub(crate) netns_inode: u64,
    /// `CLOCK_BOOTTIME` in nanoseconds when the ADD began.
    pub(crate) began: u64,
}

impl Intent {
    pub(crate) fn new(attachment: &Attachment, pod: &Netns, began: BootTime) -> Self {
        let id = pod.id();
        Self {
            network: attachment.network().to_owned(),
            container_id: attachment.container().to_string(),
            ifname: attachment.ifname().to_string(),
            netns: pod.path().to_owned(),
            netns_device: id.device,
            netns_inode: id.inode,
            began: began.nanos(),
        }
    }

    /// Whose it is; none if the record is not well-formed.
    pub(crate) fn attachment(&self) -> Option<Attachment> {
        Attachment::new(&self.network, self.container_id.parse().ok()?, self.ifname.parse().ok()?).ok()
    }

    /// Opens the sandbox's namespace, if what is at its path still is that namespace.
    pub(crate) fn open_netns(&self) -> Option<Netns> {
        let id = NetnsId { device: self.netns_device, inode: self.netns_inode };
        Netns::open(&self.netns).ok().filter(|netns| netns.id() == id)
    }
}

/// While it lives, no other run touches the attachment.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] Flock<File>);

/// The directory of records.
#[derive(Clone, Debug)]
pub(crate) struct Intents(PathBuf);

impl Intents {
    pub(crate) fn at(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    /// `:` occurs in none of the three parts, so two attachments never share a file.
    fn path(&self, attachment: &Attachment) -> PathBuf {
        self.0.join(format!("{}:{}:{}", attachment.network(), attachment.container(), attachment.ifname()))
    }

    /// Writes a record so that it is whole or not there, whatever is killed.
    pub(crate) fn write(&self, attachment: &Attachment, intent: &Intent) -> Result<(), CniError> {
        let path = self.path(attachment);
        let temporary = self.0.join(format!(".tmp-{}", std::process::id()));
        let written = serde_json::to_vec(intent).map_err(io::Error::other).and_then(|content| {
            fs::create_dir_all(&self.0)?;
            let mut file = File::create(&temporary)?;
            file.write_all(&content)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            CniError::new(
                Code::Io,
                format!("cannot write the intent record {}: {error}; nothing was done", path.display()),
            )
        })
    }

    /// Waits until no other run touches the attachment.
    pub(crate) async fn lock(&self, attachment: &Attachment) -> Result<Lock, CniError> {
        // FNV-1a: which lock does not matter, only that every run finds the same.
        let hash = attachment
            .alias()
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let path = self.0.join(format!(".lock-{}", hash % u32::from(LOCKS)));
        let failed = |code, why: String| {
            CniError::new(code, format!("cannot lock {} with {}: {why}", attachment, path.display()))
        };
        let open = || {
            fs::create_dir_all(&self.0)?;
            File::options().create(true).truncate(false).write(true).open(&path)
        };
        let mut file = open().map_err(|error| failed(Code::Io, error.to_string()))?;
        let begun = Instant::now();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => return Ok(Lock(locked)),
                Err((unlocked, Errno::EWOULDBLOCK)) if begun.elapsed() < PATIENCE => file = unlocked,
                Err((_, Errno::EWOULDBLOCK)) => {
                    let why = format!("another run has held it for {PATIENCE:?}; is it stopped?");
                    return Err(failed(Code::TryAgainLater, why));
                }
                Err((_, errno)) => return Err(failed(Code::Io, errno.to_string())),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// An attachment's record. One that cannot be read is as good as none.
    pub(crate) fn read(&self, attachment: &Attachment) -> Option<Intent> {
        read(&self.path(attachment))
    }

    /// Forgets an attachment; success if there is nothing to forget.
    pub(crate) fn remove(&self, attachment: &Attachment) -> io::Result<()> {
        match fs::remove_file(self.path(attachment)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Every record of a network.
    pub(crate) fn of_network(&self, network: &str) -> io::Result<Vec<Intent>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let is_its =
                name.to_str().and_then(|name| name.split_once(':')).is_some_and(|(of, _)| of == network);
            if is_its {
                found.extend(read(&entry.path()).filter(|intent| intent.network == network));
            }
        }
        Ok(found)
    }
}

fn read(path: &Path) -> Option<Intent> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > LARGEST {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(network: &str, container: &str) -> Attachment {
        Attachment::new(network, container.parse().unwrap(), "eth0".parse().unwrap()).unwrap()
    }

    #[test]
    fn records_are_found_by_attachment_and_network_until_removed() {
        let dir = tempfile::tempdir().unwrap();
        let intents = Intents::at(&dir.path().join("made/when/needed"));
        assert_eq!(intents.of_network("a").unwrap(), []);
        let pod = Netns::current().unwrap();
        for (network, container) in [("a", "c1"), ("a", "c2"), ("b", "c1")] {
            let attachment = attachment(network, container);
            intents.write(&attachment, &Intent::new(&attachment, &pod, BootTime::from_nanos(7))).unwrap();
        }
        let one = intents.read(&attachment("a", "c1")).unwrap();
        assert_eq!((one.began, one.attachment()), (7, Some(attachment("a", "c1"))));
        assert_eq!(one.open_netns().map(|netns| netns.id()), Some(pod.id()));
        assert_eq!(intents.of_network("a").unwrap().len(), 2);
        for _ in 0..2 {
            intents.remove(&attachment("a", "c1")).unwrap();
        }
        assert_eq!(intents.read(&attachment("a", "c1")), None);
        assert_eq!(intents.of_network("a").unwrap().len(), 1);
    }

    #[test]
    fn what_is_torn_or_foreign_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let intents = Intents::at(dir.path());
        fs::write(dir.path().join("a:c1:eth0"), "{\"network\":\"a\"").unwrap();
        fs::create_dir(dir.path().join("a:c2:eth0")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("a:c3:eth0")).unwrap();
        assert_eq!(intents.of_network("a").unwrap(), []);
        assert_eq!(intents.read(&attachment("a", "c1")), None);
    }

    #[test]
    fn another_namespace_at_the_path_is_not_opened() {
        let pod = Netns::current().unwrap();
        let mut intent = Intent::new(&attachment("a", "c1"), &pod, BootTime::from_nanos(1));
        intent.netns_inode += 1;
        assert!(intent.open_netns().is_none());
    }
}
