//! What the host has programmed, asked of its agents and recorded (spec/network-containers.md §7).
//!
//! The reference asks under its state lock and stalls every pod while an agent is slow (§12 row 4). Here the agents are asked first,
//! by nobody who holds anything, and what they say is one command to the ledger.

use std::{
    collections::HashMap,
    fmt,
    time::{Duration, Instant},
};

use crate::{
    host::{Agents, nmagent::NmagentError},
    ledger::{Command, HostVersionsReply, Ledger, LedgerError, NcView, Reply},
    model::{Actor, NcId, NcLifecycle},
};

/// The programmed version of each network container.
pub type Versions = HashMap<NcId, u64>;

/// Why a round brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// NMAgent.
    #[error(transparent)]
    Nmagent(#[from] NmagentError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// What a round brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// NCs with anything programmed.
    pub programmed: usize,
    /// NCs whose goal is not reached and that no agent knows, or knows at a lower version than before.
    pub outdated: Vec<NcId>,
    /// Addresses that became available.
    pub promoted: usize,
    /// NCs that the agents listed; `None` if they were not asked, because nothing was behind.
    pub listed: Option<usize>,
}

/// Told of every round.
pub trait SyncObserver: fmt::Debug + Send + Sync {
    /// `ok` if nothing is outdated; `listed` is how many network containers the host named, if it was asked and said so.
    fn host_versions_synced(&self, _ok: bool, _listed: Option<usize>, _took: Duration) {}
}

/// Whether the host has programmed the NC at its goal. One whose goal is no number never is (host-agents.md §5.1).
pub fn is_complete(nc: &NcView) -> bool {
    match (nc.record.spec.version_number(), nc.record.host_version) {
        (Some(goal), Some(host)) => host >= goal,
        _ => false,
    }
}

/// One round of §7.2: NCs that are behind their goal are looked up at NMAgent, and at IMDS where NMAgent does not know them. With
/// `promote` their addresses become available. Nobody is asked while nothing is behind.
pub async fn sync(
    ledger: &Ledger,
    agents: &Agents,
    promote: bool,
    observer: Option<&dyn SyncObserver>,
) -> Result<Synced, SyncError> {
    let begun = Instant::now();
    let synced = look(ledger, agents, promote).await;
    if let Some(observer) = observer {
        let done = synced.as_ref().ok();
        let ok = done.is_some_and(|synced| synced.outdated.is_empty());
        observer.host_versions_synced(ok, done.and_then(|synced| synced.listed), begun.elapsed());
    }
    synced
}

async fn look(ledger: &Ledger, agents: &Agents, promote: bool) -> Result<Synced, SyncError> {
    let (behind, programmed): (Vec<(NcId, Option<u64>)>, usize) = {
        let view = ledger.view();
        let active = || view.ncs().filter(|nc| nc.record.lifecycle == NcLifecycle::Active);
        let behind = active().filter(|nc| nc.record.spec.version_number().is_some() && !is_complete(nc));
        let behind = behind.map(|nc| (nc.record.id().clone(), nc.record.host_version)).collect();
        (behind, active().filter(|nc| nc.record.host_version.is_some()).count())
    };
    if behind.is_empty() {
        return Ok(Synced { programmed, ..Synced::default() });
    }
    let wanted: Vec<NcId> = behind.iter().map(|(id, _)| id.clone()).collect();
    let listed = versions(agents, &wanted).await?;
    let count = Some(listed.len());
    if let Some(reply) = record(ledger, &listed, promote).await? {
        let HostVersionsReply { programmed, outdated, promoted } = reply;
        return Ok(Synced { programmed, outdated, promoted, listed: count });
    }
    let is_outdated =
        |(id, host): &(NcId, Option<u64>)| listed.get(id).is_none_or(|version| Some(*version) < *host);
    let outdated = behind.into_iter().filter(is_outdated).map(|(id, _)| id).collect();
    Ok(Synced { programmed, outdated, promoted: 0, listed: count })
}

/// What NMAgent lists, and IMDS of what it lacks. NMAgent counts where both know an NC; IMDS' failures count for nothing (§7.4).
pub async fn versions(agents: &Agents, wanted: &[NcId]) -> Result<Versions, NmagentError> {
    let listed = agents.nmagent.nc_versions().await?;
    for why in &listed.refused {
        tracing::debug!(why, "an entry of NMAgent's list cannot be read");
    }
    let numbered = listed.ncs.iter().filter_map(|nc| Some((nc.id.clone(), nc.number()?)));
    let mut versions: Versions = numbered.collect();
    if wanted.iter().any(|nc| !versions.contains_key(nc)) {
        match agents.imds.interfaces().await {
            Ok(interfaces) => {
                for (nc, version) in interfaces.map(|found| found.nc_versions()).unwrap_or_default() {
                    versions.entry(nc).or_insert(version);
                }
            }
            Err(error) => tracing::debug!(%error, "IMDS was not asked for network containers on NICs"),
        }
    }
    Ok(versions)
}

/// Makes it durable; `None` if nothing of it is news: a command that changes nothing would still be flushed.
pub async fn record(
    ledger: &Ledger,
    versions: &Versions,
    promote: bool,
) -> Result<Option<HostVersionsReply>, LedgerError> {
    let is_news = {
        let view = ledger.view();
        versions
            .iter()
            .any(|(id, version)| view.nc(id).is_some_and(|nc| nc.record.host_version < Some(*version)))
    };
    if !is_news {
        return Ok(None);
    }
    let command = Command::SetHostVersions {
        versions: versions.iter().map(|(id, version)| (id.clone(), *version)).collect(),
        promote,
    };
    match ledger.submit(Actor::internal("host versions"), command).await? {
        Reply::HostVersions(reply) => Ok(Some(reply)),
        _ => Ok(None),
    }
}
