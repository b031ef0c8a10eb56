//! What is left, and what is said, when something fails.

use std::fs;

use cns::{
    nic::{Attachment, Netns, Transparent, WireSpec},
    proto::v1 as pb,
};
use serde_json::json;

use crate::{
    cns_under_test::until,
    gate::{Gate, Point},
    node::{NETWORK, Node},
};

const DUAL: &str = "10.240.0.0/24,fd00:240::/120";

#[tokio::test]
async fn add_without_daemon_says_try_again_and_leaves_nothing() {
    let Some(mut node) = Node::new("add_without_daemon", DUAL).await else { return };
    node.cns.kill9();
    let pod = node.lab.pod("pod");
    let (code, message) = node.add("orphan", &pod).await.error();
    assert_eq!(code, 11);
    assert!(message.contains("is the daemon running"), "{message}");
    assert_eq!(pod.link_names().await, ["lo"]);
    node.cns.launch().await;
    node.assert_clean("after an ADD in vain").await;
}

#[tokio::test]
async fn del_without_daemon_unwires_and_leaves_the_release_for_later() {
    let Some(mut node) = Node::new("del_without_daemon", DUAL).await else { return };
    let pod = node.lab.pod("pod");
    node.add("left-behind", &pod).await.ok();
    node.cns.kill9();
    node.del("left-behind", Some(&pod)).await.ok();
    assert_eq!(node.veths().await, [""; 0], "the wire goes whether the daemon is there or not");
    let left = fs::read_to_string(node.cns.async_delete_dir().join("left-behind")).unwrap();
    assert_eq!(left, "left-beh-eth0");
    node.del("left-behind", None).await.ok();

    node.cns.launch().await;
    until("the daemon releases", async || node.assigned().await.is_empty()).await;
    until("the file goes", async || fs::read_dir(node.cns.async_delete_dir()).unwrap().count() == 0).await;
    node.assert_clean("after the daemon came back").await;
}

/// A release that was left must not take what the container got afterwards.
#[tokio::test]
async fn a_release_that_was_left_does_not_harm_a_later_add() {
    let Some(mut node) = Node::new("a_release_that_was_left", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    node.add("restarted", &pod).await.ok();
    node.cns.kill9();
    node.del("restarted", Some(&pod)).await.ok();
    let file = node.cns.async_delete_dir().join("restarted");
    let content = fs::read(&file).unwrap();
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    fs::remove_file(&file).unwrap();
    node.cns.launch().await;
    let result = node.add("restarted", &pod).await.ok();
    node.cns.kill9();
    fs::write(&file, content).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_modified(written).unwrap();
    node.cns.launch().await;
    until("the file is dealt with", async || !file.exists()).await;
    node.check("restarted", &pod, &result).await.ok();
}

#[tokio::test]
async fn del_fails_where_the_release_can_neither_be_delivered_nor_left() {
    let Some(mut node) = Node::new("del_fails_where", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    node.add("stuck", &pod).await.ok();
    node.cns.kill9();

    let mut netconf = node.netconf();
    netconf["disableAsyncDelete"] = true.into();
    assert_eq!(node.run_for("DEL", "stuck", Some(pod.path()), &netconf).await.error().0, 11);
    assert_eq!(node.veths().await, [""; 0], "the wire went nevertheless");
    assert_eq!(node.intent_files(), 1, "the record stays until all is done");

    let mut netconf = node.netconf();
    fs::write(node.lab.directory().join("file"), "").unwrap();
    netconf["asyncDeleteDir"] = node.lab.directory().join("file").to_str().into();
    let (code, message) = node.run_for("DEL", "stuck", Some(pod.path()), &netconf).await.error();
    assert_eq!(code, 11);
    assert!(message.contains("could not be left"), "{message}");

    node.cns.launch().await;
    node.del("stuck", Some(&pod)).await.ok();
    node.assert_clean("when the daemon was back").await;
}

#[tokio::test]
async fn a_failed_wiring_gives_the_addresses_back() {
    let Some(node) = Node::new("a_failed_wiring", DUAL).await else { return };
    let pod = node.lab.pod("pod");
    let other = node.lab.pod("other");
    // Somebody else's eth0 is in the pod.
    node.add("first", &pod).await.ok();
    let (code, message) = node.add("second", &pod).await.error();
    assert_eq!(code, 101);
    assert!(message.contains("eth0 exists"), "{message}");
    assert!(node.assigned().await.into_values().all(|owner| owner == "first"));
    assert_eq!(node.intent_files(), 1);
    assert_eq!(node.veths().await, [Node::veth_of("first")]);

    // The MTU is to come from a NIC that is not there.
    let mut netconf = node.netconf();
    netconf["master"] = "eth77".into();
    let (_, message) = node.run_for("ADD", "third", Some(other.path()), &netconf).await.error();
    assert!(message.contains("eth77"), "{message}");
    node.del("first", Some(&pod)).await.ok();
    node.assert_clean("after failures").await;
}

#[tokio::test]
async fn a_failed_repetition_does_not_take_a_living_pods_addresses() {
    let Some(node) = Node::new("a_failed_repetition", "10.240.0.0/24").await else { return };
    let (pod, elsewhere) = (node.lab.pod("pod"), node.lab.pod("elsewhere"));
    let result = node.add("living", &pod).await.ok();
    // The repetition meets an interface of another container in the namespace that it names.
    node.add("squatter", &elsewhere).await.ok();
    node.add("living", &elsewhere).await.error();
    node.check("living", &pod, &result).await.ok();
    assert_eq!(node.intent_files(), 2);
}

#[tokio::test]
async fn exhaustion_is_told_with_a_way_out_and_leaves_nothing() {
    let Some(node) = Node::new("exhaustion_is_told", "10.240.0.0/31").await else { return };
    let mut pods = Vec::new();
    let said = loop {
        let pod = node.lab.pod(&format!("pod-{}", pods.len()));
        let said = node.add(&format!("c{}", pods.len()), &pod).await;
        pods.push(pod);
        if !said.succeeded {
            break said;
        }
    };
    let (code, message) = said.error();
    assert_eq!(code, 11, "a pod may go at any time: {message}");
    assert!(message.contains("address"), "{message}");
    assert_eq!(node.intent_files(), pods.len() - 1);
    assert_eq!(node.veths().await.len(), pods.len() - 1);
}

#[tokio::test]
async fn an_intent_that_cannot_be_written_stops_add_before_anything_is_done() {
    let Some(node) = Node::new("an_intent_that_cannot_be_written", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    fs::write(node.lab.directory().join("file"), "").unwrap();
    let mut netconf = node.netconf();
    netconf["intentDir"] = node.lab.directory().join("file/intents").to_str().into();
    let (code, message) = node.run_for("ADD", "c1", Some(pod.path()), &netconf).await.error();
    assert_eq!(code, 5);
    assert!(message.contains("nothing was done"), "{message}");
    node.assert_clean("after it").await;
}

/// The plugin dies at each step of ADD; the runtime knows nothing of the container, or deletes it.
#[tokio::test]
async fn what_a_killed_add_left_is_found_by_gc_and_by_del() {
    let Some(mut node) = Node::new("what_a_killed_add_left", DUAL).await else { return };
    let gate = Gate::open(&node).await;
    node.behind(gate.socket().to_owned());
    for point in Point::ALL {
        for by in ["GC", "DEL"] {
            let pod = node.lab.pod("killed");
            gate.close(point);
            let mut add = node.start_for("ADD", "killed", Some(pod.path()), &node.netconf());
            gate.reached().await;
            add.kill().unwrap();
            add.wait().unwrap();
            gate.release();
            // The call that was held goes on to the daemon: the worst of both.
            gate.idle().await;
            match by {
                "GC" => node.gc(&[]).await.ok(),
                _ => node.del("killed", Some(&pod)).await.ok(),
            };
            assert_eq!(pod.link_names().await, ["lo"], "{point:?} {by}");
            node.assert_clean(&format!("after {by} of what died at {point:?}")).await;
        }
    }
}

/// A DEL that began before an ADD of the same container must not take away what the ADD made.
#[tokio::test]
async fn a_del_that_was_overtaken_by_an_add_does_no_harm() {
    let Some(node) = Node::new("a_del_that_was_overtaken", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    let result = node.add("c1", &pod).await.ok();
    // As if the ADD had begun only after the DEL that follows.
    let path = node.intents().join(format!("{NETWORK}:c1:eth0"));
    let mut intent: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    intent["began"] = json!(u64::MAX);
    fs::write(&path, intent.to_string()).unwrap();
    node.del("c1", Some(&pod)).await.ok();
    node.gc(&[]).await.ok();
    node.check("c1", &pod, &result).await.ok();
}

#[tokio::test]
async fn a_daemon_that_was_restarted_during_add_is_waited_for() {
    let Some(mut node) = Node::new("a_daemon_that_was_restarted", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    node.cns.kill9();
    let add = node.start_for("ADD", "patient", Some(pod.path()), &node.netconf());
    node.cns.launch().await;
    let result = Node::wait(add).await.ok();
    node.check("patient", &pod, &result).await.ok();
}

/// The daemon releases what a dead sandbox holds by itself, as the plugin told it where the sandbox lives.
#[tokio::test]
async fn the_daemon_notices_a_sandbox_that_died_without_del() {
    let Some(mut node) = Node::new("the_daemon_notices", "10.240.0.0/24").await else { return };
    node.cns.kill9();
    node.cns.set_args(&[
        "--standalone-cidr",
        "10.240.0.0/24",
        "--reconcile-interval",
        "1s",
        "--reconcile-grace",
        "1s",
    ]);
    node.cns.launch().await;
    let pod = node.lab.pod("pod");
    node.add("dead", &pod).await.ok();
    assert_eq!(node.assigned().await.len(), 1);
    drop(pod);
    until("the address is free again", async || node.assigned().await.is_empty()).await;
    let subject = Some(pb::explain_request::Subject::ContainerId("dead".into()));
    let explained =
        node.cns.debug().await.explain(pb::ExplainRequest { subject }).await.unwrap().into_inner();
    assert!(explained.events.iter().any(|event| format!("{event:?}").contains("is gone")), "{explained:#?}");
}

/// A veth without a record is deleted if its container was deleted here. What may be somebody else's is only reported.
#[tokio::test]
async fn the_daemon_deletes_a_veth_that_outlived_its_container_and_no_other() {
    let Some(mut node) = Node::new("the_daemon_deletes_a_veth", "10.240.0.0/24").await else { return };
    let (pod, other, alive) = (node.lab.pod("pod"), node.lab.pod("other"), node.lab.pod("alive"));
    let result = node.add("alive", &alive).await.ok();
    node.add("outlived", &pod).await.ok();
    // The record goes without the wire, as when somebody released by hand.
    let release = pb::ReleaseIpConfigsRequest {
        infra_container_id: "outlived".into(),
        began_boottime_ns: Some(cns::model::BootTime::read().nanos()),
        ..Default::default()
    };
    node.cns.ipam().await.release_ip_configs(release).await.unwrap();
    // One that the daemon has never heard of.
    let plane = Transparent::new(Netns::open(node.lab.host.path()).unwrap()).unwrap();
    let foreign = WireSpec {
        attachment: Attachment::new(NETWORK, "foreign".parse().unwrap(), "eth0".parse().unwrap()).unwrap(),
        addresses: vec!["192.0.2.200/24".parse().unwrap()],
        routes: Vec::new(),
        skip_default_routes: true,
        parent: None,
    };
    plane.wire(&other.netns, &foreign).await.unwrap();

    let found = node.cns.debug().await.diagnose(pb::DiagnoseRequest {}).await.unwrap().into_inner().findings;
    let mut strays: Vec<_> = found
        .iter()
        .filter(|finding| finding.kind == "STRAY_VETH")
        .map(|finding| (finding.container_id.as_str(), finding.severity()))
        .collect();
    strays.sort_unstable();
    assert_eq!(
        strays,
        [("foreign", pb::FindingSeverity::Info), ("outlived", pb::FindingSeverity::Warning)],
        "{found:#?}"
    );

    node.cns.kill9();
    node.cns.set_args(&[
        "--standalone-cidr",
        "10.240.0.0/24",
        "--reconcile-interval",
        "1s",
        "--reconcile-grace",
        "1s",
    ]);
    node.cns.launch().await;
    let outlived = Node::veth_of("outlived");
    until("the veth is deleted", async || !node.veths().await.contains(&outlived)).await;
    let mut left = vec![Node::veth_of("alive"), Node::veth_of("foreign")];
    left.sort();
    assert_eq!(node.veths().await, left);
    node.check("alive", &alive, &result).await.ok();
    until("it is said", async || node.cns.log().contains("had outlived its container")).await;
}
