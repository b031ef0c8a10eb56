//! One invocation and the daemon it talks to.

use std::time::Duration;

use cns::{
    model::{BootTime, PodIdentity},
    nic::Attachment,
    proto::v1 as pb,
};
use cns_client::{Client, Options, Retry};

use crate::{
    environment::{Command, Environment},
    error::{CniError, Code},
    netconf::NetConf,
    queue,
};

/// One run of the plugin.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    pub(crate) client: Client,
    /// When it began: lets the daemon order calls that overtake each other (design §4).
    pub(crate) began: BootTime,
    /// Names this run in the daemon's logs and journal.
    pub(crate) id: String,
}

impl Invocation {
    /// Must be called within a tokio runtime. Connects with the first call.
    pub(crate) fn begin(command: Command, netconf: &NetConf) -> Result<Self, CniError> {
        let began = BootTime::read();
        let id = format!("cni-{}-{:x}", command.as_str().to_ascii_lowercase(), began.nanos());
        let options = match command {
            // A release can be left for later: no need to wait for a daemon that restarts.
            Command::Del => {
                Options { retry: Retry { attempts: 3, ..Retry::default() }, ..Options::default() }
            }
            _ => Options { deadline: Duration::from_secs(10), ..Options::default() },
        };
        let client = Client::new(&netconf.socket, options)
            .map_err(|error| CniError::of_call("`socket` of the network configuration", &error))?;
        Ok(Self { client: client.with_request_id(&id), began, id })
    }

    /// Gives back what the attachment holds. Nothing held is success.
    pub(crate) async fn release(
        &self,
        attachment: &Attachment,
        pod: &PodIdentity,
    ) -> Result<(), cns_client::Error> {
        let request = pb::ReleaseIpConfigsRequest {
            pod: Some(identity(pod)),
            infra_container_id: attachment.container().to_string(),
            pod_interface_id: interface_id(attachment),
            ifname: attachment.ifname().to_string(),
            began_boottime_ns: Some(self.began.nanos()),
            ..Default::default()
        };
        self.client.release_ip_configs(request).await.map(drop)
    }

    /// As [`Self::release`]; where the daemon cannot be asked, the wish is left for it.
    pub(crate) async fn release_or_leave(
        &self,
        attachment: &Attachment,
        pod: &PodIdentity,
        netconf: &NetConf,
    ) -> Result<(), CniError> {
        let Err(error) = self.release(attachment, pod).await else { return Ok(()) };
        let undelivered = error.is_unreachable() || matches!(error, cns_client::Error::Timeout { .. });
        let failed = CniError::of_call("cannot release the addresses", &error);
        match &netconf.async_delete_dir {
            Some(directory) if undelivered => {
                queue::leave(directory, attachment.container(), &interface_id(attachment)).map(drop).map_err(
                    |error| {
                        failed.details(format!(
                            "and the release could not be left in {} for later: {error}",
                            directory.display()
                        ))
                    },
                )
            }
            _ => Err(failed),
        }
    }
}

/// A command's failure that the runtime should repeat the command for.
pub(crate) fn retry_later(error: CniError) -> CniError {
    CniError { code: Code::TryAgainLater, ..error }
}

/// `podInterfaceID`: the first 8 characters of the container id, `-`, interface (spec/cni-plugin.md §4).
pub(crate) fn interface_id(attachment: &Attachment) -> String {
    let container = attachment.container().as_str();
    // A container id is ASCII.
    format!("{}-{}", container.get(..8).unwrap_or(container), attachment.ifname())
}

pub(crate) fn identity(pod: &PodIdentity) -> pb::PodIdentity {
    pb::PodIdentity { namespace: pod.namespace().to_owned(), name: pod.name().to_owned() }
}

/// The attachment that the environment and the configuration name.
pub(crate) fn attachment(environment: &Environment, netconf: &NetConf) -> Result<Attachment, CniError> {
    let (container, ifname) = environment.interface()?;
    Attachment::new(&netconf.name, container.clone(), ifname.clone())
        .map_err(|error| CniError::new(Code::Environment, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_ids_are_the_first_eight_characters_and_the_interface() {
        for (container, id) in [("1f2e3d4c5b6a", "1f2e3d4c-eth0"), ("short", "short-eth0")] {
            let attachment =
                Attachment::new("n", container.parse().unwrap(), "eth0".parse().unwrap()).unwrap();
            assert_eq!(interface_id(&attachment), id);
        }
    }
}
