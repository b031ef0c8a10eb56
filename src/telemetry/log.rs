//! Structured logs: to standard error, and where the reference's `-t` can send them.

mod file;
mod syslog;

use std::{
    io::{self, IsTerminal as _, Write},
    path::PathBuf,
};

use tracing_subscriber::{
    EnvFilter, fmt,
    fmt::{MakeWriter, writer::BoxMakeWriter},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use self::{file::RotatingFile, syslog::Syslog};
use super::traces::Traces;
use crate::config::{Config, LogFormat, LogTarget};

/// The log's file, in the directory that `-o` names.
const FILE: &str = "azure-cns.log";

/// Why nothing can be logged.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file.
    #[error("the log file {path} cannot be written: {source}; name another directory with -o, or log elsewhere with -t", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The system's log.
    #[error("-t syslog: {path}: {source}; log elsewhere with -t", path = syslog::SOCKET)]
    Syslog {
        /// What the kernel says.
        source: io::Error,
    },
}

/// Installs the process-wide subscriber, and gives the layer that can report what is logged. The level was checked with the
/// configuration.
pub fn install(config: &Config) -> Result<Traces, LogError> {
    let filter = EnvFilter::try_new(&config.log_level).unwrap_or_else(|_| EnvFilter::new("info"));
    let open = || {
        let path = config.log_directory.join(FILE);
        RotatingFile::open(path.clone()).map_err(|source| LogError::File { path, source })
    };
    let (writer, terminal) = match config.log_target {
        LogTarget::Stderr => (BoxMakeWriter::new(io::stderr), io::stderr().is_terminal()),
        LogTarget::Stdout => (BoxMakeWriter::new(io::stdout), io::stdout().is_terminal()),
        LogTarget::LogFile => (BoxMakeWriter::new(open()?), false),
        LogTarget::StdoutFile => (BoxMakeWriter::new(Both(open()?)), false),
        LogTarget::Syslog => {
            let syslog = Syslog::connect().map_err(|source| LogError::Syslog { source })?;
            (BoxMakeWriter::new(syslog), false)
        }
    };
    // Escape sequences in a file or in journald are noise to everything that searches them. A terminal's owner may not want
    // colours either (https://no-color.org).
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = fmt().with_env_filter(filter).with_ansi(wanted && terminal).with_writer(writer);
    let traces = Traces::default();
    // Somebody installed one already: a test that runs the daemon in its own process.
    let _ = match config.log_format {
        LogFormat::Text => builder.with_target(false).finish().with(traces.clone()).try_init(),
        LogFormat::Json => builder.json().finish().with(traces.clone()).try_init(),
    };
    Ok(traces)
}

/// Standard output and the file.
#[derive(Debug)]
struct Both(RotatingFile);

impl<'a> MakeWriter<'a> for Both {
    type Writer = BothWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        BothWriter(&self.0)
    }
}

struct BothWriter<'a>(&'a RotatingFile);

impl Write for BothWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Where one of them is gone, the other still has the line.
        let out = io::stdout().write_all(line);
        let file = self.0.make_writer().write_all(line);
        file.and(out).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
