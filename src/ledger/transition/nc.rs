//! Network containers and the addresses they bring (spec/network-containers.md, spec/ipam.md §6 and §7).

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use super::nc_note;
use crate::{
    ledger::{
        HostVersionsReply, MarkPendingRelease, Marked, MissingAssigned, NcOrigin, Rejection, Reply, UpsertNc,
        UpsertedNc, free_list::Slot, state::Tx,
    },
    model::{
        IpConfigId, IpRecord, IpState, IpStateKind, NODE_SUBNET_NC_ID, NcId, NcLifecycle, NcRecord, NcSpec,
        OnRelease, OrchestratorType, SecondaryIpConfig,
    },
};

pub(super) fn upsert(tx: &mut Tx<'_>, upsert: UpsertNc) -> Result<UpsertedNc, Rejection> {
    let UpsertNc { mut spec, origin, missing, programmed } = upsert;
    let before = tx.state.ncs.get(&spec.id).map(|entry| entry.record.clone());
    let kind = tx.state.orchestrator.kind;
    match origin {
        NcOrigin::Api => {
            if kind.is_none() {
                return Err(Rejection::UnsupportedOrchestrator { given: None });
            }
        }
        NcOrigin::ControlPlane => {
            if !matches!(kind, Some(OrchestratorType::KubernetesCrd | OrchestratorType::Kubernetes)) {
                return Err(Rejection::UnsupportedOrchestrator { given: kind });
            }
            check_primary(&spec, before.as_deref())?;
        }
    }
    let feeds_pool = kind == Some(OrchestratorType::KubernetesCrd);
    if !feeds_pool && spec.orchestrator_context.is_none() {
        return Err(Rejection::MissingContext { nc_type: spec.nc_type.to_string() });
    }
    let host_version = before.as_ref().and_then(|nc| nc.host_version).max(programmed);
    let secondaries =
        if feeds_pool { std::mem::take(&mut spec.secondary_ip_configs) } else { BTreeMap::new() };
    let id = spec.id.clone();
    let same_version = before.as_ref().is_some_and(|nc| nc.spec.version == spec.version);
    let record = NcRecord {
        host_version,
        // A new goal is not known to be programmed until it was looked at (§16 Q4).
        vfp_update_complete: same_version && before.as_ref().is_some_and(|nc| nc.vfp_update_complete),
        lifecycle: NcLifecycle::Active,
        created: before.as_ref().map_or(tx.now.wall, |nc| nc.created),
        updated: tx.now.wall,
        spec,
    };
    let unchanged =
        before.as_ref().is_some_and(|nc| NcRecord { updated: nc.updated, ..record.clone() } == **nc);
    let record = match &before {
        Some(nc) if unchanged => nc.clone(),
        _ => {
            tx.note(nc_note(&id, if before.is_some() { "updated" } else { "created" }));
            tx.put_nc(record)
        }
    };
    let withdrawn =
        if feeds_pool { update_pool(tx, &id, &secondaries, host_version, missing)? } else { Vec::new() };
    Ok(UpsertedNc { record, created: before.is_none(), withdrawn })
}

/// The checks of the internal upsert (spec/network-containers.md §4.4).
fn check_primary(spec: &NcSpec, before: Option<&NcRecord>) -> Result<(), Rejection> {
    let nc = || spec.id.clone();
    let primary = spec.ip_configuration.subnet;
    if spec.id.as_str() == NODE_SUBNET_NC_ID {
        return match primary {
            None => Ok(()),
            Some(_) => {
                Err(Rejection::InvalidPrimary { nc: nc(), why: "the node subnet NC has no primary address" })
            }
        };
    }
    let Some(primary) = primary else {
        return Err(Rejection::InvalidPrimary { nc: nc(), why: "the primary address is missing" });
    };
    if primary.prefix_len() == 0 {
        return Err(Rejection::InvalidPrimary {
            nc: nc(),
            why: "the primary address has a prefix length of 0",
        });
    }
    match before.and_then(|nc| nc.spec.ip_configuration.subnet) {
        Some(stored) if stored != primary && !widens(stored, primary) => {
            Err(Rejection::PrimaryChanged { nc: nc(), from: stored.to_string(), to: primary.to_string() })
        }
        _ => Ok(()),
    }
}

fn widens(from: IpNet, to: IpNet) -> bool {
    to.prefix_len() < from.prefix_len() && to.trunc().contains(&from.trunc())
}

/// Brings the address records in line with the list. Everything is checked before anything is changed; the caller undoes
/// the rest on refusal. Returns the addresses that the list lacks and pods hold.
fn update_pool(
    tx: &mut Tx<'_>,
    id: &NcId,
    listed: &BTreeMap<IpConfigId, SecondaryIpConfig>,
    host_version: Option<u64>,
    missing: MissingAssigned,
) -> Result<Vec<IpAddr>, Rejection> {
    let slots = records_of(tx, id);
    let (mut held, mut free) = (Vec::new(), Vec::new());
    for record in slots {
        let stays = listed.get(&record.id).is_some_and(|config| config.address == record.address);
        match (stays, record.state.assignment().is_some()) {
            (true, _) => {}
            (false, true) => held.push(record),
            (false, false) => free.push(record.address),
        }
    }
    if !held.is_empty() && missing == MissingAssigned::Refuse {
        let addresses = held.iter().map(|record| record.address).collect();
        return Err(Rejection::AssignedMissing { nc: id.clone(), addresses });
    }
    for address in free {
        tx.delete_ip(address);
    }
    let withdrawn: Vec<IpAddr> = held.iter().map(|record| record.address).collect();
    for record in held {
        if record.on_release != OnRelease::Remove {
            tx.touch(record.address);
            tx.put_ip(IpRecord { on_release: OnRelease::Remove, ..(*record).clone() });
        }
    }
    // In the order of addresses, not of the ids' texts: that is the order in which they will be given.
    let mut in_order: Vec<_> = listed.iter().collect();
    in_order.sort_unstable_by_key(|(_, config)| config.address);
    for (config_id, config) in in_order {
        list_address(tx, id, config_id, config, host_version)?;
    }
    Ok(withdrawn)
}

fn list_address(
    tx: &mut Tx<'_>,
    nc: &NcId,
    id: &IpConfigId,
    config: &SecondaryIpConfig,
    host_version: Option<u64>,
) -> Result<(), Rejection> {
    let refuse = |why: String| {
        Err(Rejection::InvalidSecondary { nc: nc.clone(), id: id.clone(), address: config.address, why })
    };
    let is_programmed = |version: u64| host_version.is_some_and(|host| host >= version);
    let by_id = tx.state.by_id.get(id).and_then(|slot| tx.state.record(*slot)).cloned();
    match by_id.as_deref() {
        Some(record) if record.nc == *nc && record.address == config.address => {
            // A known address keeps its state and the version in which it first appeared, whatever the list says now.
            if record.on_release == OnRelease::Remove {
                tx.put_ip(IpRecord { on_release: OnRelease::Free, ..record.clone() });
            } else if record.state == IpState::PendingProgramming && is_programmed(record.nc_version) {
                tx.put_ip(IpRecord { state: IpState::Available, since: tx.now.wall, ..record.clone() });
            }
            return Ok(());
        }
        Some(record) if !is_adoptable(record) || record.address != config.address => {
            return refuse(format!(
                "the id already names {} of network container {}",
                record.address, record.nc
            ));
        }
        _ => {}
    }
    if let Some(record) = tx.state.ip(config.address).cloned() {
        if !is_adoptable(&record) && record.nc != *nc {
            return refuse(format!("the address already belongs to network container {}", record.nc));
        }
        if record.state.assignment().is_none() {
            return refuse(format!("the address is listed twice, also under the id {}", record.id));
        }
        // A pod runs on it and its former listing went: it belongs to this one now.
        let former = record.nc.clone();
        tx.put_ip(IpRecord {
            id: id.clone(),
            nc: nc.clone(),
            nc_version: config.nc_version,
            on_release: OnRelease::Free,
            ..(*record).clone()
        });
        delete_if_deserted(tx, &former);
        return Ok(());
    }
    let state =
        if is_programmed(config.nc_version) { IpState::Available } else { IpState::PendingProgramming };
    tx.put_ip(IpRecord {
        id: id.clone(),
        address: config.address,
        nc: nc.clone(),
        nc_version: config.nc_version,
        state,
        since: tx.now.wall,
        freed: None,
        on_release: OnRelease::Free,
    });
    Ok(())
}

/// An address that only its pod still holds on to may be listed anew, by this NC or another.
fn is_adoptable(record: &IpRecord) -> bool {
    record.state.assignment().is_some() && record.on_release == OnRelease::Remove
}

fn records_of(tx: &Tx<'_>, id: &NcId) -> Vec<std::sync::Arc<IpRecord>> {
    let Some(entry) = tx.state.ncs.get(id) else {
        return Vec::new();
    };
    let mut records: Vec<_> = entry.slots.iter().filter_map(|slot| tx.state.record(*slot)).cloned().collect();
    records.sort_unstable_by_key(|record| record.address);
    records
}

/// Unknown is success. What pods hold stays theirs, hidden from new requests (spec/network-containers.md §16 E1, E3, E4).
pub(super) fn delete(tx: &mut Tx<'_>, id: &NcId) -> Reply {
    let Some(entry) = tx.state.ncs.get(id) else {
        return Reply::NcDeleted { existed: false, kept: Vec::new() };
    };
    let before = entry.record.clone();
    let existed = before.lifecycle == NcLifecycle::Active;
    let mut kept = Vec::new();
    for record in records_of(tx, id) {
        if record.state.assignment().is_none() {
            tx.delete_ip(record.address);
            continue;
        }
        kept.push(record.address);
        if record.on_release != OnRelease::Remove {
            tx.touch(record.address);
            tx.put_ip(IpRecord { on_release: OnRelease::Remove, ..(*record).clone() });
        }
    }
    if kept.is_empty() {
        tx.delete_nc(id);
    } else if existed {
        tx.note(nc_note(id, "deleting"));
        tx.put_nc(NcRecord { lifecycle: NcLifecycle::Deleting, updated: tx.now.wall, ..(*before).clone() });
    }
    Reply::NcDeleted { existed, kept }
}

/// The last address of a deleted NC went: so does the NC.
pub(super) fn delete_if_deserted(tx: &mut Tx<'_>, id: &NcId) {
    let deserted = tx
        .state
        .ncs
        .get(id)
        .is_some_and(|entry| entry.record.lifecycle == NcLifecycle::Deleting && entry.slots.is_empty());
    if deserted {
        tx.delete_nc(id);
    }
}

/// Deleted NCs without addresses.
pub(super) fn deleting_and_empty(tx: &Tx<'_>) -> Vec<NcId> {
    let ncs = tx.state.ncs.values();
    ncs.filter(|entry| entry.record.lifecycle == NcLifecycle::Deleting && entry.slots.is_empty())
        .map(|entry| entry.record.id().clone())
        .collect()
}

/// spec/ipam.md §6. Not yet programmed addresses go first, then free ones, the longest unused last.
pub(super) fn mark_pending_release(tx: &mut Tx<'_>, mark: MarkPendingRelease) -> Result<Marked, Rejection> {
    let mut reply = Marked::default();
    match mark {
        MarkPendingRelease::Count { count, all_or_nothing } => {
            let candidates = releasable(tx, count);
            if all_or_nothing && candidates.len() < count {
                return Err(Rejection::NotEnoughToRelease { wanted: count, possible: candidates.len() });
            }
            for slot in candidates {
                if let Some(record) = tx.state.record(slot).cloned() {
                    reply.marked.push(give_back(tx, &record));
                }
            }
        }
        MarkPendingRelease::Ids(ids) => {
            for id in ids {
                let Some(record) = tx.state.by_id.get(&id).and_then(|slot| tx.state.record(*slot)).cloned()
                else {
                    reply.unknown.push(id);
                    continue;
                };
                match (&record.state, record.on_release) {
                    (IpState::Assigned(_), OnRelease::Free) => {
                        tx.touch(record.address);
                        let record = IpRecord { on_release: OnRelease::GiveBack, ..(*record).clone() };
                        reply.deferred.push(tx.put_ip(record));
                    }
                    (IpState::Assigned(_), _) => reply.deferred.push(record),
                    (IpState::PendingRelease, _) => reply.marked.push(record),
                    (IpState::Available | IpState::PendingProgramming, _) => {
                        reply.marked.push(give_back(tx, &record));
                    }
                }
            }
        }
    }
    Ok(reply)
}

fn give_back(tx: &mut Tx<'_>, record: &IpRecord) -> std::sync::Arc<IpRecord> {
    tx.put_ip(IpRecord { state: IpState::PendingRelease, since: tx.now.wall, ..record.clone() })
}

fn releasable(tx: &Tx<'_>, count: usize) -> Vec<Slot> {
    let state = &tx.state;
    let in_state = |kind: IpStateKind| {
        let mut slots: Vec<Slot> = state
            .active()
            .flat_map(|entry| entry.slots.iter().copied())
            .filter(|slot| state.record(*slot).is_some_and(|record| record.state.kind() == kind))
            .collect();
        slots.sort_unstable_by_key(|slot| state.record(*slot).map(|record| (record.freed, record.address)));
        slots
    };
    let mut slots = in_state(IpStateKind::PendingProgramming);
    if slots.len() < count {
        slots.extend(in_state(IpStateKind::Available).into_iter().rev());
    }
    slots.truncate(count);
    slots
}

/// spec/network-containers.md §7.2, less the I/O. Versions are numbers; ids compare without case.
pub(super) fn set_host_versions(
    tx: &mut Tx<'_>,
    versions: &[(NcId, u64)],
    promote: bool,
) -> HostVersionsReply {
    let mut reply = HostVersionsReply::default();
    let ncs: Vec<_> = tx.state.active().map(|entry| entry.record.clone()).collect();
    for nc in ncs {
        let Some(goal) = nc.spec.version_number() else {
            continue;
        };
        let stored = nc.host_version;
        if stored.is_some_and(|host| host >= goal) {
            reply.programmed += 1;
            continue;
        }
        let listed = versions.iter().find(|(id, _)| id == nc.id()).map(|(_, version)| *version);
        match listed {
            Some(version) if stored.is_none_or(|host| version >= host) => {
                reply.programmed += 1;
                if stored != Some(version) {
                    tx.note(nc_note(nc.id(), format!("host version {version}")));
                    tx.put_nc(NcRecord {
                        host_version: Some(version),
                        // A new goal takes it back (spec/network-containers.md §16 Q1, Q4).
                        vfp_update_complete: version >= goal,
                        updated: tx.now.wall,
                        ..(*nc).clone()
                    });
                }
                if promote {
                    reply.promoted += promote_programmed(tx, nc.id(), version);
                }
            }
            _ => {
                reply.programmed += usize::from(stored.is_some());
                reply.outdated.push(nc.id().clone());
            }
        }
    }
    reply
}

fn promote_programmed(tx: &mut Tx<'_>, id: &NcId, version: u64) -> usize {
    let mut promoted = 0;
    for record in records_of(tx, id) {
        if record.state == IpState::PendingProgramming && record.nc_version <= version {
            promoted += 1;
            tx.put_ip(IpRecord {
                state: IpState::Available,
                nc_version: version,
                since: tx.now.wall,
                ..(*record).clone()
            });
        }
    }
    promoted
}
