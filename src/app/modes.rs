//! What each channel mode starts, beside the ledger, the services and the reconciler. CRD and MultiTenantCRD are not part of this
//! daemon yet.
//!
//! | mode | NCs come from | pods' addresses | also | ready | CNI list |
//! |---|---|---|---|---|---|
//! | Standalone | one static NC per `--standalone-cidr` | the same | masquerade | at once | when ready |
//! | Direct | DNC, over REST or gRPC | DNC's NCs | SNAT rules | at once | never |
//! | Managed | DNC, polled | DNC's NCs | SNAT rules | once registered | never |
//! | AzureHost | NMAgent's list of the host's addresses | the same | | with the first addresses | with the first fetch |
//!
//! Managed and AzureHost are ready no longer when DNC or NMAgent has failed three times in a row, and again with its first answer. The CNI
//! list stays.

use std::{io, path::Path, sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::{sync::watch, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::AppError;
use crate::{
    config::{ChannelMode, Config, LegacyPaths},
    conflist, gateway,
    host::{
        Agents,
        dnc::{DNC_LIMITS, Dnc, DncConfig, RegisterPatience},
        http::{AgentState, Limits, Roots},
    },
    ledger::{Command, Ledger, MissingAssigned, NcOrigin, UpsertNc},
    model::{Actor, Family, NcId, OrchestratorType},
    nic::{Backend, Masquerade, Netns, enable_forwarding},
    pool::static_cidr::{MOST_NCS, StaticNc, nc_id},
    readiness::Readiness,
    service::{LegacyDocuments, LegacyFormat},
    sources::{
        Alarm, Alarms, SourceHandle, Turns,
        cni_update::CniUpdates,
        managed::Managed,
        node_subnet::{self, NodeSubnet},
    },
    store::legacy::LegacyFiles,
    telemetry::metrics::Metrics,
};

/// What the mode waits for before it can do what it is for.
pub(super) fn readiness(mode: ChannelMode) -> Readiness {
    match mode {
        ChannelMode::Managed => Readiness::waiting("registration of this node with DNC"),
        ChannelMode::AzureHost => Readiness::waiting("the host's secondary addresses from NMAgent"),
        _ => Readiness::ready(),
    }
}

/// The mode's source of network containers, not running yet.
#[derive(Debug)]
pub(super) enum Source {
    Managed(Box<Managed>),
    NodeSubnet(Box<NodeSubnet>, watch::Receiver<Option<Alarm>>),
}

/// The source of the modes that fetch their NCs.
pub(super) fn source(
    config: &Config,
    ledger: &Ledger,
    agents: Option<&Agents>,
    cni_updates: Option<CniUpdates>,
    metrics: &Arc<Metrics>,
    readiness: &Readiness,
) -> Result<Option<Source>, AppError> {
    let Some(agents) = agents.cloned() else { return Ok(None) };
    let (ledger, alarms, readiness) = (ledger.clone(), Alarms::default(), readiness.clone());
    if config.channel_mode == ChannelMode::AzureHost {
        let told = alarms.told();
        let source = NodeSubnet::new(ledger, agents.nmagent, alarms, readiness);
        return Ok(Some(Source::NodeSubnet(Box::new(source), told)));
    }
    let Some(managed) = &config.managed else { return Ok(None) };
    let node = DncConfig {
        endpoint: managed.endpoint.clone(),
        infrastructure_network_id: managed.infrastructure_network_id.clone(),
        node_id: managed.node_id.clone(),
    };
    // For Go, 0 is no limit at all.
    let told = |limit: Duration, default| if limit.is_zero() { default } else { limit };
    let connect = told(config.legacy_flags.http_connection_timeout, DNC_LIMITS.connect);
    let answer = told(config.legacy_flags.http_response_header_timeout, DNC_LIMITS.total);
    let limits = Limits { connect, attempt: answer, total: answer, ..DNC_LIMITS };
    let source = Managed {
        ledger,
        dnc: Dnc::new(node, limits, Roots::System)?,
        agents,
        observer: metrics.clone(),
        cni_updates,
        decode: gateway::read_network_container,
        patience: RegisterPatience::default(),
        turns: Turns::every(managed.sync_interval),
        alarms,
        readiness,
    };
    Ok(Some(Source::Managed(Box::new(source))))
}

impl Source {
    /// What the services see of it.
    pub(super) fn handle(&self) -> SourceHandle {
        match self {
            Self::Managed(source) => {
                SourceHandle { sync: Some(source.turns.trigger()), alarms: source.alarms.told() }
            }
            Self::NodeSubnet(_, alarms) => SourceHandle { sync: None, alarms: alarms.clone() },
        }
    }

    /// How DNC is doing, where it is the source.
    pub(super) fn dnc(&self) -> Option<AgentState> {
        match self {
            Self::Managed(source) => Some(source.dnc.state().clone()),
            Self::NodeSubnet(..) => None,
        }
    }

    /// Whether addresses were fetched, where that is what the CNI list waits for.
    pub(super) fn fetched(&self) -> Option<watch::Receiver<bool>> {
        match self {
            Self::Managed(_) => None,
            Self::NodeSubnet(source, _) => Some(source.fetched()),
        }
    }

    /// Runs it until told to stop.
    pub(super) async fn run(self, stop: CancellationToken) -> Result<(), AppError> {
        match self {
            Self::Managed(source) => Ok(source.run(stop).await?),
            Self::NodeSubnet(source, _) => {
                source.run(stop).await;
                Ok(())
            }
        }
    }
}

/// Whether rules of `ProgramSNATIPTables` are looked after: where they are wanted, and where an earlier run may have made some.
pub(super) fn may_have_snat(config: &Config) -> bool {
    let by_mode = !matches!(config.channel_mode, ChannelMode::Standalone);
    config.program_snat || (by_mode && nix::unistd::geteuid().is_root())
}

/// The keeper of the CNI configuration list, if one is to be written and the mode has one (spec/conflist.md §2).
pub(super) fn conflist(config: &Config) -> Option<conflist::Keeper> {
    let wanted = config.conflist.clone()?;
    match config.channel_mode {
        ChannelMode::Direct | ChannelMode::Managed => None,
        _ => Some(conflist::Keeper::new(wanted.path, wanted.scenario, wanted.programs)),
    }
}

/// Brings the static NCs in line with the configuration. A pod's address is never dropped: it stays with the pod and goes
/// when the pod lets go.
pub(super) async fn standalone(ledger: &Ledger, ncs: &[StaticNc]) -> Result<(), AppError> {
    let actor = || Actor::internal("configuration");
    pool_of_pods(ledger).await?;
    remove(ledger, &[node_subnet::nc_id()]).await?;
    // What is no longer configured goes first: its addresses may belong to another network now.
    remove_static_from(ledger, ncs.len()).await?;
    for (index, nc) in ncs.iter().enumerate() {
        for net in nc.clamped() {
            tracing::warn!(%net, "only the first addresses of this network are served");
        }
        let mut spec = nc.spec(index);
        let stored = ledger.view().nc(&spec.id).map(|nc| nc.record.clone());
        // A network that moved or shrank is a new definition of the same NC; the source may do that, a control plane not.
        let origin = match stored {
            Some(stored) if stored.spec.ip_configuration.subnet != spec.ip_configuration.subnet => {
                NcOrigin::Api
            }
            _ => NcOrigin::ControlPlane,
        };
        spec.host_primary_ip = None;
        let upsert = UpsertNc { spec, origin, missing: MissingAssigned::Keep, programmed: Some(0) };
        let upserted = ledger.upsert_nc(actor(), upsert).await?;
        if !upserted.withdrawn.is_empty() {
            tracing::warn!(
                %nc, addresses = ?upserted.withdrawn,
                "pods hold addresses outside the configured network; they keep them until they end"
            );
        }
    }
    Ok(())
}

/// The mode says where pods' addresses come from, whatever a client or an earlier life in another mode said: from a pool.
pub(super) async fn pool_of_pods(ledger: &Ledger) -> Result<(), AppError> {
    let stored = ledger.view().orchestrator().clone();
    if stored.kind == Some(OrchestratorType::KubernetesCrd) {
        return Ok(());
    }
    if let Some(kind) = stored.kind {
        tracing::warn!(%kind, "this channel mode serves pods from a pool; the recorded orchestrator type is replaced");
    }
    let hostname = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let node_id = Some(stored.node_id).filter(|id| !id.is_empty()).or_else(hostname).unwrap_or_default();
    let command = Command::SetOrchestrator {
        kind: OrchestratorType::KubernetesCrd,
        node_id,
        partition_key: stored.partition_key,
    };
    ledger.submit(Actor::internal("configuration"), command).await?;
    Ok(())
}

/// Everything comes from DNC, the orchestrator's kind too. What an earlier life in a mode with NCs of our own left goes, as far as
/// no pod holds it.
pub(super) async fn from_dnc(ledger: &Ledger) -> Result<(), AppError> {
    remove(ledger, &[node_subnet::nc_id()]).await?;
    remove_static_from(ledger, 0).await
}

/// Brings the node subnet NC in line with the pods that run. Where an earlier run left free addresses, the node can give these
/// whether or not NMAgent answers.
pub(super) async fn azure_host(ledger: &Ledger, readiness: &Readiness) -> Result<(), AppError> {
    node_subnet::restore(ledger).await?;
    if node_subnet::has_free_addresses(ledger) {
        readiness.set_ready();
    }
    Ok(())
}

async fn remove_static_from(ledger: &Ledger, index: usize) -> Result<(), AppError> {
    remove(ledger, &(index..MOST_NCS).map(nc_id).collect::<Vec<_>>()).await
}

async fn remove(ledger: &Ledger, ids: &[NcId]) -> Result<(), AppError> {
    let unwanted: Vec<NcId> = {
        let view = ledger.view();
        ids.iter().filter(|id| view.nc(id).is_some()).cloned().collect()
    };
    for id in unwanted {
        let (_, kept) = ledger.delete_nc(Actor::internal("configuration"), id.clone()).await?;
        tracing::warn!(nc = %id, in_use = kept.len(), "a network is no longer configured and was removed");
    }
    Ok(())
}

/// Takes over the reference's files at the first start.
pub(super) async fn import_legacy(ledger: &Ledger, paths: &LegacyPaths) -> Result<(), AppError> {
    let read = |path: Option<&Path>| match path.map(std::fs::read) {
        Some(Ok(content)) => Ok(content),
        None => Ok(Vec::new()),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Some(Err(error)) => {
            let path = path.unwrap_or(Path::new("")).display();
            Err(AppError::Import(format!("{path}: {error}")))
        }
    };
    let documents = LegacyDocuments {
        azure_cns: read(Some(&paths.azure_cns))?,
        azure_endpoints: read(Some(&paths.azure_endpoints))?,
        azure_vnet: read(paths.azure_vnet.as_deref())?,
    };
    if documents == LegacyDocuments::default() {
        if paths.by_default {
            tracing::info!(?paths, "no file of the reference is there; the state begins empty");
        } else {
            tracing::warn!(?paths, "no file of the reference is there; nothing to import");
        }
        return Ok(());
    }
    let (legacy, mut skipped) = LegacyFiles.parse(&documents).map_err(AppError::Import)?;
    let imported = ledger.import_legacy(Actor::internal("import"), legacy).await?;
    skipped.extend(imported.skipped);
    for why in &skipped {
        tracing::warn!(why, "not imported");
    }
    tracing::info!(
        ncs = imported.ncs,
        endpoints = imported.endpoints,
        addresses = imported.assigned,
        "imported the reference's state"
    );
    Ok(())
}

/// The packet rules as they are wanted, and by which program they were made.
#[derive(Clone, Debug)]
pub(super) struct Masquerading {
    rules: Masquerade,
    backend: Backend,
}

/// Makes the rules that let pods reach the world, or removes them.
pub(super) async fn masquerade(config: &Config) -> Result<Option<Masquerading>, AppError> {
    let networks: Vec<IpNet> = config.standalone_cidrs.iter().flat_map(StaticNc::networks).collect();
    let wanted = config.masquerade;
    if !wanted && !nix::unistd::geteuid().is_root() {
        return Ok(None);
    }
    let rules = Masquerade { pods: networks, keep: Vec::new() };
    let done = spawn_blocking(move || {
        if wanted {
            reach_the_world(&rules).map(|backend| Some(Masquerading { rules, backend }))
        } else {
            remove_masquerade().map(|()| None)
        }
    });
    let done = done.await.map_err(|error| AppError::Masquerade(error.to_string()))?;
    let done = done.map_err(AppError::Masquerade)?;
    if let Some(Masquerading { backend, .. }) = &done {
        tracing::info!(?backend, "traffic that leaves the pod networks is masqueraded");
    }
    Ok(done)
}

/// Looks now and then whether the rules still stand, and makes them again if not: whoever reloads the firewall does not know
/// them.
pub(super) async fn keep_masquerading(
    mut masquerading: Masquerading,
    every: Duration,
    stop: CancellationToken,
) {
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let Masquerading { rules, backend } = masquerading.clone();
        let looked = spawn_blocking(move || {
            let host = Netns::current().map_err(|error| error.to_string())?;
            if rules.is_in_place(backend, &host).map_err(|error| error.to_string())? {
                return Ok(None);
            }
            reach_the_world(&rules).map(Some)
        });
        match looked.await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(backend))) => {
                tracing::warn!(
                    ?backend,
                    "the packet rules that let pods reach the world had gone, and are made again"
                );
                masquerading.backend = backend;
            }
            Ok(Err(error)) => {
                tracing::error!(error, "the packet rules that let pods reach the world may be gone");
            }
            Err(error) => tracing::error!(%error, "looking after the packet rules failed"),
        }
    }
}

/// Switches forwarding on and makes the rules. Blocks.
fn reach_the_world(rules: &Masquerade) -> Result<Backend, String> {
    let host = Netns::current().map_err(|error| error.to_string())?;
    let used = |family: &Family| rules.pods.iter().any(|net| Family::of(net.addr()) == *family);
    let families: Vec<Family> = Family::ALL.into_iter().filter(used).collect();
    enable_forwarding(&host, &families).map_err(|error| error.to_string())?;
    rules.apply(&host).map_err(|error| error.to_string())
}

/// Removes the rules that this daemon made, in whatever run. Blocks.
pub fn remove_masquerade() -> Result<(), String> {
    let host = Netns::current().map_err(|error| error.to_string())?;
    Masquerade::remove(&host).map_err(|error| error.to_string())
}
