//! Network containers (spec/rest-contract.md §6.8–6.16).

use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use super::{
    Call, Gateway, Refused, Reply,
    reply::Nested,
    types::{
        CreateNetworkContainerRequest, GetNetworkContainerResponse, IpSubnet, NetworkInterfaceInfo, Response,
        nc_type_number, nic_number, pod_of,
    },
};
use crate::{
    gojson::{self, List, Raw},
    model::{NcSpec, ReturnCode, dashed_nc_id},
    proto::v1::{self as pb, network_container_service_server::NetworkContainerService as _},
    service::{check_nc, nc_spec},
};

/// A definition that was read.
enum Defined {
    Nc(Box<pb::NetworkContainer>),
    /// Not well-formed: 400 and nothing else. Why, for the log.
    Malformed(String),
    Refused(Response),
}

/// Reads a definition. What makes it malformed is checked before the method, as in the reference (§6.8).
fn define(request: CreateNetworkContainerRequest) -> Defined {
    let (nc_type, type_is_known) = (request.nc_type.clone(), nc_type_number(&request.nc_type).is_some());
    let unknown_nic_type = nic_number(request.nic_type()).err();
    let nc = match request.into_pb() {
        Ok(nc) => nc,
        Err(error) => {
            let message = format!("Unmarshalling {nc_type} failed with error {error}");
            return Defined::Refused(Response::new(ReturnCode::UnexpectedError, message));
        }
    };
    let is_formal = |field: &str| {
        ["id", "primary_interface_identifier", "ip_configuration.gateway_ip_address"]
            .iter()
            .any(|name| field == format!("network_container.{name}"))
    };
    match check_nc(&nc) {
        Err(error) if is_formal(&error.field) => Defined::Malformed(error.to_string()),
        _ if !type_is_known => {
            let message = format!("Unsupported network container type {nc_type}");
            Defined::Refused(Response::new(ReturnCode::UnsupportedNetworkContainerType, message))
        }
        Err(error) => {
            // The contract has a number there; whoever sent a text is told of the text.
            let of_nic_type = unknown_nic_type.filter(|_| error.field.ends_with(".nic_type"));
            Defined::Refused(Response::new(
                error.return_code,
                of_nic_type.unwrap_or_else(|| error.to_string()),
            ))
        }
        Ok(()) => Defined::Nc(Box::new(nc)),
    }
}

/// A definition in the legacy form, as a whole and checked like one that is sent to `/network/createorupdatenetworkcontainer`. For
/// sources that speak the legacy contract themselves.
pub(super) fn read_definition(json: &str) -> Result<NcSpec, String> {
    let request = gojson::decode::<CreateNetworkContainerRequest>(json.as_bytes())
        .map_err(|error| error.to_string())?;
    match define(request) {
        Defined::Nc(nc) => nc_spec(*nc).map_err(|error| error.to_string()),
        Defined::Refused(response) => Err(response.message),
        Defined::Malformed(why) => Err(why),
    }
}

fn refused(status: tonic::Status) -> Response {
    let error = Refused::from(status);
    Response::new(error.code, error.message)
}

async fn create(gateway: &Gateway, call: &Call, nc: pb::NetworkContainer) -> Response {
    let message = pb::CreateOrUpdateNetworkContainerRequest { network_container: Some(nc) };
    let created =
        gateway.context.network_containers().create_or_update_network_container(call.ask(message)).await;
    created.map_or_else(refused, |_| Response::default())
}

/// `/network/createorupdatenetworkcontainer`.
pub(super) async fn create_or_update(gateway: &Gateway, call: &Call) -> Reply {
    let defined = match gojson::decode::<CreateNetworkContainerRequest>(&call.body) {
        Ok(request) => define(request),
        Err(error) => return Reply::undecodable(&error),
    };
    match defined {
        Defined::Malformed(_) => Reply::empty(StatusCode::BAD_REQUEST),
        _ if !call.is_post() => not_a_post("CreateOrUpdateNetworkContainer"),
        Defined::Refused(response) => Reply::nested(response),
        Defined::Nc(nc) => Reply::nested(create(gateway, call, *nc).await),
    }
}

fn not_a_post(what: &str) -> Reply {
    let message = format!("[Azure CNS] Error. {what} did not receive a POST.");
    Reply::nested(Response::new(ReturnCode::InvalidParameter, message))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NcId {
    #[serde(rename = "NetworkContainerid")]
    id: String,
}

/// `/network/deletenetworkcontainer`: an unknown one is deleted.
pub(super) async fn delete(gateway: &Gateway, call: &Call) -> Reply {
    let NcId { id } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    if !call.is_post() {
        return not_a_post("DeleteNetworkContainer");
    }
    if id.is_empty() {
        let message = "[Azure CNS] Error. NetworkContainerid is empty";
        return Reply::nested(Response::new(ReturnCode::NetworkContainerNotSpecified, message));
    }
    let message = pb::DeleteNetworkContainerRequest { id: dashed_nc_id(&id) };
    match gateway.context.network_containers().delete_network_container(call.ask(message)).await {
        Ok(_) => Reply::nested(Response::default()),
        Err(status) => {
            let error = Refused::from(status);
            // No NC can have an id that is none: it is as unknown as any other.
            if error.field.is_some() {
                return Reply::nested(Response::default());
            }
            Reply::nested(Response::new(error.code, error.message))
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GetRequest {
    #[serde(rename = "OrchestratorContext")]
    context: Raw,
}

/// The NCs of a pod: at least one element, each with its own outcome (§6.11).
async fn of_context(gateway: &Gateway, call: &Call, context: &Raw) -> Vec<GetNetworkContainerResponse> {
    let failed = |response| vec![GetNetworkContainerResponse { response, ..Default::default() }];
    let pod = match pod_of(context) {
        Ok(pod) => pod,
        // The orchestrator is judged first, and the service knows it.
        Err(_) if !gateway.has_pod_indexed_ncs() => pb::PodIdentity::default(),
        Err(error) => {
            let message = format!("Unmarshalling orchestrator context failed with error {error}");
            return failed(Response::new(ReturnCode::UnexpectedError, message));
        }
    };
    let names = format!("{}{}", pod.name, pod.namespace);
    let by = Some(pb::get_network_container_request::By::OrchestratorContext(pod));
    let message = pb::GetNetworkContainerRequest { by };
    match gateway.context.network_containers().get_network_container(call.ask(message)).await {
        Ok(found) => found
            .into_inner()
            .entries
            .into_iter()
            .map(|entry| {
                let mut element =
                    GetNetworkContainerResponse::from(entry.network_container.unwrap_or_default());
                if entry.programming_pending {
                    element.response = Response::new(
                        ReturnCode::NetworkContainerVfpProgramPending,
                        "NetworkContainer VFP programming is pending",
                    );
                }
                element
            })
            .collect(),
        Err(status) => {
            let error = Refused::from(status);
            let message = if error.code == ReturnCode::UnknownContainerId {
                format!("Failed to find networkContainerID for orchestratorContext {names}")
            } else {
                error.message
            };
            failed(Response::new(error.code, message))
        }
    }
}

/// `/network/getnetworkcontainerbyorchestratorcontext`: the first of them.
pub(super) async fn by_context(gateway: &Gateway, call: &Call) -> Reply {
    match gojson::decode::<GetRequest>(&call.body) {
        Ok(request) => {
            let found = of_context(gateway, call, &request.context).await;
            Reply::json(&found.into_iter().next().unwrap_or_default())
        }
        Err(error) => Reply::undecodable(&error),
    }
}

#[derive(Debug, Serialize)]
struct NetworkContainers {
    #[serde(rename = "NetworkContainers")]
    elements: Vec<GetNetworkContainerResponse>,
    #[serde(rename = "Response")]
    response: Response,
}

/// `/network/getAllNetworkContainers`.
pub(super) async fn all_by_context(gateway: &Gateway, call: &Call) -> Reply {
    let request: GetRequest = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    let elements = of_context(gateway, call, &request.context).await;
    let failures: Vec<_> = elements
        .iter()
        .filter(|element| element.response.code != 0)
        .map(|element| format!("Failed to get NC {} due to {}", element.id, element.response.message))
        .collect();
    let response = if failures.is_empty() {
        Response::success("Successfully retrieved NCs")
    } else {
        Response::new(ReturnCode::UnexpectedError, failures.join("\n"))
    };
    Reply::json(&NetworkContainers { elements, response })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PostRequest {
    #[serde(rename = "CreateNetworkContainerRequests")]
    requests: List<CreateNetworkContainerRequest>,
}

/// `/network/networkcontainers`: GET lists all, POST creates many.
pub(super) async fn collection(gateway: &Gateway, call: &Call) -> Reply {
    match call.method {
        Method::GET => list(gateway, call).await,
        Method::POST => create_many(gateway, call).await,
        _ => Reply::empty(StatusCode::METHOD_NOT_ALLOWED),
    }
}

async fn list(gateway: &Gateway, call: &Call) -> Reply {
    let mut elements = Vec::new();
    let mut request =
        pb::ListNetworkContainersRequest { without_secondary_ip_configs: true, ..Default::default() };
    loop {
        let page =
            gateway.context.network_containers().list_network_containers(call.ask(request.clone())).await;
        let page = match page {
            Ok(page) => page.into_inner(),
            Err(status) => {
                return Reply::json(&NetworkContainers { elements: Vec::new(), response: refused(status) });
            }
        };
        elements.extend(page.entries.into_iter().map(|entry| GetNetworkContainerResponse {
            // The reference leaves it out here (§6.12).
            network_interface_info: NetworkInterfaceInfo::default(),
            ..GetNetworkContainerResponse::from(entry.network_container.unwrap_or_default())
        }));
        if page.next_page_token.is_empty() {
            return Reply::json(&NetworkContainers { elements, response: Response::default() });
        }
        request.page_token = page.next_page_token;
    }
}

async fn create_many(gateway: &Gateway, call: &Call) -> Reply {
    let request: PostRequest = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("[Azure CNS] handlePostNetworkContainers failed with error: {error}");
            let response = Response::new(ReturnCode::InvalidRequest, message);
            return Reply::undecodable_and(&error, &Nested { response });
        }
    };
    let defined: Vec<_> = request.requests.0.into_iter().map(define).collect();
    if defined.iter().any(|defined| matches!(defined, Defined::Malformed(_))) {
        return Reply::empty(StatusCode::BAD_REQUEST);
    }
    for defined in defined {
        let response = match defined {
            Defined::Nc(nc) => create(gateway, call, *nc).await,
            Defined::Refused(response) => response,
            Defined::Malformed(_) => continue,
        };
        if response.code != 0 {
            return Reply::nested(response);
        }
    }
    Reply::nested(Response::default())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NcOfRequest {
    #[serde(rename = "NetworkContainerID")]
    id: String,
}

#[derive(Debug, Default, Serialize)]
struct NetworkInterface {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "IPAddress")]
    address: String,
}

#[derive(Debug, Default, Serialize)]
struct Interface {
    #[serde(rename = "NetworkContainerVersion")]
    version: String,
    #[serde(rename = "NetworkInterface")]
    described: NetworkInterface,
    #[serde(rename = "CnetAddressSpace")]
    cnet_address_space: List<IpSubnet>,
    #[serde(rename = "DNSServers")]
    dns_servers: List<String>,
    #[serde(rename = "Response")]
    response: Response,
}

/// `/network/getinterfaceforcontainer`.
pub(super) async fn interface(gateway: &Gateway, call: &Call) -> Reply {
    let NcOfRequest { id } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    let message = pb::GetInterfaceForContainerRequest { network_container_id: dashed_nc_id(&id) };
    let found = gateway.context.network_containers().get_interface_for_container(call.ask(message)).await;
    Reply::json(&match found {
        Ok(found) => {
            let found = found.into_inner();
            Interface {
                version: found.network_container_version,
                described: NetworkInterface {
                    name: found.interface_name,
                    address: found.interface_ip_address,
                },
                cnet_address_space: List(found.cnet_address_space.into_iter().map(Into::into).collect()),
                dns_servers: List(found.dns_servers),
                response: Response::default(),
            }
        }
        Err(_) => Interface {
            response: Response::new(
                ReturnCode::UnknownContainerId,
                "[Azure CNS] Never received call to create this container.",
            ),
            ..Default::default()
        },
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Attachment {
    #[serde(rename = "Containerid")]
    container: String,
    #[serde(rename = "NetworkContainerid")]
    nc: String,
}

/// What both do before and after; `send` calls the service.
async fn attachment<F>(call: &Call, operation: &str, send: impl FnOnce(Attachment) -> F) -> Reply
where
    F: Future<Output = Result<(), tonic::Status>>,
{
    let request: Attachment = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    if !call.is_post() {
        // The reference says "To" of detaching, too.
        return not_a_post(&format!("{operation}ContainerToNetwork"));
    }
    let failed = |code, message: String| Reply::nested(Response::new(code, message));
    if request.container.is_empty() {
        let message = "[Azure CNS] Error. Containerid is empty".to_owned();
        return failed(ReturnCode::DockerContainerNotSpecified, message);
    }
    if request.nc.is_empty() {
        let message = "[Azure CNS] Error. NetworkContainerid is empty".to_owned();
        return failed(ReturnCode::NetworkContainerNotSpecified, message);
    }
    let id = request.nc.clone();
    match send(request).await {
        Ok(()) => Reply::nested(Response::default()),
        Err(status) => {
            let error = Refused::from(status);
            match error.code {
                ReturnCode::UnexpectedError => failed(
                    error.code,
                    format!("[Azure CNS] Error. {operation}ContainerToNetwork failed {}", error.message),
                ),
                ReturnCode::UnsupportedOrchestratorType => {
                    failed(error.code, format!("[Azure CNS] {}", error.message))
                }
                // Also an id that is none.
                _ => failed(
                    ReturnCode::NotFound,
                    format!("[Azure CNS] Error. Network Container {id} does not exist."),
                ),
            }
        }
    }
}

/// `/network/attachcontainertonetwork`.
pub(super) async fn attach(gateway: &Gateway, call: &Call) -> Reply {
    attachment(call, "Attach", async |request: Attachment| {
        let message = pb::AttachContainerToNetworkRequest {
            container_id: request.container,
            network_container_id: request.nc,
        };
        let service = gateway.context.network_containers();
        service.attach_container_to_network(call.ask(message)).await.map(drop)
    })
    .await
}

/// `/network/detachcontainerfromnetwork`.
pub(super) async fn detach(gateway: &Gateway, call: &Call) -> Reply {
    attachment(call, "Detach", async |request: Attachment| {
        let message = pb::DetachContainerFromNetworkRequest {
            container_id: request.container,
            network_container_id: request.nc,
        };
        let service = gateway.context.network_containers();
        service.detach_container_from_network(call.ask(message)).await.map(drop)
    })
    .await
}

#[derive(Debug, Serialize)]
struct CreatedApipa {
    #[serde(rename = "Response")]
    response: Response,
    #[serde(rename = "EndpointID")]
    endpoint_id: String,
}

/// `/network/createhostncapipaendpoint`.
pub(super) async fn create_apipa(gateway: &Gateway, call: &Call) -> Reply {
    let NcOfRequest { id } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    let failed = |code, message: String| {
        Reply::json(&CreatedApipa { response: Response::new(code, message), endpoint_id: String::new() })
    };
    if !call.is_post() {
        return failed(ReturnCode::UnsupportedVerb, "createHostNCApipaEndpoint API expects a POST".into());
    }
    let message = pb::CreateHostNcApipaEndpointRequest { network_container_id: id.clone() };
    let made = gateway.context.network_containers().create_host_nc_apipa_endpoint(call.ask(message)).await;
    match made.map_err(Refused::from) {
        Ok(made) => Reply::json(&CreatedApipa {
            response: Response::default(),
            endpoint_id: made.into_inner().endpoint_id,
        }),
        Err(error) if error.code == ReturnCode::InvalidRequest && error.field.is_none() => failed(
            error.code,
            "HostNCApipaEndpoint creation is not supported unless AllowNCToHostCommunication or \
             AllowHostToNCCommunication is set to true"
                .into(),
        ),
        Err(_) => failed(
            ReturnCode::UnknownContainerId,
            format!(
                "CreateHostNCApipaEndpoint failed with error: Unable to find goal state for the given Network \
                 Container: {id}"
            ),
        ),
    }
}

/// `/network/deletehostncapipaendpoint`: on Linux there is nothing to delete.
pub(super) async fn delete_apipa(gateway: &Gateway, call: &Call) -> Reply {
    let NcOfRequest { id } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    if !call.is_post() {
        // The text says DELETE, and the API needs POST.
        let message = "deleteHostNCApipaEndpoint API expects a DELETE";
        return Reply::nested(Response::new(ReturnCode::UnsupportedVerb, message));
    }
    let message = pb::DeleteHostNcApipaEndpointRequest { network_container_id: id };
    // A malformed id names nothing, and nothing is to be deleted.
    let _ = gateway.context.network_containers().delete_host_nc_apipa_endpoint(call.ask(message)).await;
    Reply::nested(Response::default())
}
