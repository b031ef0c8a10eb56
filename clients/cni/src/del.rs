//! DEL: the interface goes and the addresses go back, each whatever becomes of the other (spec/cni-plugin.md §10). It can
//! be repeated, and what is gone already is success.

use cns::{
    model::PodIdentity,
    nic::{Attachment, Netns, Teardown, Transparent},
};

use crate::{
    daemon::{Invocation, attachment, retry_later},
    environment::{Command, Environment},
    error::{CniError, Code},
    intent::{Intent, Intents},
    netconf::NetConf,
};

pub(crate) async fn run(environment: &Environment, netconf: &NetConf) -> Result<(), CniError> {
    let invocation = Invocation::begin(Command::Del, netconf)?;
    let attachment = attachment(environment, netconf)?;
    let intents = Intents::at(&netconf.intent_dir);
    let intent = intents.read(&attachment);
    let sandbox = open_sandbox(environment, intent.as_ref());
    tear_down(&invocation, &attachment, &environment.pod, sandbox.as_ref(), netconf).await
}

/// The sandbox's namespace, as far as it can still be opened: by `CNI_NETNS`, else as the ADD recorded it.
fn open_sandbox(environment: &Environment, intent: Option<&Intent>) -> Option<Netns> {
    let host = Netns::current().ok()?;
    let given = environment.netns.as_ref().and_then(|path| Netns::open_pod(path, &host).ok());
    given.or_else(|| intent.and_then(Intent::open_netns)).filter(|netns| netns.id() != host.id())
}

/// Takes an attachment away for good: interface, addresses, record.
pub(crate) async fn tear_down(
    invocation: &Invocation,
    attachment: &Attachment,
    pod: &PodIdentity,
    sandbox: Option<&Netns>,
    netconf: &NetConf,
) -> Result<(), CniError> {
    let intents = Intents::at(&netconf.intent_dir);
    let is_stale = || intents.read(attachment).is_some_and(|intent| intent.began > invocation.began.nanos());
    let mut teardown = Teardown::new();
    // First the wire, then the address: whoever gets the address next must not meet this pod. If the lock cannot be had, the
    // address still can be given back.
    if let Some(_lock) = teardown.step("lock the attachment", intents.lock(attachment).await) {
        if is_stale() {
            // The container was added again while this run was on its way: what is there is not what it was sent for.
            return Ok(());
        }
        let plane = Netns::current().map_err(Into::into).and_then(Transparent::new);
        if let Some(plane) = teardown.step("reach the host's network", plane) {
            let unwired = plane.unwire(sandbox, attachment).await;
            teardown.step(format!("take {} away", attachment.host_veth()), unwired);
        }
    }
    let released = invocation.release_or_leave(attachment, pod, netconf).await;
    match (teardown.finish(), released.err()) {
        (Ok(()), None) => {
            let _lock = intents.lock(attachment).await.map_err(retry_later)?;
            if is_stale() {
                return Ok(());
            }
            intents.remove(attachment).map_err(|error| {
                retry_later(CniError::new(Code::Io, format!("cannot remove the intent record: {error}")))
            })
        }
        (Ok(()), Some(refused)) => Err(retry_later(refused)),
        (Err(stuck), None) => Err(retry_later(CniError::new(Code::Dataplane, stuck.to_string()))),
        (Err(stuck), Some(refused)) => Err(retry_later(refused.details(stuck.to_string()))),
    }
    .map_err(|error| error.details(format!("request {}", invocation.id)))
}
