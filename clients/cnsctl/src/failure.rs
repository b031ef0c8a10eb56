//! How a command ends badly: an exit code that scripts can use, and one line that says what failed and what to do.

use std::{fmt, io, path::Path, process::ExitCode};

use cns_client::Error;

/// Exit codes, as `cnsctl --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command failed or the daemon refused it.
    Failed = 1,
    /// The command line or an input file is wrong.
    Usage = 2,
    /// The daemon cannot be reached, or does not answer in time.
    Unreachable = 3,
    /// What was asked for does not exist.
    NotFound = 4,
    /// The daemon or its state is not healthy.
    Unhealthy = 5,
}

/// For `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed, or refused by the daemon
  2  the command line or an input file is wrong
  3  the daemon cannot be reached or does not answer in time
  4  what was asked for does not exist
  5  something is wrong with the node (status, doctor)";

/// Why a command did not succeed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// To be told on stderr.
    Told {
        /// With which code.
        exit: Exit,
        /// What failed, with which value.
        what: String,
        /// What to do, if there is something to be said.
        remedy: Option<String>,
    },
    /// The output itself has told it already.
    Shown(Exit),
    /// Nobody reads our output any more (`cnsctl ip list | head -1`): no failure, but a reason to stop.
    ClosedPipe,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self::Told { exit, what: what.into(), remedy: None }
    }

    /// Adds what to do about it.
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        match self {
            Self::Told { exit, what, .. } => Self::Told { exit, what, remedy: Some(remedy.into()) },
            other => other,
        }
    }

    /// A file operation failed.
    pub(crate) fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let failure = Self::new(Exit::Failed, format!("cannot {doing} {}: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.remedy("run as root, or name a place you may write to")
            }
            _ => failure,
        }
    }

    /// Tells it on stderr and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Told { exit, .. } => {
                // A closed stderr leaves nobody to tell; the exit code still does.
                let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("cnsctl: {self}\n"));
                ExitCode::from(*exit as u8)
            }
            Self::Shown(exit) => ExitCode::from(*exit as u8),
            Self::ClosedPipe => ExitCode::SUCCESS,
        }
    }
}

/// One line, whatever the daemon or a file's name held.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Told { what, remedy, .. } = self else {
            return Ok(());
        };
        f.write_str(&crate::output::printable(what))?;
        match remedy {
            Some(remedy) => write!(f, "; {}", crate::output::printable(remedy)),
            None => Ok(()),
        }
    }
}

impl From<io::Error> for Failure {
    /// Of writing to stdout.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::new(Exit::Failed, format!("cannot write the output: {error}")),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Unreachable { socket, source } => Self::new(Exit::Unreachable, error.to_string())
                .remedy(unreachable_remedy(socket, io_kind(source.as_ref()))),
            Error::Interrupted { .. } => Self::new(Exit::Unreachable, error.to_string())
                .remedy("it may have been restarted: see `cnsctl status`, then run the command again"),
            Error::Timeout { last, .. } => {
                let what = match last {
                    Some(refusal) => format!("{error}; the last attempt: {refusal}"),
                    None => error.to_string(),
                };
                Self::new(Exit::Unreachable, what).remedy("see `cnsctl status` and the daemon's log")
            }
            Error::Refused(_) if error.is_not_found() => Self::new(Exit::NotFound, error.to_string()),
            Error::Refused(refusal) => {
                let failure = Self::new(Exit::Failed, error.to_string());
                match refusal.details.get("remedy") {
                    Some(remedy) if !refusal.message.contains(remedy.as_str()) => {
                        failure.remedy(remedy.clone())
                    }
                    _ => failure,
                }
            }
            Error::Unimplemented { .. } => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

fn unreachable_remedy(socket: &Path, kind: Option<io::ErrorKind>) -> String {
    match kind {
        Some(io::ErrorKind::PermissionDenied) => {
            "run as root, or as a member of the group that the daemon lets in".to_owned()
        }
        Some(io::ErrorKind::ConnectionRefused) => {
            format!("a daemon that ended left {} behind: start `cns` again", socket.display())
        }
        _ => "start `cns`, or name the socket of a running one with --socket or CNS_SOCKET".to_owned(),
    }
}

fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<io::Error>())
        .map(io::Error::kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreachable(kind: io::ErrorKind) -> Failure {
        Error::Unreachable { socket: "/run/cns.sock".into(), source: Box::new(io::Error::from(kind)) }.into()
    }

    #[test]
    fn a_daemon_out_of_reach_has_its_own_code_and_a_remedy_that_fits() {
        for (kind, remedy) in [
            (io::ErrorKind::NotFound, "--socket"),
            (io::ErrorKind::PermissionDenied, "root"),
            (io::ErrorKind::ConnectionRefused, "left /run/cns.sock behind"),
        ] {
            let failure = unreachable(kind);
            assert!(matches!(failure, Failure::Told { exit: Exit::Unreachable, .. }), "{failure:?}");
            assert!(failure.to_string().contains(remedy), "{failure}");
            assert!(failure.to_string().contains("/run/cns.sock"), "{failure}");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)), Failure::ClosedPipe);
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, Failure::Told { exit: Exit::Failed, .. }));
    }

    #[test]
    fn a_failure_is_one_line_without_control_characters() {
        let failure = Failure::new(Exit::Failed, "first\nsecond\u{1b}[31m").remedy("a\rb");
        assert_eq!(failure.to_string(), "first\\nsecond\\u{1b}[31m; a\\rb");
    }
}
