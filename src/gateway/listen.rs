//! HTTP/1.1 listeners of the gateway, and what one client can cost the others: nothing.
//!
//! The reference has no limits at all (spec/security.md §3). Here the number of connections is bounded, and when it is reached
//! the one that has been idle longest makes room, so that ten thousand idle ones keep nobody out; a request's head and body
//! must arrive within a time and a size; of large bodies only a few are read at once. gRPC has listeners of its own.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{Notify, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Call, Gateway, reply::Reply, routes};
use crate::service::peer::{Caller, tcp_peer_uid};

/// Connections at a time, for all listeners of the gateway together.
const CONNECTIONS: usize = 512;
/// How long a connection may take to send a request's head, and how long it may be idle. Longer than Go's clients keep idle
/// connections (90 s): a client must not meet a connection that is just being closed.
const HEAD_WITHIN: Duration = Duration::from_mins(2);
/// How long a body may take.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// The largest body: a batch of network containers with hundreds of thousands of addresses is smaller.
const LARGEST_BODY: usize = 64 << 20;
/// Larger ones are read a few at a time.
const LARGE_BODY: usize = 1 << 20;
const LARGE_AT_ONCE: usize = 2;
/// Pause after the kernel refused a connection for lack of descriptors.
const BREATH: Duration = Duration::from_millis(50);

/// Where to listen.
#[derive(Debug)]
pub enum Listener {
    /// An address.
    Tcp(TcpListener),
    /// A socket file.
    Unix(UnixListener),
}

/// Which routes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All.
    Main,
    /// Those of the local listener (spec/rest-contract.md §7).
    Local,
}

/// One connection's place.
#[derive(Debug, Default)]
struct Slot {
    /// Requests that are being worked on.
    busy: AtomicUsize,
    leave: Notify,
}

/// The places of all listeners.
#[derive(Clone, Debug)]
pub struct Places {
    open: Arc<Mutex<VecDeque<Arc<Slot>>>>,
    large: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self { open: Arc::default(), large: Arc::new(Semaphore::new(LARGE_AT_ONCE)) }
    }
}

impl Places {
    fn open(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Slot>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place; where there is none, the connection that has waited longest for its next request gives its own up. `None` if
    /// all are at work.
    fn take(&self) -> Option<Place> {
        let mut open = self.open();
        if open.len() >= CONNECTIONS {
            let idle = open.iter().position(|slot| slot.busy.load(Ordering::Acquire) == 0)?;
            if let Some(slot) = open.remove(idle) {
                slot.leave.notify_one();
            }
        }
        let slot = Arc::new(Slot::default());
        open.push_back(slot.clone());
        Some(Place { slot, places: self.clone() })
    }
}

/// A place that is given back when dropped.
#[derive(Debug)]
struct Place {
    slot: Arc<Slot>,
    places: Places,
}

impl Place {
    /// The connection is at work; afterwards it is the one that was idle least long.
    fn work(&self) -> Work<'_> {
        self.slot.busy.fetch_add(1, Ordering::AcqRel);
        Work(self)
    }
}

struct Work<'a>(&'a Place);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.slot.busy.fetch_sub(1, Ordering::AcqRel);
        let mut open = self.0.places.open();
        if let Some(at) = open.iter().position(|slot| Arc::ptr_eq(slot, &self.0.slot))
            && let Some(slot) = open.remove(at)
        {
            open.push_back(slot);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.open().retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

/// Who is at the other end, and whether from this machine.
#[derive(Clone, Debug)]
struct Peer {
    caller: Caller,
    is_remote: bool,
}

impl Peer {
    fn tcp(local: Option<SocketAddr>, peer: SocketAddr) -> Self {
        let is_remote = !peer.ip().to_canonical().is_loopback();
        // The kernel's table knows the owners of this machine's sockets only.
        let uid = local.filter(|_| !is_remote).and_then(|local| tcp_peer_uid(local, peer));
        Self { caller: Caller::tcp(peer, uid, false), is_remote }
    }
}

/// Serves until `stop`, then finishes what is being worked on.
pub async fn serve(
    gateway: Gateway,
    listener: Listener,
    kind: Kind,
    places: Places,
    stop: CancellationToken,
) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection to the REST listener could not be accepted");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        // Without a place the connection is closed again: the client sees it at once and may come back.
        let Some(place) = places.take() else { continue };
        connections.spawn(connection(gateway.clone(), stream, peer, kind, place, stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Either kind of connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn accept(listener: &Listener) -> io::Result<(Box<dyn Stream>, Peer)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            // Answers are small and must not wait for company.
            let _ = stream.set_nodelay(true);
            let peer = Peer::tcp(stream.local_addr().ok(), peer);
            Ok((Box::new(stream), peer))
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            let credentials = stream.peer_cred().ok();
            let caller = Caller::unix(
                credentials.map(|c| c.uid()),
                credentials.map(|c| c.gid()),
                credentials.and_then(|c| c.pid()).and_then(|pid| u32::try_from(pid).ok()),
            );
            Ok((Box::new(stream), Peer { caller, is_remote: false }))
        }
    }
}

async fn connection(
    gateway: Gateway,
    stream: Box<dyn Stream>,
    peer: Peer,
    kind: Kind,
    place: Place,
    stop: CancellationToken,
) {
    let service = hyper::service::service_fn(|request| {
        let (gateway, peer, place) = (&gateway, peer.clone(), &place);
        async move {
            let _work = place.work();
            Ok::<_, Infallible>(respond(gateway, request, peer, kind, &place.places.large).await)
        }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        // Go's canonical form of the one header that is not standard (§2.4).
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let mut is_stopping = false;
    loop {
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a REST connection ended");
                }
                return;
            }
            () = place.slot.leave.notified() => return,
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn respond(
    gateway: &Gateway,
    request: Request<Incoming>,
    peer: Peer,
    kind: Kind,
    large: &Semaphore,
) -> Response<Full<bytes::Bytes>> {
    let (head, body) = request.into_parts();
    let is_head = head.method == http::Method::HEAD;
    let Some(path) = decoded_path(head.uri.path()) else {
        return Reply::text(StatusCode::BAD_REQUEST, "the path is not well-formed").into_http(is_head);
    };
    let body = match read(body, large).await {
        Ok(body) => body,
        Err(reply) => {
            let mut response = reply.into_http(is_head);
            // What of the body is still to come is not read.
            response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
            return response;
        }
    };
    let call = Call {
        method: head.method,
        path,
        headers: head.headers,
        body,
        caller: peer.caller,
        is_remote: peer.is_remote,
    };
    let reply = match kind {
        Kind::Main => routes::main(gateway, call).await,
        Kind::Local => routes::on_local(gateway, call).await,
    };
    reply.into_http(is_head)
}

/// Reads a body whole, within time and size.
async fn read(mut body: Incoming, large: &Semaphore) -> Result<Vec<u8>, Box<Reply>> {
    let too_large = || {
        let message = format!("the body is larger than {LARGEST_BODY} bytes");
        Box::new(Reply::text(StatusCode::PAYLOAD_TOO_LARGE, &message))
    };
    let announced = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    if announced.is_some_and(|length| length > LARGEST_BODY) {
        return Err(too_large());
    }
    let reading = async {
        let mut whole = Vec::with_capacity(announced.unwrap_or_default().min(LARGE_BODY));
        let mut permit = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let message = format!("the body could not be read: {error}");
                Box::new(Reply::text(StatusCode::BAD_REQUEST, &message))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + data.len() > LARGEST_BODY {
                return Err(too_large());
            }
            if whole.len() + data.len() > LARGE_BODY && permit.is_none() {
                permit = large.acquire().await.ok();
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole)
    };
    match tokio::time::timeout(BODY_WITHIN, reading).await {
        Ok(read) => read,
        Err(_) => Err(Box::new(Reply::text(StatusCode::REQUEST_TIMEOUT, "the body took too long"))),
    }
}

/// The path with its percent encodings resolved, as Go's router sees it. `None` where one is broken, or where it stands for what
/// is no text.
fn decoded_path(path: &str) -> Option<String> {
    // The decoder lets a `%` stand that begins no encoding.
    let is_broken = |rest: &str| {
        let digits = rest.as_bytes().get(..2);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if path.split('%').skip(1).any(is_broken) {
        return None;
    }
    percent_decode_str(path).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_makes_room_and_a_busy_one_does_not() {
        let places = Places::default();
        let mut taken: Vec<_> = (0..CONNECTIONS).map(|_| places.take().unwrap()).collect();
        // The first worked a moment ago, so the second has been idle longest.
        drop(taken[0].work());
        let late = places.take().unwrap();
        assert_eq!(places.open().len(), CONNECTIONS);
        let is_open = |place: &Place| places.open().iter().any(|slot| Arc::ptr_eq(slot, &place.slot));
        assert!(is_open(&taken[0]) && !is_open(&taken[1]) && is_open(&late));
        taken.remove(1);
        assert_eq!(places.open().len(), CONNECTIONS, "who was put out gives nothing back");

        let works: Vec<_> = taken.iter().map(Place::work).collect();
        let _late = late.work();
        assert!(places.take().is_none(), "all are at work");
        drop(works);
        assert!(places.take().is_some());
    }

    #[test]
    fn paths_are_decoded() {
        assert_eq!(decoded_path("/network/%65ndpoints/a%2Fb").as_deref(), Some("/network/endpoints/a/b"));
        for bad in ["/%", "/%4", "/%zz", "/%+1", "/%%41", "/%ff"] {
            assert_eq!(decoded_path(bad), None, "{bad}");
        }
    }
}
