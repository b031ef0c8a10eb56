//! Network namespaces: opening, telling apart, and doing something inside one.
//!
//! A path proves nothing (it is reused, and stays behind as a plain file when a namespace is unmounted), so a namespace
//! is known by the device and inode of its nsfs file.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    thread,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
    sys::statfs::{FsType, fstatfs},
};

use super::netlink::Netlink;

/// `NSFS_MAGIC` of linux/magic.h.
const NSFS: FsType = FsType(0x6e73_6673);

/// What tells a network namespace from every other that exists at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetnsId {
    /// Device of the namespace file system.
    pub device: u64,
    /// Inode; the kernel reuses it after the namespace is gone.
    pub inode: u64,
}

/// Whether a namespace that was recorded is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The path leads to the same namespace.
    Alive,
    /// The path leads nowhere, or to an ordinary file.
    Gone,
    /// The path leads to another namespace.
    Replaced,
    /// It cannot be told: permission, I/O, a parent directory that this process cannot see.
    Unknown,
}

/// Why a namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// Nothing is at the path, or no longer a namespace.
    #[error("network namespace {} is gone", path.display())]
    Gone {
        /// The path.
        path: PathBuf,
    },
    /// The namespace is the one this process lives in: wiring a pod there would reconfigure the host.
    #[error("network namespace {} is the host's own; a pod needs one of its own", path.display())]
    Own {
        /// The path.
        path: PathBuf,
    },
    /// The path cannot be opened or inspected.
    #[error("cannot open network namespace {}: {source}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The namespace cannot be entered.
    #[error("cannot enter network namespace {}: {source}; root (CAP_SYS_ADMIN) is needed", path.display())]
    Enter {
        /// The path.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// No netlink socket could be opened inside.
    #[error("cannot open a netlink socket in network namespace {}: {source}", path.display())]
    Netlink {
        /// The path.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The thread that was to work inside could not be started, or panicked.
    #[error("the thread working in network namespace {} failed: {why}", path.display())]
    Thread {
        /// The path.
        path: PathBuf,
        /// What happened.
        why: String,
    },
}

/// An open network namespace. It exists at least as long as this does.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
    id: NetnsId,
}

impl Netns {
    /// Opens the namespace at `path`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, NetnsError> {
        let path = path.into();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Err(NetnsError::Gone { path }),
            Err(source) => return Err(NetnsError::Open { path, source }),
        };
        match fstatfs(&file) {
            Ok(stat) if stat.filesystem_type() == NSFS => {}
            Ok(_) => return Err(NetnsError::Gone { path }),
            Err(errno) => return Err(NetnsError::Open { path, source: errno.into() }),
        }
        match file.metadata() {
            Ok(metadata) => {
                let id = NetnsId { device: metadata.dev(), inode: metadata.ino() };
                Ok(Self { file, path, id })
            }
            Err(source) => Err(NetnsError::Open { path, source }),
        }
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// Opens the namespace at `path` for a pod: that of the host is refused.
    pub fn open_pod(path: impl Into<PathBuf>, host: &Self) -> Result<Self, NetnsError> {
        let pod = Self::open(path)?;
        if pod.id == host.id { Err(NetnsError::Own { path: pod.path }) } else { Ok(pod) }
    }

    /// What tells it from others.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` on a thread of its own inside the namespace and waits for it. What is opened inside (sockets, files
    /// under `/proc/sys/net`) belongs to the namespace for good; a process that is started inside lives in it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        thread::scope(|scope| {
            let inside = thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
                setns(&self.file, CloneFlags::CLONE_NEWNET)
                    .map_err(|errno| NetnsError::Enter { path: self.path.clone(), source: errno.into() })?;
                Ok(work())
            });
            let inside = inside
                .map_err(|error| NetnsError::Thread { path: self.path.clone(), why: error.to_string() })?;
            inside.join().unwrap_or_else(|panic| {
                let why = panic.downcast_ref::<&str>().map_or("it panicked", |text| text);
                Err(NetnsError::Thread { path: self.path.clone(), why: why.to_owned() })
            })
        })
    }

    /// Opens a netlink socket that lives in the namespace and is driven by the calling runtime.
    ///
    /// Must be called within a tokio runtime with I/O enabled.
    pub fn netlink(&self) -> Result<Netlink, NetnsError> {
        let runtime = tokio::runtime::Handle::current();
        self.run(|| {
            // The socket registers with the reactor of the caller.
            let _entered = runtime.enter();
            Netlink::open()
        })?
        .map_err(|source| NetnsError::Netlink { path: self.path.clone(), source })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether the namespace that was recorded as `id` at `path` is still there. Blocks for a few system calls.
pub fn liveness(path: &Path, id: NetnsId) -> Liveness {
    match Netns::open(path) {
        Ok(netns) if netns.id == id => Liveness::Alive,
        Ok(_) => Liveness::Replaced,
        Err(NetnsError::Gone { .. }) => {
            // Without its directory this process cannot see the runtime's namespaces at all, and must not conclude that
            // they are gone. A pid's directory under /proc goes with the pid.
            let parent_seen = path.starts_with("/proc") || path.parent().is_some_and(Path::is_dir);
            if parent_seen { Liveness::Gone } else { Liveness::Unknown }
        }
        Err(_) => Liveness::Unknown,
    }
}

/// `/proc/PID/ns/net` of a dead process answers ESRCH, or ENOTDIR where a pid directory is no more.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ESRCH | Errno::ENOTDIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespace_is_open_alive_and_refused_for_a_pod() {
        let host = Netns::current().unwrap();
        assert!(matches!(liveness(Path::new("/proc/self/ns/net"), host.id()), Liveness::Alive));
        let error = Netns::open_pod("/proc/self/ns/net", &host).unwrap_err();
        assert!(matches!(error, NetnsError::Own { .. }), "{error}");
    }

    #[test]
    fn what_is_no_namespace_is_gone_where_its_directory_is_seen() {
        let id = Netns::current().unwrap().id();
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("left-behind");
        std::fs::write(&plain, "").unwrap();
        for (path, expected) in [
            (plain.as_path(), Liveness::Gone),
            (&dir.path().join("absent"), Liveness::Gone),
            (&plain.join("below"), Liveness::Unknown),
            (&dir.path().join("no/such/directory"), Liveness::Unknown),
            (Path::new(""), Liveness::Unknown),
            (Path::new("/proc/4294967295/ns/net"), Liveness::Gone),
        ] {
            assert!(matches!(Netns::open(path), Err(NetnsError::Gone { .. })), "{}", path.display());
            assert_eq!(liveness(path, id), expected, "{}", path.display());
        }
    }

    #[test]
    fn another_inode_is_another_namespace() {
        let mut id = Netns::current().unwrap().id();
        id.inode += 1;
        assert_eq!(liveness(Path::new("/proc/self/ns/net"), id), Liveness::Replaced);
    }
}
