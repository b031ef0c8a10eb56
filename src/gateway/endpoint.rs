//! Endpoint records (spec/rest-contract.md §6.23).

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde::Serialize;

use super::{
    Call, Gateway, Refused, Reply,
    types::{EndpointInfo, IpInfo, Response},
};
use crate::{
    gojson,
    model::ReturnCode,
    proto::v1::{self as pb, endpoint_service_server::EndpointService as _},
};

const NOT_FOUND: &str = "endpoint state could not be found in the statefile";

#[derive(Debug, Serialize)]
struct Found {
    response: Response,
    #[serde(rename = "endpointInfo")]
    info: EndpointInfo,
}

/// `/network/endpoints/{id}`.
pub(super) async fn endpoints(gateway: &Gateway, call: &Call) -> Reply {
    if !gateway.settings.manage_endpoints {
        return Reply::flat(Response::new(
            ReturnCode::UnexpectedError,
            "[EndpointHandlerAPI] EndpointHandlerAPI failed with error: CNS is not set to manage the endpoint state",
        ));
    }
    // The reference forgets to take the version's prefix off; nobody can want that.
    let path = call.path.strip_prefix("/v0.2").unwrap_or(&call.path);
    let id = path.strip_prefix("/network/endpoints/").unwrap_or_default().to_owned();
    match call.method {
        Method::GET => get(gateway, call, id).await,
        Method::PATCH => patch(gateway, call, id).await,
        Method::DELETE => delete(gateway, call, id).await,
        _ => Reply::empty(StatusCode::OK),
    }
}

/// No container can have an id that is none, so there is no record of it either.
fn is_absent(error: &Refused) -> bool {
    error.code == ReturnCode::NotFound || error.field.is_some()
}

async fn get(gateway: &Gateway, call: &Call, id: String) -> Reply {
    let message = pb::GetEndpointRequest { container_id: id };
    let (response, info) = match gateway.context.endpoints().get_endpoint(call.ask(message)).await {
        Ok(found) => {
            let endpoint = found.into_inner().endpoint.unwrap_or_default();
            let pod = endpoint.pod.unwrap_or_default();
            let interfaces =
                endpoint.interfaces.into_iter().map(|nic| (nic.ifname.clone(), IpInfo::from(nic))).collect();
            let info = EndpointInfo {
                pod_name: pod.name,
                pod_namespace: pod.namespace,
                interfaces: Some(interfaces),
            };
            (Response::success("[GetEndpointState] GetEndpoint retruned successfully"), info)
        }
        Err(status) => {
            let error = Refused::from(status);
            let response = if is_absent(&error) {
                Response::new(ReturnCode::NotFound, format!("[GetEndpointState] {NOT_FOUND}"))
            } else {
                let message = format!("[GetEndpointState] GetEndpoint failed with error: {}", error.message);
                Response::new(error.code, message)
            };
            (response, EndpointInfo::default())
        }
    };
    let code = response.code;
    Reply::json(&Found { response, info }).with_code(code)
}

async fn patch(gateway: &Gateway, call: &Call, id: String) -> Reply {
    let failed = |code: ReturnCode, error: &str| {
        let message = format!("[updateEndpoint] updateEndpoint failed with error: {error}");
        Response::new(code, message)
    };
    let patch: BTreeMap<String, IpInfo> = match gojson::decode(&call.body) {
        Ok(patch) => patch,
        Err(error) => {
            let response = failed(ReturnCode::InvalidRequest, &error.to_string());
            return Reply::undecodable_and(&error, &response);
        }
    };
    let told = |response: Response| {
        let code = response.code;
        Reply::flat(response).with_code(code)
    };
    let invalid = |message: &str| {
        told(Response::new(ReturnCode::InvalidRequest, format!("[updateEndpoint] {message}")))
    };
    // An address that is none is malformed JSON to the reference, and told before anything else.
    for info in patch.values() {
        if let Some(error) = info.v4.0.iter().chain(&info.v6.0).find_map(|net| net.to_cidr().err()) {
            let error = <gojson::DecodeError as serde::de::Error>::custom(error);
            let response = failed(ReturnCode::InvalidRequest, &error.to_string());
            return Reply::undecodable_and(&error, &response);
        }
    }
    let mut interfaces = Vec::with_capacity(patch.len());
    for (ifname, info) in patch {
        if [&info.host_veth, &info.hns_endpoint, &info.nic_type, &info.mac].iter().all(|text| text.is_empty())
        {
            return invalid("No NicType, MacAddress, HnsEndpointID or HostVethName has been provided");
        }
        if ifname.is_empty() {
            return invalid("No Interface has been provided");
        }
        match info.into_pb(ifname) {
            Ok(interface) => interfaces.push(interface),
            Err(error) => return told(failed(ReturnCode::InvalidRequest, &error)),
        }
    }
    let message = pb::UpdateEndpointRequest { container_id: id, interfaces, ..Default::default() };
    told(match gateway.context.endpoints().update_endpoint(call.ask(message)).await {
        Ok(_) => Response::success("[updateEndpoint] updateEndpoint retruned successfully"),
        Err(status) => {
            let error = Refused::from(status);
            failed(error.code, &error.message)
        }
    })
}

async fn delete(gateway: &Gateway, call: &Call, id: String) -> Reply {
    let message = pb::DeleteEndpointRequest { container_id: id.clone() };
    let failed = |code: ReturnCode, error: &str| {
        let message = format!(
            "[DeleteEndpointStateHandler] Failed to delete endpoint state for {id} with error: {error}"
        );
        Response::new(code, message)
    };
    Reply::flat(match gateway.context.endpoints().delete_endpoint(call.ask(message)).await {
        Ok(_) => Response::success("[DeleteEndpointStateHandler] Endpoint state deleted successfully"),
        Err(status) => {
            let error = Refused::from(status);
            if is_absent(&error) {
                failed(ReturnCode::NotFound, &format!("[deleteEndpointState] endpoint {id}: {NOT_FOUND}"))
            } else {
                failed(error.code, &error.message)
            }
        }
    })
}
