//! `cns.v1.NetworkContainerService`.

use std::{collections::HashMap, time::Duration};

use tonic::{Code, Request, Response, Status};

use super::{
    Context, convert,
    publishing::Passing,
    status::{self, Failure},
};
use crate::{
    host::cni_plugin::CniPluginError,
    ledger::{MissingAssigned, NcOrigin, NcView, UpsertNc, UpsertedNc, View},
    model::{Actor, IpRecord, NcId, NcSpec, PodIdentity, ReturnCode},
    proto::v1::{self as pb, network_container_service_server::NetworkContainerService},
};

const PAGE: (usize, usize) = (100, 1_000);
/// How long a look at the source may hold up who asks for the network containers of a pod that has none.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// See the contract.
#[derive(Clone, Debug)]
pub(super) struct NetworkContainers(pub(super) Context);

impl NetworkContainers {
    /// Records one; a pod whose routes change with it has them first.
    async fn announce_and_upsert(&self, actor: Actor, spec: NcSpec) -> Result<UpsertedNc, Status> {
        let _announced = match &self.0.cni_updates {
            Some(updates) => Some(updates.announce(&self.0.ledger, &spec).await.map_err(not_announced)?),
            None => None,
        };
        self.upsert(actor, spec).await
    }

    async fn upsert(&self, actor: Actor, spec: NcSpec) -> Result<UpsertedNc, Status> {
        let upsert = UpsertNc {
            spec,
            origin: NcOrigin::Api,
            missing: MissingAssigned::Refuse,
            programmed: self.0.facts.programmed,
        };
        self.0.ledger.upsert_nc(actor, upsert).await.map_err(status::of_ledger)
    }

    /// The source may have what a pod lacks: it is asked at once (spec/network-containers.md §5).
    pub(super) async fn look_for(&self, pod: &PodIdentity) {
        let Some(sync) = self.0.source.as_ref().and_then(|source| source.sync.as_ref()) else { return };
        let is_missing = {
            let view = self.0.ledger.view();
            view.orchestrator().kind.is_some_and(is_indexed_by_pod) && view.ncs_of_pod(pod).next().is_none()
        };
        if is_missing {
            sync.now(LOOK_WITHIN).await;
        }
    }

    fn status_of(&self, id: &NcId) -> Option<pb::NetworkContainerStatus> {
        self.0.ledger.view().nc(id).map(convert::pb_nc_status)
    }
}

fn not_announced(error: CniPluginError) -> Status {
    let message = format!("CreateOrUpdateNetworkContainer failed: {error}");
    Failure::new(Code::FailedPrecondition, ReturnCode::UnexpectedError, message)
        .detail("CNI_UPDATE_FAILED")
        .remedy("the network container is as it was; mend what is said of the CNI plugin, and send it again")
        .into()
}

fn unknown(id: &NcId) -> Status {
    let message = format!("network container {id} is not known");
    Failure::new(Code::NotFound, ReturnCode::UnknownContainerId, message)
        .detail("NETWORK_CONTAINER_NOT_FOUND")
        .put("network_container_id", id)
        .remedy("see `cnsctl nc list` for those that are; create it first")
        .into()
}

pub(super) fn unknown_of(pod: &PodIdentity) -> Status {
    // The reference's words; ours name the pod so that two never read alike.
    let message = format!("Failed to find networkContainerID for orchestratorContext {pod}");
    Failure::new(Code::NotFound, ReturnCode::UnknownContainerId, message)
        .detail("NETWORK_CONTAINER_NOT_FOUND")
        .put("pod", pod)
        .remedy("wait for the control plane to create the pod's network container, or check the pod's names")
        .into()
}

fn entry(nc: &NcView, secondaries: &HashMap<&NcId, Vec<&IpRecord>>) -> pb::NetworkContainerEntry {
    let records = secondaries.get(nc.record.id()).into_iter().flatten().copied();
    pb::NetworkContainerEntry {
        network_container: Some(convert::pb_nc(&nc.record.spec, records)),
        status: Some(convert::pb_nc_status(nc)),
        programming_pending: false,
    }
}

/// The address records by NC; one walk, however many NCs are wanted.
fn secondaries(view: &View) -> HashMap<&NcId, Vec<&IpRecord>> {
    let mut by_nc: HashMap<&NcId, Vec<&IpRecord>> = HashMap::new();
    for record in view.ips_from(None) {
        by_nc.entry(&record.nc).or_default().push(record);
    }
    by_nc
}

#[tonic::async_trait]
impl NetworkContainerService for NetworkContainers {
    async fn create_or_update_network_container(
        &self,
        request: Request<pb::CreateOrUpdateNetworkContainerRequest>,
    ) -> Result<Response<pb::CreateOrUpdateNetworkContainerResponse>, Status> {
        let actor = Context::actor(&request);
        let spec = convert::nc_spec("network_container", request.into_inner().network_container)?;
        let upserted = self.announce_and_upsert(actor, spec).await?;
        let status = self.status_of(upserted.record.id());
        Ok(Response::new(pb::CreateOrUpdateNetworkContainerResponse { status, created: upserted.created }))
    }

    async fn batch_create_or_update_network_containers(
        &self,
        request: Request<pb::BatchCreateOrUpdateNetworkContainersRequest>,
    ) -> Result<Response<pb::BatchCreateOrUpdateNetworkContainersResponse>, Status> {
        let actor = Context::actor(&request);
        // All are read before any is stored (spec/network-containers.md §16 T14); none is announced to the CNI (§14).
        let specs = request.into_inner().network_containers.into_iter().enumerate();
        let specs: Vec<NcSpec> = specs
            .map(|(i, nc)| convert::nc_spec(&format!("network_containers[{i}]"), Some(nc)))
            .collect::<Result<_, _>>()?;
        let mut statuses = Vec::with_capacity(specs.len());
        for spec in specs {
            let upserted = self.upsert(actor.clone(), spec).await?;
            statuses.extend(self.status_of(upserted.record.id()));
        }
        Ok(Response::new(pb::BatchCreateOrUpdateNetworkContainersResponse { statuses }))
    }

    async fn delete_network_container(
        &self,
        request: Request<pb::DeleteNetworkContainerRequest>,
    ) -> Result<Response<pb::DeleteNetworkContainerResponse>, Status> {
        let actor = Context::actor(&request);
        let id = nc_id("id", &request.into_inner().id)?;
        let (existed, held) = self.0.ledger.delete_nc(actor, id).await.map_err(status::of_ledger)?;
        let held_ip_addresses = held.iter().map(ToString::to_string).collect();
        Ok(Response::new(pb::DeleteNetworkContainerResponse { existed, held_ip_addresses }))
    }

    async fn get_network_container(
        &self,
        request: Request<pb::GetNetworkContainerRequest>,
    ) -> Result<Response<pb::GetNetworkContainerResponse>, Status> {
        use pb::get_network_container_request::By;
        let by = request.into_inner().by;
        let pending = match &by {
            Some(By::OrchestratorContext(pod)) => {
                let pod = convert::pod("orchestrator_context", Some(pod.clone()))?;
                self.look_for(&pod).await;
                self.pending(&pod).await
            }
            _ => Vec::new(),
        };
        let view = self.0.ledger.view();
        let mut entries: Vec<_> = match by {
            None => {
                return Err(
                    status::InvalidField::new("by", "an id or an orchestrator context is expected").into()
                );
            }
            Some(By::Id(id)) => {
                let id = nc_id("id", &id)?;
                let nc = view.nc(&id).ok_or_else(|| unknown(&id))?;
                vec![entry(nc, &secondaries(&view))]
            }
            Some(By::OrchestratorContext(pod)) => {
                let pod = convert::pod("orchestrator_context", Some(pod))?;
                let kind = view.orchestrator().kind;
                if !kind.is_some_and(is_indexed_by_pod) {
                    let given = kind.map_or("", |kind| kind.as_str());
                    let message = format!("Invalid orchestrator type {given}");
                    return Err(Failure::new(
                        Code::FailedPrecondition,
                        ReturnCode::UnsupportedOrchestratorType,
                        message,
                    )
                    .detail("UNSUPPORTED_ORCHESTRATOR")
                    .put("orchestrator_type", given)
                    .remedy("ask by id: with this orchestrator network containers do not belong to pods")
                    .into());
                }
                let none = HashMap::new();
                let entries: Vec<_> = view.ncs_of_pod(&pod).map(|nc| entry(nc, &none)).collect();
                if entries.is_empty() {
                    return Err(unknown_of(&pod));
                }
                entries
            }
        };
        for entry in &mut entries {
            let id = entry.network_container.as_ref().map(|nc| nc.id.as_str()).unwrap_or_default();
            entry.programming_pending = pending.iter().any(|nc| nc.as_str() == id);
        }
        Ok(Response::new(pb::GetNetworkContainerResponse { entries }))
    }

    async fn list_network_containers(
        &self,
        request: Request<pb::ListNetworkContainersRequest>,
    ) -> Result<Response<pb::ListNetworkContainersResponse>, Status> {
        let request = request.into_inner();
        let after: Option<NcId> = convert::optional("page_token", &request.page_token)?;
        let size = super::page_size(request.page_size, PAGE);
        let view = self.0.ledger.view();
        let records = if request.without_secondary_ip_configs { HashMap::new() } else { secondaries(&view) };
        let mut found = view.ncs().filter(|nc| after.as_ref().is_none_or(|after| nc.record.id() > after));
        let mut entries: Vec<_> = found.by_ref().take(size).map(|nc| entry(nc, &records)).collect();
        if request.without_secondary_ip_configs {
            for nc in entries.iter_mut().filter_map(|entry| entry.network_container.as_mut()) {
                nc.secondary_ip_configs.clear();
            }
        }
        let more = found.next().is_some();
        let next_page_token = match entries.last().and_then(|entry| entry.network_container.as_ref()) {
            Some(last) if more => last.id.clone(),
            _ => String::new(),
        };
        Ok(Response::new(pb::ListNetworkContainersResponse { entries, next_page_token }))
    }

    async fn get_network_container_status(
        &self,
        request: Request<pb::GetNetworkContainerStatusRequest>,
    ) -> Result<Response<pb::GetNetworkContainerStatusResponse>, Status> {
        let id = nc_id("id", &request.into_inner().id)?;
        let status = self.status_of(&id).ok_or_else(|| unknown(&id))?;
        Ok(Response::new(pb::GetNetworkContainerStatusResponse { status: Some(status) }))
    }

    async fn publish_network_container(
        &self,
        request: Request<pb::PublishNetworkContainerRequest>,
    ) -> Result<Response<pb::PublishNetworkContainerResponse>, Status> {
        let request = request.into_inner();
        let (url, body) =
            (&request.create_network_container_url, request.create_network_container_request_body);
        let passed = self
            .0
            .pass_to_host("PublishNetworkContainer", Passing::Publish, &request.network_id, url, body)
            .await?;
        Ok(Response::new(pb::PublishNetworkContainerResponse {
            publish_status_code: passed.status,
            publish_response_body: passed.body,
            publish_error: passed.error,
            failed_call: passed.failed.into(),
        }))
    }

    async fn unpublish_network_container(
        &self,
        request: Request<pb::UnpublishNetworkContainerRequest>,
    ) -> Result<Response<pb::UnpublishNetworkContainerResponse>, Status> {
        let request = request.into_inner();
        let (url, body) =
            (&request.delete_network_container_url, request.delete_network_container_request_body);
        let passed = self
            .0
            .pass_to_host("UnpublishNetworkContainer", Passing::Unpublish, &request.network_id, url, body)
            .await?;
        Ok(Response::new(pb::UnpublishNetworkContainerResponse {
            unpublish_status_code: passed.status,
            unpublish_response_body: passed.body,
            unpublish_error: passed.error,
            failed_call: passed.failed.into(),
        }))
    }

    async fn get_interface_for_container(
        &self,
        request: Request<pb::GetInterfaceForContainerRequest>,
    ) -> Result<Response<pb::GetInterfaceForContainerResponse>, Status> {
        let id = nc_id("network_container_id", &request.into_inner().network_container_id)?;
        let view = self.0.ledger.view();
        let nc = view.nc(&id).ok_or_else(|| unknown(&id))?;
        Ok(Response::new(convert::pb_interface(&nc.record.spec)))
    }

    async fn attach_container_to_network(
        &self,
        request: Request<pb::AttachContainerToNetworkRequest>,
    ) -> Result<Response<pb::AttachContainerToNetworkResponse>, Status> {
        let request = request.into_inner();
        Err(self.attachment("Attach", &request.container_id, &request.network_container_id))
    }

    async fn detach_container_from_network(
        &self,
        request: Request<pb::DetachContainerFromNetworkRequest>,
    ) -> Result<Response<pb::DetachContainerFromNetworkResponse>, Status> {
        let request = request.into_inner();
        Err(self.attachment("Detach", &request.container_id, &request.network_container_id))
    }

    async fn create_host_nc_apipa_endpoint(
        &self,
        request: Request<pb::CreateHostNcApipaEndpointRequest>,
    ) -> Result<Response<pb::CreateHostNcApipaEndpointResponse>, Status> {
        self.check_apipa(&request.into_inner().network_container_id)?;
        Ok(Response::new(pb::CreateHostNcApipaEndpointResponse { endpoint_id: String::new() }))
    }

    async fn delete_host_nc_apipa_endpoint(
        &self,
        request: Request<pb::DeleteHostNcApipaEndpointRequest>,
    ) -> Result<Response<pb::DeleteHostNcApipaEndpointResponse>, Status> {
        nc_id("network_container_id", &request.into_inner().network_container_id)?;
        Ok(Response::new(pb::DeleteHostNcApipaEndpointResponse {}))
    }
}

impl NetworkContainers {
    /// The pod's NCs that the host has not programmed yet. Without agents there is nobody who programs.
    pub(super) async fn pending(&self, pod: &PodIdentity) -> Vec<NcId> {
        let Some(agents) = &self.0.host.agents else { return Vec::new() };
        let ncs: Vec<NcId> = {
            let view = self.0.ledger.view();
            if !view.orchestrator().kind.is_some_and(is_indexed_by_pod) {
                return Vec::new();
            }
            view.ncs_of_pod(pod).map(|nc| nc.record.id().clone()).collect()
        };
        self.0.programming.pending(&self.0.ledger, agents, &ncs).await
    }

    /// Why a container is not attached: the reference does it on Windows only, and for Batch only
    /// (spec/rest-contract.md §6.14).
    fn attachment(&self, operation: &str, container: &str, nc: &str) -> Status {
        if container.is_empty() {
            let error = status::InvalidField::new("container_id", "a container id is expected");
            return error.code(ReturnCode::DockerContainerNotSpecified).into();
        }
        let id = match nc_id("network_container_id", nc) {
            Ok(id) => id,
            Err(status) => return status,
        };
        let view = self.0.ledger.view();
        if view.nc(&id).is_none() {
            let message = format!("network container {id} does not exist");
            return Failure::new(Code::NotFound, ReturnCode::NotFound, message)
                .detail("NETWORK_CONTAINER_NOT_FOUND")
                .put("network_container_id", id)
                .remedy("see `cnsctl nc list` for those that exist; create it first")
                .into();
        }
        let kind = view.orchestrator().kind;
        if kind == Some(crate::model::OrchestratorType::Batch) {
            let message = "[Azure CNS] Operation is not supported in linux.";
            return Failure::new(Code::FailedPrecondition, ReturnCode::UnexpectedError, message)
                .detail("WINDOWS_ONLY")
                .put("operation", operation)
                .remedy("on Linux the CNI plugin connects containers")
                .into();
        }
        let given = kind.map_or("", |kind| kind.as_str());
        Failure::new(
            Code::FailedPrecondition,
            ReturnCode::UnsupportedOrchestratorType,
            format!("Invalid orchestrator type {given}"),
        )
        .detail("UNSUPPORTED_ORCHESTRATOR")
        .put("orchestrator_type", given)
        .remedy("only the orchestrator Batch attaches containers by this call")
        .into()
    }

    /// On Linux the host side needs nothing (spec/network-containers.md §11), but the NC must be known and allow traffic.
    fn check_apipa(&self, id: &str) -> Result<(), Status> {
        let id = nc_id("network_container_id", id)?;
        let view = self.0.ledger.view();
        let nc = view.nc(&id).ok_or_else(|| unknown(&id))?;
        if nc.record.spec.allow_host_to_nc || nc.record.spec.allow_nc_to_host {
            return Ok(());
        }
        let message =
            format!("network container {id} allows traffic in neither direction between host and container");
        Err(Failure::new(Code::FailedPrecondition, ReturnCode::InvalidRequest, message)
            .detail("HOST_TRAFFIC_NOT_ALLOWED")
            .put("network_container_id", id)
            .remedy("create the network container with allow_host_to_nc_communication or its reverse")
            .into())
    }
}

fn nc_id(field: &str, text: &str) -> Result<NcId, Status> {
    if text.is_empty() {
        let error = status::InvalidField::new(field, "a network container id is expected");
        return Err(error.code(ReturnCode::NetworkContainerNotSpecified).into());
    }
    Ok(convert::required(field, text)?)
}

/// Where NCs belong to pods (spec/network-containers.md §5).
pub(crate) fn is_indexed_by_pod(kind: crate::model::OrchestratorType) -> bool {
    use crate::model::OrchestratorType as Kind;
    matches!(
        kind,
        Kind::Kubernetes | Kind::ServiceFabric | Kind::Batch | Kind::DbForPostgreSql | Kind::AzureFirstParty
    )
}
