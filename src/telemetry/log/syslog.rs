//! The system's log, over its datagram socket (RFC 3164 as every syslog of Linux reads it).

use std::{
    io::{self, Write},
    os::unix::net::UnixDatagram,
};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Where every syslog listens.
pub(super) const SOCKET: &str = "/dev/log";

/// Facility `daemon`.
const FACILITY: u8 = 3 << 3;

/// The connection.
#[derive(Debug)]
pub(super) struct Syslog {
    path: &'static str,
    socket: UnixDatagram,
}

impl Syslog {
    pub(super) fn connect() -> io::Result<Self> {
        Self::connect_to(SOCKET)
    }

    fn connect_to(path: &'static str) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A syslog that hangs must not hang the daemon; it loses lines.
        socket.set_nonblocking(true)?;
        socket.connect(path)?;
        Ok(Self { path, socket })
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = SyslogWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        SyslogWriter { log: self, severity: severity(Level::INFO) }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        SyslogWriter { log: self, severity: severity(*metadata.level()) }
    }
}

fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Sends one line, with its severity.
pub(super) struct SyslogWriter<'a> {
    log: &'a Syslog,
    severity: u8,
}

impl Write for SyslogWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let head = format!("<{}>azure-cns[{}]: ", FACILITY | self.severity, std::process::id());
        let message = [head.as_bytes(), line.trim_ascii_end()].concat();
        // A syslog that was restarted has another socket at the same place.
        self.log.socket.send(&message).or_else(|_| self.log.socket.send_to(&message, self.log.path))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_severity_and_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let server = UnixDatagram::bind(&path).unwrap();
        let path: &'static str = Box::leak(path.display().to_string().into_boxed_str());
        let syslog = Syslog::connect_to(path).unwrap();
        syslog.make_writer().write_all(b"hello\n").unwrap();
        let mut buffer = [0; 256];
        let length = server.recv(&mut buffer).unwrap();
        let text = String::from_utf8_lossy(&buffer[..length]);
        assert_eq!(text, format!("<30>azure-cns[{}]: hello", std::process::id()));
        // One that was restarted is found again.
        drop(server);
        std::fs::remove_file(path).unwrap();
        let server = UnixDatagram::bind(path).unwrap();
        syslog.make_writer().write_all(b"again\n").unwrap();
        let length = server.recv(&mut buffer).unwrap();
        assert!(buffer[..length].ends_with(b"again"));
    }
}
