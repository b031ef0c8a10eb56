//! Addresses for a pod (spec/ipam.md §4).

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{check_not_deleted, other_interface};
use crate::{
    ledger::{Granted, NcShortage, Rejection, RequestIps, Requester, state::Tx},
    model::{
        Assignment, Endpoint, EndpointInterface, Family, IpRecord, IpState, NODE_SUBNET_NC_ID, NcLifecycle,
        NcRecord, OnRelease, PodKey,
    },
};

pub(super) fn request(tx: &mut Tx<'_>, request: RequestIps) -> Result<Granted, Rejection> {
    if request.single {
        let found = tx.state.active().count();
        if found != 1 {
            return Err(Rejection::NotExactlyOneNc { found });
        }
    }
    let key = tx.state.key(request.container.as_ref(), &request.interface_id)?;
    if request.requester == Requester::Client {
        check_not_deleted(tx, request.container.as_ref(), request.began)?;
    }
    let held = tx.state.held_by(&key);
    let reconciling = request.requester == Requester::Reconcile && !request.desired.is_empty();
    if !held.is_empty() && !reconciling {
        return repeat(tx, &request, &held);
    }
    if tx.state.active().next().is_none() {
        return Err(Rejection::NoNcs);
    }
    let picks = if request.desired.is_empty() { pick_any(tx)? } else { pick_desired(tx, &request, &key)? };
    if request.single && picks.len() != 1 {
        return Err(Rejection::NotExactlyOneIp { found: picks.len() });
    }
    let mut granted = Vec::with_capacity(picks.len());
    for record in picks {
        granted.push(assign(tx, &request, &key, &record));
    }
    granted.sort_by_key(|record| Family::of(record.address));
    record_endpoint(tx, &request, &granted);
    Ok(reply(tx, granted, false, Vec::new()))
}

/// The pod holds addresses already: they are the answer, whatever was desired (spec/ipam.md §15 R2, R3).
fn repeat(tx: &mut Tx<'_>, request: &RequestIps, held: &[Arc<IpRecord>]) -> Result<Granted, Rejection> {
    if request.single && held.len() != 1 {
        return Err(Rejection::NotExactlyOneIp { found: held.len() });
    }
    if let (Some(container), Some(asked)) = (&request.container, &request.ifname)
        && let Some(has) = other_interface(tx.state, Some(container), Some(asked))
    {
        return Err(Rejection::OtherInterface { container: container.clone(), asked: asked.clone(), has });
    }
    let mut warnings = Vec::new();
    let mut granted = Vec::with_capacity(held.len());
    for record in held {
        tx.touch(record.address);
        let Some(assignment) = record.state.assignment() else {
            continue;
        };
        if assignment.container != request.container && warnings.is_empty() {
            // Interface ids hold eight characters of the container id: two containers can share one (§15 B4).
            warnings.push(format!(
                "the pod key is shared with container {}, which holds these addresses",
                assignment.container.as_ref().map_or("(unknown)", |c| c.as_str()),
            ));
        }
        // A later attempt owns the addresses from now on: the clean-up of an earlier one is stale then.
        if request.began > assignment.began {
            let mut renewed = (**record).clone();
            renewed.state =
                IpState::Assigned(Box::new(Assignment { began: request.began, ..assignment.clone() }));
            granted.push(tx.put_ip(renewed));
        } else {
            granted.push(record.clone());
        }
    }
    record_endpoint(tx, request, &granted);
    Ok(reply(tx, granted, true, warnings))
}

fn reply(tx: &Tx<'_>, granted: Vec<Arc<IpRecord>>, repeated: bool, warnings: Vec<String>) -> Granted {
    let with_nc = |record: Arc<IpRecord>| {
        let nc = tx.state.ncs.get(&record.nc)?.record.clone();
        Some((record, nc))
    };
    Granted { ips: granted.into_iter().filter_map(with_nc).collect(), repeated, warnings }
}

/// One address of each family that the node serves: all of them or none (spec/ipam.md §15 D1–D6).
fn pick_any(tx: &Tx<'_>) -> Result<Vec<Arc<IpRecord>>, Rejection> {
    let state = &tx.state;
    let serves = |family| state.active().any(|entry| entry.listed(family) > 0);
    let wanted: Vec<Family> = Family::ALL.into_iter().filter(|family| serves(*family)).collect();
    if wanted.is_empty() {
        // Where addresses come with the first fetch, none is a shortage that passes (spec/ipam.md §15 H4).
        let mut active = state.active();
        if let Some(entry) = active.find(|entry| entry.record.id().as_str() == NODE_SUBNET_NC_ID) {
            let (nc, status) = (entry.record.id().clone(), "no address fetched yet".to_owned());
            let ncs = vec![NcShortage { nc, status, counts: [0; 4] }];
            return Err(Rejection::Exhausted { family: Family::V4, ncs });
        }
        return Err(Rejection::NoAddresses {
            ncs: state.active().map(|entry| entry.record.id().clone()).collect(),
        });
    }
    wanted
        .into_iter()
        .map(|family| {
            longest_waiting(tx, family)
                .ok_or_else(|| Rejection::Exhausted { family, ncs: shortage(tx, family) })
        })
        .collect()
}

/// The free address to give next: one that no pod had before, else the one that rested longest, over all NCs. When only
/// cooling addresses are left, that is still the longest-cooled (design §4).
fn longest_waiting(tx: &Tx<'_>, family: Family) -> Option<Arc<IpRecord>> {
    let state = &tx.state;
    let free = || state.active().map(|entry| &entry.free[family.index()]);
    let fresh = free().find_map(|free| free.fresh.head());
    let used = || free().filter_map(|free| state.record(free.used.head()?)).min_by_key(|record| record.freed);
    fresh.and_then(|slot| state.record(slot)).or_else(used).cloned()
}

/// Who serves the family and what became of their addresses.
fn shortage(tx: &Tx<'_>, family: Family) -> Vec<NcShortage> {
    let serving = tx.state.active().filter(|entry| entry.listed(family) > 0);
    serving
        .map(|entry| NcShortage {
            nc: entry.record.id().clone(),
            status: entry.record.spec.status.clone(),
            counts: entry.counts[family.index()],
        })
        .collect()
}

/// Exactly the desired addresses, or none (spec/ipam.md §4.3; compared as addresses, repetitions folded).
fn pick_desired(tx: &Tx<'_>, request: &RequestIps, key: &PodKey) -> Result<Vec<Arc<IpRecord>>, Rejection> {
    let (mut picks, mut unknown) = (Vec::<Arc<IpRecord>>::new(), Vec::<IpAddr>::new());
    for address in &request.desired {
        if picks.iter().any(|pick| pick.address == *address) || unknown.contains(address) {
            continue;
        }
        let Some(record) = tx.state.ip(*address) else {
            unknown.push(*address);
            continue;
        };
        match &record.state {
            IpState::Assigned(owner) if owner.key == *key => {}
            IpState::Assigned(owner) => {
                return Err(Rejection::DesiredTaken { address: *address, owner: owner.key.to_string() });
            }
            // A pod that runs already may use an address whose programmed version a restart forgot (§15 P2).
            IpState::PendingProgramming if request.requester == Requester::Reconcile => {}
            IpState::PendingProgramming | IpState::PendingRelease => {
                return Err(Rejection::DesiredUnavailable { address: *address, state: record.state.kind() });
            }
            IpState::Available => {}
        }
        let retired =
            tx.state.ncs.get(&record.nc).is_some_and(|nc| nc.record.lifecycle == NcLifecycle::Deleting);
        if retired && record.state.assignment().is_none() {
            unknown.push(*address);
            continue;
        }
        picks.push(record.clone());
    }
    if unknown.is_empty() { Ok(picks) } else { Err(Rejection::DesiredUnknown { addresses: unknown }) }
}

fn assign(tx: &mut Tx<'_>, request: &RequestIps, key: &PodKey, record: &Arc<IpRecord>) -> Arc<IpRecord> {
    if record.state.assignment().is_some() {
        return record.clone();
    }
    // The start-up reconcile may find an address in use that was to be given back (§15 C5).
    let on_release =
        if record.state == IpState::PendingRelease { OnRelease::GiveBack } else { OnRelease::Free };
    tx.put_ip(IpRecord {
        state: IpState::Assigned(Box::new(Assignment {
            key: key.clone(),
            container: request.container.clone(),
            interface_id: request.interface_id.clone(),
            ifname: request.ifname.clone(),
            pod: request.pod.clone(),
            began: request.began,
            secondary_interfaces: request.secondary_interfaces,
        })),
        since: tx.now.wall,
        freed: None,
        on_release,
        ..(**record).clone()
    })
}

/// The endpoint record, in the same transaction as the addresses (design §4). An address that is recorded under any
/// interface of the container is recorded (spec/endpoint-state.md §9.1, §9.2).
fn record_endpoint(tx: &mut Tx<'_>, request: &RequestIps, granted: &[Arc<IpRecord>]) {
    let (true, Some(container)) = (tx.state.config.manage_endpoints, &request.container) else {
        return;
    };
    let before = tx.state.endpoints.get(container).cloned();
    let mut endpoint = before.as_deref().cloned().unwrap_or_else(|| Endpoint {
        container: container.clone(),
        pod: request.pod.clone(),
        interface_id: request.interface_id.clone(),
        interfaces: Vec::new(),
        sandbox: None,
        witnessed: false,
        began: request.began,
        created: tx.now.wall,
        updated: tx.now.wall,
    });
    if !endpoint.pod.is_known() {
        endpoint.pod = request.pod.clone();
    }
    if request.sandbox.is_some() {
        endpoint.sandbox.clone_from(&request.sandbox);
        endpoint.witnessed = request.witnessed;
    }
    endpoint.began = endpoint.began.max(request.began);
    for record in granted {
        let Some(nc) = tx.state.ncs.get(&record.nc) else {
            continue;
        };
        let net = with_prefix(record.address, &nc.record);
        if endpoint.interfaces.iter().any(|nic| nic.addresses().any(|known| known.addr() == record.address)) {
            continue;
        }
        let same = |nic: &EndpointInterface| nic.is_infra() && nic.ifname == request.ifname;
        let at = endpoint.interfaces.iter().position(same).unwrap_or_else(|| {
            endpoint
                .interfaces
                .push(EndpointInterface { ifname: request.ifname.clone(), ..Default::default() });
            endpoint.interfaces.len() - 1
        });
        let nic = &mut endpoint.interfaces[at];
        match net {
            IpNet::V4(_) => nic.ipv4.push(net),
            IpNet::V6(_) => nic.ipv6.push(net),
        }
    }
    if before.as_deref() != Some(&endpoint) {
        endpoint.updated = tx.now.wall;
        tx.put_endpoint(endpoint);
    }
}

/// The address with the prefix length of its family's subnet in the NC; a host prefix where the NC names none. The
/// reference uses the IPv4 length for both (spec/endpoint-state.md §9.14).
pub(super) fn with_prefix(address: IpAddr, nc: &NcRecord) -> IpNet {
    let config = &nc.spec.ip_configuration;
    let same_family = |net: &&IpNet| Family::of(net.addr()) == Family::of(address);
    let subnet = [config.subnet.as_ref(), config.subnet_v6.as_ref()].into_iter().flatten().find(same_family);
    subnet.and_then(|net| IpNet::new(address, net.prefix_len()).ok()).unwrap_or_else(|| IpNet::from(address))
}
