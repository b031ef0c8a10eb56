//! GC: what belongs to this network and to no attachment that the runtime still knows is taken away.
//!
//! An attachment is found by three marks, each of which an interrupted ADD or DEL may have left alone: the alias of a host
//! veth, an intent record, and the daemon's endpoint record, whose veth name is a hash that includes the network's name.
//! Other networks that the same daemon serves are never touched.

use std::collections::HashMap;

use cns::{
    model::{BootTime, PodIdentity},
    nic::{Attachment, Netns, Transparent},
    proto::v1 as pb,
};

use crate::{
    daemon::Invocation,
    del,
    environment::{Command, Environment},
    error::{CniError, Code},
    intent::{Intent, Intents},
    netconf::NetConf,
};

/// What is known of an attachment that nobody wants any more.
#[derive(Debug, Default)]
struct Stray {
    pod: PodIdentity,
    intent: Option<Intent>,
}

pub(crate) async fn run(_: &Environment, netconf: &NetConf) -> Result<(), CniError> {
    let invocation = Invocation::begin(Command::Gc, netconf)?;
    let Some(valid) = &netconf.valid else {
        return Err(CniError::new(
            Code::InvalidConfig,
            "GC needs `cni.dev/valid-attachments`, the list of attachments to keep",
        ));
    };
    let lives = |attachment: &Attachment| {
        valid.contains(&(attachment.container().to_string(), attachment.ifname().to_string()))
    };
    let mut failures = Vec::new();
    let mut strays: HashMap<Attachment, Stray> = HashMap::new();

    match marked_veths(&netconf.name).await {
        Ok(found) => strays.extend(found.into_iter().map(|attachment| (attachment, Stray::default()))),
        Err(error) => failures.push(error),
    }
    match Intents::at(&netconf.intent_dir).of_network(&netconf.name) {
        Ok(found) => {
            for intent in found {
                if let Some(attachment) = intent.attachment() {
                    strays.entry(attachment).or_default().intent = Some(intent);
                }
            }
        }
        Err(error) => failures.push(CniError::new(
            Code::Io,
            format!("cannot read the intent records in {}: {error}", netconf.intent_dir.display()),
        )),
    }
    match recorded(&invocation, &netconf.name).await {
        Ok(found) => {
            for (attachment, pod) in found {
                strays.entry(attachment).or_default().pod = pod;
            }
        }
        Err(error) => failures.push(error),
    }

    for (attachment, stray) in strays {
        // An ADD that began after us is no stray, whatever the list says.
        let is_newer =
            stray.intent.as_ref().is_some_and(|intent| BootTime::from_nanos(intent.began) > invocation.began);
        if lives(&attachment) || is_newer {
            continue;
        }
        let sandbox = stray.intent.as_ref().and_then(Intent::open_netns).filter(|netns| !is_host(netns));
        let done = del::tear_down(&invocation, &attachment, &stray.pod, sandbox.as_ref(), netconf).await;
        failures.extend(
            done.err().map(|error| CniError { message: format!("{attachment}: {}", error.message), ..error }),
        );
    }
    let Some(first) = failures.first().cloned() else { return Ok(()) };
    let messages: Vec<_> = failures.into_iter().map(|error| error.message).collect();
    Err(CniError { message: messages.join("; "), ..first })
}

fn is_host(netns: &Netns) -> bool {
    Netns::current().is_ok_and(|host| host.id() == netns.id())
}

/// Attachments of the network by the aliases of host veths.
async fn marked_veths(network: &str) -> Result<Vec<Attachment>, CniError> {
    let cannot = |error: cns::nic::NicError| CniError::of_nic("cannot list the host's interfaces", &error);
    let host = Netns::current().map_err(|error| cannot(error.into()))?;
    let ours = Transparent::new(host).map_err(cannot)?.list_ours().await.map_err(cannot)?;
    let marked = ours.into_iter().filter_map(|veth| veth.attachment);
    Ok(marked.filter(|attachment| attachment.network() == network).collect())
}

/// Attachments of the network by the daemon's records.
async fn recorded(
    invocation: &Invocation,
    network: &str,
) -> Result<Vec<(Attachment, PodIdentity)>, CniError> {
    let endpoints = invocation.client.list_all_endpoints(pb::ListEndpointsRequest::default()).await;
    let endpoints =
        endpoints.map_err(|error| CniError::of_call("cannot list the daemon's endpoints", &error))?;
    let mut found = Vec::new();
    for endpoint in endpoints {
        let pod = endpoint.pod.unwrap_or_default();
        let pod = PodIdentity::new(&pod.namespace, &pod.name).unwrap_or_default();
        for interface in &endpoint.interfaces {
            let (Ok(container), Ok(ifname)) = (endpoint.container_id.parse(), interface.ifname.parse())
            else {
                continue;
            };
            let attachment = Attachment::new(network, container, ifname);
            found.extend(
                attachment
                    .ok()
                    .filter(|attachment| attachment.host_veth() == interface.host_veth_name)
                    .map(|attachment| (attachment, pod.clone())),
            );
        }
    }
    Ok(found)
}
