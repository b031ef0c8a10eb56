//! Failures: what failed, with which value, what to do; and every rpc that is not there says so by name.

use prost::Message as _;
use tonic::{Code, transport::Channel};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient, server_reflection_request,
    server_reflection_response::MessageResponse,
};
use tonic_types::StatusExt as _;

use super::{
    ask,
    cns_under_test::{Cns, free_port},
    pb,
};

#[tokio::test]
async fn x1_a_shortage_says_what_is_short_and_when_to_ask_again() {
    let cns = Cns::start(&["--standalone-cidr", "10.244.0.0/30"]).await;
    let mut ipam = cns.ipam().await;
    ipam.request_ip_configs(ask("c1")).await.unwrap();
    let status = ipam.request_ip_configs(ask("c2")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status.message().starts_with("not enough IPs available of type ipv4 for "),
        "{}",
        status.message()
    );
    let info = status.get_details_error_info().unwrap();
    assert_eq!(
        (info.domain.as_str(), info.reason.as_str()),
        ("cns.azure.com", "FAILED_TO_ALLOCATE_IP_CONFIG")
    );
    assert_eq!((info.metadata["return_code"].as_str(), info.metadata["family"].as_str()), ("32", "ipv4"));
    assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
}

#[tokio::test]
async fn bad_input_names_the_field_and_changes_nothing() {
    let cns = Cns::start(&[]).await;
    let mut ipam = cns.ipam().await;
    let base = || ask("c1");
    let long = "x".repeat(300);
    let cases: Vec<(pb::RequestIpConfigsRequest, &str)> = vec![
        (pb::RequestIpConfigsRequest { infra_container_id: "../etc".into(), ..base() }, "infra_container_id"),
        (pb::RequestIpConfigsRequest { infra_container_id: long.clone(), ..base() }, "infra_container_id"),
        (pb::RequestIpConfigsRequest { ifname: "a/b".into(), ..base() }, "ifname"),
        (
            pb::RequestIpConfigsRequest { desired_ip_addresses: vec!["abc".into()], ..base() },
            "desired_ip_addresses[0]",
        ),
        (
            pb::RequestIpConfigsRequest {
                pod: Some(pb::PodIdentity { namespace: "a\nb".into(), name: long }),
                ..base()
            },
            "pod",
        ),
        (
            pb::RequestIpConfigsRequest {
                sandbox: Some(pb::Sandbox { netns_path: "relative".into(), ..Default::default() }),
                ..base()
            },
            "sandbox.netns_path",
        ),
    ];
    for (request, field) in cases {
        let status = ipam.request_ip_configs(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status}");
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, field);
        let metadata = status.get_details_error_info().unwrap().metadata;
        assert_eq!(metadata["field"], field);
        assert!(metadata["remedy"].contains(field), "{metadata:?}");
    }
    // Also where the parser itself does not tell what it read.
    let route = pb::Route { destination: "10.0.0.0/x".into(), ..Default::default() };
    let nc = pb::NetworkContainer {
        id: "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11".into(),
        r#type: pb::NetworkContainerType::Docker.into(),
        routes: vec![route],
        ..Default::default()
    };
    let create = pb::CreateOrUpdateNetworkContainerRequest { network_container: Some(nc) };
    let status = cns.ncs().await.create_or_update_network_container(create).await.unwrap_err();
    assert!(
        status.message().contains("routes[0].destination") && status.message().contains("10.0.0.0/x"),
        "{status}"
    );
    // R11: nobody owns the empty key.
    let nobody = pb::RequestIpConfigsRequest { infra_container_id: String::new(), ..base() };
    let status = ipam.request_ip_configs(nobody).await.unwrap_err();
    assert_eq!(status.get_details_error_info().unwrap().metadata["return_code"], "34");
    // R12: no NIC, no address.
    let backend = pb::RequestIpConfigsRequest {
        backend_interface_exist: true,
        backend_interface_mac_addresses: vec!["aa:bb:cc:00:11:22".into()],
        ..base()
    };
    let status = ipam.request_ip_configs(backend).await.unwrap_err();
    assert!(status.message().contains("BackendNIC allocation failed"), "{status}");
    let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.ip_counts.unwrap().assigned, 0);
    cns.assert_sound().await;
}

#[tokio::test]
async fn p3_p6_p7_desired_addresses_are_refused_in_words() {
    let cns = Cns::start(&[]).await;
    let mut ipam = cns.ipam().await;
    let desire = |container: &str, address: &str| pb::RequestIpConfigsRequest {
        desired_ip_addresses: vec![address.into()],
        ..ask(container)
    };
    ipam.request_ip_configs(desire("c1", "10.244.0.9")).await.unwrap();
    let taken = ipam.request_ip_configs(desire("c2", "10.244.0.9")).await.unwrap_err();
    assert!(taken.message().contains("Desired IP is already assigned"), "{taken}");
    let info = taken.get_details_error_info().unwrap();
    assert_eq!((info.metadata["owner"].as_str(), info.metadata["detail"].as_str()), ("c1", "DESIRED_TAKEN"));
    let invalid = ipam.request_ip_configs(desire("c2", "abc")).await.unwrap_err();
    assert!(invalid.message().contains("invalid ip abc specified as desired IP"), "{invalid}");
    assert_eq!(invalid.get_details_error_info().unwrap().metadata["return_code"], "32");
    let unknown = ipam.request_ip_configs(desire("c2", "10.9.9.9")).await.unwrap_err();
    assert!(unknown.message().contains("not enough desired IPs found in pool"), "{unknown}");
    assert_eq!(unknown.code(), Code::FailedPrecondition);
}

/// What is not there is named, with what to do.
#[tokio::test]
async fn refusals_name_the_value_and_carry_a_remedy() {
    let cns = Cns::start(&[]).await;
    let mut told = Vec::new();
    let id = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";
    let get = pb::GetNetworkContainerStatusRequest { id: id.into() };
    told.push((id, cns.ncs().await.get_network_container_status(get).await.unwrap_err()));
    let by = pb::get_network_container_request::By::OrchestratorContext(pb::PodIdentity {
        namespace: "prod".into(),
        name: "web-0".into(),
    });
    let get = pb::GetNetworkContainerRequest { by: Some(by) };
    told.push(("KubernetesCRD", cns.ncs().await.get_network_container(get).await.unwrap_err()));
    let apipa = pb::CreateHostNcApipaEndpointRequest { network_container_id: id.into() };
    told.push((id, cns.ncs().await.create_host_nc_apipa_endpoint(apipa).await.unwrap_err()));
    let get = pb::GetEndpointRequest { container_id: "c9".into() };
    told.push(("c9", cns.endpoints().await.get_endpoint(get).await.unwrap_err()));
    cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap();
    let delete = pb::DeleteEndpointRequest { container_id: "c1".into() };
    told.push(("10.244.0.2", cns.endpoints().await.delete_endpoint(delete).await.unwrap_err()));
    for (value, status) in told {
        let info = status.get_details_error_info().unwrap();
        assert!(status.message().contains(value), "{status}");
        assert!(info.metadata.values().any(|known| known == value), "{value}: {info:?}");
        assert!(!info.metadata["remedy"].is_empty() && !info.metadata["detail"].is_empty(), "{info:?}");
    }
}

/// Every rpc of every service that reflection shows, by its path.
async fn rpcs(channel: &Channel) -> Vec<(String, bool)> {
    use server_reflection_request::MessageRequest::{FileContainingSymbol, ListServices};
    let mut client = ServerReflectionClient::new(channel.clone());
    let mut ask = async |request| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        let mut stream =
            client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = ask(ListServices(String::new())).await else {
        panic!()
    };
    let mut found = Vec::new();
    for name in list.service.into_iter().map(|service| service.name).filter(|name| name.starts_with("cns.")) {
        let MessageResponse::FileDescriptorResponse(files) = ask(FileContainingSymbol(name.clone())).await
        else {
            panic!()
        };
        for file in files.file_descriptor_proto {
            let file = prost_types::FileDescriptorProto::decode(&*file).unwrap();
            let is_it = |service: &&prost_types::ServiceDescriptorProto| {
                format!("{}.{}", file.package(), service.name()) == name
            };
            for rpc in file.service.iter().filter(is_it).flat_map(|service| &service.method) {
                found.push((format!("/{name}/{}", rpc.name()), rpc.server_streaming()));
            }
        }
    }
    found
}

/// Every rpc is answered by us: what it does, why not, or, if its subsystem comes later, what is missing. Never by tonic's
/// default for a service or method that nobody wrote.
#[tokio::test]
async fn every_rpc_is_answered_and_what_is_not_there_yet_says_so_by_name() {
    let cns = Cns::start(&[]).await;
    let channel = cns.channel().await;
    let rpcs = rpcs(&channel).await;
    assert!(rpcs.len() > 40, "{}", rpcs.len());
    let mut missing = Vec::new();
    for (path, streams) in rpcs {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        // Empty in, whatever out: an empty message decodes from anything.
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let uri = http::uri::PathAndQuery::try_from(&path).unwrap();
        let request = tonic::Request::new(());
        let outcome = if streams {
            grpc.server_streaming(request, uri, codec).await.map(drop)
        } else {
            grpc.unary(request, uri, codec).await.map(drop)
        };
        let Err(status) = outcome else { continue };
        assert_ne!(status.code(), Code::Internal, "{path}: {status}");
        let info = status.get_details_error_info().unwrap_or_else(|| panic!("{path}: a bare {status}"));
        assert_eq!(info.domain, "cns.azure.com", "{path}");
        if status.code() == Code::Unimplemented {
            let name = path.rsplit('/').next().unwrap();
            assert_eq!(info.metadata["rpc"], name);
            assert!(status.message().starts_with(name), "{path}: {status}");
            let says = status.message().len() > name.len() + 20;
            assert!(says, "{name} says what is missing: {status}");
            missing.push(name.to_owned());
        }
    }
    missing.sort();
    // Shrinks as subsystems come.
    assert_eq!(
        missing,
        [
            "AssignIBDevicesToPod",
            "CreateHNSNetwork",
            "DeleteHNSNetwork",
            "GetIBDeviceStatus",
            "GetVMUniqueID",
            "ListNICResources",
            "ListNetworkContainerVersions",
            "ListSupportedAPIs",
            "RequestClaimResourceInfo",
            "SyncHostNCVersions",
        ]
    );
}

#[tokio::test]
async fn what_is_there_answers() {
    let cns = Cns::start(&[]).await;
    let mut node = cns.node().await;
    assert!(node.get_cpu_cores(pb::GetCpuCoresRequest {}).await.unwrap().into_inner().cpu_cores > 0);
    match node.get_host_local_ip(pb::GetHostLocalIpRequest {}).await {
        Ok(found) => assert!(found.into_inner().ip_address.parse::<std::net::IpAddr>().is_ok()),
        Err(status) => {
            assert_eq!(status.code(), Code::Unavailable, "a host without a route has none: {status}");
        }
    }
    let other = pb::SetOrchestratorRequest {
        orchestrator_type: pb::OrchestratorType::KubernetesCrd.into(),
        node_id: "another".into(),
        dnc_partition_key: String::new(),
    };
    let status = node.set_orchestrator(other).await.unwrap_err();
    assert!(status.message().contains("already been registered as"), "O2: {status}");
}

#[tokio::test]
async fn a_network_needs_an_environment_a_name_and_a_docker() {
    let nobody = format!("127.0.0.1:{}", free_port());
    let mut cns = Cns::prepared(&[]);
    let config = cns.directory().join("cns_config.json");
    std::fs::write(&config, format!(r#"{{"Node":{{"DockerURL":"http://{nobody}"}}}}"#)).unwrap();
    cns.set_args(&["--config-path", config.to_str().unwrap()]);
    cns.launch().await;
    let mut node = cns.node().await;
    let wanted = pb::CreateNetworkRequest { network_name: "azurenet".into(), ..Default::default() };
    let told = |status: &tonic::Status| {
        let info = status.get_details_error_info().unwrap();
        (status.code(), info.metadata["return_code"].clone(), info.metadata.get("detail").cloned())
    };
    let detail = |text: &str| Some(text.to_owned());

    let status = node.create_network(wanted.clone()).await.unwrap_err();
    assert_eq!(told(&status), (Code::FailedPrecondition, "3".into(), detail("NO_ENVIRONMENT")));
    for (location, network_type, code, reason) in [
        ("StandAlone", "Underlay", "3", "UNSUPPORTED_ENVIRONMENT"),
        ("Azure", "Overlay", "3", "UNSUPPORTED_ENVIRONMENT"),
        ("Mars", "Underlay", "1", "UNKNOWN_ENVIRONMENT"),
    ] {
        let environment =
            pb::SetEnvironmentRequest { location: location.into(), network_type: network_type.into() };
        node.set_environment(environment).await.unwrap();
        let status = node.create_network(wanted.clone()).await.unwrap_err();
        assert_eq!(told(&status), (Code::FailedPrecondition, code.into(), detail(reason)), "{location}");
    }
    let azure = pb::SetEnvironmentRequest { location: "Azure".into(), network_type: "Underlay".into() };
    node.set_environment(azure).await.unwrap();
    let status = node.create_network(wanted.clone()).await.unwrap_err();
    assert_eq!(told(&status), (Code::Unavailable, "9".into(), detail("DOCKER_INSPECT_FAILED")));
    assert!(status.get_details_retry_info().is_some(), "docker may be starting: {status}");

    for (name, code) in [("", "10"), ("../x", "2"), ("a b", "2")] {
        let create = pb::CreateNetworkRequest { network_name: name.into(), ..Default::default() };
        let status = node.create_network(create).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, code.into(), detail("INVALID_FIELD")), "{name}");
        let delete = pb::DeleteNetworkRequest { network_name: name.into() };
        let status = node.delete_network(delete).await.unwrap_err();
        assert_eq!(told(&status), (Code::InvalidArgument, code.into(), detail("INVALID_FIELD")), "{name}");
    }
    let options = pb::CreateNetworkRequest { options_json: "[1]".into(), ..wanted };
    let status = node.create_network(options).await.unwrap_err();
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "options_json");
}

#[tokio::test]
async fn the_environment_is_kept() {
    let mut cns = Cns::start(&[]).await;
    let info = async |cns: &Cns| {
        cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner()
    };
    assert_eq!(info(&cns).await.environment, None);
    let azure = pb::SetEnvironmentRequest { location: "Azure".into(), network_type: "Underlay".into() };
    let mut node = cns.node().await;
    node.set_environment(azure.clone()).await.unwrap();
    let hostile = pb::SetEnvironmentRequest { location: "x\n".into(), ..azure };
    let status = node.set_environment(hostile).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(cns.terminate().await.unwrap().success());
    cns.launch().await;
    let expected = pb::Environment { location: "Azure".into(), network_type: "Underlay".into() };
    assert_eq!(info(&cns).await.environment, Some(expected));
    // The reference's file has it, too.
    let out = cns.debug().await.export_legacy_state(pb::ExportLegacyStateRequest {}).await.unwrap();
    let document: serde_json::Value = serde_json::from_slice(&out.get_ref().azure_cns_json).unwrap();
    let service = &document["ContainerNetworkService"];
    assert_eq!((service["Location"].as_str(), service["Initialized"].as_bool()), (Some("Azure"), Some(true)));
    cns.assert_sound().await;
}
