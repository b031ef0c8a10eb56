use cns_fake_agents::{Agent, FakeAgents, Fault};

use super::*;
use crate::{
    host::{
        dnc::DncConfig,
        http::{Limits, Roots},
    },
    ledger::LedgerConfig,
    store::{Store, StoreOptions},
    telemetry::metrics::Metrics,
};

/// Q7: as numbers; the reference compares texts.
#[test]
fn q7_versions_are_compared_as_numbers() {
    for (stored, listed, newer) in [
        ("9", "10", true),
        ("10", "9", false),
        ("3", "3", false),
        ("3", "03", false),
        ("a", "b", true),
        ("b", "a", true),
        ("a", "a", false),
        ("", "1", true),
        ("18446744073709551615", "18446744073709551616", true),
    ] {
        assert_eq!(is_newer(stored, listed), newer, "{stored} {listed}");
    }
}

fn managed(agents: &FakeAgents, ledger: &Ledger, attempts: u32) -> Managed {
    let config = DncConfig {
        endpoint: agents.url(Agent::Dnc).parse().unwrap(),
        infrastructure_network_id: "v".into(),
        node_id: "n".into(),
    };
    Managed {
        ledger: ledger.clone(),
        dnc: Dnc::new(config, Limits::default(), Roots::System).unwrap(),
        agents: Agents::new(
            &agents.url(Agent::Wireserver).parse().unwrap(),
            &agents.url(Agent::Imds).parse().unwrap(),
        )
        .unwrap(),
        observer: Metrics::new(),
        cni_updates: None,
        decode: |_| Err("not in this test".into()),
        patience: RegisterPatience { attempts, pause: Duration::from_millis(1) },
        turns: Turns::every(Duration::from_secs(30)),
        alarms: Alarms::default(),
        readiness: Readiness::waiting("registration"),
    }
}

fn ledger(directory: &std::path::Path) -> Ledger {
    let (store, loaded, _) = Store::open(&StoreOptions::new(directory.to_owned()).unwrap()).unwrap();
    Ledger::start(Box::new(store), loaded, LedgerConfig::default(), Metrics::new()).unwrap().0
}

#[tokio::test]
async fn patience_ends_and_says_who_did_not_answer() {
    let agents = FakeAgents::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ledger = ledger(directory.path());
    agents.fail("GetSupportedApis", Fault::Status(500));
    let error = managed(&agents, &ledger, 3).run(CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("in 3 attempts, because NMAgent does not say"), "{error}");
    agents.heal();
    agents.fail("/networks/", Fault::Status(503));
    // NMAgent's failure takes one of the attempts.
    agents.fail_times("GetSupportedApis", Fault::Status(500), 1);
    let source = managed(&agents, &ledger, 3);
    let told = source.readiness.told();
    let error = source.run(CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("could not be registered in 2 attempts"), "{error}");
    assert_eq!(told.borrow().as_deref(), Some("registration of this node with DNC"));
    ledger.stop().await;
}

/// A list that is doubted is one.
#[tokio::test]
async fn readiness_goes_with_the_third_failure_in_a_row_and_comes_with_any_list() {
    let agents = FakeAgents::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ledger = ledger(directory.path());
    let source = Managed { readiness: Readiness::ready(), ..managed(&agents, &ledger, 1) };
    let (told, alarm) = (source.readiness.told(), source.alarms.told());
    let (mut sync, _) = source.registered();
    sync.outage.at_least = Duration::ZERO;
    let is_ready = || told.borrow().is_none();
    let nc = |n: usize| serde_json::json!({"NetworkContainerid": format!("5a2f0c1e-7b7d-4b38-9b1f-{n:012x}"), "Version": "1"});
    agents.fail_times("/networkcontainers", Fault::Status(503), 2);
    for _ in 0..3 {
        sync.round().await;
        assert!(is_ready(), "the third round had an answer");
    }
    agents.fail_times("/networkcontainers", Fault::Status(503), 4);
    for ready in [true, true, false, false] {
        sync.round().await;
        assert_eq!(is_ready(), ready);
    }
    let words = told.borrow().clone().unwrap();
    assert!(words.starts_with("DNC, which has given no usable list since 2"), "{words}");
    assert!(words.contains("status 503"), "{words}");
    agents.world(|world| world.dnc_ncs = (0..=MOST).map(nc).collect());
    sync.round().await;
    assert!(is_ready() && alarm.borrow().is_some(), "longer than any node's, and a list");
    ledger.stop().await;
}

#[tokio::test]
async fn an_orchestrator_that_there_is_not_is_an_error_only_for_a_node_that_has_none() {
    let agents = FakeAgents::start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ledger = ledger(directory.path());
    agents.world(|world| world.registration.0 = "Nomad".into());
    let error = managed(&agents, &ledger, 1).run(CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("`Nomad` is not an orchestrator type"), "{error}");
    let command = Command::SetOrchestrator {
        kind: OrchestratorType::Kubernetes,
        node_id: "n".into(),
        partition_key: String::new(),
    };
    ledger.submit(actor(), command).await.unwrap();
    let source = managed(&agents, &ledger, 1);
    let (mut told, stop) = (source.readiness.told(), CancellationToken::new());
    let running = tokio::spawn(source.run(stop.clone()));
    told.wait_for(Option::is_none).await.unwrap();
    stop.cancel();
    running.await.unwrap().unwrap();
    ledger.stop().await;
}
