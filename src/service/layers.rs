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
use tonic::{
    Code, Status,
    body::Body,
    transport::server::{TlsConnectInfo, UdsConnectInfo},
};
use tower::{Layer, Service};

use super::{
    peer::{Caller, Policy, changes_state},
    status,
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
        let refusal = gate.refusal(&path, &caller);
        request.extensions_mut().insert(caller.clone());
        // The clone that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let span = tracing::info_span!("rpc", method = %path.trim_start_matches('/'), request_id = %id);
        Box::pin(tracing::Instrument::instrument(
            async move {
                let (mut response, place) = match refusal {
                    Ok(place) => {
                        let call = std::panic::AssertUnwindSafe(inner.call(request));
                        let outcome = futures_util::FutureExt::catch_unwind(call).await;
                        (outcome.unwrap_or_else(|panic| Ok(panicked(&panic).into_http()))?, place)
                    }
                    Err(refusal) => (refusal.into_http(), None),
                };
                drop(place);
                let code = code_of(&response);
                let elapsed = started.elapsed();
                gate.observer.observe(path.trim_start_matches('/'), code, elapsed);
                log(code, &caller, elapsed, &response);
                if let Ok(id) = HeaderValue::from_str(&id) {
                    response.headers_mut().insert("x-request-id", id);
                }
                Ok(response)
            },
            span,
        ))
    }
}

type Place = Option<tokio::sync::OwnedSemaphorePermit>;

impl GateLayer {
    /// Why the call may not pass, or its place among those that are worked on.
    fn refusal(&self, path: &str, caller: &Caller) -> Result<Place, Status> {
        if changes_state(path) && !self.policy.may_change(caller) {
            let who = caller.uid.map_or("an unknown user".to_owned(), |uid| format!("uid {uid}"));
            return Err(status::failure(
                Code::PermissionDenied,
                ReturnCode::StatusUnauthorized,
                format!("{who} may read but not change state; allow it with --allow-uid or --allow-gid"),
            ));
        }
        if path.starts_with("/grpc.") {
            return Ok(None);
        }
        self.places.clone().try_acquire_owned().map(Some).map_err(|_| {
            let mut details = tonic_types::ErrorDetails::with_retry_info(Some(Duration::from_millis(500)));
            let metadata = [("return_code".to_owned(), ReturnCode::UnexpectedError.number().to_string())];
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
    if let Some(info) = extensions.get::<TlsConnectInfo<AcceptedFrom>>() {
        // The listener takes only clients whose certificate the configured authority signed.
        let certified = info.peer_certs().is_some_and(|certs| !certs.is_empty());
        return Caller { certified, ..info.get_ref().0.clone() };
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
