//! What every gRPC call passes, outermost first (style §3). Services know nothing of ids, limits or panics.

use std::{
    any::Any,
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{HeaderValue, Request, Response};
use tokio::sync::Semaphore;
use tonic::{Code, Status, body::Body, transport::server::UdsConnectInfo};
use tower::{Layer, Service};

use super::{
    RPC_LIMIT,
    peer::{Caller, Policy, changes_state},
    status::{self, Failure},
};
use crate::model::ReturnCode;

/// Told of every call.
pub trait RpcObserver: Send + Sync + 'static {
    /// `method` is `package.Service/Method`; `code` the gRPC status.
    fn observe(&self, method: &str, code: Code, elapsed: Duration);
}

impl RpcObserver for () {
    fn observe(&self, _: &str, _: Code, _: Duration) {}
}

/// Who is at the other end of an accepted connection, where the listener found it out itself.
#[derive(Clone, Debug)]
pub struct AcceptedFrom(pub Caller);

/// Authorises, sheds load, catches panics, logs and counts.
#[derive(Clone)]
pub struct GateLayer {
    policy: Arc<Policy>,
    places: Arc<Semaphore>,
    observer: Arc<dyn RpcObserver>,
}

impl std::fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GateLayer")
            .field("policy", &self.policy)
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

impl GateLayer {
    /// At most `concurrent` calls are worked on at once; more are told to come back. Probes always pass.
    pub fn new(policy: Policy, concurrent: usize, observer: Arc<dyn RpcObserver>) -> Self {
        Self { policy: Arc::new(policy), places: Arc::new(Semaphore::new(concurrent)), observer }
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = Gate<S>;

    fn layer(&self, inner: S) -> Gate<S> {
        Gate { inner, gate: self.clone() }
    }
}

/// See [`GateLayer`].
#[derive(Clone, Debug)]
pub struct Gate<S> {
    inner: S,
    gate: GateLayer,
}

impl<S> Service<Request<Body>> for Gate<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let started = Instant::now();
        let gate = self.gate.clone();
        let caller = caller(&request);
        let id = request_id(&mut request);
        let path = request.uri().path().to_owned();
        let limit = limit(&request);
        // What nobody can hear of any more is not begun.
        let refusal = if limit.is_zero() { Err(no_time()) } else { gate.refusal(&path, &caller) };
        request.extensions_mut().insert(caller.clone());
        // The clone that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let span = tracing::info_span!("rpc", method = %path.trim_start_matches('/'), request_id = %id);
        let mut account = Account { observer: gate.observer, path, started, limit, closed: false };
        let deadline = tokio::time::Instant::from_std(started) + limit;
        Box::pin(tracing::Instrument::instrument(
            async move {
                let (mut response, place) = match refusal {
                    Ok(place) => {
                        let call = std::panic::AssertUnwindSafe(inner.call(request));
                        let call = futures_util::FutureExt::catch_unwind(call);
                        let response = match tokio::time::timeout_at(deadline, call).await {
                            Ok(Ok(response)) => response?,
                            Ok(Err(panic)) => panicked(&*panic).into_http(),
                            Err(_elapsed) => too_late(limit).into_http(),
                        };
                        (response, place)
                    }
                    Err(refusal) => (refusal.into_http(), None),
                };
                drop(place);
                if code_of(&response) == Code::Unimplemented
                    && !response.headers().contains_key("grpc-status-details-bin")
                {
                    response = unknown_rpc(account.path.trim_start_matches('/')).into_http();
                }
                let code = code_of(&response);
                account.close(code);
                log(code, &caller, started.elapsed(), &response);
                if let Ok(id) = HeaderValue::from_str(&id) {
                    response.headers_mut().insert("x-request-id", id);
                }
                Ok(response)
            },
            span,
        ))
    }
}

/// Counts a call once, also one whose caller went away: its future is dropped where it stands.
struct Account {
    observer: Arc<dyn RpcObserver>,
    path: String,
    started: Instant,
    limit: Duration,
    closed: bool,
}

impl Account {
    fn close(&mut self, code: Code) {
        if !std::mem::replace(&mut self.closed, true) {
            self.observer.observe(self.path.trim_start_matches('/'), code, self.started.elapsed());
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // A caller whose deadline has come hangs up at the same moment.
        let late = self.started.elapsed() >= self.limit;
        self.close(if late { Code::DeadlineExceeded } else { Code::Cancelled });
    }
}

/// So much earlier than the caller's deadline the call is given up, so that the caller is told and does not only find out.
/// tonic's own timer, which cannot be switched off, would answer CANCELLED and not be counted.
const MARGIN: Duration = Duration::from_millis(2);

/// How long the call may take: the caller's `grpc-timeout`, never more than ours.
fn limit(request: &Request<Body>) -> Duration {
    let header = request.headers().get("grpc-timeout").and_then(|value| value.to_str().ok());
    header.and_then(parse_timeout).map_or(RPC_LIMIT, |asked| asked.saturating_sub(MARGIN).min(RPC_LIMIT))
}

/// At most eight digits and a unit, as the gRPC protocol has it. Anything else is no deadline.
fn parse_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back().filter(char::is_ascii_alphabetic)?;
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(count * 3600),
        'M' => Duration::from_secs(count * 60),
        'S' => Duration::from_secs(count),
        'm' => Duration::from_millis(count),
        'u' => Duration::from_micros(count),
        'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// tonic's own answer to a path that nobody serves says nothing. It is what a client gets that is newer than the daemon.
fn unknown_rpc(method: &str) -> Status {
    let shown: String = method.chars().take(128).collect();
    let message = format!("{shown} is not an rpc of this daemon, version {}", env!("CARGO_PKG_VERSION"));
    Failure::new(Code::Unimplemented, ReturnCode::UnsupportedApi, message)
        .detail("UNKNOWN_RPC")
        .put("rpc", shown)
        .remedy("use a client of the daemon's version, or update the daemon; reflection lists what it has")
        .into()
}

fn too_late(limit: Duration) -> Status {
    let whose = if limit == RPC_LIMIT { "the daemon's limit" } else { "the caller's deadline" };
    let message = format!("not done within {whose} of {limit:?}; whether it took effect is not known");
    Failure::new(Code::DeadlineExceeded, ReturnCode::UnexpectedError, message)
        .detail("DEADLINE")
        .put("limit_ms", limit.as_millis())
        .remedy("ask again with a later deadline: what took effect is answered again")
        .into()
}

fn no_time() -> Status {
    let message = "the caller's deadline leaves no time to answer; nothing was done";
    Failure::new(Code::DeadlineExceeded, ReturnCode::UnexpectedError, message)
        .detail("DEADLINE")
        .put("limit_ms", 0)
        .remedy("ask again with a deadline that leaves more than the 2 ms which an answer needs")
        .into()
}

type Place = Option<tokio::sync::OwnedSemaphorePermit>;

impl GateLayer {
    /// Why the call may not pass, or its place among those that are worked on.
    fn refusal(&self, path: &str, caller: &Caller) -> Result<Place, Status> {
        if changes_state(path) && !self.policy.may_change(caller) {
            let who = caller.uid.map_or("an unknown user".to_owned(), |uid| format!("uid {uid}"));
            let failure = Failure::new(
                Code::PermissionDenied,
                ReturnCode::StatusUnauthorized,
                format!("{who} may read but not change state; allow it with --allow-uid or --allow-gid"),
            );
            let remedy = "run as root, or start the daemon with --allow-uid or --allow-gid for this user";
            return Err(failure.detail("READ_ONLY_CALLER").put("caller", who).remedy(remedy).into());
        }
        if path.starts_with("/grpc.") {
            return Ok(None);
        }
        self.places.clone().try_acquire_owned().map(Some).map_err(|_| {
            let mut details = tonic_types::ErrorDetails::with_retry_info(Some(Duration::from_millis(500)));
            let metadata = [
                ("return_code", ReturnCode::UnexpectedError.number().to_string()),
                (
                    "remedy",
                    "ask again in a moment, or start the daemon with more --max-concurrent-requests".into(),
                ),
            ];
            let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
            details.set_error_info("OVERLOADED", status::ERROR_DOMAIN, metadata);
            let message = "too many calls at once; ask again in a moment";
            <Status as tonic_types::StatusExt>::with_error_details(Code::Unavailable, message, details)
        })
    }
}

fn caller(request: &Request<Body>) -> Caller {
    let extensions = request.extensions();
    if let Some(AcceptedFrom(caller)) = extensions.get::<AcceptedFrom>() {
        return caller.clone();
    }
    if let Some(info) = extensions.get::<UdsConnectInfo>() {
        return match info.peer_cred {
            Some(cred) => Caller::unix(
                Some(cred.uid()),
                Some(cred.gid()),
                cred.pid().and_then(|pid| u32::try_from(pid).ok()),
            ),
            None => Caller::unix(None, None, None),
        };
    }
    Caller::default()
}

/// The caller's id for the request if it sent a sane one, else a new one.
fn request_id(request: &mut Request<Body>) -> String {
    let sane = |id: &str| {
        !id.is_empty()
            && id.len() <= 64
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    };
    let given = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).filter(|id| sane(id));
    let id = given.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
    if let Ok(value) = HeaderValue::from_str(&id) {
        request.headers_mut().insert("x-request-id", value);
    }
    id
}

fn code_of(response: &Response<Body>) -> Code {
    let header = response.headers().get("grpc-status");
    header.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
}

fn panicked(panic: &(dyn Any + Send)) -> Status {
    let what = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = %what, "a call panicked; this is a bug");
    status::failure(Code::Internal, ReturnCode::UnexpectedError, "internal error; the daemon's log says more")
}

/// A refusal is the caller's affair and is told at info; only what is wrong with the daemon is an error.
fn log(code: Code, caller: &Caller, elapsed: Duration, response: &Response<Body>) {
    let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
    let (uid, pid) = (caller.uid, caller.pid);
    if code == Code::Ok {
        tracing::debug!(uid, pid, micros, "done");
        return;
    }
    // The header is percent-encoded, which nobody wants to read.
    let told = Status::from_header_map(response.headers());
    let message = told.as_ref().map(Status::message).unwrap_or_default();
    match code {
        Code::Internal | Code::DataLoss | Code::Unknown => {
            tracing::error!(?code, uid, pid, micros, message, "failed");
        }
        Code::Unavailable => tracing::warn!(?code, uid, pid, micros, message, "failed"),
        _ => tracing::info!(?code, uid, pid, micros, message, "refused"),
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Mutex};

    use tonic_types::StatusExt as _;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<(String, Code)>>);

    impl RpcObserver for Seen {
        fn observe(&self, method: &str, code: Code, _: Duration) {
            self.0.lock().unwrap().push((method.to_owned(), code));
        }
    }

    fn never_done(
        seen: &Arc<Seen>,
    ) -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Send + use<>
    {
        let policy = Policy { uids: vec![], gids: vec![] };
        let inner = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        GateLayer::new(policy, 1, seen.clone()).layer(inner)
    }

    fn request(timeout: &str) -> Request<Body> {
        let request = Request::builder().uri("/cns.v1.IpamService/ListIPConfigs");
        request.header("grpc-timeout", timeout).body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn a_deadline_is_answered_as_such_and_counted() {
        let seen = Arc::new(Seen::default());
        for (timeout, expected) in [
            ("20m", "not done within the caller's deadline"),
            ("1n", "deadline leaves no time to answer; nothing was done"),
        ] {
            let response = never_done(&seen).oneshot(request(timeout)).await.unwrap();
            let status = Status::from_header_map(response.headers()).unwrap();
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert!(status.message().contains(expected), "{status}");
            assert!(status.get_details_error_info().unwrap().metadata.contains_key("remedy"));
        }
        let counted = seen.0.lock().unwrap().clone();
        let one = ("cns.v1.IpamService/ListIPConfigs".to_owned(), Code::DeadlineExceeded);
        assert_eq!(counted, [one.clone(), one]);
    }

    #[tokio::test]
    async fn a_caller_that_hangs_up_is_counted() {
        let seen = Arc::new(Seen::default());
        let call = tokio::spawn(never_done(&seen).oneshot(request("8S")));
        tokio::task::yield_now().await;
        call.abort();
        assert!(call.await.is_err());
        assert_eq!(seen.0.lock().unwrap()[0].1, Code::Cancelled);
    }

    #[test]
    fn timeouts_are_read_as_grpc_has_them() {
        assert_eq!(parse_timeout("5S"), Some(Duration::from_secs(5)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_hours(99_999_999)));
        assert_eq!(parse_timeout("1500u"), Some(Duration::from_micros(1500)));
        for text in ["", "S", "5", "5s", "123456789S", "-5S", "5é", "é"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }
}
