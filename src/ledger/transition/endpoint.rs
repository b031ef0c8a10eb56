//! The record of a sandbox's interfaces (spec/endpoint-state.md §3).

use std::sync::Arc;

use ipnet::IpNet;

use super::check_not_deleted;
use crate::{
    ledger::{Rejection, UpdateEndpoint, state::Tx},
    model::{ContainerId, Endpoint, EndpointInterface, PodIdentity},
};

pub(super) fn update(tx: &mut Tx<'_>, update: UpdateEndpoint) -> Result<Arc<Endpoint>, Rejection> {
    if !tx.state.config.manage_endpoints {
        return Err(Rejection::EndpointsNotManaged);
    }
    let container = update.container;
    check_not_deleted(tx, Some(&container), update.began)?;
    for nic in &update.interfaces {
        check_interface(tx, &container, nic)?;
    }
    let before = tx.state.endpoints.get(&container).cloned();
    let mut endpoint = before.as_deref().cloned().unwrap_or_else(|| Endpoint {
        container: container.clone(),
        pod: PodIdentity::default(),
        interface_id: String::new(),
        interfaces: Vec::new(),
        sandbox: None,
        witnessed: false,
        began: update.began,
        created: tx.now.wall,
        updated: tx.now.wall,
    });
    if let Some(pod) = update.pod
        && !endpoint.pod.is_known()
    {
        endpoint.pod = pod;
    }
    if update.sandbox.is_some() {
        endpoint.sandbox = update.sandbox;
        endpoint.witnessed = update.witnessed;
    }
    endpoint.began = endpoint.began.max(update.began);
    let state = &*tx.state;
    let is_held = |net: &IpNet| {
        let assignment = state.ip(net.addr()).and_then(|record| record.state.assignment());
        assignment.is_some_and(|assignment| assignment.container.as_ref() == Some(&container))
    };
    for nic in update.interfaces {
        merge(&mut endpoint.interfaces, nic, &is_held);
    }
    if let Some(before) = before
        && *before == endpoint
    {
        return Ok(before);
    }
    endpoint.updated = tx.now.wall;
    Ok(tx.put_endpoint(endpoint))
}

fn check_interface(tx: &Tx<'_>, container: &ContainerId, nic: &EndpointInterface) -> Result<(), Rejection> {
    let invalid = |why: String| Err(Rejection::InvalidEndpoint { container: container.clone(), why });
    let Some(ifname) = &nic.ifname else {
        return invalid("an interface without a name".into());
    };
    let says_something = nic.host_veth_name.is_some()
        || nic.hns_endpoint_id.is_some()
        || nic.nic_type.is_some()
        || nic.mac.is_some();
    if !says_something {
        return invalid(format!(
            "interface {ifname}: one of host veth name, HNS endpoint id, NIC type, MAC is expected"
        ));
    }
    if !nic.is_infra() {
        return Ok(());
    }
    // A record that names somebody else's address would make two owners of one address after a restart.
    for net in nic.addresses() {
        let Some(record) = tx.state.ip(net.addr()) else {
            continue;
        };
        let assignment = record.state.assignment();
        if assignment.is_none_or(|assignment| assignment.container.as_ref() != Some(container)) {
            return Err(Rejection::AddressNotHeld {
                container: container.clone(),
                address: *net,
                owner: assignment.map(|assignment| assignment.key.to_string()),
            });
        }
    }
    Ok(())
}

/// What is present overwrites, what is absent stays. A new infra interface takes over what was recorded before its name was
/// known; the reference does so for the name `eth0` only (spec/endpoint-state.md §3.2).
fn merge(
    interfaces: &mut Vec<EndpointInterface>,
    patch: EndpointInterface,
    is_held: &dyn Fn(&IpNet) -> bool,
) {
    let known = interfaces.iter().position(|nic| nic.ifname == patch.ifname);
    let unnamed = || interfaces.iter().position(|nic| nic.ifname.is_none());
    let at = known.or_else(|| if patch.is_infra() { unnamed() } else { None });
    let Some(nic) = at.and_then(|at| interfaces.get_mut(at)) else {
        interfaces.push(patch);
        return;
    };
    let EndpointInterface {
        ifname,
        ipv4,
        ipv6,
        nic_type,
        host_veth_name,
        mac,
        hns_endpoint_id,
        hns_network_id,
        nc,
        host_name,
        host_ifindex,
    } = patch;
    nic.ifname = ifname;
    replace(&mut nic.ipv4, ipv4, is_held);
    replace(&mut nic.ipv6, ipv6, is_held);
    nic.nic_type = nic_type.or(nic.nic_type);
    nic.mac = mac.or(nic.mac);
    nic.host_ifindex = host_ifindex.or(nic.host_ifindex);
    nic.nc = nc.or_else(|| nic.nc.take());
    nic.host_veth_name = host_veth_name.or_else(|| nic.host_veth_name.take());
    nic.hns_endpoint_id = hns_endpoint_id.or_else(|| nic.hns_endpoint_id.take());
    nic.hns_network_id = hns_network_id.or_else(|| nic.hns_network_id.take());
    nic.host_name = host_name.or_else(|| nic.host_name.take());
}

/// A list that is not empty replaces the other, but for what the container holds of the pool: until it is released nobody can
/// say that the sandbox does not have it.
fn replace(nets: &mut Vec<IpNet>, by: Vec<IpNet>, is_held: &dyn Fn(&IpNet) -> bool) {
    if by.is_empty() {
        return;
    }
    for net in std::mem::replace(nets, by) {
        if is_held(&net) && !nets.iter().any(|named| named.addr() == net.addr()) {
            nets.push(net);
        }
    }
}

pub(super) fn delete(tx: &mut Tx<'_>, container: &ContainerId) -> Result<(), Rejection> {
    if !tx.state.config.manage_endpoints {
        return Err(Rejection::EndpointsNotManaged);
    }
    let Some(endpoint) = tx.state.endpoints.get(container) else {
        return Err(Rejection::EndpointNotFound { container: container.clone() });
    };
    if let Ok(key) = tx.state.key(Some(container), &endpoint.interface_id) {
        let addresses: Vec<_> = tx.state.held_by(&key).iter().map(|record| record.address).collect();
        // Without their record, nothing would tell which sandbox holds them.
        if !addresses.is_empty() {
            return Err(Rejection::EndpointHoldsAddresses { container: container.clone(), addresses });
        }
    }
    tx.delete_endpoint(container);
    Ok(())
}
