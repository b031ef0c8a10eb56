//! The writer: durable before answered, one flush for many, undone when the disk fails, cancelled before taken.

use super::*;

async fn started(disk: &MemoryDisk) -> (Ledger, WriterThread) {
    let loaded = disk.clone().reload().unwrap();
    let (ledger, thread, repairs) =
        Ledger::start(Box::new(disk.clone()), loaded, LedgerConfig::default(), Arc::new(())).unwrap();
    assert_eq!(repairs, Vec::<String>::new());
    if ledger.view().orchestrator().kind.is_none() {
        ledger.submit(Actor::default(), set_orchestrator(OrchestratorType::KubernetesCrd)).await.unwrap();
        let upsert = UpsertNc {
            spec: nc(NC_A, "10.240.0.5/24", &v4s(1, 200)),
            origin: NcOrigin::ControlPlane,
            missing: MissingAssigned::Refuse,
            programmed: Some(3),
        };
        ledger.upsert_nc(Actor::default(), upsert).await.unwrap();
    }
    (ledger, thread)
}

async fn clean(ledger: &Ledger) {
    let inspection = ledger.inspect().await.unwrap();
    assert_eq!(inspection.violations, Vec::<String>::new());
}

#[tokio::test]
async fn many_requests_share_few_flushes_and_all_are_on_disk_when_answered() {
    let disk = MemoryDisk::default();
    let (ledger, thread) = started(&disk).await;
    let before = disk.0.lock().unwrap().commits;
    let requests = (0..64).map(|i| {
        let (ledger, disk) = (ledger.clone(), disk.clone());
        async move {
            let granted = ledger.request_ips(Actor::default(), ask(&format!("c{i}"))).await.unwrap();
            let address = granted.ips[0].0.address;
            assert!(disk.0.lock().unwrap().ips[&address].state.assignment().is_some());
            address
        }
    });
    let mut tasks = tokio::task::JoinSet::new();
    requests.for_each(|request| drop(tasks.spawn(request)));
    let given: std::collections::BTreeSet<IpAddr> = tasks.join_all().await.into_iter().collect();
    assert_eq!(given.len(), 64);
    assert!(disk.0.lock().unwrap().commits - before < 64);
    clean(&ledger).await;
    ledger.stop().await;
    assert!(thread.join());
    assert_eq!(ledger.request_ips(Actor::default(), ask("late")).await, Err(LedgerError::Stopped));
}

#[tokio::test]
async fn r13_l6_f8_a_disk_that_fails_changes_nothing_and_recovers_by_itself() {
    let disk = MemoryDisk::default();
    let (ledger, _thread) = started(&disk).await;
    ledger.request_ips(Actor::default(), ask("c1")).await.unwrap();
    let mut health = ledger.health();
    disk.1.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let refused = ledger.request_ips(Actor::default(), ask("c2")).await.unwrap_err();
        assert!(
            matches!(&refused, LedgerError::Unavailable { why } if why.contains("no space left")),
            "{refused}"
        );
        let refused = ledger.release_ips(Actor::default(), give("c1")).await.unwrap_err();
        assert!(matches!(refused, LedgerError::Unavailable { .. }));
    }
    assert!(
        matches!(&*health.borrow_and_update(), Health::Failing { error, .. } if error.contains("no space left"))
    );
    assert_eq!(ledger.view().totals()[IpStateKind::Assigned.index()], 1);
    disk.1.store(false, Ordering::SeqCst);
    // Nobody asks for anything: health recovers all the same.
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    let granted = ledger.request_ips(Actor::default(), ask("c2")).await.unwrap();
    assert_eq!(granted.ips[0].0.address, ip("10.240.0.2"), "the free list is as if nothing had happened");
    clean(&ledger).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_before_it_is_taken_has_no_effect() {
    let disk = MemoryDisk::default();
    let (ledger, _thread) = started(&disk).await;
    let request = ledger.request_ips(Actor::default(), ask("c1"));
    drop(request);
    let mut polled = Box::pin(ledger.request_ips(Actor::default(), ask("c2")));
    // Polled once, so it is queued; then dropped. Whether the writer took it first is a race, but all sides agree after.
    tokio::select! { biased; _ = &mut polled => {}, () = std::future::ready(()) => {} }
    drop(polled);
    clean(&ledger).await;
    let assigned = ledger.view().totals()[IpStateKind::Assigned.index()];
    let granted = ledger.request_ips(Actor::default(), ask("c2")).await.unwrap();
    assert_eq!(granted.repeated, assigned == 1);
}

#[tokio::test]
async fn events_tell_every_command_in_order_and_the_journal_rings_stay_bounded() {
    let disk = MemoryDisk::default();
    let (ledger, thread) = started(&disk).await;
    let mut events = ledger.events();
    ledger.request_ips(Actor::internal("a"), ask("c1")).await.unwrap();
    ledger.release_ips(Actor::internal("b"), give("c1")).await.unwrap();
    let foreign = RequestIps { desired: vec![ip("10.9.9.9")], ..ask("c2") };
    ledger.request_ips(Actor::internal("c"), foreign).await.unwrap_err();
    let (first, second, third) =
        (events.recv().await.unwrap(), events.recv().await.unwrap(), events.recv().await.unwrap());
    let address = |effect: &Effect| match effect {
        Effect::Ip { before, after } => before.as_ref().or(after.as_ref()).map(|record| record.address),
        Effect::Endpoint { .. } => None,
    };
    let told = |event: &Committed| event.effects.iter().filter_map(address).collect::<Vec<_>>();
    assert_eq!([told(&first), told(&second)], [[ip("10.240.0.1")], [ip("10.240.0.1")]]);
    assert_eq!(first.effects.len(), 2, "the address and the endpoint record");
    assert_eq!(third.effects, [], "a refusal changes nothing");
    let (first, second, third) = (&first.entry, &second.entry, &third.entry);
    assert_eq!([first.seq + 1, second.seq + 1], [second.seq, third.seq]);
    assert_eq!((first.operation, &first.outcome), (Operation::RequestIpConfigs, &Outcome::Done));
    assert_eq!(first.addresses, [ip("10.240.0.1")]);
    assert!(matches!(&third.outcome, Outcome::Refused { reason, .. } if reason == "DESIRED_UNKNOWN"));
    ledger.stop().await;
    thread.join();

    let config = LedgerConfig { journal_effects: 4, journal_refusals: 2, ..Default::default() };
    let mut bench = Bench::new(config);
    for _ in 0..10 {
        bench.release("c1");
        bench.request("c1").unwrap_err();
    }
    let disk = bench.disk.0.lock().unwrap();
    let kept = |class| disk.journal.keys().filter(|key| key.class == class).count();
    assert_eq!((kept(JournalClass::Effect), kept(JournalClass::Refusal)), (4, 2));
}

#[tokio::test]
async fn a_reboot_is_durable_before_anything_is_served() {
    let disk = MemoryDisk::default();
    let (ledger, thread) = started(&disk).await;
    ledger.request_ips(Actor::default(), ask("c1")).await.unwrap();
    ledger.stop().await;
    thread.join();
    let loaded = Loaded { rebooted: true, ..disk.clone().reload().unwrap() };
    let (ledger, _thread, _) =
        Ledger::start(Box::new(disk.clone()), loaded, LedgerConfig::default(), Arc::new(())).unwrap();
    assert_eq!(ledger.view().totals()[IpStateKind::Assigned.index()], 0);
    assert!(disk.0.lock().unwrap().endpoints.is_empty());
    clean(&ledger).await;
}
