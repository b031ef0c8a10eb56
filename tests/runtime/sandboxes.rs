//! Sandboxes through CRI: they get addresses, reach each other and the host, and leave nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use cns::{model::Family, proto::v1 as pb};
use futures_util::{StreamExt as _, stream};

use crate::{
    cns_under_test::{Cns, sibling, until},
    containerd::{Containerd, LOOPBACK},
    cri::{Metadata, PodSandboxConfig},
    lab::{HOST_V4, HOST_V6, Lab},
    need,
};

const SANDBOXES: usize = 24;
const AT_ONCE: usize = 6;

struct Cluster {
    containerd: Containerd,
    cns: Cns,
    lab: Lab,
}

/// A sandbox that runs.
#[derive(Clone, Debug)]
struct Sandbox {
    id: String,
    pod: String,
    addresses: Vec<String>,
}

impl Cluster {
    async fn new(test: &str) -> Option<Self> {
        let lab = Lab::new(test).await?;
        for program in ["containerd", "ctr", "runc", "/bin/busybox", "tar", "sha256sum", LOOPBACK] {
            if !need::need_program(test, program) {
                return None;
            }
        }
        lab.host.set_sysctl("ipv4/conf/all/forwarding", "1");
        let mut cns =
            Cns::prepared(&["--standalone-cidr", "10.241.0.0/24,fd00:241::/120"]).in_netns(lab.host.path());
        cns.launch().await;
        let containerd = Containerd::start(&lab.directory().join("containerd"), &lab.host).await;
        let cluster = Self { containerd, cns, lab };
        assert!(!cluster.containerd.is_network_ready().await, "no plugin is installed yet");
        cluster.install_plugin();
        until("the runtime finds the plugin", async || cluster.containerd.is_network_ready().await).await;
        Some(cluster)
    }

    /// As an operator does it.
    fn install_plugin(&self) {
        let output = Command::new(sibling("cnsctl"))
            .arg("--socket")
            .arg(self.cns.socket())
            .args(["cni", "install", "--bin-dir"])
            .arg(self.containerd.bin_dir())
            .arg("--conf-dir")
            .arg(self.containerd.conf_dir())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Only so that two tests at a time do not meet: everything else is as it was installed.
        let path = self.containerd.conf_dir().join("10-cns.conflist");
        let mut list: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        list["plugins"][0]["asyncDeleteDir"] = self.cns.async_delete_dir().to_str().into();
        list["plugins"][0]["intentDir"] = self.intents().to_str().into();
        let written = path.with_extension("new");
        fs::write(&written, list.to_string()).unwrap();
        fs::rename(written, path).unwrap();
    }

    fn intents(&self) -> std::path::PathBuf {
        self.lab.directory().join("intents")
    }

    async fn run_sandbox(&self, pod: String) -> Sandbox {
        let config = PodSandboxConfig {
            metadata: Some(Metadata {
                name: pod.clone(),
                uid: format!("uid-of-{pod}"),
                namespace: "test".into(),
                attempt: 0,
            }),
            hostname: pod.clone(),
            ..Default::default()
        };
        let id =
            self.containerd.cri.run_sandbox(config).await.unwrap_or_else(|error| panic!("{pod}: {error}"));
        let addresses = self.containerd.cri.addresses(&id).await.unwrap();
        Sandbox { id, pod, addresses }
    }

    async fn run_sandboxes(&self, prefix: &str, count: usize) -> Vec<Sandbox> {
        let all = stream::iter(0..count).map(|i| self.run_sandbox(format!("{prefix}-{i}")));
        all.buffer_unordered(AT_ONCE).collect().await
    }

    async fn remove(&self, sandboxes: &[Sandbox]) {
        stream::iter(sandboxes)
            .for_each_concurrent(AT_ONCE, async |sandbox| {
                self.containerd.cri.stop_sandbox(&sandbox.id).await.unwrap();
                self.containerd.cri.remove_sandbox(&sandbox.id).await.unwrap();
            })
            .await;
    }

    /// Who has which address, by the daemon.
    async fn assigned(&self) -> BTreeMap<String, String> {
        let request =
            pb::ListIpConfigsRequest { states: vec![pb::IpState::Assigned.into()], ..Default::default() };
        let answer = self.cns.ipam().await.list_ip_configs(request).await.unwrap().into_inner();
        let of = |ip: pb::IpConfig| (ip.ip_address, ip.owner.unwrap_or_default().infra_container_id);
        answer.ip_configs.into_iter().map(of).collect()
    }

    async fn veths(&self) -> Vec<String> {
        let mut names = self.lab.host.link_names().await;
        names.retain(|name| name.starts_with("azv"));
        names
    }

    async fn assert_clean(&self) {
        assert_eq!(self.assigned().await, BTreeMap::new());
        assert_eq!(self.veths().await, [""; 0]);
        let endpoints = self.cns.endpoints().await.list_endpoints(pb::ListEndpointsRequest::default()).await;
        assert_eq!(endpoints.unwrap().into_inner().endpoints, []);
        let intents = fs::read_dir(self.intents()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = intents.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
        assert!(left.is_empty(), "{left:?}");
        self.cns.assert_sound().await;
    }

    fn ping_from_host(&self, address: &str) {
        let output = self
            .lab
            .host
            .netns
            .run(|| {
                Command::new("/bin/busybox").args(["ping", "-c", "1", "-W", "5", address]).output().unwrap()
            })
            .unwrap();
        assert!(output.status.success(), "host to {address}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_reach_each_other_and_the_host_and_leave_nothing() {
    let Some(cluster) = Cluster::new("sandboxes_reach_each_other").await else { return };
    let sandboxes = cluster.run_sandboxes("pod", SANDBOXES).await;

    let assigned = cluster.assigned().await;
    let mut seen = BTreeSet::new();
    for sandbox in &sandboxes {
        assert_eq!(sandbox.addresses.len(), Family::ALL.len(), "{sandbox:?}");
        for address in &sandbox.addresses {
            assert!(seen.insert(address.clone()), "{address} was given twice");
            assert_eq!(assigned.get(address), Some(&sandbox.id), "the daemon agrees with the runtime");
        }
    }
    assert_eq!(assigned.len(), SANDBOXES * Family::ALL.len());
    assert_eq!(cluster.veths().await.len(), SANDBOXES);

    for (i, sandbox) in sandboxes.iter().enumerate() {
        let next = &sandboxes[(i + 1) % SANDBOXES];
        for (address, host) in next.addresses.iter().zip([HOST_V4, HOST_V6]) {
            cluster.containerd.inside(&sandbox.id, &["ping", "-c", "1", "-W", "5", address]);
            cluster.ping_from_host(address);
            cluster.containerd.inside(&sandbox.id, &["ping", "-c", "1", "-W", "5", host]);
        }
    }

    cluster.remove(&sandboxes).await;
    cluster.assert_clean().await;
}

/// The daemon is killed and stays away for a while: what runs keeps running, what is removed is released afterwards, and
/// what comes after that meets none of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_daemons_absence_costs_no_pod_and_leaks_no_address() {
    let Some(mut cluster) = Cluster::new("the_daemons_absence").await else { return };
    let mut sandboxes = cluster.run_sandboxes("before", 6).await;
    cluster.cns.kill9();
    let removed = sandboxes.split_off(3);
    cluster.remove(&removed).await;
    assert_eq!(cluster.veths().await.len(), 3, "the wires went although the daemon was away");
    for sandbox in &sandboxes {
        cluster.ping_from_host(&sandbox.addresses[0]);
    }

    cluster.cns.launch().await;
    until("the releases are made good", async || cluster.assigned().await.len() == 6).await;
    for sandbox in &sandboxes {
        for address in &sandbox.addresses {
            assert_eq!(cluster.assigned().await.get(address), Some(&sandbox.id));
        }
    }
    let after = cluster.run_sandboxes("after", 3).await;
    cluster.ping_from_host(&after[0].addresses[0]);
    cluster.remove(&sandboxes).await;
    cluster.remove(&after).await;
    cluster.assert_clean().await;
}

/// kubelet makes a pod's sandbox anew under another id: the new one gets an address though the old one's was not released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_died_is_replaced_without_waiting_for_its_clean_up() {
    let Some(cluster) = Cluster::new("a_sandbox_that_died").await else { return };
    let old = cluster.run_sandbox("reborn".to_owned()).await;
    // The namespace goes without a DEL, as when a node's runtime loses it.
    let netns = netns_of(&cluster, &old.id).await;
    nix::mount::umount2(Path::new(&netns), nix::mount::MntFlags::MNT_DETACH).unwrap();
    fs::remove_file(&netns).unwrap();
    cluster.containerd.ctr(&["tasks", "kill", "--signal", "SIGKILL", &old.id]);
    until("the namespace is gone", async || cluster.veths().await.is_empty()).await;

    let metadata =
        Metadata { name: "reborn".into(), uid: "uid-of-reborn".into(), namespace: "test".into(), attempt: 1 };
    let config = PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
    let id = cluster.containerd.cri.run_sandbox(config).await.unwrap();
    let owners: BTreeSet<_> = cluster.assigned().await.into_values().collect();
    assert_eq!(owners, BTreeSet::from([id.clone()]), "what the dead sandbox held is released");
    let addresses = cluster.containerd.cri.addresses(&id).await.unwrap();
    cluster.remove(&[old, Sandbox { id, pod: "reborn".into(), addresses }]).await;
    cluster.assert_clean().await;
}

async fn netns_of(cluster: &Cluster, container: &str) -> String {
    let request = pb::GetEndpointRequest { container_id: container.to_owned() };
    let answer = cluster.cns.endpoints().await.get_endpoint(request).await.unwrap().into_inner();
    answer.endpoint.unwrap().sandbox.unwrap().netns_path
}
