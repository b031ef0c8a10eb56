//! What is logged, and where to.

use serde::Serialize;

use super::{CommandLine, ConfigError, FileRead, told};

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
        let level = match settings.logger.level.as_str() {
            level @ ("debug" | "warn" | "error") => level,
            "dpanic" | "panic" | "fatal" => "error",
            _ => "info",
        };
        return Ok(if settings.enable_logger_v2 { level } else { "info" }.to_owned());
    };
    match tracing_subscriber::EnvFilter::try_new(&level) {
        Ok(_) => Ok(level),
        Err(error) => Err(ConfigError::LogLevel { key, given: level, why: error.to_string() }),
    }
}
