//! CHECK: compares what is there with the result of ADD: interface, addresses, routes, neighbours, the host's way to the
//! pod, and the daemon's record.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use cns::{
    nic::{Attachment, Netns, PodRoute, Transparent, gateway},
    proto::v1 as pb,
};
use ipnet::IpNet;

use crate::{
    daemon::{Invocation, attachment},
    environment::{Command, Environment},
    error::{CniError, Code},
    netconf::NetConf,
    result::AddResult,
};

/// Something else may be rearranging routes at the moment; what is still wrong after these waits is wrong.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];

pub(crate) async fn run(environment: &Environment, netconf: &NetConf) -> Result<(), CniError> {
    let invocation = Invocation::begin(Command::Check, netconf)?;
    let attachment = attachment(environment, netconf)?;
    let path = environment.netns.clone().unwrap_or_default();
    let expected = Expected::read(netconf.previous.as_ref(), &attachment, &path.display().to_string())?;

    let cannot = |error: cns::nic::NicError| CniError::of_nic("cannot check the sandbox", &error);
    let host = Netns::current().map_err(|error| cannot(error.into()))?;
    let pod = Netns::open_pod(&path, &host)
        .map_err(|error| CniError::new(Code::Deviates, format!("CNI_NETNS: {error}")))?;
    let plane = Transparent::new(host).map_err(cannot)?;

    let mut waits = LOOK_AGAIN.into_iter();
    let mut wrong: Vec<String> = loop {
        let found = plane.check(&pod, &attachment, &expected.addresses, &expected.routes).await;
        let found = found.map_err(cannot)?;
        match waits.next() {
            Some(wait) if !found.is_empty() => tokio::time::sleep(wait).await,
            _ => break found.iter().map(ToString::to_string).collect(),
        }
    };
    wrong.extend(expected.compare_with_record(&invocation, &attachment).await?);
    if wrong.is_empty() {
        return Ok(());
    }
    Err(CniError::new(Code::Deviates, format!("{attachment} is not as it was wired: {}", wrong.join("; ")))
        .details("delete the pod to have it wired anew"))
}

/// What ADD's result promised.
struct Expected {
    addresses: Vec<IpNet>,
    routes: Vec<PodRoute>,
}

impl Expected {
    fn read(previous: Option<&AddResult>, attachment: &Attachment, netns: &str) -> Result<Self, CniError> {
        let invalid = |message: String| CniError::new(Code::InvalidConfig, message);
        let previous =
            previous.ok_or_else(|| invalid("CHECK needs `prevResult`, the result of ADD".into()))?;
        let addresses = previous.addresses_of(attachment.ifname().as_str(), netns);
        if addresses.is_empty() {
            return Err(invalid(format!(
                "`prevResult` has no address of interface {} in sandbox {netns}",
                attachment.ifname()
            )));
        }
        // Plugins that come after us in a chain may have added routes over gateways of their own.
        let ours = previous.routes.iter().filter_map(|route| {
            let ours = gateway(cns::model::Family::of(route.dst.addr()));
            (route.gw == Some(ours)).then_some(PodRoute { destination: route.dst, gateway: route.gw })
        });
        Ok(Self { addresses, routes: ours.collect() })
    }

    /// How the daemon's record differs.
    async fn compare_with_record(
        &self,
        invocation: &Invocation,
        attachment: &Attachment,
    ) -> Result<Option<String>, CniError> {
        let request = pb::GetEndpointRequest { container_id: attachment.container().to_string() };
        let record = match invocation.client.get_endpoint(request).await {
            Ok(answer) => answer.endpoint.unwrap_or_default(),
            Err(error) if error.is_not_found() => {
                return Ok(Some(format!("the daemon knows no container {}", attachment.container())));
            }
            Err(error) => return Err(CniError::of_call("cannot ask the daemon for its record", &error)),
        };
        let interface = record.interfaces.iter().find(|found| found.ifname == attachment.ifname().as_str());
        let recorded: BTreeSet<IpAddr> = interface
            .into_iter()
            .flat_map(|found| found.ipv4.iter().chain(&found.ipv6))
            .filter_map(|text| text.parse::<IpNet>().ok())
            .map(|net| net.addr())
            .collect();
        let wired: BTreeSet<IpAddr> = self.addresses.iter().map(IpNet::addr).collect();
        Ok((recorded != wired).then(|| {
            let list = |addresses: &BTreeSet<IpAddr>| {
                addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            format!("the daemon has recorded [{}] for it, not [{}]", list(&recorded), list(&wired))
        }))
    }
}
