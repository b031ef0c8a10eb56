//! Host veths whose container the ledger does not know (design §7): they are found by their marks, never by name alone.

use crate::{
    ledger::Ledger,
    nic::{Attachment, HostVeth, Netns, NicError, Transparent},
};

/// A host veth of ours without an endpoint record.
#[derive(Clone, Debug)]
pub struct StrayVeth {
    /// The link.
    pub veth: HostVeth,
    /// Whose it is by its alias.
    pub attachment: Attachment,
    /// This daemon remembers that the container was deleted. Without that, the veth may belong to another daemon on this
    /// host, or to a pod that runs on although the state was lost.
    pub deleted_here: bool,
}

/// The kernel's network of the daemon's own namespace.
///
/// Must be called within a tokio runtime.
pub fn host_network() -> Result<Transparent, NicError> {
    Transparent::new(Netns::current()?)
}

/// Every one of them. A container's record is made before its veth and goes after it, so one that is just being added or
/// deleted is not among them.
pub async fn strays(ledger: &Ledger, network: &Transparent) -> Result<Vec<StrayVeth>, NicError> {
    let ours = network.list_ours().await?;
    let view = ledger.view();
    let stray = |veth: HostVeth| {
        let attachment = veth.attachment.clone()?;
        let container = attachment.container();
        let is_known = view.endpoint(container).is_some();
        let deleted_here = view.tombstone(container).is_some();
        (!is_known).then_some(StrayVeth { veth, attachment, deleted_here })
    };
    Ok(ours.into_iter().filter_map(stray).collect())
}
