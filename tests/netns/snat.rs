//! SNAT of pods' packets to Azure's own addresses, read back and proven by a packet (spec/network-containers.md §9).

use std::process::Command;

use cns::nic::{Attachment, Netns, Snat, Transparent, WireSpec, enable_forwarding};

use crate::{
    lab::{HOST_V4, Lab},
    need,
};

const POD: &str = "10.241.0.5";
const IMDS: &str = "169.254.169.254";

fn nat(lab: &Lab) -> String {
    let saved =
        lab.host.netns.run(|| Command::new("iptables-save").args(["-t", "nat"]).output().unwrap()).unwrap();
    String::from_utf8(saved.stdout).unwrap()
}

fn iptables(lab: &Lab, arguments: &[&str]) {
    let done = lab.host.netns.run(|| Command::new("iptables").args(arguments).status().unwrap()).unwrap();
    assert!(done.success(), "{arguments:?}");
}

fn wish(host: &str) -> Snat {
    Snat::new([(POD.parse().unwrap(), 16, host.parse().ok())])
}

#[tokio::test]
async fn imds_sees_the_host_and_others_see_the_pod() {
    let test = "imds_sees_the_host_and_others_see_the_pod";
    let Some(lab) = Lab::new(test).await else { return };
    if !need::need_program(test, "/usr/sbin/iptables-restore") {
        return;
    }
    let pod = lab.pod("pod");
    let plane = Transparent::new(Netns::open(lab.host.path()).unwrap()).unwrap();
    let spec = WireSpec {
        attachment: Attachment::new("azure", "c1".parse().unwrap(), "eth0".parse().unwrap()).unwrap(),
        addresses: vec![format!("{POD}/16").parse().unwrap()],
        routes: Vec::new(),
        skip_default_routes: false,
        parent: None,
    };
    plane.wire(&pod.netns, &spec).await.unwrap();
    enable_forwarding(&lab.host.netns, &[cns::model::Family::V4]).unwrap();
    lab.world
        .add_address(
            &lab.world.link_names().await.into_iter().find(|name| name != "lo").unwrap(),
            &format!("{IMDS}/32"),
        )
        .await;
    // Port 80, which is the rule's.
    let imds = lab.world.serve_on(IMDS, 80);
    assert!(pod.tcp(imds).is_err(), "the world has no route to pods");

    iptables(&lab, &["-t", "nat", "-N", "SWIFT"]);
    iptables(&lab, &["-t", "nat", "-A", "POSTROUTING", "-j", "SWIFT"]);
    assert!(wish(HOST_V4).apply(&lab.host.netns).unwrap());
    assert_eq!(pod.tcp(imds).unwrap(), HOST_V4);
    assert!(!wish(HOST_V4).apply(&lab.host.netns).unwrap(), "idempotent: what is there is recognised");
    let saved = nat(&lab);
    let (ours, old) = (
        saved.find("-A POSTROUTING -j SWIFT-POSTROUTING").unwrap(),
        saved.find("-A POSTROUTING -j SWIFT\n").unwrap(),
    );
    assert!(ours < old, "{saved}");
    assert_eq!(saved.matches("-A SWIFT-POSTROUTING ").count(), 3, "{saved}");

    // Another wish replaces the rules, a foreign rule in the chain goes, and no wish removes it all, but for what is another's.
    iptables(&lab, &["-t", "nat", "-A", "SWIFT-POSTROUTING", "-j", "ACCEPT"]);
    assert!(wish("192.0.2.77").apply(&lab.host.netns).unwrap());
    let saved = nat(&lab);
    assert!(
        saved.contains("--to-source 192.0.2.77") && !saved.contains(&format!("--to-source {HOST_V4}")),
        "{saved}"
    );
    assert!(!saved.contains("-A SWIFT-POSTROUTING -j ACCEPT"), "{saved}");
    assert!(Snat::default().apply(&lab.host.netns).unwrap());
    assert!(!Snat::default().apply(&lab.host.netns).unwrap());
    let saved = nat(&lab);
    assert!(!saved.contains("SWIFT-POSTROUTING") && saved.contains("-A POSTROUTING -j SWIFT"), "{saved}");
}
