//! Tests of the ledger: the scenario rows of spec/ipam.md §15, spec/network-containers.md §16 and spec/endpoint-state.md §9
//! by their ids, a naive model beside random commands, and the writer over a disk that fails on demand.

mod endpoints;
mod interleaving;
mod ips;
mod model;
mod ncs;
mod writer;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ipnet::IpNet;

use super::{
    state::{Batch, State},
    *,
};
use crate::model::*;

pub(super) const NC_A: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";
pub(super) const NC_B: &str = "7c1d0c1e-7b7d-4b38-9b1f-0d0f6a2c9a22";

/// A disk in memory. `full` makes it refuse; it never keeps half a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryDisk(Arc<std::sync::Mutex<Records>>, pub(super) Arc<AtomicBool>);

#[derive(Debug, Default)]
struct Records {
    orchestrator: Orchestrator,
    ncs: BTreeMap<NcId, NcRecord>,
    ips: BTreeMap<IpAddr, IpRecord>,
    endpoints: BTreeMap<ContainerId, Endpoint>,
    tombstones: BTreeMap<ContainerId, Tombstone>,
    journal: BTreeMap<JournalKey, JournalEntry>,
    extra: Arc<str>,
    commits: usize,
}

impl Persist for MemoryDisk {
    fn commit(&mut self, changes: &[Change]) -> Result<(), PersistError> {
        self.probe()?;
        let mut disk = self.0.lock().unwrap();
        disk.commits += 1;
        for change in changes {
            match change.clone() {
                Change::SetOrchestrator(orchestrator) => disk.orchestrator = orchestrator,
                Change::PutNc(nc) => drop(disk.ncs.insert(nc.id().clone(), (*nc).clone())),
                Change::DeleteNc(id) => drop(disk.ncs.remove(&id)),
                Change::PutIp(ip) => drop(disk.ips.insert(ip.address, (*ip).clone())),
                Change::DeleteIp(address) => drop(disk.ips.remove(&address)),
                Change::PutEndpoint(e) => drop(disk.endpoints.insert(e.container.clone(), (*e).clone())),
                Change::DeleteEndpoint(container) => drop(disk.endpoints.remove(&container)),
                Change::PutTombstone(t) => drop(disk.tombstones.insert(t.container.clone(), t)),
                Change::DeleteTombstone(container) => drop(disk.tombstones.remove(&container)),
                Change::AppendJournal(key, entry) => {
                    assert!(disk.journal.insert(key, (*entry).clone()).is_none(), "a journal key used twice");
                }
                Change::DropJournal(key) => assert!(disk.journal.remove(&key).is_some(), "nothing to drop"),
                Change::SetLegacyExtra(extra) => disk.extra = extra,
            }
        }
        Ok(())
    }

    fn probe(&mut self) -> Result<(), PersistError> {
        if self.1.load(Ordering::SeqCst) {
            Err(PersistError("no space left on device".into()))
        } else {
            Ok(())
        }
    }

    fn reload(&mut self) -> Result<Loaded, PersistError> {
        let disk = self.0.lock().unwrap();
        let ring = |class| {
            let keys: Vec<u64> =
                disk.journal.keys().filter(|key| key.class == class).map(|key| key.index).collect();
            (keys.first().copied().unwrap_or(0), keys.last().map_or(0, |last| last + 1))
        };
        Ok(Loaded {
            orchestrator: disk.orchestrator.clone(),
            ncs: disk.ncs.values().cloned().collect(),
            ips: disk.ips.values().cloned().collect(),
            endpoints: disk.endpoints.values().cloned().collect(),
            tombstones: disk.tombstones.values().cloned().collect(),
            journal: JournalPosition {
                next_seq: disk.journal.values().map(|entry| entry.seq + 1).max().unwrap_or(0),
                effects: ring(JournalClass::Effect),
                refusals: ring(JournalClass::Refusal),
            },
            rebooted: false,
            legacy_extra: disk.extra.clone(),
        })
    }
}

/// A ledger without a writer: each command is its own batch, and after each one state, view and disk are compared.
pub(super) struct Bench {
    pub(super) state: State,
    pub(super) view: View,
    pub(super) disk: MemoryDisk,
    pub(super) now: Now,
}

impl Bench {
    pub(super) fn new(config: LedgerConfig) -> Self {
        let (state, _, _) = State::load(Loaded::default(), config);
        let now = Now {
            wall: Timestamp::from_unix_nanos(1_767_323_045_000_000_000),
            boot: BootTime::from_nanos(1 << 40),
        };
        let mut bench = Self { state, view: View::default(), disk: MemoryDisk::default(), now };
        bench.run(set_orchestrator(OrchestratorType::KubernetesCrd)).unwrap();
        bench
    }

    /// Standalone's settings, and one v4 NC with so many addresses from 10.240.0.17 on.
    pub(super) fn with_nc_a(count: u8) -> Self {
        let mut bench = Self::new(LedgerConfig::default());
        bench.upsert(nc(NC_A, "10.240.0.5/24", &v4s(17, count)), Some(3)).unwrap();
        bench
    }

    pub(super) fn pass(&mut self, duration: Duration) {
        self.now.boot = self.now.boot.plus(duration);
        let nanos = i64::try_from(duration.as_nanos()).unwrap();
        self.now.wall = Timestamp::from_unix_nanos(self.now.wall.unix_nanos() + nanos);
    }

    pub(super) fn run(&mut self, command: Command) -> Result<Reply, Rejection> {
        self.pass(Duration::from_millis(1));
        let mut batch = Batch::default();
        let result =
            transition::execute(&mut self.state, &mut batch, self.now, Actor::internal("test"), command);
        self.disk.commit(&batch.changes).unwrap();
        batch.changes.iter().for_each(|change| self.view.apply(change));
        self.check();
        result
    }

    pub(super) fn check(&mut self) {
        let mut found = invariant::violations(&self.state);
        found.extend(invariant::view_differs(&self.state, &self.view));
        found.extend(invariant::disk_differs(&self.state, self.disk.reload().unwrap()));
        assert_eq!(found, Vec::<String>::new());
    }

    /// A process restart: everything from disk.
    pub(super) fn restart(&mut self, rebooted: bool) {
        let mut loaded = self.disk.reload().unwrap();
        loaded.rebooted = rebooted;
        let (state, problems, repairs) = State::load(loaded, self.state.config.clone());
        assert_eq!((problems, repairs), (vec![], vec![]));
        self.state = state;
        self.view = View::of(self.state.as_changes(), self.state.journal);
        self.check();
        if rebooted {
            self.run(Command::Reboot).unwrap();
        }
    }

    pub(super) fn upsert(&mut self, spec: NcSpec, programmed: Option<u64>) -> Result<UpsertedNc, Rejection> {
        self.upsert_from(NcOrigin::ControlPlane, MissingAssigned::Refuse, spec, programmed)
    }

    pub(super) fn upsert_from(
        &mut self,
        origin: NcOrigin,
        missing: MissingAssigned,
        spec: NcSpec,
        programmed: Option<u64>,
    ) -> Result<UpsertedNc, Rejection> {
        match self.run(Command::UpsertNc(Box::new(UpsertNc { spec, origin, missing, programmed })))? {
            Reply::Nc(nc) => Ok(nc),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn request_with(&mut self, request: RequestIps) -> Result<Vec<String>, Rejection> {
        match self.run(Command::RequestIps(request))? {
            Reply::Granted(granted) => {
                Ok(granted.ips.iter().map(|(record, _)| record.address.to_string()).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn request(&mut self, container: &str) -> Result<Vec<String>, Rejection> {
        self.request_with(ask(container))
    }

    pub(super) fn desire(&mut self, container: &str, addresses: &[&str]) -> Result<Vec<String>, Rejection> {
        self.request_with(RequestIps { desired: addresses.iter().map(|a| ip(a)).collect(), ..ask(container) })
    }

    pub(super) fn release_with(&mut self, release: ReleaseIps) -> Result<Released, Rejection> {
        match self.run(Command::ReleaseIps(release))? {
            Reply::Released(released) => Ok(released),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn release(&mut self, container: &str) -> Released {
        self.release_with(give(container)).unwrap()
    }

    pub(super) fn states(&self) -> Vec<(String, IpStateKind)> {
        self.view.ips_from(None).map(|record| (record.address.to_string(), record.state.kind())).collect()
    }

    pub(super) fn count(&self, kind: IpStateKind) -> usize {
        self.states().iter().filter(|(_, state)| *state == kind).count()
    }

    pub(super) fn state_of(&self, address: &str) -> Option<IpStateKind> {
        self.state.ip(ip(address)).map(|record| record.state.kind())
    }

    pub(super) fn owner_of(&self, address: &str) -> Option<String> {
        Some(self.state.ip(ip(address))?.state.assignment()?.key.to_string())
    }

    pub(super) fn endpoint(&self, container: &str) -> Option<&Arc<Endpoint>> {
        self.state.endpoints.get(&id(container))
    }
}

pub(super) fn id<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    parse_ip(text).unwrap()
}

pub(super) fn set_orchestrator(kind: OrchestratorType) -> Command {
    Command::SetOrchestrator { kind, node_id: "node-1".into(), partition_key: String::new() }
}

/// `count` addresses 10.240.0.`first`…
pub(super) fn v4s(first: u8, count: u8) -> Vec<String> {
    (first..first + count).map(|last| format!("10.240.0.{last}")).collect()
}

/// `count` addresses fd00:10:240::`first`…
pub(super) fn v6s(first: u16, count: u16) -> Vec<String> {
    (first..first + count).map(|last| format!("fd00:10:240::{last:x}")).collect()
}

pub(super) fn nc(nc_id: &str, primary: &str, addresses: &[String]) -> NcSpec {
    let mut spec = NcSpec::new(id(nc_id), NcType::Docker, 3);
    spec.ip_configuration.subnet = Some(primary.parse().unwrap());
    for address in addresses {
        let config = SecondaryIpConfig { address: ip(address), nc_version: 3 };
        spec.secondary_ip_configs.insert(ip(address).into(), config);
    }
    spec
}

pub(super) fn dual_nc(nc_id: &str, v4: &[String], v6: &[String]) -> NcSpec {
    let mut spec = nc(nc_id, "10.240.0.5/24", &[v4, v6].concat());
    spec.ip_configuration.subnet_v6 = Some("fd00:10:240::5/64".parse().unwrap());
    spec
}

pub(super) fn pod(name: &str) -> PodIdentity {
    PodIdentity::new("prod", name).unwrap()
}

pub(super) fn ask(container: &str) -> RequestIps {
    RequestIps {
        requester: Requester::Client,
        container: Some(id(container)),
        interface_id: String::new(),
        ifname: Some(id("eth0")),
        pod: pod(&format!("pod-{container}")),
        desired: vec![],
        sandbox: None,
        witnessed: false,
        began: None,
        secondary_interfaces: false,
        single: false,
    }
}

pub(super) fn give(container: &str) -> ReleaseIps {
    ReleaseIps {
        container: Some(id(container)),
        interface_id: String::new(),
        ifname: None,
        pod: PodIdentity::default(),
        began: None,
        single: false,
    }
}

pub(super) fn code<T: std::fmt::Debug>(result: Result<T, Rejection>) -> u16 {
    result.unwrap_err().return_code().number()
}

pub(super) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}
