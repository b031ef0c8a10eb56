//! `cns.CNS`, the contract that the reference declares (spec/startup.md §8).

use cns::proto::compat::{
    NodeInfoRequest, NodeInfoResponse, SetOrchestratorInfoRequest, cns_client::CnsClient,
};
use prost::Message as _;
use serde_json::json;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::{
    cns_under_test::{Cns, free_port, until},
    pb,
};

fn register(node: &str, kind: &str) -> SetOrchestratorInfoRequest {
    SetOrchestratorInfoRequest {
        dnc_partition_key: "partition-1".into(),
        node_id: node.into(),
        orchestrator_type: kind.into(),
    }
}

fn which(node: &str) -> NodeInfoRequest {
    NodeInfoRequest { node_id: node.into() }
}

#[tokio::test]
async fn the_orchestrator_is_registered_as_by_our_own_call() {
    let cns = Cns::start(&[]).await;
    let mut client = CnsClient::new(cns.channel().await);
    // It has networks, so it keeps its name.
    let before = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    let name = before.node_id.as_str();
    client.set_orchestrator_info(register(name, "Kubernetes")).await.unwrap();
    let status = client.set_orchestrator_info(register("another", "Kubernetes")).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let ours = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((ours.node_id.as_str(), ours.dnc_partition_key.as_str()), (name, "partition-1"));
    assert_eq!(ours.orchestrator_type(), pb::OrchestratorType::Kubernetes);
    assert!(ours.agents.is_empty() && ours.waiting_for.is_empty(), "Standalone uses no agent");

    for asked in ["", name] {
        let node = client.get_node_info(which(asked)).await.unwrap().into_inner();
        assert_eq!((node.node_id.as_str(), node.status.as_str(), node.is_healthy), (name, "Serving", true));
        assert!(!node.name.is_empty() && node.message.is_empty(), "{node:?}");
    }
    let status = client.get_node_info(which("another")).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains(name), "{status}");

    let status = client.set_orchestrator_info(register(name, "Nomad")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "orchestratorType");
    cns.assert_sound().await;
}

/// Names may be ours to choose, numbers are not.
#[test]
fn field_numbers_are_those_of_the_reference() {
    let request = SetOrchestratorInfoRequest {
        dnc_partition_key: "a".into(),
        node_id: "b".into(),
        orchestrator_type: "c".into(),
    };
    assert_eq!(request.encode_to_vec(), b"\x0a\x01a\x12\x01b\x1a\x01c");
    assert_eq!(which("n").encode_to_vec(), b"\x0a\x01n");
    let response = NodeInfoResponse {
        node_id: "a".into(),
        name: "b".into(),
        ip: "c".into(),
        is_healthy: true,
        status: "d".into(),
        message: "e".into(),
    };
    assert_eq!(response.encode_to_vec(), b"\x0a\x01a\x12\x01b\x1a\x01c\x20\x01\x2a\x01d\x32\x01e");
}

/// The reference's listener is in cleartext and open to whoever reaches it.
#[tokio::test]
async fn the_listener_of_the_settings_is_there_and_is_not_open_to_the_network() {
    let free = free_port();
    let prepared = |address: &str| {
        let mut cns = Cns::prepared(&[]);
        let path = cns.directory().join("cns_config.json");
        let config = json!({"ChannelMode": "Standalone",
            "GRPCSettings": {"Enable": true, "IPAddress": address, "Port": free},
            "Node": {"StandaloneCIDRs": ["10.244.0.0/24"]}});
        std::fs::write(&path, config.to_string()).unwrap();
        cns.set_args(&["--config-path", path.to_str().unwrap()]);
        cns
    };
    let mut cns = prepared("0.0.0.0");
    cns.spawn();
    assert!(!cns.wait().unwrap().success());
    assert!(
        cns.log().contains("GRPCSettings.IPAddress") && cns.log().contains("--tls-cert"),
        "{}",
        cns.log()
    );

    let mut cns = prepared("localhost");
    cns.launch().await;
    let url = format!("http://127.0.0.1:{free}");
    until("the listener", || async { CnsClient::connect(url.clone()).await.is_ok() }).await;
    let node = CnsClient::connect(url).await.unwrap().get_node_info(which("")).await.unwrap();
    assert!(node.into_inner().is_healthy);
}
