//! Requests, releases, pool shrink (spec/ipam.md §15).

use super::*;
use IpStateKind::{Assigned, Available, PendingProgramming, PendingRelease};

#[test]
fn r1_request_assigns_one_address_and_records_the_endpoint() {
    let mut bench = Bench::with_nc_a(2);
    assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17"]);
    assert_eq!(bench.owner_of("10.240.0.17").as_deref(), Some("c1"));
    let endpoint = bench.endpoint("c1").unwrap();
    assert_eq!(endpoint.interfaces.len(), 1);
    assert_eq!(endpoint.interfaces[0].ifname, Some(id("eth0")));
    assert_eq!(endpoint.interfaces[0].ipv4, [net("10.240.0.17/24")]);
    assert_eq!(endpoint.interfaces[0].nic_type, None);
}

#[test]
fn r2_r3_a_repeated_request_gets_the_same_address_and_writes_nothing() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let before = bench.state.records();
    assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17"]);
    assert_eq!(bench.desire("c1", &["10.240.0.18"]).unwrap(), ["10.240.0.17"]);
    let after = bench.state.records();
    assert_eq!((before.ips, before.endpoints), (after.ips, after.endpoints));
}

#[test]
fn r4_no_nc() {
    let mut bench = Bench::new(LedgerConfig::default());
    let refused = bench.request("c1").unwrap_err();
    assert_eq!(refused.return_code().number(), 32);
    assert_eq!(refused.to_string(), "no NCs found in the CNS internal state");
}

#[test]
fn r5_an_nc_without_addresses_is_a_shortage_and_not_an_empty_success() {
    let mut bench = Bench::with_nc_a(0);
    let refused = bench.request("c1").unwrap_err();
    assert_eq!(refused.return_code().number(), 32);
    assert!(refused.to_string().contains("not enough IPs available"));
    assert!(bench.endpoint("c1").is_none());
}

#[test]
fn r10_r11_an_empty_key_is_refused_in_both_schemes() {
    let mut bench = Bench::with_nc_a(2);
    let refused = bench.request_with(RequestIps { container: None, ..ask("c1") }).unwrap_err();
    assert_eq!(refused.return_code().number(), 34);
    let mut bench = Bench::new(LedgerConfig { scheme: PodKeyScheme::InterfaceId, ..Default::default() });
    let refused = bench.request("c1").unwrap_err();
    assert_eq!(refused.return_code().number(), 34);
    assert_eq!(refused.to_string(), "need interfaceID for pod info but request was empty");
}

#[test]
fn r14_one_address_goes_to_one_of_fifty() {
    let mut bench = Bench::with_nc_a(1);
    let outcomes: Vec<_> = (0..50).map(|i| bench.request(&format!("c{i}"))).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert!(outcomes.into_iter().filter_map(Result::err).all(|refused| refused.return_code().number() == 32));
}

#[test]
fn r15_one_key_gets_one_address_however_often_it_asks() {
    let mut bench = Bench::with_nc_a(10);
    for _ in 0..20 {
        assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17"]);
    }
    assert_eq!(bench.count(Available), 9);
}

#[test]
fn s1_s2_the_singular_call_wants_exactly_one_nc() {
    let mut bench = Bench::with_nc_a(2);
    assert_eq!(bench.request_with(RequestIps { single: true, ..ask("c1") }).unwrap(), ["10.240.0.17"]);
    bench.upsert(nc(NC_B, "10.241.0.5/24", &[]), Some(3)).unwrap();
    let refused = bench.request_with(RequestIps { single: true, container: None, ..ask("c1") }).unwrap_err();
    assert_eq!(refused.return_code().number(), 23);
    assert_eq!(refused.to_string(), "Expected 1 NC when calling this API but found 2 NCs");
    assert_eq!(code(bench.release_with(ReleaseIps { single: true, ..give("c1") })), 23);
    assert_eq!(bench.count(Assigned), 1);
}

#[test]
fn s3_the_singular_call_on_a_dual_stack_pool_takes_nothing() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(dual_nc(NC_A, &v4s(17, 2), &v6s(17, 2)), Some(3)).unwrap();
    let refused = bench.request_with(RequestIps { single: true, ..ask("c1") }).unwrap_err();
    assert_eq!(refused.return_code().number(), 99);
    assert_eq!(refused.to_string(), "request returned incorrect number of IPs. Expected 1 and returned 2");
    assert_eq!(bench.count(Assigned), 0);
}

#[test]
fn d1_d7_dual_stack_gives_one_of_each_v4_first_and_the_same_again() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(dual_nc(NC_A, &v4s(17, 2), &v6s(17, 2)), Some(3)).unwrap();
    for _ in 0..2 {
        assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17", "fd00:10:240::11"]);
    }
    let nic = &bench.endpoint("c1").unwrap().interfaces[0];
    assert_eq!(nic.ipv4, [net("10.240.0.17/24")]);
    // endpoint-state §9.14: the reference masks v6 with the v4 prefix length.
    assert_eq!(nic.ipv6, [net("fd00:10:240::11/64")]);
    bench.restart(false);
    assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17", "fd00:10:240::11"]);
}

#[test]
fn d2_one_of_each_from_two_ncs() {
    let mut bench = Bench::with_nc_a(1);
    let mut v6 = nc(NC_B, "10.241.0.5/24", &v6s(17, 1));
    v6.ip_configuration.subnet_v6 = Some(net("fd00:10:240::5/64"));
    bench.upsert(v6, Some(3)).unwrap();
    assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17", "fd00:10:240::11"]);
}

#[test]
fn d3_a_family_that_waits_for_programming_refuses_the_whole_request() {
    let mut bench = Bench::new(LedgerConfig::default());
    let mut spec = dual_nc(NC_A, &v4s(17, 2), &[]);
    for address in v6s(17, 2) {
        let config = SecondaryIpConfig { address: ip(&address), nc_version: 4 };
        spec.secondary_ip_configs.insert(ip(&address).into(), config);
    }
    bench.upsert(spec, Some(3)).unwrap();
    let refused = bench.request("c1").unwrap_err();
    assert!(refused.to_string().contains("not enough IPs available of type ipv6"), "{refused}");
    assert_eq!((bench.count(Assigned), bench.count(PendingProgramming)), (0, 2));
}

#[test]
fn d4_two_ncs_of_one_family_never_give_two_addresses_of_it() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(dual_nc(NC_A, &v4s(17, 60), &v6s(17, 100)), Some(3)).unwrap();
    bench.upsert(nc(NC_B, "10.240.0.6/24", &v4s(100, 60)), Some(3)).unwrap();
    for i in 0..100 {
        let got = bench.request(&format!("c{i}")).unwrap();
        assert_eq!(got.iter().map(|a| Family::of(ip(a))).collect::<Vec<_>>(), [Family::V4, Family::V6]);
    }
}

#[test]
fn d5_d6_the_shortage_names_the_family_that_is_short_and_its_ncs() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(dual_nc(NC_A, &v4s(17, 3), &v6s(17, 1)), Some(3)).unwrap();
    bench.upsert(nc(NC_B, "10.240.0.6/24", &v4s(100, 3)), Some(3)).unwrap();
    bench.request("c1").unwrap();
    for _ in 0..10 {
        match bench.request("c2").unwrap_err() {
            Rejection::Exhausted { family: Family::V6, ncs } => {
                assert_eq!(ncs.iter().map(|short| short.nc.clone()).collect::<Vec<_>>(), [id::<NcId>(NC_A)]);
                assert_eq!(ncs[0].counts, [0, 1, 0, 0]);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bench.count(Assigned), 2);
}

#[test]
fn w1_w2_two_ncs_during_an_upgrade_give_one_address_from_either() {
    let mut bench = Bench::with_nc_a(2);
    bench.upsert(nc(NC_B, "10.241.0.5/24", &["10.241.0.17".into()]), Some(3)).unwrap();
    let mut got: Vec<String> = (0..3).flat_map(|i| bench.request(&format!("c{i}")).unwrap()).collect();
    got.sort();
    assert_eq!(got, ["10.240.0.17", "10.240.0.18", "10.241.0.17"]);
    assert_eq!(code(bench.request("c9")), 32);
}

#[test]
fn w3_e3_a_removed_nc_takes_its_addresses_along_and_never_fails_a_request() {
    let mut bench = Bench::with_nc_a(100);
    bench.upsert(nc(NC_B, "10.241.0.5/24", &["10.241.0.17".into()]), Some(3)).unwrap();
    bench.run(Command::DeleteNc { id: id(NC_B) }).unwrap();
    assert_eq!(bench.state_of("10.241.0.17"), None);
    for i in 0..100 {
        bench.request(&format!("c{i}")).unwrap();
    }
}

#[test]
fn p1_p3_p5_p6_p8_desired_addresses_are_given_exactly_or_not_at_all() {
    let mut bench = Bench::with_nc_a(3);
    assert_eq!(bench.desire("c1", &["10.240.0.18"]).unwrap(), ["10.240.0.18"]);
    let refused = bench.desire("c2", &["10.240.0.18"]).unwrap_err();
    assert!(refused.to_string().contains("Desired IP is already assigned"), "{refused}");
    bench.run(Command::MarkPendingRelease(MarkPendingRelease::Ids(vec![ip("10.240.0.19").into()]))).unwrap();
    let refused = bench.desire("c2", &["10.240.0.19"]).unwrap_err();
    assert!(refused.to_string().contains("IP not available"), "{refused}");
    for desired in [&["10.9.9.9"][..], &["10.240.0.17", "10.240.0.99"]] {
        let refused = bench.desire("c2", desired).unwrap_err();
        assert_eq!(refused.return_code().number(), 32);
        assert!(refused.to_string().contains("not enough desired IPs found in pool"), "{refused}");
    }
    assert_eq!(bench.state_of("10.240.0.17"), Some(Available));
}

#[test]
fn p2_only_the_reconcile_may_take_what_is_not_programmed() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 1)), None).unwrap();
    let refused = bench.desire("c1", &["10.240.0.17"]).unwrap_err();
    assert!(refused.to_string().contains("IP not available"), "{refused}");
    let reconcile =
        RequestIps { requester: Requester::Reconcile, desired: vec![ip("10.240.0.17")], ..ask("c1") };
    assert_eq!(bench.request_with(reconcile).unwrap(), ["10.240.0.17"]);
}

#[test]
fn p9_p10_repeated_desires_fold_and_compare_as_addresses() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(dual_nc(NC_A, &v4s(17, 1), &v6s(17, 1)), Some(3)).unwrap();
    assert_eq!(bench.desire("c1", &["10.240.0.17", "10.240.0.17"]).unwrap(), ["10.240.0.17"]);
    assert_eq!(bench.desire("c2", &["FD00:10:240:0::11"]).unwrap(), ["fd00:10:240::11"]);
}

#[test]
fn x1_the_shortage_quotes_the_ncs_status_as_the_reference_does() {
    let mut bench = Bench::new(LedgerConfig::default());
    let mut spec = nc(NC_A, "10.240.0.5/24", &v4s(17, 1));
    spec.status = "NCUpdateSubnetFullError".into();
    bench.upsert(spec, Some(3)).unwrap();
    bench.request("c1").unwrap();
    let refused = bench.request("c2").unwrap_err().to_string();
    let expected = format!(
        "not enough IPs available of type ipv4 for {NC_A}, waiting on Azure CNS to allocate more with NC Status: \
         NCUpdateSubnetFullError"
    );
    assert!(refused.starts_with(&expected), "{refused}");
    bench.release("c1");
    assert_eq!(bench.request("c2").unwrap(), ["10.240.0.17"], "X2");
}

#[test]
fn l1_l3_release_frees_everything_the_key_holds_with_its_record() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(dual_nc(NC_A, &v4s(17, 1), &v6s(17, 1)), Some(3)).unwrap();
    bench.request("c1").unwrap();
    let released = bench.release("c1");
    assert_eq!(released.addresses, [ip("10.240.0.17"), ip("fd00:10:240::11")]);
    assert_eq!(released.outcome, ReleaseOutcome::Released);
    assert_eq!(bench.count(Available), 2);
    assert!(bench.endpoint("c1").is_none());
    assert!(bench.state.pods.is_empty());
}

#[test]
fn l2_i4_releasing_what_is_not_held_succeeds_and_changes_nothing() {
    let mut bench = Bench::with_nc_a(1);
    let before = bench.state.records();
    assert_eq!(bench.release("c9").outcome, ReleaseOutcome::NothingHeld);
    let after = bench.state.records();
    assert_eq!((before.ips, before.tombstones), (after.ips, after.tombstones));
    bench.request("c1").unwrap();
    bench.release("c1");
    assert_eq!(bench.release("c1").outcome, ReleaseOutcome::NothingHeld);
    assert_eq!(bench.count(Available), 1);
}

#[test]
fn l8_the_address_that_rested_longest_is_given_first() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    bench.release("c1");
    assert_eq!(bench.request("c2").unwrap(), ["10.240.0.18"]);
    assert_eq!(bench.request("c3").unwrap(), ["10.240.0.17"], "the cooling one, when no other is left");
    bench.release("c2");
    bench.release("c3");
    bench.restart(false);
    assert_eq!(bench.request("c4").unwrap(), ["10.240.0.18"], "a restart keeps the order");
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 3)), Some(3)).unwrap();
    assert_eq!(bench.request("c5").unwrap(), ["10.240.0.19"], "a new address before a used one");
}

#[test]
fn m1_to_m4_marking_takes_unprogrammed_first_and_assigned_never() {
    let mut bench = Bench::with_nc_a(4);
    bench.request("c1").unwrap();
    let mut grown = nc(NC_A, "10.240.0.5/24", &v4s(17, 4));
    for address in v4s(50, 2) {
        let config = SecondaryIpConfig { address: ip(&address), nc_version: 4 };
        grown.secondary_ip_configs.insert(ip(&address).into(), config);
    }
    bench.upsert(grown, Some(3)).unwrap();
    let mark = |count, all_or_nothing| {
        Command::MarkPendingRelease(MarkPendingRelease::Count { count, all_or_nothing })
    };
    let marked = |reply| match reply {
        Reply::Marked(marked) => marked.marked.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(marked(bench.run(mark(0, false)).unwrap()), 0, "M4");
    assert_eq!(marked(bench.run(mark(0, true)).unwrap()), 0, "M4");
    assert_eq!(marked(bench.run(mark(3, true)).unwrap()), 3, "M1");
    assert_eq!((bench.count(PendingProgramming), bench.count(PendingRelease)), (0, 3));
    assert_eq!((bench.count(Available), bench.count(Assigned)), (2, 1));
    let refused = bench.run(mark(3, true)).unwrap_err();
    assert!(refused.to_string().contains("unable to release requested number of IPs"), "M2: {refused}");
    assert_eq!(bench.count(Available), 2, "M2");
    assert_eq!(marked(bench.run(mark(3, false)).unwrap()), 2, "M3");
    assert_eq!(code(bench.request("c2")), 32, "M6");
}

#[test]
fn m5_pending_release_is_sticky_and_n8_ends_with_the_list() {
    let mut bench = Bench::with_nc_a(2);
    bench.run(Command::MarkPendingRelease(MarkPendingRelease::Ids(vec![ip("10.240.0.17").into()]))).unwrap();
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 3)), Some(3)).unwrap();
    assert_eq!(bench.state_of("10.240.0.17"), Some(PendingRelease));
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(18, 2)), Some(3)).unwrap();
    assert_eq!(bench.state_of("10.240.0.17"), None);
}

#[test]
fn n1_n2_n3_n4_versions_decide_what_is_programmed() {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 16)), None).unwrap();
    assert_eq!(bench.count(PendingProgramming), 16, "N1");
    assert_eq!(code(bench.request("c1")), 32, "N1");
    let sync = |version| Command::SetHostVersions { versions: vec![(id(NC_A), version)], promote: true };
    bench.run(sync(3)).unwrap();
    assert_eq!(bench.count(Available), 16, "N2");
    let mut next = nc(NC_A, "10.240.0.5/24", &v4s(17, 32));
    next.version = "4".into();
    for config in next.secondary_ip_configs.values_mut() {
        config.nc_version = 4;
    }
    bench.upsert(next, None).unwrap();
    assert_eq!((bench.count(Available), bench.count(PendingProgramming)), (16, 16), "N3");
    assert_eq!(bench.state.ip(ip("10.240.0.17")).unwrap().nc_version, 3, "N3");
    bench.run(sync(3)).unwrap();
    assert_eq!(bench.count(PendingProgramming), 16, "N4");
    bench.run(sync(4)).unwrap();
    assert_eq!(bench.count(Available), 32);
}

#[test]
fn n5_n6_n7_u11_an_assigned_address_cannot_be_dropped_however_often_it_is_tried() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 1)), Some(3)).unwrap();
    assert_eq!(bench.state_of("10.240.0.18"), None, "N5");
    let before = bench.state.records();
    let mut update = nc(NC_A, "10.240.0.5/24", &[]);
    update.version = "9".into();
    for _ in 0..2 {
        let refused = bench.upsert(update.clone(), Some(3)).unwrap_err();
        assert_eq!(refused.return_code().number(), 29, "N6, N7");
        assert!(refused.to_string().contains("Failed to delete an Assigned IP"), "{refused}");
        let after = bench.state.records();
        assert_eq!(
            (before.ncs.clone(), before.ips.clone()),
            (after.ncs, after.ips),
            "the stored NC is unchanged"
        );
    }
    bench.release("c1");
    bench.upsert(update, Some(3)).unwrap();
    assert_eq!(bench.states(), []);
}

#[test]
fn h3_a_source_that_lost_an_assigned_address_does_not_take_it_from_its_pod() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let shrunk = nc(NC_A, "10.240.0.5/24", &v4s(18, 2));
    let reply =
        bench.upsert_from(NcOrigin::ControlPlane, MissingAssigned::Keep, shrunk.clone(), Some(3)).unwrap();
    assert_eq!(reply.withdrawn, [ip("10.240.0.17")]);
    assert_eq!(bench.state_of("10.240.0.17"), Some(Assigned));
    assert_eq!(bench.state_of("10.240.0.19"), Some(Available), "the rest of the list is applied");
    assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17"]);
    bench.restart(false);
    bench.release("c1");
    assert_eq!(bench.state_of("10.240.0.17"), None, "nobody gets it afterwards");
}

#[test]
fn h3_an_address_that_comes_back_is_an_ordinary_one_again() {
    let mut bench = Bench::with_nc_a(1);
    bench.request("c1").unwrap();
    let empty = nc(NC_A, "10.240.0.5/24", &[]);
    bench.upsert_from(NcOrigin::ControlPlane, MissingAssigned::Keep, empty, Some(3)).unwrap();
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 1)), Some(3)).unwrap();
    bench.release("c1");
    assert_eq!(bench.state_of("10.240.0.17"), Some(Available));
}

#[test]
fn c2_c8_reconcile_takes_what_runs_even_two_of_a_family_and_repeats() {
    let mut bench = Bench::with_nc_a(3);
    let reconcile = RequestIps {
        requester: Requester::Reconcile,
        desired: vec![ip("10.240.0.17"), ip("10.240.0.18")],
        ..ask("c1")
    };
    for _ in 0..2 {
        assert_eq!(bench.request_with(reconcile.clone()).unwrap(), ["10.240.0.17", "10.240.0.18"]);
    }
    assert_eq!(bench.count(Available), 1);
}

#[test]
fn c5_c6_what_is_to_be_given_back_while_in_use_goes_when_it_is_let_go() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let ids = vec![ip("10.240.0.17").into(), id("unknown-id")];
    let reply = bench.run(Command::MarkPendingRelease(MarkPendingRelease::Ids(ids))).unwrap();
    let Reply::Marked(marked) = reply else { panic!("{reply:?}") };
    assert_eq!((marked.deferred.len(), marked.unknown.len()), (1, 1));
    assert_eq!(bench.owner_of("10.240.0.17").as_deref(), Some("c1"));
    bench.restart(false);
    bench.release("c1");
    assert_eq!(bench.state_of("10.240.0.17"), Some(PendingRelease));
}

#[test]
fn b1_b2_b3_a_recreated_sandbox_gets_another_address_and_the_late_release_is_harmless() {
    let mut bench = Bench::with_nc_a(2);
    let same_pod = |container| RequestIps { pod: pod("web-0"), ..ask(container) };
    bench.request_with(same_pod("c1")).unwrap();
    assert_eq!(bench.request_with(same_pod("c2")).unwrap(), ["10.240.0.18"], "B1");
    assert_eq!(bench.owner_of("10.240.0.17").as_deref(), Some("c1"), "B1");
    assert_eq!(code(bench.request_with(same_pod("c3"))), 32, "B3");
    bench.release("c1");
    assert_eq!(bench.owner_of("10.240.0.18").as_deref(), Some("c2"), "B2");
    assert_eq!(bench.request_with(same_pod("c3")).unwrap(), ["10.240.0.17"], "B3");
}

#[test]
fn b4_a_key_that_two_containers_share_is_warned_of() {
    let mut bench = Bench::new(LedgerConfig {
        scheme: PodKeyScheme::InterfaceId,
        manage_endpoints: false,
        ..Default::default()
    });
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 2)), Some(3)).unwrap();
    let keyed = |container| RequestIps { interface_id: "1f2e3d4c-eth0".into(), ..ask(container) };
    bench.request_with(keyed("1f2e3d4c-aaaa")).unwrap();
    let reply = bench.run(Command::RequestIps(keyed("1f2e3d4c-bbbb"))).unwrap();
    let Reply::Granted(granted) = reply else { panic!("{reply:?}") };
    assert_eq!(granted.ips[0].0.address, ip("10.240.0.17"));
    assert_eq!(granted.warnings.len(), 1);
}

#[test]
fn a_second_interface_does_not_get_the_first_ones_addresses() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let second = RequestIps { ifname: Some(id("net1")), ..ask("c1") };
    let refused = bench.request_with(second).unwrap_err();
    assert!(matches!(refused, Rejection::OtherInterface { .. }), "{refused}");
    assert_eq!(refused.to_string().matches("eth0").count(), 1, "{refused}");
    // A caller that names no interface asks for the container's addresses, whichever interface they are on.
    bench.request_with(RequestIps { ifname: None, ..ask("c1") }).unwrap();
    bench.request("c1").unwrap();
}

#[test]
fn a_release_for_another_interface_of_the_container_lets_nothing_go() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let other = ReleaseIps { ifname: Some(id("net1")), ..give("c1") };
    assert_eq!(bench.release_with(other).unwrap().outcome, ReleaseOutcome::OtherInterface);
    assert_eq!(bench.owner_of("10.240.0.17").as_deref(), Some("c1"));
    let same = ReleaseIps { ifname: Some(id("eth0")), ..give("c1") };
    assert_eq!(bench.release_with(same).unwrap().outcome, ReleaseOutcome::Released);
}

#[test]
fn a_reboot_ends_what_ran_and_keeps_the_ncs() {
    let mut bench = Bench::with_nc_a(4);
    for container in ["c1", "c2", "c3"] {
        bench.request(container).unwrap();
    }
    bench.release_with(ReleaseIps { began: Some(bench.now.boot), ..give("c3") }).unwrap();
    bench.run(Command::MarkPendingRelease(MarkPendingRelease::Ids(vec![ip("10.240.0.18").into()]))).unwrap();
    bench.restart(true);
    assert_eq!((bench.count(Available), bench.count(PendingRelease)), (3, 1));
    assert!(bench.state.endpoints.is_empty() && bench.state.tombstones.is_empty());
    bench.request("c9").unwrap();
}

#[test]
fn a_reboot_ends_ncs_that_waited_for_their_pods() {
    let mut bench = Bench::with_nc_a(1);
    bench.request("c1").unwrap();
    bench.run(Command::DeleteNc { id: id(NC_A) }).unwrap();
    bench.restart(true);
    assert!(bench.state.ncs.is_empty());
    assert_eq!(bench.states(), []);
}

#[test]
fn records_that_contradict_each_other_are_left_out_and_reported() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let mut loaded = bench.disk.reload().unwrap();
    let mut orphan = loaded.ips[1].clone();
    (orphan.address, orphan.id, orphan.nc) = (ip("10.9.9.9"), id("x"), id(NC_B));
    let mut twin = loaded.ips[1].clone();
    twin.address = ip("10.9.9.8");
    loaded.ips.extend([orphan, twin]);
    let (state, problems, repairs) = State::load(loaded, LedgerConfig::default());
    assert_eq!((problems.len(), repairs.len(), state.by_address.len()), (2, 2, 2));
    assert_eq!(invariant::violations(&state), Vec::<String>::new());
}

#[test]
fn r6_an_address_left_behind_by_a_removed_nc_is_nobodys_and_given_to_nobody() {
    let mut bench = Bench::with_nc_a(0);
    let stray = IpRecord {
        id: ip("10.241.0.9").into(),
        address: ip("10.241.0.9"),
        nc: id(NC_B),
        nc_version: 3,
        state: IpState::Available,
        since: bench.now.wall,
        freed: None,
        on_release: OnRelease::Free,
    };
    let mut loaded = bench.disk.reload().unwrap();
    loaded.ips.push(stray);
    let (state, problems, repairs) = State::load(loaded, LedgerConfig::default());
    assert!(problems[0].contains("10.241.0.9") && problems[0].contains(NC_B), "{problems:?}");
    assert_eq!(repairs, [Change::DeleteIp(ip("10.241.0.9"))]);
    bench.state = state;
    let refused = bench.request("c1").unwrap_err();
    assert_eq!((refused.reason(), refused.return_code().number()), ("NO_ADDRESSES", 32));
}

#[test]
fn r8_a_request_without_pod_names_is_served_and_recorded_without_them() {
    let mut bench = Bench::with_nc_a(1);
    let nameless = RequestIps { pod: PodIdentity::default(), ..ask("c1") };
    assert_eq!(bench.request_with(nameless).unwrap(), ["10.240.0.17"]);
    assert!(!bench.endpoint("c1").unwrap().pod.is_known());
    // L4: and a release without them frees it.
    bench.release("c1");
    assert_eq!(bench.state_of("10.240.0.17"), Some(Available));
}

#[test]
fn p4_an_assigned_address_that_its_pods_index_lacks_is_a_violation() {
    let mut bench = Bench::with_nc_a(1);
    bench.request("c1").unwrap();
    bench.state.pods.clear();
    let found = invariant::violations(&bench.state);
    assert!(found.iter().any(|words| words.contains("10.240.0.17")), "{found:?}");
}

/// A daemon that dies before the flush has answered nobody; it comes back as if it had never been asked.
#[test]
fn i5_i6_a_crash_before_the_flush_leaves_address_and_record_together() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let before = bench.state.records();
    for lost in [Command::ReleaseIps(give("c1")), Command::RequestIps(ask("c2"))] {
        let mut batch = Batch::default();
        transition::execute(&mut bench.state, &mut batch, bench.now, Actor::default(), lost).unwrap();
        assert!(!batch.changes.is_empty());
        bench.restart(false);
        let after = bench.state.records();
        let sorted = |mut ips: Vec<IpRecord>| {
            ips.sort_by_key(|record| record.address);
            ips
        };
        assert_eq!(sorted(before.ips.clone()), sorted(after.ips));
        assert_eq!(before.endpoints, after.endpoints);
    }
    // And both halves are in one batch: there is nothing between them to crash in.
    bench.release("c1");
    bench.restart(false);
    assert_eq!((bench.state_of("10.240.0.17"), bench.endpoint("c1")), (Some(Available), None));
}

/// AzureHost: the synthetic NC without subnet and gateway.
#[test]
fn h1_h2_h4_h5_the_node_subnet_nc_has_no_subnet_and_gets_its_addresses_later() {
    let node_subnet = |addresses: &[String]| {
        let mut spec = nc(NODE_SUBNET_NC_ID, "10.224.0.5/16", addresses);
        spec.ip_configuration.subnet = None;
        spec
    };
    let mut bench = Bench::new(LedgerConfig::default());
    bench.upsert(node_subnet(&[]), Some(3)).unwrap();
    let refused = bench.request("c1").unwrap_err();
    assert_eq!((refused.reason(), refused.return_code().number()), ("POOL_EXHAUSTED", 32), "H4");
    // H1: at the start only the addresses of the pods that run are known.
    bench.upsert(node_subnet(&v4s(17, 2)), Some(3)).unwrap();
    for (container, address) in [("c1", "10.240.0.17"), ("c2", "10.240.0.18")] {
        let runs =
            RequestIps { requester: Requester::Reconcile, desired: vec![ip(address)], ..ask(container) };
        assert_eq!(bench.request_with(runs).unwrap(), [address]);
    }
    // H2: then the fetcher brings all.
    bench.upsert(node_subnet(&v4s(17, 10)), Some(3)).unwrap();
    assert_eq!((bench.count(Available), bench.count(Assigned)), (8, 2));
    // H5: an address without a subnet is a host address in the record.
    bench.request("c3").unwrap();
    assert_eq!(bench.endpoint("c3").unwrap().interfaces[0].ipv4, [net("10.240.0.19/32")]);
}
