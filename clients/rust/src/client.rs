//! [`Client`]: how a call is made. The rpcs themselves are in `rpcs.rs`.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout_at};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{Effect, Error, Retry, connect};

/// Header that carries one id from the plugin to the journal and the logs.
const REQUEST_ID: &str = "x-request-id";

/// How a client calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest a call may take, connecting and retries included. For a stream: the longest until it is open.
    pub deadline: Duration,
    /// Which failures are tried again, and how often.
    pub retry: Retry,
}

impl Default for Options {
    /// 10 s: well inside the 15 s after which the clients of our clients give up.
    fn default() -> Self {
        Self { deadline: Duration::from_secs(10), retry: Retry::default() }
    }
}

/// Whether a service is ready, by gRPC health v1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Serving,
    /// It is there but must not be used now: starting, stopping, or its disk fails.
    NotServing,
    /// The daemon has no service of this name.
    Unknown,
}

/// A client of one daemon. Cheap to clone: clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    socket: Arc<Path>,
    options: Options,
    request_id: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// A client of the daemon that listens on `socket`. Connects with the first call.
    ///
    /// Must be called within a tokio runtime. Fails only if `socket` can never be connected to.
    pub fn new(socket: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let socket = socket.as_ref();
        Ok(Self { channel: connect::lazy(socket)?, socket: socket.into(), options, request_id: None })
    }

    /// The same connection with other options.
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sends `id` with every call; the daemon writes it to its journal and logs. An id that cannot be a header (control
    /// characters, non-ASCII) is not sent.
    pub fn with_request_id(mut self, id: &str) -> Self {
        self.request_id = id.parse().ok();
        self
    }

    /// The socket of the daemon.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The channel, for generated clients of rpcs that have no method here. They know neither deadline nor retry.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Whether `service` (a full name such as `cns.v1.IpamService`, or `""` for the whole daemon) is ready.
    pub async fn health(&self, service: &str) -> Result<Health, Error> {
        use tonic_health::pb::health_check_response::ServingStatus;

        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = self
            .call("Health.Check", Effect::Idempotent, request, |channel, request| async move {
                HealthClient::new(channel).check(request).await
            })
            .await;
        match answer {
            Ok(response) => Ok(match response.status() {
                ServingStatus::Serving => Health::Serving,
                ServingStatus::NotServing => Health::NotServing,
                ServingStatus::Unknown | ServingStatus::ServiceUnknown => Health::Unknown,
            }),
            Err(error) if error.is_not_found() => Ok(Health::Unknown),
            Err(error) => Err(error),
        }
    }

    /// One unary call: attempts and waits until an answer, a final failure, or the deadline.
    pub(crate) async fn call<Q, A, F, R>(
        &self,
        operation: &'static str,
        effect: Effect,
        message: Q,
        mut send: F,
    ) -> Result<A, Error>
    where
        Q: Clone,
        F: FnMut(Channel, Request<Q>) -> R,
        R: Future<Output = Result<Response<A>, Status>>,
    {
        let allowed = self.options.deadline;
        let deadline = Instant::now() + allowed;
        let (mut last, mut unreached) = (None, None);
        for attempt in 1.. {
            let mut request = self.request(message.clone());
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            let Ok(answer) = timeout_at(deadline, send(self.channel(), request)).await else {
                break;
            };
            let error = match answer {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => Error::from_status(operation, &self.socket, allowed, status),
            };
            let remaining = deadline.saturating_duration_since(Instant::now());
            let Some(wait) = self.options.retry.wait(attempt, &error, effect, remaining) else {
                return Err(error);
            };
            match error {
                Error::Refused(refusal) => last = Some(refusal),
                Error::Unreachable { .. } => unreached = Some(error),
                _ => {}
            }
            sleep(wait).await;
        }
        // Nobody there is what to say, also when the time ended during the next attempt.
        Err(unreached.unwrap_or(Error::Timeout { operation, after: allowed, last }))
    }

    /// Opens a server stream. It has no deadline once it is open, and is not opened again when it breaks: the caller
    /// knows after which change it wants to go on.
    pub(crate) async fn open<Q, A, F, R>(
        &self,
        operation: &'static str,
        message: Q,
        send: F,
    ) -> Result<Changes<A>, Error>
    where
        Q: Clone,
        F: FnOnce(Channel, Request<Q>) -> R,
        R: Future<Output = Result<Response<Streaming<A>>, Status>>,
    {
        let allowed = self.options.deadline;
        match tokio::time::timeout(allowed, send(self.channel(), self.request(message))).await {
            Ok(Ok(response)) => {
                Ok(Changes { stream: response.into_inner(), operation, socket: self.socket.to_path_buf() })
            }
            Ok(Err(status)) => Err(Error::from_status(operation, &self.socket, allowed, status)),
            Err(_) => Err(Error::Timeout { operation, after: allowed, last: None }),
        }
    }

    fn request<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        if let Some(id) = &self.request_id {
            request.metadata_mut().insert(REQUEST_ID, id.clone());
        }
        request
    }
}

/// What a server stream sends.
#[derive(Debug)]
pub struct Changes<A> {
    stream: Streaming<A>,
    operation: &'static str,
    socket: PathBuf,
}

impl<A> Changes<A> {
    /// The next message; `None` when the daemon ended the stream, as it does when it stops.
    pub async fn next(&mut self) -> Result<Option<A>, Error> {
        self.stream
            .message()
            .await
            .map_err(|status| Error::from_status(self.operation, &self.socket, Duration::ZERO, status))
    }
}
