//! The gateway's listeners: HTTP/1.1, with TLS also HTTP/2, and what one client can cost the others: nothing.
//!
//! The reference has no limits at all (spec/security.md §3). Here the number of connections is bounded, and when it is reached
//! the one that has been idle longest makes room, so that ten thousand idle ones keep nobody out; a request's head and body
//! must arrive within a time and a size; of large bodies only a few are read at once. gRPC has listeners of its own.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{Notify, Semaphore, SemaphorePermit},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Call, Gateway, reply::Reply, routes};
use crate::{
    service::peer::{Caller, tcp_peer_uid},
    tls,
};

/// Connections at a time, for all listeners of the gateway together.
const CONNECTIONS: usize = 512;
/// How long a connection may take to send a request's head, and how long it may be idle. Longer than Go's clients keep idle
/// connections (90 s): a client must not meet a connection that is just being closed.
const HEAD_WITHIN: Duration = Duration::from_mins(2);
/// Requests at a time on one HTTP/2 connection.
const STREAMS: u32 = 64;
/// Pause of a silent HTTP/2 connection after which it is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a body may take.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// The largest body: a batch of network containers with hundreds of thousands of addresses is smaller.
const LARGEST_BODY: usize = 64 << 20;
/// Larger ones are read and worked on a few at a time: all connections together cannot make the daemon hold more than
/// [`CONNECTIONS`] of this size and [`LARGE_AT_ONCE`] of the largest.
const LARGE_BODY: usize = 256 << 10;
const LARGE_AT_ONCE: usize = 2;
/// Pause after the kernel refused a connection for lack of descriptors.
const BREATH: Duration = Duration::from_millis(50);

/// Where to listen.
#[derive(Debug)]
pub enum Listener {
    /// An address.
    Tcp(TcpListener),
    /// An address, with TLS.
    Tls(TcpListener, Arc<tls::Server>),
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
    /// Processes of this machine reach every one of its addresses, not the loopback alone; the kernel's table knows them. Pods
    /// have namespaces, and tables, of their own.
    fn tcp(local: Option<SocketAddr>, peer: SocketAddr) -> Self {
        let uid = local.and_then(|local| tcp_peer_uid(local, peer));
        let is_own =
            |ip: IpAddr| ip.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == ip);
        let is_remote = uid.is_none() && !is_own(peer.ip().to_canonical());
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
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection to the REST listener could not be accepted");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        // Without a place the connection is closed again: the client sees it at once and may come back.
        let Some(place) = places.take() else { continue };
        connections.spawn(connection(gateway.clone(), accepted, kind, place, stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Serves one connection that is no socket, by root of this machine: for those who test without a network.
#[cfg(feature = "test-util")]
pub async fn serve_stream<S>(gateway: Gateway, stream: S, kind: Kind)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let Some(place) = Places::default().take() else { return };
    let peer = Peer { caller: Caller::unix(Some(0), Some(0), None), is_remote: false };
    let accepted = Accepted { stream: Box::new(stream), tls: None, peer };
    connection(gateway, accepted, kind, place, CancellationToken::new()).await;
}

/// Any kind of connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection and what is still to be done before it can be talked on.
struct Accepted {
    stream: Box<dyn Stream>,
    tls: Option<Arc<tls::Server>>,
    peer: Peer,
}

async fn accept(listener: &Listener) -> io::Result<Accepted> {
    match listener {
        Listener::Tcp(tcp) | Listener::Tls(tcp, _) => {
            let (stream, peer) = tcp.accept().await?;
            // Answers are small and must not wait for company.
            let _ = stream.set_nodelay(true);
            let peer = Peer::tcp(stream.local_addr().ok(), peer);
            let tls = if let Listener::Tls(_, server) = listener { Some(server.clone()) } else { None };
            Ok(Accepted { stream: Box::new(stream), tls, peer })
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            let credentials = stream.peer_cred().ok();
            let caller = Caller::unix(
                credentials.map(|c| c.uid()),
                credentials.map(|c| c.gid()),
                credentials.and_then(|c| c.pid()).and_then(|pid| u32::try_from(pid).ok()),
            );
            let peer = Peer { caller, is_remote: false };
            Ok(Accepted { stream: Box::new(stream), tls: None, peer })
        }
    }
}

/// What is agreed on once both ends can talk.
struct Established {
    stream: Box<dyn Stream>,
    peer: Peer,
    is_http2: bool,
}

/// Shakes hands where there is TLS. `None` if that failed, or took too long.
async fn establish(accepted: Accepted) -> Option<Established> {
    let Accepted { stream, tls, mut peer } = accepted;
    let Some(server) = tls else { return Some(Established { stream, peer, is_http2: false }) };
    let stream = server.accept(stream, &peer.caller.origin).await?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    // The handshake ends without one only where none is asked for.
    peer.caller.certified = server.wants_certificates();
    Some(Established { stream: Box::new(stream), peer, is_http2 })
}

async fn connection(gateway: Gateway, accepted: Accepted, kind: Kind, place: Place, stop: CancellationToken) {
    let place = Arc::new(place);
    let established = tokio::select! {
        established = establish(accepted) => established,
        () = place.slot.leave.notified() => None,
        () = stop.cancelled() => None,
    };
    let Some(Established { stream, peer, is_http2 }) = established else { return };
    let service = {
        let place = place.clone();
        hyper::service::service_fn(move |request| {
            let (gateway, peer, place) = (gateway.clone(), peer.clone(), place.clone());
            async move { Ok::<_, Infallible>(respond(&gateway, request, peer, kind, &place).await) }
        })
    };
    let stream = TokioIo::new(stream);
    if is_http2 {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        drive(builder.serve_connection(stream, service), &place, &stop).await;
    } else {
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            // Go's canonical form of the one header that is not standard (§2.4).
            .title_case_headers(true);
        drive(builder.serve_connection(stream, service), &place, &stop).await;
    }
}

/// Serves a connection until it ends or is asked to leave; when the daemon stops, what is being worked on is finished.
async fn drive<C>(serving: C, place: &Place, stop: &CancellationToken)
where
    C: GracefulConnection<Error = hyper::Error>,
{
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
    place: &Place,
) -> Response<Full<bytes::Bytes>> {
    let (head, body) = request.into_parts();
    let is_head = head.method == http::Method::HEAD;
    if head.method == http::Method::CONNECT {
        // Success would make a tunnel of the connection.
        return Reply::text(StatusCode::METHOD_NOT_ALLOWED, "this is no proxy").into_http(is_head);
    }
    let escaped = head.uri.path().to_owned();
    let Some(path) = decoded(&escaped, None) else {
        return Reply::text(StatusCode::BAD_REQUEST, "the path is not well-formed").into_http(is_head);
    };
    // A connection that is still sending is not at work: it makes room like an idle one, or slow bodies would keep all places.
    let (body, permit) = match read(body, &place.places.large).await {
        Ok(read) => read,
        Err(reply) => {
            let mut response = reply.into_http(is_head);
            // What of the body is still to come is not read.
            response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
            return response;
        }
    };
    let _work = place.work();
    let call = Call {
        method: head.method,
        path,
        escaped,
        query: head.uri.query().map(str::to_owned),
        headers: head.headers,
        body,
        caller: peer.caller,
        is_remote: peer.is_remote,
    };
    let reply = if permit.is_some() {
        // Taking so much JSON apart occupies a thread for long; the runtime's few are for everybody.
        let (gateway, runtime) = (gateway.clone(), tokio::runtime::Handle::current());
        let answered = tokio::task::spawn_blocking(move || runtime.block_on(reply(&gateway, call, kind)));
        answered.await.unwrap_or_else(|error| {
            Reply::text(StatusCode::INTERNAL_SERVER_ERROR, &format!("the request was not answered: {error}"))
        })
    } else {
        reply(gateway, call, kind).await
    };
    reply.into_http(is_head)
}

async fn reply(gateway: &Gateway, call: Call, kind: Kind) -> Reply {
    match kind {
        Kind::Main => routes::main(gateway, call).await,
        Kind::Local => routes::on_local(gateway, call).await,
    }
}

/// Reads a body whole, within time and size. With a large one comes the permit for it.
async fn read(
    mut body: Incoming,
    large: &Semaphore,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Box<Reply>> {
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
        Ok((whole, permit))
    };
    match tokio::time::timeout(BODY_WITHIN, reading).await {
        Ok(read) => read,
        Err(_) => Err(Box::new(Reply::text(StatusCode::REQUEST_TIMEOUT, "the body took too long"))),
    }
}

/// The path with its percent encodings resolved, but for those of one byte.
pub(super) fn decoded(path: &str, except: Option<u8>) -> Option<String> {
    if !path.contains('%') {
        return Some(path.to_owned());
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            if !digits.iter().all(u8::is_ascii_hexdigit) {
                return None;
            }
            let value = u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?;
            if except == Some(value) {
                bytes.extend([b'%', digits[0], digits[1]]);
            } else {
                bytes.push(value);
            }
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
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
        let path = "/network/%65ndpoints/a%2Fb%2fc";
        assert_eq!(decoded(path, None).as_deref(), Some("/network/endpoints/a/b/c"));
        assert_eq!(decoded(path, Some(b'/')).as_deref(), Some("/network/endpoints/a%2Fb%2fc"));
        for bad in ["/%", "/%4", "/%zz", "/%+1", "/%ff"] {
            assert_eq!(decoded(bad, None), None, "{bad}");
        }
    }
}
