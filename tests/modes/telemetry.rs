//! What the daemon reports of itself, to its log and to Application Insights.

use std::sync::{Arc, Mutex};

use cns::proto::v1 as pb;
use cns_fake_agents::{Agent, Fault};
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{
            ExportLogsServiceRequest, ExportLogsServiceResponse,
            logs_service_server::{LogsService, LogsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{KeyValue, any_value},
};
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::{
    cns_under_test::{Cns, free_port, until},
    node::{Node, nc},
};

const KEY: &str = "00000000-0000-0000-0000-0000000a11ce";

async fn node(telemetry: Value) -> Node {
    let node = Node::prepared(json!({"ChannelMode": "Direct", "TelemetrySettings": telemetry})).await;
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

/// A collector that remembers what it gets.
#[derive(Clone, Debug, Default)]
struct Collector {
    logs: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
    spans: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

#[tonic::async_trait]
impl LogsService for Collector {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.logs.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.spans.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Default::default()))
    }
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?;
    match value.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_the_log_reach_an_opentelemetry_collector() {
    let collector = Collector::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder()
        .add_service(LogsServiceServer::new(collector.clone()))
        .add_service(TraceServiceServer::new(collector.clone()));
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let serving = tokio::spawn(server.serve_with_incoming(incoming));

    let mut cns = Cns::start(&["--otlp-endpoint", &url]).await;
    let request = pb::RequestIpConfigsRequest {
        infra_container_id: "c1".into(),
        pod_interface_id: "c1".into(),
        ..Default::default()
    };
    cns.ipam().await.request_ip_configs(request).await.unwrap();
    // What is queued is sent in the end, without a wait for the SDK's intervals.
    assert!(cns.terminate().await.unwrap().success());
    let spans = collector.spans.lock().unwrap().clone();
    let spans: Vec<_> = spans.iter().flat_map(|request| &request.resource_spans).collect();
    let named = spans.iter().flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans);
    let call = named.clone().find(|span| span.name == "cns.v1.IpamService/RequestIPConfigs");
    let call = call.unwrap_or_else(|| panic!("no span in {spans:#?}"));
    assert!(text(&call.attributes, "request_id").is_some(), "{call:?}");
    let resource = spans[0].resource.as_ref().unwrap();
    assert_eq!(text(&resource.attributes, "service.name"), Some("cns"));
    let logs = collector.logs.lock().unwrap().clone();
    let logs = logs.iter().flat_map(|request| &request.resource_logs).flat_map(|of| &of.scope_logs);
    let records: Vec<_> = logs.flat_map(|of| &of.log_records).collect();
    assert!(
        records.iter().any(|record| text(&record.attributes, "event") == Some("CNSNCSnapshot")),
        "{records:#?}"
    );
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_is_told_once_and_holds_nothing_up() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let mut cns = Cns::start(&["--otlp-endpoint", &url]).await;
    until("the collector is known to be away", || async {
        let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
        info.agents
            .iter()
            .any(|agent| agent.name == "OpenTelemetry collector" && !agent.last_error.is_empty())
    })
    .await;
    assert!(cns.terminate().await.unwrap().success());
    let log = cns.log();
    assert_eq!(log.matches("agent call failed").count(), 1, "{log}");
}
