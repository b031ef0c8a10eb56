//! ChannelMode Managed: the node registers with DNC, and then has the network containers that DNC lists for it
//! (spec/host-agents.md §8, spec/network-containers.md §4.6).
//!
//! What the reference gets wrong and this does not (spec/host-agents.md §10): versions are compared as numbers, an empty or broken
//! list deletes nothing, NMAgent's being away holds nothing up and completes nothing, and a stop ends every wait.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    Alarm, Alarms, Doubt, Turns,
    cni_update::CniUpdates,
    doubt::loses_most,
    host_versions::{self, SyncError, SyncObserver},
    outage::Outage,
};
use crate::{
    host::{
        Agents,
        dnc::{
            Dnc, DncNetworkContainer, NodeNetworkContainers, NodeRegistration, RegisterError,
            RegisterPatience,
        },
        http::varied,
        nmagent::NmagentError,
    },
    ledger::{Command, Ledger, LedgerError, MissingAssigned, NcOrigin, UpsertNc},
    model::{Actor, NcId, NcLifecycle, NcRecord, NcSpec, OrchestratorType, UnknownOrchestratorType},
    readiness::Readiness,
};

/// A list that lost most of what it had counts when it came so often in a row.
const CONFIRMATIONS: u32 = 3;
/// More network containers no node has: a longer list is a fault of the source.
const MOST: usize = 10_000;
/// One attempt to register may take so long.
const REGISTER_WITHIN: Duration = Duration::from_secs(30);
/// NMAgent's versions are a matter of 2 s (spec/host-agents.md §1).
const VERSIONS_WITHIN: Duration = Duration::from_secs(2);

/// What a definition in DNC's list says, in our terms; the decoder of the legacy contract, which is above this module.
pub type Decode = fn(&str) -> Result<NcSpec, String>;

/// Why a node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NotRegistered {
    /// DNC did not take it.
    #[error("DNC: {0}")]
    Dnc(#[from] RegisterError),
    /// What NMAgent supports is part of the registration, and it did not say.
    #[error(
        "this node could not be registered with DNC in {attempts} attempts, because NMAgent does not say what it supports: {last}"
    )]
    Nmagent {
        /// Attempts made.
        attempts: u32,
        /// The last error.
        last: NmagentError,
    },
    /// DNC named an orchestrator that there is not, and the node has none.
    #[error("DNC registered this node with an orchestrator that it cannot have: {0}")]
    Orchestrator(#[from] UnknownOrchestratorType),
    /// The ledger did not take the registration.
    #[error("the registration cannot be recorded: {0}")]
    Ledger(#[from] LedgerError),
}

/// The source.
#[derive(Debug)]
pub struct Managed {
    /// What it keeps in line.
    pub ledger: Ledger,
    /// The list's owner.
    pub dnc: Dnc,
    /// Who has programmed what.
    pub agents: Agents,
    /// Told of every look at what the host has programmed.
    pub observer: Arc<dyn SyncObserver>,
    /// Whom to tell of changed definitions.
    pub cni_updates: Option<CniUpdates>,
    /// Reads definitions.
    pub decode: Decode,
    /// How long registration is tried.
    pub patience: RegisterPatience,
    /// When to look.
    pub turns: Turns,
    /// Where doubts are told.
    pub alarms: Alarms,
    /// Set once the node is registered; taken back while DNC gives no list.
    pub readiness: Readiness,
}

impl Managed {
    /// Registers, and then keeps the node's network containers in line until told to stop.
    pub async fn run(self, stop: CancellationToken) -> Result<(), NotRegistered> {
        if !self.register(&stop).await? {
            return Ok(());
        }
        self.readiness.set_ready();
        let (mut sync, turns) = self.registered();
        while turns.next(&stop).await {
            if stop.run_until_cancelled(sync.round()).await.is_none() {
                break;
            }
            turns.done();
        }
        Ok(())
    }

    /// What comes after the registration, and when.
    fn registered(self) -> (Sync, Turns) {
        let sync = Sync {
            ledger: self.ledger,
            dnc: self.dnc,
            agents: self.agents.within(VERSIONS_WITHIN),
            observer: self.observer,
            cni_updates: self.cni_updates,
            decode: self.decode,
            alarms: self.alarms,
            outage: Outage::new("DNC", self.readiness),
            doubt: Doubt::new(CONFIRMATIONS),
            refused: HashMap::new(),
            unreadable: Vec::new(),
        };
        (sync, self.turns)
    }

    /// `false` if the daemon stops before it is done.
    async fn register(&self, stop: &CancellationToken) -> Result<bool, NotRegistered> {
        let Some(apis) = stop.run_until_cancelled(self.supported_apis()).await else { return Ok(false) };
        let (nmagent_supported_apis, patience) = apis?;
        self.readiness.wait_for("registration of this node with DNC");
        let num_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let node = NodeRegistration { num_cores, nmagent_supported_apis };
        let dnc = self.dnc.within(REGISTER_WITHIN);
        let registered = match dnc.register_patiently(&node, patience, stop).await {
            Err(RegisterError::Cancelled { .. }) => return Ok(false),
            registered => registered?,
        };
        let stored = self.ledger.view().orchestrator().kind;
        let kind = match registered.orchestrator_type.parse::<OrchestratorType>() {
            Ok(kind) => kind,
            // A node that serves goes on with what it has; the reference goes on in any case.
            Err(error) if stored.is_some() => {
                tracing::error!(%error, "DNC registered this node with an orchestrator that it cannot have; the former stays");
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        let command = Command::SetOrchestrator {
            kind,
            node_id: registered.node_id,
            partition_key: registered.partition_key,
        };
        match self.ledger.submit(actor(), command).await {
            Ok(_) => tracing::info!(orchestrator = %kind, "this node is registered with DNC"),
            Err(error @ LedgerError::Rejected(_)) if stored.is_some() => {
                tracing::error!(%error, "DNC registered this node as another one; the former registration stays");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// What NMAgent supports, and the patience that is left.
    async fn supported_apis(&self) -> Result<(Vec<String>, RegisterPatience), NotRegistered> {
        self.readiness.wait_for("NMAgent, to register this node with DNC");
        let mut patience = self.patience;
        loop {
            match self.agents.nmagent.supported_apis().await {
                Ok(apis) => return Ok((apis, patience)),
                Err(last) if patience.attempts <= 1 => {
                    return Err(NotRegistered::Nmagent { attempts: self.patience.attempts, last });
                }
                Err(_) => patience.attempts -= 1,
            }
            tokio::time::sleep(varied(patience.pause)).await;
        }
    }
}

fn actor() -> Actor {
    Actor::internal("DNC sync")
}

/// One look after another.
#[derive(Debug)]
struct Sync {
    ledger: Ledger,
    dnc: Dnc,
    agents: Agents,
    observer: Arc<dyn SyncObserver>,
    cni_updates: Option<CniUpdates>,
    decode: Decode,
    alarms: Alarms,
    outage: Outage,
    doubt: Doubt<NcId>,
    /// What was not taken and why, so that it is told once.
    refused: HashMap<NcId, String>,
    /// The same for what could not be read.
    unreadable: Vec<String>,
}

impl Sync {
    async fn round(&mut self) {
        let known = self.known();
        match self.dnc.network_containers().await {
            // The client tells when DNC stops answering, and when it answers again.
            Err(error) => {
                self.doubt.forget();
                self.outage.failed(&error);
            }
            Ok(listed) if listed.ncs.len() > MOST => {
                self.doubt.forget();
                self.outage.ended();
                self.alarms.raise(Alarm {
                    message: format!(
                        "DNC lists {} network containers, more than any node has",
                        listed.ncs.len()
                    ),
                    remedy: "nothing was taken from this list; look at DNC".into(),
                });
            }
            Ok(listed) => {
                self.outage.ended();
                self.add(&known, &listed.ncs).await;
                self.remove(&known, &listed).await;
            }
        }
        self.host_versions().await;
    }

    fn known(&self) -> HashMap<NcId, Arc<NcRecord>> {
        let view = self.ledger.view();
        let active = view.ncs().filter(|nc| nc.record.lifecycle == NcLifecycle::Active);
        active.map(|nc| (nc.record.id().clone(), nc.record.clone())).collect()
    }

    async fn add(&mut self, known: &HashMap<NcId, Arc<NcRecord>>, listed: &[DncNetworkContainer]) {
        let listed_ids: BTreeSet<&NcId> = listed.iter().map(|nc| &nc.id).collect();
        self.refused.retain(|id, _| listed_ids.contains(id));
        for nc in listed {
            if known.get(&nc.id).is_some_and(|stored| !is_newer(&stored.spec.version, &nc.version)) {
                continue;
            }
            let added = match (self.decode)(nc.json()) {
                Ok(spec) => self.upsert(spec).await,
                Err(why) => Err(why),
            };
            match added {
                Ok(()) => {
                    self.refused.remove(&nc.id);
                }
                // It is tried again at the next look.
                Err(why) => {
                    if self.refused.get(&nc.id) != Some(&why) {
                        tracing::error!(nc = %nc.id, why, "a network container that DNC lists cannot be taken");
                        self.refused.insert(nc.id.clone(), why);
                    }
                }
            }
        }
    }

    /// As the API does it; that it is programmed is for NMAgent to say.
    async fn upsert(&self, spec: NcSpec) -> Result<(), String> {
        let _announced = match &self.cni_updates {
            Some(updates) => {
                Some(updates.announce(&self.ledger, &spec).await.map_err(|error| error.to_string())?)
            }
            None => None,
        };
        let (origin, missing) = (NcOrigin::Api, MissingAssigned::Refuse);
        let upsert = UpsertNc { spec, origin, missing, programmed: None };
        self.ledger.upsert_nc(actor(), upsert).await.map(drop).map_err(|error| error.to_string())
    }

    async fn remove(&mut self, known: &HashMap<NcId, Arc<NcRecord>>, listed: &NodeNetworkContainers) {
        if self.unreadable != listed.refused {
            for why in &listed.refused {
                tracing::error!(why, "an entry of DNC's list cannot be read");
            }
            self.unreadable.clone_from(&listed.refused);
        }
        let known: BTreeSet<NcId> = known.keys().cloned().collect();
        let ids: BTreeSet<NcId> = listed.ncs.iter().map(|nc| nc.id.clone()).collect();
        let confirmed = self.doubt.is_confirmed(&ids);
        let gone: Vec<&NcId> = known.difference(&ids).collect();
        if gone.is_empty() {
            return self.alarms.clear();
        }
        let why = if !listed.refused.is_empty() {
            Some("has entries that cannot be read".to_owned())
        } else if ids.is_empty() {
            Some("is empty".to_owned())
        } else if loses_most(&known, &ids) && !confirmed {
            Some(format!(
                "lacks most of what this node has, and came less than {CONFIRMATIONS} times in a row"
            ))
        } else {
            None
        };
        if let Some(why) = why {
            return self.alarms.raise(Alarm {
                message: format!(
                    "DNC's list {why}: {} of {} network containers are not in it and are kept",
                    gone.len(),
                    known.len()
                ),
                remedy: "look at DNC; what is really gone can be deleted with `cnsctl nc delete`".into(),
            });
        }
        self.alarms.clear();
        for id in gone {
            match self.ledger.delete_nc(actor(), id.clone()).await {
                Ok((_, kept)) => {
                    tracing::info!(nc = %id, in_use = kept.len(), "a network container is no longer in DNC's list and was deleted");
                }
                Err(error) => tracing::error!(nc = %id, %error, "a network container cannot be deleted"),
            }
        }
    }

    /// Records what the host has programmed. While NMAgent does not say, that stays unknown.
    async fn host_versions(&self) {
        // The clients tell when an agent stops answering.
        let synced = host_versions::sync(&self.ledger, &self.agents, false, Some(&*self.observer)).await;
        if let Err(SyncError::Ledger(error)) = synced {
            tracing::error!(%error, "what the host has programmed cannot be recorded");
        }
    }
}

/// As numbers; where one is none, another text is another version (spec/network-containers.md §16 Q7).
fn is_newer(stored: &str, listed: &str) -> bool {
    match (stored.parse::<u64>(), listed.parse::<u64>()) {
        (Ok(stored), Ok(listed)) => listed > stored,
        _ => listed != stored,
    }
}

#[cfg(test)]
mod tests;
