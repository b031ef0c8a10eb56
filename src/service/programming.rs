//! Whether the host has programmed what a query is about (spec/network-containers.md §5, §7.3).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use crate::{
    host::Agents,
    ledger::Ledger,
    model::NcId,
    sources::host_versions::{is_complete, record, versions},
};

/// How long a query waits for NMAgent (§5), and for IMDS where NMAgent answered.
const QUERY_WITHIN: Duration = Duration::from_secs(2);
/// How long queries do without NMAgent after it failed: a hanging agent must not cost every one of them two seconds.
const QUIET: Duration = Duration::from_secs(1);

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
        let why = match versions(&agents.within(QUERY_WITHIN), &wanted).await {
            Ok(versions) => {
                *failed = None;
                // Not durable is not known: asked again next time.
                if let Err(error) = record(ledger, &versions, false).await {
                    tracing::warn!(%error, "what the host has programmed could not be recorded");
                }
                return behind();
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(why, "whether network containers are programmed is not checked for the moment");
        *failed = Some(Instant::now());
        Vec::new()
    }
}
