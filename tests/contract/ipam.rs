//! Addresses (spec/ipam.md §15, as far as a client sees it).

use std::collections::BTreeSet;

use tonic::Code;

use super::{addresses, ask, cns_under_test::Cns, give, pb};

const DUAL: &[&str] = &["--standalone-cidr", "10.244.0.0/28,fd00:10:244::/124"];

#[tokio::test]
async fn r1_r2_l1_a_pod_gets_addresses_keeps_them_and_gives_them_back() {
    let cns = Cns::start(DUAL).await;
    let mut ipam = cns.ipam().await;
    let first = ipam.request_ip_configs(ask("c1")).await.unwrap().into_inner();
    assert_eq!(addresses(&first), ["10.244.0.2", "fd00:10:244::2"]);
    assert!(!first.repeated_request);
    let again = ipam.request_ip_configs(ask("c1")).await.unwrap().into_inner();
    assert_eq!((addresses(&again), again.repeated_request), (addresses(&first), true));
    let lengths: Vec<_> =
        first.pod_ip_infos.iter().map(|i| i.pod_ip_config.as_ref().unwrap().prefix_length).collect();
    assert_eq!(lengths, [28, 124], "each family has its own prefix length");
    let mut endpoints = cns.endpoints().await;
    let endpoint = endpoints.get_endpoint(pb::GetEndpointRequest { container_id: "c1".into() });
    let endpoint = endpoint.await.unwrap().into_inner().endpoint.unwrap();
    assert_eq!(endpoint.interfaces[0].ipv4, ["10.244.0.2/28"]);
    assert_eq!(endpoint.interfaces[0].ipv6, ["fd00:10:244::2/124"]);
    let released = ipam.release_ip_configs(give("c1")).await.unwrap().into_inner();
    assert_eq!(released.released_ip_addresses, addresses(&first));
    let twice = ipam.release_ip_configs(give("c1")).await.unwrap().into_inner();
    assert_eq!(twice.outcome(), pb::ReleaseOutcome::NothingHeld, "L2");
    cns.assert_sound().await;
}

#[tokio::test]
async fn r14_r15_concurrent_clients_get_distinct_addresses_and_one_key_one() {
    let cns = Cns::start(&["--standalone-cidr", "10.244.0.0/26"]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..50 {
        let mut ipam = cns.ipam().await;
        tasks.spawn(async move { ipam.request_ip_configs(ask(&format!("c{i}"))).await });
        let mut ipam = cns.ipam().await;
        tasks.spawn(async move { ipam.request_ip_configs(ask("same")).await });
    }
    let granted: Vec<_> =
        tasks.join_all().await.into_iter().map(|r| addresses(r.unwrap().get_ref())).collect();
    let distinct: BTreeSet<_> = granted.iter().flatten().collect();
    assert_eq!(distinct.len(), 51);
    // 61 addresses: ten are left, the next fifteen pods share them.
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..15 {
        let mut ipam = cns.ipam().await;
        tasks.spawn(async move { ipam.request_ip_configs(ask(&format!("late{i}"))).await });
    }
    let outcomes = tasks.join_all().await;
    let refused: Vec<_> = outcomes.iter().filter_map(|o| o.as_ref().err()).collect();
    assert_eq!(refused.len(), 5);
    assert!(refused.iter().all(|status| status.code() == Code::ResourceExhausted));
    cns.assert_sound().await;
}

#[tokio::test]
async fn lists_come_in_pages_and_by_filter() {
    let cns = Cns::start(DUAL).await;
    let mut ipam = cns.ipam().await;
    ipam.request_ip_configs(ask("c1")).await.unwrap();
    let mut all = Vec::new();
    let mut token = String::new();
    loop {
        let request = pb::ListIpConfigsRequest { page_size: 7, page_token: token, ..Default::default() };
        let page = ipam.list_ip_configs(request).await.unwrap().into_inner();
        assert!(page.ip_configs.len() <= 7);
        all.extend(page.ip_configs.into_iter().map(|ip| ip.ip_address));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(all.len(), 13 + 14);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    let assigned =
        pb::ListIpConfigsRequest { states: vec![pb::IpState::Assigned.into()], ..Default::default() };
    let assigned = ipam.list_ip_configs(assigned).await.unwrap().into_inner().ip_configs;
    assert_eq!(assigned.len(), 2);
    assert_eq!(assigned[0].owner.as_ref().unwrap().infra_container_id, "c1");
    let v6 = pb::ListIpConfigsRequest { family: pb::IpFamily::Ipv6.into(), ..Default::default() };
    assert_eq!(ipam.list_ip_configs(v6).await.unwrap().into_inner().ip_configs.len(), 14);
    let of_pod = pb::ListPodIpConfigsRequest {
        pod: Some(pb::PodIdentity { namespace: "prod".into(), name: "pod-c1".into() }),
        ..Default::default()
    };
    assert_eq!(ipam.list_pod_ip_configs(of_pod).await.unwrap().into_inner().ip_configs.len(), 2);
}

#[tokio::test]
async fn a_freed_address_cools_down_and_says_until_when() {
    let cns = Cns::start(&["--cool-down", "1h"]).await;
    let mut ipam = cns.ipam().await;
    ipam.request_ip_configs(ask("c1")).await.unwrap();
    ipam.release_ip_configs(give("c1")).await.unwrap();
    let list = ipam.list_ip_configs(pb::ListIpConfigsRequest::default()).await.unwrap().into_inner();
    let freed = list.ip_configs.iter().find(|ip| ip.ip_address == "10.244.0.2").unwrap();
    assert!(freed.cooling_until.is_some());
    let next = ipam.request_ip_configs(ask("c2")).await.unwrap().into_inner();
    assert_eq!(addresses(&next), ["10.244.0.3"], "L8");
}

#[tokio::test]
async fn watchers_see_what_there_is_and_then_what_changes() {
    let cns = Cns::start(&["--standalone-cidr", "10.244.0.0/29"]).await;
    let mut ipam = cns.ipam().await;
    let watch = pb::WatchIpConfigsRequest { send_initial_state: true, ..Default::default() };
    let mut stream = ipam.watch_ip_configs(watch).await.unwrap().into_inner();
    let mut initial = 0;
    while !stream.message().await.unwrap().unwrap().initial_state_complete {
        initial += 1;
    }
    assert_eq!(initial, 5);
    let mut endpoints = cns.endpoints().await;
    let mut records =
        endpoints.watch_endpoints(pb::WatchEndpointsRequest::default()).await.unwrap().into_inner();
    ipam.request_ip_configs(ask("c1")).await.unwrap();
    let change = stream.message().await.unwrap().unwrap();
    assert_eq!(change.ip_config.as_ref().unwrap().state(), pb::IpState::Assigned);
    assert_eq!(change.previous_state(), pb::IpState::Available);
    assert_eq!(records.message().await.unwrap().unwrap().endpoint.unwrap().container_id, "c1");
    ipam.release_ip_configs(give("c1")).await.unwrap();
    let change = stream.message().await.unwrap().unwrap();
    assert_eq!(change.ip_config.unwrap().state(), pb::IpState::Available);
    assert!(records.message().await.unwrap().unwrap().deleted);
}

#[tokio::test]
async fn an_add_that_began_before_its_clean_up_does_not_win() {
    let cns = Cns::start(&[]).await;
    let mut ipam = cns.ipam().await;
    let timed = |at| pb::ReleaseIpConfigsRequest { began_boottime_ns: Some(at), ..give("c1") };
    ipam.release_ip_configs(timed(2_000)).await.unwrap();
    let late = pb::RequestIpConfigsRequest { began_boottime_ns: Some(1_000), ..ask("c1") };
    assert_eq!(ipam.request_ip_configs(late).await.unwrap_err().code(), Code::Aborted);
    let newer = pb::RequestIpConfigsRequest { began_boottime_ns: Some(3_000), ..ask("c1") };
    ipam.request_ip_configs(newer).await.unwrap();
    let stale = ipam.release_ip_configs(timed(2_500)).await.unwrap().into_inner();
    assert_eq!(stale.outcome(), pb::ReleaseOutcome::Stale);
    cns.assert_sound().await;
}

/// The legacy singular call is a request for exactly one address of exactly one network container.
#[tokio::test]
async fn s1_s2_s3_the_singular_call_is_refused_where_one_is_not_what_there_is() {
    let single = |container: &str| pb::RequestIpConfigsRequest { exactly_one: true, ..ask(container) };
    let release = |container: &str| pb::ReleaseIpConfigsRequest { exactly_one: true, ..give(container) };
    let code = |status: &tonic::Status| {
        tonic_types::StatusExt::get_details_error_info(status).unwrap().metadata["return_code"].clone()
    };
    let cns = Cns::start(&["--standalone-cidr", "10.244.0.0/28"]).await;
    let mut ipam = cns.ipam().await;
    let granted = ipam.request_ip_configs(single("c1")).await.unwrap().into_inner();
    assert_eq!(granted.pod_ip_infos.len(), 1, "S1");
    let released = ipam.release_ip_configs(release("c1")).await.unwrap().into_inner();
    assert_eq!(released.released_ip_addresses, addresses(&granted));

    let cns = Cns::start(&["--standalone-cidr", "10.1.0.0/28", "--standalone-cidr", "10.2.0.0/28"]).await;
    let mut ipam = cns.ipam().await;
    let refused = ipam.request_ip_configs(single("c1")).await.unwrap_err();
    assert!(
        refused.message().contains("Expected 1 NC when calling this API but found 2 NCs"),
        "S2: {refused}"
    );
    assert_eq!(code(&refused), "23");
    assert_eq!(code(&ipam.release_ip_configs(release("c1")).await.unwrap_err()), "23");

    let cns = Cns::start(DUAL).await;
    let refused = cns.ipam().await.request_ip_configs(single("c1")).await.unwrap_err();
    assert!(refused.message().contains("Expected 1 and returned 2"), "S3: {refused}");
    assert_eq!(code(&refused), "99");
    let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.ip_counts.unwrap().assigned, 0, "S3: nothing stays behind");
}

/// What debugging tools of the legacy contract read of an owner.
#[tokio::test]
async fn an_owner_is_told_with_its_scheme_and_its_secondary_interfaces() {
    let mut cns = Cns::start(&[]).await;
    let ask = pb::RequestIpConfigsRequest { secondary_interfaces_exist: true, ..ask("c1") };
    cns.ipam().await.request_ip_configs(ask).await.unwrap();
    for _ in 0..2 {
        let list = pb::ListPodIpConfigsRequest { infra_container_id: "c1".into(), ..Default::default() };
        let held = cns.ipam().await.list_pod_ip_configs(list).await.unwrap().into_inner().ip_configs;
        assert!(held[0].owner.as_ref().unwrap().secondary_interfaces_exist);
        let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.pod_key_scheme(), pb::PodKeyScheme::InfraContainerId);
        // Also after a restart.
        assert!(cns.terminate().await.unwrap().success());
        cns.launch().await;
    }
}
