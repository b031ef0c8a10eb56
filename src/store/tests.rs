//! The store over real files: what was acknowledged is there, what was not is not, and damage loses no evidence.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use tempfile::TempDir;

use super::*;
use crate::{
    ledger::{JournalClass, JournalKey},
    model::{
        Actor, BootTime, ContainerId, Endpoint, IpRecord, IpState, NcId, NcLifecycle, NcRecord, NcSpec,
        NcType, OnRelease, Operation, Orchestrator, OrchestratorType, Outcome, PodIdentity, Timestamp,
        Tombstone,
    },
};

const NC_A: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

fn options(dir: &Path) -> StoreOptions {
    StoreOptions { directory: dir.to_owned(), boot_id: "boot-1".into() }
}

fn open(dir: &Path) -> (Store, Loaded, OpenReport) {
    Store::open(&options(dir)).unwrap()
}

fn nc() -> NcRecord {
    NcRecord {
        spec: NcSpec::new(NC_A.parse().unwrap(), NcType::Docker, 3),
        host_version: Some(3),
        vfp_update_complete: false,
        lifecycle: NcLifecycle::Active,
        created: Timestamp::from_unix_nanos(1),
        updated: Timestamp::from_unix_nanos(2),
    }
}

fn ip(last: u8) -> IpRecord {
    let address = std::net::IpAddr::from([10, 240, 0, last]);
    IpRecord {
        id: address.into(),
        address,
        nc: NC_A.parse().unwrap(),
        nc_version: 3,
        state: IpState::Available,
        since: Timestamp::from_unix_nanos(3),
        freed: Some(BootTime::from_nanos(4)),
        on_release: OnRelease::Free,
    }
}

fn endpoint(container: &str) -> Endpoint {
    Endpoint {
        container: container.parse().unwrap(),
        pod: PodIdentity::new("prod", "web-0").unwrap(),
        interface_id: String::new(),
        interfaces: vec![],
        sandbox: None,
        witnessed: false,
        began: None,
        created: Timestamp::default(),
        updated: Timestamp::default(),
    }
}

fn entry(seq: u64) -> JournalEntry {
    JournalEntry {
        seq,
        at: Timestamp::default(),
        actor: Actor::internal("test"),
        operation: Operation::UpsertNc,
        container: None,
        pod: None,
        nc: None,
        addresses: vec![],
        outcome: Outcome::Done,
        changes: vec![],
        why: String::new(),
    }
}

fn append(class: JournalClass, index: u64, seq: u64) -> Change {
    Change::AppendJournal(JournalKey { class, index }, Arc::new(entry(seq)))
}

fn everything() -> Vec<Change> {
    let container: ContainerId = "c1".parse().unwrap();
    let orchestrator = Orchestrator {
        kind: Some(OrchestratorType::KubernetesCrd),
        node_id: "node-1".into(),
        partition_key: "p".into(),
        environment: Some(crate::model::Environment {
            location: "Azure".into(),
            network_type: "Underlay".into(),
        }),
    };
    vec![
        Change::SetOrchestrator(orchestrator),
        Change::PutNc(Arc::new(nc())),
        Change::PutIp(Arc::new(ip(17))),
        Change::PutIp(Arc::new(ip(18))),
        Change::DeleteIp(ip(18).address),
        Change::PutEndpoint(Arc::new(endpoint("c1"))),
        Change::PutTombstone(Tombstone {
            container,
            deleted: BootTime::from_nanos(1),
            recorded: BootTime::from_nanos(2),
            at: Timestamp::default(),
        }),
        append(JournalClass::Effect, 0, 0),
        append(JournalClass::Refusal, 0, 1),
        append(JournalClass::Effect, 1, 2),
        Change::DropJournal(JournalKey { class: JournalClass::Effect, index: 0 }),
        Change::SetLegacyExtra("{\"x\":1}".into()),
    ]
}

#[test]
fn what_was_committed_is_there_after_opening_again() {
    let dir = TempDir::new().unwrap();
    let (mut store, loaded, report) = open(dir.path());
    assert_eq!((loaded, report.is_new), (Loaded::default(), true));
    store.commit(&everything()).unwrap();
    let live = store.reload().unwrap();
    drop(store);
    let (store, loaded, report) = open(dir.path());
    assert_eq!((&loaded, report), (&live, OpenReport::default()));
    assert_eq!((loaded.ncs, loaded.ips, loaded.endpoints), (vec![nc()], vec![ip(17)], vec![endpoint("c1")]));
    assert_eq!(
        (loaded.journal.effects, loaded.journal.refusals, loaded.journal.next_seq),
        ((1, 2), (0, 1), 3)
    );
    let seqs: Vec<u64> = store.journal().read(&|_| true).unwrap().iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [1, 2]);
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(STATE_FILE), 0o600);
}

#[test]
fn nc_ids_that_differ_in_case_or_prefix_are_one_row() {
    let dir = TempDir::new().unwrap();
    let (mut store, ..) = open(dir.path());
    store.commit(&[Change::PutNc(Arc::new(nc()))]).unwrap();
    let other: NcId = format!("Swift_{}", NC_A.to_uppercase()).parse().unwrap();
    store.commit(&[Change::DeleteNc(other)]).unwrap();
    assert_eq!(store.reload().unwrap().ncs, []);
}

#[test]
fn a_reboot_is_told_until_the_first_commit_of_the_new_boot() {
    let dir = TempDir::new().unwrap();
    let (mut store, loaded, _) = open(dir.path());
    assert!(!loaded.rebooted);
    store.commit(&everything()).unwrap();
    drop(store);
    let next = StoreOptions { boot_id: "boot-2".into(), ..options(dir.path()) };
    // Killed between opening and the commit that ends the earlier boot's endpoints: the next start must still know.
    for _ in 0..2 {
        let (_, loaded, _) = Store::open(&next).unwrap();
        assert!(loaded.rebooted);
    }
    let (mut store, ..) = Store::open(&next).unwrap();
    store.commit(&[append(JournalClass::Effect, 2, 3)]).unwrap();
    drop(store);
    assert!(!Store::open(&next).unwrap().1.rebooted);
}

#[test]
fn a_second_daemon_is_refused_and_told_who_the_first_one_is() {
    let dir = TempDir::new().unwrap();
    let (_store, ..) = open(dir.path());
    let error = Store::open(&options(dir.path())).unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()) && error.contains("--state-dir"), "{error}");
}

#[test]
fn f6_a_damaged_file_is_set_aside_and_kept() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(STATE_FILE);
    let (mut store, ..) = open(dir.path());
    store.commit(&everything()).unwrap();
    drop(store);
    let sound = fs::read(&path).unwrap();
    let torn = |at: usize| sound.iter().take(at).copied().collect::<Vec<u8>>();
    let mut flipped = sound.clone();
    flipped[..64].fill(0xa5);
    let damages = [
        b"not a database".to_vec(),
        torn(1),
        torn(100),
        torn(sound.len() / 2),
        torn(sound.len() - 1),
        flipped,
    ];
    for (i, damage) in damages.into_iter().enumerate() {
        fs::write(&path, &damage).unwrap();
        let (mut store, loaded, report) = open(dir.path());
        let (aside, why) =
            report.set_aside.unwrap_or_else(|| panic!("damage {i} was not noticed: {loaded:?}"));
        assert!(!why.is_empty());
        assert_eq!(fs::read(&aside).unwrap(), damage, "the evidence is kept");
        assert_eq!((loaded, report.is_new), (Loaded::default(), true));
        store.commit(&everything()).unwrap();
    }
}

#[test]
fn a_later_schema_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let (store, ..) = open(dir.path());
    let database = store.database().unwrap();
    let transaction = database.begin_write().unwrap();
    tables::put_meta(&transaction, "schema", &99_u32.to_be_bytes()).unwrap();
    transaction.commit().unwrap();
    drop((database, store));
    let before = fs::read(dir.path().join(STATE_FILE)).unwrap();
    let error = Store::open(&options(dir.path())).unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 99, .. }), "{error}");
    assert_eq!(fs::read(dir.path().join(STATE_FILE)).unwrap().len(), before.len());
}

#[test]
fn a_file_that_cannot_be_opened_is_no_damage() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join(STATE_FILE)).unwrap();
    let error = Store::open(&options(dir.path())).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    assert!(dir.path().join(STATE_FILE).is_dir());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&options(&file.join("below"))).unwrap_err().to_string();
    assert!(error.contains("cannot create directory"), "{error}");
}
