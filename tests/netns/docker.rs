//! docker networks by a daemon that lives in a namespace of the lab, where a host's primary interface is what the test says.

use cns::proto::v1 as pb;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use crate::{
    cns_under_test::{Cns, until},
    docker_under_test::{Docker, Fault},
    lab::Lab,
};

/// A legacy client of the daemon.
struct Legacy<'a>(&'a Cns);

impl Legacy<'_> {
    /// The flat reply's code and message.
    async fn ask(&self, path: &str, body: &Value) -> (u64, String) {
        let mut stream = UnixStream::connect(self.0.directory().join("rest.sock")).await.unwrap();
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
        let reply: Value = serde_json::from_str(body).unwrap();
        (reply["ReturnCode"].as_u64().unwrap(), reply["Message"].as_str().unwrap().to_owned())
    }

    async fn create(&self, name: &str) -> (u64, String) {
        self.ask("/network/create", &json!({"NetworkName": name, "Options": null})).await
    }

    async fn delete(&self, name: &str) -> (u64, String) {
        self.ask("/network/delete", &json!({"NetworkName": name})).await
    }
}

async fn daemon(lab: &Lab, docker: &Docker, interval: &str) -> Cns {
    let mut cns = Cns::prepared(&[]);
    let path = |name: &str| cns.directory().join(name).to_str().unwrap().to_owned();
    let (config, rest) = (path("cns_config.json"), format!("unix://{}", path("rest.sock")));
    let settings = json!({"Node": {"DockerURL": docker.url()}});
    std::fs::write(&config, settings.to_string()).unwrap();
    let mut args = vec!["--standalone-cidr", "10.244.0.0/24", "--cns-url", &rest, "--config-path", &config];
    // So that a round comes soon where a test wants one, and never where it counts calls.
    args.extend(["--reconcile-interval", interval]);
    cns.set_args(&args);
    let mut cns = cns.in_netns(lab.host.path());
    cns.launch().await;
    let azure = pb::SetEnvironmentRequest { location: "Azure".into(), network_type: "Underlay".into() };
    cns.node().await.set_environment(azure).await.unwrap();
    cns
}

/// What docker was asked since the last time, but for the rounds of the daemon's own: the first may come after the environment is
/// set.
fn asked(docker: &Docker) -> Vec<(String, String)> {
    docker.calls().into_iter().filter(|(call, _)| call != "GET /networks").collect()
}

fn success() -> (u64, String) {
    (0, String::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_docker_network_has_the_host_s_subnet_from_its_creation_to_its_end() {
    let Some(lab) = Lab::new("a_docker_network_has_the_host_s_subnet_from_its_creation_to_its_end").await
    else {
        return;
    };
    let docker = lab.host.netns.run(|| Docker::start(&["elder".to_owned()])).unwrap();
    let mut cns = daemon(&lab, &docker, "3600").await;
    let legacy = Legacy(&cns);

    assert_eq!(legacy.create("azurenet").await, success());
    let calls = asked(&docker);
    assert_eq!(calls[0].0, "GET /networks/azurenet");
    assert_eq!(calls[1].0, "POST /networks/create");
    let sent: Value = serde_json::from_str(&calls[1].1).unwrap();
    let wanted = json!({
        "Name": "azurenet", "Driver": "azure-vnet", "Internal": true,
        "IPAM": {"Driver": "azure-vnet", "Config": [{"Subnet": "192.0.2.0/24"}]},
        "Options": {"com.microsoft.azure.network.mode": "bridge"},
    });
    assert_eq!((sent, calls.len()), (wanted, 2));
    let exists = "[Azure CNS] Received a request to create an already existing network azurenet";
    assert_eq!(legacy.create("azurenet").await, (0, exists.to_owned()));
    assert_eq!(asked(&docker).len(), 1, "nothing but the look");

    // The key counts, not its value.
    let own = json!({"NetworkName": "own-addresses", "Options": {"DisableSNAT": false, "other": [1]}});
    assert_eq!(legacy.ask("/v0.2/network/create", &own).await, success());
    let calls = asked(&docker);
    let sent: Value = serde_json::from_str(&calls[1].1).unwrap();
    assert_eq!((&sent["Name"], &sent["Options"]), (&json!("own-addresses"), &Value::Null));

    // The beginning of an id is no name: docker would take it for one, and delete somebody else's network.
    assert_eq!(legacy.delete("id-el").await, (99, "Network not found".to_owned()));
    assert_eq!(asked(&docker), [("GET /networks/id-el".to_owned(), String::new())]);
    assert_eq!(legacy.delete("azurenet").await, success());
    assert_eq!(asked(&docker)[1].0, "DELETE /networks/azurenet");
    assert_eq!(legacy.delete("azurenet").await, (99, "Network not found".to_owned()));
    assert_eq!(legacy.create("azurenet").await, success(), "a name can be used again");

    // docker alone knows: a daemon that was killed and started anew sees the same.
    cns.kill9();
    cns.launch().await;
    assert_eq!(Legacy(&cns).create("own-addresses").await.0, 0);
    assert_eq!(Legacy(&cns).delete("own-addresses").await, success());
    cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn creating_and_deleting_fail_as_docker_and_the_host_do() {
    let Some(lab) = Lab::new("creating_and_deleting_fail_as_docker_and_the_host_do").await else { return };
    let docker = lab.host.netns.run(|| Docker::start(&["elder".to_owned()])).unwrap();
    let cns = daemon(&lab, &docker, "3600").await;
    let legacy = Legacy(&cns);
    let create = pb::CreateNetworkRequest { network_name: "azurenet".into(), ..Default::default() };

    for (fault, text, code) in [
        (Fault::Error, "the plugin is asleep", tonic::Code::Internal),
        (Fault::Missing, "404", tonic::Code::Internal),
        (Fault::Garbage, "200", tonic::Code::Internal),
        (Fault::Huge, "larger than", tonic::Code::Internal),
        (Fault::Close, "does not answer", tonic::Code::Unavailable),
        (Fault::Hang, "within 6 s", tonic::Code::Unavailable),
    ] {
        docker.set_fault("POST", Some(fault));
        let mut node = cns.node().await;
        let (answer, status) = tokio::join!(legacy.create("azurenet"), node.create_network(create.clone()));
        let (number, message) = answer;
        assert_eq!(number, 99, "{fault:?}: {message}");
        assert!(
            message.starts_with("[Azure CNS] Error. CreateNetwork failed docker ")
                || message.starts_with("[Azure CNS] Error. CreateNetwork failed what answered "),
            "{message}"
        );
        assert!(message.contains(text) && message.ends_with('.'), "{fault:?}: {message}");
        assert_eq!(status.unwrap_err().code(), code, "{fault:?}");
    }
    docker.set_fault("POST", None);

    for (fault, text) in [
        (Fault::Error, "the plugin is asleep"),
        (Fault::Close, "does not answer"),
        (Fault::Hang, "within 6 s"),
    ] {
        docker.set_fault("DELETE", Some(fault));
        let (number, message) = legacy.delete("elder").await;
        assert_eq!(number, 99, "{message}");
        assert!(message.starts_with("[Azure CNS] Error. DeleteNetwork failed docker "), "{message}");
        assert!(message.contains(text) && message.ends_with('.'), "{message}");
    }
    // Somebody else deleted it between the look and the deletion.
    docker.set_fault("DELETE", Some(Fault::Missing));
    assert_eq!(legacy.delete("elder").await, (99, "Network not found".to_owned()));
    docker.set_fault("DELETE", None);

    lab.host.delete_route("0.0.0.0/0").await;
    lab.host.delete_route("::/0").await;
    until("the host has no primary interface", async || {
        cns.node().await.get_host_local_ip(pb::GetHostLocalIpRequest {}).await.is_err()
    })
    .await;
    asked(&docker);
    let (number, message) = legacy.create("azurenet").await;
    assert_eq!(number, 99);
    assert!(message.starts_with("[Azure CNS] Error. GetPrimaryInterfaceInfoFromHost failed "), "{message}");
    assert_eq!(asked(&docker).len(), 1, "docker is not asked for a network without a subnet");
    cns.assert_sound().await;
}

/// The sources of the packet rules that bear a network's comment.
fn masqueraded(lab: &Lab, network: &str) -> Vec<String> {
    let saved =
        lab.host.netns.run(|| std::process::Command::new("iptables-save").args(["-t", "nat"]).output());
    let saved = String::from_utf8(saved.unwrap().unwrap().stdout).unwrap();
    let comment = format!("\"cns: docker network {network}\"");
    let ours = saved.lines().filter(|line| line.contains(&comment) && line.ends_with("-j MASQUERADE"));
    ours.map(|line| line.split_whitespace().skip_while(|word| *word != "-s").nth(1).unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_f3_f4_networks_are_masqueraded_until_they_go_and_again_after_a_reboot() {
    let Some(lab) =
        Lab::new("f2_f3_f4_networks_are_masqueraded_until_they_go_and_again_after_a_reboot").await
    else {
        return;
    };
    let docker = lab.host.netns.run(|| Docker::start(&["elder".to_owned()])).unwrap();
    let mut cns = daemon(&lab, &docker, "3600").await;
    let legacy = Legacy(&cns);
    for name in ["one", "another"] {
        assert_eq!(legacy.create(name).await, success());
        assert_eq!(masqueraded(&lab, name), ["192.0.2.0/24"], "{name}");
    }
    let own = json!({"NetworkName": "own", "Options": {"DisableSNAT": ""}});
    assert_eq!(legacy.ask("/network/create", &own).await, success());
    assert_eq!(masqueraded(&lab, "own"), [""; 0], "F4");
    assert_eq!(legacy.delete("another").await, success());
    assert_eq!(masqueraded(&lab, "another"), [""; 0]);
    assert_eq!(masqueraded(&lab, "one"), ["192.0.2.0/24"], "the other networks' rules stay");

    // What a reboot does: the rules are gone, docker and its networks come back, later than this daemon.
    let flush = || std::process::Command::new("iptables").args(["-t", "nat", "-F"]).status();
    assert!(lab.host.netns.run(flush).unwrap().unwrap().success());
    docker.set_fault("GET", Some(Fault::Close));
    cns.kill9();
    let args = ["--reconcile-interval", "0.05"];
    let config = cns.directory().join("cns_config.json");
    cns.set_args(&[&args[..], &["--config-path", config.to_str().unwrap()]].concat());
    docker.calls();
    cns.launch().await;
    until("docker was asked in vain", async || docker.count() > 2).await;
    docker.set_fault("GET", None);
    until("F3", async || masqueraded(&lab, "one") == ["192.0.2.0/24"]).await;
    docker.calls();
    until("more rounds", async || docker.count() > 2).await;
    assert_eq!(masqueraded(&lab, "one"), ["192.0.2.0/24"], "one rule, however many rounds");
    assert_eq!(masqueraded(&lab, "own"), [""; 0], "F4");
    assert_eq!(masqueraded(&lab, "elder"), [""; 0], "another driver's networks are not ours");
}
