//! What has to happen before a changed network container of Azure Container Instances is recorded: the CNI plugin brings the pod's
//! routes in line (spec/network-containers.md §2, §14). If it cannot, the definition stays what it was, and DNC tries again.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::{
    host::cni_plugin::{CniPlugin, CniPluginError},
    ledger::Ledger,
    model::{NcSpec, NcType, PodIdentity},
};

/// The CNI plugin of the machine, run once at a time, as the plugin's own lock demands. Cheap to clone; clones share the turn.
#[derive(Clone, Debug)]
pub struct CniUpdates {
    plugin: Arc<CniPlugin>,
    turn: Arc<Mutex<()>>,
}

/// The right to record what was announced to the plugin, before anybody else announces something. `None` where the plugin has nothing
/// to do with it.
#[must_use = "the definition is recorded while this is held"]
#[derive(Debug)]
pub struct Announced(#[expect(dead_code, reason = "held, and dropped")] Option<OwnedMutexGuard<()>>);

impl CniUpdates {
    /// Nothing is run yet.
    pub fn new(plugin: CniPlugin) -> Self {
        Self { plugin: Arc::new(plugin), turn: Arc::default() }
    }

    /// Runs the plugin if `spec` is another version of a network container that it looks after. An NC that belongs to no pod is not
    /// announced: there is nobody whose routes could change.
    pub async fn announce(&self, ledger: &Ledger, spec: &NcSpec) -> Result<Announced, CniPluginError> {
        if concerned(ledger, spec).is_none() {
            return Ok(Announced(None));
        }
        let turn = self.turn.clone().lock_owned().await;
        // Who had the turn before may have recorded the same.
        if let Some(pod) = concerned(ledger, spec) {
            let updated = self.plugin.update(&spec.id, &pod).await;
            updated.inspect_err(|error| {
                tracing::error!(nc = %spec.id, %pod, %error, "the CNI plugin did not take a changed network container");
            })?;
            tracing::info!(nc = %spec.id, %pod, version = spec.version, "the CNI plugin took a changed network container");
        }
        Ok(Announced(Some(turn)))
    }
}

/// The pod, if its NC is known in another version.
fn concerned(ledger: &Ledger, spec: &NcSpec) -> Option<PodIdentity> {
    if spec.nc_type != NcType::AzureContainerInstance {
        return None;
    }
    let pod = spec.orchestrator_context.clone().filter(PodIdentity::is_known)?;
    let view = ledger.view();
    let stored = view.nc(&spec.id)?;
    (stored.record.spec.version != spec.version).then_some(pod)
}
