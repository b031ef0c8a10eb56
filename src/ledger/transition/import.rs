//! What an earlier implementation left in its files (spec/endpoint-state.md §4, spec/ipam.md §10): taken as far as it makes
//! sense; one bad record does not stop a node.

use std::{net::IpAddr, sync::Arc};

use super::nc_note;
use crate::{
    ledger::{Imported, LegacyNc, LegacyState, state::Tx},
    model::{
        Assignment, Endpoint, IpRecord, IpState, NcLifecycle, NcRecord, OnRelease, Orchestrator,
        OrchestratorType, Timestamp,
    },
};

pub(super) fn import(tx: &mut Tx<'_>, legacy: LegacyState) -> Imported {
    let mut report = Imported::default();
    if let Some((kind, node_id)) = legacy.orchestrator
        && tx.state.orchestrator.kind.is_none()
    {
        let stored = tx.state.orchestrator.clone();
        tx.set_orchestrator(Orchestrator { kind: Some(kind), node_id, ..stored });
    }
    if let Some(environment) = legacy.environment
        && tx.state.orchestrator.environment.is_none()
    {
        let stored = tx.state.orchestrator.clone();
        tx.set_orchestrator(Orchestrator { environment: Some(environment), ..stored });
    }
    if !legacy.extra.is_empty() {
        tx.set_legacy_extra(legacy.extra);
    }
    for nc in legacy.ncs {
        import_nc(tx, nc, &mut report);
    }
    // Of two records that name one address, the newer one is right: the older container is gone or was lost.
    let mut endpoints = legacy.endpoints;
    endpoints.sort_by(|a, b| b.updated.cmp(&a.updated).then_with(|| a.container.cmp(&b.container)));
    for endpoint in endpoints {
        import_endpoint(tx, endpoint, &mut report);
    }
    tx.why = format!(
        "{} network containers, {} endpoints, {} addresses taken; {} skipped",
        report.ncs,
        report.endpoints,
        report.assigned,
        report.skipped.len(),
    );
    report
}

fn import_nc(tx: &mut Tx<'_>, nc: LegacyNc, report: &mut Imported) {
    let LegacyNc { mut spec, host_version, vfp_update_complete } = nc;
    let id = spec.id.clone();
    if tx.state.ncs.contains_key(&id) {
        report.skipped.push(format!("network container {id}: already known"));
        return;
    }
    let feeds_pool = tx.state.orchestrator.kind == Some(OrchestratorType::KubernetesCrd);
    let secondaries =
        if feeds_pool { std::mem::take(&mut spec.secondary_ip_configs) } else { Default::default() };
    tx.put_nc(NcRecord {
        spec,
        host_version,
        vfp_update_complete,
        lifecycle: NcLifecycle::Active,
        created: tx.now.wall,
        updated: tx.now.wall,
    });
    tx.note(nc_note(&id, "created"));
    report.ncs += 1;
    for (config_id, config) in secondaries {
        if tx.state.by_id.contains_key(&config_id) || tx.state.ip(config.address).is_some() {
            report.skipped.push(format!("address {} ({config_id}) of {id}: known already", config.address));
            continue;
        }
        let programmed = host_version.is_some_and(|host| host >= config.nc_version);
        tx.put_ip(IpRecord {
            id: config_id,
            address: config.address,
            nc: id.clone(),
            nc_version: config.nc_version,
            state: if programmed { IpState::Available } else { IpState::PendingProgramming },
            since: tx.now.wall,
            freed: None,
            on_release: OnRelease::Free,
        });
    }
}

fn import_endpoint(tx: &mut Tx<'_>, mut endpoint: Endpoint, report: &mut Imported) {
    let container = endpoint.container.clone();
    if tx.state.endpoints.contains_key(&container) {
        report.skipped.push(format!("endpoint {container}: already known"));
        return;
    }
    let Ok(key) = tx.state.key(Some(&container), &endpoint.interface_id) else {
        report.skipped.push(format!("endpoint {container}: no interface id"));
        return;
    };
    // The reference's files do not say since when.
    for time in [&mut endpoint.created, &mut endpoint.updated] {
        if *time == Timestamp::default() {
            *time = tx.now.wall;
        }
    }
    let ifname = endpoint.interfaces.iter().find(|nic| nic.is_infra()).and_then(|nic| nic.ifname.clone());
    let mut lost: Vec<IpAddr> = Vec::new();
    let infra = endpoint.interfaces.iter().filter(|nic| nic.is_infra());
    let addresses: Vec<IpAddr> = infra.flat_map(|nic| nic.addresses().map(ipnet::IpNet::addr)).collect();
    for address in addresses {
        let Some(record) = tx.state.ip(address).cloned() else {
            report
                .skipped
                .push(format!("address {address} of endpoint {container}: in no network container"));
            continue;
        };
        if let Some(owner) = record.state.assignment() {
            report.skipped.push(format!(
                "address {address} of endpoint {container}: a newer record, {}, has it",
                owner.key
            ));
            lost.push(address);
            continue;
        }
        let on_release =
            if record.state == IpState::PendingRelease { OnRelease::GiveBack } else { OnRelease::Free };
        tx.put_ip(IpRecord {
            state: IpState::Assigned(Box::new(Assignment {
                key: key.clone(),
                container: Some(container.clone()),
                interface_id: endpoint.interface_id.clone(),
                ifname: ifname.clone(),
                pod: endpoint.pod.clone(),
                began: None,
                secondary_interfaces: false,
            })),
            since: tx.now.wall,
            freed: None,
            on_release,
            ..Arc::unwrap_or_clone(record)
        });
        report.assigned += 1;
    }
    for nic in &mut endpoint.interfaces {
        nic.ipv4.retain(|net| !lost.contains(&net.addr()));
        nic.ipv6.retain(|net| !lost.contains(&net.addr()));
    }
    if !tx.state.config.manage_endpoints {
        return;
    }
    if endpoint.interfaces.iter().all(|nic| nic.addresses().next().is_none()) && !lost.is_empty() {
        report.skipped.push(format!("endpoint {container}: no address of its own is left"));
        return;
    }
    tx.put_endpoint(endpoint);
    report.endpoints += 1;
}
