use super::*;
use crate::host::imds::Imds;
use cns_fake_agents::{Agent, FakeAgents, Fault};

const IDENTITY: &str =
    "/subscriptions/0/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/a&b=c";
const PEM: &str = concat!(
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/keyvault/leaf-ec.pem")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/keyvault/ec.sec1.pem"))
);

fn config(url: &str) -> KeyVaultConfig {
    KeyVaultConfig {
        url: url.parse().unwrap(),
        certificate_name: "cns-tls".into(),
        identity: Some(IDENTITY.into()),
    }
}

fn client(agents: &FakeAgents) -> KeyVault {
    agents.world(|world| {
        world.secrets.insert("cns-tls".into(), ("application/x-pem-file".into(), PEM.into()));
    });
    let imds = Imds::new(&agents.url(Agent::Imds).parse().unwrap(), Limits::default()).unwrap();
    let config =
        KeyVaultConfig { url: agents.url(Agent::KeyVault).parse().unwrap(), ..config("http://localhost") };
    let client = KeyVault::new(config, imds, Limits::default(), Roots::System).unwrap();
    KeyVault { pause: Pause::Fixed(Duration::from_millis(5)), ..client }
}

fn asked(agents: &FakeAgents) -> Vec<Agent> {
    agents.take_requests().into_iter().map(|request| request.agent).collect()
}

#[tokio::test]
async fn a_token_is_fetched_by_the_identity_and_kept() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    assert_eq!(client.certificate().await.unwrap().chain.len(), 1);
    let requests = agents.take_requests();
    assert_eq!(
        requests[0].target,
        "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fvault.azure.net&msi_res_id=%2Fsubscriptions%2F0%2FresourceGroups%2Frg%2Fproviders%2FMicrosoft.ManagedIdentity%2FuserAssignedIdentities%2Fa%26b%3Dc"
    );
    assert_eq!(requests[0].headers["metadata"], "true");
    assert_eq!(requests[1].target, "/secrets/cns-tls?api-version=7.4");
    assert_eq!(requests[1].headers["authorization"], "Bearer fake-access-token");
    client.clone().certificate().await.unwrap();
    assert_eq!(asked(&agents), [Agent::KeyVault], "the token is kept");
}

/// Without one that is named, the machine's own: IMDS takes an empty `msi_res_id` for a wrong one.
#[tokio::test]
async fn the_system_assigned_identity_has_no_name() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let config = KeyVaultConfig { identity: None, ..(*client.config).clone() }.checked().unwrap();
    KeyVault { config: Arc::new(config), ..client }.certificate().await.unwrap();
    assert_eq!(
        agents.take_requests()[0].target,
        "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fvault.azure.net"
    );
}

#[tokio::test]
async fn a_token_is_fetched_anew_before_it_expires_and_when_it_is_refused() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    agents.world(|world| world.token_expires_in = 299);
    client.certificate().await.unwrap();
    client.certificate().await.unwrap();
    assert_eq!(
        asked(&agents),
        [Agent::Imds, Agent::KeyVault, Agent::Imds, Agent::KeyVault],
        "less than 5 minutes are left"
    );

    agents.world(|world| world.token_expires_in = 3600);
    client.certificate().await.unwrap();
    agents.take_requests();
    agents.world(|world| world.access_token = "another".into());
    client.certificate().await.unwrap();
    assert_eq!(asked(&agents), [Agent::KeyVault, Agent::Imds, Agent::KeyVault]);
    agents.fail("/secrets/", Fault::Status(401));
    let error = client.certificate().await.unwrap_err();
    assert_eq!(asked(&agents), [Agent::KeyVault, Agent::Imds, Agent::KeyVault], "once");
    assert!(
        matches!(&error, KeyVaultError::Secret(error) if error.fault.status().unwrap() == 401),
        "{error}"
    );
}

#[tokio::test]
async fn errors_say_which_of_the_two_failed_and_hold_no_secret() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let token = r#"{"access_token":"hun\nter","expires_in":"1"}"#;
    let untimely = r#"{"access_token":"hunter2","expires_in":"soon"}"#;
    let number = r#"{"access_token":"hunter2","expires_in":12345}"#;
    for (target, fault, expected) in [
        ("/identity/", Fault::Status(400), "no access token for Key Vault: IMDS at http"),
        ("/identity/", Fault::Body("{}".into()), "access_token is missing"),
        ("/identity/", Fault::Body(token.into()), "is no header value"),
        ("/identity/", Fault::Body(untimely.into()), "expires_in is not a number of seconds"),
        ("/identity/", Fault::Body(number.into()), "is not a string"),
        ("/secrets/", Fault::Status(403), "Key Vault at http"),
        ("/secrets/", Fault::Body("{}".into()), "value is missing"),
        ("/secrets/", Fault::Body(r#"{"value":["hunter2"]}"#.into()), "is not a string"),
        (
            "/secrets/",
            Fault::Body(r#"{"value":"hunter2","contentType":"text/plain"}"#.into()),
            "its content type is `text/plain`",
        ),
    ] {
        agents.heal();
        *client.token.lock().unwrap() = None;
        agents.fail(target, fault);
        let error = client.certificate().await.unwrap_err();
        let words = format!("{error} {error:?}");
        assert!(words.contains(expected), "{words}");
        assert!(!words.contains("hun") && !error.may_pass(), "{words}");
    }
    agents.heal();
    agents.world(|world| world.secrets.clear());
    let error = client.certificate().await.unwrap_err();
    assert!(
        error.to_string().contains("status 404 Not Found") && error.to_string().contains("SecretNotFound"),
        "{error}"
    );
    assert!(!format!("{client:?} {:?}", client.token).contains("fake-access-token"));
}

#[tokio::test]
async fn what_may_pass_is_tried_again() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    agents.fail_times("/secrets/", Fault::Status(503), 1);
    agents.fail_times("/secrets/", Fault::Drop, 1);
    client.certificate().await.unwrap();
    agents.fail("/secrets/", Fault::Status(503));
    assert!(client.certificate().await.unwrap_err().may_pass());
}

#[test]
fn settings_that_cannot_work_are_refused_by_name() {
    config("https://vault.vault.azure.net/").checked().unwrap();
    let good = || config("https://vault.vault.azure.net");
    for (config, key) in [
        (config("http://vault.vault.azure.net"), "KeyVaultSettings.URL"),
        (KeyVaultConfig { certificate_name: "a/../b".into(), ..good() }, "KeyVaultSettings.CertificateName"),
        (KeyVaultConfig { certificate_name: String::new(), ..good() }, "KeyVaultSettings.CertificateName"),
        (KeyVaultConfig { identity: Some("my-identity".into()), ..good() }, "MSISettings.ResourceID"),
        (KeyVaultConfig { identity: Some(String::new()), ..good() }, "MSISettings.ResourceID"),
    ] {
        let error = config.checked().unwrap_err().to_string();
        assert!(error.starts_with(key), "{error}");
    }
}

#[test]
fn each_cloud_has_its_audience() {
    for (url, expected) in [
        ("https://a.vault.azure.net", "https://vault.azure.net"),
        ("https://a.vault.azure.cn", "https://vault.azure.cn"),
        ("https://a.vault.usgovcloudapi.net", "https://vault.usgovcloudapi.net"),
        ("https://vault.example", "https://vault.azure.net"),
        ("http://127.0.0.1:1", "https://vault.azure.net"),
    ] {
        assert_eq!(resource(&url.parse().unwrap()), expected, "{url}");
    }
}
