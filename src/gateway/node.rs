//! The node: environment, orchestrator, docker and HNS networks (spec/rest-contract.md §6.1–6.7, 6.15).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Call, Gateway, Refused, Reply,
    types::{IpSubnet, Response, UNKNOWN, orchestrator_number},
};
use crate::{
    gojson::{self, List, Raw},
    model::ReturnCode,
    proto::v1::{self as pb, node_service_server::NodeService as _},
    service::{DOCKER_DELETE_FAILED, NO_DEFAULT_ROUTE, UNKNOWN_ENVIRONMENT},
};

const UNDECODABLE: &str = "[Azure CNS] Error. Unable to decode input request.";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Environment {
    #[serde(rename = "Location")]
    location: String,
    #[serde(rename = "NetworkType")]
    network_type: String,
}

/// `/network/environment`.
pub(super) async fn set_environment(gateway: &Gateway, call: &Call) -> Reply {
    let Environment { location, network_type } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    if !call.is_post() {
        return Reply::flat(Response::default());
    }
    let message = pb::SetEnvironmentRequest { location, network_type };
    Reply::flat(match gateway.context.node().set_environment(call.ask(message)).await {
        Ok(_) => Response::default(),
        Err(status) => {
            let error = Refused::from(status);
            Response::new(error.code, error.message)
        }
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Orchestrator {
    #[serde(rename = "OrchestratorType")]
    kind: String,
    #[serde(rename = "DncPartitionKey")]
    partition_key: String,
    #[serde(rename = "NodeID")]
    node_id: String,
}

/// `/network/setorchestratortype`, by any method.
pub(super) async fn set_orchestrator(gateway: &Gateway, call: &Call) -> Reply {
    let Orchestrator { kind, partition_key, node_id } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    let message = pb::SetOrchestratorRequest {
        orchestrator_type: orchestrator_number(&kind).unwrap_or(UNKNOWN),
        node_id,
        dnc_partition_key: partition_key,
    };
    Reply::flat(match gateway.context.node().set_orchestrator(call.ask(message)).await {
        Ok(_) => Response::default(),
        Err(status) => {
            let error = Refused::from(status);
            let message = if error.code == ReturnCode::UnsupportedOrchestratorType {
                format!("Invalid Orchestrator type {kind}")
            } else {
                error.message
            };
            Response::new(error.code, message)
        }
    })
}

#[derive(Debug, Serialize)]
struct CpuCores {
    #[serde(rename = "Response")]
    response: Response,
    #[serde(rename = "NumOfCPUCores")]
    cores: u32,
}

/// `/hostcpucores`.
pub(super) async fn cpu_cores(gateway: &Gateway, call: &Call) -> Reply {
    if !call.is_get() {
        let message = "[Azure-CNS] getNumberOfCPUCores API expects a GET.";
        let response = Response::new(ReturnCode::UnsupportedVerb, message);
        return Reply::json(&CpuCores { response, cores: 0 });
    }
    let counted = gateway.context.node().get_cpu_cores(call.ask(pb::GetCpuCoresRequest {})).await;
    Reply::json(&match counted {
        Ok(counted) => CpuCores { response: Response::default(), cores: counted.into_inner().cpu_cores },
        Err(status) => {
            let error = Refused::from(status);
            CpuCores { response: Response::new(error.code, error.message), cores: 0 }
        }
    })
}

#[derive(Debug, Serialize)]
struct HostLocalIp {
    #[serde(rename = "Response")]
    response: Response,
    #[serde(rename = "IPAddress")]
    address: String,
}

/// `/network/ip/hostlocal`: only once an underlay environment was set.
pub(super) async fn host_local_ip(gateway: &Gateway, call: &Call) -> Reply {
    let failed = |message: &str| {
        let response = Response::new(ReturnCode::NotFound, message);
        Reply::json(&HostLocalIp { response, address: "0.0.0.0".into() })
    };
    if !call.is_get() {
        return failed("[Azure-CNS] GetHostLocalIP API expects a GET.");
    }
    match gateway.environment().map(|environment| environment.network_type).as_deref() {
        Some("Underlay") => {}
        Some("Overlay") => return failed("[Azure-CNS] Overlay is not yet supported."),
        _ => return failed("[Azure-CNS] Unable to get host local ip. Check if environment is initialized.."),
    }
    match gateway.context.node().get_host_local_ip(call.ask(pb::GetHostLocalIpRequest {})).await {
        Ok(found) => Reply::json(&HostLocalIp {
            response: Response::default(),
            address: found.into_inner().ip_address,
        }),
        Err(status) => failed(status.message()),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateNetwork {
    #[serde(rename = "NetworkName")]
    name: String,
    #[serde(rename = "OverlayConfiguration")]
    overlay: Overlay,
    #[serde(rename = "Options")]
    options: Option<BTreeMap<String, Raw>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Overlay {
    #[serde(rename = "NodeCount")]
    node_count: i64,
    #[serde(rename = "LocalNodeIP")]
    local_node_ip: String,
    // The reference's spelling.
    #[serde(rename = "OverlaySubent")]
    subnet: IpSubnet,
    #[serde(rename = "NodeConfig")]
    node_config: List<Raw>,
}

fn raws(list: List<Raw>) -> Vec<String> {
    list.0.iter().map(|raw| raw.get().unwrap_or("null").to_owned()).collect()
}

/// `/network/create`.
pub(super) async fn create_network(gateway: &Gateway, call: &Call) -> Reply {
    let failed = |code, message: String| Response::new(code, message);
    // Without an environment the reference does not even read the body, and the service needs one that was read.
    if gateway.environment().is_none() {
        let message = "[Azure CNS] Error. CNS is not yet initialized with environment.".to_owned();
        return Reply::flat(failed(ReturnCode::UnsupportedEnvironment, message));
    }
    let request: CreateNetwork = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => {
            return Reply::undecodable_and(&error, &failed(ReturnCode::InvalidParameter, UNDECODABLE.into()));
        }
    };
    if !call.is_post() {
        let message = "[Azure CNS] Error. CreateNetwork did not receive a POST.".to_owned();
        return Reply::flat(failed(ReturnCode::InvalidParameter, message));
    }
    let options = request.options.as_ref().map(gojson::encode).transpose();
    // It was read from JSON a moment ago.
    let Ok(Ok(options_json)) = options.map(|options| String::from_utf8(options.unwrap_or_default())) else {
        return Reply::flat(failed(ReturnCode::InvalidParameter, UNDECODABLE.into()));
    };
    let name = request.name.clone();
    let message = pb::CreateNetworkRequest {
        network_name: request.name,
        options_json,
        overlay_configuration: Some(pb::OverlayConfiguration {
            node_count: request.overlay.node_count,
            local_node_ip: request.overlay.local_node_ip,
            overlay_subnet: Some(request.overlay.subnet.into()),
            node_config_json: raws(request.overlay.node_config),
        }),
    };
    let created = gateway.context.node().create_network(call.ask(message)).await;
    Reply::flat(match created.map_err(Refused::from) {
        Ok(created) if created.get_ref().already_exists => Response::success(format!(
            "[Azure CNS] Received a request to create an already existing network {name}"
        )),
        Ok(_) => Response::default(),
        Err(error) if error.detail == UNKNOWN_ENVIRONMENT => Response::default(),
        Err(error) if error.code == ReturnCode::UnsupportedEnvironment => {
            failed(error.code, format!("[Azure CNS] Error. {}", error.message))
        }
        Err(error) if error.detail == NO_DEFAULT_ROUTE => failed(
            ReturnCode::UnexpectedError,
            format!("[Azure CNS] Error. GetPrimaryInterfaceInfoFromHost failed {}.", error.message),
        ),
        Err(error) if error.field.is_some() => {
            failed(error.code, format!("[Azure CNS] Error. CreateNetwork failed {}.", error.message))
        }
        // Whatever went wrong at docker has one code.
        Err(error) => failed(
            ReturnCode::UnexpectedError,
            format!("[Azure CNS] Error. CreateNetwork failed {}.", error.message),
        ),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DeleteNetwork {
    #[serde(rename = "NetworkName")]
    name: String,
}

/// `/network/delete`.
pub(super) async fn delete_network(gateway: &Gateway, call: &Call) -> Reply {
    let DeleteNetwork { name } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    if !call.is_post() {
        let message = "[Azure CNS] Error. DeleteNetwork did not receive a POST.";
        return Reply::flat(Response::new(ReturnCode::InvalidParameter, message));
    }
    let message = pb::DeleteNetworkRequest { network_name: name };
    Reply::flat(match gateway.context.node().delete_network(call.ask(message)).await.map_err(Refused::from) {
        Ok(_) => Response::default(),
        Err(error) if error.field.is_some() => Response::new(error.code, error.message),
        Err(error) if error.detail == DOCKER_DELETE_FAILED => Response::new(
            ReturnCode::UnexpectedError,
            format!("[Azure CNS] Error. DeleteNetwork failed {}.", error.message),
        ),
        // That there was none, and that docker could not be asked, go out as they are, under one code.
        Err(error) => Response::new(ReturnCode::UnexpectedError, error.message),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreateHnsNetwork {
    #[serde(rename = "NetworkName")]
    name: String,
    #[serde(rename = "NetworkType")]
    kind: String,
    #[serde(rename = "NetworkAdapterName")]
    adapter: String,
    #[serde(rename = "SourceMac")]
    source_mac: String,
    #[serde(rename = "Policies")]
    policies: List<Raw>,
    #[serde(rename = "MacPools")]
    mac_pools: List<MacPool>,
    #[serde(rename = "Subnets")]
    subnets: List<HnsSubnet>,
    #[serde(rename = "DNSSuffix")]
    dns_suffix: String,
    #[serde(rename = "DNSServerList")]
    dns_servers: String,
    #[serde(rename = "DNSServerCompartment")]
    dns_compartment: u32,
    #[serde(rename = "ManagementIP")]
    management_ip: String,
    #[serde(rename = "AutomaticDNS")]
    automatic_dns: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MacPool {
    #[serde(rename = "StartMacAddress")]
    start: String,
    #[serde(rename = "EndMacAddress")]
    end: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HnsSubnet {
    #[serde(rename = "AddressPrefix")]
    prefix: String,
    #[serde(rename = "GatewayAddress")]
    gateway: String,
    #[serde(rename = "Policies")]
    policies: List<Raw>,
}

/// `/network/hns/create`.
pub(super) async fn create_hns_network(gateway: &Gateway, call: &Call) -> Reply {
    let request: CreateHnsNetwork = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => {
            let response = Response::new(ReturnCode::InvalidParameter, UNDECODABLE);
            return Reply::undecodable_and(&error, &response);
        }
    };
    if !call.is_post() {
        let message = "[Azure CNS] Error. CreateHnsNetwork did not receive a POST.";
        return Reply::flat(Response::new(ReturnCode::InvalidParameter, message));
    }
    let name = request.name.clone();
    let message = pb::CreateHnsNetworkRequest {
        network_name: request.name,
        network_type: request.kind,
        network_adapter_name: request.adapter,
        source_mac: request.source_mac,
        policies_json: raws(request.policies),
        mac_pools: request
            .mac_pools
            .0
            .into_iter()
            .map(|pool| pb::MacPool { start_mac_address: pool.start, end_mac_address: pool.end })
            .collect(),
        subnets: request
            .subnets
            .0
            .into_iter()
            .map(|subnet| pb::HnsSubnet {
                address_prefix: subnet.prefix,
                gateway_address: subnet.gateway,
                policies_json: raws(subnet.policies),
            })
            .collect(),
        dns_suffix: request.dns_suffix,
        dns_server_list: request.dns_servers,
        dns_server_compartment: request.dns_compartment,
        management_ip: request.management_ip,
        automatic_dns: request.automatic_dns,
    };
    Reply::flat(match gateway.context.node().create_hns_network(call.ask(message)).await {
        Ok(_) => Response::success(format!("[Azure CNS] Successfully created HNS network: {name}")),
        Err(_) => Response::new(
            ReturnCode::UnexpectedError,
            "[Azure CNS] CreateHnsNetwork failed with error CreateHnsNetwork shouldn't be called for linux platform",
        ),
    })
}

/// `/network/hns/delete`. None was ever created, so none is found.
pub(super) async fn delete_hns_network(gateway: &Gateway, call: &Call) -> Reply {
    let DeleteNetwork { name } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => {
            let response = Response::new(ReturnCode::InvalidParameter, UNDECODABLE);
            return Reply::undecodable_and(&error, &response);
        }
    };
    if !call.is_post() {
        let message = "[Azure CNS] Error. DeleteHnsNetwork did not receive a POST.";
        return Reply::flat(Response::new(ReturnCode::InvalidParameter, message));
    }
    let message = pb::DeleteHnsNetworkRequest { network_name: name.clone() };
    Reply::flat(match gateway.context.node().delete_hns_network(call.ask(message)).await {
        Ok(_) => Response::success(format!("[Azure CNS] Successfully deleted HNS network: {name}")),
        Err(_) => {
            Response::new(ReturnCode::InvalidParameter, format!("[Azure CNS] Network {name} not found"))
        }
    })
}
