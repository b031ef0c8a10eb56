//! A node: the daemon, a host namespace with an uplink, and the plugin, run as a container runtime runs it.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use cns::{nic::Attachment, proto::v1 as pb};
use serde_json::{Value, json};

use crate::{
    cns_under_test::{Cns, sibling},
    lab::{Lab, Space},
};

pub const NETWORK: &str = "pods";

/// What a run of the plugin said.
#[derive(Debug)]
pub struct Said {
    pub succeeded: bool,
    pub output: Value,
    pub stderr: String,
}

impl Said {
    /// The result of a run that must have succeeded.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.succeeded, "{self:#?}");
        self.output
    }

    /// Code and message of a run that must have failed.
    #[track_caller]
    pub fn error(self) -> (u64, String) {
        assert!(!self.succeeded, "{self:#?}");
        let code = self.output["code"].as_u64().unwrap_or_else(|| panic!("no code: {self:#?}"));
        let details = self.output["details"].as_str().unwrap_or_default();
        (code, format!("{} ({details})", self.output["msg"].as_str().unwrap_or_default()))
    }
}

pub struct Node {
    pub cns: Cns,
    pub lab: Lab,
    pub version: &'static str,
    socket: PathBuf,
}

impl Node {
    /// A node, or `None` where none can be made.
    pub async fn new(test: &str, cidrs: &str) -> Option<Self> {
        let lab = Lab::new(test).await?;
        let mut cns = Cns::prepared(&["--standalone-cidr", cidrs]).in_netns(lab.host.path());
        cns.launch().await;
        lab.host.set_sysctl("ipv4/conf/all/forwarding", "1");
        Some(Self { socket: cns.socket(), cns, lab, version: "1.1.0" })
    }

    /// Lets the plugin find the daemon at another socket.
    pub fn behind(&mut self, socket: PathBuf) {
        self.socket = socket;
    }

    pub fn intents(&self) -> PathBuf {
        self.lab.directory().join("intents")
    }

    pub fn netconf(&self) -> Value {
        json!({
            "cniVersion": self.version,
            "name": NETWORK,
            "type": "cns-cni",
            "socket": self.socket,
            "intentDir": self.intents(),
            "asyncDeleteDir": self.cns.async_delete_dir(),
        })
    }

    /// Starts the plugin in the host's namespace.
    pub fn start(&self, variables: &[(&str, &str)], input: &[u8]) -> Child {
        let mut command = Command::new(sibling("cns-cni"));
        command
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.lab.host.netns.run(|| command.spawn().unwrap()).unwrap();
        // A plugin that refuses early does not read.
        let _ = child.stdin.take().unwrap().write_all(input);
        child
    }

    /// Waits for a run to end.
    pub async fn wait(child: Child) -> Said {
        let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        Said {
            succeeded: output.status.success(),
            output: if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect(&text) },
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub async fn run(&self, variables: &[(&str, &str)], netconf: &Value) -> Said {
        Self::wait(self.start(variables, netconf.to_string().as_bytes())).await
    }

    /// Starts `command` for a container's `eth0`.
    pub fn start_for(&self, command: &str, container: &str, netns: Option<&Path>, netconf: &Value) -> Child {
        let netns = netns.map(|path| path.display().to_string()).unwrap_or_default();
        let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=web;K8S_POD_NAME={container}");
        let variables = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", netns.as_str()),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", arguments.as_str()),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        self.start(&variables, netconf.to_string().as_bytes())
    }

    pub async fn run_for(
        &self,
        command: &str,
        container: &str,
        netns: Option<&Path>,
        netconf: &Value,
    ) -> Said {
        Self::wait(self.start_for(command, container, netns, netconf)).await
    }

    pub async fn add(&self, container: &str, pod: &Space) -> Said {
        self.run_for("ADD", container, Some(pod.path()), &self.netconf()).await
    }

    pub async fn del(&self, container: &str, pod: Option<&Space>) -> Said {
        self.run_for("DEL", container, pod.map(Space::path), &self.netconf()).await
    }

    pub async fn check(&self, container: &str, pod: &Space, result: &Value) -> Said {
        let mut netconf = self.netconf();
        netconf["prevResult"] = result.clone();
        self.run_for("CHECK", container, Some(pod.path()), &netconf).await
    }

    /// GC that keeps these containers' `eth0`.
    pub async fn gc(&self, keep: &[&str]) -> Said {
        let mut netconf = self.netconf();
        let valid = keep.iter().map(|container| json!({"containerID": container, "ifname": "eth0"}));
        netconf["cni.dev/valid-attachments"] = valid.collect();
        self.run(&[("CNI_COMMAND", "GC"), ("CNI_PATH", "/opt/cni/bin")], &netconf).await
    }

    /// Host veths of ours.
    pub async fn veths(&self) -> Vec<String> {
        let mut names = self.lab.host.link_names().await;
        names.retain(|name| name.starts_with("azv"));
        names.sort();
        names
    }

    pub fn veth_of(container: &str) -> String {
        Attachment::new(NETWORK, container.parse().unwrap(), "eth0".parse().unwrap()).unwrap().host_veth()
    }

    /// Who has which address, by the daemon.
    pub async fn assigned(&self) -> BTreeMap<String, String> {
        let request =
            pb::ListIpConfigsRequest { states: vec![pb::IpState::Assigned.into()], ..Default::default() };
        let answer = self.cns.ipam().await.list_ip_configs(request).await.unwrap().into_inner();
        let of = |ip: pb::IpConfig| (ip.ip_address, ip.owner.unwrap_or_default().infra_container_id);
        answer.ip_configs.into_iter().map(of).collect()
    }

    pub async fn endpoints(&self) -> Vec<pb::Endpoint> {
        let answer = self.cns.endpoints().await.list_endpoints(pb::ListEndpointsRequest::default()).await;
        answer.unwrap().into_inner().endpoints
    }

    pub fn intent_files(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(self.intents()) else { return 0 };
        // What begins with a dot is the plugin's own: locks, which stay.
        entries
            .filter(|entry| !entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'))
            .count()
    }

    /// Nothing of any container is left anywhere.
    pub async fn assert_clean(&self, when: &str) {
        assert_eq!(self.veths().await, [""; 0], "veths {when}");
        assert_eq!(self.assigned().await, BTreeMap::new(), "addresses {when}");
        assert_eq!(self.endpoints().await, [], "endpoints {when}");
        assert_eq!(self.intent_files(), 0, "intent records {when}");
        self.cns.assert_sound().await;
    }
}
