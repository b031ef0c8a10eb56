//! Network containers (spec/network-containers.md §16).

use super::*;

fn bench_of(kind: OrchestratorType) -> Bench {
    let mut bench = Bench::new(LedgerConfig::default());
    bench.run(set_orchestrator(kind)).unwrap();
    bench
}

fn pushed(bench: &mut Bench, spec: NcSpec) -> Result<UpsertedNc, Rejection> {
    bench.upsert_from(NcOrigin::Api, MissingAssigned::Refuse, spec, None)
}

fn for_pod(nc_id: &str, name: &str) -> NcSpec {
    let mut spec = NcSpec::new(id(nc_id), NcType::AzureContainerInstance, 1);
    spec.orchestrator_context = Some(pod(name));
    spec
}

#[test]
fn t1_t2_an_nc_for_a_pod_is_found_by_its_context() {
    let mut bench = bench_of(OrchestratorType::Kubernetes);
    let swift = format!("Swift_{NC_A}");
    let stored = pushed(&mut bench, for_pod(&swift, "web-0")).unwrap();
    assert!(stored.created);
    assert_eq!((stored.record.host_version, stored.record.vfp_update_complete), (None, false));
    let again = pushed(&mut bench, for_pod(&swift, "web-0")).unwrap();
    assert!(!again.created);
    assert_eq!(again.record, stored.record, "T2: nothing changes");
    let found: Vec<_> =
        bench.view.ncs_of_pod(&pod("web-0")).map(|nc| nc.record.id().as_str().to_owned()).collect();
    assert_eq!(found, [swift]);
}

#[test]
fn an_nc_that_moves_to_another_context_leaves_the_old_one() {
    let mut bench = bench_of(OrchestratorType::Kubernetes);
    pushed(&mut bench, for_pod(NC_A, "web-0")).unwrap();
    pushed(&mut bench, for_pod(NC_B, "web-0")).unwrap();
    pushed(&mut bench, for_pod(NC_A, "web-1")).unwrap();
    let of = |bench: &Bench, name| {
        bench.view.ncs_of_pod(&pod(name)).map(|nc| nc.record.id().to_string()).collect::<Vec<_>>()
    };
    assert_eq!((of(&bench, "web-0"), of(&bench, "web-1")), (vec![NC_B.to_owned()], vec![NC_A.to_owned()]));
    // The reference joins both names without a separator: ("web-0","prod") and ("web-0pr","od") collide there.
    let other = PodIdentity::new("d", "web-0pro").unwrap();
    assert_eq!(bench.view.ncs_of_pod(&other).count(), 0);
    bench.run(Command::DeleteNc { id: id(NC_B) }).unwrap();
    assert_eq!(of(&bench, "web-0"), Vec::<String>::new(), "E7");
}

#[test]
fn t7_t8_a_refused_nc_is_not_visible() {
    let (state, _, _) = State::load(Loaded::default(), LedgerConfig::default());
    let now = Now::default();
    let mut bench = Bench { state, view: View::default(), disk: MemoryDisk::default(), now };
    let refused = pushed(&mut bench, for_pod(NC_A, "web-0")).unwrap_err();
    assert_eq!(refused.return_code().number(), 19);
    assert_eq!(refused.to_string(), "Unsupported orchestrator type: ");
    let mut bench = bench_of(OrchestratorType::Kubernetes);
    let refused = pushed(&mut bench, NcSpec::new(id(NC_A), NcType::Docker, 1)).unwrap_err();
    assert_eq!(refused.return_code().number(), 99);
    assert!(refused.to_string().contains("Unmarshalling Docker failed with error"), "{refused}");
    assert!(bench.state.ncs.is_empty());
}

#[test]
fn t11_a_pushed_nc_may_change_its_subnet() {
    let mut bench = bench_of(OrchestratorType::KubernetesCrd);
    pushed(&mut bench, nc(NC_A, "10.7.0.9/24", &[])).unwrap();
    pushed(&mut bench, nc(NC_A, "10.8.0.9/24", &[])).unwrap();
}

#[test]
fn t12_a_pushed_nc_feeds_the_pool_where_ncs_are_the_pool() {
    let mut bench = bench_of(OrchestratorType::KubernetesCrd);
    pushed(&mut bench, nc(NC_A, "10.7.0.9/24", &v4s(17, 2))).unwrap();
    assert_eq!(bench.count(IpStateKind::PendingProgramming), 2);
    let mut bench = bench_of(OrchestratorType::Batch);
    let mut spec = for_pod(NC_A, "web-0");
    spec.secondary_ip_configs = nc(NC_A, "10.7.0.9/24", &v4s(17, 2)).secondary_ip_configs;
    pushed(&mut bench, spec.clone()).unwrap();
    assert_eq!(bench.states(), [], "elsewhere they are stored only");
    assert_eq!(bench.view.nc(&id(NC_A)).unwrap().record.spec, spec);
}

#[test]
fn u2_u3_u4_the_internal_upsert_checks_orchestrator_and_primary() {
    let mut bench = bench_of(OrchestratorType::Batch);
    assert_eq!(code(bench.upsert(nc(NC_A, "10.240.0.5/24", &[]), None)), 19);
    let mut bench = bench_of(OrchestratorType::KubernetesCrd);
    assert_eq!(code(bench.upsert(NcSpec::new(id(NC_A), NcType::Docker, 1), None)), 27);
    assert_eq!(code(bench.upsert(nc(NC_A, "10.240.0.5/0", &[]), None)), 27);
    assert_eq!(code(bench.upsert(nc(NODE_SUBNET_NC_ID, "10.0.0.1/24", &[]), None)), 27);
    assert!(bench.state.ncs.is_empty());
    bench.upsert(NcSpec::new(id(NODE_SUBNET_NC_ID), NcType::Docker, 0), Some(0)).unwrap();
}

#[test]
fn u6_to_u10_the_primary_subnet_may_only_widen() {
    let mut bench = bench_of(OrchestratorType::KubernetesCrd);
    bench.upsert(nc(NC_A, "10.240.0.5/24", &[]), None).unwrap();
    for other in ["10.240.0.6/24", "10.240.0.5/25", "10.242.0.0/23"] {
        assert_eq!(code(bench.upsert(nc(NC_A, other, &[]), None)), 28, "{other}");
    }
    bench.upsert(nc(NC_A, "10.240.0.0/23", &[]), None).unwrap();
    bench.upsert(nc(NC_B, "10.240.0.0/24", &[]), None).unwrap();
    bench.upsert(nc(NC_B, "10.240.1.0/23", &[]), None).unwrap();
    let mut other = nc(NC_B, "10.240.1.0/23", &[]);
    other.ip_configuration.gateway = Some(ip("10.240.0.1"));
    other.ip_configuration.subnet_v6 = Some(net("fd00::5/64"));
    other.host_primary_ip = Some(ip("10.224.0.4"));
    bench.upsert(other, None).unwrap();
}

#[test]
fn v1_to_v10_host_versions() {
    let mut bench = bench_of(OrchestratorType::KubernetesCrd);
    let mut spec = nc(NC_A, "10.240.0.5/24", &v4s(17, 2));
    spec.version = "5".into();
    spec.secondary_ip_configs.values_mut().last().unwrap().nc_version = 5;
    bench.upsert(spec, None).unwrap();
    let sync = |bench: &mut Bench, versions: &[(&str, u64)], promote| {
        let versions = versions.iter().map(|(nc_id, version)| (id(nc_id), *version)).collect();
        match bench.run(Command::SetHostVersions { versions, promote }).unwrap() {
            Reply::HostVersions(reply) => reply,
            other => panic!("{other:?}"),
        }
    };
    let host = |bench: &Bench| bench.view.nc(&id(NC_A)).unwrap().record.host_version;
    let missing = sync(&mut bench, &[], true);
    assert_eq!((missing.outdated.len(), missing.programmed, host(&bench)), (1, 0, None), "V3");
    // V8: the host's list has another case and prefix.
    let below = sync(&mut bench, &[(&format!("Swift_{}", NC_A.to_uppercase()), 3)], true);
    assert_eq!((below.outdated.len(), below.programmed, below.promoted), (0, 1, 1), "V2");
    assert_eq!(bench.state_of("10.240.0.18"), Some(IpStateKind::PendingProgramming), "V2");
    let lower = sync(&mut bench, &[(NC_A, 2)], true);
    assert_eq!((lower.outdated.len(), host(&bench)), (1, Some(3)), "V4");
    bench.restart(false);
    assert_eq!(host(&bench), Some(3), "V12");
    let stored_only = sync(&mut bench, &[(NC_A, 5)], false);
    assert_eq!((stored_only.promoted, host(&bench)), (0, Some(5)), "V9");
    let mut odd = nc(NC_B, "10.241.0.5/24", &[]);
    odd.version = "x".into();
    bench.upsert(odd, None).unwrap();
    assert_eq!(sync(&mut bench, &[(NC_A, 5)], true).outdated, [], "V10, V5");
}

#[test]
fn q4_a_new_goal_is_not_known_to_be_programmed() {
    let mut bench = bench_of(OrchestratorType::Kubernetes);
    pushed(&mut bench, for_pod(NC_A, "web-0")).unwrap();
    let record = bench.view.nc(&id(NC_A)).unwrap().record.clone();
    let mut loaded = bench.disk.reload().unwrap();
    loaded.ncs = vec![NcRecord { vfp_update_complete: true, ..(*record).clone() }];
    (bench.state, _, _) = State::load(loaded, LedgerConfig::default());
    let mut batch = Batch::default();
    let mut next = for_pod(NC_A, "web-0");
    next.version = "2".into();
    let upsert =
        UpsertNc { spec: next, origin: NcOrigin::Api, missing: MissingAssigned::Refuse, programmed: None };
    let command = Command::UpsertNc(Box::new(upsert));
    let reply =
        transition::execute(&mut bench.state, &mut batch, bench.now, Actor::default(), command).unwrap();
    assert!(matches!(reply, Reply::Nc(nc) if !nc.record.vfp_update_complete));
}

#[test]
fn e1_deleting_what_is_unknown_succeeds() {
    let mut bench = Bench::with_nc_a(1);
    let delete = || Command::DeleteNc { id: id(NC_A) };
    assert_eq!(bench.run(delete()).unwrap(), Reply::NcDeleted { existed: true, kept: vec![] });
    assert_eq!(bench.run(delete()).unwrap(), Reply::NcDeleted { existed: false, kept: vec![] });
}

#[test]
fn e4_a_deleted_nc_waits_for_its_pods_hidden_from_new_ones() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    let reply = bench.run(Command::DeleteNc { id: id(NC_A) }).unwrap();
    assert_eq!(reply, Reply::NcDeleted { existed: true, kept: vec![ip("10.240.0.17")] });
    assert_eq!(bench.state_of("10.240.0.18"), None);
    assert_eq!(code(bench.request("c2")), 32);
    assert_eq!(bench.request("c1").unwrap(), ["10.240.0.17"], "its pod keeps it");
    bench.restart(false);
    bench.release("c1");
    assert!(bench.state.ncs.is_empty());
    assert_eq!(bench.states(), []);
}

#[test]
fn e4_a_deleted_nc_that_comes_back_has_its_pods() {
    let mut bench = Bench::with_nc_a(2);
    bench.request("c1").unwrap();
    bench.run(Command::DeleteNc { id: id(NC_A) }).unwrap();
    bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, 2)), Some(3)).unwrap();
    bench.release("c1");
    assert_eq!(bench.count(IpStateKind::Available), 2);
}

#[test]
fn an_address_of_a_deleted_nc_may_be_listed_by_another() {
    let mut bench = Bench::with_nc_a(1);
    bench.request("c1").unwrap();
    let twice = bench.upsert(nc(NC_B, "10.240.0.6/24", &v4s(17, 1)), Some(3)).unwrap_err();
    assert_eq!(twice.return_code().number(), 30, "not while the first one is there");
    bench.run(Command::DeleteNc { id: id(NC_A) }).unwrap();
    bench.upsert(nc(NC_B, "10.240.0.6/24", &v4s(17, 1)), Some(3)).unwrap();
    assert_eq!(bench.owner_of("10.240.0.17").as_deref(), Some("c1"));
    assert_eq!(bench.state.ncs.len(), 1, "the deserted NC is gone");
    bench.release("c1");
    assert_eq!(bench.state_of("10.240.0.17"), Some(IpStateKind::Available));
}

#[test]
fn o1_o2_o3_a_node_keeps_its_id_while_it_has_ncs() {
    let mut bench = Bench::with_nc_a(1);
    let register = |node: &str| Command::SetOrchestrator {
        kind: OrchestratorType::KubernetesCrd,
        node_id: node.into(),
        partition_key: "p".into(),
    };
    let refused = bench.run(register("node-2")).unwrap_err();
    assert_eq!(refused.return_code().number(), 23);
    assert!(refused.to_string().contains("already been registered as node-1"), "{refused}");
    bench.run(Command::DeleteNc { id: id(NC_A) }).unwrap();
    bench.run(register("node-2")).unwrap();
}

#[test]
fn t4_t5_every_orchestrator_takes_every_type() {
    for kind in OrchestratorType::ALL {
        for nc_type in NcType::ALL {
            let mut bench = bench_of(*kind);
            let spec = NcSpec { nc_type: *nc_type, ..for_pod(NC_A, "web-0") };
            let stored = pushed(&mut bench, spec).unwrap();
            assert!(stored.created, "{kind} {nc_type}");
            assert_eq!(bench.view.ncs_of_pod(&pod("web-0")).count(), 1);
        }
    }
}

#[test]
fn u7_u8_u9_wider_and_overlapping_is_the_only_change() {
    let mut bench = bench_of(OrchestratorType::KubernetesCrd);
    bench.upsert(nc(NC_A, "10.240.0.5/24", &[]), None).unwrap();
    assert_eq!(code(bench.upsert(nc(NC_A, "10.240.0.5/25", &[]), None)), 28, "U7: narrower");
    assert_eq!(code(bench.upsert(nc(NC_A, "10.242.0.0/23", &[]), None)), 28, "U9: wider, elsewhere");
    for wider in ["10.240.1.0/23", "10.240.0.0/22"] {
        bench.upsert(nc(NC_A, wider, &[]), None).unwrap();
        let stored = bench.view.nc(&id(NC_A)).unwrap().record.spec.ip_configuration.subnet;
        assert_eq!(stored, Some(net(wider)), "U8");
    }
}

/// What the source no longer lists goes; what pods hold of it stays theirs, and nothing else waits for that.
#[test]
fn e5_e6_a_stale_nc_goes_at_once_or_with_its_last_pod() {
    let mut bench = Bench::with_nc_a(2);
    bench.upsert(nc(NC_B, "10.241.0.5/24", &[]), Some(3)).unwrap();
    let delete = |nc_id| Command::DeleteNc { id: id(nc_id) };
    assert_eq!(bench.run(delete(NC_B)).unwrap(), Reply::NcDeleted { existed: true, kept: vec![] }, "E5");
    assert!(bench.view.nc(&id(NC_B)).is_none());
    bench.request("c1").unwrap();
    let kept = vec![ip("10.240.0.17")];
    assert_eq!(bench.run(delete(NC_A)).unwrap(), Reply::NcDeleted { existed: true, kept }, "E6");
    // The rest of the source's list is applied all the same.
    bench.upsert(nc(NC_B, "10.241.0.5/24", &["10.241.0.17".to_owned()]), Some(3)).unwrap();
    assert_eq!(bench.request("c2").unwrap(), ["10.241.0.17"]);
    bench.release("c1");
    assert!(bench.view.nc(&id(NC_A)).is_none());
}

#[test]
fn f1_f2_a_restart_and_a_reboot_keep_ncs_orchestrator_and_contexts() {
    for rebooted in [false, true] {
        let mut bench = bench_of(OrchestratorType::Kubernetes);
        pushed(&mut bench, for_pod(NC_A, "web-0")).unwrap();
        let versions = vec![(id(NC_A), 1)];
        bench.run(Command::SetHostVersions { versions, promote: false }).unwrap();
        let environment = Environment { location: "Azure".into(), network_type: "Underlay".into() };
        bench.run(Command::SetEnvironment(environment)).unwrap();
        let before = (bench.view.orchestrator().clone(), bench.view.nc(&id(NC_A)).unwrap().record.clone());
        assert_eq!(before.1.host_version, Some(1), "V12 for the file");
        bench.restart(rebooted);
        let after = (bench.view.orchestrator().clone(), bench.view.nc(&id(NC_A)).unwrap().record.clone());
        assert_eq!(before, after, "rebooted: {rebooted}");
        assert_eq!(bench.view.ncs_of_pod(&pod("web-0")).count(), 1);
    }
}

#[test]
fn the_environment_outlives_a_registration() {
    let mut bench = Bench::new(LedgerConfig::default());
    let environment = Environment { location: "Azure".into(), network_type: "Overlay".into() };
    for _ in 0..2 {
        bench.run(Command::SetEnvironment(environment.clone())).unwrap();
    }
    bench.run(set_orchestrator(OrchestratorType::Batch)).unwrap();
    let stored = bench.view.orchestrator();
    assert_eq!(
        (stored.kind, stored.environment.as_ref()),
        (Some(OrchestratorType::Batch), Some(&environment))
    );
}
