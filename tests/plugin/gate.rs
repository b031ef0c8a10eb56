//! A gate between plugin and daemon: it forwards every call, and holds one where a test wants it held.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use cns::proto::v1::{
    self as pb,
    endpoint_service_client::EndpointServiceClient,
    endpoint_service_server::{EndpointService, EndpointServiceServer},
    ipam_service_client::IpamServiceClient,
    ipam_service_server::{IpamService, IpamServiceServer},
};
use tokio::{
    net::UnixListener,
    sync::{Notify, Semaphore},
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Server},
};

use crate::{cns_under_test::until, node::Node};

/// Where ADD can be held: the steps between them are those of the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    BeforeRequest,
    AfterRequest,
    BeforeRecord,
    AfterRecord,
}

impl Point {
    pub const ALL: [Self; 4] =
        [Self::BeforeRequest, Self::AfterRequest, Self::BeforeRecord, Self::AfterRecord];
}

#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    socket: PathBuf,
    channel: Channel,
    held: Mutex<Option<Point>>,
    reached: Notify,
    open: Semaphore,
    under_way: AtomicUsize,
}

impl Gate {
    /// In front of the node's daemon.
    pub async fn open(node: &Node) -> Self {
        let socket = node.cns.directory().join("gate.sock");
        let gate = Self(Arc::new(Inner {
            socket: socket.clone(),
            channel: node.cns.channel().await,
            held: Mutex::default(),
            reached: Notify::new(),
            open: Semaphore::new(0),
            under_way: AtomicUsize::new(0),
        }));
        let listener = UnixListener::bind(&socket).unwrap();
        let server = Server::builder()
            .add_service(IpamServiceServer::new(gate.clone()))
            .add_service(EndpointServiceServer::new(gate.clone()));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        gate
    }

    pub fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// Holds the next call that comes to `point`.
    pub fn close(&self, point: Point) {
        *self.0.held.lock().unwrap() = Some(point);
    }

    /// Waits until a call is held.
    pub async fn reached(&self) {
        self.0.reached.notified().await;
    }

    /// Lets the call that is held go on.
    pub fn release(&self) {
        self.0.open.add_permits(1);
    }

    /// Waits until no call is under way.
    pub async fn idle(&self) {
        until("calls end", async || self.0.under_way.load(Ordering::SeqCst) == 0).await;
    }

    async fn pass(&self, point: Point) {
        let held = {
            let mut held = self.0.held.lock().unwrap();
            if *held == Some(point) { held.take() } else { None }
        };
        if held.is_some() {
            self.0.reached.notify_one();
            self.0.open.acquire().await.unwrap().forget();
        }
    }

    /// Calls the daemon on a task of its own, so that a caller who dies does not cancel it.
    async fn forward<A: Send + 'static>(
        &self,
        before: Option<Point>,
        after: Option<Point>,
        call: impl Future<Output = Result<Response<A>, Status>> + Send + 'static,
    ) -> Result<Response<A>, Status> {
        let gate = self.clone();
        gate.0.under_way.fetch_add(1, Ordering::SeqCst);
        let task = tokio::spawn(async move {
            if let Some(point) = before {
                gate.pass(point).await;
            }
            let answer = call.await;
            if let Some(point) = after {
                gate.pass(point).await;
            }
            gate.0.under_way.fetch_sub(1, Ordering::SeqCst);
            answer
        });
        task.await.unwrap()
    }
}

type Nothing<T> = tokio_stream::Empty<Result<T, Status>>;

fn not_here<T>() -> Result<T, Status> {
    Err(Status::internal("the plugin does not call this"))
}

#[tonic::async_trait]
impl IpamService for Gate {
    async fn request_ip_configs(
        &self,
        request: Request<pb::RequestIpConfigsRequest>,
    ) -> Result<Response<pb::RequestIpConfigsResponse>, Status> {
        let mut daemon = IpamServiceClient::new(self.0.channel.clone());
        let call = async move { daemon.request_ip_configs(request.into_inner()).await };
        self.forward(Some(Point::BeforeRequest), Some(Point::AfterRequest), call).await
    }

    async fn release_ip_configs(
        &self,
        request: Request<pb::ReleaseIpConfigsRequest>,
    ) -> Result<Response<pb::ReleaseIpConfigsResponse>, Status> {
        let mut daemon = IpamServiceClient::new(self.0.channel.clone());
        self.forward(None, None, async move { daemon.release_ip_configs(request.into_inner()).await }).await
    }

    async fn list_ip_configs(
        &self,
        _: Request<pb::ListIpConfigsRequest>,
    ) -> Result<Response<pb::ListIpConfigsResponse>, Status> {
        not_here()
    }

    async fn list_pod_ip_configs(
        &self,
        _: Request<pb::ListPodIpConfigsRequest>,
    ) -> Result<Response<pb::ListPodIpConfigsResponse>, Status> {
        not_here()
    }

    async fn request_claim_resource_info(
        &self,
        _: Request<pb::RequestClaimResourceInfoRequest>,
    ) -> Result<Response<pb::RequestClaimResourceInfoResponse>, Status> {
        not_here()
    }

    type WatchIPConfigsStream = Nothing<pb::WatchIpConfigsResponse>;

    async fn watch_ip_configs(
        &self,
        _: Request<pb::WatchIpConfigsRequest>,
    ) -> Result<Response<Self::WatchIPConfigsStream>, Status> {
        not_here()
    }
}

#[tonic::async_trait]
impl EndpointService for Gate {
    async fn get_endpoint(
        &self,
        request: Request<pb::GetEndpointRequest>,
    ) -> Result<Response<pb::GetEndpointResponse>, Status> {
        let mut daemon = EndpointServiceClient::new(self.0.channel.clone());
        self.forward(None, None, async move { daemon.get_endpoint(request.into_inner()).await }).await
    }

    async fn list_endpoints(
        &self,
        request: Request<pb::ListEndpointsRequest>,
    ) -> Result<Response<pb::ListEndpointsResponse>, Status> {
        let mut daemon = EndpointServiceClient::new(self.0.channel.clone());
        self.forward(None, None, async move { daemon.list_endpoints(request.into_inner()).await }).await
    }

    async fn update_endpoint(
        &self,
        request: Request<pb::UpdateEndpointRequest>,
    ) -> Result<Response<pb::UpdateEndpointResponse>, Status> {
        let mut daemon = EndpointServiceClient::new(self.0.channel.clone());
        let call = async move { daemon.update_endpoint(request.into_inner()).await };
        self.forward(Some(Point::BeforeRecord), Some(Point::AfterRecord), call).await
    }

    async fn delete_endpoint(
        &self,
        _: Request<pb::DeleteEndpointRequest>,
    ) -> Result<Response<pb::DeleteEndpointResponse>, Status> {
        not_here()
    }

    type WatchEndpointsStream = Nothing<pb::WatchEndpointsResponse>;

    async fn watch_endpoints(
        &self,
        _: Request<pb::WatchEndpointsRequest>,
    ) -> Result<Response<Self::WatchEndpointsStream>, Status> {
        not_here()
    }
}
