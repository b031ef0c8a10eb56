//! The port with TLS whose certificate is in Key Vault (spec/security.md §2, and §8 row 5).

use cns::proto::v1 as pb;
use cns_fake_agents::{Agent, FakeAgents, Fault};
use serde_json::json;

use super::{
    cns_under_test::until,
    tls::{Chain, Client, Daemon, authority, issue, post, prepared},
};

const IDENTITY: &str =
    "/subscriptions/0/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/node";

fn hold(agents: &FakeAgents, kind: &str, value: &str) {
    agents.world(|world| {
        world.secrets.insert("cns-tls".into(), (kind.into(), value.into()));
    });
}

fn daemon_of(agents: &FakeAgents, more: serde_json::Value) -> Daemon {
    let mut config = json!({
        "TLSCertificatePath": "",
        "KeyVaultSettings": {"URL": agents.url(Agent::KeyVault), "CertificateName": "cns-tls"},
        "MSISettings": {"ResourceID": IDENTITY},
        "Node": {"IMDSURL": agents.url(Agent::Imds), "REST": {"KeyVaultRefreshSecs": 0.2}},
    });
    super::tls::merge(&mut config, more);
    prepared(config)
}

/// A start that waits for the vault can be stopped: nobody has to wait until it gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_the_vault_hangs_is_an_orderly_one() {
    let agents = FakeAgents::start().await.unwrap();
    agents.fail("", Fault::Hang);
    let mut daemon = daemon_of(&agents, json!({}));
    daemon.cns.spawn();
    until("it asks for a token", || async { !agents.take_requests().is_empty() }).await;
    assert!(daemon.cns.terminate().await.unwrap().success());
    let log = daemon.cns.log();
    assert!(!log.contains("tried again") && !log.contains("cannot be fetched"), "it gave up: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_certificate_is_served_and_an_outage_of_the_vault_is_survived() {
    let agents = FakeAgents::start().await.unwrap();
    let (first, second) = (Chain::new(), Chain::new());
    // With its root, as Key Vault has it.
    hold(&agents, "application/x-pem-file", &(first.issue("node", &["node-1"]) + &first.root.pem()));
    // What passes is tried again, also at the start.
    agents.fail_times("/identity/", Fault::Status(503), 1);
    agents.fail_times("/secrets/", Fault::Drop, 1);
    let mut daemon = daemon_of(&agents, json!({}));
    daemon.launch().await;
    let (old, new) = (Client::trusting(&first.root), Client::trusting(&second.root));
    let mut open = old.connect(daemon.tls).await.unwrap();
    assert!(post(&mut open, "keep-alive").await.unwrap().starts_with("HTTP/1.1 200 "));

    agents.fail("/secrets/", Fault::Status(503));
    until("the outage in the log", || async { daemon.cns.log().contains("cannot be refreshed") }).await;
    let refused = "cns_tls_certificate_refused{listener=\"rest\"}";
    until("the metric", || async { daemon.metrics().await.contains(&format!("{refused} 1")) }).await;
    old.ask(daemon.tls).await.unwrap();
    let node = daemon.cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    let [vault] = &node.agents[..] else { panic!("{:?}", node.agents) };
    assert_eq!((vault.name.as_str(), vault.healthy), ("Key Vault", false));
    assert!(vault.since.is_some() && vault.last_success.is_some() && vault.failed_in_a_row > 0, "{vault:?}");
    assert!(vault.last_error.contains("status 503"), "{vault:?}");
    let found =
        daemon.cns.debug().await.diagnose(pb::DiagnoseRequest {}).await.unwrap().into_inner().findings;
    let finding = found.iter().find(|finding| finding.kind == "AGENT_FAILING").unwrap();
    assert!(finding.message.contains("Key Vault") && finding.remedy.contains("http://"), "{finding:?}");

    // A token that the vault does not take any more is fetched anew.
    agents.world(|world| world.access_token = "another".into());
    hold(&agents, "application/x-pem-file", &second.issue("node", &["node-1"]));
    agents.heal();
    until("the new certificate", || async { new.ask(daemon.tls).await.is_ok() }).await;
    assert!(old.ask(daemon.tls).await.is_err());
    assert!(post(&mut open, "keep-alive").await.unwrap().starts_with("HTTP/1.1 200 "), "who is connected");
    until("the metric", || async { daemon.metrics().await.contains(&format!("{refused} 0")) }).await;
    let log = daemon.cns.log();
    assert_eq!(log.matches("cannot be refreshed").count(), 1, "told once: {log}");
    assert!(!log.contains("fake-access-token") && !log.contains("PRIVATE KEY"), "{log}");
}

/// Without a bundle of their own, clients are signed by the authorities that came with the certificate, and by nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_served_chain_get_in() {
    let agents = FakeAgents::start().await.unwrap();
    let chain = Chain::new();
    hold(&agents, "application/x-pem-file", &chain.issue("node", &["node-1"]));
    let mut daemon = daemon_of(&agents, json!({"UseMTLS": true}));
    daemon.launch().await;
    let client = Client::trusting(&chain.root);
    client.showing(&chain.issue("dnc", &["dnc"])).ask(daemon.tls).await.unwrap();
    client.showing(&issue(&authority("stranger"), "dnc", &["dnc"])).ask(daemon.tls).await.unwrap_err();
    client.ask(daemon.tls).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pkcs12_is_served_too() {
    let agents = FakeAgents::start().await.unwrap();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/keyvault/rsa-3des.pfx.b64");
    hold(&agents, "application/x-pkcs12", &std::fs::read_to_string(data).unwrap());
    let mut daemon = daemon_of(&agents, json!({}));
    daemon.launch().await;
    assert!(daemon.cns.log().contains("serving TLS"), "{}", daemon.cns.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_cannot_be_fetched_is_an_error_at_the_start() {
    let agents = FakeAgents::start().await.unwrap();
    for (fault, expected) in [
        (Some(("/secrets/", Fault::Status(403))), "status 403"),
        (Some(("/identity/", Fault::Status(400))), "no access token for Key Vault"),
        (None, "SecretNotFound"),
    ] {
        agents.heal();
        if let Some((target, fault)) = fault {
            agents.fail(target, fault);
        }
        let mut daemon = daemon_of(&agents, json!({}));
        daemon.cns.spawn();
        assert!(!daemon.cns.wait().unwrap().success());
        assert!(daemon.cns.log().contains(expected), "{expected}: {}", daemon.cns.log());
    }
}
