//! Addresses back from a pod (spec/ipam.md §5): all that the key holds, with its record, or nothing.

use std::{net::IpAddr, sync::Arc};

use super::{nc, other_interface};
use crate::{
    ledger::{Rejection, ReleaseIps, ReleaseOutcome, Released, state::Tx},
    model::{ContainerId, IpRecord, IpState, OnRelease, Sandbox},
};

pub(super) fn release(tx: &mut Tx<'_>, release: ReleaseIps) -> Result<Released, Rejection> {
    if release.single {
        let found = tx.state.active().count();
        if found != 1 {
            return Err(Rejection::NotExactlyOneNc { found });
        }
    }
    let nothing = |outcome| Ok(Released { addresses: Vec::new(), outcome });
    let key = match tx.state.key(release.container.as_ref(), &release.interface_id) {
        Ok(key) => key,
        // Nobody can hold anything under an empty container id; the interface-id scheme refuses as the reference does.
        Err(_) if release.container.is_none() && release.interface_id.is_empty() => {
            return nothing(ReleaseOutcome::NothingHeld);
        }
        Err(rejection) => return Err(rejection),
    };
    let held = tx.state.held_by(&key);
    // A runtime cleans up after a failed ADD of a second interface; that must not take the first one's addresses.
    if other_interface(tx.state, release.container.as_ref(), release.ifname.as_ref()).is_some() {
        tx.why = format!(
            "{} is not an interface of this container's record",
            release.ifname.as_ref().map_or("", |ifname| ifname.as_str())
        );
        return nothing(ReleaseOutcome::OtherInterface);
    }
    if let Some(container) = &release.container
        && (release.began.is_some() || !tx.state.config.legacy_block.is_zero())
    {
        tx.bury(container, release.began);
    }
    let added = held.iter().filter_map(|record| record.state.assignment()?.began).max();
    let recorded = release.container.as_ref().and_then(|c| tx.state.endpoints.get(c)).and_then(|e| e.began);
    if let (Some(began), Some(added)) = (release.began, added.max(recorded))
        && added > began
    {
        tx.why = "stale: the container was added again after this release began".into();
        return nothing(ReleaseOutcome::Stale);
    }
    Ok(let_go(tx, release.container.as_ref(), &held))
}

/// What a sandbox that is gone holds, if the record still names that very sandbox.
pub(super) fn release_dead(
    tx: &mut Tx<'_>,
    container: &ContainerId,
    sandbox: &Sandbox,
    why: String,
) -> Released {
    let nothing = Released { addresses: Vec::new(), outcome: ReleaseOutcome::NothingHeld };
    let Some(endpoint) = tx.state.endpoints.get(container).cloned() else {
        return nothing;
    };
    if endpoint.sandbox.as_ref() != Some(sandbox) {
        tx.why = "the container lives in another sandbox now".into();
        return nothing;
    }
    tx.why = why;
    let Ok(key) = tx.state.key(Some(container), &endpoint.interface_id) else {
        return nothing;
    };
    let held = tx.state.held_by(&key);
    let_go(tx, Some(container), &held)
}

fn let_go(tx: &mut Tx<'_>, container: Option<&ContainerId>, held: &[Arc<IpRecord>]) -> Released {
    let addresses: Vec<IpAddr> = held.iter().map(|record| record.address).collect();
    for record in held {
        free(tx, record);
    }
    let had_record = container.is_some_and(|container| tx.delete_endpoint(container));
    let outcome = if addresses.is_empty() && !had_record {
        ReleaseOutcome::NothingHeld
    } else {
        ReleaseOutcome::Released
    };
    Released { addresses, outcome }
}

/// Lets one assigned address go, to wherever it is to go.
pub(super) fn free(tx: &mut Tx<'_>, record: &Arc<IpRecord>) {
    if record.on_release == OnRelease::Remove {
        tx.delete_ip(record.address);
        nc::delete_if_deserted(tx, &record.nc);
        return;
    }
    let state = match record.on_release {
        OnRelease::GiveBack => IpState::PendingRelease,
        OnRelease::Free | OnRelease::Remove => IpState::Available,
    };
    tx.put_ip(IpRecord {
        state,
        since: tx.now.wall,
        freed: Some(tx.now.boot),
        on_release: OnRelease::Free,
        ..(**record).clone()
    });
}
