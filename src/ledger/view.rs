//! What readers see: committed records only, kept current by the changes that the disk has taken.
//!
//! Records are shared with the writer's state, so a view costs an index entry per record. It is behind a lock that is held
//! for memory operations only; no reader ever waits for the disk.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    ops::Bound,
    sync::Arc,
};

use super::{Change, JournalPosition};
use crate::model::{
    ContainerId, Endpoint, Family, IpRecord, IpStateKind, NcId, NcRecord, OnRelease, Orchestrator,
    PodIdentity, PodKey, Tombstone,
};

/// An NC with its address counts.
#[derive(Clone, Debug)]
pub struct NcView {
    /// The record.
    pub record: Arc<NcRecord>,
    /// Addresses by family (v4, v6) and state ([`IpStateKind::ALL`]).
    pub counts: [[u32; 4]; 2],
    /// Assigned addresses that the NC no longer lists, by family.
    pub withdrawn: [u32; 2],
}

/// The committed state, indexed for reading.
#[derive(Clone, Debug, Default)]
pub struct View {
    orchestrator: Orchestrator,
    ncs: BTreeMap<NcId, NcView>,
    ips: BTreeMap<IpAddr, Arc<IpRecord>>,
    keys: HashMap<PodKey, Vec<IpAddr>>,
    endpoints: BTreeMap<ContainerId, Arc<Endpoint>>,
    pods: HashMap<PodIdentity, BTreeSet<ContainerId>>,
    contexts: HashMap<PodIdentity, Vec<NcId>>,
    tombstones: HashMap<ContainerId, Tombstone>,
    totals: [u32; 4],
    journal: JournalPosition,
    seq: u64,
    legacy_extra: Arc<str>,
}

impl View {
    /// A view of records given as changes.
    pub(super) fn of(records: impl Iterator<Item = Change>, journal: JournalPosition) -> Self {
        let mut view = Self { journal, seq: journal.next_seq, ..Self::default() };
        records.for_each(|change| view.apply(&change));
        view
    }

    /// Applies one committed change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::SetOrchestrator(orchestrator) => self.orchestrator = orchestrator.clone(),
            Change::PutNc(record) => self.put_nc(record),
            Change::DeleteNc(id) => {
                if let Some(nc) = self.ncs.remove(id) {
                    self.drop_context(&nc.record);
                }
            }
            Change::PutIp(record) => {
                let before = self.ips.insert(record.address, record.clone());
                self.replace_ip(before.as_deref(), Some(record));
            }
            Change::DeleteIp(address) => {
                let before = self.ips.remove(address);
                self.replace_ip(before.as_deref(), None);
            }
            Change::PutEndpoint(endpoint) => {
                let before = self.endpoints.insert(endpoint.container.clone(), endpoint.clone());
                if let Some(before) = before
                    && before.pod != endpoint.pod
                {
                    self.drop_pod(&before);
                }
                self.pods.entry(endpoint.pod.clone()).or_default().insert(endpoint.container.clone());
            }
            Change::DeleteEndpoint(container) => {
                if let Some(before) = self.endpoints.remove(container) {
                    self.drop_pod(&before);
                }
            }
            Change::PutTombstone(tombstone) => {
                self.tombstones.insert(tombstone.container.clone(), tombstone.clone());
            }
            Change::DeleteTombstone(container) => {
                self.tombstones.remove(container);
            }
            Change::AppendJournal(_, entry) => self.seq = entry.seq + 1,
            Change::DropJournal(_) => {}
            Change::SetLegacyExtra(extra) => self.legacy_extra = extra.clone(),
        }
    }

    pub(super) fn set_journal(&mut self, journal: JournalPosition) {
        self.journal = journal;
    }

    fn put_nc(&mut self, record: &Arc<NcRecord>) {
        let before = self.ncs.get(record.id()).map(|nc| nc.record.clone());
        if let Some(before) = before
            && before.spec.orchestrator_context != record.spec.orchestrator_context
        {
            self.drop_context(&before);
        }
        if let Some(pod) = &record.spec.orchestrator_context {
            let ids = self.contexts.entry(pod.clone()).or_default();
            if !ids.contains(record.id()) {
                ids.push(record.id().clone());
            }
        }
        if let Some(nc) = self.ncs.get_mut(record.id()) {
            nc.record = record.clone();
        } else {
            let nc = NcView { record: record.clone(), counts: [[0; 4]; 2], withdrawn: [0; 2] };
            self.ncs.insert(record.id().clone(), nc);
        }
    }

    fn replace_ip(&mut self, before: Option<&IpRecord>, after: Option<&Arc<IpRecord>>) {
        if let Some(record) = before {
            self.count(record, false);
        }
        if let Some(record) = after {
            self.count(record, true);
        }
        let key =
            |record: Option<&IpRecord>| record.and_then(|r| r.state.assignment()).map(|a| a.key.clone());
        let (old, new) = (key(before), key(after.map(Arc::as_ref)));
        if old == new {
            return;
        }
        let Some(address) = after.map(|record| record.address).or(before.map(|record| record.address)) else {
            return;
        };
        if let Some(key) = old
            && let Some(addresses) = self.keys.get_mut(&key)
        {
            addresses.retain(|held| *held != address);
            if addresses.is_empty() {
                self.keys.remove(&key);
            }
        }
        if let Some(key) = new {
            self.keys.entry(key).or_default().push(address);
        }
    }

    fn count(&mut self, record: &IpRecord, add: bool) {
        let (family, kind) = (Family::of(record.address).index(), record.state.kind());
        let withdrawn = u32::from(kind == IpStateKind::Assigned && record.on_release == OnRelease::Remove);
        let total = &mut self.totals[kind.index()];
        *total = if add { *total + 1 } else { *total - 1 };
        let Some(nc) = self.ncs.get_mut(&record.nc) else {
            return;
        };
        let (count, gone) = (&mut nc.counts[family][kind.index()], &mut nc.withdrawn[family]);
        if add {
            *count += 1;
            *gone += withdrawn;
        } else {
            *count -= 1;
            *gone -= withdrawn;
        }
    }

    fn drop_pod(&mut self, endpoint: &Endpoint) {
        if let Some(containers) = self.pods.get_mut(&endpoint.pod) {
            containers.remove(&endpoint.container);
            if containers.is_empty() {
                self.pods.remove(&endpoint.pod);
            }
        }
    }

    fn drop_context(&mut self, nc: &NcRecord) {
        let Some(pod) = &nc.spec.orchestrator_context else {
            return;
        };
        if let Some(ids) = self.contexts.get_mut(pod) {
            ids.retain(|id| id != nc.id());
            if ids.is_empty() {
                self.contexts.remove(pod);
            }
        }
    }

    /// Orchestrator and node id.
    pub fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    /// All NCs, those that are being deleted included, in the order of their ids.
    pub fn ncs(&self) -> impl Iterator<Item = &NcView> {
        self.ncs.values()
    }

    /// One NC.
    pub fn nc(&self, id: &NcId) -> Option<&NcView> {
        self.ncs.get(id)
    }

    /// The NCs whose orchestrator context names the pod, in the order in which they came.
    pub fn ncs_of_pod(&self, pod: &PodIdentity) -> impl Iterator<Item = &NcView> {
        self.contexts.get(pod).into_iter().flatten().filter_map(|id| self.ncs.get(id))
    }

    /// One address.
    pub fn ip(&self, address: IpAddr) -> Option<&Arc<IpRecord>> {
        self.ips.get(&address)
    }

    /// All addresses after the given one, v4 first, ascending.
    pub fn ips_from(&self, after: Option<IpAddr>) -> impl Iterator<Item = &Arc<IpRecord>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.ips.range((from, Bound::Unbounded)).map(|(_, record)| record)
    }

    /// The addresses of a pod key, v4 first.
    pub fn ips_of_key(&self, key: &PodKey) -> Vec<Arc<IpRecord>> {
        let addresses = self.keys.get(key).map_or(&[][..], Vec::as_slice);
        let mut records: Vec<_> =
            addresses.iter().filter_map(|address| self.ips.get(address)).cloned().collect();
        records.sort_by_key(|record| Family::of(record.address));
        records
    }

    /// How many addresses there are in each state, in the order of [`IpStateKind::ALL`].
    pub fn totals(&self) -> [u32; 4] {
        self.totals
    }

    /// One endpoint record.
    pub fn endpoint(&self, container: &ContainerId) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(container)
    }

    /// All endpoint records after the given container, ascending.
    pub fn endpoints_from(&self, after: Option<&ContainerId>) -> impl Iterator<Item = &Arc<Endpoint>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.endpoints.range::<ContainerId, _>((from, Bound::Unbounded)).map(|(_, endpoint)| endpoint)
    }

    /// How many endpoint records there are.
    pub fn endpoint_count(&self) -> usize {
        self.endpoints.len()
    }

    /// The containers whose records name the pod.
    pub fn containers_of_pod(&self, pod: &PodIdentity) -> impl Iterator<Item = &ContainerId> {
        self.pods.get(pod).into_iter().flatten()
    }

    /// The tombstone of a container.
    pub fn tombstone(&self, container: &ContainerId) -> Option<&Tombstone> {
        self.tombstones.get(container)
    }

    /// How many deleted containers are remembered.
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// Where the journal stands.
    pub fn journal_position(&self) -> JournalPosition {
        self.journal
    }

    /// One more than the last committed entry's `seq`: a number that grows with every command.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// What the legacy state file held beside what is modelled, one JSON object; empty for none.
    pub fn legacy_extra(&self) -> &Arc<str> {
        &self.legacy_extra
    }
}
