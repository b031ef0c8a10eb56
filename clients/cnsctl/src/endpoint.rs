//! `endpoint list`, `endpoint get`.

use cns::proto::v1 as pb;
use cns_client::Client;
use serde::Serialize;

use crate::{
    args::EndpointCommand,
    failure::{Exit, Failure},
    output::{Cell, Out, Page, Tone},
    view::{Pod, Time, ago, container_cell, given, nic_type, pod_cell},
};

/// The record of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Endpoint {
    container_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<Pod>,
    pod_interface_id: String,
    interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<Sandbox>,
    witnessed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    began_boottime_ns: Option<u64>,
    created: Option<Time>,
    updated: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Interface {
    ifname: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    nic_type: Option<String>,
    ipv4: Vec<String>,
    ipv6: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_veth_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hns_endpoint_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hns_network_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_container_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_ifindex: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Sandbox {
    #[serde(rename = "netnsPath")]
    path: String,
    #[serde(rename = "netnsInode", skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(rename = "netnsDevice", skip_serializing_if = "Option::is_none")]
    device: Option<u64>,
}

impl Endpoint {
    pub(crate) fn from_wire(wire: pb::Endpoint) -> Self {
        Self {
            container_id: wire.container_id,
            pod: Pod::from_wire(wire.pod),
            pod_interface_id: wire.pod_interface_id,
            interfaces: wire.interfaces.into_iter().map(Interface::from_wire).collect(),
            sandbox: wire.sandbox.map(|sandbox| Sandbox {
                path: sandbox.netns_path,
                inode: known(sandbox.netns_inode),
                device: known(sandbox.netns_device),
            }),
            witnessed: wire.witnessed,
            began_boottime_ns: wire.began_boottime_ns,
            created: Time::from_wire(wire.created),
            updated: Time::from_wire(wire.updated),
        }
    }
}

impl Interface {
    fn from_wire(wire: pb::EndpointInterface) -> Self {
        Self {
            ifname: wire.ifname,
            nic_type: nic_type(wire.nic_type),
            ipv4: wire.ipv4,
            ipv6: wire.ipv6,
            host_veth_name: given(wire.host_veth_name),
            mac_address: given(wire.mac_address),
            hns_endpoint_id: given(wire.hns_endpoint_id),
            hns_network_id: given(wire.hns_network_id),
            network_container_id: given(wire.network_container_id),
            host_name: given(wire.host_name),
            host_ifindex: known(wire.host_ifindex),
        }
    }

    fn addresses(&self) -> String {
        self.ipv4.iter().chain(&self.ipv6).map(String::as_str).collect::<Vec<_>>().join(",")
    }
}

/// Zero is the wire's "not known".
fn known<T: PartialEq + Default>(number: T) -> Option<T> {
    (number != T::default()).then_some(number)
}

#[derive(Debug, Serialize)]
struct List {
    endpoints: Vec<Endpoint>,
}

/// Endpoints as a table: a row for each interface.
pub(crate) fn table(page: Page, endpoints: &[Endpoint], whole: bool, now: jiff::Timestamp) -> Page {
    let rows = endpoints
        .iter()
        .flat_map(|endpoint| {
            let row = |interface: Option<&Interface>| {
                let text = |get: fn(&Interface) -> String| interface.map(get).unwrap_or_default().into();
                vec![
                    container_cell(&endpoint.container_id, whole),
                    pod_cell(endpoint.pod.as_ref()),
                    text(|interface| interface.ifname.clone()),
                    text(Interface::addresses),
                    text(|interface| {
                        interface.host_veth_name.clone().or(interface.host_name.clone()).unwrap_or_default()
                    }),
                    endpoint.sandbox.as_ref().map(|sandbox| sandbox.path.clone()).unwrap_or_default().into(),
                    ago(endpoint.created, now),
                ]
            };
            match endpoint.interfaces.as_slice() {
                [] => vec![row(None)],
                some => some.iter().map(|interface| row(Some(interface))).collect(),
            }
        })
        .collect();
    page.table(&["CONTAINER", "POD", "INTERFACE", "ADDRESSES", "HOST", "SANDBOX", "SINCE"], rows)
}

fn detail(endpoint: &Endpoint, now: jiff::Timestamp) -> Page {
    let mut fields = vec![
        ("container", endpoint.container_id.clone().into()),
        ("pod", pod_cell(endpoint.pod.as_ref())),
        ("interface id", endpoint.pod_interface_id.clone().into()),
    ];
    if let Some(sandbox) = &endpoint.sandbox {
        let inode = sandbox.inode.map(|inode| format!(" (inode {inode})")).unwrap_or_default();
        fields.push(("sandbox", format!("{}{inode}", sandbox.path).into()));
        fields.push(if endpoint.witnessed {
            ("seen alive", "yes: its addresses are taken back when it is gone".into())
        } else {
            ("seen alive", Cell::toned("no: the daemon will not judge whether it is gone", Tone::Attention))
        });
    }
    for (name, time) in [("created", endpoint.created), ("changed", endpoint.updated)] {
        if let Some(time) = time {
            fields.push((name, format!("{} ({} ago)", time.short(), time.ago(now)).into()));
        }
    }
    let rows = endpoint
        .interfaces
        .iter()
        .map(|interface| {
            let text = |text: &Option<String>| Cell::from(text.clone().unwrap_or_default());
            vec![
                interface.ifname.clone().into(),
                text(&interface.nic_type),
                interface.addresses().into(),
                text(&interface.mac_address),
                text(&interface.host_veth_name.clone().or(interface.host_name.clone())),
            ]
        })
        .collect();
    Page::new().fields(fields).table(&["INTERFACE", "NIC", "ADDRESSES", "MAC", "HOST"], rows)
}

pub(crate) async fn run(command: EndpointCommand, client: &Client, out: &mut Out) -> Result<(), Failure> {
    match command {
        EndpointCommand::List => {
            let endpoints = client.list_all_endpoints(pb::ListEndpointsRequest::default()).await?;
            let list = List { endpoints: endpoints.into_iter().map(Endpoint::from_wire).collect() };
            let whole = !out.is_terminal();
            out.print(&list, |list| table(Page::new(), &list.endpoints, whole, jiff::Timestamp::now()))
        }
        EndpointCommand::Get { container_id } => {
            let request = pb::GetEndpointRequest { container_id: container_id.to_string() };
            let endpoint = client.get_endpoint(request).await?.endpoint.ok_or_else(|| {
                Failure::new(Exit::NotFound, format!("there is no record of container {container_id}"))
            })?;
            out.print(&Endpoint::from_wire(endpoint), |endpoint| detail(endpoint, jiff::Timestamp::now()))
        }
    }
}
