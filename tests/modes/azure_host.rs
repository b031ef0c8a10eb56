//! AzureHost: the node subnet's addresses, from NMAgent.

use std::{fs, path::PathBuf};

use cns::proto::v1::{self as pb, IpState};
use cns_fake_agents::Fault;
use serde_json::json;

use super::{
    cns_under_test::until,
    node::{NODE_SUBNET, Node},
};

const FETCH: &str = "getinterfaceinfov1";

/// NMAgent's secondary addresses are these of 10.240.0.0/24 from now on.
fn secondaries(node: &Node, hosts: impl IntoIterator<Item = u8>) {
    let hosts: Vec<u8> = hosts.into_iter().collect();
    node.agents.world(|world| {
        let addresses = &mut world.interfaces[0].addresses;
        addresses.truncate(1);
        addresses.extend(hosts.iter().map(|host| (format!("10.240.0.{host}"), false)));
    });
}

/// Has it write a CNI configuration list, here.
fn write_conflist(node: &Node) -> PathBuf {
    let path = node.cns.directory().join("05-cilium.conflist");
    node.change_config(|config| {
        config["EnableCNIConflistGeneration"] = json!(true);
        config["CNIConflistFilepath"] = json!(path);
        config["CNIConflistScenario"] = json!("cilium");
    });
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h4_h5_before_the_first_fetch_there_is_a_shortage_and_after_it_a_host_address() {
    let mut node = Node::azure_host().await;
    node.agents.fail(FETCH, Fault::Hang);
    node.launch().await;
    assert_eq!(node.nc_ids().await, [NODE_SUBNET]);
    let refused = node.request("c1").await;
    assert_eq!(refused["response"]["ReturnCode"], 32, "{refused}");
    assert_eq!(refused["podIPInfo"].as_array().map(Vec::len), Some(1), "{refused}");
    let (status, why) = node.readiness().await;
    assert_eq!((status, why.contains("secondary addresses")), (503, true), "{why}");
    node.agents.heal();
    until("ready", || async { node.readiness().await.0 == 200 }).await;
    let granted = node.request("c1").await;
    let info = &granted["podIPInfo"][0];
    assert_eq!(granted["response"]["ReturnCode"], 0, "{granted}");
    assert_eq!(info["PodIPConfig"], json!({"IPAddress": "10.240.0.5", "PrefixLength": 0}), "H5");
    assert_eq!(info["NetworkContainerPrimaryIPConfig"]["GatewayIPAddress"], "", "H5");
    let nc = node.ncs().await.remove(0);
    assert_eq!((nc.version.as_str(), nc.host_version), ("0", Some(0)));
    node.cns.assert_sound().await;
    assert!(node.cns.terminate().await.unwrap().success());
}

/// H1, H2: pods that ran under the reference have their addresses before anything is fetched; the list comes after the fetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_h2_pods_of_the_reference_have_their_addresses_before_the_first_fetch() {
    let mut node = Node::azure_host().await;
    let path = write_conflist(&node);
    let old = node.cns.directory().join("old");
    node.change_config(|config| config["Node"]["ImportLegacy"] = json!(old));
    fs::create_dir(&old).unwrap();
    let record = |pod: &str, ip: &str| {
        json!({"PodName": pod, "PodNamespace": "default",
            "IfnameToIPMap": {"eth0": {"IPv4": [{"IP": ip, "Mask": "/////w=="}], "NICType": ""}}})
    };
    let records =
        json!({"Endpoints": {"c1": record("web-1", "10.240.0.5"), "c2": record("web-2", "10.240.0.6")}});
    fs::write(old.join("azure-endpoints.json"), records.to_string()).unwrap();
    node.agents.fail(FETCH, Fault::Status(500));
    node.launch().await;
    assert_eq!(node.addresses(IpState::Assigned).await, ["10.240.0.5", "10.240.0.6"], "H1");
    assert_eq!(node.addresses(IpState::Available).await, Vec::<String>::new(), "H1");
    node.asked(FETCH, 1).await;
    assert!(!path.exists(), "H1: no list before the first fetch");
    assert!(node.metric("cns_cni_conflist_written 0").await);
    secondaries(&node, 5..15);
    node.agents.heal();
    until("ready", || async { node.readiness().await.0 == 200 }).await;
    assert_eq!(node.addresses(IpState::Assigned).await.len(), 2, "H2");
    assert_eq!(node.addresses(IpState::Available).await.len(), 8, "H2");
    until("the list", || async { path.exists() }).await;
    until("the metric follows", || node.metric("cns_cni_conflist_written 1")).await;
    let written = fs::read(&path).unwrap();
    assert_eq!(node.address("c1").await.unwrap(), "10.240.0.5");
    // Whoever loses it gets it back.
    fs::remove_file(&path).unwrap();
    until("the list again", || async { path.exists() }).await;
    assert_eq!(fs::read(&path).unwrap(), written);
    node.cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h3_it_grows_and_shrinks_and_what_pods_hold_stays_theirs() {
    let mut node = Node::azure_host().await;
    secondaries(&node, 5..11);
    node.launch_and_wait().await;
    assert_eq!(node.address("c1").await.unwrap(), "10.240.0.5");
    assert_eq!(node.address("c2").await.unwrap(), "10.240.0.6");
    // H3: one that is held and one that is free are gone, another one is new.
    secondaries(&node, [6, 7, 8, 9, 20]);
    until("the new one", || async {
        node.addresses(IpState::Available).await == ["10.240.0.7", "10.240.0.8", "10.240.0.9", "10.240.0.20"]
    })
    .await;
    assert_eq!(node.address("c1").await.unwrap(), "10.240.0.5", "H3: it is the pod's");
    assert!(node.findings().await.contains(&"WITHDRAWN_IN_USE".into()));
    node.release("c1").await;
    assert!(
        !node.addresses(IpState::Available).await.contains(&"10.240.0.5".into()),
        "H3: given to nobody else"
    );
    // Most are lost at once: a second fetch has to say so, too.
    secondaries(&node, [6]);
    until("the alarm", || async { node.metric("cns_source_doubted 1").await }).await;
    assert_eq!(node.addresses(IpState::Available).await.len(), 4);
    until("it is confirmed", || async { node.addresses(IpState::Available).await.is_empty() }).await;
    until("the alarm ends", || async { node.metric("cns_source_doubted 0").await }).await;
    assert_eq!(node.readiness().await.0, 200);
    node.cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_hangs_delays_no_pod_and_no_restart() {
    let mut node = Node::azure_host().await;
    node.launch_and_wait().await;
    // It is ready at once each time.
    for fault in [
        Fault::Hang,
        Fault::Stall,
        Fault::Status(401),
        Fault::Truncate,
        Fault::Body(b"<Interfaces/>".as_slice().into()),
    ] {
        node.agents.heal();
        node.agents.fail(FETCH, fault);
        // Also with what an earlier run fetched.
        node.cns.kill9();
        node.launch_and_wait().await;
        node.asked(FETCH, 1).await;
        for container in ["c1", "c2", "c3"] {
            node.address(container).await.unwrap();
        }
        for container in ["c1", "c2", "c3"] {
            node.release(container).await;
        }
        node.cns.assert_sound().await;
    }
    assert!(node.cns.terminate().await.unwrap().success());
}

/// The reference stays ready, whatever happens (spec/metrics.md §7.8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nmagent_is_away_it_serves_and_is_not_ready() {
    let mut node = Node::azure_host().await;
    let list = write_conflist(&node);
    node.launch_and_wait().await;
    until("the list", || async { list.exists() }).await;
    node.agents.fail(FETCH, Fault::Status(500));
    node.taken_back("NMAgent, which has given no usable list since 2").await;
    assert!(node.readiness().await.1.contains("status 500"));
    assert_eq!(node.request("c1").await["response"]["ReturnCode"], 0);
    node.address("c2").await.unwrap();
    assert!(list.exists(), "runtimes go on");
    assert!(node.metric("cns_agent_failing{agent=\"NMAgent\"} 1").await);
    node.agents.heal();
    until("it is ready again", || async { node.readiness().await.0 == 200 && node.whole_is_serving().await })
        .await;
    // With what an earlier run fetched it is ready at once, and that is taken back, too.
    node.agents.fail(FETCH, Fault::Drop);
    node.cns.kill9();
    node.launch_and_wait().await;
    node.taken_back("NMAgent, which").await;
    node.address("c3").await.unwrap();
    assert!(list.exists(), "runtimes go on");
    node.cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_of_a_refresh_it_is_sound_and_pods_keep_what_they_have() {
    let mut node = Node::azure_host().await;
    secondaries(&node, 5..250);
    node.launch_and_wait().await;
    let held = node.address("c1").await.unwrap();
    for round in 0..6_u8 {
        // Half of them each time, in turn.
        secondaries(&node, (5..250).filter(|host| *host == 5 || host % 2 == round % 2));
        node.cns.kill9();
        node.launch().await;
        node.asked(FETCH, 1).await;
        tokio::time::sleep(std::time::Duration::from_millis(u64::from(round) * 3)).await;
        node.cns.kill9();
        node.launch().await;
        node.cns.assert_sound().await;
        assert_eq!(node.address("c1").await.unwrap(), held);
    }
}

/// What another mode left does not get in the way, nor does this one leave anything behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_another_mode_and_to_another() {
    let mut node = Node::azure_host().await;
    let config = node.cns.directory().join("cns_config.json");
    let text = fs::read_to_string(&config).unwrap();
    // The same addresses, as a network of ours.
    let args = ["--standalone-cidr", "10.240.0.0/28"];
    node.cns.set_args(&args);
    node.cns.launch().await;
    let held = node.address("old").await.unwrap();
    node.cns.terminate().await.unwrap();
    assert_eq!(held, "10.240.0.2");
    fs::write(&config, text).unwrap();
    let path = config.to_str().unwrap().to_owned();
    node.cns.set_args(&["--config-path", &path]);
    node.cns.launch().await;
    until("the fetched ones", || async {
        node.addresses(IpState::Available).await == ["10.240.0.5", "10.240.0.6", "10.240.0.7"]
    })
    .await;
    assert_eq!(node.address("old").await.unwrap(), held, "the pod keeps it");
    node.release("old").await;
    node.cns.assert_sound().await;
    node.cns.terminate().await.unwrap();
    node.cns.set_args(&args);
    node.cns.launch().await;
    assert!(!node.nc_ids().await.contains(&NODE_SUBNET.to_owned()));
    node.cns.assert_sound().await;
    let state = node.cns.debug().await.get_state(pb::GetStateRequest::default()).await.unwrap().into_inner();
    assert_eq!(state.network_containers.len(), 1);
}
