//! The state and its indices, the elementary changes, and their undo.
//!
//! Two layers. The `raw_*` functions keep the indices consistent and remember nothing. [`Tx`] is what transitions use: it
//! also records how to undo each change, the record to persist, and the note for the journal. Every operation is O(1) in
//! the number of addresses and endpoints.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    Change, Committed, Effect, JournalClass, JournalKey, JournalPosition, LedgerConfig, Loaded, Rejection,
    free_list::{FreeList, Links, Place, Slot},
};
use crate::model::{
    Actor, BootTime, ChangeNote, ContainerId, Endpoint, Family, IpConfigId, IpRecord, IpState, IpStateKind,
    JournalEntry, NcId, NcLifecycle, NcRecord, Now, OnRelease, Operation, Orchestrator, Outcome, PodIdentity,
    PodKey, Tombstone,
};

/// At most this many notes and addresses are kept in one journal entry.
const NOTES: usize = 64;

/// The free addresses of one NC and family. Both lists are in order of waiting; what was never used comes before what was,
/// so an address that a pod just left is the last to be given out (spec/ipam.md §15 L8).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreeAddresses {
    pub(super) fresh: FreeList,
    pub(super) used: FreeList,
}

impl FreeAddresses {
    fn list_of(&mut self, record: &IpRecord) -> &mut FreeList {
        if record.freed.is_some() { &mut self.used } else { &mut self.fresh }
    }
}

/// An NC with what is derived from its address records.
#[derive(Clone, Debug)]
pub(super) struct NcEntry {
    pub(super) record: Arc<NcRecord>,
    pub(super) slots: HashSet<Slot>,
    /// By family and state.
    pub(super) counts: [[u32; 4]; 2],
    /// Assigned addresses that the NC no longer lists, by family.
    pub(super) withdrawn: [u32; 2],
    pub(super) free: [FreeAddresses; 2],
}

impl NcEntry {
    fn new(record: Arc<NcRecord>) -> Self {
        Self {
            record,
            slots: HashSet::new(),
            counts: [[0; 4]; 2],
            withdrawn: [0; 2],
            free: Default::default(),
        }
    }

    /// How many addresses of the family the NC lists, in any state.
    pub(super) fn listed(&self, family: Family) -> u32 {
        self.counts[family.index()].iter().sum::<u32>() - self.withdrawn[family.index()]
    }
}

fn is_withdrawn(record: &IpRecord) -> bool {
    record.state.kind() == IpStateKind::Assigned && record.on_release == OnRelease::Remove
}

/// Everything the ledger knows. Owned by the writer; readers have a [`View`](super::View).
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: LedgerConfig,
    pub(super) orchestrator: Orchestrator,
    pub(super) ncs: BTreeMap<NcId, NcEntry>,
    pub(super) slots: Vec<Option<Arc<IpRecord>>>,
    vacant: Vec<Slot>,
    pub(super) links: Links,
    pub(super) by_id: HashMap<IpConfigId, Slot>,
    pub(super) by_address: HashMap<IpAddr, Slot>,
    pub(super) pods: HashMap<PodKey, Vec<Slot>>,
    pub(super) endpoints: HashMap<ContainerId, Arc<Endpoint>>,
    pub(super) tombstones: HashMap<ContainerId, Tombstone>,
    /// Tombstones in the order in which they were recorded; an entry whose tombstone was renewed since is skipped.
    ages: VecDeque<(BootTime, ContainerId)>,
    pub(super) journal: JournalPosition,
    pub(super) legacy_extra: Arc<str>,
}

/// How to take one elementary change back.
#[derive(Debug)]
enum Undo {
    Slot { slot: Slot, before: Option<Arc<IpRecord>> },
    Linked(Slot),
    Unlinked(Slot, Place),
    Pod { key: PodKey, before: Option<Vec<Slot>> },
    Nc { id: NcId, before: Option<Arc<NcRecord>> },
    Endpoint { container: ContainerId, before: Option<Arc<Endpoint>> },
    Tombstone { container: ContainerId, before: Option<Tombstone> },
    AgePushed,
    AgePopped((BootTime, ContainerId)),
    Orchestrator(Orchestrator),
    LegacyExtra(Arc<str>),
    Journal(JournalPosition),
}

/// The commands of one durable transaction: what to persist, what to tell, and how to take it all back.
#[derive(Debug, Default)]
pub(super) struct Batch {
    undo: Vec<Undo>,
    pub(super) changes: Vec<Change>,
    pub(super) committed: Vec<Arc<Committed>>,
    /// Of the command that is being worked on.
    effects: Vec<Effect>,
}

impl Batch {
    /// A batch that begins with changes that are not a command's and are never undone.
    pub(super) fn of(changes: Vec<Change>) -> Self {
        Self { changes, ..Self::default() }
    }
}

impl State {
    /// Rebuilds the state from what was on disk. Records that contradict each other (an address of an NC that is not
    /// there, an id used twice) are left out and reported; the caller removes them from the disk.
    pub(super) fn load(loaded: Loaded, config: LedgerConfig) -> (Self, Vec<String>, Vec<Change>) {
        let (mut problems, mut repairs) = (Vec::new(), Vec::new());
        let mut state = Self {
            config,
            orchestrator: loaded.orchestrator,
            ncs: BTreeMap::new(),
            slots: Vec::with_capacity(loaded.ips.len()),
            vacant: Vec::new(),
            links: Links::default(),
            by_id: HashMap::with_capacity(loaded.ips.len()),
            by_address: HashMap::with_capacity(loaded.ips.len()),
            pods: HashMap::new(),
            endpoints: HashMap::with_capacity(loaded.endpoints.len()),
            tombstones: HashMap::with_capacity(loaded.tombstones.len()),
            ages: VecDeque::new(),
            journal: loaded.journal,
            legacy_extra: loaded.legacy_extra,
        };
        for nc in loaded.ncs {
            state.raw_set_nc(&nc.id().clone(), Some(Arc::new(nc)));
        }
        let mut ips = loaded.ips;
        ips.sort_unstable_by_key(|ip| (ip.freed, ip.address));
        for mut ip in ips {
            let Some(nc) = state.ncs.get(&ip.nc) else {
                problems.push(format!(
                    "{} belongs to network container {}, which does not exist",
                    ip.address, ip.nc
                ));
                repairs.push(Change::DeleteIp(ip.address));
                continue;
            };
            if let Some(other) = state.by_id.get(&ip.id) {
                let other =
                    state.slots[*other as usize].as_ref().map(|r| r.address.to_string()).unwrap_or_default();
                problems.push(format!("{} has the same id {} as {other}", ip.address, ip.id));
                repairs.push(Change::DeleteIp(ip.address));
                continue;
            }
            // Thousands of records name few NCs: they share one text.
            ip.nc = nc.record.id().clone();
            let slot = state.vacant_slot();
            let key = ip.state.assignment().map(|a| a.key.clone());
            let available = ip.state == IpState::Available;
            state.raw_set_slot(slot, Some(Arc::new(ip)));
            if available {
                state.raw_link(slot);
            }
            if let Some(key) = key {
                state.pods.entry(key).or_default().push(slot);
            }
        }
        let mut pods = std::mem::take(&mut state.pods);
        for slots in pods.values_mut() {
            slots.sort_unstable_by_key(|slot| state.slots[*slot as usize].as_ref().map(|r| r.address));
        }
        state.pods = pods;
        for endpoint in loaded.endpoints {
            state.endpoints.insert(endpoint.container.clone(), Arc::new(endpoint));
        }
        let mut tombstones = loaded.tombstones;
        tombstones.sort_unstable_by_key(|t| t.recorded);
        for tombstone in tombstones {
            state.ages.push_back((tombstone.recorded, tombstone.container.clone()));
            state.tombstones.insert(tombstone.container.clone(), tombstone);
        }
        (state, problems, repairs)
    }

    /// All records, as they would be loaded.
    pub(super) fn records(&self) -> Loaded {
        Loaded {
            orchestrator: self.orchestrator.clone(),
            ncs: self.ncs.values().map(|entry| (*entry.record).clone()).collect(),
            ips: self.slots.iter().flatten().map(|record| (**record).clone()).collect(),
            endpoints: self.endpoints.values().map(|endpoint| (**endpoint).clone()).collect(),
            tombstones: self.tombstones.values().cloned().collect(),
            journal: self.journal,
            rebooted: false,
            legacy_extra: self.legacy_extra.clone(),
        }
    }

    /// All records, shared, as the changes that would make them; NCs before their addresses.
    pub(super) fn as_changes(&self) -> impl Iterator<Item = Change> {
        let singles = [
            Change::SetOrchestrator(self.orchestrator.clone()),
            Change::SetLegacyExtra(self.legacy_extra.clone()),
        ];
        let ncs = self.ncs.values().map(|entry| Change::PutNc(entry.record.clone()));
        let ips = self.slots.iter().flatten().map(|record| Change::PutIp(record.clone()));
        let endpoints = self.endpoints.values().map(|endpoint| Change::PutEndpoint(endpoint.clone()));
        let tombstones = self.tombstones.values().map(|tombstone| Change::PutTombstone(tombstone.clone()));
        singles.into_iter().chain(ncs).chain(ips).chain(endpoints).chain(tombstones)
    }

    /// The record in a slot that an index names.
    pub(super) fn record(&self, slot: Slot) -> Option<&Arc<IpRecord>> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// The record of an address.
    pub(super) fn ip(&self, address: IpAddr) -> Option<&Arc<IpRecord>> {
        self.by_address.get(&address).and_then(|slot| self.record(*slot))
    }

    /// The key of a request, by the scheme in force.
    pub(super) fn key(
        &self,
        container: Option<&ContainerId>,
        interface_id: &str,
    ) -> Result<PodKey, Rejection> {
        let scheme = self.config.scheme;
        PodKey::of(scheme, container, interface_id).ok_or(Rejection::NoPodKey { scheme })
    }

    /// The addresses of a key, v4 first.
    pub(super) fn held_by(&self, key: &PodKey) -> Vec<Arc<IpRecord>> {
        let slots = self.pods.get(key).map_or(&[][..], Vec::as_slice);
        let mut held: Vec<_> = slots.iter().filter_map(|slot| self.record(*slot)).cloned().collect();
        held.sort_by_key(|record| Family::of(record.address));
        held
    }

    /// NCs that serve new requests.
    pub(super) fn active(&self) -> impl Iterator<Item = &NcEntry> {
        self.ncs.values().filter(|entry| entry.record.lifecycle == NcLifecycle::Active)
    }

    fn vacant_slot(&mut self) -> Slot {
        self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // 2^32 addresses do not fit into a node's memory.
            Slot::try_from(self.slots.len() - 1).unwrap_or(Slot::MAX)
        })
    }

    fn raw_set_slot(&mut self, slot: Slot, after: Option<Arc<IpRecord>>) {
        let before = self.slots[slot as usize].take();
        if let Some(record) = &before {
            self.raw_count(record, slot, false);
        }
        match (&before, &after) {
            (Some(b), Some(a)) if b.id == a.id && b.address == a.address => {}
            _ => {
                if let Some(record) = &before {
                    self.by_id.remove(&record.id);
                    self.by_address.remove(&record.address);
                }
                if let Some(record) = &after {
                    self.by_id.insert(record.id.clone(), slot);
                    self.by_address.insert(record.address, slot);
                }
            }
        }
        if let Some(record) = &after {
            self.raw_count(record, slot, true);
        } else if before.is_some() {
            self.vacant.push(slot);
        }
        self.slots[slot as usize] = after;
    }

    fn raw_count(&mut self, record: &IpRecord, slot: Slot, add: bool) {
        let Some(entry) = self.ncs.get_mut(&record.nc) else {
            return;
        };
        let family = Family::of(record.address).index();
        let (count, withdrawn) =
            (&mut entry.counts[family][record.state.kind().index()], &mut entry.withdrawn[family]);
        if add {
            *count += 1;
            *withdrawn += u32::from(is_withdrawn(record));
            entry.slots.insert(slot);
        } else {
            *count -= 1;
            *withdrawn -= u32::from(is_withdrawn(record));
            entry.slots.remove(&slot);
        }
    }

    fn with_list<T>(&mut self, slot: Slot, act: impl FnOnce(&mut Links, &mut FreeList) -> T) -> Option<T> {
        let record = self.slots[slot as usize].as_ref()?;
        let entry = self.ncs.get_mut(&record.nc)?;
        let list = entry.free[Family::of(record.address).index()].list_of(record);
        Some(act(&mut self.links, list))
    }

    fn raw_link(&mut self, slot: Slot) {
        self.with_list(slot, |links, list| links.push_back(list, slot));
    }

    fn raw_unlink(&mut self, slot: Slot) -> Option<Place> {
        self.with_list(slot, |links, list| links.unlink(list, slot))
    }

    fn raw_relink(&mut self, slot: Slot, place: Place) {
        self.with_list(slot, |links, list| links.relink(list, slot, place));
    }

    fn raw_set_nc(&mut self, id: &NcId, after: Option<Arc<NcRecord>>) {
        match after {
            None => {
                self.ncs.remove(id);
            }
            Some(record) => match self.ncs.get_mut(id) {
                Some(entry) => entry.record = record,
                None => {
                    self.ncs.insert(id.clone(), NcEntry::new(record));
                }
            },
        }
    }

    /// Takes back everything beyond `mark`, last change first.
    fn undo_to(&mut self, batch: &mut Batch, mark: usize) {
        while batch.undo.len() > mark {
            let Some(undo) = batch.undo.pop() else { return };
            match undo {
                Undo::Slot { slot, before: None } => self.raw_set_slot(slot, None),
                Undo::Slot { slot, before: Some(record) } => {
                    // A deletion had made the slot vacant.
                    if self.slots[slot as usize].is_none()
                        && let Some(at) = self.vacant.iter().rposition(|vacant| *vacant == slot)
                    {
                        self.vacant.swap_remove(at);
                    }
                    self.raw_set_slot(slot, Some(record));
                }
                Undo::Linked(slot) => drop(self.raw_unlink(slot)),
                Undo::Unlinked(slot, place) => self.raw_relink(slot, place),
                Undo::Pod { key, before } => restore(&mut self.pods, key, before),
                Undo::Nc { id, before } => self.raw_set_nc(&id, before),
                Undo::Endpoint { container, before } => restore(&mut self.endpoints, container, before),
                Undo::Tombstone { container, before } => restore(&mut self.tombstones, container, before),
                Undo::AgePushed => {
                    self.ages.pop_back();
                }
                Undo::AgePopped(age) => self.ages.push_front(age),
                Undo::Orchestrator(before) => self.orchestrator = before,
                Undo::LegacyExtra(before) => self.legacy_extra = before,
                Undo::Journal(before) => self.journal = before,
            }
        }
    }

    /// Takes a whole batch back: the disk did not take it.
    pub(super) fn undo(&mut self, mut batch: Batch) {
        self.undo_to(&mut batch, 0);
    }
}

fn restore<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, key: K, before: Option<V>) {
    match before {
        Some(value) => {
            map.insert(key, value);
        }
        None => {
            map.remove(&key);
        }
    }
}

/// Who and what a journal entry is about.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) actor: Actor,
    pub(super) operation: Operation,
    pub(super) container: Option<ContainerId>,
    pub(super) pod: Option<PodIdentity>,
    pub(super) nc: Option<NcId>,
    pub(super) addresses: Vec<IpAddr>,
}

/// One command's changes: applied to the state at once, undone whole if the command is refused.
#[derive(Debug)]
pub(super) struct Tx<'a> {
    pub(super) state: &'a mut State,
    batch: &'a mut Batch,
    pub(super) now: Now,
    undo_mark: usize,
    change_mark: usize,
    notes: Vec<ChangeNote>,
    /// Address changes by (from, to), beyond what is noted one by one.
    tally: BTreeMap<(Option<IpStateKind>, Option<IpStateKind>), u32>,
    touched: Vec<IpAddr>,
    /// Why, for the journal, where the operation does not say it.
    pub(super) why: String,
}

impl<'a> Tx<'a> {
    pub(super) fn new(state: &'a mut State, batch: &'a mut Batch, now: Now) -> Self {
        let (undo_mark, change_mark) = (batch.undo.len(), batch.changes.len());
        Self {
            state,
            batch,
            now,
            undo_mark,
            change_mark,
            notes: Vec::new(),
            tally: BTreeMap::new(),
            touched: Vec::new(),
            why: String::new(),
        }
    }

    /// Names an address in the journal entry.
    pub(super) fn touch(&mut self, address: IpAddr) {
        if self.touched.len() < NOTES && !self.touched.contains(&address) {
            self.touched.push(address);
        }
    }

    fn note_ip(&mut self, address: IpAddr, before: Option<&IpRecord>, to: Option<IpStateKind>) {
        let from = before.map(|record| record.state.kind());
        if from == to {
            return;
        }
        *self.tally.entry((from, to)).or_default() += 1;
        self.touch(address);
        if self.notes.len() < NOTES {
            let since = before.map_or(self.now.wall, |record| record.since);
            let nanos = self.now.wall.unix_nanos().saturating_sub(since.unix_nanos());
            let after_ms = u64::try_from(nanos / 1_000_000).unwrap_or(0);
            self.notes.push(ChangeNote::Ip { address, from, to, after_ms });
        }
    }

    /// Notes an effect that is not an address's state.
    pub(super) fn note(&mut self, note: ChangeNote) {
        if self.notes.len() < NOTES {
            self.notes.push(note);
        }
    }

    /// Puts an address record, new or in place of the one with the same address.
    pub(super) fn put_ip(&mut self, record: IpRecord) -> Arc<IpRecord> {
        let record = Arc::new(record);
        let (slot, before) = match self.state.by_address.get(&record.address) {
            Some(slot) => (*slot, self.state.record(*slot).cloned()),
            None => (self.state.vacant_slot(), None),
        };
        self.note_ip(record.address, before.as_deref(), Some(record.state.kind()));
        self.leave(slot, before.as_deref(), Some(&record));
        self.batch.effects.push(Effect::Ip { before: before.clone(), after: Some(record.clone()) });
        self.batch.undo.push(Undo::Slot { slot, before });
        self.state.raw_set_slot(slot, Some(record.clone()));
        if record.state == IpState::Available {
            self.state.raw_link(slot);
            self.batch.undo.push(Undo::Linked(slot));
        }
        self.batch.changes.push(Change::PutIp(record.clone()));
        record
    }

    /// Removes an address record.
    pub(super) fn delete_ip(&mut self, address: IpAddr) {
        let Some(slot) = self.state.by_address.get(&address).copied() else {
            return;
        };
        let before = self.state.record(slot).cloned();
        self.note_ip(address, before.as_deref(), None);
        self.leave(slot, before.as_deref(), None);
        self.batch.effects.push(Effect::Ip { before: before.clone(), after: None });
        self.batch.undo.push(Undo::Slot { slot, before });
        self.state.raw_set_slot(slot, None);
        self.batch.changes.push(Change::DeleteIp(address));
    }

    /// Takes a slot out of its free list and pod, and puts it into its new pod, where these change.
    fn leave(&mut self, slot: Slot, before: Option<&IpRecord>, after: Option<&IpRecord>) {
        if before.is_some_and(|record| record.state == IpState::Available)
            && let Some(place) = self.state.raw_unlink(slot)
        {
            self.batch.undo.push(Undo::Unlinked(slot, place));
        }
        let key =
            |record: Option<&IpRecord>| record.and_then(|r| r.state.assignment()).map(|a| a.key.clone());
        let (old, new) = (key(before), key(after));
        if old == new {
            return;
        }
        if let Some(key) = old {
            self.change_pod(key, |slots| slots.retain(|held| *held != slot));
        }
        if let Some(key) = new {
            self.change_pod(key, |slots| slots.push(slot));
        }
    }

    fn change_pod(&mut self, key: PodKey, change: impl FnOnce(&mut Vec<Slot>)) {
        let before = self.state.pods.get(&key).cloned();
        match self.state.pods.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                let mut slots = Vec::with_capacity(2);
                change(&mut slots);
                vacant.insert(slots);
            }
            Entry::Occupied(mut occupied) => {
                change(occupied.get_mut());
                if occupied.get().is_empty() {
                    occupied.remove();
                }
            }
        }
        self.batch.undo.push(Undo::Pod { key, before });
    }

    /// Puts an NC record.
    pub(super) fn put_nc(&mut self, record: NcRecord) -> Arc<NcRecord> {
        let record = Arc::new(record);
        let before = self.state.ncs.get(record.id()).map(|entry| entry.record.clone());
        self.batch.undo.push(Undo::Nc { id: record.id().clone(), before });
        self.state.raw_set_nc(record.id(), Some(record.clone()));
        self.batch.changes.push(Change::PutNc(record.clone()));
        record
    }

    /// Removes an NC record; its addresses must be gone already.
    pub(super) fn delete_nc(&mut self, id: &NcId) {
        let Some(entry) = self.state.ncs.get(id) else {
            return;
        };
        debug_assert!(entry.slots.is_empty(), "an NC goes after its addresses");
        self.batch.undo.push(Undo::Nc { id: id.clone(), before: Some(entry.record.clone()) });
        self.state.raw_set_nc(id, None);
        self.batch.changes.push(Change::DeleteNc(id.clone()));
        self.note(ChangeNote::Nc { id: id.clone(), what: "deleted".into() });
    }

    /// Puts an endpoint record.
    pub(super) fn put_endpoint(&mut self, endpoint: Endpoint) -> Arc<Endpoint> {
        let endpoint = Arc::new(endpoint);
        let container = endpoint.container.clone();
        let before = self.state.endpoints.insert(container.clone(), endpoint.clone());
        let what = if before.is_some() { "updated" } else { "created" };
        self.note(ChangeNote::Endpoint { container: container.clone(), what: what.into() });
        self.batch.effects.push(Effect::Endpoint { before: before.clone(), after: Some(endpoint.clone()) });
        self.batch.undo.push(Undo::Endpoint { container, before });
        self.batch.changes.push(Change::PutEndpoint(endpoint.clone()));
        endpoint
    }

    /// Removes an endpoint record; `false` when there is none.
    pub(super) fn delete_endpoint(&mut self, container: &ContainerId) -> bool {
        let Some(before) = self.state.endpoints.remove(container) else {
            return false;
        };
        self.batch.effects.push(Effect::Endpoint { before: Some(before.clone()), after: None });
        self.batch.undo.push(Undo::Endpoint { container: container.clone(), before: Some(before) });
        self.batch.changes.push(Change::DeleteEndpoint(container.clone()));
        self.note(ChangeNote::Endpoint { container: container.clone(), what: "deleted".into() });
        true
    }

    /// Remembers a DEL; of several for one container the latest counts.
    pub(super) fn bury(&mut self, container: &ContainerId, began: Option<BootTime>) {
        let before = self.state.tombstones.get(container).cloned();
        let deleted =
            began.unwrap_or(self.now.boot).max(before.as_ref().map_or(BootTime::default(), |t| t.deleted));
        let tombstone =
            Tombstone { container: container.clone(), deleted, recorded: self.now.boot, at: self.now.wall };
        self.state.tombstones.insert(container.clone(), tombstone.clone());
        self.state.ages.push_back((tombstone.recorded, container.clone()));
        self.batch.undo.push(Undo::Tombstone { container: container.clone(), before });
        self.batch.undo.push(Undo::AgePushed);
        self.batch.changes.push(Change::PutTombstone(tombstone));
    }

    /// Forgets tombstones that are past their time: a few with each command, so that none ever waits for many.
    pub(super) fn expire_tombstones(&mut self, ttl: Duration) {
        for _ in 0..4 {
            let due =
                self.state.ages.front().is_some_and(|(recorded, _)| self.now.boot.since(*recorded) >= ttl);
            if !due {
                return;
            }
            let Some((recorded, container)) = self.state.ages.pop_front() else {
                return;
            };
            if self.state.tombstones.get(&container).is_some_and(|t| t.recorded == recorded) {
                let before = self.state.tombstones.remove(&container);
                self.batch.undo.push(Undo::Tombstone { container: container.clone(), before });
                self.batch.changes.push(Change::DeleteTombstone(container.clone()));
            }
            self.batch.undo.push(Undo::AgePopped((recorded, container)));
        }
    }

    /// Drops all tombstones at once: their times mean nothing after a reboot.
    pub(super) fn drop_tombstones(&mut self) {
        while let Some((recorded, container)) = self.state.ages.pop_front() {
            if let Some(before) = self.state.tombstones.remove(&container) {
                self.batch.undo.push(Undo::Tombstone { container: container.clone(), before: Some(before) });
                self.batch.changes.push(Change::DeleteTombstone(container.clone()));
            }
            self.batch.undo.push(Undo::AgePopped((recorded, container)));
        }
    }

    /// Replaces the orchestrator record.
    pub(super) fn set_orchestrator(&mut self, orchestrator: Orchestrator) {
        let before = std::mem::replace(&mut self.state.orchestrator, orchestrator.clone());
        self.batch.undo.push(Undo::Orchestrator(before));
        self.batch.changes.push(Change::SetOrchestrator(orchestrator));
    }

    /// Replaces what is kept of the legacy file beside the model.
    pub(super) fn set_legacy_extra(&mut self, extra: Arc<str>) {
        let before = std::mem::replace(&mut self.state.legacy_extra, extra.clone());
        self.batch.undo.push(Undo::LegacyExtra(before));
        self.batch.changes.push(Change::SetLegacyExtra(extra));
    }

    /// Whether the command changed any record so far.
    pub(super) fn changed(&self) -> bool {
        self.batch.changes.len() > self.change_mark
    }

    /// Undoes the command and journals the refusal.
    pub(super) fn refuse(mut self, subject: Subject, rejection: &Rejection) {
        self.state.undo_to(self.batch, self.undo_mark);
        self.batch.changes.truncate(self.change_mark);
        self.batch.effects.clear();
        self.notes.clear();
        self.tally.clear();
        self.touched.clear();
        let outcome =
            Outcome::Refused { reason: rejection.reason().to_owned(), message: rejection.to_string() };
        self.journal(subject, outcome);
    }

    /// Journals the command's effect.
    pub(super) fn accept(self, subject: Subject) {
        let outcome = if self.changed() { Outcome::Done } else { Outcome::Unchanged };
        self.journal(subject, outcome);
    }

    fn journal(mut self, subject: Subject, outcome: Outcome) {
        let before = self.state.journal;
        let class = match outcome {
            Outcome::Refused { .. } => JournalClass::Refusal,
            Outcome::Done | Outcome::Unchanged => JournalClass::Effect,
        };
        let tallied: usize = self.tally.values().map(|count| *count as usize).sum();
        let changes = if tallied > NOTES {
            let sums = self.tally.iter().map(|((from, to), count)| ChangeNote::Ips {
                count: *count,
                from: *from,
                to: *to,
            });
            let others = self.notes.iter().filter(|note| !matches!(note, ChangeNote::Ip { .. })).cloned();
            sums.chain(others).collect()
        } else {
            std::mem::take(&mut self.notes)
        };
        let mut addresses = subject.addresses;
        addresses.truncate(NOTES);
        for address in std::mem::take(&mut self.touched) {
            if addresses.len() < NOTES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        let position = &mut self.state.journal;
        let (ring, limit) = match class {
            JournalClass::Effect => (&mut position.effects, self.state.config.journal_effects),
            JournalClass::Refusal => (&mut position.refusals, self.state.config.journal_refusals),
        };
        let entry = Arc::new(JournalEntry {
            seq: position.next_seq,
            at: self.now.wall,
            actor: subject.actor,
            operation: subject.operation,
            container: subject.container,
            pod: subject.pod,
            nc: subject.nc,
            addresses,
            outcome,
            changes,
            why: std::mem::take(&mut self.why),
        });
        position.next_seq += 1;
        let key = JournalKey { class, index: ring.1 };
        ring.1 += 1;
        // Two at most: a ring that was made smaller shrinks as new entries come.
        for _ in 0..2 {
            if ring.1 - ring.0 > limit.max(1) {
                self.batch.changes.push(Change::DropJournal(JournalKey { class, index: ring.0 }));
                ring.0 += 1;
            }
        }
        self.batch.undo.push(Undo::Journal(before));
        self.batch.changes.push(Change::AppendJournal(key, entry.clone()));
        let effects = std::mem::take(&mut self.batch.effects);
        self.batch.committed.push(Arc::new(Committed { entry, effects }));
    }
}
