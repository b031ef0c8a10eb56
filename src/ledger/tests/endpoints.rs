//! Endpoint records (spec/endpoint-state.md).

use super::*;

fn patch(container: &str, interfaces: Vec<EndpointInterface>) -> Command {
    Command::UpdateEndpoint(UpdateEndpoint {
        container: id(container),
        pod: None,
        interfaces,
        sandbox: None,
        witnessed: false,
        began: None,
    })
}

fn nic(ifname: &str) -> EndpointInterface {
    EndpointInterface {
        ifname: Some(id(ifname)),
        host_veth_name: Some("azv1f2e3d4c5b6".into()),
        ..Default::default()
    }
}

#[test]
fn the_interface_that_gets_its_name_takes_the_addresses_over_whatever_it_is_called() {
    for name in ["eth0", "net1"] {
        let mut bench = Bench::with_nc_a(1);
        bench.request_with(RequestIps { ifname: None, ..ask("c1") }).unwrap();
        bench.run(patch("c1", vec![nic(name)])).unwrap();
        let endpoint = bench.endpoint("c1").unwrap().clone();
        assert_eq!(endpoint.interfaces.len(), 1);
        assert_eq!(endpoint.interfaces[0].ifname, Some(id(name)));
        assert_eq!(endpoint.interfaces[0].ipv4, [net("10.240.0.17/24")]);
        // §9.1: the retry of a request whose interface was renamed meanwhile; the reference crashes.
        bench.request_with(RequestIps { ifname: None, ..ask("c1") }).unwrap();
        assert_eq!(bench.endpoint("c1").unwrap(), &endpoint);
    }
}

#[test]
fn i7_a_record_that_lacks_one_family_is_completed() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(dual_nc(NC_A, &v4s(17, 1), &v6s(17, 1)), Some(3)).unwrap();
    bench.request("c1").unwrap();
    let mut loaded = bench.disk.reload().unwrap();
    loaded.endpoints[0].interfaces[0].ipv6.clear();
    (bench.state, _, _) = State::load(loaded, LedgerConfig::default());
    let mut batch = Batch::default();
    let command = Command::RequestIps(ask("c1"));
    transition::execute(&mut bench.state, &mut batch, bench.now, Actor::default(), command).unwrap();
    assert_eq!(bench.endpoint("c1").unwrap().interfaces[0].ipv6, [net("fd00:10:240::11/64")]);
    assert_eq!(invariant::violations(&bench.state), Vec::<String>::new());
}

#[test]
fn what_is_absent_in_an_update_stays() {
    let mut bench = Bench::with_nc_a(1);
    bench.request("c1").unwrap();
    bench.run(patch("c1", vec![nic("eth0")])).unwrap();
    let second = EndpointInterface {
        ifname: Some(id("eth0")),
        mac: Some(MacAddr::new([2, 0, 0, 0, 0, 1])),
        nic_type: Some(NicType::Infra),
        ..Default::default()
    };
    bench.run(patch("c1", vec![second])).unwrap();
    let nic = &bench.endpoint("c1").unwrap().interfaces[0];
    assert_eq!(nic.host_veth_name.as_deref(), Some("azv1f2e3d4c5b6"));
    assert_eq!((nic.mac.is_some(), nic.ipv4.len()), (true, 1));
}

#[test]
fn an_update_cannot_take_a_held_address_off_the_record() {
    let mut bench = Bench::with_nc_a(1);
    bench.request("c1").unwrap();
    let ipv4 = |nets: &[&str]| {
        let ipv4 = nets.iter().map(|text| net(text)).collect();
        patch("c1", vec![EndpointInterface { ipv4, ..nic("eth0") }])
    };
    bench.run(ipv4(&["10.0.0.1/24"])).unwrap();
    let nets = bench.endpoint("c1").unwrap().interfaces[0].ipv4.clone();
    assert_eq!(nets, [net("10.0.0.1/24"), net("10.240.0.17/24")]);
    assert_eq!(invariant::violations(&bench.state), Vec::<String>::new());
    bench.run(ipv4(&["10.240.0.17/32"])).unwrap();
    assert_eq!(bench.endpoint("c1").unwrap().interfaces[0].ipv4, [net("10.240.0.17/32")]);
}

#[test]
fn an_update_for_an_unknown_container_makes_a_record() {
    let mut bench = Bench::with_nc_a(1);
    let delegated = EndpointInterface { nic_type: Some(NicType::DelegatedVm), ..nic("eth1") };
    bench.run(patch("c1", vec![delegated])).unwrap();
    assert_eq!(bench.endpoint("c1").unwrap().pod, PodIdentity::default());
    bench.run(Command::DeleteEndpoint { container: id("c1") }).unwrap();
    assert_eq!(code(bench.run(Command::DeleteEndpoint { container: id("c1") })), 14);
}

#[test]
fn an_update_that_says_nothing_is_refused() {
    let mut bench = Bench::with_nc_a(1);
    let silent = EndpointInterface { host_veth_name: None, ..nic("eth0") };
    let nameless = EndpointInterface { ifname: None, ..nic("eth0") };
    for interface in [silent, nameless] {
        assert_eq!(code(bench.run(patch("c1", vec![nic("eth1"), interface]))), 23);
        assert!(bench.endpoint("c1").is_none(), "all or nothing");
    }
}

#[test]
fn i2_a_record_cannot_name_an_address_of_another_pod_or_of_nobody() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    for foreign in ["10.240.0.17/24", "10.240.0.18/24"] {
        let claims = EndpointInterface { ipv4: vec![net(foreign)], ..nic("eth0") };
        assert_eq!(code(bench.run(patch("c2", vec![claims]))), 29, "{foreign}");
    }
    let outside = EndpointInterface { ipv4: vec![net("192.0.2.1/24")], ..nic("eth0") };
    bench.run(patch("c2", vec![outside])).unwrap();
}

#[test]
fn a_record_cannot_go_while_its_addresses_stay() {
    let mut bench = Bench::with_nc_a(1);
    bench.request("c1").unwrap();
    let refused = bench.run(Command::DeleteEndpoint { container: id("c1") }).unwrap_err();
    assert!(refused.to_string().contains("still holds 10.240.0.17"), "{refused}");
    bench.release("c1");
    assert!(bench.endpoint("c1").is_none());
}

#[test]
fn records_are_refused_where_they_are_not_kept() {
    let mut bench = Bench::new(LedgerConfig { manage_endpoints: false, ..Default::default() });
    assert_eq!(code(bench.run(patch("c1", vec![nic("eth0")]))), 99);
}

#[test]
fn a_dead_sandbox_is_released_only_if_it_is_the_one_that_was_looked_at() {
    let mut bench = Bench::with_nc_a(2);
    let sandbox = |inode| Sandbox { netns: "/run/netns/x".into(), device: 4, inode };
    let dead = |inode| Command::ReleaseDeadSandbox {
        container: id("c1"),
        sandbox: sandbox(inode),
        why: "gone".into(),
    };
    bench.request_with(RequestIps { sandbox: Some(sandbox(1)), witnessed: true, ..ask("c1") }).unwrap();
    bench.request_with(RequestIps { sandbox: Some(sandbox(2)), witnessed: true, ..ask("c1") }).unwrap();
    let Ok(Reply::Released(stale)) = bench.run(dead(1)) else { panic!() };
    assert_eq!(stale.outcome, ReleaseOutcome::NothingHeld);
    assert_eq!(bench.count(IpStateKind::Assigned), 1);
    let Ok(Reply::Released(released)) = bench.run(dead(2)) else { panic!() };
    assert_eq!(released.addresses, [ip("10.240.0.17")]);
    assert!(bench.endpoint("c1").is_none());
}

#[test]
fn c1_c3_c4_import_takes_what_makes_sense_and_reports_the_rest() {
    let mut bench = Bench::new(LedgerConfig::default());
    let record = |container: &str, address: &str, age: i64| Endpoint {
        container: id(container),
        pod: pod(container),
        interface_id: container.into(),
        interfaces: vec![EndpointInterface {
            ifname: Some(id("eth0")),
            ipv4: vec![net(address)],
            ..Default::default()
        }],
        sandbox: None,
        witnessed: false,
        began: None,
        created: Timestamp::from_unix_nanos(age),
        updated: Timestamp::from_unix_nanos(age),
    };
    let mut spec = nc(NC_A, "10.240.0.5/24", &v4s(17, 3));
    spec.secondary_ip_configs.values_mut().last().unwrap().nc_version = 4;
    let legacy = LegacyState {
        orchestrator: None,
        ncs: vec![LegacyNc { spec, host_version: Some(3), vfp_update_complete: false }],
        endpoints: vec![
            record("older", "10.240.0.17/24", 1),
            record("newer", "10.240.0.17/24", 2),
            record("foreign", "10.250.9.9/24", 3),
        ],
        extra: "{}".into(),
        environment: Some(Environment { location: "Azure".into(), network_type: "Underlay".into() }),
    };
    let Ok(Reply::Imported(report)) = bench.run(Command::ImportLegacy(Box::new(legacy))) else { panic!() };
    assert_eq!((report.ncs, report.endpoints, report.assigned, report.skipped.len()), (1, 2, 1, 3));
    assert_eq!(bench.view.orchestrator().environment.as_ref().unwrap().location, "Azure");
    assert_eq!(bench.owner_of("10.240.0.17").as_deref(), Some("newer"));
    assert_eq!(
        bench.state_of("10.240.0.18"),
        Some(IpStateKind::Available),
        "C7: the stored host version counts"
    );
    assert_eq!(bench.state_of("10.240.0.19"), Some(IpStateKind::PendingProgramming));
    assert!(bench.endpoint("older").is_none());
}
