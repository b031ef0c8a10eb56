//! The one way in which agents are spoken to: HTTP/1.1 without proxies, redirects or surprises.
//!
//! The reference has no timeouts on its calls at start-up, honours `HTTP_PROXY` even for link-local addresses, and cuts chunked
//! replies at 4 KiB (spec/host-agents.md §2, §10.1, §10.4). Here each call has a time to connect, a time for each attempt and
//! a total over its retries; a body has a size that it may not exceed and is read whole or not at all; and a connection is used once,
//! so that no request meets one that the agent has just closed, and none is sent twice unasked.

mod base_url;
mod error;
mod retry;
mod state;

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use ::http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer};
use tokio::time::Instant;

pub(super) use self::error::{ReadFault, excerpt};
pub(crate) use self::retry::varied;
pub use self::{
    base_url::{BaseUrl, InvalidBaseUrl},
    error::{AgentError, AgentFault, Waiting},
    retry::{Pause, Retry},
    state::{AgentFailure, AgentState, AgentStatus},
};

/// What a call may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until the connection stands, TLS included.
    pub connect: Duration,
    /// One attempt, from connecting to the body's last byte.
    pub attempt: Duration,
    /// The whole call with its retries and pauses.
    pub total: Duration,
    /// The largest body of an answer, bytes.
    pub body_bytes: usize,
}

impl Default for Limits {
    /// 2 s to connect, 5 s an attempt, 10 s in all, 1 MiB: well inside the 15 s after which legacy clients give up.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            attempt: Duration::from_secs(5),
            total: Duration::from_secs(10),
            body_bytes: 1 << 20,
        }
    }
}

/// Whose certificates are believed where an agent speaks TLS.
#[derive(Clone, Debug, Default)]
pub enum Roots {
    /// The system's, as the reference's clients do. Read when the client is made, and only for `https`.
    #[default]
    System,
    /// These.
    These(Vec<CertificateDer<'static>>),
}

/// A client that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The machine has no usable trust store.
    #[error(
        "{base} needs TLS, and this system has no root certificates ({why}); install ca-certificates or set SSL_CERT_FILE"
    )]
    NoRoots {
        /// What was to be reached.
        base: BaseUrl,
        /// What was tried.
        why: String,
    },
    /// The TLS library refused its settings.
    #[error("cannot set up TLS for {base}: {source}")]
    Tls {
        /// What was to be reached.
        base: BaseUrl,
        /// Why.
        source: rustls::Error,
    },
}

/// What is asked. The target may hold secrets, so it is never printed; `call` is what logs and errors say.
pub(super) struct Outgoing {
    /// In the field's words, e.g. `GetHomeAz`.
    pub(super) call: &'static str,
    pub(super) method: Method,
    /// Path and query; follows the base URL's own path.
    pub(super) target: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
}

impl Outgoing {
    pub(super) fn get(call: &'static str, target: impl Into<String>) -> Self {
        Self { call, method: Method::GET, target: target.into(), headers: Vec::new(), body: Bytes::new() }
    }

    /// With `Content-Type: application/json`.
    pub(super) fn post(call: &'static str, target: impl Into<String>, body: impl Into<Bytes>) -> Self {
        let json = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Self { call, method: Method::POST, target: target.into(), headers: vec![json], body: body.into() }
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// What was answered, whole.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Answer {
    /// The body of a 200; anything else is a fault.
    pub(super) fn ok(self) -> Result<Bytes, ReadFault> {
        if self.status == StatusCode::OK {
            Ok(self.body)
        } else {
            Err(ReadFault::status(self.status, &self.body))
        }
    }
}

type Transport = Client<Within<HttpsConnector<HttpConnector>>, Full<Bytes>>;

struct Inner {
    base: BaseUrl,
    state: AgentState,
    transport: Transport,
}

/// A client of one agent at one address. Cheap to clone; clones share the agent's [`AgentState`].
#[derive(Clone)]
pub struct HttpClient {
    inner: Arc<Inner>,
    limits: Limits,
}

impl HttpClient {
    /// A client of `agent` (its name in the field's words). Nothing is sent yet.
    pub fn new(
        agent: &'static str,
        base: BaseUrl,
        limits: Limits,
        roots: Roots,
    ) -> Result<Self, ClientError> {
        let tls = tls_config(&base, roots)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let transport = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .retry_canceled_requests(false)
            .build(Within { connector: https, limit: limits.connect });
        let state = AgentState::new(agent, base.to_string());
        Ok(Self { inner: Arc::new(Inner { base, state, transport }), limits })
    }

    /// The same client with at most `total` for each call.
    #[must_use]
    pub fn within(&self, total: Duration) -> Self {
        let limits = Limits { total, attempt: self.limits.attempt.min(total), ..self.limits };
        Self { inner: self.inner.clone(), limits }
    }

    /// The same client with `total` for each call and the same time for each attempt: for a call that is known to take longer.
    pub(super) fn lasting(&self, total: Duration) -> Self {
        Self { inner: self.inner.clone(), limits: Limits { total, ..self.limits } }
    }

    /// How the agent last answered.
    pub fn state(&self) -> &AgentState {
        &self.inner.state
    }

    /// Where the agent is.
    pub fn base(&self) -> &BaseUrl {
        &self.inner.base
    }

    /// Asks, reads the answer with `read`, and asks again as `retry` says, all within the total time. The outcome is noted in
    /// the agent's state.
    pub(super) async fn call<T, E: CallError>(
        &self,
        outgoing: &Outgoing,
        retry: &Retry<E>,
        read: impl Fn(Answer) -> Result<T, ReadError<E>>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let deadline = began + self.limits.total;
        let outcome = retry
            .run(deadline, || async {
                let answer = self.attempt(outgoing, deadline).await.map_err(E::from)?;
                read(answer).map_err(|error| match error {
                    ReadError::Fault(fault) => E::from(self.error(outgoing.call, fault.into())),
                    ReadError::Own(error) => error,
                })
            })
            .await;
        let took = began.elapsed();
        match &outcome {
            Ok(_) => self.inner.state.succeeded(took),
            Err(error) if error.agent_is_well() => self.inner.state.succeeded(took),
            Err(error) => self.inner.state.failed(error.to_string(), took),
        }
        outcome
    }

    pub(super) fn error(&self, call: &'static str, fault: AgentFault) -> AgentError {
        let state = &self.inner.state;
        AgentError { agent: state.agent(), address: state.address().to_owned(), call, fault }
    }

    async fn attempt(&self, outgoing: &Outgoing, deadline: Instant) -> Result<Answer, AgentError> {
        let began = Instant::now();
        let until = deadline.min(began + self.limits.attempt);
        let outcome = self.exchange(outgoing, began, until).await;
        let (agent, call) = (self.inner.state.agent(), outgoing.call);
        let took = began.elapsed();
        match &outcome {
            Ok(answer) => tracing::debug!(
                agent,
                call,
                status = answer.status.as_u16(),
                bytes = answer.body.len(),
                ?took,
                "agent answered"
            ),
            Err(fault) => tracing::debug!(agent, call, %fault, ?took, "agent call failed"),
        }
        outcome.map_err(|fault| self.error(call, fault))
    }

    async fn exchange(
        &self,
        outgoing: &Outgoing,
        began: Instant,
        until: Instant,
    ) -> Result<Answer, AgentFault> {
        let late = |waiting| AgentFault::Timeout { waiting, after: until.saturating_duration_since(began) };
        let mut request = Request::builder()
            .method(outgoing.method.clone())
            .uri(self.inner.base.uri(&outgoing.target))
            .body(Full::new(outgoing.body.clone()))
            .map_err(|error| AgentFault::Unsendable { why: error.to_string() })?;
        request.headers_mut().extend(outgoing.headers.iter().cloned());
        let response = tokio::time::timeout_at(until, self.inner.transport.request(request))
            .await
            .map_err(|_| late(Waiting::Answer))?
            .map_err(|error| broken(&error))?;
        let status = response.status();
        let body = tokio::time::timeout_at(until, read_body(response.into_body(), self.limits.body_bytes))
            .await
            .map_err(|_| late(Waiting::Body))??;
        Ok(Answer { status, body })
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("agent", &self.inner.state.agent())
            .field("base", &self.inner.base)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// An error of a client's calls.
pub(super) trait CallError: From<AgentError> + fmt::Display {
    /// The agent works and had its reasons: this is no failure of the agent.
    fn agent_is_well(&self) -> bool;
}

impl CallError for AgentError {
    fn agent_is_well(&self) -> bool {
        matches!(self.fault, AgentFault::Status { code, .. } if matches!(code.as_u16(), 404 | 409))
    }
}

/// Why an answer cannot be used: the layer's own faults get the call's name and address; a client's own errors have theirs.
pub(super) enum ReadError<E> {
    Fault(ReadFault),
    Own(E),
}

impl<E> From<ReadFault> for ReadError<E> {
    fn from(fault: ReadFault) -> Self {
        Self::Fault(fault)
    }
}

fn tls_config(base: &BaseUrl, roots: Roots) -> Result<ClientConfig, ClientError> {
    let mut store = RootCertStore::empty();
    match roots {
        // Without TLS the trust store is not even read.
        _ if !base.is_https() => {}
        Roots::These(these) => {
            store.add_parsable_certificates(these);
        }
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
            if store.is_empty() {
                let why = found.errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                let why = if why.is_empty() { "none were found".to_owned() } else { why };
                return Err(ClientError::NoRoots { base: base.clone(), why });
            }
        }
    }
    // The provider is named: the process may not have chosen one yet.
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_root_certificates(store).with_no_client_auth())
        .map_err(|source| ClientError::Tls { base: base.clone(), source })
}

async fn read_body(mut body: Incoming, limit: usize) -> Result<Bytes, AgentFault> {
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(AgentFault::TooLarge { limit });
    }
    let mut read = Vec::with_capacity(usize::try_from(announced).unwrap_or_default());
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| AgentFault::Truncated { received: read.len(), why: chain(&error) })?;
        if let Some(data) = frame.data_ref() {
            if read.len() + data.len() > limit {
                return Err(AgentFault::TooLarge { limit });
            }
            read.extend_from_slice(data);
        }
    }
    Ok(read.into())
}

fn broken(error: &hyper_util::client::legacy::Error) -> AgentFault {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(ConnectTimeout(after)) = error.downcast_ref() {
            return AgentFault::Timeout { waiting: Waiting::Connect, after: *after };
        }
        cause = error.source();
    }
    let why = error.source().map_or_else(|| error.to_string(), chain);
    if error.is_connect() { AgentFault::Connect { why } } else { AgentFault::Broken { why } }
}

/// An error with its causes, each once.
fn chain(error: &dyn StdError) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    words
}

/// The connector with a limit over everything it does: name, TCP, TLS.
#[derive(Clone)]
struct Within<C> {
    connector: C,
    limit: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("not connected within {0:?}")]
struct ConnectTimeout(Duration);

type BoxError = Box<dyn StdError + Send + Sync>;

impl<C> tower::Service<::http::Uri> for Within<C>
where
    C: tower::Service<::http::Uri>,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = futures_util::future::BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: ::http::Uri) -> Self::Future {
        let (connecting, limit) = (self.connector.call(uri), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(ConnectTimeout(limit).into()),
            }
        })
    }
}

#[cfg(test)]
mod tests;
