//! Structured logs: to standard error, and where the reference's `-t` can send them.

mod file;
mod syslog;

use std::{
    io::{self, IsTerminal as _, Write},
    path::PathBuf,
};

use tracing_subscriber::{
    EnvFilter, Layer as _, fmt,
    fmt::{MakeWriter, writer::BoxMakeWriter},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use self::{
    file::{Bounds, RotatingFile},
    syslog::Syslog,
};
use super::{otlp::Otlp, traces::Traces};
use crate::config::{Config, LogFile, LogFormat, LogTarget};

/// The log's file, in the directory that `-o` names.
const FILE: &str = "azure-cns.log";

/// How much of it is kept, as with the reference's -t logfile.
const BOUNDS: Bounds = Bounds { most_bytes: 5 << 20, backups: 7 };

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
    /// The structured logger's file.
    #[error(
        "the log file {path} cannot be written: {source}; name another one as Logger.file.filepath in cns_config.json",
        path = path.display()
    )]
    StructuredFile {
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

/// Where what is logged is reported to, beside the log.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    /// Whoever will be connected.
    pub traces: Traces,
    /// A collector, if there is one.
    pub otlp: Option<Otlp>,
}

/// Installs the process-wide subscriber. The level was checked with the configuration. Must be called within the runtime.
pub fn install(config: &Config) -> Result<Reported, LogError> {
    // Every layer has a filter of its own: the structured file may be told more than the log, or less.
    let filter = || EnvFilter::try_new(&config.log_level).unwrap_or_else(|_| EnvFilter::new("info"));
    let path = config.log_directory.join(FILE);
    // Both have the same name by default, and two writers that rename each other's file lose lines.
    let structured_is_it = config.log_file.as_ref().is_some_and(|file| file.path == path);
    let open = || {
        RotatingFile::open(path.clone(), BOUNDS)
            .map_err(|source| LogError::File { path: path.clone(), source })
    };
    let (writer, terminal) = match config.log_target {
        LogTarget::Stderr => (Some(BoxMakeWriter::new(io::stderr)), io::stderr().is_terminal()),
        LogTarget::LogFile if structured_is_it => (None, false),
        LogTarget::StdoutFile if structured_is_it => (Some(BoxMakeWriter::new(io::stdout)), false),
        LogTarget::Stdout => (Some(BoxMakeWriter::new(io::stdout)), io::stdout().is_terminal()),
        LogTarget::LogFile => (Some(BoxMakeWriter::new(open()?)), false),
        LogTarget::StdoutFile => (Some(BoxMakeWriter::new(Both(open()?))), false),
        LogTarget::Syslog => {
            let syslog = Syslog::connect().map_err(|source| LogError::Syslog { source })?;
            (Some(BoxMakeWriter::new(syslog)), false)
        }
    };
    let structured = config.log_file.as_ref().map(|LogFile { path, level, backups, most_bytes }| {
        let bounds = Bounds { most_bytes: *most_bytes, backups: *backups };
        let file = RotatingFile::open(path.clone(), bounds)
            .map_err(|source| LogError::StructuredFile { path: path.clone(), source })?;
        Ok(fmt::layer().json().with_writer(file).with_filter(EnvFilter::new(*level)))
    });
    let structured = structured.transpose()?;
    // Escape sequences in a file or in journald are noise to everything that searches them. A terminal's owner may not want
    // colours either (https://no-color.org).
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = writer.map(|writer| {
        let lines = fmt::layer().with_ansi(wanted && terminal).with_writer(writer);
        let lines = match config.log_format {
            LogFormat::Text => lines.with_target(false).boxed(),
            LogFormat::Json => lines.json().boxed(),
        };
        lines.with_filter(filter())
    });
    let traces = Traces::default();
    let (otlp, no_otlp) = match config.otlp_endpoint.as_ref().map(Otlp::new) {
        None => (None, None),
        Some(Ok(otlp)) => (Some(otlp), None),
        Some(Err(error)) => (None, Some(error)),
    };
    let subscriber = tracing_subscriber::registry()
        .with(otlp.as_ref().map(|otlp| otlp.layer(filter())))
        .with(structured)
        .with(lines)
        .with(traces.clone().with_filter(filter()));
    // Somebody installed one already: a test that runs the daemon in its own process.
    let _ = subscriber.try_init();
    // A node does not go without network because its telemetry cannot be sent.
    if let Some(error) = no_otlp {
        tracing::error!(%error, "nothing is sent to a collector");
    }
    Ok(Reported { traces, otlp })
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
