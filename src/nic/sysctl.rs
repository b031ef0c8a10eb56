//! `/proc/sys/net`: per namespace of the thread that opens it, so it is written on a thread inside.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::netns::{Netns, NetnsError};
use crate::model::Family;

/// A kernel setting could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// It could not be read or written.
    #[error("cannot set {} to {value}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

/// One setting: the path below `/proc/sys/net` in its parts (an interface's name may hold dots), and the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) path: &'a [&'a str],
    pub(crate) value: &'a str,
    /// The kernel may lack the setting (IPv6 switched off at boot).
    pub(crate) optional: bool,
}

/// Makes the settings inside `netns`, in order.
pub(crate) fn apply(netns: &Netns, settings: &[Setting<'_>]) -> Result<(), SysctlError> {
    netns.run(|| settings.iter().try_for_each(set))?
}

fn set(setting: &Setting<'_>) -> Result<(), SysctlError> {
    let path = file(setting.path);
    let failed = |source| SysctlError::Write { path: path.clone(), value: setting.value.to_owned(), source };
    match fs::read_to_string(&path) {
        // Also what makes a read-only /proc/sys do when the host is set up already.
        Ok(present) if present.trim_end() == setting.value => return Ok(()),
        Ok(_) => {}
        Err(error) if setting.optional && error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    fs::write(&path, setting.value).map_err(failed)
}

fn holds(path: &[&str], value: &str) -> bool {
    fs::read_to_string(file(path)).is_ok_and(|text| text.trim_end() == value)
}

fn file(parts: &[&str]) -> PathBuf {
    let mut path = PathBuf::from("/proc/sys/net");
    path.extend(parts);
    path
}

/// Lets packets of `families` be forwarded in `netns`.
///
/// A host that forwards IPv6 ignores router advertisements unless told otherwise (`accept_ra=2`): interfaces that live by
/// them now must go on doing so, or the host loses its own default route.
pub fn enable_forwarding(netns: &Netns, families: &[Family]) -> Result<(), SysctlError> {
    netns.run(|| {
        if families.contains(&Family::V4) {
            set(&Setting { path: &["ipv4", "ip_forward"], value: "1", optional: false })?;
        }
        if families.contains(&Family::V6) {
            let all = ["ipv6", "conf", "all", "forwarding"];
            if !holds(&all, "1") {
                for interface in interfaces_that_live_by_advertisements() {
                    set(&Setting {
                        path: &["ipv6", "conf", &interface, "accept_ra"],
                        value: "2",
                        optional: true,
                    })?;
                }
                set(&Setting { path: &all, value: "1", optional: false })?;
            }
        }
        Ok(())
    })?
}

fn interfaces_that_live_by_advertisements() -> Vec<String> {
    let Ok(entries) = fs::read_dir(Path::new("/proc/sys/net/ipv6/conf")) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name != "all" && name != "lo")
        .filter(|name| {
            holds(&["ipv6", "conf", name, "accept_ra"], "1")
                && holds(&["ipv6", "conf", name, "forwarding"], "0")
        })
        .collect()
}
