//! What one client can cost the others, and who may change state.

use std::{net::SocketAddr, os::unix::process::CommandExt as _, process::Command};

use cns::proto::v1 as pb;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    cns_under_test::Cns,
    http::{exchange, request},
    replay,
};

async fn daemon() -> (Cns, SocketAddr) {
    replay::daemon_with(&["--standalone-cidr", "10.244.0.0/24"]).await
}

fn wanted(container: &str) -> Value {
    json!({
        "podInterfaceID": "x", "infraContainerID": container, "ifname": "eth0",
        "orchestratorContext": {"podName": container, "podNamespace": "default"},
    })
}

/// Asks over REST; gives the address.
async fn ask(server: SocketAddr, container: &str) -> String {
    let body = wanted(container).to_string();
    let sent = request("POST", "/network/requestipconfigs", &[], Some(body.as_bytes()));
    let answer = exchange(server, &sent, "POST").await.unwrap();
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["response"]["ReturnCode"], 0, "{body}");
    body["podIPInfo"][0]["PodIPConfig"]["IPAddress"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_and_grpc_at_once_give_a_pod_one_address() {
    let (cns, server) = daemon().await;
    for i in 0..20 {
        let container = format!("container-{i}");
        let message = pb::RequestIpConfigsRequest {
            infra_container_id: container.clone(),
            ifname: "eth0".into(),
            ..Default::default()
        };
        let mut ipam = cns.ipam().await;
        let (rest, grpc) = tokio::join!(ask(server, &container), ipam.request_ip_configs(message));
        let grpc = grpc.unwrap().into_inner().pod_ip_infos.remove(0).pod_ip_config.unwrap().ip_address;
        assert_eq!(rest, grpc, "{container}");
    }
    cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_slow_connections_keep_nobody_out() {
    let (cns, server) = daemon().await;
    let mut idle = Vec::new();
    // More than there are places for, and as many as a process may open.
    for i in 0..800 {
        let Ok(mut stream) = TcpStream::connect(server).await else { break };
        if i % 2 == 0 {
            // Half a head, and never the rest.
            let _ = stream.write_all(b"POST /network/requestipconfigs HTTP/1.1\r\nHost: x\r\n").await;
        }
        idle.push(stream);
    }
    assert!(idle.len() > 600, "{}", idle.len());
    for i in 0..5 {
        ask(server, &format!("rest-{i}")).await;
        let message =
            pb::RequestIpConfigsRequest { infra_container_id: format!("grpc-{i}"), ..Default::default() };
        cns.ipam().await.request_ip_configs(message).await.unwrap();
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let (_cns, server) = daemon().await;
    let mut stream = TcpStream::connect(server).await.unwrap();
    let head = "POST /network/networkcontainers HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    ask(server, "afterwards").await;
}

/// Anybody on the host's network can reach a loopback port; only those who may over gRPC may change state here, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_on_this_machine_may_read_and_not_change() {
    if !super::need::need_root("a_stranger_on_this_machine_may_read_and_not_change") {
        return;
    }
    let (cns, server) = daemon().await;
    let as_stranger = |path: &'static str, body: String| async move {
        let sent = format!(
            "POST {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: {}\\r\\n\\r\\n{body}",
            body.len()
        );
        let script =
            format!("exec 3<>/dev/tcp/{}/{}; printf '%b' '{sent}' >&3; cat <&3", server.ip(), server.port());
        tokio::task::spawn_blocking(move || {
            let output = Command::new("bash").args(["-c", &script]).uid(4711).gid(4711).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
        .await
        .unwrap()
    };
    let refused = as_stranger("/network/requestipconfigs", wanted("stranger").to_string()).await;
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("user 4711"), "{refused}");
    let refused = as_stranger("/network/releaseipconfigs", wanted("stranger").to_string()).await;
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    let read = as_stranger("/debug/podcontext", String::new()).await;
    assert!(read.starts_with("HTTP/1.1 200 ") && read.contains("\"PodContext\":{}"), "{read}");
    cns.assert_sound().await;
}
