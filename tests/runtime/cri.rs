//! The few calls of Kubernetes' container runtime interface (CRI v1) that the test makes, with the field numbers of
//! `k8s.io/cri-api`.

use std::{collections::HashMap, path::Path};

use tonic::{Status, client::Grpc, transport::Channel};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    #[prost(string, tag = "2")]
    pub hostname: String,
    #[prost(string, tag = "3")]
    pub log_directory: String,
    #[prost(map = "string, string", tag = "6")]
    pub labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodSandboxConfig>,
}

/// Also the request of Stop, Remove and Status: the id is field 1 in all of them.
#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxId {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<PodSandboxStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxStatus {
    #[prost(message, optional, tag = "5")]
    network: Option<PodSandboxNetworkStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    ip: String,
    #[prost(message, repeated, tag = "2")]
    additional: Vec<PodIp>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PodIp {
    #[prost(string, tag = "1")]
    ip: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<RuntimeStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    conditions: Vec<RuntimeCondition>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(bool, tag = "2")]
    pub status: bool,
    #[prost(string, tag = "3")]
    pub reason: String,
    #[prost(string, tag = "4")]
    pub message: String,
}

/// A client of the runtime, as kubelet is one.
#[derive(Clone)]
pub struct Cri(Channel);

impl Cri {
    pub async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = tonic::transport::Endpoint::try_from(format!("unix:{}", socket.display()))?;
        endpoint.connect().await.map(Self)
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = format!("/runtime.v1.RuntimeService/{method}").parse().unwrap();
        let codec = ProstCodec::<Q, A>::default();
        grpc.unary(tonic::Request::new(request), path, codec).await.map(tonic::Response::into_inner)
    }

    pub async fn conditions(&self) -> Result<Vec<RuntimeCondition>, Status> {
        let answer: StatusResponse = self.call("Status", Nothing {}).await?;
        Ok(answer.status.unwrap_or_default().conditions)
    }

    pub async fn run_sandbox(&self, config: PodSandboxConfig) -> Result<String, Status> {
        let answer: PodSandboxId =
            self.call("RunPodSandbox", RunPodSandboxRequest { config: Some(config) }).await?;
        Ok(answer.id)
    }

    /// The sandbox's addresses, as kubelet learns them.
    pub async fn addresses(&self, id: &str) -> Result<Vec<String>, Status> {
        let answer: PodSandboxStatusResponse =
            self.call("PodSandboxStatus", PodSandboxId { id: id.to_owned() }).await?;
        let network = answer.status.unwrap_or_default().network.unwrap_or_default();
        Ok([network.ip].into_iter().chain(network.additional.into_iter().map(|ip| ip.ip)).collect())
    }

    pub async fn stop_sandbox(&self, id: &str) -> Result<(), Status> {
        self.call::<_, Nothing>("StopPodSandbox", PodSandboxId { id: id.to_owned() }).await.map(drop)
    }

    pub async fn remove_sandbox(&self, id: &str) -> Result<(), Status> {
        self.call::<_, Nothing>("RemovePodSandbox", PodSandboxId { id: id.to_owned() }).await.map(drop)
    }
}
