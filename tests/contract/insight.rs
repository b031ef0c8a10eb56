//! Reflection, health, the journal's biography, bundles, legacy files: what operators use.

use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{
    v1::{self, server_reflection_client::ServerReflectionClient},
    v1alpha::{self, server_reflection_client::ServerReflectionClient as AlphaClient},
};

use super::{ask, cns_under_test::Cns, give, pb};

/// The names of all services, as reflection tells them.
async fn services(cns: &Cns) -> Vec<String> {
    let ask = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(cns.channel().await);
    let mut stream = client.server_reflection_info(tokio_stream::once(ask)).await.unwrap().into_inner();
    let answer = stream.message().await.unwrap().unwrap().message_response.unwrap();
    let v1::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else {
        panic!()
    };
    list.service.into_iter().map(|service| service.name).collect()
}

#[tokio::test]
async fn reflection_v1_and_v1alpha_list_every_service() {
    let cns = Cns::start(&[]).await;
    let names = services(&cns).await;
    let expected = [
        "cns.v1.DebugService",
        "cns.v1.DeviceService",
        "cns.v1.EndpointService",
        "cns.v1.IpamService",
        "cns.v1.NMAgentService",
        "cns.v1.NetworkContainerService",
        "cns.v1.NodeService",
        "grpc.health.v1.Health",
    ];
    for name in expected {
        assert!(names.iter().any(|known| known == name), "{name} is missing in {names:?}");
    }
    let ask = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            "cns.v1.IpamService".into(),
        )),
    };
    let mut client = AlphaClient::new(cns.channel().await);
    let mut stream = client.server_reflection_info(tokio_stream::once(ask)).await.unwrap().into_inner();
    let answer = stream.message().await.unwrap().unwrap().message_response.unwrap();
    assert!(matches!(
        answer,
        v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_)
    ));
}

#[tokio::test]
async fn health_is_told_for_each_service_and_the_whole() {
    let cns = Cns::start(&[]).await;
    let mut health = HealthClient::new(cns.channel().await);
    let mut names = services(&cns).await;
    names.retain(|name| name.starts_with("cns."));
    assert!(names.len() >= 7, "{names:?}");
    names.push(String::new());
    for service in names {
        // None of the contract's is unknown. Those without a single call that does anything say so; they do not make the whole ill.
        let expected = match service.as_str() {
            "cns.v1.NMAgentService" | "cns.v1.DeviceService" => ServingStatus::NotServing,
            _ => ServingStatus::Serving,
        };
        let answer = health.check(HealthCheckRequest { service: service.clone() }).await;
        let answer = answer.unwrap_or_else(|status| panic!("{service}: {status}")).into_inner();
        assert_eq!(answer.status(), expected, "{service}");
    }
}

/// From the first moment on at which the socket answers.
#[tokio::test]
async fn a_probe_that_comes_at_once_is_answered() {
    for _ in 0..10 {
        let mut cns = Cns::prepared(&[]);
        cns.spawn();
        let answer = loop {
            let Ok(channel) = cns.try_channel().await else {
                tokio::task::yield_now().await;
                continue;
            };
            let check = HealthCheckRequest { service: "cns.v1.IpamService".into() };
            break HealthClient::new(channel).check(check).await;
        };
        assert_eq!(answer.unwrap().into_inner().status(), ServingStatus::Serving);
    }
}

#[tokio::test]
async fn explain_tells_the_whole_biography() {
    let cns = Cns::start(&["--standalone-cidr", "10.244.0.0/30"]).await;
    let mut ipam = cns.ipam().await;
    ipam.request_ip_configs(ask("c1")).await.unwrap();
    ipam.request_ip_configs(ask("c2")).await.unwrap_err();
    ipam.release_ip_configs(give("c1")).await.unwrap();
    ipam.request_ip_configs(ask("c2")).await.unwrap();
    let mut debug = cns.debug().await;
    let subject = pb::explain_request::Subject::IpAddress("10.244.0.2".into());
    let told = debug.explain(pb::ExplainRequest { subject: Some(subject) }).await.unwrap().into_inner();
    assert!(told.summary.contains("belongs to container c2 of pod prod/pod-c2"), "{}", told.summary);
    let operations: Vec<&str> = told.events.iter().map(|event| event.operation.as_str()).collect();
    assert_eq!(operations, ["UpsertNc", "RequestIPConfigs", "ReleaseIPConfigs", "RequestIPConfigs"]);
    let actor = told.events[1].actor.as_ref().unwrap();
    assert_eq!((actor.pid, actor.uid), (Some(std::process::id()), Some(nix::unistd::geteuid().as_raw())));
    let pod = pb::PodIdentity { namespace: "prod".into(), name: "pod-c2".into() };
    let subject = pb::explain_request::Subject::Pod(pod);
    let told = debug.explain(pb::ExplainRequest { subject: Some(subject) }).await.unwrap().into_inner();
    assert_eq!(told.events[0].reason, "POOL_EXHAUSTED");
    let subject = pb::explain_request::Subject::ContainerId("nobody".into());
    let told = debug.explain(pb::ExplainRequest { subject: Some(subject) }).await.unwrap().into_inner();
    assert!(told.summary.contains("holds no address"), "{}", told.summary);
}

#[tokio::test]
async fn events_can_be_followed_from_any_sequence() {
    let cns = Cns::start(&[]).await;
    let mut ipam = cns.ipam().await;
    ipam.request_ip_configs(ask("c1")).await.unwrap();
    let mut debug = cns.debug().await;
    let mut stream =
        debug.watch_events(pb::WatchEventsRequest { from_sequence: 1 }).await.unwrap().into_inner();
    ipam.release_ip_configs(give("c1")).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(stream.message().await.unwrap().unwrap().event.unwrap());
    }
    assert!(seen.is_sorted_by(|a, b| a.sequence < b.sequence));
    assert_eq!(seen[2].operation, "ReleaseIPConfigs");
}

#[tokio::test]
async fn a_request_id_goes_all_the_way_into_the_journal() {
    let cns = Cns::start(&[]).await;
    let mut request = tonic::Request::new(ask("c1"));
    request.metadata_mut().insert("x-request-id", "ticket-4711".parse().unwrap());
    let response = cns.ipam().await.request_ip_configs(request).await.unwrap();
    assert_eq!(response.metadata().get("x-request-id").unwrap(), "ticket-4711");
    let subject = pb::explain_request::Subject::ContainerId("c1".into());
    let told =
        cns.debug().await.explain(pb::ExplainRequest { subject: Some(subject) }).await.unwrap().into_inner();
    assert_eq!(told.events[0].actor.as_ref().unwrap().request_id, "ticket-4711");
    // A hostile one is replaced, not written into logs.
    let mut request = tonic::Request::new(ask("c2"));
    request.metadata_mut().insert("x-request-id", "a b;c".parse().unwrap());
    let response = cns.ipam().await.request_ip_configs(request).await.unwrap();
    assert_ne!(response.metadata().get("x-request-id").unwrap(), "a b;c");
}

#[tokio::test]
async fn state_config_and_bundle_can_be_had() {
    let cns = Cns::start(&["--cool-down", "7s"]).await;
    cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap();
    let mut debug = cns.debug().await;
    let state = debug.get_state(pb::GetStateRequest::default()).await.unwrap().into_inner();
    assert_eq!((state.ip_configs.len(), state.endpoints.len()), (253, 1));
    let config = debug.get_config(pb::GetConfigRequest {}).await.unwrap().into_inner().config_json;
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["cool_down"], 7.0);
    let mut stream = debug.collect_bundle(pb::CollectBundleRequest {}).await.unwrap().into_inner();
    let mut files = std::collections::BTreeMap::<String, Vec<u8>>::new();
    while let Some(part) = stream.message().await.unwrap() {
        files.entry(part.file_name).or_default().extend(part.chunk);
    }
    assert!(files.keys().any(|name| name == "journal.jsonl"), "{:?}", files.keys());
    assert!(String::from_utf8_lossy(&files["ip-configs.jsonl"]).contains("10.244.0.2"));
}

#[tokio::test]
async fn the_references_files_come_in_and_go_out() {
    let cns = Cns::start(&[]).await;
    let data = |name: &str| std::fs::read(format!("tests/data/legacy/{name}")).unwrap();
    let mut debug = cns.debug().await;
    let import = pb::ImportLegacyStateRequest {
        azure_cns_json: data("azure-cns.json").into(),
        azure_endpoints_json: data("azure-endpoints.json").into(),
        azure_vnet_json: Vec::new().into(),
    };
    let report = debug.import_legacy_state(import).await.unwrap().into_inner();
    assert_eq!((report.network_containers, report.endpoints), (1, 1), "{report:?}");
    let out = debug.export_legacy_state(pb::ExportLegacyStateRequest {}).await.unwrap().into_inner();
    let endpoints: serde_json::Value = serde_json::from_slice(&out.azure_endpoints_json).unwrap();
    let original: serde_json::Value = serde_json::from_slice(&data("azure-endpoints.json")).unwrap();
    assert_eq!(endpoints, original);
    let broken = pb::ImportLegacyStateRequest { azure_cns_json: b"{".to_vec().into(), ..Default::default() };
    let status = debug.import_legacy_state(broken).await.unwrap_err();
    assert!(status.message().contains("azure-cns.json is no JSON"), "{status}");
    cns.assert_sound().await;
}
