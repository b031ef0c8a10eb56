//! Transparent mode: what is wired carries packets, what fails leaves nothing behind, what is changed is noticed.

use cns::model::Family;
use cns::nic::{
    Attachment, Deviation, HOST_VETH_MAC, Liveness, Netns, NetnsError, NicError, Transparent, WireSpec,
    Wired, enable_forwarding, liveness,
};
use rtnetlink::{LinkUnspec, LinkVeth};

use crate::lab::{HOST_V4, HOST_V6, Lab, Space, UPLINK_MTU};

fn attachment(container: &str) -> Attachment {
    Attachment::new("azure", container.parse().unwrap(), "eth0".parse().unwrap()).unwrap()
}

fn spec(container: &str, addresses: &[&str]) -> WireSpec {
    WireSpec {
        attachment: attachment(container),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        routes: Vec::new(),
        skip_default_routes: false,
        parent: None,
    }
}

fn dataplane(lab: &Lab) -> Transparent {
    Transparent::new(Netns::open(lab.host.path()).unwrap()).unwrap()
}

async fn deviations(plane: &Transparent, pod: &Space, spec: &WireSpec) -> Vec<Deviation> {
    plane.check(&pod.netns, &spec.attachment, &spec.addresses, &spec.pod_routes()).await.unwrap()
}

async fn veths(space: &Space) -> Vec<String> {
    space.link_names().await.into_iter().filter(|name| name.starts_with("azv")).collect()
}

#[tokio::test]
async fn pods_and_host_exchange_packets_over_both_families() {
    let Some(lab) = Lab::new("pods_and_host_exchange_packets_over_both_families").await else { return };
    let plane = dataplane(&lab);
    enable_forwarding(&lab.host.netns, &Family::ALL).unwrap();
    let (one, two) = (lab.pod("one"), lab.pod("two"));
    let wired = plane.wire(&one.netns, &spec("c1", &["10.241.0.5/16", "fd00:241::5/64"])).await.unwrap();
    plane.wire(&two.netns, &spec("c2", &["10.241.0.6/16", "fd00:241::6/64"])).await.unwrap();

    assert_eq!(wired.host.mac, Some(HOST_VETH_MAC));
    assert_eq!(
        (wired.host.mtu, wired.pod.mtu),
        (UPLINK_MTU, UPLINK_MTU),
        "the MTU of the default route's NIC"
    );
    for (server, at, clients) in [
        (&one, "10.241.0.5", [(&two, "10.241.0.6"), (&lab.host, HOST_V4)]),
        (&one, "fd00:241::5", [(&two, "fd00:241::6"), (&lab.host, HOST_V6)]),
        (&lab.host, HOST_V4, [(&one, "10.241.0.5"), (&two, "10.241.0.6")]),
        (&lab.host, HOST_V6, [(&one, "fd00:241::5"), (&two, "fd00:241::6")]),
    ] {
        let server = server.serve(at);
        for (client, address) in clients {
            // UDP first: its single datagram is the first packet between the two, and there is no second.
            assert_eq!(client.udp(server).unwrap(), address, "udp from {address} to {at}");
            assert_eq!(client.tcp(server).unwrap(), address, "tcp from {address} to {at}");
        }
    }
    assert_eq!(deviations(&plane, &one, &spec("c1", &["10.241.0.5/16", "fd00:241::5/64"])).await, []);
}

#[tokio::test]
async fn either_family_alone_works() {
    let Some(lab) = Lab::new("either_family_alone_works").await else { return };
    let plane = dataplane(&lab);
    for (container, address, host) in [("c4", "10.241.0.9", HOST_V4), ("c6", "fd00:241::9", HOST_V6)] {
        let pod = lab.pod(container);
        let prefix = if container == "c4" { 24 } else { 120 };
        plane.wire(&pod.netns, &spec(container, &[&format!("{address}/{prefix}")])).await.unwrap();
        assert_eq!(pod.udp(lab.host.serve(host)).unwrap(), address);
        assert_eq!(lab.host.udp(pod.serve(address)).unwrap(), host);
    }
    assert_eq!(lab.host.sysctl("ipv6/conf/all/forwarding"), "1", "switched on for the IPv6 pod");
}

/// The kernel works up some of what it is told later. Whoever hears that the pod is wired may send at once.
#[tokio::test]
async fn no_first_packet_is_lost() {
    let Some(lab) = Lab::new("no_first_packet_is_lost").await else { return };
    let plane = dataplane(&lab);
    let (v4, v6) = (lab.host.serve(HOST_V4), lab.host.serve(HOST_V6));
    for number in 1..=100 {
        let pod = lab.pod(&format!("pod{number}"));
        let (ours, prefix, server) = if number % 2 == 0 {
            (format!("10.241.0.{number}"), 24, v4)
        } else {
            (format!("fd00:241::{number}"), 64, v6)
        };
        let spec = spec(&format!("c{number}"), &[&format!("{ours}/{prefix}")]);
        plane.wire(&pod.netns, &spec).await.unwrap();
        assert_eq!(pod.udp(server).unwrap(), ours, "pod {number}");
        plane.unwire(Some(&pod.netns), &spec.attachment).await.unwrap();
    }
}

#[tokio::test]
async fn strict_reverse_path_filtering_and_switched_off_ipv6_do_no_harm() {
    let Some(lab) = Lab::new("strict_reverse_path_filtering_and_switched_off_ipv6_do_no_harm").await else {
        return;
    };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    for space in [&lab.host, &pod] {
        for scope in ["all", "default"] {
            space.set_sysctl(&format!("ipv4/conf/{scope}/rp_filter"), "1");
        }
    }
    pod.set_sysctl("ipv6/conf/all/disable_ipv6", "1");
    pod.set_sysctl("ipv6/conf/default/disable_ipv6", "1");
    let mut spec = spec("c1", &["10.241.0.5/16", "fd00:241::5/64"]);
    spec.skip_default_routes = true;
    spec.routes = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()];
    plane.wire(&pod.netns, &spec).await.unwrap();
    for (address, host) in [("10.241.0.5", HOST_V4), ("fd00:241::5", HOST_V6)] {
        assert_eq!(lab.host.udp(pod.serve(address)).unwrap(), host);
        assert_eq!(pod.udp(lab.host.serve(host)).unwrap(), address);
    }
}

#[tokio::test]
async fn settings_and_marks_are_as_specified() {
    let Some(lab) = Lab::new("settings_and_marks_are_as_specified").await else { return };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    let spec = spec("c1", &["10.241.0.5/16", "fd00:241::5/64"]);
    plane.wire(&pod.netns, &spec).await.unwrap();
    let veth = spec.attachment.host_veth();
    assert_eq!(lab.host.sysctl(&format!("ipv4/conf/{veth}/proxy_arp")), "1");
    assert_eq!(lab.host.sysctl(&format!("ipv6/conf/{veth}/accept_ra")), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/accept_ra"), "0");
    assert_eq!(pod.sysctl("ipv6/conf/eth0/disable_ipv6"), "0");
    let ours = plane.list_ours().await.unwrap();
    assert_eq!(ours.len(), 1);
    assert_eq!((ours[0].link.name.as_str(), ours[0].attachment.as_ref()), (&*veth, Some(&spec.attachment)));
    let addresses = pod.addresses("eth0").await;
    assert!(spec.addresses.iter().all(|address| addresses.contains(address)), "{addresses:?}");
}

#[tokio::test]
async fn skipped_default_routes_leave_only_what_cns_sent() {
    let Some(lab) = Lab::new("skipped_default_routes_leave_only_what_cns_sent").await else { return };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    let mut spec = spec("c1", &["10.241.0.5/16", "fd00:241::5/64"]);
    spec.skip_default_routes = true;
    spec.routes = vec!["192.0.2.0/25".parse().unwrap()];
    plane.wire(&pod.netns, &spec).await.unwrap();
    assert_eq!(pod.udp(lab.host.serve(HOST_V4)).unwrap(), "10.241.0.5", "over the route that was sent");
    let server = lab.host.serve(HOST_V6);
    assert!(pod.udp(server).is_err(), "there must be no IPv6 default route");
    assert_eq!(deviations(&plane, &pod, &spec).await, []);
}

#[tokio::test]
async fn wiring_again_changes_nothing_and_completes_what_is_half_done() {
    let Some(lab) = Lab::new("wiring_again_changes_nothing_and_completes_what_is_half_done").await else {
        return;
    };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    let spec = spec("c1", &["10.241.0.5/16", "fd00:241::5/64"]);
    let first: Wired = plane.wire(&pod.netns, &spec).await.unwrap();
    let second = plane.wire(&pod.netns, &spec).await.unwrap();
    assert_eq!((first.host.index, first.pod.index), (second.host.index, second.pod.index));
    pod.delete_route("0.0.0.0/0").await;
    pod.set_down("eth0").await;
    plane.wire(&pod.netns, &spec).await.unwrap();
    assert_eq!(deviations(&plane, &pod, &spec).await, []);
    assert_eq!(pod.udp(lab.host.serve(HOST_V4)).unwrap(), "10.241.0.5");
}

#[tokio::test]
async fn failure_in_the_middle_leaves_nothing_behind() {
    let Some(lab) = Lab::new("failure_in_the_middle_leaves_nothing_behind").await else { return };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    // The last step fails: the host has the pod's address itself, so its packets would never reach the pod.
    lab.host.add_address("lo", "10.241.0.5/32").await;
    let error = plane.wire(&pod.netns, &spec("c1", &["10.241.0.5/16"])).await.unwrap_err();
    let NicError::HostRoute { found, .. } = &error else { panic!("{error}") };
    assert_eq!(found, "lo", "{error}");
    assert_eq!(lab.host.link_names().await, ["lo", "uplink"]);
    assert_eq!(pod.link_names().await, ["lo"]);
}

#[tokio::test]
async fn interfaces_of_others_are_left_alone() {
    let Some(lab) = Lab::new("interfaces_of_others_are_left_alone").await else { return };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    plane.wire(&pod.netns, &spec("c1", &["10.241.0.5/16"])).await.unwrap();
    let error = plane.wire(&pod.netns, &spec("c2", &["10.241.0.6/16"])).await.unwrap_err();
    assert!(matches!(error, NicError::InterfaceExists { .. }), "{error}");
    assert!(
        !plane.unwire(Some(&pod.netns), &attachment("c2")).await.unwrap(),
        "the clean-up after the failed ADD"
    );
    assert_eq!(deviations(&plane, &pod, &spec("c1", &["10.241.0.5/16"])).await, []);

    // A link that bears the name of c3's veth and somebody's mark.
    let name = attachment("c3").host_veth();
    let handle = lab.host.rtnetlink();
    handle.link().add(LinkVeth::new(&name, "other").build()).execute().await.unwrap();
    let marked = LinkUnspec::new_with_name(&name).alias("uplink to rack 7").build();
    handle.link().set(marked).execute().await.unwrap();
    let fresh = lab.pod("fresh");
    let error = plane.wire(&fresh.netns, &spec("c3", &["10.241.0.7/16"])).await.unwrap_err();
    assert!(matches!(&error, NicError::NameTaken { by, .. } if by == "uplink to rack 7"), "{error}");
    assert!(!plane.unwire(None, &attachment("c3")).await.unwrap());
}

#[tokio::test]
async fn unwiring_is_repeatable_with_and_without_the_namespace() {
    let Some(lab) = Lab::new("unwiring_is_repeatable_with_and_without_the_namespace").await else { return };
    let plane = dataplane(&lab);
    for with_netns in [true, false] {
        let pod = lab.pod("pod");
        plane.wire(&pod.netns, &spec("c1", &["10.241.0.5/16"])).await.unwrap();
        let netns = with_netns.then_some(&pod.netns);
        assert!(plane.unwire(netns, &attachment("c1")).await.unwrap());
        assert!(!plane.unwire(netns, &attachment("c1")).await.unwrap(), "nothing is left to remove");
        assert_eq!(veths(&lab.host).await, Vec::<String>::new());
        assert_eq!(pod.link_names().await, ["lo"]);
    }
}

#[tokio::test]
async fn a_veth_of_the_reference_is_found_by_the_pods_end() {
    let Some(lab) = Lab::new("a_veth_of_the_reference_is_found_by_the_pods_end").await else { return };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    let handle = lab.host.rtnetlink();
    handle.link().add(LinkVeth::new("azvc048fd9a750", "azvc048fd9a7502").build()).execute().await.unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&pod.netns));
    let moved = LinkUnspec::new_with_name("azvc048fd9a7502").setns_by_fd(fd).build();
    handle.link().set(moved).execute().await.unwrap();
    let index = pod.links().await.into_iter().find(|link| link.name != "lo").unwrap().index;
    let renamed = LinkUnspec::new_with_index(index).name("eth0").build();
    pod.rtnetlink().link().set(renamed).execute().await.unwrap();

    assert!(!plane.unwire(None, &attachment("c1")).await.unwrap(), "its name says nothing");
    assert!(plane.unwire(Some(&pod.netns), &attachment("c1")).await.unwrap());
    assert_eq!(veths(&lab.host).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_stale_veth_and_a_stale_route_are_replaced() {
    let Some(lab) = Lab::new("a_stale_veth_and_a_stale_route_are_replaced").await else { return };
    let plane = dataplane(&lab);
    let (old, new, other) = (lab.pod("old"), lab.pod("new"), lab.pod("other"));
    // The same container in another namespace: the plugin died, the runtime made the sandbox anew.
    plane.wire(&old.netns, &spec("c1", &["10.241.0.5/16"])).await.unwrap();
    plane.wire(&new.netns, &spec("c1", &["10.241.0.5/16"])).await.unwrap();
    assert_eq!(old.link_names().await, ["lo"]);
    assert_eq!(lab.host.udp(new.serve("10.241.0.5")).unwrap(), HOST_V4);
    // Another container gets the address while the old veth is still there.
    plane.wire(&other.netns, &spec("c2", &["10.241.0.5/16"])).await.unwrap();
    assert_eq!(lab.host.udp(other.serve("10.241.0.5")).unwrap(), HOST_V4);
    // The late DEL of the first must not take the second's route.
    assert!(plane.unwire(Some(&new.netns), &attachment("c1")).await.unwrap());
    assert_eq!(deviations(&plane, &other, &spec("c2", &["10.241.0.5/16"])).await, []);
}

#[tokio::test]
async fn check_notices_every_change() {
    let Some(lab) = Lab::new("check_notices_every_change").await else { return };
    let plane = dataplane(&lab);
    let pod = lab.pod("pod");
    let spec = spec("c1", &["10.241.0.5/16", "fd00:241::5/64"]);
    let veth = spec.attachment.host_veth();
    plane.wire(&pod.netns, &spec).await.unwrap();
    assert_eq!(deviations(&plane, &pod, &spec).await, []);

    pod.delete_route("0.0.0.0/0").await;
    pod.delete_route("::/0").await;
    let found: Vec<_> = deviations(&plane, &pod, &spec).await.iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "route to 0.0.0.0/0 via 169.254.1.1 is missing in the pod",
            "route to ::/0 via fe80::1234:5678:9abc is missing in the pod"
        ]
    );
    plane.wire(&pod.netns, &spec).await.unwrap();

    lab.host.delete_route("10.241.0.5/32").await;
    let found = deviations(&plane, &pod, &spec).await;
    assert!(matches!(&found[..], [Deviation::HostRoute { found, .. }] if found == "uplink"), "{found:?}");
    plane.wire(&pod.netns, &spec).await.unwrap();

    lab.host.set_down(&veth).await;
    let found = deviations(&plane, &pod, &spec).await;
    assert!(found.contains(&Deviation::Down(veth.clone())), "{found:?}");
    plane.wire(&pod.netns, &spec).await.unwrap();
    assert_eq!(deviations(&plane, &pod, &spec).await, []);

    pod.delete_link("eth0").await;
    let found = deviations(&plane, &pod, &spec).await;
    assert_eq!(found, [Deviation::PodInterface("eth0".into()), Deviation::HostVeth(veth)]);
}

#[tokio::test]
async fn namespaces_are_told_apart() {
    let Some(lab) = Lab::new("namespaces_are_told_apart").await else { return };
    let pod = lab.pod("pod");
    let (path, id) = (pod.path().to_owned(), pod.netns.id());
    let host = Netns::open(lab.host.path()).unwrap();
    assert!(matches!(liveness(&path, id), Liveness::Alive));
    let own = Netns::open_pod(lab.host.path(), &host).unwrap_err();
    assert!(matches!(own, NetnsError::Own { .. }), "{own}");
    // Unmounted, the file stays as a runtime leaves it for a moment.
    nix::mount::umount2(&path, nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert!(matches!(liveness(&path, id), Liveness::Gone));
    assert!(matches!(Netns::open(&path), Err(NetnsError::Gone { .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(liveness(&path, id), Liveness::Gone));
    // `pod` holds the old namespace, so the new one under the same path cannot have its inode.
    let again = lab.pod("pod");
    assert_eq!(liveness(&path, id), Liveness::Replaced);
    assert_eq!(liveness(&path, again.netns.id()), Liveness::Alive);
}
