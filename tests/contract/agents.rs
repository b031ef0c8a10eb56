//! What the machine's agents know, over the contract: ChannelMode Direct with agents of its own (spec/host-agents.md,
//! network-containers.md §16, rows V and Q).

use std::collections::BTreeMap;

use cns_fake_agents::{Agent, FakeAgents, Fault};
use tonic::Code;
use tonic_types::StatusExt as _;

use super::{
    ask,
    cns_under_test::{Cns, free_port},
    pb,
};

const NC1: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";
const NC2: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a22";

/// A daemon in Direct with agents, and this orchestrator.
async fn direct(orchestrator: pb::OrchestratorType) -> (Cns, FakeAgents) {
    let agents = FakeAgents::start().await.unwrap();
    let mut cns = Cns::prepared(&[]);
    let config = cns.directory().join("cns_config.json");
    let settings = serde_json::json!({
        "ChannelMode": "Direct", "WireserverIP": agents.address(Agent::Wireserver).to_string(),
        "Node": {"IMDSURL": agents.url(Agent::Imds)}, "TelemetrySettings": {"DisableAll": true},
    });
    std::fs::write(&config, settings.to_string()).unwrap();
    cns.set_args(&["--config-path", config.to_str().unwrap()]);
    cns.launch().await;
    let request = pb::SetOrchestratorRequest {
        orchestrator_type: orchestrator.into(),
        node_id: "node-1".into(),
        ..Default::default()
    };
    cns.node().await.set_orchestrator(request).await.unwrap();
    (cns, agents)
}

/// An NC of `pod`, with as many addresses of version `version`.
async fn create(cns: &Cns, id: &str, version: &str, pod: &str, addresses: &[&str]) {
    let nc_version = version.parse().unwrap_or_default();
    let config = |address: &&str| {
        (address.to_string(), pb::SecondaryIpConfig { ip_address: address.to_string(), nc_version })
    };
    let nc = pb::NetworkContainer {
        id: id.into(),
        r#type: pb::NetworkContainerType::Docker.into(),
        version: version.into(),
        orchestrator_context: Some(pb::PodIdentity { namespace: "default".into(), name: pod.into() }),
        ip_configuration: Some(pb::IpConfiguration {
            ip_subnet: Some(pb::IpSubnet { ip_address: "10.240.0.5".into(), prefix_length: 24 }),
            ..Default::default()
        }),
        secondary_ip_configs: addresses.iter().map(config).collect::<BTreeMap<_, _>>(),
        ..Default::default()
    };
    let request = pb::CreateOrUpdateNetworkContainerRequest { network_container: Some(nc) };
    cns.ncs().await.create_or_update_network_container(request).await.unwrap();
}

async fn sync(cns: &Cns) -> Result<pb::SyncHostNcVersionsResponse, tonic::Status> {
    nmagent(cns)
        .await
        .sync_host_nc_versions(pb::SyncHostNcVersionsRequest {})
        .await
        .map(tonic::Response::into_inner)
}

async fn nmagent(cns: &Cns) -> pb::nm_agent_service_client::NmAgentServiceClient<tonic::transport::Channel> {
    pb::nm_agent_service_client::NmAgentServiceClient::new(cns.channel().await)
}

/// The host version that is recorded, and how many addresses are available and waiting for the host.
async fn status(cns: &Cns, id: &str) -> (String, u32, u32) {
    let request = pb::GetNetworkContainerStatusRequest { id: id.into() };
    let status =
        cns.ncs().await.get_network_container_status(request).await.unwrap().into_inner().status.unwrap();
    let v4 = status.ipv4.unwrap_or_default();
    (
        status.host_version.map_or("-1".into(), |version| version.to_string()),
        v4.available,
        v4.pending_programming,
    )
}

fn host_says(agents: &FakeAgents, ncs: &[(&str, &str)]) {
    agents.world(|world| {
        world.ncs = ncs.iter().map(|(id, version)| ((*id).to_owned(), (*version).to_owned())).collect();
    });
}

#[tokio::test]
async fn v1_v2_v4_v5_addresses_become_available_as_the_host_reports() {
    let (cns, agents) = direct(pb::OrchestratorType::KubernetesCrd).await;
    create(&cns, NC1, "3", "", &["10.240.0.17"]).await;
    assert_eq!(status(&cns, NC1).await, ("-1".into(), 0, 1));
    host_says(&agents, &[(NC1, "3")]);
    let synced = sync(&cns).await.unwrap();
    assert_eq!((synced.programmed, synced.promoted_ip_configs), (1, 1), "V1");
    assert_eq!(status(&cns, NC1).await, ("3".into(), 1, 0));

    agents.take_requests();
    sync(&cns).await.unwrap();
    assert!(
        agents.take_requests().iter().all(|request| !request.target.contains("interfaces")),
        "V5: nobody is asked"
    );

    create(&cns, NC1, "5", "", &["10.240.0.17", "10.240.0.18"]).await;
    host_says(&agents, &[(NC1, "4")]);
    sync(&cns).await.unwrap();
    assert_eq!(status(&cns, NC1).await, ("4".into(), 1, 1), "V2: what came with version 5 waits");
    host_says(&agents, &[(NC1, "3")]);
    let synced = sync(&cns).await.unwrap();
    assert_eq!(synced.outdated_network_container_ids, [NC1], "V4: the host does not go back");
    assert_eq!(status(&cns, NC1).await.0, "4");
    cns.assert_sound().await;
}

/// spec/metrics.md §2: the names that dashboards know.
#[tokio::test]
async fn rounds_of_asking_the_host_are_counted_and_timed() {
    let (mut cns, agents) = direct(pb::OrchestratorType::KubernetesCrd).await;
    assert!(cns.terminate().await.unwrap().success());
    let port = free_port();
    let config = cns.directory().join("cns_config.json").display().to_string();
    let probes = format!("127.0.0.1:{port}");
    cns.set_args(&["--config-path", &config, "--metrics-bind-address", &probes]);
    cns.launch().await;
    create(&cns, NC1, "3", "", &["10.240.0.17"]).await;
    host_says(&agents, &[(NC1, "3")]);
    sync(&cns).await.unwrap();
    create(&cns, NC1, "4", "", &["10.240.0.17"]).await;
    agents.fail("interfaces/api-version", Fault::Drop);
    sync(&cns).await.unwrap_err();
    let text = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
    .await
    .unwrap();
    for expected in [
        "sync_host_nc_version_total{ok=\"true\"} 1",
        "sync_host_nc_version_total{ok=\"false\"} 1",
        "sync_host_nc_version_latency_seconds_count{ok=\"true\"} 1",
        "has_networkcontainer 1",
    ] {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
}

#[tokio::test]
async fn v3_v6_v8_v11_who_lists_what_and_in_which_spelling() {
    let (cns, agents) = direct(pb::OrchestratorType::KubernetesCrd).await;
    create(&cns, &format!("Swift_{}", NC1.to_uppercase()), "3", "", &["10.240.0.17"]).await;
    create(&cns, NC2, "1", "", &["10.240.0.18"]).await;
    let synced = sync(&cns).await.unwrap();
    assert_eq!((synced.programmed, synced.outdated_network_container_ids.len()), (0, 2), "V3");
    host_says(&agents, &[(NC1, "3")]);
    let synced = sync(&cns).await.unwrap();
    assert_eq!(
        (synced.programmed, synced.outdated_network_container_ids),
        (1, vec![NC2.to_owned()]),
        "V6, V8"
    );
    agents.world(|world| world.imds_interfaces = vec![("00:0d:3a:f9:dc:a7".into(), NC2.into())]);
    assert_eq!(sync(&cns).await.unwrap().programmed, 2, "V11");
    assert_eq!(status(&cns, NC2).await, ("1".into(), 1, 0));
}

#[tokio::test]
async fn v7_v12_a_failing_agent_takes_nothing_back_and_what_is_known_survives_a_crash() {
    let (mut cns, agents) = direct(pb::OrchestratorType::KubernetesCrd).await;
    create(&cns, NC1, "3", "", &["10.240.0.17"]).await;
    host_says(&agents, &[(NC1, "2")]);
    sync(&cns).await.unwrap();
    for (fault, code) in [
        (Fault::Status(500), Code::Unavailable),
        (Fault::InnerStatus("401".into()), Code::PermissionDenied),
        (Fault::Truncate, Code::Unavailable),
        (Fault::NoInnerStatus, Code::Unavailable),
        (Fault::Huge(2 << 20), Code::Unavailable),
        (Fault::Hang, Code::Unavailable),
    ] {
        agents.heal();
        agents.fail("interfaces/api-version", fault.clone());
        let refused = sync(&cns).await.unwrap_err();
        assert_eq!(refused.code(), code, "{fault:?}: {refused}");
        let info = refused.get_details_error_info().unwrap();
        assert!(info.metadata.contains_key("remedy"), "{info:?}");
        assert_eq!(status(&cns, NC1).await, ("2".into(), 0, 1), "V7: {fault:?}");
    }
    agents.heal();
    agents.fail("interfaces/api-version", Fault::Chunked);
    host_says(&agents, &[(NC1, "3")]);
    sync(&cns).await.unwrap();
    cns.kill9();
    cns.launch().await;
    assert_eq!(status(&cns, NC1).await, ("3".into(), 1, 0), "V12");
    cns.assert_sound().await;
}

async fn of_pod(cns: &Cns, pod: &str) -> Vec<bool> {
    let context = pb::PodIdentity { namespace: "default".into(), name: pod.into() };
    let by = Some(pb::get_network_container_request::By::OrchestratorContext(context));
    let found = cns.ncs().await.get_network_container(pb::GetNetworkContainerRequest { by }).await.unwrap();
    found.into_inner().entries.into_iter().map(|entry| entry.programming_pending).collect()
}

#[tokio::test]
async fn q1_q2_q3_q4_a_query_says_whether_the_host_has_programmed_the_nc() {
    let (cns, agents) = direct(pb::OrchestratorType::Kubernetes).await;
    create(&cns, NC1, "2", "web-0", &[]).await;
    assert_eq!(of_pod(&cns, "web-0").await, [true], "Q2");
    agents.fail("interfaces/api-version", Fault::Status(500));
    assert_eq!(of_pod(&cns, "web-0").await, [false], "Q3: the check is skipped");
    agents.heal();
    host_says(&agents, &[(&NC1.to_uppercase(), "2")]);
    super::cns_under_test::until("NMAgent is asked again", || async {
        of_pod(&cns, "web-0").await;
        status(&cns, NC1).await.0 == "2"
    })
    .await;
    let request = pb::GetNetworkContainerStatusRequest { id: NC1.into() };
    let saved = cns.ncs().await.get_network_container_status(request.clone()).await.unwrap();
    assert!(saved.into_inner().status.unwrap().vfp_update_complete, "Q1");
    agents.take_requests();
    assert_eq!(of_pod(&cns, "web-0").await, [false], "Q1");
    assert!(
        agents.take_requests().iter().all(|request| !request.target.contains("interfaces")),
        "Q1: it is saved"
    );
    create(&cns, NC1, "3", "web-0", &[]).await;
    assert_eq!(of_pod(&cns, "web-0").await, [true], "Q4: a new goal is looked at anew");
    let saved = cns.ncs().await.get_network_container_status(request).await.unwrap();
    assert!(!saved.into_inner().status.unwrap().vfp_update_complete, "Q4");
    create(&cns, NC2, "x", "web-1", &[]).await;
    assert_eq!(of_pod(&cns, "web-1").await, [true], "a goal that is no number is never reached");
}

/// spec/network-containers.md §12 row 4: in the reference everybody waits while one asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_waits_while_a_query_waits_for_the_host() {
    let (cns, agents) = direct(pb::OrchestratorType::Kubernetes).await;
    create(&cns, NC1, "2", "web-0", &[]).await;
    agents.fail("interfaces/api-version", Fault::Hang);
    let waiting = of_pod(&cns, "web-0");
    tokio::pin!(waiting);
    let others = async {
        for i in 0..50 {
            // No pool in this mode: refused, and at once.
            cns.ipam().await.request_ip_configs(ask(&format!("c{i}"))).await.unwrap_err();
            status(&cns, NC1).await;
        }
    };
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("the query did not wait"),
        () = others => {}
    }
    assert_eq!(waiting.await, [false], "skipped in the end");
    // And it can be seen why.
    let node = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    let nmagent = node.agents.iter().find(|agent| agent.name == "NMAgent").unwrap();
    assert!(!nmagent.healthy && nmagent.since.is_some() && !nmagent.last_error.is_empty(), "{nmagent:?}");
}

/// MAC, as IMDS writes it, and name of a NIC of this machine, if it has one that is called so.
fn own_nic() -> Option<(String, String)> {
    let names = std::fs::read_dir("/sys/class/net").ok()?.flatten();
    let mut names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let name = names.find(|name| name.starts_with("eth"))?;
    let mac = std::fs::read_to_string(format!("/sys/class/net/{name}/address")).ok()?;
    Some((mac.trim().replace(':', "").to_uppercase(), name))
}

#[tokio::test]
async fn what_the_agents_say_is_passed_on() {
    let (cns, agents) = direct(pb::OrchestratorType::Kubernetes).await;
    host_says(&agents, &[(NC1, "3"), ("not an id", "1"), (NC2, "x")]);
    let mut nmagent = nmagent(&cns).await;
    let listed =
        nmagent.list_network_container_versions(pb::ListNetworkContainerVersionsRequest {}).await.unwrap();
    let listed: Vec<_> =
        listed.into_inner().versions.into_iter().map(|nc| (nc.network_container_id, nc.version)).collect();
    assert_eq!(listed, [(NC1.to_owned(), 3), (NC2.to_owned(), 0)]);
    let apis = nmagent.list_supported_ap_is(pb::ListSupportedApIsRequest::default()).await.unwrap();
    assert_eq!(apis.into_inner().supported_apis, ["GetHomeAz", "GetSupportedApis"]);
    let vm = cns
        .node()
        .await
        .get_vm_unique_id(pb::GetVmUniqueIdRequest {})
        .await
        .unwrap()
        .into_inner()
        .vm_unique_id;
    assert_eq!(vm, agents.world(|world| world.vm_id.clone()));
    // One NIC is this machine's own, so that it has a name; another bears an NC, a third is none.
    let own = own_nic();
    agents.world(|world| {
        let mac = own.as_ref().map_or("000D3AF9DCA6".to_owned(), |(mac, _)| mac.clone());
        world.imds_interfaces =
            vec![(mac, String::new()), ("000D3AF9DCA7".into(), NC1.into()), ("no MAC".into(), String::new())];
    });
    let nics =
        cns.node().await.list_nic_resources(pb::ListNicResourcesRequest {}).await.unwrap().into_inner();
    let nics: Vec<_> = nics.nic_resources.into_iter().collect();
    assert_eq!(nics.len(), 2, "{nics:?}");
    assert_eq!(nics[0].interface_name, own.map(|(_, name)| name).unwrap_or_default(), "{nics:?}");
    assert_eq!(
        (nics[1].mac_address.as_str(), nics[1].interface_compartment_id.as_str(), nics[1].capacity),
        ("00:0d:3a:f9:dc:a7", NC1, 1)
    );
    assert_eq!((&nics[1].vm_unique_id, nics[1].interface_name.as_str()), (&vm, ""));
    super::cns_under_test::until("the home zone", || async {
        let found = nmagent.clone().get_home_az(pb::GetHomeAzRequest {}).await;
        found.is_ok_and(|found| found.into_inner().home_az == 2)
    })
    .await;
    agents.fail("", Fault::Drop);
    for refused in [
        nmagent.list_supported_ap_is(pb::ListSupportedApIsRequest::default()).await.unwrap_err(),
        cns.node().await.get_vm_unique_id(pb::GetVmUniqueIdRequest {}).await.unwrap_err(),
        cns.node().await.list_nic_resources(pb::ListNicResourcesRequest {}).await.unwrap_err(),
    ] {
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.get_details_retry_info().is_some(), "{refused}");
    }
}

/// A delegated NIC's NC that host and container may talk over.
fn delegated(id: &str, pod: &str, address: &str, mac: &str) -> pb::NetworkContainer {
    let configuration = |address: &str, prefix_length, gateway: &str| pb::IpConfiguration {
        ip_subnet: Some(pb::IpSubnet { ip_address: address.into(), prefix_length }),
        gateway_ip_address: gateway.into(),
        ..Default::default()
    };
    pb::NetworkContainer {
        id: id.into(),
        r#type: pb::NetworkContainerType::Docker.into(),
        version: "1".into(),
        orchestrator_context: Some(pb::PodIdentity { namespace: "default".into(), name: pod.into() }),
        ip_configuration: Some(configuration(address, 24, "10.7.0.1")),
        local_ip_configuration: Some(configuration("169.254.128.7", 17, "169.254.128.1")),
        network_interface_info: Some(pb::NetworkInterfaceInfo {
            nic_type: pb::NicType::DelegatedVm.into(),
            mac_address: mac.into(),
        }),
        skip_default_routes: true,
        ..Default::default()
    }
}

fn pod_request(pod: &str) -> pb::RequestIpConfigsRequest {
    pb::RequestIpConfigsRequest {
        pod: Some(pb::PodIdentity { namespace: "default".into(), name: pod.into() }),
        ..ask("c1")
    }
}

/// spec/swiftv2.md §5: each NC is an interface, and one more leads to the host.
#[tokio::test]
async fn a_pod_with_network_containers_of_its_own_gets_an_interface_for_each() {
    let (cns, agents) = direct(pb::OrchestratorType::Kubernetes).await;
    let mut second = delegated(NC2, "web-0", "10.7.0.10", "60:45:bd:12:aa:02");
    second.allow_nc_to_host_communication = true;
    for nc in [delegated(NC1, "web-0", "10.7.0.9", "60:45:bd:12:aa:01"), second] {
        let request = pb::CreateOrUpdateNetworkContainerRequest { network_container: Some(nc) };
        cns.ncs().await.create_or_update_network_container(request).await.unwrap();
    }
    let mut ipam = cns.ipam().await;
    // The reference ignores both, and the pod starts without its network (spec/swiftv2.md §12).
    let refused = ipam.request_ip_configs(pod_request("web-0")).await.unwrap_err();
    assert_eq!(refused.get_details_error_info().unwrap().metadata["return_code"], "31", "{refused}");
    assert!(refused.get_details_retry_info().is_some());
    let refused = ipam.request_ip_configs(pod_request("nobody")).await.unwrap_err();
    assert_eq!(refused.get_details_error_info().unwrap().metadata["return_code"], "18", "{refused}");

    host_says(&agents, &[(NC1, "1"), (NC2, "1")]);
    let mut given = Vec::new();
    for _ in 0..2 {
        given.push(ipam.request_ip_configs(pod_request("web-0")).await.unwrap().into_inner().pod_ip_infos);
    }
    assert_eq!(given[0], given[1], "asking again gives the same");
    let nics: Vec<_> = given[0]
        .iter()
        .map(|info| {
            let config = info.pod_ip_config.clone().unwrap_or_default();
            (
                info.nic_type(),
                config.ip_address,
                info.mac_address.as_str(),
                info.network_container_id.as_str(),
            )
        })
        .collect();
    assert_eq!(
        nics,
        [
            (pb::NicType::DelegatedVm, "10.7.0.9".into(), "60:45:bd:12:aa:01", NC1),
            (pb::NicType::DelegatedVm, "10.7.0.10".into(), "60:45:bd:12:aa:02", NC2),
            (pb::NicType::Apipa, "169.254.128.7".into(), "", NC2),
        ]
    );
    let apipa = &given[0][2];
    assert!(
        apipa.skip_default_routes
            && apipa.allow_nc_to_host_communication
            && !apipa.allow_host_to_nc_communication
    );
    // No pool: nothing is held, and giving back is success.
    let give = pb::ReleaseIpConfigsRequest { pod_interface_id: "c1-eth0".into(), ..super::give("c1") };
    ipam.release_ip_configs(give).await.unwrap();
    cns.assert_sound().await;
}
