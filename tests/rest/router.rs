//! Made-up requests to the whole router: any path, any method, bodies of any bytes, of any JSON, and of valid requests with
//! something wrong in them. Whatever comes is answered well-formed, a refusal changes nothing, and the daemon lives on.
//!
//! The same requests every time; `CNS_ROUTER_REQUESTS=N` makes more of them, `CNS_ROUTER_SEED=N` makes others.

use std::net::SocketAddr;

use cns::proto::v1 as pb;
use proptest::{
    prelude::Rng as _,
    test_runner::{RngAlgorithm, TestRng},
};
use serde_json::{Value, json};

use super::{
    ROUTES,
    cns_under_test::Cns,
    http::{self, Answer},
    json::Json,
    replay,
};

/// To each daemon.
const REQUESTS: u64 = 1_200;
/// Between two looks at the invariants.
const CHECK_EVERY: u64 = 200;

const NCS: &[&str] = &[
    // The static one of a Standalone daemon.
    "57a71c00-0000-4000-8000-000000000000",
    "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11",
    "Swift_9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21",
    "not-an-id",
];
const CONTAINERS: &[&str] = &["1f2e3d4c5b6a7988", "2222222222222222", "cafe000011112222"];
const PODS: &[&str] = &["web-0", "web-1", ""];
const ADDRESSES: &[&str] = &["10.244.0.2", "10.244.0.9", "10.7.0.9", "fd00:10:244::2", "192.0.2.1", "none"];
const METHODS: &[&str] =
    &["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "get", "CONNECT"];
/// Asked for more often than others: they change most.
const CHANGING: &[&str] = &[
    "/network/createorupdatenetworkcontainer",
    "/network/networkcontainers",
    "/network/requestipconfigs",
    "/network/requestipconfig",
    "/network/releaseipconfigs",
    "/network/endpoints/",
];
const CONTENT_TYPES: &[&str] =
    &["application/json", "application/x-www-form-urlencoded", "text/plain", ";;;"];
/// Texts in a body that stand for what no JSON library writes: the text, quoted, is replaced.
const MARKS: &[(&str, &str)] = &[
    ("@huge@", "1e400"),
    ("@long@", "123456789012345678901234567890"),
    ("@negative@", "-1"),
    ("@fraction@", "0.5"),
    ("@lone@", r#""a\ud83db""#),
    ("@pair@", r#""\ud83d\ude00<&>\u2028""#),
    ("@zero@", r#""\u0000""#),
];

/// Where chance comes from.
struct Dice(TestRng);

impl Dice {
    fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.next_u64() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }

    /// True once in `n` times.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most)];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Any JSON.
    fn json(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 8 }) {
            0 => Value::Null,
            1 => json!(self.once_in(2)),
            2 => json!(self.0.next_u64() >> self.below(64)),
            3 => json!(self.one(&[NCS, CONTAINERS, PODS, ADDRESSES].concat())),
            4 => json!(MARKS[self.below(MARKS.len())].0),
            5 => json!(String::from_utf8_lossy(&self.bytes(40))),
            6 => (0..self.below(4)).map(|_| self.json(depth - 1)).collect(),
            _ => Value::Object((0..self.below(4)).map(|_| (self.key(), self.json(depth - 1))).collect()),
        }
    }

    /// A name that some request has, or none.
    fn key(&mut self) -> String {
        let names = [
            "OrchestratorContext",
            "orchestratorContext",
            "NetworkContainerid",
            "NetworkContainerID",
            "NetworkName",
            "IPConfiguration",
            "infraContainerID",
            "desiredIPAddresses",
            "CreateNetworkContainerRequests",
            "eth0",
            "",
            "x",
        ];
        self.one(&names).to_owned()
    }

    fn context(&mut self) -> Value {
        json!({"podName": self.one(PODS), "podNamespace": self.one(&["default", ""])})
    }

    fn nc(&mut self) -> Value {
        let types =
            ["AzureContainerInstance", "Docker", "Docker", "Docker", "Kubernetes", "WebApps", "Unknown"];
        let configuration = json!({
            "IPSubnet": {"IPAddress": "10.7.0.9", "PrefixLength": 24 + self.below(10)},
            "DNSServers": ["168.63.129.16"], "GatewayIPAddress": self.one(&["10.7.0.1", "10.7.0.1", "", "x"]),
        });
        let mut secondary = serde_json::Map::new();
        for _ in 0..self.below(3) {
            let id = format!("00000000-0000-4000-8000-00000000000{}", self.below(4));
            let address = format!("10.7.0.{}", self.below(6));
            secondary.insert(id, json!({"IPAddress": address, "NCVersion": self.below(3)}));
        }
        json!({
            "Version": self.below(4).to_string(), "NetworkContainerType": self.one(&types),
            "NetworkContainerid": self.one(NCS), "PrimaryInterfaceIdentifier": self.one(&["10.0.0.4", "", "10.0.0.0/24"]),
            "OrchestratorContext": self.context(), "IPConfiguration": configuration, "SecondaryIPConfigs": secondary,
            "MultiTenancyInfo": {"EncapType": "Vlan", "ID": self.below(5000)},
            "CnetAddressSpace": [{"IPAddress": "10.7.0.0", "PrefixLength": 16}],
            "Routes": [{"IPAddress": "10.8.0.0/16", "GatewayIPAddress": "10.7.0.1", "InterfaceToUse": ""}],
            "AllowNCToHostCommunication": self.once_in(2),
            "EndpointPolicies": [{"Type": "ACLPolicy", "EndpointType": "APIPA", "Settings": self.json(2)}],
            "NetworkInterfaceInfo": {"NICType": self.one(&["", "InfraNIC", "FrontendNIC"]), "MACAddress": self.one(&["", "aa:bb:cc:00:11:22"])},
        })
    }

    /// A request that the route could do something with.
    fn valid(&mut self, route: &str) -> Value {
        match route {
            "/network/environment" => {
                json!({"Location": "Azure", "NetworkType": self.one(&["Underlay", "Overlay", ""])})
            }
            "/network/create" | "/network/delete" => json!({
                "NetworkName": "azurenet", "Options": null,
                "OverlayConfiguration": {"NodeCount": 1, "LocalNodeIP": "", "OverlaySubent": {"IPAddress": "", "PrefixLength": 0}, "NodeConfig": null},
            }),
            "/network/hns/create" | "/network/hns/delete" => {
                json!({"NetworkName": "l2b", "Subnets": [{"AddressPrefix": "10.0.0.0/8"}], "DNSServerCompartment": 1})
            }
            "/network/setorchestratortype" => json!({
                "OrchestratorType": self.one(&["Kubernetes", "Batch", "KubernetesCRD", "KubernetesCRD", "None"]),
                "DncPartitionKey": self.one(PODS), "NodeID": self.one(&["node-1", "node-2", ""]),
            }),
            "/network/createorupdatenetworkcontainer" => self.nc(),
            "/network/networkcontainers" => {
                json!({"CreateNetworkContainerRequests": [self.nc(), self.nc()]})
            }
            "/network/deletenetworkcontainer" => json!({"NetworkContainerid": self.one(&NCS[1..])}),
            "/network/getnetworkcontainerbyorchestratorcontext" | "/network/getAllNetworkContainers" => {
                json!({"NetworkContainerid": "", "OrchestratorContext": self.context()})
            }
            "/network/getinterfaceforcontainer"
            | "/network/createhostncapipaendpoint"
            | "/network/deletehostncapipaendpoint" => json!({"NetworkContainerID": self.one(NCS)}),
            "/network/attachcontainertonetwork" | "/network/detachcontainerfromnetwork" => {
                json!({"Containerid": self.one(CONTAINERS), "NetworkContainerid": self.one(NCS)})
            }
            "/network/publishnetworkcontainer" | "/network/unpublishnetworkcontainer" => json!({
                "NetworkID": "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21", "NetworkContainerID": self.one(NCS),
                "CreateNetworkContainerURL": "http://h/?type=NetworkManagement/interfaces/10.0.0.4/networkContainers/n/authenticationToken/t/api-version/1",
                "DeleteNetworkContainerURL": "http://h/?type=NetworkManagement/interfaces/10.0.0.4/networkContainers/n/authenticationToken/t/api-version/1/method/DELETE",
                "CreateNetworkContainerRequestBody": "e30=", "DeleteNetworkContainerRequestBody": self.one(&["e30=", "IiIK"]),
            }),
            "/network/requestipconfigs" | "/network/releaseipconfigs" => {
                let desired: Vec<_> = (0..self.below(6)).skip(3).map(|_| self.one(ADDRESSES)).collect();
                json!({
                    "desiredIPAddresses": desired, "podInterfaceID": self.one(&["1f2e3d4c-eth0", ""]),
                    "infraContainerID": self.one(CONTAINERS), "orchestratorContext": self.context(),
                    "ifname": self.one(&["eth0", ""]), "secondaryInterfacesExist": self.once_in(8),
                    "BackendInterfaceExist": self.once_in(8), "BacknendInterfaceMacAddress": null,
                })
            }
            "/network/requestipconfig" | "/network/releaseipconfig" => json!({
                "DesiredIPAddress": self.one(&["", "", "10.244.0.3"]), "PodInterfaceID": self.one(&["1f2e3d4c-eth0", ""]),
                "InfraContainerID": self.one(CONTAINERS), "OrchestratorContext": self.context(), "Ifname": "eth0",
            }),
            "/network/endpoints/" => {
                let net =
                    json!({"IP": self.one(ADDRESSES), "Mask": self.one(&["////AA==", "/////w==", "AA=="])});
                let ifname = self.one(&["eth0", "eth1", "é", ""]);
                json!({ifname: {"IPv4": [net], "NICType": self.one(&["InfraNIC", "BackendNIC", "x", ""]), "HostVethName": "azv1", "MacAddress": self.one(&["", "aa:bb:cc:00:11:22", "x"])}})
            }
            "/debug/ipaddresses" => json!({"IPConfigStateFilter": ["Assigned", "Available"]}),
            "/network/requestclaimresourceinfo" => json!({"claimUID": "b7c9"}),
            _ => json!({}),
        }
    }

    /// Changes something somewhere inside.
    fn mutate(&mut self, value: &mut Value) {
        let children = match value {
            Value::Array(items) => items.len(),
            Value::Object(members) => members.len(),
            _ => 0,
        };
        if children > 0 && !self.once_in(10) {
            let child = self.below(children);
            match value {
                Value::Array(items) if self.once_in(8) => drop(items.remove(child)),
                Value::Array(items) => self.mutate(&mut items[child]),
                Value::Object(members) => {
                    let name = members.keys().nth(child).unwrap().clone();
                    match self.below(8) {
                        0 => drop(members.remove(&name)),
                        1 => {
                            let moved = members.remove(&name).unwrap();
                            let name =
                                if self.once_in(2) { name.to_lowercase() } else { name.to_uppercase() };
                            members.insert(name, moved);
                        }
                        2 => drop(members.insert(name.to_uppercase(), self.json(1))),
                        _ => self.mutate(&mut members[&name]),
                    }
                }
                _ => {}
            }
            return;
        }
        *value = match self.below(6) {
            0 => Value::Null,
            1 => {
                let mut deep = json!(1);
                for _ in 0..self.below(100) {
                    deep = json!([deep]);
                }
                deep
            }
            2 => json!("0123456789".repeat(self.below(1000))),
            _ => self.json(2),
        };
    }

    fn body(&mut self, route: &str) -> Vec<u8> {
        let mut text = match self.below(12) {
            0 => return self.bytes(200),
            1 => self.json(4).to_string(),
            2..7 => self.valid(route).to_string(),
            _ => {
                let mut value = self.valid(route);
                for _ in 0..=self.below(3) {
                    self.mutate(&mut value);
                }
                value.to_string()
            }
        };
        for (mark, stands_for) in MARKS {
            text = text.replace(&format!("\"{mark}\""), stands_for);
        }
        let mut bytes = text.into_bytes();
        if self.once_in(12) {
            bytes.truncate(self.below(bytes.len()));
        }
        if self.once_in(12) && !bytes.is_empty() {
            let at = self.below(bytes.len());
            bytes[at] = self.bytes(2).first().copied().unwrap_or(b'"');
        }
        if self.once_in(100) {
            let depth = self.below(30_000);
            bytes = "[".repeat(depth).into_bytes();
        }
        bytes
    }

    fn path(&mut self, route: &str) -> String {
        let mut path = route.to_owned();
        if route.ends_with('/') {
            path.push_str(self.one(CONTAINERS));
        }
        if self.once_in(10) {
            path.insert_str(0, "/v0.2");
        }
        if self.once_in(8) {
            let at = self.below(path.len());
            match self.below(8) {
                0 => drop(path.remove(at)),
                1 => path.insert_str(
                    at,
                    self.one(&["/", "//", "/./", "/../", "..", "%2F", "%", "%00", "%c3%a9", "é"]),
                ),
                2 => path = path.to_uppercase(),
                3 => path.push('/'),
                4 => path.push_str(self.one(&["?", "?a=b", "#x", "?//", ";x"])),
                5 => {
                    let encoded = format!("%{:02x}", path.as_bytes()[at]);
                    path.replace_range(at..=at, &encoded);
                }
                6 => path.truncate(at),
                _ => {
                    let others = ["/", "*", "", "x", "http://x/hostcpucores", "/v0.1/hostcpucores", "x:1"];
                    return self.one(&others).to_owned();
                }
            }
        }
        path
    }

    /// The method and the bytes of a request.
    fn request(&mut self) -> (String, Vec<u8>) {
        let route = if self.once_in(2) { self.one(CHANGING) } else { self.one(ROUTES) };
        let useful: &[&str] = match route {
            "/network/endpoints/" => &["GET", "PATCH", "PATCH", "DELETE"],
            "/network/networkcontainers" => &["GET", "POST"],
            "/network/nicresources" | "/homeaz" | "/nclist" | "/metadata/vmuniqueid" | "/hostcpucores" => {
                &["GET"]
            }
            _ => &["POST"],
        };
        let method = if self.once_in(5) { self.one(METHODS) } else { self.one(useful) };
        let path = self.path(route);
        let mut headers = Vec::new();
        if self.once_in(2) {
            headers.push(("Content-Type".to_owned(), self.one(CONTENT_TYPES).to_owned()));
        }
        let body = (!self.once_in(12)).then(|| self.body(route));
        (method.to_owned(), http::request(method, &path, &headers, body.as_deref()))
    }
}

/// What a reply may be (spec/rest-contract.md §2): why this one is none of it.
fn malformed(answer: &Answer, method: &str) -> Option<String> {
    // The reference's one answer that is an error of the server: there is no metadata service here (§6.31).
    let is_known = answer.status == 500
        && (method == "HEAD" || String::from_utf8_lossy(&answer.body).contains("failed to get vmuniqueid"));
    if answer.status >= 500 && !is_known {
        return Some(format!("status {}", answer.status));
    }
    if method == "HEAD" || answer.body.is_empty() {
        return None;
    }
    let Ok(body) = std::str::from_utf8(&answer.body) else { return Some("the body is no UTF-8".into()) };
    let is_json = match answer.header("content-type") {
        Some("application/json; charset=UTF-8") => true,
        Some("text/plain; charset=utf-8") if answer.status >= 400 => false,
        other => return Some(format!("Content-Type {other:?} with status {}", answer.status)),
    };
    let json = if is_json {
        body
    } else {
        let Some((_, rest)) = body.split_once('\n') else { return Some("text without a line feed".into()) };
        if rest.is_empty() {
            return None;
        }
        rest
    };
    if json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return Some("JSON with characters that Go escapes".into());
    }
    match Json::parse_prefix(json) {
        Ok((_, "\n")) => None,
        Ok((_, rest)) => Some(format!("{rest:?} follows the JSON")),
        Err(error) => Some(error),
    }
}

/// Whether the answer says that nothing was done.
fn is_refusal(answer: &Answer) -> bool {
    if answer.status != 200 {
        return true;
    }
    let Ok(body) = serde_json::from_slice::<Value>(&answer.body) else { return false };
    let code = |response: &Value| response["ReturnCode"].as_u64();
    [&body, &body["Response"], &body["response"]].into_iter().find_map(code).is_some_and(|code| code != 0)
}

/// All that the daemon keeps, without what time or a mere question changes.
async fn state(cns: &Cns) -> pb::GetStateResponse {
    let mut debug = cns.debug().await;
    let mut state = debug.get_state(pb::GetStateRequest::default()).await.unwrap().into_inner();
    let node = state.node.as_mut().unwrap();
    (node.sequence, node.uptime_seconds) = (0, 0);
    // How the agents answer is no state of the node's.
    node.agents.clear();
    for ip in &mut state.ip_configs {
        ip.cooling_until = None;
    }
    state
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().expect(variable))
}

async fn ask_anything(cns: &Cns, server: SocketAddr, seed: u64) {
    let mut dice = Dice::new(seed);
    let (mut refusals, mut changes) = (0, 0);
    let mut before = state(cns).await;
    for i in 0..number("CNS_ROUTER_REQUESTS", REQUESTS) {
        let (method, bytes) = dice.request();
        let told = || format!("request {i} of seed {seed}:\n{}", String::from_utf8_lossy(&bytes));
        let answer = match http::exchange(server, &bytes, &method).await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer, {error}\n{}", told()),
        };
        if let Some(why) = malformed(&answer, &method) {
            panic!("{why}\n{}\n\n{answer}", told());
        }
        let after = state(cns).await;
        // What came before the failure stays (§6.12).
        let in_part =
            bytes.starts_with(b"POST") && String::from_utf8_lossy(&bytes).contains("networkcontainers");
        if is_refusal(&answer) && !(in_part && answer.status == 200) {
            refusals += 1;
            assert!(
                before == after,
                "a refusal changed the state from\n{before:#?}\nto\n{after:#?}\n{}\n\n{answer}",
                told()
            );
        }
        changes += u64::from(before != after);
        before = after;
        if i % CHECK_EVERY == 0 {
            cns.assert_sound().await;
        }
    }
    // Else the requests are no good.
    assert!(refusals > 100 && changes > 20, "{refusals} refusals, {changes} changes");
    println!("{refusals} refusals, {changes} changes");
    cns.assert_sound().await;
    assert!(!cns.log().contains("panicked"), "{}", cns.log());
}

/// The daemon's background work must not change what is compared.
const QUIET: &[&str] = &["--reconcile-interval", "1h"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_is_answered_and_refusals_change_nothing_standalone() {
    let args = [QUIET, &["--standalone-cidr", "10.244.0.0/28,fd00:10:244::/124"]].concat();
    let (cns, server) = replay::daemon_with(&args).await;
    ask_anything(&cns, server, number("CNS_ROUTER_SEED", 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anything_is_answered_and_refusals_change_nothing_direct() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("cns_config.json");
    let config = json!({
        "ChannelMode": "Direct", "ManageEndpointState": true, "WireserverIP": "127.0.0.1:1",
        "TelemetrySettings": {"DisableAll": true},
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let args = [QUIET, &["--config-path", path.to_str().unwrap()]].concat();
    let (cns, server) = replay::daemon_with(&args).await;
    ask_anything(&cns, server, number("CNS_ROUTER_SEED", 2)).await;
}
