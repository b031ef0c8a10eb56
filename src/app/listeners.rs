//! The listening sockets. They are bound eagerly, and the streams of connections end when the daemon stops: tonic itself
//! keeps its listener open while it drains (grpc-rust issue 2342), and new calls would hang.

use std::{
    fs,
    future::ready,
    io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::AppError;
use crate::{
    service::{
        layers::AcceptedFrom,
        peer::{Caller, tcp_peer_uid},
    },
    tls,
};

/// Root and its group may connect; the policy says who may change state.
const SOCKET_MODE: u32 = 0o660;

/// The bound unix socket.
#[derive(Debug)]
pub(super) struct UnixSocket {
    listener: UnixListener,
    guard: SocketFile,
}

/// Removes the socket's file when dropped, if it is still the one that was made.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours {
            // Somebody else removed it first.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl UnixSocket {
    /// Binds the path. The file that a dead daemon left is replaced; one that answers is not.
    /// `what` names the option that asked for it.
    pub(super) fn bind(what: &'static str, path: &Path) -> Result<Self, AppError> {
        let failed = |source: io::Error, remedy: &'static str| AppError::Listen {
            what,
            at: path.display().to_string(),
            source,
            remedy,
        };
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(|e| failed(e, ""))?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                let error =
                    io::Error::new(io::ErrorKind::AlreadyExists, "something that is no socket is there");
                return Err(failed(error, "; move it away or choose another path"));
            }
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                let error = io::Error::new(io::ErrorKind::AddrInUse, "another process answers there");
                return Err(failed(error, "; stop it or choose another path"));
            }
            Ok(_) => fs::remove_file(path).map_err(|e| failed(e, ""))?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(|e| failed(e, ""))?;
        fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(|e| failed(e, ""))?;
        let inode = fs::symlink_metadata(path).map_err(|e| failed(e, ""))?.ino();
        Ok(Self { listener, guard: SocketFile { path: path.to_owned(), inode } })
    }

    pub(super) fn path(&self) -> &Path {
        &self.guard.path
    }

    /// The listener, and what removes its file in the end.
    pub(super) fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.guard)
    }

    /// Connections until the token is cancelled, and what removes the file in the end.
    pub(super) fn incoming(
        self,
        stop: CancellationToken,
    ) -> (impl Stream<Item = io::Result<UnixStream>> + Send, SocketFile) {
        let accepted = UnixListenerStream::new(self.listener).filter(|accepted| ready(passes(accepted)));
        (accepted.take_until(stop.cancelled_owned()), self.guard)
    }
}

/// An error of one accept (a client that went away, too many open files) is that client's affair; passed on, it would end
/// the listener.
fn passes<T>(accepted: &io::Result<T>) -> bool {
    if let Err(error) = accepted {
        tracing::warn!(%error, "a connection could not be accepted");
    }
    accepted.is_ok()
}

/// Handshakes at a time: those of slow clients do not keep others waiting.
const HANDSHAKES: usize = 256;

/// Connections over TCP until the token is cancelled, each with its caller; with TLS where there is a server for it.
pub(super) fn incoming_tcp(
    listener: TcpListener,
    tls: Option<Arc<tls::Server>>,
    stop: CancellationToken,
) -> impl Stream<Item = io::Result<PeerStream>> + Send {
    TcpListenerStream::new(listener)
        .filter(|accepted| ready(passes(accepted)))
        .map(move |accepted| {
            let tls = tls.clone();
            async move {
                match accepted {
                    Ok(stream) => PeerStream::establish(stream, tls.as_deref()).await,
                    Err(_) => None,
                }
            }
        })
        .buffer_unordered(HANDSHAKES)
        .filter_map(|established| ready(established.map(Ok)))
        .take_until(stop.cancelled_owned())
}

/// Either kind of stream.
#[derive(Debug)]
enum Wire {
    Clear(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A TCP connection that knows who is at the other end.
#[derive(Debug)]
pub(super) struct PeerStream {
    wire: Wire,
    caller: Caller,
}

impl PeerStream {
    /// `None` if the client does not get as far as that.
    async fn establish(stream: TcpStream, tls: Option<&tls::Server>) -> Option<Self> {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let peer = stream.peer_addr().unwrap_or(nowhere);
        let uid = stream.local_addr().ok().and_then(|local| tcp_peer_uid(local, peer));
        // Small messages, each waited for.
        let _ = stream.set_nodelay(true);
        let mut caller = Caller::tcp(peer, uid, false);
        let Some(server) = tls else { return Some(Self { wire: Wire::Clear(stream), caller }) };
        let stream = server.accept(stream, &caller.origin).await?;
        // The handshake ends without a certificate only where none is asked for.
        caller.certified = server.wants_certificates();
        Some(Self { wire: Wire::Tls(Box::new(stream)), caller })
    }
}

impl Connected for PeerStream {
    type ConnectInfo = AcceptedFrom;

    fn connect_info(&self) -> AcceptedFrom {
        AcceptedFrom(self.caller.clone())
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Clear(stream) => Pin::new(stream).poll_read(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Clear(stream) => Pin::new(stream).poll_write(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Clear(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Clear(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
