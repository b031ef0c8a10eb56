//! What pods and clients are told of the host's primary interface, by a daemon that lives in a namespace of the lab.

use cns::proto::v1 as pb;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use crate::{
    cns_under_test::{Cns, until},
    lab::{HOST_V4, HOST_V6, Lab, WORLD_V4},
};

const NETWORKS: [&str; 2] = ["--standalone-cidr", "10.244.0.0/24"];

fn ask(container: &str) -> pb::RequestIpConfigsRequest {
    pb::RequestIpConfigsRequest {
        infra_container_id: container.into(),
        pod_interface_id: format!("{container}-eth0"),
        ifname: "eth0".into(),
        ..Default::default()
    }
}

/// `(gateway, primary address, subnet)` as a pod is told; asking again gives the same addresses and what is known now.
async fn told(cns: &Cns) -> Option<(String, String, String)> {
    let mut answer = cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap().into_inner().pod_ip_infos;
    let host = answer.remove(0).host_primary_ip_info?;
    Some((host.gateway, host.primary_ip, host.subnet))
}

fn info(gateway: &str, primary: &str, subnet: &str) -> (String, String, String) {
    (gateway.to_owned(), primary.to_owned(), subnet.to_owned())
}

async fn host_local_ip(cns: &Cns) -> Result<String, tonic::Code> {
    let answer = cns.node().await.get_host_local_ip(pb::GetHostLocalIpRequest {}).await;
    answer.map(|answer| answer.into_inner().ip_address).map_err(|status| status.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_told_of_the_host_s_primary_interface_and_of_its_changes() {
    let Some(lab) = Lab::new("pods_are_told_of_the_host_s_primary_interface_and_of_its_changes").await else {
        return;
    };
    let mut cns = Cns::prepared(&[]);
    let rest = cns.directory().join("rest.sock");
    let url = format!("unix://{}", rest.display());
    cns.set_args(&[NETWORKS[0], NETWORKS[1], "--cns-url", &url]);
    let mut cns = cns.in_netns(lab.host.path());
    cns.launch().await;

    // The first address after the base is the gateway by the contract, although it is the host's own in the lab.
    assert_eq!(told(&cns).await, Some(info("192.0.2.1", HOST_V4, "192.0.2.0/24")));
    assert_eq!(host_local_ip(&cns).await.as_deref(), Ok(HOST_V4));
    let mut legacy = UnixStream::connect(&rest).await.unwrap();
    let body = r#"{"podInterfaceID":"l1-eth0","infraContainerID":"l1","ifname":"eth0","orchestratorContext":{"podName":"p","podNamespace":"n"}}"#;
    let request = format!(
        "POST /network/requestipconfigs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    legacy.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    legacy.read_to_string(&mut answer).await.unwrap();
    let expected =
        r#""HostPrimaryIPInfo":{"Gateway":"192.0.2.1","PrimaryIP":"192.0.2.1","Subnet":"192.0.2.0/24"}"#;
    assert!(answer.contains(expected), "{answer}");

    // Another address on the same link is none of it: the default route still leads through the first one's subnet.
    lab.host.add_address("uplink", "203.0.113.200/25").await;
    lab.host.delete_route("0.0.0.0/0").await;
    until("the default route is seen to be gone", async || told(&cns).await.is_none()).await;
    assert_eq!(host_local_ip(&cns).await.as_deref(), Ok(HOST_V6), "the world still knows the host by IPv6");

    lab.host.add_default_route("203.0.113.129").await;
    let moved = Some(info("203.0.113.129", "203.0.113.200", "203.0.113.128/25"));
    until("the new default route is seen", async || told(&cns).await == moved).await;
    assert_eq!(host_local_ip(&cns).await.as_deref(), Ok("203.0.113.200"));

    // With the link the kernel takes the routes away and says nothing of them.
    lab.host.set_down("uplink").await;
    until("the link is seen to be down", async || told(&cns).await.is_none()).await;
    assert_eq!(host_local_ip(&cns).await, Err(tonic::Code::Unavailable));

    lab.host.set_up("uplink").await;
    lab.host.add_default_route(WORLD_V4).await;
    let back = Some(info("192.0.2.1", HOST_V4, "192.0.2.0/24"));
    until("the link is seen to be back", async || told(&cns).await == back).await;
    cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_primary_interface_is_known_without_privileges() {
    let Some(lab) = Lab::new("the_primary_interface_is_known_without_privileges").await else { return };
    let mut cns = Cns::prepared(&NETWORKS).in_netns(lab.host.path()).unprivileged();
    cns.launch().await;
    assert_eq!(told(&cns).await, Some(info("192.0.2.1", HOST_V4, "192.0.2.0/24")));
    lab.host.delete_route("0.0.0.0/0").await;
    until("the default route is seen to be gone", async || told(&cns).await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_a_default_route_has_no_primary_interface() {
    let Some(lab) = Lab::new("a_host_without_a_default_route_has_no_primary_interface").await else { return };
    let bare = lab.pod("bare");
    let mut cns = Cns::prepared(&NETWORKS).in_netns(bare.path());
    cns.launch().await;
    assert_eq!(told(&cns).await, None);
    assert_eq!(host_local_ip(&cns).await, Err(tonic::Code::Unavailable));
}
