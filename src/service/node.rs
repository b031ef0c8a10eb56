//! `cns.v1.NodeService`.

use std::time::Duration;

use tonic::{Code, Request, Response, Status};

use super::{
    Context, convert, docker_rules,
    status::{self, Failure, InvalidField},
};
use crate::{
    host::docker::{DockerError, NewNetwork},
    ledger::{Command, Health},
    model::{Environment, NetworkName, ReturnCode},
    proto::v1::{self as pb, node_service_server::NodeService},
};

/// The reason of a refusal in an environment for which the reference does nothing and says nothing (spec/rest-contract.md §6.2).
pub(crate) const UNKNOWN_ENVIRONMENT: &str = "UNKNOWN_ENVIRONMENT";
/// The reason of a failure for lack of a primary interface.
pub(crate) const NO_DEFAULT_ROUTE: &str = "NO_DEFAULT_ROUTE";

/// The reason of a failure of the deletion itself, as opposed to the look before.
pub(crate) const DOCKER_DELETE_FAILED: &str = "DOCKER_DELETE_FAILED";

/// When to ask docker again, which may be starting.
const RETRY_DOCKER: Duration = Duration::from_secs(2);

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
            agents: self.agent_states().iter().map(convert::pb_agent).collect(),
            waiting_for: self.host.waiting_for.borrow().clone().unwrap_or_default(),
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
        .detail(NO_DEFAULT_ROUTE)
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
        let imds = &self.0.agents("GetVMUniqueID")?.imds;
        let vm_unique_id = imds
            .vm_unique_id()
            .await
            .map_err(|error| super::host::agent_failed(ReturnCode::UnexpectedError, &error))?;
        Ok(Response::new(pb::GetVmUniqueIdResponse { vm_unique_id }))
    }

    async fn list_nic_resources(
        &self,
        _: Request<pb::ListNicResourcesRequest>,
    ) -> Result<Response<pb::ListNicResourcesResponse>, Status> {
        Ok(Response::new(pb::ListNicResourcesResponse { nic_resources: self.0.nic_resources().await? }))
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
        request: Request<pb::CreateNetworkRequest>,
    ) -> Result<Response<pb::CreateNetworkResponse>, Status> {
        // Nothing of it is in an environment that is supported.
        let pb::CreateNetworkRequest { network_name, options_json, overlay_configuration: _ } =
            request.into_inner();
        let environment = self.0.ledger.view().orchestrator().environment.clone();
        let environment = environment.ok_or_else(no_environment)?;
        let name = network_name_of(&network_name)?;
        let snat = !disables_snat(&options_json)?;
        // The reference asks docker first, too: that a network exists is told in every environment.
        let docker = &self.0.host.docker;
        let exists = docker.network_exists(&name).await;
        if matches!(exists, Ok(true)) {
            return Ok(Response::new(pb::CreateNetworkResponse {
                already_exists: true,
                ..Default::default()
            }));
        }
        let reason = match &exists {
            Ok(_) => NETWORK_NOT_FOUND.to_owned(),
            Err(error) => error.to_string(),
        };
        underlay_of_azure(&environment, &reason)?;
        exists.map_err(|error| docker_failed("DOCKER_INSPECT_FAILED", &error))?;
        let interface = self.0.host_interface().ok_or_else(no_default_route)?;
        let network = NewNetwork { name: &name, subnet: interface.subnet(), snat };
        docker
            .create_network(network)
            .await
            .map_err(|error| docker_failed("DOCKER_CREATE_FAILED", &error))?;
        tracing::info!(network = %name, subnet = %interface.subnet(), snat, "docker created a network");
        let mut warnings = Vec::new();
        // The network is there, whatever becomes of the rule; it is tried again with the next round.
        if snat && let Err(error) = docker_rules::masquerade(name.clone(), interface.subnet()).await {
            tracing::error!(network = %name, error, "the network's containers are not masqueraded");
            warnings.push(format!("the containers of {name} are not masqueraded: {error}"));
        }
        Ok(Response::new(pb::CreateNetworkResponse { already_exists: false, warnings }))
    }

    async fn delete_network(
        &self,
        request: Request<pb::DeleteNetworkRequest>,
    ) -> Result<Response<pb::DeleteNetworkResponse>, Status> {
        let pb::DeleteNetworkRequest { network_name } = request.into_inner();
        let name = network_name_of(&network_name)?;
        let docker = &self.0.host.docker;
        // docker would take the beginning of another network's id for a name, and delete that one.
        let exists = docker.network_exists(&name).await;
        let exists = exists.map_err(|error| docker_failed("DOCKER_INSPECT_FAILED", &error))?;
        let deleted = exists && {
            let deleted = docker.delete_network(&name).await;
            deleted.map_err(|error| docker_failed(DOCKER_DELETE_FAILED, &error))?
        };
        // Also of one that somebody else deleted.
        if let Err(error) = docker_rules::forget(name.clone()).await {
            tracing::error!(network = %name, error, "the packet rule of a deleted network may have stayed");
        }
        if !deleted {
            return Err(Failure::new(Code::NotFound, ReturnCode::NotFound, NETWORK_NOT_FOUND)
                .detail("NETWORK_NOT_FOUND")
                .put("network_name", &name)
                .remedy("nothing is to be done; `docker network ls` shows what there is")
                .into());
        }
        tracing::info!(network = %name, "docker deleted a network");
        Ok(Response::new(pb::DeleteNetworkResponse {}))
    }
}

/// In the reference's words, which become part of legacy messages.
const NETWORK_NOT_FOUND: &str = "Network not found";

fn network_name_of(text: &str) -> Result<NetworkName, InvalidField> {
    let named: Result<NetworkName, _> = convert::required("network_name", text);
    named.map_err(|error| match text {
        "" => error.code(ReturnCode::UnspecifiedNetworkName),
        _ => error,
    })
}

/// Whether the options of a network say that its containers keep their own addresses (spec/rest-contract.md §6.2: a free-form
/// object; the reference looks for this key and not at its value).
fn disables_snat(options_json: &str) -> Result<bool, InvalidField> {
    if options_json.is_empty() {
        return Ok(false);
    }
    let options: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(options_json)
        .map_err(|_| InvalidField::new("options_json", "one JSON object is expected"))?;
    Ok(options.is_some_and(|options| options.contains_key("DisableSNAT")))
}

/// Networks exist in one environment only (spec/rest-contract.md §6.2). `reason` is why there was none of that name before.
fn underlay_of_azure(environment: &Environment, reason: &str) -> Result<(), Status> {
    if docker_rules::has_networks(environment) {
        return Ok(());
    }
    let (code, detail, message) = match (environment.network_type.as_str(), environment.location.as_str()) {
        ("Underlay", "StandAlone") => (
            ReturnCode::UnsupportedEnvironment,
            "UNSUPPORTED_ENVIRONMENT",
            format!("Underlay network is not supported in StandAlone environment. {reason}."),
        ),
        ("Overlay", _) => (
            ReturnCode::UnsupportedEnvironment,
            "UNSUPPORTED_ENVIRONMENT",
            format!("Overlay support not yet available. {reason}."),
        ),
        (network_type, location) => (
            ReturnCode::UnsupportedNetworkType,
            UNKNOWN_ENVIRONMENT,
            format!("there are no networks of type `{network_type}` in location `{location}`"),
        ),
    };
    Err(Failure::new(Code::FailedPrecondition, code, message)
        .detail(detail)
        .put("location", &environment.location)
        .put("network_type", &environment.network_type)
        .remedy("record another environment with SetEnvironment: location `Azure`, network type `Underlay`")
        .into())
}

fn no_environment() -> Status {
    let message = "CNS is not yet initialized with environment.";
    Failure::new(Code::FailedPrecondition, ReturnCode::UnsupportedEnvironment, message)
        .detail("NO_ENVIRONMENT")
        .remedy("record where the node lives with SetEnvironment")
        .into()
}

fn docker_failed(detail: &str, error: &DockerError) -> Status {
    let (code, return_code) = if error.is_unreachable() {
        (Code::Unavailable, ReturnCode::UnreachableDockerDaemon)
    } else {
        (Code::Internal, ReturnCode::UnexpectedError)
    };
    let failure = Failure::new(code, return_code, error.to_string()).detail(detail);
    let failure = match error {
        DockerError::Unreachable { .. } | DockerError::TimedOut { .. } => failure
            .remedy("let docker listen there (`dockerd -H`), or set Node.DockerURL to where it does")
            .retry(RETRY_DOCKER),
        DockerError::Refused { .. } => {
            failure.remedy("docker's log says more; see its reason in the message")
        }
        DockerError::Unintelligible { .. } => {
            failure.remedy("set Node.DockerURL to where docker listens; something else answers there")
        }
    };
    failure.into()
}
