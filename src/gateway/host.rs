//! What needs the host's agents: publishing, NMAgent, home AZ, VM id, NIC resources (spec/rest-contract.md §6.17–6.19,
//! 6.27–6.31). The services say what is available; here it is said in the legacy contract's words.

use http::StatusCode;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap as _};
use tonic::Status;

use super::{Call, Gateway, Refused, Reply, types::Response};
use crate::{
    gojson::{self, Bytes, List},
    model::ReturnCode,
    proto::v1::{
        self as pb, network_container_service_server::NetworkContainerService as _,
        nm_agent_service_server::NmAgentService as _, node_service_server::NodeService as _,
    },
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PublishRequest {
    #[serde(rename = "NetworkID")]
    network: String,
    #[serde(rename = "NetworkContainerID")]
    nc: String,
    #[serde(rename = "JoinNetworkURL")]
    join_url: String,
    #[serde(rename = "CreateNetworkContainerURL")]
    url: String,
    #[serde(rename = "CreateNetworkContainerRequestBody")]
    body: Bytes,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UnpublishRequest {
    #[serde(rename = "NetworkID")]
    network: String,
    #[serde(rename = "NetworkContainerID")]
    nc: String,
    #[serde(rename = "JoinNetworkURL")]
    join_url: String,
    #[serde(rename = "DeleteNetworkContainerURL")]
    url: String,
    #[serde(rename = "DeleteNetworkContainerRequestBody")]
    body: Bytes,
}

/// What both ask for.
struct Request {
    network: String,
    nc: String,
    join_url: String,
    url: String,
    body: Vec<u8>,
}

impl From<PublishRequest> for Request {
    fn from(request: PublishRequest) -> Self {
        let PublishRequest { network, nc, join_url, url, body } = request;
        Self { network, nc, join_url, url, body: body.0.unwrap_or_default() }
    }
}

impl From<UnpublishRequest> for Request {
    fn from(request: UnpublishRequest) -> Self {
        let UnpublishRequest { network, nc, join_url, url, body } = request;
        Self { network, nc, join_url, url, body: body.0.unwrap_or_default() }
    }
}

/// The two routes that pass something on to the host, and how they differ.
#[derive(Clone, Copy)]
enum Passing {
    Publish,
    Unpublish,
}

/// The words of one of them.
struct Words {
    /// What its own fields and messages begin with.
    name: &'static str,
    /// What its URL is about.
    url: &'static str,
    /// The code of a call that failed after the join.
    code: ReturnCode,
    /// The verb where no answer came.
    unanswered: &'static str,
    /// The verb where a bad one came.
    refused: &'static str,
}

impl Passing {
    const fn words(self) -> Words {
        match self {
            Self::Publish => Words {
                name: "Publish",
                url: "create",
                code: ReturnCode::NetworkContainerPublishFailed,
                unanswered: "publish",
                refused: "publish",
            },
            Self::Unpublish => Words {
                name: "Unpublish",
                url: "delete",
                code: ReturnCode::NetworkContainerUnpublishFailed,
                // The reference says "publish" of an unpublish that got no answer.
                unanswered: "publish",
                refused: "unpublish",
            },
        }
    }

    fn decode(self, body: &[u8]) -> Result<Request, gojson::DecodeError> {
        match self {
            Self::Publish => gojson::decode::<PublishRequest>(body).map(Into::into),
            Self::Unpublish => gojson::decode::<UnpublishRequest>(body).map(Into::into),
        }
    }

    async fn ask(self, gateway: &Gateway, call: &Call, request: Request) -> Result<Outcome, Status> {
        let Request { network, nc, join_url, url, body } = request;
        let ncs = gateway.context.network_containers();
        match self {
            Self::Publish => {
                let message = pb::PublishNetworkContainerRequest {
                    network_id: network,
                    network_container_id: nc,
                    join_network_url: join_url,
                    create_network_container_url: url,
                    create_network_container_request_body: body.into(),
                };
                let answer = ncs.publish_network_container(call.ask(message)).await?.into_inner();
                Ok(Outcome {
                    failed_call: answer.failed_call(),
                    error: answer.publish_error,
                    status: answer.publish_status_code,
                    body: answer.publish_response_body.to_vec(),
                })
            }
            Self::Unpublish => {
                let message = pb::UnpublishNetworkContainerRequest {
                    network_id: network,
                    network_container_id: nc,
                    join_network_url: join_url,
                    delete_network_container_url: url,
                    delete_network_container_request_body: body.into(),
                };
                let answer = ncs.unpublish_network_container(call.ask(message)).await?.into_inner();
                Ok(Outcome {
                    failed_call: answer.failed_call(),
                    error: answer.unpublish_error,
                    status: answer.unpublish_status_code,
                    body: answer.unpublish_response_body.to_vec(),
                })
            }
        }
    }
}

/// How a chain of host calls ended.
struct Outcome {
    failed_call: pb::HostCall,
    error: String,
    status: u32,
    body: Vec<u8>,
}

impl Outcome {
    fn told(self, network: &str, nc: &str, words: &Words) -> Passed {
        Passed {
            name: words.name,
            response: self.response(network, nc, words),
            // Without an answer there is no body; an empty one is empty.
            body: Bytes(self.error.is_empty().then_some(self.body)),
            error: self.error,
            status: self.status,
        }
    }

    fn response(&self, network: &str, nc: &str, words: &Words) -> Response {
        let Words { code, unanswered, refused, .. } = words;
        let answered = self.error.is_empty();
        match self.failed_call {
            pb::HostCall::Unspecified => Response::default(),
            pb::HostCall::JoinNetwork if answered => Response::new(
                ReturnCode::NetworkJoinFailed,
                format!("failed to join network {network}. did not get 200 from wireserver"),
            ),
            pb::HostCall::JoinNetwork => Response::new(
                ReturnCode::NetworkJoinFailed,
                format!("failed to join network {network}: {}", self.error),
            ),
            _ if answered => {
                Response::new(*code, format!("failed to {refused} nc {nc}. did not get 200 from wireserver"))
            }
            _ => Response::new(*code, format!("failed to {unanswered} nc {nc}: {}", self.error)),
        }
    }
}

/// The reply of either: the same fields under names of its own.
struct Passed {
    name: &'static str,
    response: Response,
    error: String,
    status: u32,
    body: Bytes,
}

impl Serialize for Passed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(4))?;
        fields.serialize_entry("Response", &self.response)?;
        fields.serialize_entry(&format!("{}ErrorStr", self.name), &self.error)?;
        fields.serialize_entry(&format!("{}StatusCode", self.name), &self.status)?;
        fields.serialize_entry(&format!("{}ResponseBody", self.name), &self.body)?;
        fields.end()
    }
}

/// `/network/publishnetworkcontainer`.
pub(super) async fn publish(gateway: &Gateway, call: &Call) -> Reply {
    pass(gateway, call, Passing::Publish).await
}

/// `/network/unpublishnetworkcontainer`.
pub(super) async fn unpublish(gateway: &Gateway, call: &Call) -> Reply {
    pass(gateway, call, Passing::Unpublish).await
}

async fn pass(gateway: &Gateway, call: &Call, passing: Passing) -> Reply {
    let words = passing.words();
    let name = words.name;
    let malformed = |why: String| Reply::text(StatusCode::BAD_REQUEST, &why);
    if !call.is_post() {
        return malformed(format!("{name}NetworkContainer expects a POST"));
    }
    let request = match passing.decode(&call.body) {
        Ok(request) => request,
        Err(error) => return malformed(format!("could not decode request body: {error}")),
    };
    let (network, nc, url) = (request.network.clone(), request.nc.clone(), request.url.clone());
    Reply::json(&match passing.ask(gateway, call, request).await {
        Ok(outcome) => outcome.told(&network, &nc, &words),
        Err(status) => {
            let Refused { field, message: error, .. } = Refused::from(status);
            if field.as_deref().is_some_and(|field| field.ends_with("_url")) {
                let message = format!("unexpected {} nc url format. url {url}: {error} ", words.url);
                // No other route has 400 for a return code (§4).
                let response = Response { code: 400, message };
                let refused = Passed { name, response, error: String::new(), status: 0, body: Bytes(None) };
                return Reply::json_with(StatusCode::BAD_REQUEST, &refused);
            }
            if field.as_deref().is_some_and(|field| field.ends_with("_request_body")) {
                return malformed(format!("could not unmarshal delete network container body: {error}"));
            }
            let message = format!("failed to join network {network}: {error}");
            let response = Response::new(ReturnCode::NetworkJoinFailed, message);
            Passed { name, response, error, status: 0, body: Bytes(None) }
        }
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApisRequest {
    #[serde(rename = "GetNmAgentSupportedApisURL")]
    url: String,
}

#[derive(Debug, Serialize)]
struct Apis {
    #[serde(rename = "Response")]
    response: Response,
    #[serde(rename = "SupportedApis")]
    apis: Option<Vec<String>>,
}

/// `/network/nmagentsupportedapis`: only POST asks, and everything else is success without a list.
pub(super) async fn nmagent_apis(gateway: &Gateway, call: &Call) -> Reply {
    let ApisRequest { url } = match gojson::decode(&call.body) {
        Ok(request) => request,
        Err(error) => return Reply::undecodable(&error),
    };
    if !call.is_post() {
        let message = "[Azure-CNS] NmAgentSupported API list expects a POST method.";
        return Reply::json(&Apis { response: Response::success(message), apis: None });
    }
    let message = pb::ListSupportedApIsRequest { nm_agent_supported_apis_url: url };
    Reply::json(&match gateway.context.nmagent().list_supported_ap_is(call.ask(message)).await {
        Ok(listed) => Apis { response: Response::default(), apis: Some(listed.into_inner().supported_apis) },
        Err(status) => {
            let message = format!("[Azure-CNS] {}", status.message());
            Apis { response: Response::new(ReturnCode::NmAgentSupportedApisError, message), apis: None }
        }
    })
}

#[derive(Debug, Default, Serialize)]
struct HomeAzResponse {
    #[serde(rename = "isSupported")]
    is_supported: bool,
    #[serde(rename = "homeAz")]
    home_az: u32,
    #[serde(rename = "NmaAppliedTheIPV6Fix")]
    ipv6_fix: bool,
}

#[derive(Debug, Serialize)]
struct HomeAz {
    response: Response,
    #[serde(rename = "homeAzResponse")]
    home_az: HomeAzResponse,
}

/// `/homeaz`.
pub(super) async fn home_az(gateway: &Gateway, call: &Call) -> Reply {
    if !call.is_get() {
        let message = "[Azure CNS] Error. getHomeAz did not receive a GET.";
        let response = Response::new(ReturnCode::UnsupportedVerb, message);
        return Reply::json(&HomeAz { response, home_az: HomeAzResponse::default() });
    }
    Reply::json(&match gateway.context.nmagent().get_home_az(call.ask(pb::GetHomeAzRequest {})).await {
        Ok(found) => {
            let found = found.into_inner();
            let message = if found.is_supported { "Get Home Az succeeded".to_owned() } else { found.reason };
            HomeAz {
                response: Response::success(message),
                home_az: HomeAzResponse {
                    is_supported: found.is_supported,
                    home_az: found.home_az,
                    ipv6_fix: found.nma_applied_the_ipv6_fix,
                },
            }
        }
        Err(status) => {
            let error = Refused::from(status);
            // NMAgent knows the API, and failed (§6.27).
            let is_supported = matches!(
                error.code,
                ReturnCode::NmAgentInternalServerError
                    | ReturnCode::StatusUnauthorized
                    | ReturnCode::UnexpectedError
            );
            let response = Response::new(error.code, error.message);
            HomeAz { response, home_az: HomeAzResponse { is_supported, ..HomeAzResponse::default() } }
        }
    })
}

#[derive(Debug, Serialize)]
struct NicResources {
    response: Response,
    #[serde(rename = "nicResources")]
    nics: Option<Vec<()>>,
}

/// `/network/nicresources`: the feature needs SwiftV2 with prefix allocation, which this version does not have.
pub(super) fn nic_resources(_: &Call) -> Reply {
    let message = "getNICResources: SwiftV2 prefix allocation is not enabled";
    let response = Response::new(ReturnCode::UnsupportedApi, message);
    Reply::json_with(StatusCode::NOT_FOUND, &NicResources { response, nics: None })
}

#[derive(Debug, Serialize)]
struct ClaimInfo {
    response: Response,
    #[serde(rename = "podIPInfo")]
    infos: Option<Vec<()>>,
    #[serde(rename = "nicResources")]
    nics: Option<Vec<()>>,
}

/// `/network/requestclaimresourceinfo`: as [`nic_resources`].
pub(super) fn claim_info(_: &Call) -> Reply {
    let message = "requestClaimResourceInfo: SwiftV2 prefix allocation is not enabled";
    let response = Response::new(ReturnCode::UnsupportedApi, message);
    Reply::json_with(StatusCode::NOT_FOUND, &ClaimInfo { response, infos: None, nics: None })
}

#[derive(Debug, Serialize)]
struct NcList {
    response: Response,
    #[serde(rename = "ncList")]
    ids: List<String>,
}

/// `/nclist`: what NMAgent has.
pub(super) async fn nc_list(gateway: &Gateway, call: &Call) -> Reply {
    if !call.is_get() {
        let message = "[Azure-CNS] NmAgentNCList API expects a GET method.";
        return Reply::json(&NcList { response: Response::success(message), ids: List::default() });
    }
    let message = pb::ListNetworkContainerVersionsRequest {};
    let listed = gateway.context.nmagent().list_network_container_versions(call.ask(message)).await;
    Reply::json(&match listed {
        Ok(listed) => NcList {
            response: Response::success("Successfully fetched NC list from NMAgent"),
            ids: List(listed.into_inner().versions.into_iter().map(|nc| nc.network_container_id).collect()),
        },
        Err(status) => {
            let message = format!("[Azure-CNS] {}", status.message());
            let response = Response::new(ReturnCode::NmAgentNcVersionListError, message);
            NcList { response, ids: List::default() }
        }
    })
}

#[derive(Debug, Serialize)]
struct VmUniqueId {
    response: Response,
    #[serde(rename = "vmuniqueid")]
    id: String,
}

/// `/metadata/vmuniqueid`.
pub(super) async fn vm_unique_id(gateway: &Gateway, call: &Call) -> Reply {
    if !call.is_get() {
        let message =
            format!("[Azure CNS] Error. getVMUniqueID did not receive a GET. Received: {}", call.method);
        let response = Response::new(ReturnCode::UnsupportedVerb, message);
        // The reference answers in another route's shape, and a client may depend on it.
        return Reply::json(&HomeAz { response, home_az: HomeAzResponse::default() });
    }
    match gateway.context.node().get_vm_unique_id(call.ask(pb::GetVmUniqueIdRequest {})).await {
        Ok(found) => {
            Reply::json(&VmUniqueId { response: Response::default(), id: found.into_inner().vm_unique_id })
        }
        Err(status) => {
            let message = format!("failed to get vmuniqueid: {}", status.message());
            let response = Response::new(ReturnCode::UnexpectedError, message);
            let failed = VmUniqueId { response, id: String::new() };
            Reply::json_with(StatusCode::INTERNAL_SERVER_ERROR, &failed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows B1 to B4 and B10 of spec/network-containers.md §16: how the host's answers are told, whoever asks the host.
    #[test]
    fn b1_b2_b3_b4_b10_each_end_of_the_host_s_calls_is_told_in_the_reference_s_words() {
        use pb::HostCall::{JoinNetwork, Unspecified};

        let (publish, unpublish) = (Passing::Publish.words(), Passing::Unpublish.words());
        let failed = [pb::HostCall::Publish, pb::HostCall::Unpublish];
        for (row, words, failed_call, error, status, body, expected) in [
            ("B1", &publish, Unspecified, "", 200, "{}", (0, "", "\"e30=\"")),
            ("B1, without a body", &publish, Unspecified, "", 200, "", (0, "", "\"\"")),
            (
                "B2",
                &publish,
                JoinNetwork,
                "",
                500,
                "no",
                (24, "failed to join network n1. did not get 200 from wireserver", "\"bm8=\""),
            ),
            ("B3", &publish, JoinNetwork, "reset", 0, "", (24, "failed to join network n1: reset", "null")),
            (
                "B4",
                &publish,
                failed[0],
                "",
                401,
                "no",
                (25, "failed to publish nc c1. did not get 200 from wireserver", "\"bm8=\""),
            ),
            (
                "a publish",
                &publish,
                failed[0],
                "reset",
                0,
                "",
                (25, "failed to publish nc c1: reset", "null"),
            ),
            (
                "an unpublish",
                &unpublish,
                failed[1],
                "",
                401,
                "no",
                (26, "failed to unpublish nc c1. did not get 200 from wireserver", "\"bm8=\""),
            ),
            ("B10", &unpublish, failed[1], "reset", 0, "", (26, "failed to publish nc c1: reset", "null")),
        ] {
            let outcome = Outcome { failed_call, error: error.to_owned(), status, body: body.into() };
            let told = gojson::encode(&outcome.told("n1", "c1", words)).unwrap();
            let (code, message, body) = expected;
            let name = words.name;
            let expected = format!(
                r#"{{"Response":{{"ReturnCode":{code},"Message":"{message}"}},"{name}ErrorStr":"{error}","{name}StatusCode":{status},"{name}ResponseBody":{body}}}"#
            );
            assert_eq!(String::from_utf8(told).unwrap(), expected, "{row}");
        }
    }
}
