//! The contract over a real unix socket: the real daemon, the generated client.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "../support/cns.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod cns_under_test;
#[path = "../support/need.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod need;

mod access;
mod agents;
mod compat;
mod errors;
mod insight;
mod ipam;
mod legacy;
mod lifecycle;
mod network_containers;
mod sandboxes;
mod watches;

use cns::proto::v1 as pb;

/// A pod's request for any address.
fn ask(container: &str) -> pb::RequestIpConfigsRequest {
    pb::RequestIpConfigsRequest {
        pod: Some(pb::PodIdentity { namespace: "prod".into(), name: format!("pod-{container}") }),
        infra_container_id: container.into(),
        pod_interface_id: format!("{container}-eth0"),
        ifname: "eth0".into(),
        ..Default::default()
    }
}

fn give(container: &str) -> pb::ReleaseIpConfigsRequest {
    pb::ReleaseIpConfigsRequest { infra_container_id: container.into(), ..Default::default() }
}

fn addresses(response: &pb::RequestIpConfigsResponse) -> Vec<String> {
    let config = |info: &pb::PodIpInfo| info.pod_ip_config.as_ref().map(|c| c.ip_address.clone());
    response.pod_ip_infos.iter().filter_map(config).collect()
}
