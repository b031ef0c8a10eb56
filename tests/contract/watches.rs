//! Watches: everything durable is told, once and in order; filters hold; nobody waits for a slow watcher, who is told.

use cns::proto::v1::{
    debug_service_client::DebugServiceClient, endpoint_service_client::EndpointServiceClient,
    ipam_service_client::IpamServiceClient, network_container_service_client::NetworkContainerServiceClient,
};
use tonic::{
    Code, Streaming,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;

use super::{addresses, ask, cns_under_test::Cns, give, pb};

async fn next<T>(stream: &mut Streaming<T>) -> T {
    stream.message().await.unwrap().expect("the stream goes on")
}

/// Until the message that says so, which carries nothing else.
async fn initial(stream: &mut Streaming<pb::WatchIpConfigsResponse>) -> Vec<pb::IpConfig> {
    let mut found = Vec::new();
    loop {
        let told = next(stream).await;
        assert_eq!((told.sequence, told.previous_state()), (0, pb::IpState::Unspecified));
        let Some(ip) = told.ip_config else {
            assert!(told.initial_state_complete);
            return found;
        };
        found.push(ip);
    }
}

#[tokio::test]
async fn a_request_shows_up_in_all_watches_in_order() {
    let cns = Cns::start(&[]).await;
    let channel = cns.channel().await;
    let mut ipam = IpamServiceClient::new(channel.clone());
    ipam.request_ip_configs(ask("before")).await.unwrap();
    let wanted = pb::WatchIpConfigsRequest { send_initial_state: true, ..Default::default() };
    let mut ips = ipam.watch_ip_configs(wanted).await.unwrap().into_inner();
    let wanted = pb::WatchEndpointsRequest { send_initial_state: true };
    let mut endpoints =
        EndpointServiceClient::new(channel.clone()).watch_endpoints(wanted).await.unwrap().into_inner();
    let wanted = pb::WatchEventsRequest::default();
    let mut events = DebugServiceClient::new(channel).watch_events(wanted).await.unwrap().into_inner();

    let known = initial(&mut ips).await;
    assert_eq!(known.len(), 253);
    assert_eq!(known.iter().filter(|ip| ip.owner.is_some()).count(), 1);
    assert_eq!(next(&mut endpoints).await.endpoint.unwrap().container_id, "before");
    assert!(next(&mut endpoints).await.initial_state_complete);

    let granted = addresses(&ipam.request_ip_configs(ask("c1")).await.unwrap().into_inner());
    ipam.request_ip_configs(pb::RequestIpConfigsRequest {
        desired_ip_addresses: granted.clone(),
        ..ask("c2")
    })
    .await
    .unwrap_err();
    ipam.release_ip_configs(give("c1")).await.unwrap();

    let (given, freed) = (next(&mut ips).await, next(&mut ips).await);
    let (now, then) = (given.ip_config.clone().unwrap(), freed.ip_config.clone().unwrap());
    assert_eq!(
        (now.ip_address.as_str(), then.ip_address.as_str()),
        (granted[0].as_str(), granted[0].as_str())
    );
    assert_eq!((given.previous_state(), now.state()), (pb::IpState::Available, pb::IpState::Assigned));
    assert_eq!((freed.previous_state(), then.state()), (pb::IpState::Assigned, pb::IpState::Available));
    // Each as it was then, not as it is by now.
    assert_eq!(now.owner.unwrap().infra_container_id, "c1");
    assert!(then.owner.is_none() && then.cooling_until.is_some());

    let (made, gone) = (next(&mut endpoints).await, next(&mut endpoints).await);
    assert_eq!((made.deleted, gone.deleted), (false, true));
    assert_eq!(made.endpoint.unwrap().interfaces[0].ipv4, [format!("{}/24", granted[0])]);
    assert_eq!(gone.endpoint.unwrap().container_id, "c1");

    let mut told = Vec::new();
    while told.len() < 3 {
        told.push(next(&mut events).await.event.unwrap());
    }
    let outcomes: Vec<_> = told.iter().map(|event| (event.operation.as_str(), event.outcome())).collect();
    assert_eq!(
        outcomes,
        [
            ("RequestIPConfigs", pb::EventOutcome::Done),
            ("RequestIPConfigs", pb::EventOutcome::Refused),
            ("ReleaseIPConfigs", pb::EventOutcome::Done)
        ]
    );
    // One sequence runs through all three.
    assert_eq!([told[0].sequence, told[2].sequence], [given.sequence, freed.sequence]);
    assert_eq!([told[0].sequence, told[2].sequence], [made.sequence, gone.sequence]);
    assert_eq!(told[1].sequence, told[0].sequence + 1);
}

#[tokio::test]
async fn the_filter_by_network_container_holds_also_for_what_goes() {
    let cns = Cns::start(&["--standalone-cidr", "10.1.0.0/29", "--standalone-cidr", "10.2.0.0/29"]).await;
    let channel = cns.channel().await;
    let mut ncs = NetworkContainerServiceClient::new(channel.clone());
    let list = ncs.list_network_containers(pb::ListNetworkContainersRequest::default()).await.unwrap();
    let id = |subnet: &str| {
        let of = |entry: &pb::NetworkContainerEntry| {
            let nc = entry.network_container.clone().unwrap();
            let primary = nc.ip_configuration.unwrap().ip_subnet.unwrap().ip_address;
            primary.starts_with(subnet).then_some(nc.id)
        };
        list.get_ref().entries.iter().find_map(of).unwrap()
    };
    let (first, second) = (id("10.1."), id("10.2."));
    let mut ipam = IpamServiceClient::new(channel);
    let watch = |nc: &str| pb::WatchIpConfigsRequest {
        send_initial_state: true,
        network_container_id: nc.to_owned(),
    };
    let mut stream = ipam.watch_ip_configs(watch(&second)).await.unwrap().into_inner();
    let known = initial(&mut stream).await;
    assert!(!known.is_empty() && known.iter().all(|ip| ip.ip_address.starts_with("10.2.")), "{known:?}");
    // The other network container changes, and goes with all its addresses.
    let of_the_first =
        pb::RequestIpConfigsRequest { desired_ip_addresses: vec!["10.1.0.3".into()], ..ask("c1") };
    ipam.request_ip_configs(of_the_first).await.unwrap();
    ipam.release_ip_configs(give("c1")).await.unwrap();
    ncs.delete_network_container(pb::DeleteNetworkContainerRequest { id: first }).await.unwrap();
    let of_the_second =
        pb::RequestIpConfigsRequest { desired_ip_addresses: vec!["10.2.0.3".into()], ..ask("c2") };
    ipam.request_ip_configs(of_the_second).await.unwrap();
    assert_eq!(next(&mut stream).await.ip_config.unwrap().ip_address, "10.2.0.3");
    // It goes as well: the free ones at once, the one that a pod holds is marked and goes later.
    ncs.delete_network_container(pb::DeleteNetworkContainerRequest { id: second.clone() }).await.unwrap();
    for _ in 1..known.len() {
        let gone = next(&mut stream).await;
        let ip = gone.ip_config.clone().unwrap();
        if ip.ip_address == "10.2.0.3" {
            assert_eq!((ip.state(), ip.on_release()), (pb::IpState::Assigned, pb::OnRelease::Remove));
        } else {
            assert_eq!(
                (ip.state(), gone.previous_state()),
                (pb::IpState::Unspecified, pb::IpState::Available)
            );
            assert_eq!(ip.network_container_id, second);
        }
    }
}

/// The journal sums many alike changes up; a watcher needs each.
#[tokio::test]
async fn a_change_of_many_addresses_is_told_one_by_one() {
    let cns = Cns::start(&["--standalone-cidr", "10.1.0.0/24"]).await;
    let channel = cns.channel().await;
    let mut ipam = IpamServiceClient::new(channel.clone());
    let mut stream = ipam.watch_ip_configs(pb::WatchIpConfigsRequest::default()).await.unwrap().into_inner();
    let mut ncs = NetworkContainerServiceClient::new(channel);
    let list = ncs.list_network_containers(pb::ListNetworkContainersRequest::default()).await.unwrap();
    let id = list.into_inner().entries.remove(0).network_container.unwrap().id;
    ncs.delete_network_container(pb::DeleteNetworkContainerRequest { id }).await.unwrap();
    let mut gone = std::collections::BTreeSet::new();
    while gone.len() < 253 {
        let told = next(&mut stream).await;
        assert_eq!(told.previous_state(), pb::IpState::Available);
        assert!(gone.insert(told.ip_config.unwrap().ip_address), "told once");
    }
}

/// Requests and releases, in twos, until there were so many commands.
async fn churn(channel: &Channel, commands: usize) {
    const CLIENTS: usize = 32;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let mut ipam = IpamServiceClient::new(channel.clone());
        clients.spawn(async move {
            for _ in 0..commands / CLIENTS / 2 {
                ipam.request_ip_configs(ask(&format!("c{client}"))).await.unwrap();
                ipam.release_ip_configs(give(&format!("c{client}"))).await.unwrap();
            }
        });
    }
    clients.join_all().await;
}

/// A connection of its own that takes little without being read.
async fn narrow(cns: &Cns) -> Channel {
    let endpoint = Endpoint::try_from(format!("unix:{}", cns.socket().display())).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    endpoint.connect().await.unwrap()
}

#[tokio::test]
async fn a_slow_watcher_holds_nobody_up_and_is_told_what_to_do() {
    let cns = Cns::start(&["--journal-entries", "20000"]).await;
    let wanted = pb::WatchIpConfigsRequest { send_initial_state: true, ..Default::default() };
    let mut ips =
        IpamServiceClient::new(narrow(&cns).await).watch_ip_configs(wanted).await.unwrap().into_inner();
    let wanted = pb::WatchEventsRequest::default();
    let mut events =
        DebugServiceClient::new(narrow(&cns).await).watch_events(wanted).await.unwrap().into_inner();
    // Nobody reads. More than the windows and the daemon's buffer hold together.
    let channel = cns.channel().await;
    churn(&channel, 12_000).await;
    cns.assert_sound().await;

    let failure = loop {
        match ips.message().await {
            Ok(told) => assert!(told.is_some(), "it does not end as if all were well"),
            Err(status) => break status,
        }
    };
    assert_eq!(failure.code(), Code::DataLoss, "{failure}");
    let info = failure.get_details_error_info().unwrap();
    assert_eq!(info.metadata["detail"], "WATCHER_TOO_SLOW");
    assert!(info.metadata["remedy"].contains("initial state"), "{info:?}");

    let (mut last, failure) = (None, loop_until_failure(&mut events).await);
    let (told, status) = failure;
    assert_eq!(status.code(), Code::DataLoss, "{status}");
    for event in told {
        assert!(last.is_none_or(|last| event.sequence == last + 1), "no hole before the failure");
        last = Some(event.sequence);
    }
    let info = status.get_details_error_info().unwrap();
    let from_sequence: u64 = info.metadata["next_sequence"].parse().unwrap();
    assert_eq!(last.map(|last| last + 1), Some(from_sequence));
    // And from there the journal has everything, without a hole.
    let mut again =
        cns.debug().await.watch_events(pb::WatchEventsRequest { from_sequence }).await.unwrap().into_inner();
    for expected in from_sequence..from_sequence + 3_000 {
        assert_eq!(next(&mut again).await.event.unwrap().sequence, expected);
    }
}

async fn loop_until_failure(
    events: &mut Streaming<pb::WatchEventsResponse>,
) -> (Vec<pb::Event>, tonic::Status) {
    let mut told = Vec::new();
    loop {
        match events.message().await {
            Ok(next) => told.push(next.expect("it does not end as if all were well").event.unwrap()),
            Err(status) => return (told, status),
        }
    }
}

#[tokio::test]
async fn what_the_journal_no_longer_has_is_counted() {
    let cns = Cns::start(&["--journal-entries", "4"]).await;
    let mut ipam = cns.ipam().await;
    for i in 0..10 {
        ipam.request_ip_configs(ask(&format!("c{i}"))).await.unwrap();
    }
    let latest =
        cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner().sequence;
    let wanted = pb::WatchEventsRequest { from_sequence: 1 };
    let mut stream = cns.debug().await.watch_events(wanted).await.unwrap().into_inner();
    let first = next(&mut stream).await;
    assert_eq!((first.missed, first.event), (latest - 1 - 4, None));
    assert_eq!(next(&mut stream).await.event.unwrap().sequence, latest - 4);
    // A sequence that is yet to come is waited for.
    let wanted = pb::WatchEventsRequest { from_sequence: latest + 1 };
    let mut stream = cns.debug().await.watch_events(wanted).await.unwrap().into_inner();
    ipam.request_ip_configs(ask("x")).await.unwrap();
    ipam.request_ip_configs(ask("y")).await.unwrap();
    assert_eq!(next(&mut stream).await.event.unwrap().sequence, latest + 1);
}

#[tokio::test]
async fn the_number_of_watches_is_bounded_and_a_place_is_free_again() {
    let cns = Cns::start(&[]).await;
    let mut open = Vec::new();
    let mut refused = None;
    // A connection carries 200 streams.
    'all: for _ in 0..3 {
        let mut ipam = cns.ipam().await;
        for _ in 0..100 {
            match ipam.watch_ip_configs(pb::WatchIpConfigsRequest::default()).await {
                Ok(stream) => open.push(stream.into_inner()),
                Err(status) => {
                    refused = Some(status);
                    break 'all;
                }
            }
        }
    }
    let status = refused.expect("not without end");
    assert_eq!((open.len(), status.code()), (256, Code::ResourceExhausted), "{status}");
    let info = status.get_details_error_info().unwrap();
    assert_eq!(
        (info.metadata["detail"].as_str(), info.metadata["limit"].as_str()),
        ("TOO_MANY_WATCHES", "256")
    );
    // Everything else goes on.
    cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap();
    drop(open);
    super::cns_under_test::until("a place is free again", || async {
        cns.debug().await.watch_events(pb::WatchEventsRequest::default()).await.is_ok()
    })
    .await;
}
