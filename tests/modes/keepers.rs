//! What is kept in line beside the state: packet rules.

use std::{path::Path, process::Command};

use cns::proto::v1 as pb;
use cns_fake_agents::{Agent, FakeAgents};
use serde_json::json;

use super::{
    cns_under_test::{Cns, until},
    need::{need_program, need_root},
    node::NC1,
};

/// A network namespace, deleted in the end.
struct Netns(String);

impl Netns {
    fn new(name: &str) -> Self {
        let netns = Self(format!("{name}-{}", std::process::id()));
        assert!(Command::new("ip").args(["netns", "add", &netns.0]).status().unwrap().success());
        netns
    }

    fn run(&self, args: &[&str]) -> String {
        let output = Command::new("ip").args(["netns", "exec", &self.0]).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn rules(&self) -> String {
        let all = self.run(&["iptables-save", "-t", "nat"]);
        all.lines().filter(|line| line.contains("SWIFT-POSTROUTING")).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn nc(host: &str, addresses: &[&str]) -> pb::CreateOrUpdateNetworkContainerRequest {
    let subnet = pb::IpSubnet { ip_address: "10.240.0.5".into(), prefix_length: 24 };
    let secondary = |address: &&str| {
        ((*address).to_owned(), pb::SecondaryIpConfig { ip_address: (*address).to_owned(), nc_version: 0 })
    };
    pb::CreateOrUpdateNetworkContainerRequest {
        network_container: Some(pb::NetworkContainer {
            id: NC1.into(),
            r#type: pb::NetworkContainerType::Docker.into(),
            version: "0".into(),
            host_primary_ip: host.into(),
            ip_configuration: Some(pb::IpConfiguration { ip_subnet: Some(subnet), ..Default::default() }),
            secondary_ip_configs: addresses.iter().map(secondary).collect(),
            ..Default::default()
        }),
    }
}

/// spec/network-containers.md §16 N1, N9, U12, and §12 row 10: the rules follow the NCs, come back, and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_n9_u12_snat_rules_follow_what_was_committed() {
    let test = "n1_n9_u12_snat_rules_follow_what_was_committed";
    if !need_root(test) || !need_program(test, "iptables-save") || !need_program(test, "ip") {
        return;
    }
    let netns = Netns::new("cns-modes");
    netns.run(&["ip", "link", "set", "lo", "up"]);
    let mut cns = Cns::prepared(&[]).in_netns(Path::new(&format!("/run/netns/{}", netns.0)));
    let path = cns.directory().join("cns_config.json");
    // Sockets belong to the namespace in which they were opened.
    let space = cns::nic::Netns::open(Path::new(&format!("/run/netns/{}", netns.0))).unwrap();
    let runtime = tokio::runtime::Handle::current();
    let agents = space.run(|| runtime.block_on(FakeAgents::start())).unwrap().unwrap();
    agents.world(|world| world.ncs = vec![(NC1.into(), "0".into())]);
    let config = |is_on: bool| {
        json!({
            "ChannelMode": "Direct", "ProgramSNATIPTables": is_on,
            "WireserverIP": agents.address(Agent::Wireserver).to_string(),
            "Node": {"IMDSURL": agents.url(Agent::Imds)},
        })
        .to_string()
    };
    std::fs::write(&path, config(true)).unwrap();
    cns.set_args(&["--config-path", path.to_str().unwrap(), "--reconcile-interval", "1"]);
    cns.launch().await;
    let request = pb::SetOrchestratorRequest {
        orchestrator_type: pb::OrchestratorType::KubernetesCrd.into(),
        ..Default::default()
    };
    cns.node().await.set_orchestrator(request).await.unwrap();
    // N9: without a host address there is no rule, and that is told.
    cns.ncs().await.create_or_update_network_container(nc("", &["10.240.0.17"])).await.unwrap();
    until("the warning", || async { cns.log().contains("has no host address") }).await;
    assert_eq!(netns.rules(), "");
    // N1
    let upsert = nc("10.224.0.4", &["10.240.0.17", "10.240.0.18"]);
    cns.ncs().await.create_or_update_network_container(upsert).await.unwrap();
    let wanted = "-A SWIFT-POSTROUTING -s 10.240.0.0/24 -d 169.254.169.254/32 -p tcp -m addrtype ! --dst-type LOCAL \
                  -m tcp --dport 80 -j SNAT --to-source 10.224.0.4";
    until("the rules", || async { netns.rules().contains(wanted) }).await;
    let rules = netns.rules();
    // U12: what is refused is not programmed.
    let request = pb::RequestIpConfigsRequest {
        infra_container_id: "c1".into(),
        pod_interface_id: "c1".into(),
        ..Default::default()
    };
    let mut nmagent = pb::nm_agent_service_client::NmAgentServiceClient::new(cns.channel().await);
    nmagent.sync_host_nc_versions(pb::SyncHostNcVersionsRequest {}).await.unwrap();
    cns.ipam().await.request_ip_configs(request).await.unwrap();
    let refused =
        cns.ncs().await.create_or_update_network_container(nc("10.224.0.9", &[])).await.unwrap_err();
    assert!(refused.message().contains("Failed to delete an Assigned IP"), "{refused}");
    // Whoever flushes the table does not know the rules.
    netns.run(&["iptables", "-t", "nat", "-F"]);
    until("the rules again", || async { netns.rules() == rules }).await;
    // The option is off: what an earlier run made goes.
    assert!(cns.terminate().await.unwrap().success());
    assert_eq!(netns.rules(), rules, "a restart must not cut pods off");
    std::fs::write(&path, config(false)).unwrap();
    cns.launch().await;
    until("they go", || async { netns.rules().is_empty() }).await;
}
