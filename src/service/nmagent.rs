//! `cns.v1.NMAgentService`: defined, and not available until this daemon has a client of the host agent.

use tonic::{Request, Response, Status};

use super::status::unimplemented;
use crate::proto::v1::{self as pb, nm_agent_service_server::NmAgentService};

const MISSING: &str = "this daemon has no client of NMAgent yet";

/// See the contract.
#[derive(Clone, Copy, Debug)]
pub(super) struct NmAgent;

#[tonic::async_trait]
impl NmAgentService for NmAgent {
    async fn list_supported_ap_is(
        &self,
        _: Request<pb::ListSupportedApIsRequest>,
    ) -> Result<Response<pb::ListSupportedApIsResponse>, Status> {
        Err(unimplemented("ListSupportedAPIs", MISSING))
    }

    async fn list_network_container_versions(
        &self,
        _: Request<pb::ListNetworkContainerVersionsRequest>,
    ) -> Result<Response<pb::ListNetworkContainerVersionsResponse>, Status> {
        Err(unimplemented("ListNetworkContainerVersions", MISSING))
    }

    async fn sync_host_nc_versions(
        &self,
        _: Request<pb::SyncHostNcVersionsRequest>,
    ) -> Result<Response<pb::SyncHostNcVersionsResponse>, Status> {
        Err(unimplemented("SyncHostNCVersions", MISSING))
    }

    async fn get_home_az(
        &self,
        _: Request<pb::GetHomeAzRequest>,
    ) -> Result<Response<pb::GetHomeAzResponse>, Status> {
        Err(unimplemented("GetHomeAZ", MISSING))
    }
}
