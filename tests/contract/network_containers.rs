//! Network containers over the API (spec/network-containers.md §16).

use std::collections::BTreeMap;

use tonic::Code;
use tonic_types::StatusExt as _;

use super::{addresses, ask, cns_under_test::Cns, give, pb};

const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

fn nc(secondaries: &[&str]) -> pb::NetworkContainer {
    let config = |address: &&str| {
        (address.to_string(), pb::SecondaryIpConfig { ip_address: address.to_string(), nc_version: 0 })
    };
    pb::NetworkContainer {
        id: NC.into(),
        r#type: pb::NetworkContainerType::Docker.into(),
        version: "0".into(),
        authorization_token: "secret-token".into(),
        ip_configuration: Some(pb::IpConfiguration {
            ip_subnet: Some(pb::IpSubnet { ip_address: "10.240.0.5".into(), prefix_length: 24 }),
            gateway_ip_address: "10.240.0.1".into(),
            ..Default::default()
        }),
        secondary_ip_configs: secondaries.iter().map(config).collect::<BTreeMap<_, _>>(),
        routes: vec![pb::Route { destination: "10.96.0.0/12".into(), ..Default::default() }],
        ..Default::default()
    }
}

async fn create(
    cns: &Cns,
    nc: pb::NetworkContainer,
) -> Result<pb::CreateOrUpdateNetworkContainerResponse, tonic::Status> {
    let request = pb::CreateOrUpdateNetworkContainerRequest { network_container: Some(nc) };
    cns.ncs().await.create_or_update_network_container(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn an_nc_is_created_read_back_and_deleted_when_its_pods_are_gone() {
    let cns = Cns::start(&["--standalone-cidr", "10.244.0.0/30"]).await;
    let created = create(&cns, nc(&["10.240.0.17"])).await.unwrap();
    assert!(created.created);
    assert_eq!(created.status.unwrap().ipv4.unwrap().available, 1);
    let mut ncs = cns.ncs().await;
    let by_id = pb::GetNetworkContainerRequest {
        by: Some(pb::get_network_container_request::By::Id(format!("Swift_{}", NC.to_uppercase()))),
    };
    let found = ncs.get_network_container(by_id.clone()).await.unwrap().into_inner().entries.remove(0);
    let found = found.network_container.unwrap();
    assert_eq!(
        found,
        pb::NetworkContainer { authorization_token: String::new(), ..nc(&["10.240.0.17"]) }.normalised()
    );
    let mut ipam = cns.ipam().await;
    let wanted =
        pb::RequestIpConfigsRequest { desired_ip_addresses: vec!["10.240.0.17".into()], ..ask("c1") };
    ipam.request_ip_configs(wanted).await.unwrap();
    let refused = create(&cns, nc(&[])).await.unwrap_err();
    assert_eq!(refused.get_details_error_info().unwrap().metadata["return_code"], "29", "N6");
    let deleted =
        ncs.delete_network_container(pb::DeleteNetworkContainerRequest { id: NC.into() }).await.unwrap();
    assert_eq!(deleted.into_inner().held_ip_addresses, ["10.240.0.17"], "E4");
    let again = ipam.request_ip_configs(ask("c1")).await.unwrap().into_inner();
    assert_eq!(addresses(&again), ["10.240.0.17"], "its pod keeps it");
    ipam.release_ip_configs(give("c1")).await.unwrap();
    assert_eq!(ncs.get_network_container(by_id).await.unwrap_err().code(), Code::NotFound);
    let twice =
        ncs.delete_network_container(pb::DeleteNetworkContainerRequest { id: NC.into() }).await.unwrap();
    assert!(!twice.into_inner().existed, "E1");
    cns.assert_sound().await;
}

#[tokio::test]
async fn the_interface_of_an_nc_is_told_from_what_is_known() {
    let cns = Cns::start(&[]).await;
    let mut wanted = nc(&[]);
    wanted.version = "3".into();
    wanted.cnet_address_space = vec![pb::IpSubnet { ip_address: "10.7.0.0".into(), prefix_length: 16 }];
    let config = wanted.ip_configuration.as_mut().unwrap();
    config.dns_servers = vec!["168.63.129.16".into()];
    create(&cns, wanted.clone()).await.unwrap();
    let get = |id: &str| pb::GetInterfaceForContainerRequest { network_container_id: id.into() };
    let mut ncs = cns.ncs().await;
    let told = ncs.get_interface_for_container(get(NC)).await.unwrap().into_inner();
    let expected = pb::GetInterfaceForContainerResponse {
        interface_name: NC.into(),
        interface_ip_address: "10.240.0.5".into(),
        cnet_address_space: wanted.cnet_address_space,
        dns_servers: vec!["168.63.129.16".into()],
        network_container_version: "3".into(),
    };
    assert_eq!(told, expected);
    let unknown = "7c1d0000-7b7d-4b38-9b1f-0d0f6a2c9a11";
    let status = ncs.get_interface_for_container(get(unknown)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(status.get_details_error_info().unwrap().metadata["return_code"], "18");
    let status = ncs.get_interface_for_container(get("")).await.unwrap_err();
    assert_eq!(status.get_details_error_info().unwrap().metadata["return_code"], "16");
}

/// What the server fills in where nothing was said.
trait Normalised {
    fn normalised(self) -> Self;
}

impl Normalised for pb::NetworkContainer {
    fn normalised(mut self) -> Self {
        self.local_ip_configuration.get_or_insert_default();
        self.ip_configuration.get_or_insert_default();
        self.ipv6_configuration.get_or_insert_default();
        self.network_interface_info.get_or_insert_default();
        self
    }
}

#[tokio::test]
async fn t6_t9_what_cannot_be_an_nc_is_refused_and_not_visible() {
    let cns = Cns::start(&[]).await;
    let cases: Vec<(pb::NetworkContainer, &str)> = vec![
        (pb::NetworkContainer { id: String::new(), ..nc(&[]) }, "16"),
        (pb::NetworkContainer { id: "abc".into(), ..nc(&[]) }, "2"),
        (pb::NetworkContainer { r#type: 0, ..nc(&[]) }, "22"),
        (pb::NetworkContainer { r#type: 77, ..nc(&[]) }, "22"),
        (pb::NetworkContainer { primary_interface_identifier: "10.0.0.300".into(), ..nc(&[]) }, "2"),
        (nc(&["not-an-address"]), "30"),
        // It belongs to the static NC already.
        (nc(&["10.244.0.17"]), "30"),
    ];
    for (bad, code) in cases {
        let status = create(&cns, bad.clone()).await.unwrap_err();
        let info = status.get_details_error_info().unwrap();
        assert_eq!(info.metadata["return_code"], code, "{bad:?}: {status}");
    }
    let list =
        cns.ncs().await.list_network_containers(pb::ListNetworkContainersRequest::default()).await.unwrap();
    assert_eq!(list.into_inner().entries.len(), 1, "only the static one is there");
}

#[tokio::test]
async fn t13_a_batch_stops_at_the_first_refusal_and_keeps_what_came_before() {
    let cns = Cns::start(&[]).await;
    let other = |id: &str, address: &str| pb::NetworkContainer { id: id.into(), ..nc(&[address]) };
    let batch = vec![
        other("00000001-7b7d-4b38-9b1f-0d0f6a2c9a11", "10.240.0.17"),
        other("00000002-7b7d-4b38-9b1f-0d0f6a2c9a11", "10.240.0.17"),
        other("00000003-7b7d-4b38-9b1f-0d0f6a2c9a11", "10.240.0.19"),
    ];
    let mut ncs = cns.ncs().await;
    let request = pb::BatchCreateOrUpdateNetworkContainersRequest { network_containers: batch };
    ncs.batch_create_or_update_network_containers(request).await.unwrap_err();
    let list = ncs.list_network_containers(pb::ListNetworkContainersRequest::default()).await.unwrap();
    let ids: Vec<String> = list.into_inner().entries.into_iter().map(|e| e.status.unwrap().id).collect();
    assert!(
        ids.iter().any(|id| id.starts_with("00000001")) && !ids.iter().any(|id| id.starts_with("00000003"))
    );
    cns.assert_sound().await;
}

#[tokio::test]
async fn a_static_network_grows_and_shrinks_and_never_drops_a_pods_address() {
    let mut cns = Cns::start(&["--standalone-cidr", "10.244.0.0/24"]).await;
    let wanted = |address: &str, container: &str| pb::RequestIpConfigsRequest {
        desired_ip_addresses: vec![address.into()],
        ..ask(container)
    };
    cns.ipam().await.request_ip_configs(wanted("10.244.0.200", "high")).await.unwrap();
    cns.ipam().await.request_ip_configs(wanted("10.244.0.9", "low")).await.unwrap();
    for (args, total) in [
        (&["--standalone-cidr", "10.244.0.0/28"][..], 13 + 1),
        (&["--standalone-cidr", "10.99.0.0/28"], 13 + 2),
        (&["--standalone-cidr", "10.244.0.0/23"], 509),
        (&["--standalone-cidr", "10.99.0.0/28", "--standalone-cidr", "10.244.0.0/24"], 13 + 253),
    ] {
        assert!(cns.terminate().await.unwrap().success());
        cns.set_args(args);
        cns.launch().await;
        let again = cns.ipam().await.request_ip_configs(ask("high")).await.unwrap().into_inner();
        assert_eq!(addresses(&again), ["10.244.0.200"], "{args:?}");
        let request = pb::ListIpConfigsRequest { page_size: 10_000, ..Default::default() };
        let all = cns.ipam().await.list_ip_configs(request).await.unwrap().into_inner().ip_configs;
        assert_eq!(all.len(), total, "{args:?}");
        cns.assert_sound().await;
    }
}

fn return_code(status: &tonic::Status) -> String {
    status.get_details_error_info().unwrap().metadata["return_code"].clone()
}

#[tokio::test]
async fn t9_t14_u1_u5_e2_what_is_malformed_is_named_and_nothing_is_stored() {
    let cns = Cns::start(&[]).await;
    let other = "7c1d0c1e-7b7d-4b38-9b1f-0d0f6a2c9a22";
    let broken = |change: fn(&mut pb::NetworkContainer)| {
        let mut nc = nc(&["10.240.0.17"]);
        change(&mut nc);
        nc
    };
    let cases: Vec<(pb::NetworkContainer, &str, &str)> = vec![
        (broken(|nc| nc.id = String::new()), "id", "16"),
        (broken(|nc| nc.id = "abc".into()), "id", "2"),
        (broken(|nc| nc.id = format!("Swift_Swift_{NC}")), "id", "2"),
        (
            broken(|nc| nc.ip_configuration.as_mut().unwrap().gateway_ip_address = "x".into()),
            "ip_configuration.gateway_ip_address",
            "2",
        ),
        (
            broken(|nc| nc.primary_interface_identifier = "10.0.0.300".into()),
            "primary_interface_identifier",
            "2",
        ),
        (broken(|nc| nc.r#type = 0), "type", "22"),
        (
            broken(|nc| {
                let empty = pb::SecondaryIpConfig::default();
                nc.secondary_ip_configs.insert("a1".into(), empty);
            }),
            "secondary_ip_configs[a1].ip_address",
            "30",
        ),
    ];
    for (bad, field, code) in cases {
        let status = create(&cns, bad.clone()).await.unwrap_err();
        assert_eq!((status.code(), return_code(&status).as_str()), (Code::InvalidArgument, code), "{status}");
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, format!("network_container.{field}"));
        // T14: one bad one stops all of a batch before any is stored.
        let good = pb::NetworkContainer { id: other.into(), ..nc(&[]) };
        let batch = pb::BatchCreateOrUpdateNetworkContainersRequest { network_containers: vec![good, bad] };
        let status = cns.ncs().await.batch_create_or_update_network_containers(batch).await.unwrap_err();
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, format!("network_containers[1].{field}"));
    }
    let nameless = pb::DeleteNetworkContainerRequest { id: String::new() };
    let status = cns.ncs().await.delete_network_container(nameless).await.unwrap_err();
    assert_eq!(return_code(&status), "16", "E2");
    let list = cns.ncs().await.list_network_containers(pb::ListNetworkContainersRequest::default()).await;
    assert_eq!(list.unwrap().into_inner().entries.len(), 1, "the daemon's own");
    cns.assert_sound().await;
}

#[tokio::test]
async fn q5_q6_t4_o4_ncs_are_found_by_pod_where_the_orchestrator_has_it_so() {
    let cns = Cns::start(&[]).await;
    let mut node = cns.node().await;
    let node_id = node.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner().node_id;
    let register = |kind: i32| pb::SetOrchestratorRequest {
        orchestrator_type: kind,
        node_id: node_id.clone(),
        dnc_partition_key: String::new(),
    };
    let pod = pb::PodIdentity { namespace: "default".into(), name: "web-0".into() };
    let by = pb::get_network_container_request::By::OrchestratorContext(pod.clone());
    let by_pod = pb::GetNetworkContainerRequest { by: Some(by) };
    let mut ncs = cns.ncs().await;
    let status = ncs.get_network_container(by_pod.clone()).await.unwrap_err();
    assert!(status.message().contains("Invalid orchestrator type KubernetesCRD"), "Q5: {status}");
    assert_eq!(return_code(&status), "19");
    for unknown in [0, 4711] {
        let status = node.set_orchestrator(register(unknown)).await.unwrap_err();
        assert_eq!((status.code(), return_code(&status).as_str()), (Code::InvalidArgument, "19"), "O4");
        assert!(status.message().contains("Invalid Orchestrator type"), "{status}");
    }

    node.set_orchestrator(register(pb::OrchestratorType::Kubernetes.into())).await.unwrap();
    let status = ncs.get_network_container(by_pod.clone()).await.unwrap_err();
    assert!(
        status.message().contains("Failed to find networkContainerID for orchestratorContext"),
        "Q6: {status}"
    );
    assert_eq!(return_code(&status), "18");
    let of_the_pod = pb::NetworkContainer { orchestrator_context: Some(pod), ..nc(&[]) };
    create(&cns, of_the_pod.clone()).await.unwrap();
    let found = ncs.get_network_container(by_pod.clone()).await.unwrap().into_inner().entries;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].network_container.as_ref().unwrap().id, NC);

    node.set_orchestrator(register(pb::OrchestratorType::WebApps.into())).await.unwrap();
    let web = pb::NetworkContainer { r#type: pb::NetworkContainerType::WebApps.into(), ..of_the_pod };
    create(&cns, web).await.unwrap();
    let status = ncs.get_network_container(by_pod).await.unwrap_err();
    assert_eq!(return_code(&status), "19", "T4");
    cns.assert_sound().await;
}
