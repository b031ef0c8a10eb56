//! Network namespaces: opening, telling apart, entering.
//!
//! A thread that calls `setns` belongs to that namespace, and a netlink socket stays in the namespace where it was opened. So
//! whatever must happen inside a namespace happens on a short-lived thread; no runtime thread ever changes its namespace.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    thread,
};

use nix::{
    sched::{CloneFlags, setns},
    sys::statfs::{FsType, fstatfs},
};

/// The magic of nsfs, the file system of namespaces (linux/magic.h). `proc` files lead there too once opened.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// What can go wrong with a namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// There is nothing at the path, or something that is no namespace any more.
    #[error("network namespace {path} is gone", path = path.display())]
    Gone {
        /// The path.
        path: PathBuf,
    },
    /// The path leads to this process's own namespace, which is no pod's.
    #[error("network namespace {path} is the host's own", path = path.display())]
    Own {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refuses.
    #[error("network namespace {path}: {what}: {source}", path = path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// What tells one namespace from another: a path is reused, these are not while the namespace lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetnsId {
    /// Device of nsfs.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// An open network namespace: it lives as long as this does.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
    id: NetnsId,
}

impl Netns {
    /// Opens a namespace by its path.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let failed = |what, source| NetnsError::Io { path: path.to_owned(), what, source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(NetnsError::Gone { path: path.to_owned() });
            }
            Err(error) => return Err(failed("open", error)),
        };
        let magic = fstatfs(&file).map_err(|errno| failed("statfs", errno.into()))?.filesystem_type();
        if magic != NSFS_MAGIC {
            // The mount of a namespace that is gone leaves an ordinary file behind.
            return Err(NetnsError::Gone { path: path.to_owned() });
        }
        let meta = file.metadata().map_err(|error| failed("stat", error))?;
        Ok(Self { file, path: path.to_owned(), id: NetnsId { device: meta.dev(), inode: meta.ino() } })
    }

    /// Opens a pod's namespace; refuses the one that this thread is in.
    pub fn open_pod(path: &Path) -> Result<Self, NetnsError> {
        let netns = Self::open(path)?;
        if netns.id == Self::current()?.id {
            return Err(NetnsError::Own { path: path.to_owned() });
        }
        Ok(netns)
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// What it is.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `act` inside, on a thread of its own, and waits for it.
    pub fn run<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let failed = |what, source| NetnsError::Io { path: self.path.clone(), what, source };
        let inside = thread::scope(|scope| {
            let entered = thread::Builder::new().name("netns".into()).spawn_scoped(scope, || {
                setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(io::Error::from)?;
                Ok::<T, io::Error>(act())
            });
            match entered {
                Ok(thread) => thread.join().map_err(|_| io::Error::other("the thread inside panicked"))?,
                Err(error) => Err(error),
            }
        });
        inside.map_err(|error| failed("enter", error))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What became of a namespace that was seen before.
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

/// Looks whether the namespace that was once at `path` is still there. Blocks for two system calls.
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
