//! The reference's files there and back.

use serde_json::Value;

use super::*;
use crate::{
    ledger::{Ledger, LedgerConfig, Loaded},
    model::{Actor, IpStateKind},
};

const CNS: &[u8] = include_bytes!("../../../tests/data/legacy/azure-cns.json");
const ENDPOINTS: &[u8] = include_bytes!("../../../tests/data/legacy/azure-endpoints.json");
const VNET: &[u8] = include_bytes!("../../../tests/data/legacy/azure-vnet.json");

#[derive(Debug)]
struct NoDisk;

impl crate::ledger::Persist for NoDisk {
    fn commit(&mut self, _: &[crate::ledger::Change]) -> Result<(), crate::ledger::PersistError> {
        Ok(())
    }
    fn probe(&mut self) -> Result<(), crate::ledger::PersistError> {
        Ok(())
    }
    fn reload(&mut self) -> Result<Loaded, crate::ledger::PersistError> {
        Ok(Loaded::default())
    }
}

async fn imported(documents: &LegacyDocuments) -> (Ledger, Vec<String>) {
    let (ledger, _writer, _) =
        Ledger::start(Box::new(NoDisk), Loaded::default(), LedgerConfig::default(), std::sync::Arc::new(()))
            .unwrap();
    let (state, mut skipped) = LegacyFiles.parse(documents).unwrap();
    let report = ledger.import_legacy(Actor::default(), state).await.unwrap();
    skipped.extend(report.skipped);
    (ledger, skipped)
}

fn value(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[tokio::test]
async fn f7_the_complete_example_comes_back_as_it_was_but_for_the_time() {
    let mut document = value(CNS);
    document["SomethingElse"] = serde_json::json!({"kept": ["as", "it", "was"]});
    let documents = LegacyDocuments { azure_cns: document.to_string().into_bytes(), ..Default::default() };
    let (ledger, skipped) = imported(&documents).await;
    assert_eq!(skipped, Vec::<String>::new());
    let rendered = LegacyFiles.render(&ledger.view()).unwrap();
    let text = String::from_utf8(rendered.azure_cns.clone()).unwrap();
    assert!(text.starts_with("{\n\t\"ContainerNetworkService\": {\n\t\t"), "{text}");
    let mut back = value(&rendered.azure_cns);
    for side in [&mut document, &mut back] {
        side["ContainerNetworkService"]["TimeStamp"] = Value::Null;
    }
    assert_eq!(back, document);
}

#[tokio::test]
async fn endpoints_come_back_as_they_were() {
    let documents = LegacyDocuments { azure_endpoints: ENDPOINTS.to_vec(), ..Default::default() };
    let (ledger, skipped) = imported(&documents).await;
    assert_eq!(skipped.len(), 2, "their addresses are in no network container: {skipped:?}");
    let rendered = LegacyFiles.render(&ledger.view()).unwrap();
    assert_eq!(value(&rendered.azure_endpoints), value(ENDPOINTS));
}

#[tokio::test]
async fn c1_a_pool_node_keeps_its_pods_and_what_is_programmed() {
    let cns = serde_json::json!({"ContainerNetworkService": {
        "OrchestratorType": "KubernetesCRD", "NodeID": "", "ContainerStatus": {
            "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11": {"HostVersion": "3", "CreateNetworkContainerRequest": {
                "Version": "4", "NetworkContainerType": "Docker",
                "NetworkContainerid": "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11",
                "IPConfiguration": {"IPSubnet": {"IPAddress": "10.240.0.5", "PrefixLength": 24}},
                "SecondaryIPConfigs": {
                    "a1": {"IPAddress": "10.240.0.17", "NCVersion": 3},
                    "b2": {"IPAddress": "10.240.0.18", "NCVersion": 3},
                    "e5": {"IPAddress": "10.240.0.21", "NCVersion": 4}
                }
            }},
            "not-a-uuid": {}
        }
    }});
    let endpoints = serde_json::json!({"Endpoints": {
        "aa01": {"PodName": "shop", "PodNamespace": "prod",
                 "IfnameToIPMap": {"eth0": {"IPv4": [{"IP": "10.240.0.17", "Mask": "////AA=="}], "NICType": ""}}},
        "bad/id": {"PodName": "x"}
    }});
    let documents = LegacyDocuments {
        azure_cns: cns.to_string().into_bytes(),
        azure_endpoints: endpoints.to_string().into_bytes(),
        azure_vnet: Vec::new(),
    };
    let (ledger, skipped) = imported(&documents).await;
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    let view = ledger.view();
    let states: Vec<IpStateKind> = view.ips_from(None).map(|ip| ip.state.kind()).collect();
    assert_eq!(states, [IpStateKind::Assigned, IpStateKind::Available, IpStateKind::PendingProgramming]);
}

#[tokio::test]
async fn the_stateful_plugins_file_gives_its_pods_and_gets_them_back() {
    let documents = LegacyDocuments { azure_vnet: VNET.to_vec(), ..Default::default() };
    let (ledger, _) = imported(&documents).await;
    let endpoints: Vec<_> = ledger.view().endpoints_from(None).cloned().collect();
    assert_eq!(endpoints.len(), 2);
    let veths: Vec<_> = endpoints.iter().filter_map(|e| e.interfaces[0].host_veth_name.clone()).collect();
    assert!(veths.contains(&"azvd805fb1b0f8".to_owned()), "{veths:?}");
    let back = value(&LegacyFiles.render(&ledger.view()).unwrap().azure_vnet);
    assert_eq!(back, value(VNET));
}

#[test]
fn a_file_that_is_no_json_is_an_error_that_says_where() {
    let documents =
        LegacyDocuments { azure_cns: b"{\"ContainerNetworkService\": {".to_vec(), ..Default::default() };
    let error = LegacyFiles.parse(&documents).unwrap_err();
    assert!(error.contains("azure-cns.json is no JSON") && error.contains("line 1"), "{error}");
    assert_eq!(LegacyFiles.parse(&LegacyDocuments::default()).unwrap().0, LegacyState::default());
    let spaces = LegacyDocuments { azure_endpoints: b" \n".to_vec(), ..Default::default() };
    assert_eq!(LegacyFiles.parse(&spaces).unwrap().0, LegacyState::default());
}

#[test]
fn a_wrong_value_is_named_by_its_path() {
    let cns = br#"{"ContainerNetworkService":{"ContainerStatus":{"x":{"CreateNetworkContainerRequest":
        {"NetworkContainerid":"5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11","NetworkContainerType":"Docker","Routes":7}}}}}"#;
    let documents = LegacyDocuments { azure_cns: cns.to_vec(), ..Default::default() };
    let (_, skipped) = LegacyFiles.parse(&documents).unwrap();
    let path =
        "azure-cns.json.ContainerNetworkService.ContainerStatus.x.CreateNetworkContainerRequest.Routes";
    assert!(skipped[0].contains(path) && skipped[0].contains("a list is expected, found 7"), "{skipped:?}");
}

/// The reference refuses every later update of such an NC with 38.
#[tokio::test]
async fn n9_a_host_version_that_is_no_number_is_reported_and_asked_for_anew() {
    let cns = serde_json::json!({"ContainerNetworkService": {
        "OrchestratorType": "KubernetesCRD", "NodeID": "", "ContainerStatus": {
            "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11": {"HostVersion": "abc", "CreateNetworkContainerRequest": {
                "Version": "4", "NetworkContainerType": "Docker",
                "NetworkContainerid": "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11"
            }}
        }
    }});
    let documents = LegacyDocuments { azure_cns: cns.to_string().into_bytes(), ..Default::default() };
    let (ledger, skipped) = imported(&documents).await;
    assert!(skipped[0].contains("Invalid hostVersion is abc"), "{skipped:?}");
    assert_eq!(ledger.view().ncs().next().unwrap().record.host_version, None);
}

#[test]
fn f5_a_file_without_the_daemons_part_is_a_fresh_start() {
    let documents = LegacyDocuments { azure_cns: b"{\"Other\": 1}".to_vec(), ..Default::default() };
    let (state, skipped) = LegacyFiles.parse(&documents).unwrap();
    assert_eq!((state.orchestrator, state.ncs.len(), skipped.len()), (None, 0, 0));
}
