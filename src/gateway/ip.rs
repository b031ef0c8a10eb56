//! Addresses of pods (spec/rest-contract.md §6.20–6.22).

use serde::Serialize;

use super::{
    Call, Gateway, Refused, Reply,
    types::{IpConfigRequest, IpConfigsRequest, PodIpInfo, Response, pod_of},
};
use crate::{
    gojson::{self, DecodeError},
    model::ReturnCode,
    proto::v1::{self as pb, ipam_service_server::IpamService as _},
};

/// The reason of a refusal that the reference calls success: there are NCs, and none has addresses (§6.20).
const NO_ADDRESSES: &str = "NO_ADDRESSES";
/// The reason of a refusal for lack of an InfiniBand NIC.
const NO_BACKEND_NIC: &str = "BACKEND_NIC_NOT_FOUND";
/// The reason of a refusal for lack of addresses.
const EXHAUSTED: &str = "POOL_EXHAUSTED";

#[derive(Debug, Serialize)]
struct Many {
    #[serde(rename = "podIPInfo")]
    infos: Option<Vec<PodIpInfo>>,
    response: Response,
}

#[derive(Debug, Serialize)]
struct One {
    #[serde(rename = "PodIpInfo")]
    info: PodIpInfo,
    #[serde(rename = "Response")]
    response: Response,
}

impl Many {
    fn reply(infos: Option<Vec<PodIpInfo>>, response: Response) -> Reply {
        let code = response.code;
        Reply::json(&Self { infos, response }).with_code(code)
    }
}

impl One {
    fn reply(info: PodIpInfo, response: Response) -> Reply {
        let code = response.code;
        Reply::json(&Self { info, response }).with_code(code)
    }
}

/// What only JSON can lack: a context is there, and names a pod or nobody (§6.20: 33, 34).
fn pod(request: &IpConfigsRequest) -> Result<pb::PodIdentity, Response> {
    if request.context.get().is_none() {
        let message = format!("OrchestratorContext is not set in the req: {}", dump(request));
        return Err(Response::new(ReturnCode::EmptyOrchestratorContext, message));
    }
    pod_of(&request.context).map_err(|error| {
        let message = format!("failed to unmarshal podInfo: {error}");
        Response::new(ReturnCode::UnsupportedOrchestratorContext, message)
    })
}

/// The request in one line, for messages that people read.
fn dump(request: &IpConfigsRequest) -> String {
    format!(
        "{{DesiredIPAddresses:[{}] PodInterfaceID:{} InfraContainerID:{} OrchestratorContext:{} Ifname:{}}}",
        request.desired.0.join(" "),
        request.interface_id,
        request.container_id,
        request.context.get().unwrap_or_default(),
        request.ifname,
    )
}

/// What a request came to.
struct Asked {
    infos: Option<Vec<PodIpInfo>>,
    response: Response,
}

async fn request(gateway: &Gateway, call: &Call, request: &IpConfigsRequest, exactly_one: bool) -> Asked {
    let refused = |response| Asked { infos: None, response };
    let pod = match pod(request) {
        Ok(pod) => pod,
        Err(response) => return refused(response),
    };
    let message = pb::RequestIpConfigsRequest {
        pod: Some(pod),
        infra_container_id: request.container_id.clone(),
        pod_interface_id: request.interface_id.clone(),
        ifname: request.ifname.clone(),
        desired_ip_addresses: request.desired.0.clone(),
        secondary_interfaces_exist: request.secondary_interfaces,
        backend_interface_exist: request.backend_interface,
        backend_interface_mac_addresses: request.backend_macs.0.clone(),
        exactly_one,
        ..Default::default()
    };
    match gateway.context.ipam().request_ip_configs(call.ask(message)).await {
        Ok(granted) => {
            let infos = granted.into_inner().pod_ip_infos.into_iter().map(PodIpInfo::from).collect();
            Asked { infos: Some(infos), response: Response::default() }
        }
        Err(status) => {
            let error = Refused::from(status);
            if error.detail == NO_ADDRESSES {
                return Asked { infos: None, response: Response::default() };
            }
            // One empty entry for each address that there should have been.
            let infos = match error.detail.as_str() {
                EXHAUSTED => Some(vec![PodIpInfo::default(); gateway.families().max(1)]),
                NO_BACKEND_NIC => Some(Vec::new()),
                _ if !request.desired.0.is_empty() && error.code == ReturnCode::FailedToAllocateIpConfig => {
                    Some(Vec::new())
                }
                _ => None,
            };
            let message = if error.detail == NO_BACKEND_NIC {
                format!(
                    "BackendNIC allocation failed: Backend Network adapter not found, config request is {}",
                    dump(request)
                )
            } else if error.code == ReturnCode::FailedToAllocateIpConfig {
                format!("AllocateIPConfig failed: {}, IP config request is {}", error.message, dump(request))
            } else {
                error.message
            };
            Asked { infos, response: Response::new(error.code, message) }
        }
    }
}

/// `/network/requestipconfigs`.
pub(super) async fn request_many(gateway: &Gateway, call: &Call) -> Reply {
    match gojson::decode::<IpConfigsRequest>(&call.body) {
        Ok(wanted) => {
            let Asked { infos, response } = request(gateway, call, &wanted, false).await;
            Many::reply(infos, response)
        }
        Err(error) => Reply::undecodable(&error),
    }
}

/// `/network/requestipconfig`: exactly one address, and in its own envelope.
pub(super) async fn request_one(gateway: &Gateway, call: &Call) -> Reply {
    let wanted: IpConfigsRequest = match gojson::decode::<IpConfigRequest>(&call.body) {
        Ok(wanted) => wanted.into(),
        Err(error) => return Reply::undecodable(&error),
    };
    let Asked { infos, response } = request(gateway, call, &wanted, true).await;
    if response.code != 0 {
        return One::reply(PodIpInfo::default(), response);
    }
    let mut infos = infos.unwrap_or_default();
    match (infos.pop(), infos.is_empty()) {
        (Some(info), true) => One::reply(info, response),
        (last, _) => {
            let found = infos.len() + usize::from(last.is_some());
            let message =
                format!("request returned incorrect number of IPs. Expected 1 and returned {found}");
            One::reply(PodIpInfo::default(), Response::new(ReturnCode::UnexpectedError, message))
        }
    }
}

async fn release(gateway: &Gateway, call: &Call, request: &IpConfigsRequest, exactly_one: bool) -> Response {
    let pod = match pod(request) {
        Ok(pod) => pod,
        Err(response) => return response,
    };
    let message = pb::ReleaseIpConfigsRequest {
        pod: Some(pod),
        infra_container_id: request.container_id.clone(),
        pod_interface_id: request.interface_id.clone(),
        ifname: request.ifname.clone(),
        exactly_one,
        ..Default::default()
    };
    match gateway.context.ipam().release_ip_configs(call.ask(message)).await {
        Ok(_) => Response::default(),
        Err(status) => {
            let error = Refused::from(status);
            Response::new(error.code, error.message)
        }
    }
}

/// The reply to a release that is no JSON: the only flat one of its routes.
fn undecodable_release(error: &DecodeError) -> Reply {
    Reply::undecodable_and(error, &Response::new(ReturnCode::UnexpectedError, error.to_string()))
}

/// `/network/releaseipconfigs`.
pub(super) async fn release_many(gateway: &Gateway, call: &Call) -> Reply {
    match gojson::decode::<IpConfigsRequest>(&call.body) {
        Ok(wanted) => Many::reply(None, release(gateway, call, &wanted, false).await),
        Err(error) => undecodable_release(&error),
    }
}

/// `/network/releaseipconfig`: answers in the plural's envelope, unless there is not exactly one NC.
pub(super) async fn release_one(gateway: &Gateway, call: &Call) -> Reply {
    let wanted: IpConfigsRequest = match gojson::decode::<IpConfigRequest>(&call.body) {
        Ok(wanted) => wanted.into(),
        Err(error) => return undecodable_release(&error),
    };
    let response = release(gateway, call, &wanted, true).await;
    if response.code == ReturnCode::InvalidRequest.number() {
        return One::reply(PodIpInfo::default(), response);
    }
    Many::reply(None, response)
}
