//! Packet rules of docker networks: they come and go with the network, and come back after a reboot.

use std::time::Duration;

use ipnet::IpNet;
use tokio::{sync::Mutex, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::{
    model::{Environment, NetworkName},
    nic::{Netns, NetworkMasquerade},
};

/// How often a network was created or deleted; held while rules change, so that none is made twice. Nobody asks docker under it, and
/// no pod waits for it.
static CHANGES: Mutex<u64> = Mutex::const_new(0);

/// Lets the containers of a network that was created reach the world; `false` if they could already.
pub(super) async fn masquerade(network: NetworkName, subnet: IpNet) -> Result<bool, String> {
    let mut changes = CHANGES.lock().await;
    *changes += 1;
    apply(network, subnet).await
}

async fn apply(network: NetworkName, subnet: IpNet) -> Result<bool, String> {
    blocking(move |host| NetworkMasquerade { network, subnet }.apply(host)).await
}

/// Takes the rule of a network away that is gone.
pub(super) async fn forget(network: NetworkName) -> Result<(), String> {
    let mut changes = CHANGES.lock().await;
    *changes += 1;
    blocking(move |host| NetworkMasquerade::remove(&network, host)).await
}

async fn blocking<T: Send + 'static, E: ToString>(
    work: impl FnOnce(&Netns) -> Result<T, E> + Send + 'static,
) -> Result<T, String> {
    let done = spawn_blocking(move || {
        let host = Netns::current().map_err(|error| error.to_string())?;
        work(&host).map_err(|error| error.to_string())
    });
    done.await.map_err(|error| error.to_string())?
}

/// Sees to it now and then that the networks that docker has are masqueraded: a reboot takes the rules away and leaves the networks
/// (spec/network-containers.md §16 F2 to F4), and so does whoever reloads the firewall. docker is asked only on a node of the
/// environment in which networks can be created, which most nodes are not.
pub async fn keep(context: Context, every: Duration, stop: CancellationToken) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut could = true;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        if !context.ledger.view().orchestrator().environment.as_ref().is_some_and(has_networks) {
            continue;
        }
        let kept = tokio::select! {
            () = stop.cancelled() => return,
            kept = keep_once(&context) => kept,
        };
        // Once is enough: docker may not be there for long.
        match &kept {
            Err(error) if could => {
                tracing::warn!(error, "whether docker's networks are masqueraded is not known");
            }
            _ => {}
        }
        could = kept.is_ok();
    }
}

async fn keep_once(context: &Context) -> Result<(), String> {
    let before = *CHANGES.lock().await;
    let networks = context.host.docker.masqueraded_networks().await.map_err(|error| error.to_string())?;
    let changes = CHANGES.lock().await;
    if *changes != before {
        // One of them may be gone already, and its rule with it. The next round sees.
        return Ok(());
    }
    for (network, subnet) in networks {
        if apply(network.clone(), subnet).await? {
            tracing::info!(%network, %subnet, "the network's packet rule was not there, and is made");
        }
    }
    Ok(())
}

/// Whether this is the environment that has docker networks (spec/rest-contract.md §6.2).
pub(super) fn has_networks(environment: &Environment) -> bool {
    environment.network_type == "Underlay" && environment.location == "Azure"
}
