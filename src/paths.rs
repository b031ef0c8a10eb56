//! Where the daemon keeps its state and listens when it was not told, and where its clients look for it.
//!
//! Root has the system's directories. Anyone else has a directory of their own: `$XDG_RUNTIME_DIR/cns` where a session
//! has one, else `/tmp/cns-<uid>`. The second lies in a directory that everybody may write to, so its owner is checked
//! before anything in it is trusted ([`ensure_private_dir`], [`client_socket`]).

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use nix::unistd::{Uid, geteuid};

/// The socket of a daemon that runs as root.
pub const SYSTEM_SOCKET: &str = "/run/azure-cns/cns.sock";

/// The state directory of a daemon that runs as root.
pub const SYSTEM_STATE_DIR: &str = "/var/lib/azure-cns";

/// Where a daemon that was told nothing keeps its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPaths {
    /// Directory of `state.redb`.
    pub state_dir: PathBuf,
    /// The gRPC unix socket.
    pub socket: PathBuf,
}

impl DefaultPaths {
    /// The defaults of the calling process: its effective user and its `XDG_RUNTIME_DIR`.
    pub fn current() -> Self {
        Self::of_user(
            geteuid(),
            usable_runtime_dir(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)).as_deref(),
        )
    }

    /// The defaults of user `uid`, whose session has `runtime_dir`.
    pub fn of_user(uid: Uid, runtime_dir: Option<&Path>) -> Self {
        if uid.is_root() {
            return Self { state_dir: SYSTEM_STATE_DIR.into(), socket: SYSTEM_SOCKET.into() };
        }
        let state_dir = runtime_dir
            .map_or_else(|| PathBuf::from(format!("/tmp/cns-{uid}")), |session| session.join("cns"));
        Self { socket: state_dir.join("cns.sock"), state_dir }
    }
}

/// The socket a client of this process's user tries when it was given none: that of the user's own daemon if there is
/// one, else the system's.
pub fn client_socket() -> PathBuf {
    choose_client_socket(DefaultPaths::current(), geteuid())
}

fn choose_client_socket(own: DefaultPaths, uid: Uid) -> PathBuf {
    if !uid.is_root() && own.socket.exists() && check_private_dir(&own.state_dir, uid).is_ok() {
        own.socket
    } else {
        SYSTEM_SOCKET.into()
    }
}

/// Creates `dir` (and what is missing above it) for its user alone, mode 0700, or checks that an existing one is theirs.
///
/// Fails with `PermissionDenied` if `dir` is a symbolic link, belongs to somebody else, or lets others write into it:
/// in `/tmp` anybody could have prepared it.
pub fn ensure_private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    check_private_dir(dir, geteuid())
}

fn check_private_dir(dir: &Path, uid: Uid) -> io::Result<()> {
    let found = fs::symlink_metadata(dir)?;
    let denied = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if !found.is_dir() {
        return denied(format!("{} is not a directory; remove it, or name another directory", dir.display()));
    }
    if found.uid() != uid.as_raw() {
        return denied(format!(
            "{} belongs to user {}, not to user {uid}; remove it, or name another directory",
            dir.display(),
            found.uid()
        ));
    }
    if found.mode() & 0o022 != 0 {
        return denied(format!(
            "others may write to {} (mode {:o}); run `chmod 700 {0}`",
            dir.display(),
            found.mode() & 0o7777
        ));
    }
    Ok(())
}

/// A relative `XDG_RUNTIME_DIR` is to be ignored (XDG base directory specification), and one that is not there is of no
/// use.
fn usable_runtime_dir(dir: Option<PathBuf>) -> Option<PathBuf> {
    dir.filter(|dir| dir.is_absolute() && dir.is_dir())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const USER: Uid = Uid::from_raw(1000);

    #[test]
    fn root_has_the_system_directories_whatever_its_session_says() {
        let paths = DefaultPaths::of_user(Uid::from_raw(0), Some(Path::new("/run/user/0")));
        assert_eq!(paths.socket, Path::new("/run/azure-cns/cns.sock"));
        assert_eq!(paths.state_dir, Path::new("/var/lib/azure-cns"));
    }

    #[test]
    fn a_user_has_a_directory_of_the_session_or_of_their_number() {
        let session = DefaultPaths::of_user(USER, Some(Path::new("/run/user/1000")));
        assert_eq!(session.socket, Path::new("/run/user/1000/cns/cns.sock"));
        let bare = DefaultPaths::of_user(USER, None);
        assert_eq!(bare.state_dir, Path::new("/tmp/cns-1000"));
        assert_eq!(bare.socket, Path::new("/tmp/cns-1000/cns.sock"));
    }

    #[test]
    fn a_runtime_dir_that_is_relative_or_absent_is_ignored() {
        assert_eq!(usable_runtime_dir(Some("run".into())), None);
        assert_eq!(usable_runtime_dir(Some("/nonexistent/run".into())), None);
        assert_eq!(usable_runtime_dir(Some("/".into())), Some("/".into()));
    }

    #[test]
    fn a_client_without_a_daemon_of_its_own_asks_the_systems() {
        let home = tempfile::tempdir().unwrap();
        let own = DefaultPaths::of_user(USER, Some(home.path()));
        assert_eq!(choose_client_socket(own, USER), Path::new(SYSTEM_SOCKET));
    }

    #[test]
    fn a_private_dir_is_made_for_the_user_alone_and_only_trusted_while_it_is() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("a/b");
        ensure_private_dir(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        ensure_private_dir(&dir).unwrap();

        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let error = ensure_private_dir(&dir).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("chmod 700"), "{error}");

        let link = home.path().join("link");
        symlink(home.path(), &link).unwrap();
        assert_eq!(ensure_private_dir(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);

        let other = Uid::from_raw(geteuid().as_raw() + 1);
        let error = check_private_dir(home.path(), other).unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
    }
}
