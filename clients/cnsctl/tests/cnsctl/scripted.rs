//! A daemon that answers by script: for what a real one cannot be brought to say in a test.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use prost::{
    Message,
    bytes::{Buf, BufMut, Bytes},
};
use tokio_stream::{Stream, StreamExt, wrappers::UnixListenerStream};
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{Service, http},
    server::{Grpc, NamedService, ServerStreamingService},
    transport::Server,
};

/// What one rpc answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// These messages; then the end.
    Messages(Vec<Bytes>),
    /// These messages; then nothing for ever.
    MessagesThenSilence(Vec<Bytes>),
    /// A refusal.
    Refusal(Status),
    /// The first call this, the second that; the last for all that follow.
    InTurn(Vec<Answer>),
}

impl Answer {
    fn of_call(&self, number: usize) -> Self {
        match self {
            Self::InTurn(answers) => answers[number.min(answers.len() - 1)].of_call(0),
            other => other.clone(),
        }
    }
}

/// One message.
pub(crate) fn reply(message: &impl Message) -> Answer {
    Answer::Messages(vec![message.encode_to_vec().into()])
}

/// A stream that stays open.
pub(crate) fn stream<M: Message>(messages: &[M]) -> Answer {
    Answer::MessagesThenSilence(messages.iter().map(|message| message.encode_to_vec().into()).collect())
}

/// Is ended by the end of the test's process.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    requests: Arc<Mutex<Vec<(String, Bytes)>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Daemon {
    /// Answers each rpc, named as `IpamService/ListIPConfigs`, as told, and every other with UNIMPLEMENTED.
    pub(crate) fn start<const N: usize>(script: [(&str, Answer); N]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let rpcs = Rpcs {
            script: Arc::new(script.into_iter().map(|(rpc, answer)| (rpc.to_owned(), answer)).collect()),
            requests: Arc::clone(&requests),
        };
        let socket = dir.path().join("cns.sock");
        runtime.block_on(async move {
            let listener = UnixListenerStream::new(tokio::net::UnixListener::bind(socket).unwrap());
            let server = Server::builder()
                .add_service(Ipam(rpcs.clone()))
                .add_service(NetworkContainers(rpcs.clone()))
                .add_service(Endpoints(rpcs.clone()))
                .add_service(Node(rpcs.clone()))
                .add_service(Debug(rpcs.clone()))
                .add_service(Health(rpcs));
            tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() });
        });
        Self { dir, requests, _runtime: runtime }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("cns.sock")
    }

    /// The last request of this rpc.
    pub(crate) fn last<M: Message + Default>(&self, rpc: &str) -> M {
        let requests = self.requests.lock().unwrap();
        let (_, bytes) = requests.iter().rev().find(|(called, _)| called == rpc).unwrap();
        M::decode(bytes.clone()).unwrap()
    }
}

#[derive(Clone)]
struct Rpcs {
    script: Arc<HashMap<String, Answer>>,
    requests: Arc<Mutex<Vec<(String, Bytes)>>>,
}

impl Rpcs {
    async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().trim_start_matches('/');
        let rpc =
            path.strip_prefix("cns.v1.").or(path.strip_prefix("grpc.health.v1.")).unwrap_or(path).to_owned();
        Grpc::new(Raw).server_streaming(Scripted { rpc, rpcs: self }, request).await
    }
}

/// The handler of one call.
struct Scripted {
    rpc: String,
    rpcs: Rpcs,
}

impl ServerStreamingService<Bytes> for Scripted {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let calls = {
            let mut requests = self.rpcs.requests.lock().unwrap();
            let before = requests.iter().filter(|(rpc, _)| *rpc == self.rpc).count();
            requests.push((self.rpc.clone(), request.into_inner()));
            before
        };
        let answer = self.rpcs.script.get(&self.rpc).map(|answer| answer.of_call(calls));
        let rpc = self.rpc.clone();
        Box::pin(async move {
            let messages = |messages: Vec<Bytes>| tokio_stream::iter(messages.into_iter().map(Ok));
            let stream: Self::ResponseStream = match answer {
                Some(Answer::Messages(some)) => Box::pin(messages(some)),
                Some(Answer::MessagesThenSilence(some)) => {
                    Box::pin(messages(some).chain(tokio_stream::pending()))
                }
                Some(Answer::Refusal(status)) => return Err(status),
                Some(Answer::InTurn(_)) => unreachable!("resolved above"),
                None => return Err(Status::unimplemented(format!("{rpc} is not scripted"))),
            };
            Ok(Response::new(stream))
        })
    }
}

macro_rules! services {
    ($($service:ident = $name:literal;)*) => {$(
        #[derive(Clone)]
        struct $service(Rpcs);

        impl NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl Service<http::Request<Body>> for $service {
            type Response = http::Response<Body>;
            type Error = Infallible;
            type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                let rpcs = self.0.clone();
                Box::pin(async move { Ok(rpcs.answer(request).await) })
            }
        }
    )*};
}

services! {
    Ipam = "cns.v1.IpamService";
    NetworkContainers = "cns.v1.NetworkContainerService";
    Endpoints = "cns.v1.EndpointService";
    Node = "cns.v1.NodeService";
    Debug = "cns.v1.DebugService";
    Health = "grpc.health.v1.Health";
}

/// Passes messages as they are: the script has encoded them.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
