//! Command → new state and reply, or a rejection that changed nothing. No I/O, no clock, no randomness.

mod endpoint;
mod import;
mod nc;
mod release;
mod request;

use super::{
    Command, Rejection, Reply,
    state::{Batch, State, Subject, Tx},
};
use crate::model::{
    Actor, BootTime, ChangeNote, ContainerId, IfName, IpState, Now, OnRelease, Orchestrator, OrchestratorType,
};

/// Applies one command to the state and records in `batch` what to persist, what to tell and how to undo it.
pub(super) fn execute(
    state: &mut State,
    batch: &mut Batch,
    now: Now,
    actor: Actor,
    command: Command,
) -> Result<Reply, Rejection> {
    let subject = subject(actor, &command);
    let ttl = state.config.tombstone_ttl;
    let mut tx = Tx::new(state, batch, now);
    let result = match command {
        Command::SetOrchestrator { kind, node_id, partition_key } => {
            set_orchestrator(&mut tx, kind, node_id, partition_key).map(|()| Reply::Done)
        }
        Command::SetEnvironment(environment) => {
            let environment = Some(environment);
            if tx.state.orchestrator.environment != environment {
                let orchestrator = Orchestrator { environment, ..tx.state.orchestrator.clone() };
                tx.set_orchestrator(orchestrator);
            }
            Ok(Reply::Done)
        }
        Command::UpsertNc(upsert) => nc::upsert(&mut tx, *upsert).map(Reply::Nc),
        Command::DeleteNc { id } => Ok(nc::delete(&mut tx, &id)),
        Command::RequestIps(request) => request::request(&mut tx, request).map(Reply::Granted),
        Command::ReleaseIps(release) => release::release(&mut tx, release).map(Reply::Released),
        Command::ReleaseDeadSandbox { container, sandbox, why } => {
            Ok(Reply::Released(release::release_dead(&mut tx, &container, &sandbox, why)))
        }
        Command::MarkPendingRelease(mark) => nc::mark_pending_release(&mut tx, mark).map(Reply::Marked),
        Command::SetHostVersions { versions, promote } => {
            Ok(Reply::HostVersions(nc::set_host_versions(&mut tx, &versions, promote)))
        }
        Command::UpdateEndpoint(update) => endpoint::update(&mut tx, update).map(Reply::Endpoint),
        Command::DeleteEndpoint { container } => endpoint::delete(&mut tx, &container).map(|()| Reply::Done),
        Command::ImportLegacy(legacy) => Ok(Reply::Imported(import::import(&mut tx, *legacy))),
        Command::Reboot => {
            reboot(&mut tx);
            Ok(Reply::Done)
        }
    };
    match &result {
        Ok(_) => tx.accept(subject),
        Err(rejection) => tx.refuse(subject, rejection),
    }
    Tx::new(state, batch, now).expire_tombstones(ttl);
    result
}

fn subject(actor: Actor, command: &Command) -> Subject {
    let mut subject = Subject {
        actor,
        operation: command.operation(),
        container: None,
        pod: None,
        nc: None,
        addresses: Vec::new(),
    };
    match command {
        Command::RequestIps(request) => {
            subject.container.clone_from(&request.container);
            subject.pod = Some(request.pod.clone());
            subject.addresses.clone_from(&request.desired);
        }
        Command::ReleaseIps(release) => {
            subject.container.clone_from(&release.container);
            subject.pod = Some(release.pod.clone());
        }
        Command::ReleaseDeadSandbox { container, .. } | Command::DeleteEndpoint { container } => {
            subject.container = Some(container.clone());
        }
        Command::UpdateEndpoint(update) => {
            subject.container = Some(update.container.clone());
            subject.pod.clone_from(&update.pod);
        }
        Command::UpsertNc(upsert) => subject.nc = Some(upsert.spec.id.clone()),
        Command::DeleteNc { id } => subject.nc = Some(id.clone()),
        Command::SetOrchestrator { .. }
        | Command::SetEnvironment(_)
        | Command::MarkPendingRelease(_)
        | Command::SetHostVersions { .. }
        | Command::ImportLegacy(_)
        | Command::Reboot => {}
    }
    subject
}

/// spec/network-containers.md §2. The reference stores the partition key even of a registration that it refuses; here a refusal
/// changes nothing.
fn set_orchestrator(
    tx: &mut Tx<'_>,
    kind: OrchestratorType,
    node_id: String,
    partition_key: String,
) -> Result<(), Rejection> {
    let stored = &tx.state.orchestrator;
    let free = stored.node_id.is_empty() || stored.node_id == node_id || tx.state.ncs.is_empty();
    if !free {
        return Err(Rejection::NodeAlreadyRegistered { node_id: stored.node_id.clone() });
    }
    let environment = stored.environment.clone();
    let wanted = Orchestrator { kind: Some(kind), node_id, partition_key, environment };
    if *stored != wanted {
        tx.set_orchestrator(wanted);
    }
    Ok(())
}

/// The sandboxes of the earlier boot are gone, and boot times of it mean nothing (design §5).
fn reboot(tx: &mut Tx<'_>) {
    let records: Vec<_> = tx.state.slots.iter().flatten().cloned().collect();
    for record in records {
        match (&record.state, record.on_release) {
            (IpState::Assigned(_), OnRelease::Remove) => tx.delete_ip(record.address),
            (IpState::Assigned(_), on_release) => {
                let mut freed = (*record).clone();
                freed.state = match on_release {
                    OnRelease::GiveBack => IpState::PendingRelease,
                    OnRelease::Free | OnRelease::Remove => IpState::Available,
                };
                freed.on_release = OnRelease::Free;
                freed.since = tx.now.wall;
                freed.freed = None;
                tx.put_ip(freed);
            }
            (_, _) if record.freed.is_some() => {
                let mut rested = (*record).clone();
                rested.freed = None;
                tx.put_ip(rested);
            }
            _ => {}
        }
    }
    let containers: Vec<_> = tx.state.endpoints.keys().cloned().collect();
    for container in &containers {
        tx.delete_endpoint(container);
    }
    let emptied: Vec<_> = nc::deleting_and_empty(tx);
    for id in &emptied {
        tx.delete_nc(id);
    }
    tx.drop_tombstones();
    tx.why = format!("the machine was rebooted: {} endpoints of the earlier boot dropped", containers.len());
}

/// The interface that has the container's addresses, if `ifname` is another one. A record whose interface has no name may be
/// about any: legacy callers send none.
fn other_interface(
    state: &State,
    container: Option<&ContainerId>,
    ifname: Option<&IfName>,
) -> Option<IfName> {
    let ifname = ifname?;
    let endpoint = state.endpoints.get(container?)?;
    let mut has = None;
    for name in endpoint.interfaces.iter().filter(|nic| nic.is_infra()).map(|nic| nic.ifname.as_ref()) {
        match name {
            Some(name) if name != ifname => has = Some(name.clone()),
            _ => return None,
        }
    }
    has
}

/// Design §4: an ADD that began before a DEL of the same container must not win afterwards.
fn check_not_deleted(
    tx: &Tx<'_>,
    container: Option<&ContainerId>,
    began: Option<BootTime>,
) -> Result<(), Rejection> {
    let Some(tombstone) = container.and_then(|container| tx.state.tombstones.get(container)) else {
        return Ok(());
    };
    let container = tombstone.container.clone();
    match began {
        Some(began) if began <= tombstone.deleted => {
            Err(Rejection::Tombstoned { container, late_by: tombstone.deleted.since(began) })
        }
        Some(_) => Ok(()),
        None => {
            let block = tx.state.config.legacy_block;
            let age = tx.now.boot.since(tombstone.recorded);
            if age < block {
                Err(Rejection::RecentlyDeleted { container, retry_after: block.saturating_sub(age) })
            } else {
                Ok(())
            }
        }
    }
}

/// A note about an NC.
fn nc_note(id: &crate::model::NcId, what: impl Into<String>) -> ChangeNote {
    ChangeNote::Nc { id: id.clone(), what: what.into() }
}
