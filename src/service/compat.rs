//! `cns.CNS`: the gRPC contract that the reference declares and leaves empty (spec/startup.md §8), answered by the same command
//! and the same state as ours.

use tonic::{Code, Request, Response, Status};

use super::{
    Context,
    node::Node,
    status::{Failure, InvalidField},
};
use crate::{
    model::{OrchestratorType, ReturnCode, UnknownOrchestratorType},
    proto::{
        compat::{self, cns_server::Cns},
        v1::{self as pb, node_service_server::NodeService as _},
    },
};

/// See the contract.
#[derive(Clone, Debug)]
pub(super) struct Compat(pub(super) Context);

#[tonic::async_trait]
impl Cns for Compat {
    async fn set_orchestrator_info(
        &self,
        request: Request<compat::SetOrchestratorInfoRequest>,
    ) -> Result<Response<compat::SetOrchestratorInfoResponse>, Status> {
        let text = &request.get_ref().orchestrator_type;
        let kind = text.parse::<OrchestratorType>().map_err(|error: UnknownOrchestratorType| {
            InvalidField::new("orchestratorType", error).code(ReturnCode::UnsupportedOrchestratorType)
        })?;
        // With its metadata: who asks is written into the journal.
        let request = request.map(|asked| pb::SetOrchestratorRequest {
            orchestrator_type: super::orchestrator_number(kind),
            node_id: asked.node_id,
            dnc_partition_key: asked.dnc_partition_key,
        });
        Node(self.0.clone()).set_orchestrator(request).await?;
        Ok(Response::new(compat::SetOrchestratorInfoResponse {}))
    }

    async fn get_node_info(
        &self,
        request: Request<compat::NodeInfoRequest>,
    ) -> Result<Response<compat::NodeInfoResponse>, Status> {
        let asked = request.into_inner().node_id;
        let node = self.0.node_info();
        if !asked.is_empty() && asked != node.node_id {
            let why = match node.node_id.as_str() {
                "" => "no node id is registered here".to_owned(),
                registered => format!("this is node {registered}"),
            };
            return Err(Failure::new(Code::NotFound, ReturnCode::NotFound, why)
                .detail("ANOTHER_NODE")
                .remedy("ask without a node id, or register it with SetOrchestratorInfo")
                .into());
        }
        // A machine without a name that can be read has none to tell.
        let name =
            nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let ip = self.0.host_interface().map(|interface| interface.primary_ip().to_string());
        Ok(Response::new(compat::NodeInfoResponse {
            node_id: node.node_id,
            name,
            ip: ip.unwrap_or_default(),
            is_healthy: node.serving,
            status: if node.serving { "Serving" } else { "NotServing" }.to_owned(),
            message: node.not_serving_reason,
        }))
    }
}
