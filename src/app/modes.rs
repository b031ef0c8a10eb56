//! What each channel mode starts. Only Standalone is part of this daemon yet:
//!
//! | mode | NCs come from | pods' addresses | also |
//! |---|---|---|---|
//! | Standalone | one static NC per `--standalone-cidr` | the same | masquerade, reconciler |

use std::path::Path;

use super::AppError;
use crate::{
    config::Config,
    ledger::{Command, Ledger, MissingAssigned, NcOrigin, UpsertNc},
    model::{Actor, NcId, OrchestratorType},
    nic::rules,
    pool::static_cidr::{MOST_NCS, StaticNc, nc_id},
    service::{LegacyDocuments, LegacyFormat},
    store::legacy::LegacyFiles,
};

/// Brings the static NCs in line with the configuration. A pod's address is never dropped: it stays with the pod and goes
/// when the pod lets go.
pub(super) async fn standalone(ledger: &Ledger, ncs: &[StaticNc]) -> Result<(), AppError> {
    let actor = || Actor::internal("configuration");
    if ledger.view().orchestrator().kind.is_none() {
        let node_id =
            nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let command = Command::SetOrchestrator {
            kind: OrchestratorType::KubernetesCrd,
            node_id,
            partition_key: String::new(),
        };
        ledger.submit(actor(), command).await?;
    }
    // What is no longer configured goes first: its addresses may belong to another network now.
    let unwanted: Vec<NcId> = {
        let view = ledger.view();
        (ncs.len()..MOST_NCS).map(nc_id).filter(|id| view.nc(id).is_some()).collect()
    };
    for id in unwanted {
        let (_, kept) = ledger.delete_nc(actor(), id.clone()).await?;
        tracing::warn!(nc = %id, in_use = kept.len(), "a network is no longer configured and was removed");
    }
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

/// Takes over the reference's files at the first start.
pub(super) async fn import_legacy(ledger: &Ledger, directory: &Path) -> Result<(), AppError> {
    let read = |name: &str| match std::fs::read(directory.join(name)) {
        Ok(content) => Ok(content),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(AppError::Import(format!("{}: {error}", directory.join(name).display()))),
    };
    let documents = LegacyDocuments {
        azure_cns: read("azure-cns.json")?,
        azure_endpoints: read("azure-endpoints.json")?,
        azure_vnet: read("azure-vnet.json")?,
    };
    if documents == LegacyDocuments::default() {
        tracing::warn!(directory = %directory.display(), "no file of the reference is there; nothing to import");
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

/// Pods reach the world, or no longer do.
pub(super) async fn masquerade(config: &Config) -> Result<(), AppError> {
    let networks: Vec<ipnet::IpNet> = config.standalone_cidrs.iter().flat_map(StaticNc::networks).collect();
    let failed = |error: rules::RulesError| AppError::Masquerade(error.to_string());
    if config.masquerade {
        rules::masquerade(&networks).await.map_err(failed)?;
        tracing::info!(?networks, "traffic that leaves the pod networks is masqueraded");
    } else if nix::unistd::geteuid().is_root() {
        rules::remove_masquerade().await.map_err(failed)?;
    }
    Ok(())
}
