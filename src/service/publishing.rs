//! Publishing network containers to the host, on behalf of DNC (spec/rest-contract.md §6.17, §6.18; network-containers.md §8).
//!
//! The reference pastes what the caller sends into the URL of a privileged service (spec/security.md §3). Here every value is parsed
//! first, and the URL is made of what was understood.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde::Deserialize;
use tonic::Status;

use super::{Context, status::InvalidField};
use crate::{
    gojson,
    host::{
        Agents,
        wireserver::{Proxied, ProxyError, PublishTarget, VnetId},
    },
    proto::v1::HostCall,
};

/// How long joining may take, and how long what follows: both end inside the limit of a call.
const JOIN_WITHIN: Duration = Duration::from_secs(4);
const PUBLISH_WITHIN: Duration = Duration::from_secs(5);

/// The networks that this process has joined. Not kept: after a restart joining again does no harm.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined(Arc<Mutex<HashSet<VnetId>>>);

impl Joined {
    fn contains(&self, network: &VnetId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(network)
    }

    fn insert(&self, network: VnetId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(network);
    }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    Publish,
    Unpublish,
}

/// What is to be passed on; all of it checked.
#[derive(Debug)]
pub(super) struct Order {
    passing: Passing,
    network: VnetId,
    target: PublishTarget,
    body: Bytes,
    /// NMAgent may have forgotten that it joined the network of such an NC.
    is_azr: bool,
}

/// How the chain of calls ended.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// HTTP status of the last answer; 0 if there was none.
    pub(super) status: u32,
    /// Its body.
    pub(super) body: Bytes,
    /// Why there was none; empty if there was.
    pub(super) error: String,
    /// Which call failed.
    pub(super) failed: HostCall,
}

/// The body that says which kind an NC is that is unpublished.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AzrBody {
    #[serde(rename = "azID")]
    _az: u64,
    #[serde(rename = "azrEnabled")]
    _enabled: bool,
}

impl Order {
    /// The order of the checks is that of the reference: URL, body, network.
    pub(super) fn new(passing: Passing, network: &str, url: &str, body: Bytes) -> Result<Self, InvalidField> {
        let (url_field, body_field) = match passing {
            Passing::Publish => ("create_network_container_url", "create_network_container_request_body"),
            Passing::Unpublish => ("delete_network_container_url", "delete_network_container_request_body"),
        };
        let target =
            PublishTarget::from_url(url).map_err(|error| InvalidField::new(url_field, error.to_string()))?;
        let is_azr = passing == Passing::Unpublish && body != b"\"\"\n"[..];
        if is_azr {
            gojson::decode::<AzrBody>(&body)
                .map_err(|error| InvalidField::new(body_field, error.to_string()))?;
        }
        let network = network.parse().map_err(|error| InvalidField::new("network_id", format!("{error}")))?;
        Ok(Self { passing, network, target, body, is_azr })
    }
}

/// Joins the network where that is needed, then passes the order on.
pub(super) async fn pass(agents: &Agents, joined: &Joined, order: Order) -> Passed {
    let Order { passing, network, target, body, is_azr } = order;
    if passing == Passing::Publish || is_azr || !joined.contains(&network) {
        let answer = agents.wireserver.within(JOIN_WITHIN).join_network(&network).await;
        match told(HostCall::JoinNetwork, answer) {
            passed if passed.failed != HostCall::Unspecified => return passed,
            _ => joined.insert(network),
        }
    }
    let wireserver = agents.wireserver.within(PUBLISH_WITHIN);
    match passing {
        Passing::Publish => told(HostCall::Publish, wireserver.publish(&target, body).await),
        Passing::Unpublish => told(HostCall::Unpublish, wireserver.unpublish(&target, body).await),
    }
}

fn told(call: HostCall, answer: Result<Proxied, ProxyError>) -> Passed {
    match answer {
        Ok(answer) => Passed {
            status: answer.status.into(),
            failed: if answer.is_ok() { HostCall::Unspecified } else { call },
            body: answer.body,
            error: String::new(),
        },
        Err(error) => Passed { error: error.to_string(), failed: call, ..Passed::default() },
    }
}

impl Context {
    /// Checks and passes on; `rpc` is for the caller of a mode without agents.
    pub(super) async fn pass_to_host(
        &self,
        rpc: &str,
        passing: Passing,
        network: &str,
        url: &str,
        body: Bytes,
    ) -> Result<Passed, Status> {
        let order = Order::new(passing, network, url, body)?;
        let agents = self.agents(rpc)?;
        Ok(pass(agents, &self.joined, order).await)
    }
}

#[cfg(test)]
mod tests {
    use cns_fake_agents::{Agent, FakeAgents, Fault};

    use super::*;

    const VNET: &str = "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21";
    const AZR: &[u8] = br#"{"azID":1,"azrEnabled":true}"#;
    const NO_AZR: &[u8] = b"\"\"\n";

    fn url(nc: &str, token: &str) -> String {
        format!(
            "http://elsewhere/?comp=nmagent&type=NetworkManagement/interfaces/10.0.0.4/networkContainers/{nc}/authenticationToken/{token}/api-version/1"
        )
    }

    fn order(passing: Passing, body: &'static [u8]) -> Order {
        let url = url("5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11", "tok");
        Order::new(passing, VNET, &url, Bytes::from_static(body)).unwrap()
    }

    struct Node {
        fake: FakeAgents,
        agents: Agents,
        joined: Joined,
    }

    impl Node {
        async fn new() -> Self {
            let fake = FakeAgents::start().await.unwrap();
            let url = |agent| fake.url(agent).parse().unwrap();
            let agents = Agents::new(&url(Agent::Wireserver), &url(Agent::Imds)).unwrap();
            Self { fake, agents, joined: Joined::default() }
        }

        /// Passes it on; also what the host was asked: `join`, `publish`, `unpublish`.
        async fn pass(&self, passing: Passing, body: &'static [u8]) -> (Passed, Vec<&'static str>) {
            self.fake.take_requests();
            let passed = pass(&self.agents, &self.joined, order(passing, body)).await;
            let asked = self.fake.take_requests();
            let kind = |target: &str| {
                if target.contains("joinedVirtualNetworks") {
                    "join"
                } else if target.ends_with("DELETE") {
                    "unpublish"
                } else {
                    "publish"
                }
            };
            (passed, asked.iter().map(|request| kind(&request.target)).collect())
        }
    }

    #[tokio::test]
    async fn b1_publish_joins_first_and_passes_the_body_on() {
        let node = Node::new().await;
        let (passed, asked) = node.pass(Passing::Publish, br#"{"version":"0"}"#).await;
        assert_eq!(
            (passed.status, passed.failed, asked),
            (200, HostCall::Unspecified, vec!["join", "publish"])
        );
        assert!(node.joined.contains(&VNET.parse().unwrap()));
        // Always joins, joined or not.
        assert_eq!(node.pass(Passing::Publish, b"").await.1, ["join", "publish"]);
    }

    #[tokio::test]
    async fn b2_b3_nothing_is_published_to_a_network_that_could_not_be_joined() {
        let node = Node::new().await;
        for (fault, status) in [(Fault::Status(500), 500), (Fault::Drop, 0)] {
            node.fake.heal();
            node.fake.fail("joinedVirtualNetworks", fault);
            let (passed, asked) = node.pass(Passing::Publish, b"{}").await;
            assert_eq!((passed.status, passed.failed), (status, HostCall::JoinNetwork));
            assert_eq!(passed.error.is_empty(), status != 0, "{passed:?}");
            assert!(!asked.contains(&"publish"), "{asked:?}");
            assert!(!node.joined.contains(&VNET.parse().unwrap()));
        }
    }

    #[tokio::test]
    async fn b4_a_publish_that_is_refused_leaves_the_network_joined() {
        let node = Node::new().await;
        node.fake.fail("networkContainers", Fault::Status(401));
        let (passed, _) = node.pass(Passing::Publish, b"{}").await;
        assert_eq!((passed.status, passed.failed), (401, HostCall::Publish));
        assert!(node.joined.contains(&VNET.parse().unwrap()));
    }

    #[tokio::test]
    async fn b6_b7_b8_an_unpublish_joins_where_the_host_may_have_forgotten() {
        let node = Node::new().await;
        assert_eq!(
            node.pass(Passing::Unpublish, NO_AZR).await.1,
            ["join", "unpublish"],
            "B7: after a restart"
        );
        assert_eq!(node.pass(Passing::Unpublish, NO_AZR).await.1, ["unpublish"], "B6: joined");
        for body in [AZR, b"{}", b"null"] {
            assert_eq!(node.pass(Passing::Unpublish, body).await.1, ["join", "unpublish"], "B8");
        }
        node.fake.fail("method/DELETE", Fault::Drop);
        let (passed, _) = node.pass(Passing::Unpublish, NO_AZR).await;
        assert_eq!((passed.status, passed.failed), (0, HostCall::Unpublish), "B10");
        assert!(!passed.error.is_empty());
    }

    /// spec/security.md §3: nothing of what a caller sends reaches the host's URL as it is.
    #[test]
    fn b5_b9_what_could_change_the_call_is_refused_and_named() {
        let nc = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";
        let refused = |passing, network: &str, url: &str, body: &'static [u8]| {
            Order::new(passing, network, url, Bytes::from_static(body)).unwrap_err().to_string()
        };
        let good = url(nc, "tok");
        for bad in [
            "",
            "x",
            "http://h/?type=x",
            &good[..90],
            &url("x", "tok"),
            &url(nc, &"t".repeat(37)),
            &url(nc, "t%26comp=x"),
        ] {
            let error = refused(Passing::Publish, VNET, bad, b"");
            assert!(error.contains("create_network_container_url"), "{bad}: {error}");
        }
        for network in ["", "n1", "x&comp=other", "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21#"] {
            let error = refused(Passing::Publish, network, &good, b"");
            assert!(error.contains("network_id"), "{network}: {error}");
        }
        for body in [&b""[..], b"\"\"", b"[]", b"{\"azID\":-1}", b"x"] {
            let error = refused(Passing::Unpublish, VNET, &good, body);
            assert!(error.contains("delete_network_container_request_body"), "B9: {body:?}: {error}");
        }
        // DNC's forms of the URL.
        for good in [
            url(nc, "tok"),
            url(nc, "tok").replace("type=", "x=1&type="),
            format!("{}/method/DELETE", url(nc, "tok")),
        ] {
            assert!(
                Order::new(Passing::Unpublish, VNET, &good, Bytes::from_static(NO_AZR)).is_ok(),
                "{good}"
            );
        }
    }
}
