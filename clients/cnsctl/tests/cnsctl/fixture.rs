//! Runs `cnsctl`.

use std::{
    ffi::OsStr,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

/// `cnsctl` with `arguments`, in an environment without settings of ours.
pub(crate) fn cnsctl<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cnsctl"));
    command.args(arguments).env_remove("CNS_SOCKET").env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn ran(command: &mut Command) -> Ran {
    command.output().map(Ran::from).unwrap()
}

/// A run that reads `input`.
pub(crate) fn ran_with_input(command: &mut Command, input: &str) -> Ran {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().map(Ran::from).unwrap()
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Asserts the exit code, and that a failure is one line on stderr.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Asserts a failure of ours: this code, nothing on stdout, one line on stderr.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        let ran = self.exits(code);
        assert_eq!(ran.out, "", "{ran:#?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:#?}");
        assert!(ran.err.starts_with("cnsctl: "), "{ran:#?}");
        ran.err
    }

    /// Asserts success and silence on stderr; gives stdout.
    #[track_caller]
    pub(crate) fn succeeds(self) -> String {
        let ran = self.exits(0);
        assert_eq!(ran.err, "", "{ran:#?}");
        ran.out
    }
}

/// A file that looks like a build of the plugin to `cni install`.
pub(crate) fn plugin_in(dir: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;

    let path = dir.join("plugin");
    std::fs::write(&path, format!("\x7fELF {}", cns_client::USER_AGENT)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}
