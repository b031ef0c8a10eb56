//! ADD and DEL of one container, in every order: what began last wins, and memory, disk and free lists agree
//! (design §4, spec/ipam.md §13.17).

use super::*;

/// A call as a plugin makes it: it began at a time, and arrives later.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    /// The first step of an ADD: addresses.
    Add(u64),
    /// The last step of the same ADD: the record.
    Record(u64),
    /// A DEL.
    Del(u64),
}

fn began(bench_start: BootTime, at: u64) -> BootTime {
    bench_start.plus(Duration::from_millis(at))
}

fn arrive(bench: &mut Bench, start: BootTime, call: Call) -> Result<(), Rejection> {
    match call {
        Call::Add(at) => {
            bench.request_with(RequestIps { began: Some(began(start, at)), ..ask("c1") }).map(drop)
        }
        Call::Record(at) => bench
            .run(Command::UpdateEndpoint(UpdateEndpoint {
                container: id("c1"),
                pod: None,
                interfaces: vec![EndpointInterface {
                    ifname: Some(id("eth0")),
                    host_veth_name: Some("azv1".into()),
                    nic_type: Some(NicType::Infra),
                    ..Default::default()
                }],
                sandbox: None,
                witnessed: false,
                began: Some(began(start, at)),
            }))
            .map(drop),
        Call::Del(at) => {
            bench.release_with(ReleaseIps { began: Some(began(start, at)), ..give("c1") }).map(drop)
        }
    }
}

fn permutations(calls: &[Call]) -> Vec<Vec<Call>> {
    if calls.len() < 2 {
        return vec![calls.to_vec()];
    }
    (0..calls.len())
        .flat_map(|at| {
            let mut rest = calls.to_vec();
            let first = rest.remove(at);
            permutations(&rest).into_iter().map(move |mut tail| {
                tail.insert(0, first);
                tail
            })
        })
        .collect()
}

/// A later step of an ADD is sent only if the earlier one succeeded, and never before it.
fn is_possible(order: &[Call]) -> bool {
    order.iter().enumerate().all(|(i, call)| match call {
        Call::Record(at) => order[..i].contains(&Call::Add(*at)),
        _ => true,
    })
}

#[test]
fn i1_i3_an_add_and_its_clean_up_in_every_order_end_with_nothing_held() {
    for order in permutations(&[Call::Add(1), Call::Record(1), Call::Del(2)]) {
        if !is_possible(&order) {
            continue;
        }
        let mut bench = Bench::with_nc_a(2);
        let start = bench.now.boot;
        bench.pass(Duration::from_millis(100));
        let mut alive = true;
        for call in &order {
            if matches!(call, Call::Record(_)) && !alive {
                continue;
            }
            if arrive(&mut bench, start, *call).is_err() {
                alive = false;
            }
        }
        assert_eq!(bench.count(IpStateKind::Assigned), 0, "{order:?}");
        assert!(bench.endpoint("c1").is_none(), "{order:?}");
    }
}

#[test]
fn a_container_restarted_in_place_keeps_what_its_last_add_got() {
    for order in permutations(&[Call::Add(1), Call::Del(2), Call::Add(3), Call::Record(3)]) {
        if !is_possible(&order) {
            continue;
        }
        let mut bench = Bench::with_nc_a(2);
        let start = bench.now.boot;
        bench.pass(Duration::from_millis(100));
        for call in &order {
            // The early ADD may be refused; that is its point.
            let outcome = arrive(&mut bench, start, *call);
            assert!(outcome.is_ok() || *call == Call::Add(1), "{order:?}: {call:?} {outcome:?}");
        }
        assert_eq!(bench.count(IpStateKind::Assigned), 1, "{order:?}");
        assert!(bench.endpoint("c1").is_some(), "{order:?}");
    }
}

#[test]
fn a_del_for_a_container_never_seen_stops_its_late_add_also_after_a_restart() {
    let mut bench = Bench::with_nc_a(2);
    let start = bench.now.boot;
    bench.pass(Duration::from_millis(100));
    arrive(&mut bench, start, Call::Del(2)).unwrap();
    bench.restart(false);
    let refused = arrive(&mut bench, start, Call::Add(1)).unwrap_err();
    assert!(matches!(refused, Rejection::Tombstoned { .. }));
    let refused = arrive(&mut bench, start, Call::Record(1)).unwrap_err();
    assert!(matches!(refused, Rejection::Tombstoned { .. }), "the record of an ADD that lost is refused too");
    arrive(&mut bench, start, Call::Add(3)).unwrap();
}

#[test]
fn tombstones_age_out() {
    let mut bench = Bench::with_nc_a(2);
    let start = bench.now.boot;
    for i in 0..20 {
        bench.release_with(ReleaseIps { began: Some(began(start, i)), ..give(&format!("c{i}")) }).unwrap();
    }
    bench.release_with(ReleaseIps { began: Some(began(start, 99)), ..give("c0") }).unwrap();
    assert_eq!(bench.state.tombstones.len(), 20);
    bench.pass(Duration::from_hours(1));
    for _ in 0..6 {
        bench.release("x");
    }
    assert!(bench.state.tombstones.is_empty());
}

#[test]
fn without_times_a_del_blocks_an_add_for_a_while_where_ids_are_never_reused() {
    let mut bench = Bench::new(LedgerConfig { legacy_block: Duration::from_secs(15), ..Default::default() });
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 2)), Some(3)).unwrap();
    bench.release("c1");
    match bench.request("c1").unwrap_err() {
        Rejection::RecentlyDeleted { retry_after, .. } => assert!(retry_after <= Duration::from_secs(15)),
        other => panic!("{other:?}"),
    }
    bench.request("c2").unwrap();
    bench.pass(Duration::from_secs(15));
    bench.request("c1").unwrap();
    // And not at all where they are.
    let mut bench = Bench::with_nc_a(2);
    bench.release("c1");
    bench.request("c1").unwrap();
}
