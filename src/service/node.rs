//! `cns.v1.NodeService`.

use tonic::{Code, Request, Response, Status};

use super::{
    Context, convert,
    status::{self, Failure},
};
use crate::{
    ledger::{Command, Health},
    model::{Environment, ReturnCode},
    proto::v1::{self as pb, node_service_server::NodeService},
};

/// See the contract.
#[derive(Clone, Debug)]
pub(super) struct Node(pub(super) Context);

impl Context {
    pub(super) fn node_info(&self) -> pb::GetNodeInfoResponse {
        let (serving, reason) = match &*self.ledger.health().borrow() {
            Health::Serving => (true, String::new()),
            Health::Failing { since, error } => (
                false,
                format!(
                    "the state cannot be made durable since {since}: {error}; it is tried again all the time"
                ),
            ),
        };
        let view = self.ledger.view();
        pb::GetNodeInfoResponse {
            node_id: view.orchestrator().node_id.clone(),
            orchestrator_type: convert::pb_orchestrator(view.orchestrator().kind).into(),
            channel_mode: self.facts.channel_mode.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            serving,
            not_serving_reason: reason,
            ip_counts: Some(convert::pb_counts(view.totals())),
            endpoints: u32::try_from(view.endpoint_count()).unwrap_or(u32::MAX),
            network_containers: u32::try_from(view.ncs().count()).unwrap_or(u32::MAX),
            tombstones: u32::try_from(view.tombstone_count()).unwrap_or(u32::MAX),
            sequence: view.seq(),
            state_directory: self.facts.state_directory.to_string_lossy().into_owned(),
            uptime_seconds: self.facts.started.elapsed().as_secs(),
            pod_key_scheme: convert::pb_scheme(self.ledger.config().scheme).into(),
            dnc_partition_key: view.orchestrator().partition_key.clone(),
            environment: view.orchestrator().environment.as_ref().map(|environment| pb::Environment {
                location: environment.location.clone(),
                network_type: environment.network_type.clone(),
            }),
        }
    }
}

fn no_default_route() -> Status {
    let why = "the host has no address towards its default route";
    Failure::new(Code::Unavailable, ReturnCode::UnreachableHost, why)
        .detail("NO_DEFAULT_ROUTE")
        .remedy("give the host a default route; `ip route show default` must show one in the main table")
        .into()
}

#[tonic::async_trait]
impl NodeService for Node {
    async fn set_orchestrator(
        &self,
        request: Request<pb::SetOrchestratorRequest>,
    ) -> Result<Response<pb::SetOrchestratorResponse>, Status> {
        let actor = Context::actor(&request);
        let request = request.into_inner();
        let kind = convert::orchestrator("orchestrator_type", request.orchestrator_type)?;
        let (node_id, partition_key) = (request.node_id, request.dnc_partition_key);
        let command = Command::SetOrchestrator { kind, node_id, partition_key };
        self.0.ledger.submit(actor, command).await.map_err(status::of_ledger)?;
        Ok(Response::new(pb::SetOrchestratorResponse {}))
    }

    async fn get_node_info(
        &self,
        _: Request<pb::GetNodeInfoRequest>,
    ) -> Result<Response<pb::GetNodeInfoResponse>, Status> {
        Ok(Response::new(self.0.node_info()))
    }

    async fn get_host_local_ip(
        &self,
        _: Request<pb::GetHostLocalIpRequest>,
    ) -> Result<Response<pb::GetHostLocalIpResponse>, Status> {
        let interface = self.0.host_interface().ok_or_else(no_default_route)?;
        Ok(Response::new(pb::GetHostLocalIpResponse { ip_address: interface.primary_ip().to_string() }))
    }

    async fn get_cpu_cores(
        &self,
        _: Request<pb::GetCpuCoresRequest>,
    ) -> Result<Response<pb::GetCpuCoresResponse>, Status> {
        let cores = std::thread::available_parallelism().map_err(|error| {
            status::failure(Code::Internal, ReturnCode::UnexpectedError, format!("processors: {error}"))
        })?;
        let cpu_cores = u32::try_from(cores.get()).unwrap_or(u32::MAX);
        Ok(Response::new(pb::GetCpuCoresResponse { cpu_cores }))
    }

    async fn get_vm_unique_id(
        &self,
        _: Request<pb::GetVmUniqueIdRequest>,
    ) -> Result<Response<pb::GetVmUniqueIdResponse>, Status> {
        Err(status::unimplemented("GetVMUniqueID", "this daemon has no client of IMDS yet"))
    }

    async fn list_nic_resources(
        &self,
        _: Request<pb::ListNicResourcesRequest>,
    ) -> Result<Response<pb::ListNicResourcesResponse>, Status> {
        Err(status::unimplemented("ListNICResources", "this daemon has no client of IMDS yet"))
    }

    async fn set_environment(
        &self,
        request: Request<pb::SetEnvironmentRequest>,
    ) -> Result<Response<pb::SetEnvironmentResponse>, Status> {
        let actor = Context::actor(&request);
        let pb::SetEnvironmentRequest { location, network_type } = request.into_inner();
        let environment = Environment {
            location: convert::label("location", location)?,
            network_type: convert::label("network_type", network_type)?,
        };
        let command = Command::SetEnvironment(environment);
        self.0.ledger.submit(actor, command).await.map_err(status::of_ledger)?;
        Ok(Response::new(pb::SetEnvironmentResponse {}))
    }

    async fn create_hns_network(
        &self,
        _: Request<pb::CreateHnsNetworkRequest>,
    ) -> Result<Response<pb::CreateHnsNetworkResponse>, Status> {
        Err(status::unimplemented("CreateHNSNetwork", "the host network service is a part of Windows"))
    }

    async fn delete_hns_network(
        &self,
        _: Request<pb::DeleteHnsNetworkRequest>,
    ) -> Result<Response<pb::DeleteHnsNetworkResponse>, Status> {
        Err(status::unimplemented("DeleteHNSNetwork", "the host network service is a part of Windows"))
    }

    async fn create_network(
        &self,
        _: Request<pb::CreateNetworkRequest>,
    ) -> Result<Response<pb::CreateNetworkResponse>, Status> {
        Err(status::unimplemented("CreateNetwork", "docker networks are not part of this daemon yet"))
    }

    async fn delete_network(
        &self,
        _: Request<pb::DeleteNetworkRequest>,
    ) -> Result<Response<pb::DeleteNetworkResponse>, Status> {
        Err(status::unimplemented("DeleteNetwork", "docker networks are not part of this daemon yet"))
    }
}
