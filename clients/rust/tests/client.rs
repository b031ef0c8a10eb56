//! The client against a real server on a real unix socket that answers by script.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::{
    collections::{HashMap, VecDeque},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use cns::model::ReturnCode;
use cns_client::{Client, Error, Health, Options, Retry};
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Code, Request, Response, Status, transport::Server};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_server::{Health as HealthService, HealthServer},
};
use tonic_types::{ErrorDetails, StatusExt};

/// What the server does with one call.
enum Answer {
    Serving,
    Refuse(Status),
    /// Never answers.
    Hang,
    /// Panics, which closes nothing but resets the stream without a status.
    Reset,
}

#[derive(Default)]
struct Script {
    answers: VecDeque<Answer>,
    /// Request id and `grpc-timeout` of each call.
    calls: Vec<(Option<String>, Option<String>)>,
}

#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[tonic::async_trait]
impl HealthService for Scripted {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let header =
            |name: &str| request.metadata().get(name).map(|value| value.to_str().unwrap().to_owned());
        let answer = {
            let mut script = self.0.lock().unwrap();
            script.calls.push((header("x-request-id"), header("grpc-timeout")));
            script.answers.pop_front().unwrap_or(Answer::Serving)
        };
        match answer {
            Answer::Serving => Ok(Response::new(HealthCheckResponse { status: 1 })),
            Answer::Refuse(status) => Err(status),
            Answer::Hang => std::future::pending().await,
            Answer::Reset => panic!("scripted"),
        }
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("not scripted"))
    }
}

struct Daemon {
    dir: tempfile::TempDir,
    script: Scripted,
    server: Option<JoinHandle<()>>,
}

impl Daemon {
    fn absent() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), script: Scripted::default(), server: None }
    }

    fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let mut daemon = Self::absent();
        daemon.script.0.lock().unwrap().answers.extend(answers);
        daemon.server = Some(serve(&daemon.socket(), daemon.script.clone()));
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("cns.sock")
    }

    fn calls(&self) -> usize {
        self.script.0.lock().unwrap().calls.len()
    }

    fn client(&self) -> Client {
        let retry = Retry {
            attempts: 4,
            first_wait: Duration::from_millis(5),
            longest_wait: Duration::from_millis(20),
        };
        Client::new(self.socket(), Options { deadline: Duration::from_secs(20), retry }).unwrap()
    }
}

fn serve(socket: &Path, script: Scripted) -> JoinHandle<()> {
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    tokio::spawn(async move {
        Server::builder().add_service(HealthServer::new(script)).serve_with_incoming(incoming).await.unwrap();
    })
}

fn exhausted(retry_after: Option<Duration>) -> Answer {
    let mut details = ErrorDetails::new();
    details.set_error_info(
        "EXHAUSTED",
        "cns.azure.com",
        HashMap::from([("return_code".into(), "32".into())]),
    );
    if let Some(delay) = retry_after {
        details.set_retry_info(Some(delay));
    }
    Answer::Refuse(Status::with_error_details(Code::ResourceExhausted, "no available address", details))
}

#[tokio::test]
async fn answers_and_carries_request_id_and_deadline() {
    let daemon = Daemon::start([]);
    let client = daemon.client().with_request_id("add-4711");
    assert_eq!(client.health("").await.unwrap(), Health::Serving);
    let script = daemon.script.0.lock().unwrap();
    let (id, timeout) = &script.calls[0];
    assert_eq!(id.as_deref(), Some("add-4711"));
    assert!(timeout.is_some(), "the daemon must know when nobody waits any more");
}

#[tokio::test]
async fn an_absent_daemon_is_unreachable_and_tried_again() {
    let daemon = Daemon::absent();
    let error = daemon.client().health("").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.is_unreachable());
    let text = error.to_string();
    assert!(text.contains("cns.sock") && text.contains("No such file"), "{text}");
}

#[tokio::test]
async fn a_socket_left_behind_is_unreachable() {
    let daemon = Daemon::absent();
    drop(UnixListener::bind(daemon.socket()).unwrap());
    let error = daemon.client().health("").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_daemon_that_comes_back_in_time_is_found() {
    let daemon = Daemon::absent();
    let patient = Retry {
        attempts: 200,
        first_wait: Duration::from_millis(5),
        longest_wait: Duration::from_millis(20),
    };
    let client = daemon.client().with_options(Options { deadline: Duration::from_mins(1), retry: patient });
    let (socket, script) = (daemon.socket(), daemon.script.clone());
    let later = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(60)).await;
        // The handle of the server, not its end.
        Some(serve(&socket, script))
    });
    assert_eq!(client.health("").await.unwrap(), Health::Serving);
    drop(later.await.unwrap());
}

#[tokio::test]
async fn a_connection_survives_a_restart_of_the_daemon() {
    let mut daemon = Daemon::start([]);
    let client = daemon.client();
    client.health("").await.unwrap();
    let server = daemon.server.take().unwrap();
    server.abort();
    let _ = server.await;
    std::fs::remove_file(daemon.socket()).unwrap();
    daemon.server = Some(serve(&daemon.socket(), daemon.script.clone()));
    assert_eq!(client.health("").await.unwrap(), Health::Serving);
}

#[tokio::test]
async fn a_refusal_that_waiting_cures_is_retried_and_one_that_it_does_not_is_not() {
    let daemon = Daemon::start([
        exhausted(Some(Duration::from_millis(1))),
        Answer::Refuse(Status::unavailable("starting")),
    ]);
    assert_eq!(daemon.client().health("").await.unwrap(), Health::Serving);
    assert_eq!(daemon.calls(), 3);

    let daemon = Daemon::start([exhausted(None)]);
    let error = daemon.client().health("").await.unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(
        (refusal.reason.as_str(), refusal.return_code.map(ReturnCode::number)),
        ("EXHAUSTED", Some(32))
    );
    assert!(!error.is_unreachable());
    assert_eq!(daemon.calls(), 1);
}

#[tokio::test]
async fn retries_end_with_the_attempts_or_when_the_wait_is_beyond_the_deadline() {
    let daemon = Daemon::start((0..9).map(|_| exhausted(Some(Duration::ZERO))));
    assert!(daemon.client().health("").await.is_err());
    assert_eq!(daemon.calls(), 4);

    let daemon = Daemon::start([exhausted(Some(Duration::from_hours(1)))]);
    let error = daemon.client().health("").await.unwrap_err();
    assert_eq!(error.refusal().unwrap().retry_after, Some(Duration::from_hours(1)), "told, not waited for");
    assert_eq!(daemon.calls(), 1);
}

#[tokio::test]
async fn a_daemon_that_does_not_answer_ends_with_the_deadline() {
    let daemon = Daemon::start([Answer::Hang]);
    let brief = Options { deadline: Duration::from_millis(100), retry: Retry::default() };
    let error = daemon.client().with_options(brief).health("").await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert_eq!(error.to_string(), "Health.Check was not answered within 100ms");
    assert!(!error.is_unreachable());
}

#[tokio::test]
async fn a_call_that_broke_off_is_sent_again_if_twice_is_once() {
    let daemon = Daemon::start([Answer::Reset]);
    assert_eq!(daemon.client().health("").await.unwrap(), Health::Serving);
    assert_eq!(daemon.calls(), 2);

    let daemon = Daemon::start([Answer::Reset]);
    let once = Options { retry: Retry::NEVER, ..Options::default() };
    let error = daemon.client().with_options(once).health("").await.unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
    assert!(error.is_unreachable());
}

#[tokio::test]
async fn an_unknown_service_has_no_health() {
    let daemon = Daemon::start([Answer::Refuse(Status::not_found("unknown service"))]);
    assert_eq!(daemon.client().health("cns.v1.Nope").await.unwrap(), Health::Unknown);
}

#[tokio::test]
async fn a_socket_that_is_not_ours_to_open_is_told_at_once() {
    let daemon = Daemon::start([]);
    std::fs::set_permissions(daemon.socket(), std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root may open every socket; the file system user is this thread's alone, and the runtime has no other.
    let own = nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
    let error = daemon.client().health("").await.unwrap_err();
    nix::unistd::setfsuid(own);
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("Permission denied"), "{error}");
}

#[tokio::test]
async fn a_path_that_no_socket_can_have_is_told_at_once() {
    let long = format!("/tmp/{}", "x".repeat(200));
    let error = Client::new(&long, Options::default()).unwrap().health("").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("SUN_LEN"), "{error}");
}
