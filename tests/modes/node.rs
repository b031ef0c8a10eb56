//! A node: the daemon, its agents, and its REST and probe listeners.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::net::UnixDatagram,
    path::PathBuf,
    thread::JoinHandle,
};

use cns::proto::v1 as pb;
use cns_fake_agents::{Agent, FakeAgents};
use serde_json::{Value, json};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    cns_under_test::{Cns, free_port, until},
    http,
};

pub(crate) const NC1: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";
pub(crate) const NODE_SUBNET: &str = "55022629-3854-499b-7133-5e6887959f4ea";

pub(crate) struct Node {
    pub(crate) cns: Cns,
    pub(crate) agents: FakeAgents,
    rest: SocketAddr,
    probes: SocketAddr,
}

/// systemd, as far as a service talks to it.
pub(crate) struct Systemd {
    path: PathBuf,
    listening: JoinHandle<String>,
}

impl Systemd {
    /// Of this daemon, from its next start on.
    pub(crate) fn of(cns: &mut Cns) -> Self {
        let path = cns.directory().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        cns.tell_systemd(&path);
        let listening = std::thread::spawn(move || {
            let (mut all, mut buffer) = (String::new(), [0; 4096]);
            while let Ok(length @ 1..) = socket.recv(&mut buffer) {
                all += &String::from_utf8_lossy(&buffer[..length]);
                all.push('\n');
            }
            all
        });
        Self { path, listening }
    }

    /// All that it was told. The daemon has ended.
    pub(crate) fn told(self) -> String {
        // Nothing is what a service never says.
        UnixDatagram::unbound().unwrap().send_to(&[], self.path).unwrap();
        self.listening.join().unwrap()
    }
}

/// The id of the n-th NC.
pub(crate) fn nc_id(n: usize) -> String {
    format!("5a2f0c1e-7b7d-4b38-9b1f-{n:012x}")
}

/// A definition as DNC sends it, of pod `web-<n>`.
pub(crate) fn nc(n: usize, version: &str) -> Value {
    json!({
        "NetworkContainerid": nc_id(n), "Version": version, "NetworkContainerType": "Docker",
        "OrchestratorContext": {"podName": format!("web-{n}"), "podNamespace": "default"},
        "IPConfiguration": {"IPSubnet": {"IPAddress": format!("10.7.{}.{}", n / 250, n % 250 + 2), "PrefixLength": 16},
            "GatewayIPAddress": "10.7.0.1"},
    })
}

impl Node {
    /// Not started yet. `config` is the file, to which the agents' places are added.
    pub(crate) async fn prepared(mut config: Value) -> Self {
        let agents = FakeAgents::start().await.unwrap();
        config["WireserverIP"] = json!(agents.address(Agent::Wireserver).to_string());
        config["Node"] = json!({ "IMDSURL": agents.url(Agent::Imds) });
        if config["ChannelMode"] == "Managed" {
            config["ManagedSettings"] = json!({"PrivateEndpoint": agents.url(Agent::Dnc),
                "InfrastructureNetworkID": "vnet", "NodeID": "node-1", "NodeSyncIntervalInSeconds": 1});
        }
        let [rest, probes] = [(); 2].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let mut cns = Cns::prepared(&[]);
        let path = cns.directory().join("cns_config.json");
        fs::write(&path, config.to_string()).unwrap();
        let (url, probe) = (format!("tcp://{rest}"), probes.to_string());
        cns.set_args(&[
            "--config-path",
            path.to_str().unwrap(),
            "-c",
            &url,
            "--metrics-bind-address",
            &probe,
        ]);
        Self { cns, agents, rest, probes }
    }

    /// Changes the configuration file for the next start.
    pub(crate) fn change_config(&self, change: impl FnOnce(&mut Value)) {
        let path = self.cns.directory().join("cns_config.json");
        let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(&path, config.to_string()).unwrap();
    }

    pub(crate) async fn managed() -> Self {
        Self::prepared(json!({"ChannelMode": "Managed"})).await
    }

    pub(crate) async fn azure_host() -> Self {
        Self::prepared(json!({"ChannelMode": "AzureHost", "ManageEndpointState": true})).await
    }

    pub(crate) async fn launch(&mut self) {
        self.cns.launch().await;
        for listener in [self.rest, self.probes] {
            until("a listener", || async { tokio::net::TcpStream::connect(listener).await.is_ok() }).await;
        }
    }

    pub(crate) async fn launch_and_wait(&mut self) {
        self.launch().await;
        until("the node is ready", || async { self.readiness().await.0 == 200 }).await;
    }

    /// Waits until it waits for what begins so, as everybody who asks is told.
    pub(crate) async fn taken_back(&self, what: &str) {
        let words = format!("waiting for {what}");
        until("readiness is taken back", || async {
            let (status, why) = self.readiness().await;
            status == 503 && why.starts_with(&words)
        })
        .await;
        until("health follows", || async { !self.whole_is_serving().await }).await;
        let info = self.cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
        assert!(info.serving && info.waiting_for.starts_with(what), "{}", info.waiting_for);
    }

    /// What gRPC health says of the whole.
    pub(crate) async fn whole_is_serving(&self) -> bool {
        let mut health = HealthClient::new(self.cns.channel().await);
        let whole = health.check(HealthCheckRequest { service: String::new() }).await.unwrap().into_inner();
        whole.status() == ServingStatus::Serving
    }

    /// What `/readyz` says.
    pub(crate) async fn readiness(&self) -> (u16, String) {
        let answer =
            http::exchange(self.probes, &http::request("GET", "/readyz", &[], None), "GET").await.unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    }

    async fn metrics(&self) -> String {
        let answer =
            http::exchange(self.probes, &http::request("GET", "/metrics", &[], None), "GET").await.unwrap();
        String::from_utf8(answer.body).unwrap()
    }

    pub(crate) async fn metric(&self, line: &str) -> bool {
        self.metrics().await.lines().any(|found| found == line)
    }

    /// Whether the counter of that name and labels is more than zero.
    pub(crate) async fn counted(&self, counter: &str) -> bool {
        let metrics = self.metrics().await;
        let count = metrics.lines().find_map(|line| line.strip_prefix(counter)?.strip_prefix(' '));
        count.is_some_and(|count| count != "0")
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let request = http::request("POST", path, &[], Some(body.to_string().as_bytes()));
        let answer = http::exchange(self.rest, &request, "POST").await.unwrap();
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The legacy request for addresses, of container `c`.
    pub(crate) async fn request(&self, container: &str) -> Value {
        let body = json!({"infraContainerID": container, "podInterfaceID": container, "ifname": "eth0",
            "orchestratorContext": {"podName": container, "podNamespace": "default"}});
        self.post("/network/requestipconfigs", &body).await
    }

    /// The address that a container gets; why it gets none.
    pub(crate) async fn address(&self, container: &str) -> Result<String, tonic::Status> {
        let request = pb::RequestIpConfigsRequest {
            infra_container_id: container.into(),
            pod_interface_id: container.into(),
            ifname: "eth0".into(),
            ..Default::default()
        };
        let granted = self.cns.ipam().await.request_ip_configs(request).await?.into_inner();
        Ok(granted.pod_ip_infos[0].pod_ip_config.clone().unwrap().ip_address)
    }

    pub(crate) async fn release(&self, container: &str) {
        let request = pb::ReleaseIpConfigsRequest {
            infra_container_id: container.into(),
            pod_interface_id: container.into(),
            ..Default::default()
        };
        self.cns.ipam().await.release_ip_configs(request).await.unwrap();
    }

    /// Id and status of all network containers.
    pub(crate) async fn ncs(&self) -> Vec<pb::NetworkContainerStatus> {
        let request = pb::ListNetworkContainersRequest { page_size: 1000, ..Default::default() };
        let listed = self.cns.ncs().await.list_network_containers(request).await.unwrap().into_inner();
        listed.entries.into_iter().filter_map(|entry| entry.status).collect()
    }

    pub(crate) async fn nc_ids(&self) -> Vec<String> {
        self.ncs().await.into_iter().map(|nc| nc.id).collect()
    }

    pub(crate) async fn addresses(&self, state: pb::IpState) -> Vec<String> {
        let request = pb::ListIpConfigsRequest { states: vec![state.into()], ..Default::default() };
        let listed = self.cns.ipam().await.list_ip_configs(request).await.unwrap().into_inner();
        listed.ip_configs.into_iter().map(|ip| ip.ip_address).collect()
    }

    /// Kinds of what `cnsctl doctor` finds.
    pub(crate) async fn findings(&self) -> Vec<String> {
        let report = self.cns.debug().await.diagnose(pb::DiagnoseRequest {}).await.unwrap().into_inner();
        report.findings.into_iter().map(|finding| finding.kind).collect()
    }

    /// Waits until DNC, or whoever answers to `target`, was asked `times` more.
    pub(crate) async fn asked(&self, target: &str, times: usize) {
        self.agents.take_requests();
        let mut seen = 0;
        until("the agent is asked", || {
            seen +=
                self.agents.take_requests().iter().filter(|request| request.target.contains(target)).count();
            async move { seen >= times }
        })
        .await;
    }
}
