//! ADD, DEL, CHECK, GC, STATUS: what they do when all goes well.

use std::path::Path;

use cns::model::Family;
use serde_json::{Value, json};

use crate::{
    lab::{HOST_V4, HOST_V6, UPLINK_MTU},
    node::{NETWORK, Node},
};

const DUAL: &str = "10.240.0.0/24,fd00:240::/120";

/// The addresses of a result, without prefix.
fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap();
    let bare = |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    ips.iter().map(bare).collect()
}

#[tokio::test]
async fn add_connects_pods_and_host_over_both_families_and_del_takes_all_back() {
    let Some(node) = Node::new("add_connects_pods_and_host", DUAL).await else { return };
    let (one, two) = (node.lab.pod("one"), node.lab.pod("two"));
    let first = node.add("container-one", &one).await.ok();
    let second = node.add("container-two", &two).await.ok();

    let (first_at, second_at) = (addresses(&first), addresses(&second));
    for (i, family) in Family::ALL.into_iter().enumerate() {
        let host = if family == Family::V4 { HOST_V4 } else { HOST_V6 };
        let server = one.serve(&first_at[i]);
        // UDP: a single datagram, so that a first packet that is lost is seen.
        assert_eq!(two.udp(server).unwrap(), second_at[i]);
        assert_eq!(node.lab.host.udp(server).unwrap(), host);
        assert_eq!(two.udp(node.lab.host.serve(host)).unwrap(), second_at[i]);
    }

    let veth = Node::veth_of("container-one");
    let pod_mac = one.links().await.into_iter().find(|link| link.name == "eth0").unwrap().mac.unwrap();
    assert_eq!(
        first,
        json!({
            "cniVersion": "1.1.0",
            "interfaces": [
                {"name": veth, "mac": "aa:aa:aa:aa:aa:aa", "mtu": UPLINK_MTU},
                {"name": "eth0", "mac": pod_mac.to_string(), "mtu": UPLINK_MTU, "sandbox": one.path()},
            ],
            "ips": [
                {"address": format!("{}/24", first_at[0]), "gateway": "169.254.1.1", "interface": 1},
                {"address": format!("{}/120", first_at[1]), "gateway": "fe80::1234:5678:9abc", "interface": 1},
            ],
            "routes": [
                {"dst": "0.0.0.0/0", "gw": "169.254.1.1"},
                {"dst": "::/0", "gw": "fe80::1234:5678:9abc"},
            ],
            "dns": {},
        })
    );
    assert_eq!(node.check("container-one", &one, &first).await.ok(), Value::Null);

    let records = node.endpoints().await;
    let record = records.iter().find(|record| record.container_id == "container-one").unwrap();
    assert_eq!(record.interfaces.len(), 1, "{record:#?}");
    let interface = &record.interfaces[0];
    assert_eq!(
        (&*interface.ifname, &*interface.host_veth_name, &*interface.mac_address),
        ("eth0", &*veth, &*pod_mac.to_string())
    );
    assert_eq!(record.pod.as_ref().unwrap().name, "container-one");
    assert!(record.witnessed, "the daemon saw the sandbox: it will notice its death");

    for (container, pod) in [("container-one", &one), ("container-two", &two)] {
        assert_eq!(node.del(container, Some(pod)).await.ok(), Value::Null);
        assert_eq!(pod.link_names().await, ["lo"]);
    }
    node.assert_clean("after DEL of both").await;
}

#[tokio::test]
async fn every_version_gets_its_own_form_of_result() {
    let Some(mut node) = Node::new("every_version_gets_its_own_form", "10.240.0.0/24").await else { return };
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        node.version = version;
        let pod = node.lab.pod(version);
        let result = node.add("versioned", &pod).await.ok();
        assert_eq!(result["cniVersion"], version);
        let has_family = version.starts_with("0.");
        assert_eq!(result["ips"][0].get("version").is_some(), has_family, "{version}");
        assert_eq!(result["interfaces"][1].get("mtu").is_some(), version == "1.1.0", "{version}");
        let check = node.check("versioned", &pod, &result).await;
        if version.starts_with("0.3") {
            assert_eq!(check.error().0, 1, "CHECK came with 0.4.0");
        } else {
            check.ok();
        }
        node.del("versioned", Some(&pod)).await.ok();
    }
    node.assert_clean("in the end").await;
}

#[tokio::test]
async fn either_family_alone_is_wired() {
    for (cidr, host) in [("10.240.0.0/24", HOST_V4), ("fd00:240::/120", HOST_V6)] {
        let Some(node) = Node::new("either_family_alone_is_wired", cidr).await else { return };
        let pod = node.lab.pod("pod");
        let result = node.add("single", &pod).await.ok();
        assert_eq!(addresses(&result).len(), 1);
        assert_eq!(node.lab.host.udp(pod.serve(&addresses(&result)[0])).unwrap(), host);
        node.check("single", &pod, &result).await.ok();
        node.del("single", Some(&pod)).await.ok();
        node.assert_clean("in the end").await;
    }
}

#[tokio::test]
async fn adding_twice_changes_nothing_and_gives_the_same_answer() {
    let Some(node) = Node::new("adding_twice_changes_nothing", DUAL).await else { return };
    let pod = node.lab.pod("pod");
    let first = node.add("twice", &pod).await.ok();
    assert_eq!(node.add("twice", &pod).await.ok(), first);
    assert_eq!(node.assigned().await.len(), 2);
    node.del("twice", Some(&pod)).await.ok();
    node.assert_clean("after one DEL").await;
}

#[tokio::test]
async fn del_can_be_repeated_and_needs_neither_namespace_nor_record() {
    let Some(node) = Node::new("del_can_be_repeated", DUAL).await else { return };
    node.del("never-seen", None).await.ok();

    let pod = node.lab.pod("pod");
    node.add("gone", &pod).await.ok();
    node.del("gone", None).await.ok();
    assert_eq!(pod.link_names().await, ["lo"], "found by the host's end");
    node.del("gone", Some(&pod)).await.ok();

    // The runtime is to delete a container whose namespace is gone, and with it everything in it.
    node.add("gone-2", &pod).await.ok();
    let path = pod.path().to_owned();
    drop(pod);
    node.run_for("DEL", "gone-2", Some(&path), &node.netconf()).await.ok();
    node.run_for("DEL", "gone-2", Some(Path::new("/nowhere/at/all")), &node.netconf()).await.ok();
    node.assert_clean("in the end").await;
}

#[tokio::test]
async fn a_container_may_be_added_again_after_its_del() {
    let Some(node) = Node::new("a_container_may_be_added_again", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    for _ in 0..3 {
        let result = node.add("restarted", &pod).await.ok();
        node.check("restarted", &pod, &result).await.ok();
        node.del("restarted", Some(&pod)).await.ok();
    }
    node.assert_clean("in the end").await;
}

#[tokio::test]
async fn a_second_interface_of_a_container_is_refused_and_harms_nothing() {
    let Some(node) = Node::new("a_second_interface_of_a_container", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    let result = node.add("two-legs", &pod).await.ok();
    let netns = pod.path().display().to_string();
    let variables = |command| {
        [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "two-legs"),
            ("CNI_NETNS", &*netns),
            ("CNI_IFNAME", "net1"),
            ("CNI_PATH", "/opt/cni/bin"),
        ]
    };
    let second = node.run(&variables("ADD"), &node.netconf()).await;
    let (_, message) = second.error();
    assert!(message.contains("eth0"), "{message}");
    node.run(&variables("DEL"), &node.netconf()).await.ok();
    node.check("two-legs", &pod, &result).await.ok();
    node.del("two-legs", Some(&pod)).await.ok();
    node.assert_clean("in the end").await;
}

#[tokio::test]
async fn check_notices_what_was_changed() {
    let Some(node) = Node::new("check_notices_what_was_changed", DUAL).await else { return };
    let pod = node.lab.pod("pod");
    let result = node.add("checked", &pod).await.ok();
    let v4 = addresses(&result)[0].clone();

    pod.delete_route("0.0.0.0/0").await;
    let (code, message) = node.check("checked", &pod, &result).await.error();
    assert_eq!(code, 104);
    assert!(message.contains("route to 0.0.0.0/0"), "{message}");
    node.add("checked", &pod).await.ok();
    node.check("checked", &pod, &result).await.ok();

    node.lab.host.delete_route(&format!("{v4}/32")).await;
    let (_, message) = node.check("checked", &pod, &result).await.error();
    assert!(message.contains(&format!("the host's route to {v4}")), "{message}");
    node.add("checked", &pod).await.ok();

    pod.set_down("eth0").await;
    let (_, message) = node.check("checked", &pod, &result).await.error();
    assert!(message.contains("eth0 is down"), "{message}");
    node.add("checked", &pod).await.ok();

    node.lab.host.delete_link(&Node::veth_of("checked")).await;
    let (_, message) = node.check("checked", &pod, &result).await.error();
    assert!(message.contains("missing in the pod"), "{message}");
    node.add("checked", &pod).await.ok();

    let release = cns::proto::v1::ReleaseIpConfigsRequest {
        infra_container_id: "checked".into(),
        ..Default::default()
    };
    node.cns.ipam().await.release_ip_configs(release).await.unwrap();
    let (_, message) = node.check("checked", &pod, &result).await.error();
    assert!(message.contains("the daemon knows no container checked"), "{message}");
}

#[tokio::test]
async fn check_needs_the_result_of_add() {
    let Some(node) = Node::new("check_needs_the_result_of_add", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    let result = node.add("checked", &pod).await.ok();
    assert_eq!(node.run_for("CHECK", "checked", Some(pod.path()), &node.netconf()).await.error().0, 7);
    let mut other = result;
    other["interfaces"][1]["sandbox"] = "/run/netns/other".into();
    assert_eq!(node.check("checked", &pod, &other).await.error().0, 7);
}

#[tokio::test]
async fn gc_takes_away_strays_of_its_own_network_only() {
    let Some(node) = Node::new("gc_takes_away_strays", DUAL).await else { return };
    let (kept, stray, foreign) = (node.lab.pod("kept"), node.lab.pod("stray"), node.lab.pod("foreign"));
    let result = node.add("kept", &kept).await.ok();
    node.add("stray", &stray).await.ok();
    let mut other = node.netconf();
    other["name"] = "other-network".into();
    let foreign_result = node.run_for("ADD", "foreign", Some(foreign.path()), &other).await.ok();

    // Each of the three marks alone must do: one stray has lost its record, one its veth, one its intent.
    let no_record = node.lab.pod("no-record");
    node.add("no-record", &no_record).await.ok();
    let release = cns::proto::v1::ReleaseIpConfigsRequest {
        infra_container_id: "no-record".into(),
        ..Default::default()
    };
    node.cns.ipam().await.release_ip_configs(release).await.unwrap();
    let no_veth = node.lab.pod("no-veth");
    node.add("no-veth", &no_veth).await.ok();
    node.lab.host.delete_link(&Node::veth_of("no-veth")).await;
    let no_intent = node.lab.pod("no-intent");
    node.add("no-intent", &no_intent).await.ok();
    std::fs::remove_file(node.intents().join(format!("{NETWORK}:no-intent:eth0"))).unwrap();

    node.gc(&["kept"]).await.ok();
    let mut veths =
        vec![Node::veth_of("kept"), foreign_result["interfaces"][0]["name"].as_str().unwrap().into()];
    veths.sort();
    assert_eq!(node.veths().await, veths);
    let mut owners: Vec<_> = node.assigned().await.into_values().collect();
    owners.dedup();
    owners.sort();
    owners.dedup();
    assert_eq!(owners, ["foreign", "kept"]);
    assert_eq!(node.intent_files(), 2);
    node.check("kept", &kept, &result).await.ok();

    node.gc(&["kept"]).await.ok();
    node.gc(&[]).await.ok();
    assert_eq!(node.veths().await.len(), 1, "the other network's");
}

#[tokio::test]
async fn status_tells_whether_a_pod_could_be_added() {
    let Some(mut node) = Node::new("status_tells_whether", "10.240.0.0/30").await else { return };
    let status = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/opt/cni/bin")];
    node.run(&status, &node.netconf()).await.ok();

    // The namespaces must outlive the addresses, else a shortage would free them.
    let mut pods = Vec::new();
    loop {
        let pod = node.lab.pod(&format!("pod-{}", pods.len()));
        if !node.add(&format!("filler-{}", pods.len()), &pod).await.succeeded {
            break;
        }
        pods.push(pod);
    }
    assert!(!pods.is_empty());
    let (code, message) = node.run(&status, &node.netconf()).await.error();
    assert_eq!(code, 50);
    assert!(message.contains("no free ipv4 address"), "{message}");

    node.cns.kill9();
    let (code, message) = node.run(&status, &node.netconf()).await.error();
    assert_eq!(code, 50);
    assert!(message.contains("cannot reach the cns daemon"), "{message}");
}

#[tokio::test]
async fn desired_addresses_and_what_other_plugins_made_are_respected() {
    let Some(node) = Node::new("desired_addresses", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    let mut netconf = node.netconf();
    netconf["runtimeConfig"] = json!({"ips": ["10.240.0.77/24"]});
    netconf["dns"] = json!({"nameservers": ["10.0.0.10"], "search": ["a.b"]});
    netconf["prevResult"] = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "earlier", "sandbox": pod.path()}],
        "ips": [{"address": "192.0.2.9/24", "interface": 0}],
    });
    let result = node.run_for("ADD", "wanted", Some(pod.path()), &netconf).await.ok();
    assert_eq!(addresses(&result), ["192.0.2.9", "10.240.0.77"]);
    assert_eq!(result["interfaces"][0]["name"], "earlier");
    assert_eq!(result["ips"][1]["interface"], 2);
    assert_eq!(result["dns"]["search"][0], "a.b");

    let other = node.lab.pod("other");
    let (_, message) = node.run_for("ADD", "late", Some(other.path()), &netconf).await.error();
    assert!(message.contains("10.240.0.77"), "{message}");
    node.del("late", Some(&other)).await.ok();
    node.del("wanted", Some(&pod)).await.ok();
    node.assert_clean("in the end").await;
}
