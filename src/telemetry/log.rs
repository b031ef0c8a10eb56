//! Structured logs on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::LogFormat;

/// Installs the process-wide subscriber. `level` was checked with the configuration.
pub fn install(level: &str, format: LogFormat) {
    let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("info"));
    // Escape sequences in a file or in journald are noise to everything that searches them. A terminal's owner may not want
    // colours either (https://no-color.org).
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let colours = wanted && std::io::stderr().is_terminal();
    let builder = fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // Somebody installed one already: a test that runs the daemon in its own process.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
