//! View → documents, in the reference's field order and form (spec/rest-contract.md §5): tab-indented, absent lists and maps
//! as `null`, masks in base64, `<`, `>` and `&` escaped.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};

use super::{
    json::{bytes, mask},
    read::CNS_KEY,
};
use crate::{
    ledger::View,
    model::{
        Endpoint, EndpointInterface, IpConfiguration, NcLifecycle, NcRecord, NcSpec, Now, OnRelease,
        OrchestratorType, PodIdentity,
    },
    service::LegacyDocuments,
};

pub(super) fn render(view: &View) -> Result<LegacyDocuments, String> {
    let extra: Map<String, Value> = match &**view.legacy_extra() {
        "" => Map::new(),
        text => serde_json::from_str(text).map_err(|error| format!("what was carried along: {error}"))?,
    };
    Ok(LegacyDocuments {
        azure_cns: go_text(&cns(view, &extra)?)?,
        azure_endpoints: go_text(&endpoints(view))?,
        azure_vnet: go_text(&vnet(view, &extra))?,
    })
}

/// Tab-indented, with Go's escapes. `<`, `>`, `&`, U+2028 and U+2029 can only stand in strings, so they can be escaped in the
/// finished text.
fn go_text<T: Serialize>(document: &T) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    document.serialize(&mut serializer).map_err(|error| error.to_string())?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    let escaped = text
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029");
    Ok(escaped.into_bytes())
}

#[derive(Serialize)]
struct Subnet {
    #[serde(rename = "IPAddress")]
    address: String,
    #[serde(rename = "PrefixLength")]
    length: u8,
}

impl Subnet {
    fn of(net: Option<IpNet>) -> Self {
        net.map_or(Self { address: String::new(), length: 0 }, |net| Self {
            address: net.addr().to_string(),
            length: net.prefix_len(),
        })
    }
}

#[derive(Serialize)]
struct Configuration<'a> {
    #[serde(rename = "IPSubnet")]
    subnet: Subnet,
    #[serde(rename = "IPSubnetV6")]
    subnet_v6: Subnet,
    #[serde(rename = "DNSServers")]
    dns: Option<&'a [String]>,
    #[serde(rename = "GatewayIPAddress")]
    gateway: String,
    #[serde(rename = "GatewayIPv6Address")]
    gateway_v6: String,
}

impl<'a> Configuration<'a> {
    fn of(config: &'a IpConfiguration) -> Self {
        Self {
            subnet: Subnet::of(config.subnet),
            subnet_v6: Subnet::of(config.subnet_v6),
            dns: some(&config.dns_servers),
            gateway: text(config.gateway.as_ref()),
            gateway_v6: text(config.gateway_v6.as_ref()),
        }
    }
}

fn some<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}

fn text<T: ToString>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

#[derive(Serialize)]
struct Context {
    #[serde(rename = "podName")]
    name: String,
    #[serde(rename = "podNamespace")]
    namespace: String,
}

#[derive(Serialize)]
struct Secondary {
    #[serde(rename = "IPAddress")]
    address: String,
    #[serde(rename = "NCVersion")]
    nc_version: u64,
}

#[derive(Serialize)]
struct Tenancy<'a> {
    #[serde(rename = "EncapType")]
    encap_type: &'a str,
    #[serde(rename = "ID")]
    id: i64,
}

#[derive(Serialize)]
struct Route<'a> {
    #[serde(rename = "IPAddress")]
    destination: String,
    #[serde(rename = "GatewayIPAddress")]
    gateway: String,
    #[serde(rename = "InterfaceToUse")]
    interface: &'a str,
}

#[derive(Serialize)]
struct Policy<'a> {
    #[serde(rename = "Type")]
    kind: &'a str,
    #[serde(rename = "EndpointType")]
    endpoint_type: &'a str,
    #[serde(rename = "Settings")]
    settings: Box<RawValue>,
}

#[derive(Serialize)]
struct Nic {
    #[serde(rename = "NICType")]
    nic_type: &'static str,
    #[serde(rename = "MACAddress")]
    mac: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Request<'a> {
    #[serde(rename = "HostPrimaryIP")]
    host_primary_ip: String,
    version: &'a str,
    network_container_type: &'static str,
    #[serde(rename = "NetworkContainerid")]
    id: &'a str,
    primary_interface_identifier: &'a str,
    authorization_token: &'static str,
    #[serde(rename = "LocalIPConfiguration")]
    local: Configuration<'a>,
    orchestrator_context: Option<Context>,
    #[serde(rename = "IPConfiguration")]
    primary: Configuration<'a>,
    #[serde(rename = "IPv6Configuration")]
    ipv6: Configuration<'a>,
    #[serde(rename = "SecondaryIPConfigs")]
    secondaries: Option<BTreeMap<String, Secondary>>,
    multi_tenancy_info: Tenancy<'a>,
    cnet_address_space: Option<Vec<Subnet>>,
    routes: Option<Vec<Route<'a>>>,
    #[serde(rename = "AllowHostToNCCommunication")]
    allow_host_to_nc: bool,
    #[serde(rename = "AllowNCToHostCommunication")]
    allow_nc_to_host: bool,
    skip_default_routes: bool,
    endpoint_policies: Option<Vec<Policy<'a>>>,
    #[serde(rename = "NCStatus")]
    status: &'a str,
    network_interface_info: Nic,
}

#[derive(Serialize)]
struct Status<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    #[serde(rename = "VMVersion")]
    vm_version: &'a str,
    #[serde(rename = "HostVersion")]
    host_version: String,
    #[serde(rename = "CreateNetworkContainerRequest")]
    request: Request<'a>,
    #[serde(rename = "VfpUpdateComplete")]
    vfp_update_complete: bool,
}

#[derive(Serialize)]
struct Service<'a> {
    #[serde(rename = "Location")]
    location: &'a str,
    #[serde(rename = "NetworkType")]
    network_type: &'a str,
    #[serde(rename = "OrchestratorType")]
    orchestrator: &'static str,
    #[serde(rename = "NodeID")]
    node_id: &'a str,
    #[serde(rename = "Initialized")]
    initialized: bool,
    #[serde(rename = "ContainerIDByOrchestratorContext")]
    contexts: Option<BTreeMap<String, String>>,
    #[serde(rename = "ContainerStatus")]
    ncs: BTreeMap<String, Status<'a>>,
    #[serde(rename = "Networks")]
    networks: Value,
    #[serde(rename = "TimeStamp")]
    time: String,
    #[serde(rename = "PnpIDByMacAddress")]
    pnp_ids: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

fn cns(view: &View, extra: &Map<String, Value>) -> Result<BTreeMap<String, Value>, String> {
    let mut inner = extra.get("cns").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut carried = |name: &str, zero: Value| inner.remove(name).unwrap_or(zero);
    let networks = carried("Networks", Value::Object(Map::new()));
    let pnp_ids = carried("PnpIDByMacAddress", Value::Null);
    let environment = view.orchestrator().environment.as_ref();
    carried("TimeStamp", Value::Null);
    let kind = view.orchestrator().kind;
    let mut ncs = BTreeMap::new();
    for nc in view.ncs().filter(|nc| nc.record.lifecycle == NcLifecycle::Active) {
        ncs.insert(nc.record.id().to_string(), status(view, &nc.record)?);
    }
    let service = Service {
        location: environment.map_or("", |environment| &environment.location),
        network_type: environment.map_or("", |environment| &environment.network_type),
        orchestrator: kind.map_or("", OrchestratorType::as_str),
        node_id: &view.orchestrator().node_id,
        initialized: environment.is_some(),
        contexts: (kind != Some(OrchestratorType::KubernetesCrd)).then(|| contexts(view)),
        ncs,
        networks,
        time: Now::read().wall.to_string(),
        pnp_ids,
        others: inner,
    };
    let mut document: BTreeMap<String, Value> =
        extra.get("top").and_then(Value::as_object).cloned().unwrap_or_default().into_iter().collect();
    document.insert(CNS_KEY.into(), serde_json::to_value(&service).map_err(|error| error.to_string())?);
    Ok(document)
}

/// The joined text form of the context index: name and namespace without a separator, ids with commas.
fn contexts(view: &View) -> BTreeMap<String, String> {
    let mut contexts = BTreeMap::new();
    let pods = view.ncs().filter_map(|nc| nc.record.spec.orchestrator_context.as_ref());
    for pod in pods.collect::<std::collections::BTreeSet<&PodIdentity>>() {
        let ids: Vec<String> = view.ncs_of_pod(pod).map(|nc| nc.record.id().to_string()).collect();
        contexts.insert(format!("{}{}", pod.name(), pod.namespace()), ids.join(","));
    }
    contexts
}

fn status<'a>(view: &View, nc: &'a NcRecord) -> Result<Status<'a>, String> {
    Ok(Status {
        id: nc.id().as_str(),
        vm_version: &nc.spec.version,
        host_version: nc.host_version.map_or_else(|| "-1".into(), |version| version.to_string()),
        request: request(view, &nc.spec)?,
        vfp_update_complete: nc.vfp_update_complete,
    })
}

fn request<'a>(view: &View, spec: &'a NcSpec) -> Result<Request<'a>, String> {
    let mut secondaries: BTreeMap<String, Secondary> = BTreeMap::new();
    for (id, config) in &spec.secondary_ip_configs {
        let address = config.address.to_string();
        secondaries.insert(id.to_string(), Secondary { address, nc_version: config.nc_version });
    }
    // What only its pod still holds is no longer the NC's.
    let listed = view.ips_from(None).filter(|ip| ip.nc == spec.id && ip.on_release != OnRelease::Remove);
    for ip in listed {
        let secondary = Secondary { address: ip.address.to_string(), nc_version: ip.nc_version };
        secondaries.insert(ip.id.to_string(), secondary);
    }
    let route = |route: &'a crate::model::NcRoute| Route {
        destination: route.destination.to_string(),
        gateway: text(route.gateway.as_ref()),
        interface: &route.interface,
    };
    let mut policies = Vec::with_capacity(spec.endpoint_policies.len());
    for policy in &spec.endpoint_policies {
        let settings = if policy.settings.is_empty() { "null" } else { &policy.settings };
        policies.push(Policy {
            kind: &policy.policy_type,
            endpoint_type: &policy.endpoint_type,
            settings: RawValue::from_string(settings.to_owned()).map_err(|error| error.to_string())?,
        });
    }
    let nic = &spec.network_interface_info;
    Ok(Request {
        host_primary_ip: text(spec.host_primary_ip.as_ref()),
        version: &spec.version,
        network_container_type: spec.nc_type.as_str(),
        id: spec.id.as_str(),
        primary_interface_identifier: &spec.primary_interface_identifier,
        authorization_token: "",
        local: Configuration::of(&spec.local_ip_configuration),
        orchestrator_context: spec
            .orchestrator_context
            .as_ref()
            .map(|pod| Context { name: pod.name().to_owned(), namespace: pod.namespace().to_owned() }),
        primary: Configuration::of(&spec.ip_configuration),
        ipv6: Configuration::of(&spec.ipv6_configuration),
        secondaries: (!secondaries.is_empty()).then_some(secondaries),
        multi_tenancy_info: spec.multi_tenancy.as_ref().map_or(Tenancy { encap_type: "", id: 0 }, |info| {
            Tenancy { encap_type: &info.encap_type, id: info.id }
        }),
        cnet_address_space: some(&spec.cnet_address_space)
            .map(|spaces| spaces.iter().map(|net| Subnet::of(Some(*net))).collect()),
        routes: some(&spec.routes).map(|routes| routes.iter().map(route).collect()),
        allow_host_to_nc: spec.allow_host_to_nc,
        allow_nc_to_host: spec.allow_nc_to_host,
        skip_default_routes: spec.skip_default_routes,
        endpoint_policies: (!policies.is_empty()).then_some(policies),
        status: &spec.status,
        network_interface_info: Nic {
            nic_type: nic.nic_type.map_or("", crate::model::NicType::as_str),
            mac: text(nic.mac.as_ref()),
        },
    })
}

#[derive(Serialize)]
struct GoNet {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "Mask")]
    mask: String,
}

impl GoNet {
    fn of(net: &IpNet) -> Self {
        Self { ip: net.addr().to_string(), mask: mask(*net) }
    }
}

#[derive(Serialize)]
struct IpInfo {
    #[serde(rename = "IPv4")]
    ipv4: Option<Vec<GoNet>>,
    #[serde(rename = "IPv6", skip_serializing_if = "Vec::is_empty")]
    ipv6: Vec<GoNet>,
    #[serde(rename = "HnsEndpointID", skip_serializing_if = "String::is_empty")]
    hns_endpoint_id: String,
    #[serde(rename = "HnsNetworkID", skip_serializing_if = "String::is_empty")]
    hns_network_id: String,
    #[serde(rename = "HostVethName", skip_serializing_if = "String::is_empty")]
    host_veth_name: String,
    #[serde(rename = "MacAddress", skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(rename = "NetworkContainerID", skip_serializing_if = "String::is_empty")]
    nc: String,
    #[serde(rename = "NICType")]
    nic_type: &'static str,
}

impl IpInfo {
    fn of(nic: &EndpointInterface) -> Self {
        let ipv4: Vec<GoNet> = nic.ipv4.iter().map(GoNet::of).collect();
        Self {
            ipv4: (!ipv4.is_empty()).then_some(ipv4),
            ipv6: nic.ipv6.iter().map(GoNet::of).collect(),
            hns_endpoint_id: nic.hns_endpoint_id.clone().unwrap_or_default(),
            hns_network_id: nic.hns_network_id.clone().unwrap_or_default(),
            host_veth_name: nic.host_veth_name.clone().unwrap_or_default(),
            mac: text(nic.mac.as_ref()),
            nc: text(nic.nc.as_ref()),
            nic_type: nic.nic_type.map_or("", crate::model::NicType::as_str),
        }
    }
}

#[derive(Serialize)]
struct EndpointInfo<'a> {
    #[serde(rename = "PodName")]
    pod_name: &'a str,
    #[serde(rename = "PodNamespace")]
    pod_namespace: &'a str,
    #[serde(rename = "IfnameToIPMap")]
    interfaces: BTreeMap<String, IpInfo>,
}

#[derive(Serialize)]
struct Endpoints<'a> {
    #[serde(rename = "Endpoints")]
    endpoints: BTreeMap<String, EndpointInfo<'a>>,
}

fn endpoints(view: &View) -> Endpoints<'_> {
    let info = |endpoint: &'_ std::sync::Arc<Endpoint>| {
        let nics = endpoint.interfaces.iter().map(|nic| (text(nic.ifname.as_ref()), IpInfo::of(nic)));
        nics.collect::<BTreeMap<_, _>>()
    };
    let endpoints = view.endpoints_from(None).map(|endpoint| {
        let record = EndpointInfo {
            pod_name: endpoint.pod.name(),
            pod_namespace: endpoint.pod.namespace(),
            interfaces: info(endpoint),
        };
        (endpoint.container.to_string(), record)
    });
    Endpoints { endpoints: endpoints.collect() }
}

/// The stateful CNI's file: what was imported, with the endpoints that live now. Without an import a file that names the
/// network and the endpoints, from which the CNI can delete them.
fn vnet(view: &View, extra: &Map<String, Value>) -> Value {
    let mut document = extra.get("vnet").cloned().unwrap_or_else(|| {
        serde_json::json!({"Network": {"Version": "", "TimeStamp": "", "ExternalInterfaces": {"eth0": {
            "Name": "eth0", "Networks": {"azure": {"Id": "azure", "Mode": "transparent", "Endpoints": {}}}
        }}}})
    });
    let mut living: BTreeMap<String, Value> = BTreeMap::new();
    for endpoint in view.endpoints_from(None) {
        for nic in endpoint.interfaces.iter().filter(|nic| nic.is_infra()) {
            let ifname = nic.ifname.as_ref().map_or("eth0", |name| name.as_str());
            let container = endpoint.container.as_str();
            let id = format!("{}-{ifname}", container.get(..8).unwrap_or(container));
            living.insert(id.clone(), vnet_endpoint(&id, ifname, endpoint, nic));
        }
    }
    let networks = document.pointer_mut("/Network/ExternalInterfaces").and_then(Value::as_object_mut);
    let networks = networks.into_iter().flat_map(|interfaces| interfaces.values_mut());
    let networks = networks.filter_map(|interface| interface.get_mut("Networks")?.as_object_mut());
    let mut all: Vec<&mut Value> = networks.flat_map(|networks| networks.values_mut()).collect();
    for network in &mut all {
        let Some(endpoints) = network.get_mut("Endpoints").and_then(Value::as_object_mut) else { continue };
        // What lives keeps what the CNI wrote of it; what does not is gone.
        endpoints.retain(|id, _| living.remove(id).is_some());
    }
    if let Some(endpoints) = all.first_mut().and_then(|network| network.get_mut("Endpoints")?.as_object_mut())
    {
        endpoints.extend(living);
    }
    document
}

fn vnet_endpoint(id: &str, ifname: &str, endpoint: &Endpoint, nic: &EndpointInterface) -> Value {
    let nets: Vec<GoNet> = nic.addresses().map(GoNet::of).collect();
    serde_json::json!({
        "Id": id,
        "SandboxKey": "",
        "IfName": ifname,
        "HostIfName": nic.host_veth_name.clone().unwrap_or_default(),
        "MacAddress": nic.mac.map_or_else(String::new, |mac| bytes(&mac.octets())),
        "IPAddresses": nets,
        "NetworkNameSpace": endpoint.sandbox.as_ref().map(|s| s.netns.to_string_lossy().into_owned()).unwrap_or_default(),
        "ContainerID": endpoint.container.as_str(),
        "PODName": endpoint.pod.name(),
        "PODNameSpace": endpoint.pod.namespace(),
        "NICType": nic.nic_type.map_or("", crate::model::NicType::as_str),
    })
}
