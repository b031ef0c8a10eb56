//! One request over netlink, and its answers.
//!
//! Requests that change something ask for an acknowledgement and fail without one: the reference loses kernel errors by
//! skipping acknowledgements that it does not recognise (spec/linux-dataplane.md §10.2).

use std::io;

use nix::errno::Errno;
use rtnetlink::{
    Handle,
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST,
        NetlinkMessage, NetlinkPayload,
    },
    packet_route::RouteNetlinkMessage,
};
use tokio_stream::StreamExt;

/// The kernel refused a request.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing}: {source}")]
pub struct KernelError {
    /// What was asked for, with its values.
    pub doing: String,
    /// The kernel's answer.
    pub source: io::Error,
}

impl KernelError {
    /// The kernel's error number.
    pub fn errno(&self) -> Option<Errno> {
        self.source.raw_os_error().map(Errno::from_raw)
    }

    /// The thing that was to be changed does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL | Errno::ENXIO)
        )
    }
}

/// A netlink route socket in one network namespace.
#[derive(Clone, Debug)]
pub struct Netlink {
    handle: Handle,
}

/// How often a dump is tried that keeps changing.
const DUMP_ATTEMPTS: u32 = 5;

/// What the kernel answered to one request.
#[derive(Default)]
struct Answer {
    found: Vec<RouteNetlinkMessage>,
    /// The end was told, by an acknowledgement or by "done".
    acknowledged: bool,
    /// What was listed changed meanwhile.
    inconsistent: bool,
}

/// What becomes of what is there already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Make it; fail if it exists.
    Create,
    /// Make it, or make what exists like it.
    Replace,
    /// Change what exists.
    Set,
    /// Remove it.
    Delete,
}

impl Change {
    const fn flags(self) -> u16 {
        match self {
            Self::Create => NLM_F_CREATE | NLM_F_EXCL,
            Self::Replace => NLM_F_CREATE | NLM_F_REPLACE,
            Self::Set | Self::Delete => 0,
        }
    }
}

impl Netlink {
    /// Opens a socket in the namespace of the calling thread and starts its driver on the current runtime. The driver ends
    /// with the last clone of the handle.
    pub(crate) fn open() -> io::Result<Self> {
        let (mut connection, handle, _unsolicited) = rtnetlink::new_connection()?;
        // Otherwise an answer that ends well and one that breaks off look alike.
        connection.set_forward_ack(true);
        connection.set_forward_done(true);
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Changes something; succeeds only when the kernel has acknowledged it.
    pub(crate) async fn change(
        &self,
        change: Change,
        message: RouteNetlinkMessage,
        doing: impl FnOnce() -> String,
    ) -> Result<(), KernelError> {
        match self.talk(message, NLM_F_ACK | change.flags()).await {
            Ok(answer) if answer.acknowledged => Ok(()),
            Ok(_) => Err(KernelError { doing: doing(), source: unacknowledged() }),
            Err(source) => Err(KernelError { doing: doing(), source }),
        }
    }

    /// Asks for one thing.
    pub(crate) async fn get(
        &self,
        message: RouteNetlinkMessage,
        doing: impl FnOnce() -> String,
    ) -> Result<Vec<RouteNetlinkMessage>, KernelError> {
        let answer = self.talk(message, 0).await;
        answer.map(|answer| answer.found).map_err(|source| KernelError { doing: doing(), source })
    }

    /// Asks for all things of a sort. A dump that something else changed while it was made is made again.
    pub(crate) async fn dump(
        &self,
        message: RouteNetlinkMessage,
        doing: &str,
    ) -> Result<Vec<RouteNetlinkMessage>, KernelError> {
        let failed = |source| KernelError { doing: doing.to_owned(), source };
        for _ in 0..DUMP_ATTEMPTS {
            let answer = self.talk(message.clone(), NLM_F_DUMP).await.map_err(failed)?;
            if !answer.acknowledged {
                return Err(failed(unacknowledged()));
            }
            if !answer.inconsistent {
                return Ok(answer.found);
            }
        }
        Err(failed(io::Error::new(io::ErrorKind::Interrupted, "it kept changing while it was read")))
    }

    async fn talk(&self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Answer> {
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        let mut answers = self
            .handle
            .clone()
            .request(request)
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the netlink connection has ended"))?;
        let mut answer = Answer::default();
        while let Some(part) = answers.next().await {
            answer.inconsistent |= part.header.flags & NLM_F_DUMP_INTR != 0;
            match part.payload {
                NetlinkPayload::InnerMessage(message) => answer.found.push(message),
                NetlinkPayload::Error(error) => match error.code {
                    None => answer.acknowledged = true,
                    Some(code) => return Err(errno(code.get())),
                },
                NetlinkPayload::Done(done) if done.code < 0 => return Err(errno(done.code)),
                NetlinkPayload::Done(_) => answer.acknowledged = true,
                NetlinkPayload::Overrun(_) => {
                    return Err(io::Error::from_raw_os_error(Errno::ENOBUFS as i32));
                }
                _ => {}
            }
        }
        Ok(answer)
    }
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code.saturating_abs())
}

fn unacknowledged() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the netlink connection ended before the kernel answered")
}
