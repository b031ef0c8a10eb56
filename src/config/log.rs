//! What is logged, and where to.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{CommandLine, ConfigError, FileRead, absolute, told};

/// Where the log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogTarget {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file.
    LogFile,
    /// Standard output and a file.
    StdoutFile,
    /// The system's log.
    Syslog,
}

/// A file of JSON lines beside the log, as the reference's structured logger has one (spec/config.md §2.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogFile {
    /// Where it is.
    pub path: PathBuf,
    /// What goes there: `debug`, `info`, `warn` or `error`, whatever the log itself has.
    pub level: &'static str,
    /// How many full ones are kept.
    pub backups: usize,
    /// How large one grows.
    pub most_bytes: u64,
}

impl LogFile {
    /// `Logger.file`, where `EnableLoggerV2` switches it on.
    pub(super) fn read(file: &FileRead, notes: &mut Vec<String>) -> Result<Option<Self>, ConfigError> {
        let settings = &file.settings;
        let Some(wanted) = &settings.logger.file else { return Ok(None) };
        if !settings.enable_logger_v2 {
            notes.push("Logger.file is without effect: EnableLoggerV2 is not set".into());
            return Ok(None);
        }
        Ok(Some(Self {
            path: absolute("Logger.file.filepath", Path::new(&wanted.filepath))?,
            level: level(&wanted.level),
            backups: usize::try_from(wanted.max_backups).unwrap_or(0),
            most_bytes: u64::try_from(wanted.max_size).unwrap_or(1) << 20,
        }))
    }
}

/// The reference's levels beyond `error` are for what ends a process; no line is more than an error here.
fn level(of_the_reference: &str) -> &'static str {
    match of_the_reference {
        "debug" => "debug",
        "warn" => "warn",
        "error" | "dpanic" | "panic" | "fatal" => "error",
        _ => "info",
    }
}

/// The reference's flag, or what is usual under the name that the daemon was invoked under.
pub(super) fn log_target(flag: Option<&str>, azure: bool) -> LogTarget {
    match flag {
        Some("syslog") => LogTarget::Syslog,
        Some("stderr") => LogTarget::Stderr,
        Some("stdout") => LogTarget::Stdout,
        Some("stdoutfile") => LogTarget::StdoutFile,
        Some("logfile") => LogTarget::LogFile,
        // The flag's table lets no other through.
        _ if azure => LogTarget::LogFile,
        _ => LogTarget::Stderr,
    }
}

/// What is logged: our option, ours in the file, or the reference's structured logger where it is switched on.
pub(super) fn log_level(command: &CommandLine, file: &FileRead) -> Result<String, ConfigError> {
    let settings = &file.settings;
    let told = told(
        command.args.log_level.clone(),
        command.key("log_level", "--log-level"),
        file,
        settings.node.log_level.clone(),
        "Node.LogLevel",
    );
    let Some((level, key)) = told else {
        let level = if settings.enable_logger_v2 { level(&settings.logger.level) } else { "info" };
        return Ok(level.to_owned());
    };
    match tracing_subscriber::EnvFilter::try_new(&level) {
        Ok(_) => Ok(level),
        Err(error) => Err(ConfigError::LogLevel { key, given: level, why: error.to_string() }),
    }
}
