//! Masquerading, proven by what the world sees.

use std::process::Command;

use cns::{
    model::Family,
    nic::{Attachment, Backend, Masquerade, Netns, Transparent, WireSpec, enable_forwarding},
};

use crate::{
    lab::{HOST_V4, HOST_V6, Lab, Space, WORLD_V4, WORLD_V6},
    need,
};

const POD_V4: &str = "10.241.0.5";
const POD_V6: &str = "fd00:241::5";

fn wish() -> Masquerade {
    Masquerade {
        pods: vec!["10.241.0.0/16".parse().unwrap(), "fd00:241::/64".parse().unwrap()],
        keep: Vec::new(),
    }
}

async fn wired_pod(lab: &Lab) -> Space {
    let pod = lab.pod("pod");
    let plane = Transparent::new(Netns::open(lab.host.path()).unwrap()).unwrap();
    let spec = WireSpec {
        attachment: Attachment::new("azure", "c1".parse().unwrap(), "eth0".parse().unwrap()).unwrap(),
        addresses: vec![format!("{POD_V4}/16").parse().unwrap(), format!("{POD_V6}/64").parse().unwrap()],
        routes: Vec::new(),
        skip_default_routes: false,
        parent: None,
    };
    plane.wire(&pod.netns, &spec).await.unwrap();
    enable_forwarding(&lab.host.netns, &Family::ALL).unwrap();
    pod
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
        || Command::new(format!("/usr/sbin/{program}")).arg("--version").output().is_ok()
}

#[tokio::test]
async fn the_world_sees_the_host_and_pods_see_each_other() {
    let test = "the_world_sees_the_host_and_pods_see_each_other";
    let Some(lab) = Lab::new(test).await else { return };
    if !has("nft") && !has("iptables-restore") {
        return need::skip(test, "needs nft or iptables");
    }
    let pod = wired_pod(&lab).await;
    let (v4, v6) = (lab.world.serve(WORLD_V4), lab.world.serve(WORLD_V6));
    // The world has no route to pods: unmasqueraded, no answer finds its way.
    assert!(pod.udp(v4).is_err());

    for _ in 0..2 {
        wish().apply(&lab.host.netns).unwrap();
        assert_eq!(pod.udp(v4).unwrap(), HOST_V4);
        assert_eq!(pod.tcp(v4).unwrap(), HOST_V4);
        assert_eq!(pod.udp(v6).unwrap(), HOST_V6);
        assert_eq!(pod.tcp(v6).unwrap(), HOST_V6);
    }
    assert_eq!(pod.udp(lab.host.serve(HOST_V4)).unwrap(), POD_V4, "the host sees the pod itself");

    Masquerade::remove(&lab.host.netns).unwrap();
    Masquerade::remove(&lab.host.netns).unwrap();
    assert!(pod.udp(v4).is_err(), "the rules are gone");
}

#[tokio::test]
async fn iptables_does_the_same_where_nft_is_missing() {
    let test = "iptables_does_the_same_where_nft_is_missing";
    let Some(lab) = Lab::new(test).await else { return };
    if !has("iptables-restore") {
        return need::skip(test, "needs iptables");
    }
    let pod = wired_pod(&lab).await;
    let (v4, v6) = (lab.world.serve(WORLD_V4), lab.world.serve(WORLD_V6));
    for _ in 0..2 {
        wish().apply_by(Backend::Iptables, &lab.host.netns).unwrap();
        assert_eq!(pod.udp(v4).unwrap(), HOST_V4);
        assert_eq!(pod.udp(v6).unwrap(), HOST_V6);
    }
    let saved = |program: &str| {
        let output =
            lab.host.netns.run(|| Command::new(program).args(["-t", "nat"]).output().unwrap()).unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for program in ["iptables-save", "ip6tables-save"] {
        let rules = saved(program);
        assert_eq!(rules.matches("-A POSTROUTING").count(), 1, "{rules}");
        assert_eq!(rules.matches("-j MASQUERADE").count(), 1, "{rules}");
    }
    Masquerade::remove(&lab.host.netns).unwrap();
    assert!(!saved("iptables-save").contains("CNS") && !saved("ip6tables-save").contains("CNS"));
}

#[tokio::test]
async fn kept_destinations_see_the_pod() {
    let test = "kept_destinations_see_the_pod";
    let Some(lab) = Lab::new(test).await else { return };
    if !has("nft") && !has("iptables-restore") {
        return need::skip(test, "needs nft or iptables");
    }
    let pod = wired_pod(&lab).await;
    let mut wish = wish();
    wish.keep = vec![format!("{WORLD_V4}/32").parse().unwrap()];
    wish.apply(&lab.host.netns).unwrap();
    // With a route back, the world's answer arrives although nothing is masqueraded.
    lab.world.add_default_route(HOST_V4).await;
    assert_eq!(pod.udp(lab.world.serve(WORLD_V4)).unwrap(), POD_V4);
}

#[tokio::test]
async fn rules_stand_once_and_are_marked() {
    let test = "rules_stand_once_and_are_marked";
    let Some(lab) = Lab::new(test).await else { return };
    if !has("nft") {
        return need::skip(test, "needs nft");
    }
    let list = || {
        lab.host
            .netns
            .run(|| Command::new("nft").args(["list", "ruleset"]).output().unwrap())
            .map(|output| String::from_utf8(output.stdout).unwrap())
            .unwrap()
    };
    for _ in 0..3 {
        assert_eq!(wish().apply(&lab.host.netns).unwrap(), Backend::Nftables);
    }
    let rules = list();
    assert_eq!(rules.matches("masquerade").count(), 2, "{rules}");
    assert_eq!(rules.matches("comment \"cns: ").count(), 2, "{rules}");
    Masquerade::remove(&lab.host.netns).unwrap();
    assert!(!list().contains("cns"), "{}", list());
}

#[tokio::test]
async fn forwarding_keeps_a_route_learnt_from_advertisements() {
    let Some(lab) = Lab::new("forwarding_keeps_a_route_learnt_from_advertisements").await else { return };
    lab.host.set_sysctl("ipv6/conf/uplink/accept_ra", "1");
    enable_forwarding(&lab.host.netns, &Family::ALL).unwrap();
    assert_eq!(lab.host.sysctl("ipv6/conf/uplink/accept_ra"), "2");
    assert_eq!(lab.host.sysctl("ipv6/conf/all/forwarding"), "1");
    assert_eq!(lab.host.sysctl("ipv4/ip_forward"), "1");
}

/// Docker makes the policy of FORWARD to drop; pods must get through, and only as long as that is so.
#[tokio::test]
async fn pods_pass_a_firewall_that_drops_and_leave_it_as_it_was() {
    let test = "pods_pass_a_firewall_that_drops";
    let Some(lab) = Lab::new(test).await else { return };
    if !has("nft") || !has("iptables-restore") {
        return need::skip(test, "needs nft and iptables");
    }
    let pod = wired_pod(&lab).await;
    let (v4, v6) = (lab.world.serve(WORLD_V4), lab.world.serve(WORLD_V6));
    let policy = |to: &str| {
        for program in ["iptables", "ip6tables"] {
            let set = || Command::new(program).args(["-P", "FORWARD", to]).status().unwrap().success();
            assert!(lab.host.netns.run(set).unwrap());
        }
    };
    let rules = || {
        let save = |program: &str| Command::new(program).args(["-t", "filter"]).output().unwrap().stdout;
        let both = lab.host.netns.run(|| [save("iptables-save"), save("ip6tables-save")].concat()).unwrap();
        String::from_utf8(both).unwrap()
    };
    let backend = wish().apply(&lab.host.netns).unwrap();
    assert_eq!(pod.udp(v4).unwrap(), HOST_V4);
    assert!(wish().is_in_place(backend, &lab.host.netns).unwrap());
    assert!(!rules().contains("CNS"), "without need, other tables are left alone: {}", rules());

    policy("DROP");
    assert!(pod.udp(v4).is_err());
    assert!(!wish().is_in_place(backend, &lab.host.netns).unwrap());
    for _ in 0..2 {
        wish().apply(&lab.host.netns).unwrap();
        assert_eq!(pod.udp(v4).unwrap(), HOST_V4);
        assert_eq!(pod.udp(v6).unwrap(), HOST_V6);
        assert_eq!(rules().matches("-A FORWARD").count(), 2, "{}", rules());
    }
    assert!(wish().is_in_place(backend, &lab.host.netns).unwrap());

    policy("ACCEPT");
    wish().apply(&lab.host.netns).unwrap();
    assert!(!rules().contains("CNS"), "{}", rules());
    policy("DROP");
    wish().apply(&lab.host.netns).unwrap();
    Masquerade::remove(&lab.host.netns).unwrap();
    assert!(!rules().contains("CNS"), "{}", rules());
}

#[tokio::test]
async fn rules_that_somebody_flushed_are_missed() {
    let test = "rules_that_somebody_flushed_are_missed";
    let Some(lab) = Lab::new(test).await else { return };
    if !has("nft") || !has("iptables-restore") {
        return need::skip(test, "needs nft and iptables");
    }
    let host = &lab.host.netns;
    let flush = || host.run(|| Command::new("nft").args(["flush", "ruleset"]).status().unwrap()).unwrap();
    for backend in [Backend::Nftables, Backend::Iptables] {
        assert!(!wish().is_in_place(backend, host).unwrap());
        wish().apply_by(backend, host).unwrap();
        assert!(wish().is_in_place(backend, host).unwrap());
        flush();
        assert!(!wish().is_in_place(backend, host).unwrap(), "{backend:?}");
    }
}
