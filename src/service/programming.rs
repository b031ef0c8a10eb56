//! What the host has programmed, asked of its agents (spec/network-containers.md §7).
//!
//! The reference asks under its state lock and stalls every pod while an agent is slow (§12 row 4). Here the agents are asked first,
//! by nobody who holds anything, and what they say is one command to the ledger.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use crate::{
    host::{Agents, nmagent::NmagentError},
    ledger::{Command, HostVersionsReply, Ledger, LedgerError, NcView, Reply},
    model::{Actor, NcId},
};

/// How long a query waits for NMAgent (§5).
const QUERY_WITHIN: Duration = Duration::from_secs(2);
/// How long queries do without NMAgent after it failed: a hanging agent must not cost every one of them two seconds.
const QUIET: Duration = Duration::from_secs(1);

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

/// Whether the host has programmed the NC at its goal. One whose goal is no number never is (§5.1 of host-agents.md).
fn is_complete(nc: &NcView) -> bool {
    match (nc.record.spec.version_number(), nc.record.host_version) {
        (Some(goal), Some(host)) => host >= goal,
        _ => false,
    }
}

/// NCs with anything programmed, as far as is recorded.
pub fn programmed(ledger: &Ledger) -> usize {
    ledger.view().ncs().filter(|nc| nc.record.host_version.is_some()).count()
}

/// One round of §7.2: NCs that are behind their goal are looked up at NMAgent, and at IMDS where NMAgent does not know them. With
/// `promote` their addresses become available.
pub async fn sync(ledger: &Ledger, agents: &Agents, promote: bool) -> Result<Synced, SyncError> {
    let behind: Vec<NcId> = {
        let view = ledger.view();
        let numbered = view.ncs().filter(|nc| nc.record.spec.version_number().is_some());
        numbered.filter(|nc| !is_complete(nc)).map(|nc| nc.record.id().clone()).collect()
    };
    if behind.is_empty() {
        return Ok(Synced { programmed: programmed(ledger), ..Synced::default() });
    }
    let listed = versions(agents, &behind).await?;
    let count = listed.len();
    let reply = record(ledger, listed, promote).await?;
    Ok(Synced {
        programmed: reply.programmed,
        outdated: reply.outdated,
        promoted: reply.promoted,
        listed: Some(count),
    })
}

/// What NMAgent lists, and IMDS of what it lacks. NMAgent counts where both know an NC; IMDS' failures count for nothing (§7.4).
async fn versions(agents: &Agents, wanted: &[NcId]) -> Result<HashMap<NcId, u64>, NmagentError> {
    let listed = agents.nmagent.nc_versions().await?;
    for why in &listed.refused {
        tracing::debug!(why, "an entry of NMAgent's list cannot be read");
    }
    let numbered = listed.ncs.iter().filter_map(|nc| Some((nc.id.clone(), nc.number()?)));
    let mut versions: HashMap<NcId, u64> = numbered.collect();
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

/// Whether one of these versions is news; a command that changes nothing would still be flushed.
fn is_news(ledger: &Ledger, versions: &HashMap<NcId, u64>) -> bool {
    let view = ledger.view();
    versions.iter().any(|(id, version)| view.nc(id).is_some_and(|nc| nc.record.host_version < Some(*version)))
}

async fn record(
    ledger: &Ledger,
    versions: HashMap<NcId, u64>,
    promote: bool,
) -> Result<HostVersionsReply, LedgerError> {
    let command = Command::SetHostVersions { versions: versions.into_iter().collect(), promote };
    match ledger.submit(Actor::internal("host versions"), command).await? {
        Reply::HostVersions(reply) => Ok(reply),
        _ => Ok(HostVersionsReply::default()),
    }
}

/// Checks for queries whether what they are about is programmed. One question to NMAgent serves all that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Check {
    /// When NMAgent last failed. Held while it is asked, by queries only.
    failed: Arc<Mutex<Option<Instant>>>,
}

impl Check {
    /// Which of these NCs the host has not programmed at their goal. NMAgent failing, the check is skipped, and none is (Q3). What is
    /// learnt is recorded, so that it need not be asked again (Q1).
    pub(super) async fn pending(&self, ledger: &Ledger, agents: &Agents, ncs: &[NcId]) -> Vec<NcId> {
        let behind = || -> Vec<NcId> {
            let view = ledger.view();
            let is_behind = |id: &&NcId| view.nc(id).is_some_and(|nc| !is_complete(nc));
            ncs.iter().filter(is_behind).cloned().collect()
        };
        if behind().is_empty() {
            return Vec::new();
        }
        let mut failed = self.failed.lock().await;
        // Whoever was before us may have found out.
        let wanted = behind();
        if wanted.is_empty() || failed.is_some_and(|at| at.elapsed() < QUIET) {
            return Vec::new();
        }
        let asked = tokio::time::timeout(QUERY_WITHIN, versions(agents, &wanted)).await;
        let why = match asked {
            Ok(Ok(versions)) => {
                *failed = None;
                // Not durable is not known: asked again next time.
                if is_news(ledger, &versions)
                    && let Err(error) = record(ledger, versions, false).await
                {
                    tracing::warn!(%error, "what the host has programmed could not be recorded");
                }
                return behind();
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", QUERY_WITHIN.as_secs()),
        };
        tracing::warn!(why, "whether network containers are programmed is not checked for the moment");
        *failed = Some(Instant::now());
        Vec::new()
    }
}
