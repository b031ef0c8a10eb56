//! DNC, the controller that a Managed node registers with and asks for its network containers (spec/host-agents.md §8,
//! spec/rest-contract.md §11).

use std::{collections::HashMap, fmt, time::Duration};

use percent_encoding::utf8_percent_encode;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    http::{
        AgentError, AgentFault, AgentState, Answer, BaseUrl, ClientError, HttpClient, Limits, Outgoing,
        ReadError, ReadFault, Retry, Roots, varied,
    },
    wireserver::{SEGMENT, interfaces::shown},
};
use crate::{
    gojson::{self, List, Raw},
    model::{NcId, dashed_nc_id},
};

/// Which node asks which DNC. The ids are those of the configuration; they are encoded, so any text is safe.
#[derive(Clone, Debug)]
pub struct DncConfig {
    /// `PrivateEndpoint`.
    pub endpoint: BaseUrl,
    /// `InfrastructureNetworkID`.
    pub infrastructure_network_id: String,
    /// `NodeID`.
    pub node_id: String,
}

/// What a call of DNC may cost, unless the legacy flags `-httpcontimeout` and `-httprespheadertimeout` say otherwise: 5 s to connect,
/// 120 s for an answer, 16 MiB of it. A node's network containers with all their addresses do not fit into 1 MiB.
pub const DNC_LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    attempt: Duration::from_mins(2),
    total: Duration::from_mins(2),
    body_bytes: 16 << 20,
};

/// How often and how patiently a node tries to register: 720 times, every 5 s, about an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterPatience {
    /// Attempts in all.
    pub attempts: u32,
    /// Between two of them; varied by a tenth.
    pub pause: Duration,
}

impl Default for RegisterPatience {
    fn default() -> Self {
        Self { attempts: 720, pause: Duration::from_secs(5) }
    }
}

/// What a node says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRegistration {
    /// Logical CPUs.
    #[serde(rename = "NumCores")]
    pub num_cores: usize,
    /// What NMAgent supports; written as `[]` when empty, never as `null`.
    #[serde(rename = "NmAgentSupportedApis")]
    pub nmagent_supported_apis: Vec<String>,
}

/// What DNC makes of it: to be stored as an orchestrator (spec/rest-contract.md §6.7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Registered {
    /// E.g. `Kubernetes`; as it came.
    #[serde(rename = "OrchestratorType")]
    pub orchestrator_type: String,
    /// DNC's partition.
    #[serde(rename = "DncPartitionKey")]
    pub partition_key: String,
    /// The node's id in DNC.
    #[serde(rename = "NodeID")]
    pub node_id: String,
}

/// A registration that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// Every attempt failed.
    #[error("this node could not be registered in {attempts} attempts; the last one: {last}")]
    GaveUp {
        /// Attempts made.
        attempts: u32,
        /// The last error.
        last: AgentError,
    },
    /// The daemon is stopping.
    #[error("registering this node was ended after {attempts} attempts, because the daemon stops")]
    Cancelled {
        /// Attempts made.
        attempts: u32,
    },
}

/// The network containers that a node shall have.
#[derive(Clone, Debug, Default)]
pub struct NodeNetworkContainers {
    /// Those whose id can be read, in DNC's order. Of repeated ids the last counts.
    pub ncs: Vec<DncNetworkContainer>,
    /// Entries without a readable id, for one log line each. While there are any, the list is not known to be whole: nothing should be
    /// deleted for not standing in it.
    pub refused: Vec<String>,
}

/// One of them: a legacy `CreateNetworkContainerRequest` (spec/rest-contract.md §5), unread but for what a comparison needs.
#[derive(Clone)]
pub struct DncNetworkContainer {
    /// Its id.
    pub id: NcId,
    /// Its version, as it came.
    pub version: String,
    json: Raw,
}

impl DncNetworkContainer {
    /// The version as a number. The reference compares texts, for which 10 is less than 9 (spec/host-agents.md §10.5).
    pub fn version_number(&self) -> Option<u64> {
        self.version.parse().ok()
    }

    /// The whole request, for the legacy contract's decoder. It may hold an authorization token.
    pub fn json(&self) -> &str {
        self.json.get().unwrap_or_default()
    }
}

impl fmt::Debug for DncNetworkContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DncNetworkContainer")
            .field("id", &self.id)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// A client of DNC for one node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Dnc {
    http: HttpClient,
    node: String,
}

const API_VERSION: &str = "api-version=2018-03-01";

impl Dnc {
    /// A client of the node's DNC.
    pub fn new(config: DncConfig, limits: Limits, roots: Roots) -> Result<Self, ClientError> {
        let segment = |text: &str| match text {
            // Encoding leaves these two as they are, and they would climb.
            "." => "%2E".to_owned(),
            ".." => "%2E%2E".to_owned(),
            text => utf8_percent_encode(text, SEGMENT).to_string(),
        };
        let (network, node) = (segment(&config.infrastructure_network_id), segment(&config.node_id));
        let node = format!("/networks/{network}/node/{node}");
        Ok(Self { http: HttpClient::new("DNC", config.endpoint, limits, roots)?, node })
    }

    /// The same client with at most `total` for each call.
    #[must_use]
    pub fn within(&self, total: Duration) -> Self {
        Self { http: self.http.within(total), ..self.clone() }
    }

    /// How DNC last answered.
    pub fn state(&self) -> &AgentState {
        self.http.state()
    }

    /// Registers the node, once.
    pub async fn register(&self, node: &NodeRegistration) -> Result<Registered, AgentError> {
        let call = "register node";
        let body = gojson::encode(node)
            .map_err(|error| self.http.error(call, AgentFault::Unsendable { why: error.to_string() }))?;
        let outgoing = Outgoing::post(call, format!("{}?{API_VERSION}", self.node), body);
        self.http
            .call(&outgoing, &Retry::NEVER, |answer: Answer| {
                let registered: Registered = gojson::decode(&answer.ok()?)
                    .map_err(|error| ReadFault::decode("registration", error))?;
                // Anything that is JSON decodes; an answer that names no orchestrator registers nothing.
                if registered.orchestrator_type.is_empty() {
                    return Err(ReadFault::decode("registration", "OrchestratorType is missing").into());
                }
                Ok::<_, ReadError<AgentError>>(registered)
            })
            .await
    }

    /// Registers the node, and tries again after every error until it succeeds, has tried often enough, or `stop` is
    /// cancelled, which ends a call or a pause at once. The reference cannot be stopped for an hour (spec/host-agents.md §10.13).
    pub async fn register_patiently(
        &self,
        node: &NodeRegistration,
        patience: RegisterPatience,
        stop: &CancellationToken,
    ) -> Result<Registered, RegisterError> {
        let mut attempts = 0;
        let trying = async {
            loop {
                attempts += 1;
                match self.register(node).await {
                    Ok(registered) => return Ok(registered),
                    Err(last) if attempts >= patience.attempts => return Err(last),
                    Err(_) => tokio::time::sleep(varied(patience.pause)).await,
                }
            }
        };
        let outcome = stop.run_until_cancelled(trying).await;
        match outcome {
            Some(outcome) => outcome.map_err(|last| RegisterError::GaveUp { attempts, last }),
            None => Err(RegisterError::Cancelled { attempts }),
        }
    }

    /// The network containers that the node shall have. A list that is missing is an error and not an empty list: the reference
    /// would delete all that it has (spec/host-agents.md §10.5).
    pub async fn network_containers(&self) -> Result<NodeNetworkContainers, AgentError> {
        let outgoing = Outgoing::get(
            "node's network containers",
            format!("{}/networkcontainers?{API_VERSION}", self.node),
        );
        self.http
            .call(&outgoing, &Retry::NEVER, |answer: Answer| {
                Ok::<_, ReadError<AgentError>>(network_containers(&answer.ok()?)?)
            })
            .await
    }
}

fn network_containers(body: &[u8]) -> Result<NodeNetworkContainers, ReadFault> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Body {
        #[serde(rename = "NetworkContainers")]
        ncs: Raw,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Entry {
        #[serde(rename = "NetworkContainerid")]
        id: String,
        #[serde(rename = "Version")]
        version: String,
    }
    const WHAT: &str = "list of a node's network containers";
    let fault = |error: gojson::DecodeError| ReadFault::decode(WHAT, error);
    let body: Body = gojson::decode(body).map_err(fault)?;
    let Some(list) = body.ncs.get() else {
        return Err(ReadFault::decode(WHAT, "NetworkContainers is missing"));
    };
    let list: List<Raw> = gojson::decode(list.as_bytes()).map_err(fault)?;
    let mut found = NodeNetworkContainers::default();
    let mut known = HashMap::new();
    for json in list.0 {
        let read = gojson::decode::<Entry>(json.get().unwrap_or_default().as_bytes())
            .map_err(|error| error.to_string())
            .and_then(|entry| match dashed_nc_id(&entry.id).parse::<NcId>() {
                Ok(id) => Ok((id, entry.version)),
                Err(error) => Err(error.to_string()),
            });
        match read {
            Ok((id, version)) => {
                let nc = DncNetworkContainer { id: id.clone(), version, json };
                if let Some(before) = known.get(&id).and_then(|at: &usize| found.ncs.get_mut(*at)) {
                    *before = nc;
                } else {
                    known.insert(id, found.ncs.len());
                    found.ncs.push(nc);
                }
            }
            // A hostile list must not fill the log.
            Err(why) if found.refused.len() < 32 => found.refused.push(shown(&why)),
            Err(_) => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cns_fake_agents::{Agent, FakeAgents, Fault};

    const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

    fn client(agents: &FakeAgents, node_id: &str) -> Dnc {
        let config = DncConfig {
            endpoint: agents.url(Agent::Dnc).parse().unwrap(),
            infrastructure_network_id: "vnet-1".into(),
            node_id: node_id.into(),
        };
        Dnc::new(config, DNC_LIMITS, Roots::System).unwrap()
    }

    fn node() -> NodeRegistration {
        NodeRegistration { num_cores: 8, nmagent_supported_apis: Vec::new() }
    }

    const QUICK: RegisterPatience = RegisterPatience { attempts: 4, pause: Duration::from_millis(5) };

    #[tokio::test]
    async fn a_node_registers_and_is_told_its_orchestrator() {
        let agents = FakeAgents::start().await.unwrap();
        let registered = client(&agents, "node-1").register(&node()).await.unwrap();
        assert_eq!(registered.orchestrator_type, "Kubernetes");
        assert_eq!(
            (registered.partition_key.as_str(), registered.node_id.as_str()),
            ("partition-1", "node-1")
        );
        let request = &agents.take_requests()[0];
        assert_eq!(request.target, "/networks/vnet-1/node/node-1?api-version=2018-03-01");
        assert_eq!(&request.body[..], br#"{"NumCores":8,"NmAgentSupportedApis":[]}"#);
        assert_eq!(
            (request.method.as_str(), request.headers["content-type"].as_str()),
            ("POST", "application/json")
        );
    }

    #[tokio::test]
    async fn ids_cannot_leave_their_place_in_the_url() {
        let agents = FakeAgents::start().await.unwrap();
        for (id, encoded) in [("a/../b?x#y z", "a%2F..%2Fb%3Fx%23y%20z"), ("..", "%2E%2E"), ("é", "%C3%A9")]
        {
            client(&agents, id).register(&node()).await.unwrap();
            let request = &agents.take_requests()[0];
            assert_eq!(request.target, format!("/networks/vnet-1/node/{encoded}?api-version=2018-03-01"));
        }
    }

    #[tokio::test]
    async fn registering_is_patient_and_can_be_stopped_at_once() {
        let agents = FakeAgents::start().await.unwrap();
        let (client, stop) = (client(&agents, "node-1"), CancellationToken::new());
        agents.fail_times("/node/", Fault::Status(503), 1);
        agents.fail_times("/node/", Fault::Drop, 1);
        agents.fail_times("/node/", Fault::Body("{}".into()), 1);
        client.register_patiently(&node(), QUICK, &stop).await.unwrap();
        assert_eq!(agents.take_requests().len(), 4, "every error is tried again");

        agents.fail("/node/", Fault::Status(500));
        let error = client.register_patiently(&node(), QUICK, &stop).await.unwrap_err();
        assert!(matches!(error, RegisterError::GaveUp { attempts: 4, .. }), "{error}");
        assert!(error.to_string().contains("DNC at http://127.0.0.1"), "{error}");

        let stopped = async |fault: Fault| {
            agents.heal();
            agents.fail("/node/", fault);
            let stop = CancellationToken::new();
            let node = node();
            let trying = client.register_patiently(&node, RegisterPatience::default(), &stop);
            let ending = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                stop.cancel();
            };
            let (outcome, ()) = tokio::join!(trying, ending);
            outcome.unwrap_err()
        };
        let quickly =
            async |fault| tokio::time::timeout(Duration::from_secs(2), stopped(fault)).await.unwrap();
        assert_eq!(quickly(Fault::Hang).await, RegisterError::Cancelled { attempts: 1 }, "in a call");
        assert_eq!(quickly(Fault::Status(500)).await, RegisterError::Cancelled { attempts: 1 }, "in a pause");
    }

    #[tokio::test]
    async fn an_answer_that_registers_nothing_is_an_error() {
        let agents = FakeAgents::start().await.unwrap();
        for body in ["{}", "null", "", "<html/>", r#"{"OrchestratorType":7}"#] {
            agents.heal();
            agents.fail("/node/", Fault::Body(body.into()));
            let error = client(&agents, "node-1").register(&node()).await.unwrap_err();
            assert!(
                matches!(error.fault, AgentFault::Decode { what: "registration", .. }),
                "{body}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn network_containers_keep_their_request_whole() {
        let agents = FakeAgents::start().await.unwrap();
        let addresses: Vec<_> =
            (0..30_000).map(|n| json!({"IPAddress": format!("10.{n}"), "NCVersion": 1})).collect();
        let whole = json!({"NetworkContainerid": NC, "Version": "10", "AuthorizationToken": "secret", "x": addresses});
        agents.world(|world| {
            world.dnc_ncs = vec![
                json!({"networkcontainerID": format!("Swift_{{{NC}}}"), "Version": "9"}),
                json!({"NetworkContainerid": "no uuid"}),
                json!(null),
                whole.clone(),
            ];
        });
        agents.fail("networkcontainers", Fault::Chunked);
        let client = client(&agents, "node-1");
        let found = client.network_containers().await.unwrap();
        assert_eq!(
            agents.take_requests()[0].target,
            "/networks/vnet-1/node/node-1/networkcontainers?api-version=2018-03-01"
        );
        assert_eq!((found.ncs.len(), found.refused.len()), (1, 2), "{:?}", found.refused);
        assert_eq!((found.ncs[0].version_number(), found.ncs[0].id.as_str()), (Some(10), NC));
        assert_eq!(serde_json::from_str::<serde_json::Value>(found.ncs[0].json()).unwrap(), whole);
        assert!(!format!("{found:?}").contains("secret"));
    }

    /// An empty list is one; an answer without a list is none, and must not delete anything (spec/host-agents.md §10.5).
    #[tokio::test]
    async fn a_missing_list_is_an_error() {
        let read = |body: &str| network_containers(body.as_bytes()).map(|found| found.ncs.len());
        for (body, expected) in [
            (r#"{"NetworkContainers":[]}"#, Some(0)),
            (r#"{"NetworkContainers":null}"#, Some(0)),
            ("{}", None),
            ("null", None),
            ("", None),
            ("<html/>", None),
            (r#"{"NetworkContainers":{}}"#, None),
        ] {
            assert_eq!(read(body).ok(), expected, "{body}");
        }
        let agents = FakeAgents::start().await.unwrap();
        agents.fail("networkcontainers", Fault::Status(404));
        assert_eq!(
            client(&agents, "node-1").network_containers().await.unwrap_err().fault.status().unwrap(),
            404
        );
    }
}
