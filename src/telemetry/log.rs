//! Structured logs on standard error.

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::LogFormat;

/// Installs the process-wide subscriber. `level` was checked with the configuration.
pub fn install(level: &str, format: LogFormat) {
    let filter = EnvFilter::try_new(level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Somebody installed one already: a test that runs the daemon in its own process.
    let _ = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
