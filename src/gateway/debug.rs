//! What log collectors and the debug command line ask (spec/rest-contract.md §6.24–6.26).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Call, Gateway, Refused, Reply,
    types::{IpConfigurationStatus, Response},
};
use crate::{
    gojson::{self, List},
    model::ReturnCode,
    proto::v1::{self as pb, ipam_service_server::IpamService as _},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Filter {
    #[serde(rename = "IPConfigStateFilter")]
    states: List<String>,
}

#[derive(Debug, Serialize)]
struct Statuses {
    #[serde(rename = "IPConfigurationStatus")]
    statuses: Option<Vec<IpConfigurationStatus>>,
    #[serde(rename = "Response")]
    response: Response,
}

/// All addresses in these states.
async fn addresses(gateway: &Gateway, call: &Call, states: Vec<i32>) -> Result<Vec<pb::IpConfig>, Response> {
    let mut request = pb::ListIpConfigsRequest { states, page_size: 10_000, ..Default::default() };
    let mut all = Vec::new();
    loop {
        let page = gateway.context.ipam().list_ip_configs(call.ask(request.clone())).await;
        let page = page.map_err(|status| {
            let error = Refused::from(status);
            Response::new(error.code, error.message)
        })?;
        let page = page.into_inner();
        all.extend(page.ip_configs);
        if page.next_page_token.is_empty() {
            return Ok(all);
        }
        request.page_token = page.next_page_token;
    }
}

fn state_number(text: &str) -> Option<i32> {
    let state = match text {
        "Available" => pb::IpState::Available,
        "Assigned" => pb::IpState::Assigned,
        "PendingProgramming" => pb::IpState::PendingProgramming,
        "PendingRelease" => pb::IpState::PendingRelease,
        _ => return None,
    };
    Some(state.into())
}

/// `/debug/ipaddresses`.
pub(super) async fn ip_addresses(gateway: &Gateway, call: &Call) -> Reply {
    let Filter { states } = match gojson::decode(&call.body) {
        Ok(filter) => filter,
        Err(error) => {
            let response = Response::new(ReturnCode::UnexpectedError, error.to_string());
            return Reply::undecodable_and(&error, &Statuses { statuses: None, response });
        }
    };
    let states: Vec<i32> = states.0.iter().filter_map(|text| state_number(text)).collect();
    // Nothing asked for is nothing found; in the contract an empty filter is none.
    let found = if states.is_empty() { Ok(Vec::new()) } else { addresses(gateway, call, states).await };
    Reply::json(&match found {
        Ok(found) => {
            let scheme = gateway.scheme();
            let statuses = found.into_iter().map(|ip| IpConfigurationStatus::new(ip, scheme)).collect();
            Statuses { statuses: Some(statuses), response: Response::default() }
        }
        Err(response) => Statuses { statuses: None, response },
    })
}

#[derive(Debug, Serialize)]
struct PodContext {
    #[serde(rename = "PodContext")]
    by_key: BTreeMap<String, Vec<String>>,
    #[serde(rename = "Response")]
    response: Response,
}

fn by_key(found: &[pb::IpConfig]) -> BTreeMap<String, Vec<String>> {
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ip in found {
        if let Some(owner) = &ip.owner {
            by_key.entry(owner.pod_key.clone()).or_default().push(ip.id.clone());
        }
    }
    by_key
}

/// `/debug/podcontext`.
pub(super) async fn pod_context(gateway: &Gateway, call: &Call) -> Reply {
    let found = addresses(gateway, call, vec![pb::IpState::Assigned.into()]).await;
    Reply::json(&match found {
        Ok(found) => PodContext { by_key: by_key(&found), response: Response::default() },
        Err(response) => PodContext { by_key: BTreeMap::new(), response },
    })
}

#[derive(Debug, Default, Serialize)]
struct ServiceData {
    #[serde(rename = "PodIPIDByPodInterfaceKey")]
    by_key: BTreeMap<String, Vec<String>>,
    #[serde(rename = "PodIPConfigState")]
    by_id: BTreeMap<String, IpConfigurationStatus>,
}

#[derive(Debug, Serialize)]
struct RestData {
    #[serde(rename = "HTTPRestServiceData")]
    data: ServiceData,
    #[serde(rename = "Response")]
    response: Response,
}

/// `/debug/restdata`.
pub(super) async fn rest_data(gateway: &Gateway, call: &Call) -> Reply {
    Reply::json(&match addresses(gateway, call, Vec::new()).await {
        Ok(found) => {
            let (by_key, scheme) = (by_key(&found), gateway.scheme());
            let by_id =
                found.into_iter().map(|ip| (ip.id.clone(), IpConfigurationStatus::new(ip, scheme))).collect();
            RestData { data: ServiceData { by_key, by_id }, response: Response::default() }
        }
        Err(response) => RestData { data: ServiceData::default(), response },
    })
}
