//! `cns.v1.NMAgentService`.

use std::time::Duration;

use tonic::{Code, Request, Response, Status};

use super::{
    Context,
    home_az::HomeAzState,
    host::nmagent_failed,
    status::{self, Failure, code_of_return_code},
};
use crate::{
    model::{OrchestratorType, ReturnCode},
    proto::v1::{self as pb, nm_agent_service_server::NmAgentService},
    sources::host_versions::{self, SyncError, SyncObserver},
};

/// Well inside a call's limit, so that it is the agent that is blamed.
const WITHIN: Duration = Duration::from_secs(8);

/// Where two agents are asked, one after the other.
const HALF: Duration = Duration::from_secs(4);

/// See the contract.
#[derive(Clone, Debug)]
pub(super) struct NmAgent(pub(super) Context);

#[tonic::async_trait]
impl NmAgentService for NmAgent {
    async fn list_supported_ap_is(
        &self,
        _: Request<pb::ListSupportedApIsRequest>,
    ) -> Result<Response<pb::ListSupportedApIsResponse>, Status> {
        let nmagent = self.0.agents("ListSupportedAPIs")?.nmagent.within(WITHIN);
        let supported_apis = nmagent
            .supported_apis()
            .await
            .map_err(|error| nmagent_failed(ReturnCode::NmAgentSupportedApisError, &error))?;
        Ok(Response::new(pb::ListSupportedApIsResponse { supported_apis }))
    }

    async fn list_network_container_versions(
        &self,
        _: Request<pb::ListNetworkContainerVersionsRequest>,
    ) -> Result<Response<pb::ListNetworkContainerVersionsResponse>, Status> {
        let nmagent = self.0.agents("ListNetworkContainerVersions")?.nmagent.within(WITHIN);
        let listed = nmagent
            .nc_versions()
            .await
            .map_err(|error| nmagent_failed(ReturnCode::NmAgentNcVersionListError, &error))?;
        for why in &listed.refused {
            tracing::warn!(why, "an entry of NMAgent's list cannot be read");
        }
        let versions = listed.ncs.iter().map(|nc| pb::NetworkContainerVersion {
            network_container_id: nc.id.to_string(),
            // One that is no number counts as not programmed (spec/host-agents.md §5.1).
            version: nc.number().unwrap_or_default(),
        });
        Ok(Response::new(pb::ListNetworkContainerVersionsResponse { versions: versions.collect() }))
    }

    async fn sync_host_nc_versions(
        &self,
        _: Request<pb::SyncHostNcVersionsRequest>,
    ) -> Result<Response<pb::SyncHostNcVersionsResponse>, Status> {
        let agents = self.0.agents("SyncHostNCVersions")?;
        // Where NCs feed the pool, their addresses become available with the NC (spec/network-containers.md §7.1).
        let promote = self.0.ledger.view().orchestrator().kind == Some(OrchestratorType::KubernetesCrd);
        let observer = self.0.observer().map(|observer| observer as &dyn SyncObserver);
        let synced = host_versions::sync(&self.0.ledger, &agents.within(HALF), promote, observer).await;
        let synced = synced.map_err(|error| match error {
            SyncError::Nmagent(error) => nmagent_failed(ReturnCode::NmAgentNcVersionListError, &error),
            SyncError::Ledger(error) => status::of_ledger(error),
        })?;
        Ok(Response::new(pb::SyncHostNcVersionsResponse {
            programmed: u32::try_from(synced.programmed).unwrap_or(u32::MAX),
            outdated_network_container_ids: synced.outdated.iter().map(ToString::to_string).collect(),
            promoted_ip_configs: u32::try_from(synced.promoted).unwrap_or(u32::MAX),
        }))
    }

    async fn get_home_az(
        &self,
        _: Request<pb::GetHomeAzRequest>,
    ) -> Result<Response<pb::GetHomeAzResponse>, Status> {
        let known = self.0.host.home_az.borrow().clone();
        match known {
            HomeAzState::Zone { zone, ipv6_fix } => Ok(Response::new(pb::GetHomeAzResponse {
                home_az: zone,
                is_supported: true,
                nma_applied_the_ipv6_fix: ipv6_fix,
                reason: String::new(),
            })),
            HomeAzState::Unsupported(reason) => {
                Ok(Response::new(pb::GetHomeAzResponse { reason, ..Default::default() }))
            }
            HomeAzState::Failed { code, message } => {
                Err(Failure::new(code_of_return_code(code), code, message)
                    .detail("HOME_AZ_UNKNOWN")
                    .remedy("it is asked for again in the background; `cnsctl status` tells how NMAgent does")
                    .into())
            }
            HomeAzState::Unknown => Err(Failure::new(
                Code::NotFound,
                ReturnCode::NotFound,
                "HomeAz Cache is unavailable",
            )
            .detail("HOME_AZ_UNKNOWN")
            .remedy("ask again in a moment where the channel mode is Direct; other modes do not ask for it")
            .into()),
        }
    }
}
