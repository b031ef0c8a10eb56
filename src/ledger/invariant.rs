//! What must hold between commands (design §4). Tests, `cnsctl doctor` and the start call this.

use std::collections::{HashMap, HashSet};

use super::{Loaded, View, free_list::Slot, state::State};
use crate::model::{Family, IpState, IpStateKind, NcLifecycle, OnRelease, PodKey};

/// Every violation, in words; empty when all is well.
pub(super) fn violations(state: &State) -> Vec<String> {
    let mut found = Vec::new();
    check_indices(state, &mut found);
    check_owners(state, &mut found);
    check_ncs(state, &mut found);
    check_endpoints(state, &mut found);
    found
}

fn check_indices(state: &State, found: &mut Vec<String>) {
    let mut records = 0;
    for (slot, record) in (0..).zip(&state.slots) {
        let Some(record) = record else { continue };
        records += 1;
        if state.by_address.get(&record.address) != Some(&slot) {
            found.push(format!("{}: the index by address does not lead to its record", record.address));
        }
        if state.by_id.get(&record.id) != Some(&slot) {
            found.push(format!("{}: the index by id does not lead to its record", record.address));
        }
    }
    if state.by_address.len() != records || state.by_id.len() != records {
        found.push(format!(
            "{records} addresses, but {} in the index by address and {} in the index by id",
            state.by_address.len(),
            state.by_id.len()
        ));
    }
}

/// Assigned ⇔ listed under the key that its record names, once.
fn check_owners(state: &State, found: &mut Vec<String>) {
    let mut listed: HashMap<Slot, &PodKey> = HashMap::new();
    for (key, slots) in &state.pods {
        if slots.is_empty() {
            found.push(format!("pod {key} is listed without addresses"));
        }
        for slot in slots {
            if let Some(other) = listed.insert(*slot, key) {
                found.push(format!("one address is listed under {key} and {other}"));
            }
        }
    }
    for (slot, record) in (0..).zip(&state.slots) {
        let owner = record.as_ref().and_then(|record| record.state.assignment()).map(|a| &a.key);
        if owner != listed.get(&slot).copied() {
            let address = record.as_ref().map(|r| r.address.to_string()).unwrap_or_default();
            found.push(format!("{address}: assigned to {owner:?}, listed under {:?}", listed.get(&slot)));
        }
        if let Some(record) = record
            && record.state.assignment().is_none()
            && record.on_release != OnRelease::Free
        {
            found.push(format!("{}: nobody holds it, yet it waits for a release", record.address));
        }
    }
}

/// Counts add up, and the free lists are exactly the available addresses.
fn check_ncs(state: &State, found: &mut Vec<String>) {
    let mut claimed = 0;
    for entry in state.ncs.values() {
        let id = entry.record.id();
        let mut counts = [[0; 4]; 2];
        let mut withdrawn = [0; 2];
        let mut available: [HashSet<Slot>; 2] = Default::default();
        for slot in &entry.slots {
            let Some(record) = state.record(*slot).filter(|record| record.nc == *id) else {
                found.push(format!("network container {id} lists an address that is not its own"));
                continue;
            };
            claimed += 1;
            let family = Family::of(record.address).index();
            counts[family][record.state.kind().index()] += 1;
            if matches!(record.state, IpState::Assigned(_)) && record.on_release == OnRelease::Remove {
                withdrawn[family] += 1;
            }
            if record.state.kind() == IpStateKind::Available {
                available[family].insert(*slot);
            }
        }
        if counts != entry.counts || withdrawn != entry.withdrawn {
            found.push(format!("network container {id}: counted {counts:?}, kept {:?}", entry.counts));
        }
        for family in Family::ALL {
            let free = &entry.free[family.index()];
            let listed: Vec<Slot> =
                state.links.iter(&free.fresh).chain(state.links.iter(&free.used)).collect();
            let length = (free.fresh.len() + free.used.len()) as usize;
            let unique: HashSet<Slot> = listed.iter().copied().collect();
            if unique != available[family.index()] || listed.len() != unique.len() || length != listed.len() {
                found.push(format!(
                    "network container {id}: {} free {family} addresses are listed, {} are available",
                    listed.len(),
                    available[family.index()].len()
                ));
            }
            let used = state.links.iter(&free.used).filter_map(|slot| state.record(slot)?.freed);
            if !used.is_sorted() {
                found.push(format!("network container {id}: freed {family} addresses are out of order"));
            }
        }
        if entry.record.lifecycle == NcLifecycle::Deleting {
            if entry.slots.is_empty() {
                found.push(format!("network container {id} is being deleted and holds nothing"));
            }
            if counts.iter().flatten().sum::<u32>() != withdrawn.iter().sum::<u32>() {
                found.push(format!(
                    "network container {id} is being deleted and has addresses that no pod holds"
                ));
            }
        }
    }
    if claimed != state.by_address.len() {
        found.push(format!(
            "{} addresses, of which {claimed} belong to a network container",
            state.by_address.len()
        ));
    }
}

/// A record names only addresses that its container holds, or that are none of the pool's.
fn check_endpoints(state: &State, found: &mut Vec<String>) {
    if !state.config.manage_endpoints {
        return;
    }
    for endpoint in state.endpoints.values() {
        let container = &endpoint.container;
        for net in endpoint
            .interfaces
            .iter()
            .filter(|nic| nic.is_infra())
            .flat_map(crate::model::EndpointInterface::addresses)
        {
            let Some(record) = state.ip(net.addr()) else {
                continue;
            };
            let owner = record.state.assignment().and_then(|assignment| assignment.container.as_ref());
            if owner != Some(container) {
                found.push(format!("endpoint {container} names {}, which belongs to {owner:?}", net.addr()));
            }
        }
    }
    for record in state.slots.iter().flatten() {
        let Some(container) = record.state.assignment().and_then(|assignment| assignment.container.as_ref())
        else {
            continue;
        };
        let recorded = state.endpoints.get(container).is_some_and(|endpoint| {
            endpoint.interfaces.iter().any(|nic| nic.addresses().any(|net| net.addr() == record.address))
        });
        if !recorded {
            found.push(format!(
                "{} belongs to container {container}, whose record does not name it",
                record.address
            ));
        }
    }
}

/// Whether what readers see is what the writer holds.
pub(super) fn view_differs(state: &State, view: &View) -> Vec<String> {
    let mut found = Vec::new();
    let ips = view.ips_from(None).count();
    if ips != state.by_address.len() {
        found.push(format!("readers see {ips} addresses of {}", state.by_address.len()));
    }
    for record in state.slots.iter().flatten() {
        if view.ip(record.address) != Some(record) {
            found.push(format!("readers see another record of {}", record.address));
        }
    }
    for (container, endpoint) in &state.endpoints {
        if view.endpoint(container) != Some(endpoint) {
            found.push(format!("readers see another record of endpoint {container}"));
        }
    }
    if view.endpoint_count() != state.endpoints.len() {
        found.push(format!("readers see {} endpoints of {}", view.endpoint_count(), state.endpoints.len()));
    }
    for (id, entry) in &state.ncs {
        let same = view.nc(id).is_some_and(|nc| {
            nc.record == entry.record && nc.counts == entry.counts && nc.withdrawn == entry.withdrawn
        });
        if !same {
            found.push(format!("readers see another network container {id}"));
        }
    }
    if view.tombstone_count() != state.tombstones.len() {
        found.push(format!(
            "readers see {} tombstones of {}",
            view.tombstone_count(),
            state.tombstones.len()
        ));
    }
    found
}

/// Whether what is on disk is what the writer holds.
pub(super) fn disk_differs(state: &State, mut disk: Loaded) -> Vec<String> {
    let mut memory = state.records();
    for side in [&mut memory, &mut disk] {
        side.ncs.sort_by(|a, b| a.id().cmp(b.id()));
        side.ips.sort_by_key(|ip| ip.address);
        side.endpoints.sort_by(|a, b| a.container.cmp(&b.container));
        side.tombstones.sort_by(|a, b| a.container.cmp(&b.container));
        side.rebooted = false;
    }
    let mut found = Vec::new();
    let mut compare = |what: &str, same: bool| {
        if !same {
            found.push(format!("{what} on disk differ from those in memory"));
        }
    };
    compare("network containers", memory.ncs == disk.ncs);
    compare("addresses", memory.ips == disk.ips);
    compare("endpoints", memory.endpoints == disk.endpoints);
    compare("tombstones", memory.tombstones == disk.tombstones);
    compare("orchestrator and node id", memory.orchestrator == disk.orchestrator);
    compare("journal positions", memory.journal == disk.journal);
    found
}
