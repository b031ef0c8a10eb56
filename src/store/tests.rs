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
    store.tables.write(|writer| writer.meta("schema", &99_u32.to_be_bytes())).unwrap();
    drop(store);
    let names =
        || fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let before = names();
    for _ in 0..2 {
        let error = Store::open(&options(dir.path())).unwrap_err();
        assert!(matches!(error, StoreError::NewerSchema { found: 99, .. }), "{error}");
    }
    assert_eq!(names(), before, "nothing is set aside");
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

/// What a start would find if the daemon were killed now.
fn as_killed(dir: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for name in [STATE_FILE, LOG_FILE] {
        fs::copy(dir.join(name), copy.path().join(name)).unwrap();
    }
    copy
}

/// A batch as the ledger makes it: a record and its journal entry.
fn batch(number: u64) -> Vec<Change> {
    let mut record = ip(u8::try_from(number % 200).unwrap());
    record.since = Timestamp::from_unix_nanos(i64::try_from(number).unwrap());
    vec![Change::PutIp(Arc::new(record)), append(JournalClass::Effect, number, number)]
}

/// The batch after which this state was loaded.
fn last_batch(loaded: &Loaded) -> Option<u64> {
    loaded.journal.next_seq.checked_sub(1)
}

fn block(number: usize) -> std::ops::Range<usize> {
    number * 4096..(number + 1) * 4096
}

#[test]
fn what_was_committed_survives_a_kill_at_any_time() {
    let dir = TempDir::new().unwrap();
    let (mut store, ..) = open(dir.path());
    // Several times around both halves of the log, each batch in a block of its own.
    for number in 0..5_000 {
        store.commit(&batch(number)).unwrap();
        if number % 701 == 0 || number == 1_024 {
            let killed = as_killed(dir.path());
            let (found, loaded, report) = open(killed.path());
            assert_eq!((last_batch(&loaded), report), (Some(number), OpenReport::default()));
            let since = |address| loaded.ips.iter().find(|ip| ip.address == address).unwrap().since;
            for earlier in number.saturating_sub(199)..=number {
                let Change::PutIp(put) = &batch(earlier)[0] else { unreachable!() };
                assert_eq!(since(put.address), put.since, "batch {earlier} of {number}");
            }
            drop(found);
        }
    }
    let live = store.reload().unwrap();
    drop(store);
    assert_eq!(open(dir.path()).1, live);
}

#[test]
fn a_torn_record_at_the_end_counts_for_nothing() {
    let dir = TempDir::new().unwrap();
    let (mut store, ..) = open(dir.path());
    store.commit(&batch(0)).unwrap();
    store.commit(&batch(1)).unwrap();
    // Longer than a block, so that it can be torn between blocks too.
    let long: Vec<_> = (2..200).flat_map(batch).collect();
    store.commit(&long).unwrap();
    let whole = fs::read(dir.path().join(LOG_FILE)).unwrap();
    let end =
        4096 * whole.chunks(4096).rposition(|block| block.iter().any(|byte| *byte != 0)).unwrap() + 4096;
    assert!(end > 4 * 4096, "the record is long");
    for (from, to) in
        [(2 * 4096, end), (2 * 4096, 2 * 4096 + 512), (3 * 4096, end), (2 * 4096 + 100, 3 * 4096)]
    {
        let killed = as_killed(dir.path());
        let mut torn = whole.clone();
        torn[from..to].fill(0);
        fs::write(killed.path().join(LOG_FILE), torn).unwrap();
        let (mut store, loaded, report) = open(killed.path());
        assert_eq!((last_batch(&loaded), report), (Some(1), OpenReport::default()), "{from}..{to}");
        // What comes next takes its place, and what is left of it never counts.
        store.commit(&batch(2)).unwrap();
        let killed = as_killed(killed.path());
        assert_eq!(last_batch(&open(killed.path()).1), Some(2));
    }
}

#[test]
fn acknowledged_records_that_are_lost_are_told_and_the_log_is_kept() {
    let dir = TempDir::new().unwrap();
    let (mut store, ..) = open(dir.path());
    (0..5).for_each(|number| store.commit(&batch(number)).unwrap());
    let whole = fs::read(dir.path().join(LOG_FILE)).unwrap();
    let flipped = {
        let mut damaged = whole.clone();
        damaged[block(2)][1000..1004].fill(0x5a);
        damaged[block(2)][60] ^= 1;
        damaged
    };
    let swapped = {
        let mut damaged = whole.clone();
        let (two, three) = (whole[block(2)].to_vec(), whole[block(3)].to_vec());
        damaged[block(2)].copy_from_slice(&three);
        damaged[block(3)].copy_from_slice(&two);
        damaged
    };
    let cut = whole[..block(1).end + 17].to_vec();
    for (what, damaged) in [("flipped", flipped), ("swapped", swapped), ("cut", cut)] {
        let killed = as_killed(dir.path());
        fs::write(killed.path().join(LOG_FILE), &damaged).unwrap();
        let (mut store, loaded, report) = open(killed.path());
        assert_eq!(last_batch(&loaded), Some(1), "{what}");
        let (aside, why) = report.set_aside.unwrap_or_else(|| panic!("{what} was not noticed"));
        assert!(!report.is_new && !why.is_empty());
        assert_eq!(fs::read(aside).unwrap(), damaged, "the evidence is kept");
        store.commit(&batch(2)).unwrap();
        assert_eq!(last_batch(&open(as_killed(killed.path()).path()).1), Some(2));
    }
}

#[test]
fn a_log_that_was_made_longer_is_read_whole() {
    let dir = TempDir::new().unwrap();
    let (mut store, ..) = open(dir.path());
    store.commit(&batch(0)).unwrap();
    let killed = as_killed(dir.path());
    let log = fs::File::options().write(true).open(killed.path().join(LOG_FILE)).unwrap();
    log.set_len(16 << 20).unwrap();
    let (_, loaded, report) = open(killed.path());
    assert_eq!((last_batch(&loaded), report), (Some(0), OpenReport::default()));
}

#[test]
fn the_log_of_another_state_counts_for_nothing() {
    let (one, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (mut store, ..) = open(one.path());
    store.commit(&everything()).unwrap();
    drop(open(other.path()));
    fs::copy(one.path().join(LOG_FILE), other.path().join(LOG_FILE)).unwrap();
    assert_eq!(open(other.path()).1, Loaded::default());
    // A state file that was taken away takes what its log held with it.
    let moved = as_killed(one.path());
    fs::remove_file(moved.path().join(STATE_FILE)).unwrap();
    assert_eq!(open(moved.path()).1, Loaded::default());
}

#[test]
fn the_tables_take_over_when_the_log_fails_and_a_new_record_follows() {
    let dir = TempDir::new().unwrap();
    let (mut store, ..) = open(dir.path());
    store.commit(&batch(0)).unwrap();
    store.log.as_mut().unwrap().break_off();
    store.commit(&batch(1)).unwrap();
    assert_eq!(last_batch(&open(as_killed(dir.path()).path()).1), Some(1));
    assert!(store.log.is_some(), "the log is tried again once it holds nothing");
    store.commit(&batch(2)).unwrap();
    assert!(!locked(&store.pending).fresh.is_empty());
    assert_eq!(last_batch(&open(as_killed(dir.path()).path()).1), Some(2));
    // Too much for a record.
    let many: Vec<_> = (3..9_000).flat_map(batch).collect();
    store.commit(&many).unwrap();
    assert_eq!(last_batch(&open(as_killed(dir.path()).path()).1), Some(8_999));
    assert_eq!(last_batch(&store.reload().unwrap()), Some(8_999));
}

#[test]
fn the_journal_is_read_through_the_log() {
    let dir = TempDir::new().unwrap();
    let (mut store, ..) = open(dir.path());
    let seqs = |store: &Store| -> Vec<u64> {
        store.journal().read(&|_| true).unwrap().iter().map(|entry| entry.seq).collect()
    };
    store.commit(&everything()).unwrap();
    assert_eq!(seqs(&store), [1, 2]);
    store.settle();
    store.commit(&batch(3)).unwrap();
    let key = JournalKey { class: JournalClass::Effect, index: 1 };
    store.commit(&[Change::DropJournal(key)]).unwrap();
    assert_eq!(seqs(&store), [1, 3]);
    store.join();
    assert_eq!(seqs(&store), [1, 3]);
}
