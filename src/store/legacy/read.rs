//! Documents → [`LegacyState`].

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::{Map, Value};

use super::json::{Node, Read, decode_bytes};
use crate::{
    ledger::{LegacyNc, LegacyState},
    model::{
        ContainerId, Endpoint, EndpointInterface, EndpointPolicy, Environment, IpConfiguration, MacAddr,
        MultiTenancyInfo, NcRoute, NcSpec, NcType, NetworkInterfaceInfo, OrchestratorType, PodIdentity,
        Sandbox, SecondaryIpConfig, Timestamp,
    },
    service::LegacyDocuments,
};

/// The key that holds the daemon's part of `azure-cns.json`.
pub(super) const CNS_KEY: &str = "ContainerNetworkService";
/// What of it the model holds; the rest is carried along.
const MODELLED: &[&str] = &[
    "Location",
    "NetworkType",
    "Initialized",
    "OrchestratorType",
    "NodeID",
    "ContainerIDByOrchestratorContext",
    "ContainerStatus",
];

pub(super) fn parse(documents: &LegacyDocuments) -> Read<(LegacyState, Vec<String>)> {
    let mut state = LegacyState::default();
    let mut skipped = Vec::new();
    let mut extra = Map::new();
    if let Some(document) = document("azure-cns.json", &documents.azure_cns)? {
        read_cns(&Node::new(&document, "azure-cns.json"), &mut state, &mut extra, &mut skipped)?;
    }
    // The endpoint store knows more recent facts than the CNI's own file; of two records of one container it counts.
    let mut endpoints = BTreeMap::new();
    if let Some(document) = document("azure-vnet.json", &documents.azure_vnet)? {
        read_vnet(&Node::new(&document, "azure-vnet.json"), &mut endpoints, &mut skipped)?;
        extra.insert("vnet".into(), document);
    }
    if let Some(document) = document("azure-endpoints.json", &documents.azure_endpoints)? {
        for (id, endpoint) in Node::new(&document, "azure-endpoints.json").get("Endpoints").entries()? {
            match read_endpoint(id, &endpoint) {
                Ok(endpoint) => drop(endpoints.insert(endpoint.container.clone(), endpoint)),
                Err(why) => skipped.push(format!("endpoint {id}: {why}")),
            }
        }
    }
    state.endpoints = endpoints.into_values().collect();
    if !extra.is_empty() {
        state.extra = Value::Object(extra).to_string().into();
    }
    Ok((state, skipped))
}

/// An empty file is none, as the reference has it.
fn document(name: &str, content: &[u8]) -> Read<Option<Value>> {
    if content.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    serde_json::from_slice(content)
        .map(Some)
        .map_err(|error| format!("{name} is no JSON: {error}; the file is kept as it is"))
}

fn read_cns(
    document: &Node<'_>,
    state: &mut LegacyState,
    extra: &mut Map<String, Value>,
    skipped: &mut Vec<String>,
) -> Read<()> {
    let mut others = Map::new();
    for (key, value) in document.entries()? {
        if !key.eq_ignore_ascii_case(CNS_KEY) {
            others.insert(key.to_owned(), value.value.clone());
        }
    }
    let cns = document.get(CNS_KEY);
    let mut inner = Map::new();
    for (key, value) in cns.entries()? {
        if !MODELLED.iter().any(|modelled| key.eq_ignore_ascii_case(modelled)) {
            inner.insert(key.to_owned(), value.value.clone());
        }
    }
    extra.insert("cns".into(), Value::Object(inner));
    extra.insert("top".into(), Value::Object(others));
    let environment =
        Environment { location: cns.get("Location").text()?, network_type: cns.get("NetworkType").text()? };
    if cns.get("Initialized").flag()? || environment != Environment::default() {
        state.environment = Some(environment);
    }
    match cns.get("OrchestratorType").parsed::<OrchestratorType>() {
        Ok(Some(kind)) => state.orchestrator = Some((kind, cns.get("NodeID").text()?)),
        Ok(None) => {}
        Err(why) => skipped.push(why),
    }
    for (id, status) in cns.get("ContainerStatus").entries()? {
        match read_nc(&status, skipped) {
            Ok(nc) => state.ncs.push(nc),
            Err(why) => skipped.push(format!("network container {id}: {why}")),
        }
    }
    Ok(())
}

fn read_nc(status: &Node<'_>, skipped: &mut Vec<String>) -> Read<LegacyNc> {
    let host = status.get("HostVersion");
    let text = host.text()?;
    let host_version = text.parse().ok();
    if host_version.is_none() && !matches!(text.as_str(), "" | "-1") {
        // The reference refuses every later update of such an NC (38); here the host is simply asked again.
        skipped.push(format!("{}: Invalid hostVersion is {text}; taken as not reported", host.path));
    }
    Ok(LegacyNc {
        spec: read_spec(&status.get("CreateNetworkContainerRequest"))?,
        host_version,
        vfp_update_complete: status.get("VfpUpdateComplete").flag()?,
    })
}

fn read_spec(request: &Node<'_>) -> Read<NcSpec> {
    let id_field = request.get("NetworkContainerid");
    let id = id_field.parsed()?.ok_or_else(|| format!("{} is empty", id_field.path))?;
    let type_field = request.get("NetworkContainerType");
    let nc_type: NcType = type_field.parsed()?.ok_or_else(|| format!("{} is empty", type_field.path))?;
    let mut spec = NcSpec::new(id, nc_type, 0);
    spec.version = request.get("Version").text()?;
    spec.host_primary_ip = request.get("HostPrimaryIP").address()?;
    spec.primary_interface_identifier = request.get("PrimaryInterfaceIdentifier").text()?;
    spec.local_ip_configuration = read_ip_configuration(&request.get("LocalIPConfiguration"))?;
    let context = request.get("OrchestratorContext");
    if !context.is_null() {
        spec.orchestrator_context = Some(pod(&context.get("podNamespace"), &context.get("podName"))?);
    }
    spec.ip_configuration = read_ip_configuration(&request.get("IPConfiguration"))?;
    spec.ipv6_configuration = read_ip_configuration(&request.get("IPv6Configuration"))?;
    for (id, config) in request.get("SecondaryIPConfigs").entries()? {
        let address = config
            .get("IPAddress")
            .address()?
            .ok_or_else(|| format!("{}.IPAddress is empty", config.path))?;
        let nc_version = u64::try_from(config.get("NCVersion").integer()?).unwrap_or(0);
        let id = id.parse().map_err(|error| format!("{}: {error}", config.path))?;
        spec.secondary_ip_configs.insert(id, SecondaryIpConfig { address, nc_version });
    }
    let tenancy = request.get("MultiTenancyInfo");
    let (encap_type, tag) = (tenancy.get("EncapType").text()?, tenancy.get("ID").integer()?);
    if !encap_type.is_empty() || tag != 0 {
        spec.multi_tenancy = Some(MultiTenancyInfo { encap_type, id: tag });
    }
    for space in request.get("CnetAddressSpace").items()? {
        spec.cnet_address_space.extend(space.subnet()?);
    }
    for route in request.get("Routes").items()? {
        let destination = route.get("IPAddress");
        spec.routes.push(NcRoute {
            destination: destination.parsed()?.ok_or_else(|| format!("{} is empty", destination.path))?,
            gateway: route.get("GatewayIPAddress").address()?,
            interface: route.get("InterfaceToUse").text()?,
        });
    }
    spec.allow_host_to_nc = request.get("AllowHostToNCCommunication").flag()?;
    spec.allow_nc_to_host = request.get("AllowNCToHostCommunication").flag()?;
    spec.skip_default_routes = request.get("SkipDefaultRoutes").flag()?;
    for policy in request.get("EndpointPolicies").items()? {
        spec.endpoint_policies.push(EndpointPolicy {
            policy_type: policy.get("Type").text()?,
            endpoint_type: policy.get("EndpointType").text()?,
            settings: policy.get("Settings").value.to_string(),
        });
    }
    spec.status = request.get("NCStatus").text()?;
    let nic = request.get("NetworkInterfaceInfo");
    spec.network_interface_info =
        NetworkInterfaceInfo { nic_type: nic.get("NICType").parsed()?, mac: nic.get("MACAddress").parsed()? };
    Ok(spec)
}

fn read_ip_configuration(config: &Node<'_>) -> Read<IpConfiguration> {
    let mut dns_servers = Vec::new();
    for server in config.get("DNSServers").items()? {
        dns_servers.push(server.text()?);
    }
    Ok(IpConfiguration {
        subnet: config.get("IPSubnet").subnet()?,
        subnet_v6: config.get("IPSubnetV6").subnet()?,
        dns_servers,
        gateway: config.get("GatewayIPAddress").address()?,
        gateway_v6: config.get("GatewayIPv6Address").address()?,
    })
}

fn pod(namespace: &Node<'_>, name: &Node<'_>) -> Read<PodIdentity> {
    PodIdentity::new(&namespace.text()?, &name.text()?).map_err(|error| format!("{}: {error}", name.path))
}

fn empty_endpoint(container: ContainerId, pod: PodIdentity) -> Endpoint {
    Endpoint {
        interface_id: container.to_string(),
        container,
        pod,
        interfaces: Vec::new(),
        sandbox: None,
        witnessed: false,
        began: None,
        // The files carry no times.
        created: Timestamp::default(),
        updated: Timestamp::default(),
    }
}

fn read_endpoint(id: &str, record: &Node<'_>) -> Read<Endpoint> {
    let container: ContainerId = id.parse().map_err(|error| format!("{error}"))?;
    let mut endpoint = empty_endpoint(container, pod(&record.get("PodNamespace"), &record.get("PodName"))?);
    for (name, info) in record.get("IfnameToIPMap").entries()? {
        let mut nic = EndpointInterface {
            ifname: if name.is_empty() {
                None
            } else {
                Some(name.parse().map_err(|e| format!("{}: {e}", info.path))?)
            },
            nic_type: info.get("NICType").parsed()?,
            mac: info.get("MacAddress").parsed()?,
            nc: info.get("NetworkContainerID").parsed()?,
            ..EndpointInterface::default()
        };
        for net in info.get("IPv4").items()? {
            nic.ipv4.extend(net.ip_net()?);
        }
        for net in info.get("IPv6").items()? {
            nic.ipv6.extend(net.ip_net()?);
        }
        let text = |name: &str| info.get(name).text().map(|text| Some(text).filter(|text| !text.is_empty()));
        nic.host_veth_name = text("HostVethName")?;
        nic.hns_endpoint_id = text("HnsEndpointID")?;
        nic.hns_network_id = text("HnsNetworkID")?;
        endpoint.interfaces.push(nic);
    }
    Ok(endpoint)
}

/// The stateful CNI's file. Several endpoints of one container are its interfaces; the reference's own migration lets the last
/// one win and loses the others (spec/endpoint-state.md §9.11).
fn read_vnet(
    document: &Node<'_>,
    endpoints: &mut BTreeMap<ContainerId, Endpoint>,
    skipped: &mut Vec<String>,
) -> Read<()> {
    for (_, external) in document.get("Network").get("ExternalInterfaces").entries()? {
        for (_, network) in external.get("Networks").entries()? {
            for (id, record) in network.get("Endpoints").entries()? {
                match read_vnet_endpoint(id, &record) {
                    Ok((endpoint, nic)) => {
                        let known = endpoints.entry(endpoint.container.clone()).or_insert(endpoint);
                        known.interfaces.push(nic);
                    }
                    Err(why) => skipped.push(format!("CNI endpoint {id}: {why}")),
                }
            }
        }
    }
    Ok(())
}

fn read_vnet_endpoint(id: &str, record: &Node<'_>) -> Read<(Endpoint, EndpointInterface)> {
    let stored = record.get("ContainerID").text()?;
    let container: ContainerId =
        if stored.is_empty() { id } else { &stored }.parse().map_err(|error| format!("{error}"))?;
    let mut endpoint = empty_endpoint(container, pod(&record.get("PODNameSpace"), &record.get("PODName"))?);
    id.clone_into(&mut endpoint.interface_id);
    let netns = record.get("NetworkNameSpace").text()?;
    if netns.starts_with('/') {
        endpoint.sandbox = Some(Sandbox { netns: netns.into(), device: 0, inode: 0 });
    }
    // The interface's name ends the id; older versions store a temporary name in `IfName`.
    let ifname = id.rfind("-eth").map_or("eth0", |at| &id[at + 1..]);
    let mut nic = EndpointInterface {
        ifname: ifname.parse().ok(),
        nic_type: record.get("NICType").parsed()?,
        mac: mac(&record.get("MacAddress").text()?),
        host_veth_name: Some(record.get("HostIfName").text()?).filter(|name| !name.is_empty()),
        ..EndpointInterface::default()
    };
    for net in record.get("IPAddresses").items()? {
        match net.ip_net()? {
            Some(net) if matches!(net.addr(), IpAddr::V4(_)) => nic.ipv4.push(net),
            Some(net) => nic.ipv6.push(net),
            None => {}
        }
    }
    Ok((endpoint, nic))
}

/// Six bytes in base64, as Go writes a MAC.
fn mac(text: &str) -> Option<MacAddr> {
    let octets: [u8; 6] = decode_bytes(text)?.try_into().ok()?;
    Some(MacAddr::new(octets))
}
