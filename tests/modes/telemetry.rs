//! What the daemon reports of itself, to its log and to Application Insights.

use cns::proto::v1 as pb;
use cns_fake_agents::{Agent, Fault};
use serde_json::{Value, json};

use super::{
    cns_under_test::until,
    node::{Node, nc},
};

const KEY: &str = "00000000-0000-0000-0000-0000000a11ce";

async fn node(telemetry: Value) -> Node {
    let mut node = Node::prepared(json!({"ChannelMode": "Direct", "TelemetrySettings": telemetry})).await;
    let connection = node.agents.connection_string();
    node.change_config(|config| {
        config["TelemetrySettings"]["AppInsightsConnectionString"] = json!(connection);
        config["TelemetrySettings"]["TelemetryBatchIntervalInSecs"] = json!(1);
    });
    node
}

/// What was taken of this kind, by name: the item's data, and its tags.
fn tracked(node: &Node, kind: &str, name: &str) -> Vec<Value> {
    let of = |item: &&Value| {
        let data = &item["data"];
        data["baseType"] == kind && (name.is_empty() || data["baseData"]["name"] == name)
    };
    node.agents.world(|world| world.tracked.iter().filter(of).cloned().collect())
}

async fn create(node: &Node, n: usize, version: &str) {
    let kind = json!({"orchestratorType": "Kubernetes", "dncPartitionKey": "p", "nodeID": "node-1"});
    node.post("/network/setorchestratortype", &kind).await;
    let created = node.post("/network/createorupdatenetworkcontainer", &nc(n, version)).await;
    assert_eq!(
        created["response"]["ReturnCode"].as_i64().or(created["Response"]["ReturnCode"].as_i64()),
        Some(0),
        "{created}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_and_log_lines_reach_application_insights_and_secrets_do_not() {
    let mut node = node(json!({"ConfigSnapshotIntervalInMins": 60})).await;
    node.launch_and_wait().await;
    until("the configuration", || async { !tracked(&node, "EventData", "ConfigSnapshot").is_empty() }).await;
    let event = tracked(&node, "EventData", "ConfigSnapshot").remove(0);
    let texts = &event["data"]["baseData"]["properties"];
    let config = texts["CNSConfiguration"].as_str().unwrap();
    assert!(config.contains("Direct") && !config.contains(KEY), "{config}");
    let checksum = texts["CNSConfigurationMD5Checksum"].as_str().unwrap();
    assert!(checksum.len() == 32 && checksum.bytes().all(|byte| byte.is_ascii_hexdigit()), "{checksum}");
    assert_eq!((&event["iKey"], &event["tags"]["ai.operation.id"]), (&json!(KEY), &json!(checksum)));

    create(&node, 1, "1").await;
    until("the network container", || async { !tracked(&node, "EventData", "CNSNCSnapshot").is_empty() })
        .await;
    let event = tracked(&node, "EventData", "CNSNCSnapshot").remove(0);
    let texts = &event["data"]["baseData"]["properties"];
    let id = nc(1, "1")["NetworkContainerid"].clone();
    assert_eq!(event["tags"]["ai.operation.id"], id);
    assert!(texts["IPConfiguration"].as_str().unwrap().contains("PrefixLength:16"), "{texts}");
    assert_eq!((&texts["NodeID"], &texts["OrchestratorType"]), (&json!("node-1"), &json!("Kubernetes")));
    // IMDS has said by now what this machine is.
    create(&node, 1, "2").await;
    until("the machine is known", || async {
        let events = tracked(&node, "EventData", "CNSNCSnapshot");
        events.iter().any(|event| event["data"]["baseData"]["properties"]["Region"] == "westeurope")
    })
    .await;
    let lines = tracked(&node, "MessageData", "");
    assert!(lines.iter().any(|line| line["data"]["baseData"]["message"] == "listening"), "{lines:?}");
    // The log has the reports too, and no key anywhere.
    let log = node.cns.log();
    assert!(log.contains("event=\"CNSNCSnapshot\"") && log.contains("event=\"ConfigSnapshot\""), "{log}");
    assert!(!log.contains(KEY));
    let info = node.cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert!(info.agents.iter().any(|agent| agent.name == "Application Insights"), "{:?}", info.agents);
    assert!(node.cns.terminate().await.unwrap().success());
    // What was not sent yet is sent in the end.
    let lines = tracked(&node, "MessageData", "");
    assert!(lines.iter().any(|line| {
        line["data"]["baseData"]["message"].as_str().is_some_and(|line| line.starts_with("stopping"))
    }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_can_be_switched_off_and_all_of_it() {
    let off = json!({"ConfigSnapshotIntervalInMins": 60, "DisableEvent": true, "DisableTrace": true});
    let mut quiet = node(off).await;
    quiet.launch_and_wait().await;
    create(&quiet, 1, "1").await;
    assert!(quiet.cns.terminate().await.unwrap().success());
    assert_eq!(quiet.agents.world(|world| world.tracked.clone()), Vec::<Value>::new());
    assert!(!quiet.cns.log().contains("CNSNCSnapshot"));

    let mut silent = node(json!({"DisableAll": true, "ConfigSnapshotIntervalInMins": 60})).await;
    silent.launch_and_wait().await;
    create(&silent, 1, "1").await;
    assert!(silent.cns.terminate().await.unwrap().success());
    let asked = silent.agents.take_requests();
    assert!(asked.iter().all(|request| request.agent != Agent::Insights), "{asked:?}");
    assert!(!silent.cns.log().contains("CNSNCSnapshot"));
}

/// Pods get addresses and the daemon starts and stops whatever the service does, and whatever its settings are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_depends_on_the_service() {
    let mut node = node(json!({"ConfigSnapshotIntervalInMins": 60})).await;
    node.agents.fail("/v2.1/track", Fault::Hang);
    node.agents.fail("/metadata/instance", Fault::Hang);
    node.launch_and_wait().await;
    node.asked("/v2.1/track", 1).await;
    create(&node, 1, "1").await;
    assert!(node.nc_ids().await.contains(&nc(1, "1")["NetworkContainerid"].as_str().unwrap().to_owned()));
    assert!(node.cns.terminate().await.unwrap().success());

    let mut broken = Node::prepared(json!({"ChannelMode": "Direct",
        "TelemetrySettings": {"AppInsightsConnectionString": "InstrumentationKey=secret-word"}}))
    .await;
    broken.launch_and_wait().await;
    let log = broken.cns.log();
    assert!(log.contains("AppInsightsConnectionString") && log.contains("is no UUID"), "{log}");
    assert!(!log.contains("secret-word"));
    assert!(broken.cns.terminate().await.unwrap().success());
}
