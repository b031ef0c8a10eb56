//! The legacy JSON shapes (spec/rest-contract.md §5), in their field order, and what they are in the contract.
//!
//! The spellings are the reference's, mistakes included: clients depend on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    gojson::{Bytes, List, Raw},
    model::{NcType, NicType, OrchestratorType, ReturnCode, dashed_nc_id},
    proto::v1 as pb,
};

/// How a call went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Response {
    #[serde(rename = "ReturnCode")]
    pub(super) code: u16,
    #[serde(rename = "Message")]
    pub(super) message: String,
}

impl Response {
    pub(super) fn success(message: impl Into<String>) -> Self {
        Self { code: 0, message: message.into() }
    }

    pub(super) fn new(code: ReturnCode, message: impl Into<String>) -> Self {
        Self { code: code.number(), message: message.into() }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct IpSubnet {
    #[serde(rename = "IPAddress")]
    pub(super) address: String,
    #[serde(rename = "PrefixLength")]
    pub(super) prefix_length: u8,
}

impl From<pb::IpSubnet> for IpSubnet {
    fn from(subnet: pb::IpSubnet) -> Self {
        let prefix_length = u8::try_from(subnet.prefix_length).unwrap_or(u8::MAX);
        Self { address: subnet.ip_address, prefix_length }
    }
}

impl From<IpSubnet> for pb::IpSubnet {
    fn from(subnet: IpSubnet) -> Self {
        Self { ip_address: subnet.address, prefix_length: subnet.prefix_length.into() }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct IpConfiguration {
    #[serde(rename = "IPSubnet")]
    pub(super) subnet: IpSubnet,
    #[serde(rename = "IPSubnetV6")]
    pub(super) subnet_v6: IpSubnet,
    #[serde(rename = "DNSServers")]
    pub(super) dns_servers: List<String>,
    #[serde(rename = "GatewayIPAddress")]
    pub(super) gateway: String,
    #[serde(rename = "GatewayIPv6Address")]
    pub(super) gateway_v6: String,
}

impl From<pb::IpConfiguration> for IpConfiguration {
    fn from(configuration: pb::IpConfiguration) -> Self {
        Self {
            subnet: configuration.ip_subnet.unwrap_or_default().into(),
            subnet_v6: configuration.ip_subnet_v6.unwrap_or_default().into(),
            dns_servers: List(configuration.dns_servers),
            gateway: configuration.gateway_ip_address,
            gateway_v6: configuration.gateway_ipv6_address,
        }
    }
}

impl From<IpConfiguration> for pb::IpConfiguration {
    fn from(configuration: IpConfiguration) -> Self {
        Self {
            ip_subnet: Some(configuration.subnet.into()),
            ip_subnet_v6: Some(configuration.subnet_v6.into()),
            dns_servers: configuration.dns_servers.0,
            gateway_ip_address: configuration.gateway,
            gateway_ipv6_address: configuration.gateway_v6,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct SecondaryIpConfig {
    #[serde(rename = "IPAddress")]
    pub(super) address: String,
    #[serde(rename = "NCVersion")]
    pub(super) nc_version: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Route {
    #[serde(rename = "IPAddress")]
    pub(super) destination: String,
    #[serde(rename = "GatewayIPAddress")]
    pub(super) gateway: String,
    #[serde(rename = "InterfaceToUse")]
    pub(super) interface: String,
}

impl From<pb::Route> for Route {
    fn from(route: pb::Route) -> Self {
        Self {
            destination: route.destination,
            gateway: route.gateway_ip_address,
            interface: route.interface_to_use,
        }
    }
}

impl From<Route> for pb::Route {
    fn from(route: Route) -> Self {
        Self {
            destination: route.destination,
            gateway_ip_address: route.gateway,
            interface_to_use: route.interface,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct MultiTenancyInfo {
    #[serde(rename = "EncapType")]
    pub(super) encap_type: String,
    #[serde(rename = "ID")]
    pub(super) id: i64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct NetworkInterfaceInfo {
    #[serde(rename = "NICType")]
    pub(super) nic_type: String,
    #[serde(rename = "MACAddress")]
    pub(super) mac: String,
}

impl From<pb::NetworkInterfaceInfo> for NetworkInterfaceInfo {
    fn from(info: pb::NetworkInterfaceInfo) -> Self {
        Self { nic_type: nic_text(info.nic_type()).to_owned(), mac: info.mac_address }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct HostIpInfo {
    #[serde(rename = "Gateway")]
    gateway: String,
    #[serde(rename = "PrimaryIP")]
    primary: String,
    #[serde(rename = "Subnet")]
    subnet: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct RequestPolicy {
    #[serde(rename = "Type")]
    pub(super) kind: String,
    #[serde(rename = "EndpointType")]
    pub(super) endpoint_type: String,
    #[serde(rename = "Settings")]
    pub(super) settings: Raw,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Policy {
    #[serde(rename = "Type")]
    kind: String,
    #[serde(rename = "Data")]
    data: Raw,
}

/// A pod's names, as an orchestrator context holds them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodNames {
    #[serde(rename = "podName")]
    name: String,
    #[serde(rename = "podNamespace")]
    namespace: String,
}

/// The pod that a raw orchestrator context names. `null` names none; what is no object is an error.
pub(super) fn pod_of(context: &Raw) -> Result<pb::PodIdentity, String> {
    let text = context.get().ok_or("unexpected end of JSON input")?;
    let names: PodNames = crate::gojson::decode(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(pb::PodIdentity { namespace: names.namespace, name: names.name })
}

pub(super) const fn nic_text(nic: pb::NicType) -> &'static str {
    match nic {
        pb::NicType::Unspecified => "",
        pb::NicType::Infra => NicType::Infra.as_str(),
        pb::NicType::DelegatedVm => NicType::DelegatedVm.as_str(),
        pb::NicType::Backend => NicType::Backend.as_str(),
        pb::NicType::AccelnetFrontend => NicType::AccelnetFrontend.as_str(),
        pb::NicType::Apipa => NicType::Apipa.as_str(),
    }
}

/// A NIC type's number in the contract; nothing stands for none.
pub(super) fn nic_number(text: &str) -> Result<i32, String> {
    let all = [
        pb::NicType::Infra,
        pb::NicType::DelegatedVm,
        pb::NicType::Backend,
        pb::NicType::AccelnetFrontend,
        pb::NicType::Apipa,
    ];
    if text.is_empty() {
        return Ok(0);
    }
    all.into_iter().find(|nic| nic_text(*nic) == text).map(i32::from).ok_or_else(|| {
        format!("NICType {text:?} is none: {} are, or nothing for InfraNIC", all.map(nic_text).join(", "))
    })
}

/// No enum of the contract has this number.
pub(super) const UNKNOWN: i32 = i32::MAX;

pub(super) fn nc_type_number(text: &str) -> Option<i32> {
    let kind: NcType = text.parse().ok()?;
    Some(crate::service::nc_type_number(kind))
}

pub(super) fn orchestrator_number(text: &str) -> Option<i32> {
    let kind: OrchestratorType = text.parse().ok()?;
    Some(crate::service::orchestrator_number(kind))
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CreateNetworkContainerRequest {
    #[serde(rename = "HostPrimaryIP")]
    host_primary_ip: String,
    #[serde(rename = "Version")]
    version: String,
    #[serde(rename = "NetworkContainerType")]
    pub(super) nc_type: String,
    #[serde(rename = "NetworkContainerid")]
    pub(super) id: String,
    #[serde(rename = "PrimaryInterfaceIdentifier")]
    primary_interface_identifier: String,
    #[serde(rename = "AuthorizationToken")]
    authorization_token: String,
    #[serde(rename = "LocalIPConfiguration")]
    local_ip_configuration: IpConfiguration,
    #[serde(rename = "OrchestratorContext")]
    orchestrator_context: Raw,
    #[serde(rename = "IPConfiguration")]
    ip_configuration: IpConfiguration,
    #[serde(rename = "IPv6Configuration")]
    ipv6_configuration: IpConfiguration,
    #[serde(rename = "SecondaryIPConfigs")]
    secondary_ip_configs: BTreeMap<String, SecondaryIpConfig>,
    #[serde(rename = "MultiTenancyInfo")]
    multi_tenancy_info: MultiTenancyInfo,
    #[serde(rename = "CnetAddressSpace")]
    cnet_address_space: List<IpSubnet>,
    #[serde(rename = "Routes")]
    routes: List<Route>,
    #[serde(rename = "AllowHostToNCCommunication")]
    allow_host_to_nc: bool,
    #[serde(rename = "AllowNCToHostCommunication")]
    allow_nc_to_host: bool,
    #[serde(rename = "SkipDefaultRoutes")]
    skip_default_routes: bool,
    #[serde(rename = "EndpointPolicies")]
    endpoint_policies: List<RequestPolicy>,
    #[serde(rename = "NCStatus")]
    status: String,
    #[serde(rename = "NetworkInterfaceInfo")]
    network_interface_info: NetworkInterfaceInfo,
}

impl CreateNetworkContainerRequest {
    /// The type of the NIC that is meant, as it came.
    pub(super) fn nic_type(&self) -> &str {
        &self.network_interface_info.nic_type
    }

    /// What it is in the contract; the error is that of a malformed orchestrator context.
    pub(super) fn into_pb(self) -> Result<pb::NetworkContainer, String> {
        let orchestrator_context = match self.orchestrator_context.get() {
            None => None,
            Some(_) => Some(pod_of(&self.orchestrator_context)?),
        };
        Ok(pb::NetworkContainer {
            r#type: nc_type_number(&self.nc_type).unwrap_or(UNKNOWN),
            id: dashed_nc_id(&self.id),
            version: self.version,
            host_primary_ip: self.host_primary_ip,
            primary_interface_identifier: self.primary_interface_identifier,
            authorization_token: self.authorization_token,
            local_ip_configuration: Some(self.local_ip_configuration.into()),
            orchestrator_context,
            ip_configuration: Some(self.ip_configuration.into()),
            ipv6_configuration: Some(self.ipv6_configuration.into()),
            secondary_ip_configs: self
                .secondary_ip_configs
                .into_iter()
                .map(|(id, config)| {
                    let config =
                        pb::SecondaryIpConfig { ip_address: config.address, nc_version: config.nc_version };
                    (id, config)
                })
                .collect(),
            multi_tenancy_info: Some(pb::MultiTenancyInfo {
                encap_type: self.multi_tenancy_info.encap_type,
                id: self.multi_tenancy_info.id,
            }),
            cnet_address_space: self.cnet_address_space.0.into_iter().map(Into::into).collect(),
            routes: self.routes.0.into_iter().map(Into::into).collect(),
            allow_host_to_nc_communication: self.allow_host_to_nc,
            allow_nc_to_host_communication: self.allow_nc_to_host,
            skip_default_routes: self.skip_default_routes,
            endpoint_policies: self
                .endpoint_policies
                .0
                .into_iter()
                .map(|policy| pb::EndpointPolicy {
                    r#type: policy.kind,
                    endpoint_type: policy.endpoint_type,
                    settings_json: policy.settings.get().unwrap_or_default().to_owned(),
                })
                .collect(),
            status: self.status,
            network_interface_info: Some(pb::NetworkInterfaceInfo {
                nic_type: nic_number(&self.network_interface_info.nic_type).unwrap_or(UNKNOWN),
                mac_address: self.network_interface_info.mac,
            }),
        })
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct GetNetworkContainerResponse {
    #[serde(rename = "NetworkContainerID")]
    pub(super) id: String,
    #[serde(rename = "IPConfiguration")]
    pub(super) ip_configuration: IpConfiguration,
    #[serde(rename = "IPv6Configuration")]
    pub(super) ipv6_configuration: IpConfiguration,
    #[serde(rename = "Routes")]
    pub(super) routes: List<Route>,
    #[serde(rename = "CnetAddressSpace")]
    pub(super) cnet_address_space: List<IpSubnet>,
    #[serde(rename = "MultiTenancyInfo")]
    pub(super) multi_tenancy_info: MultiTenancyInfo,
    #[serde(rename = "PrimaryInterfaceIdentifier")]
    pub(super) primary_interface_identifier: String,
    #[serde(rename = "LocalIPConfiguration")]
    pub(super) local_ip_configuration: IpConfiguration,
    #[serde(rename = "Response")]
    pub(super) response: Response,
    #[serde(rename = "AllowHostToNCCommunication")]
    pub(super) allow_host_to_nc: bool,
    #[serde(rename = "AllowNCToHostCommunication")]
    pub(super) allow_nc_to_host: bool,
    #[serde(rename = "SkipDefaultRoutes")]
    pub(super) skip_default_routes: bool,
    #[serde(rename = "NetworkInterfaceInfo")]
    pub(super) network_interface_info: NetworkInterfaceInfo,
}

impl From<pb::NetworkContainer> for GetNetworkContainerResponse {
    fn from(nc: pb::NetworkContainer) -> Self {
        let tenancy = nc.multi_tenancy_info.unwrap_or_default();
        Self {
            id: nc.id,
            ip_configuration: nc.ip_configuration.unwrap_or_default().into(),
            ipv6_configuration: nc.ipv6_configuration.unwrap_or_default().into(),
            routes: List(nc.routes.into_iter().map(Into::into).collect()),
            cnet_address_space: List(nc.cnet_address_space.into_iter().map(Into::into).collect()),
            multi_tenancy_info: MultiTenancyInfo { encap_type: tenancy.encap_type, id: tenancy.id },
            primary_interface_identifier: nc.primary_interface_identifier,
            local_ip_configuration: nc.local_ip_configuration.unwrap_or_default().into(),
            response: Response::default(),
            allow_host_to_nc: nc.allow_host_to_nc_communication,
            allow_nc_to_host: nc.allow_nc_to_host_communication,
            skip_default_routes: nc.skip_default_routes,
            network_interface_info: nc.network_interface_info.unwrap_or_default().into(),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PodIpInfo {
    #[serde(rename = "PodIPConfig")]
    pod_ip_config: IpSubnet,
    #[serde(rename = "NetworkContainerPrimaryIPConfig")]
    primary: IpConfiguration,
    #[serde(rename = "NetworkContainerIPv6Config")]
    ipv6: IpConfiguration,
    #[serde(rename = "HostPrimaryIPInfo")]
    host: HostIpInfo,
    #[serde(rename = "NICType")]
    nic_type: String,
    #[serde(rename = "InterfaceName")]
    interface_name: String,
    #[serde(rename = "MacAddress")]
    mac: String,
    #[serde(rename = "sharedNic", skip_serializing_if = "std::ops::Not::not")]
    shared_nic: bool,
    #[serde(rename = "SkipDefaultRoutes")]
    skip_default_routes: bool,
    #[serde(rename = "Routes")]
    routes: List<Route>,
    #[serde(rename = "PnPID")]
    pnp_id: String,
    #[serde(rename = "EndpointPolicies")]
    endpoint_policies: List<Policy>,
    #[serde(rename = "AllowHostToNCCommunication")]
    allow_host_to_nc: bool,
    #[serde(rename = "AllowNCToHostCommunication")]
    allow_nc_to_host: bool,
    #[serde(rename = "NetworkContainerID")]
    nc: String,
}

impl From<pb::PodIpInfo> for PodIpInfo {
    fn from(info: pb::PodIpInfo) -> Self {
        let nic = info.nic_type();
        let host = info.host_primary_ip_info.unwrap_or_default();
        let primary = IpConfiguration::from(info.network_container_primary_ip_config.unwrap_or_default());
        let mut pod_ip_config = IpSubnet::from(info.pod_ip_config.unwrap_or_default());
        if nic == pb::NicType::Infra && !primary.subnet.address.is_empty() {
            // The reference gives the primary subnet's length, for an IPv6 address too (§6.20).
            pod_ip_config.prefix_length = primary.subnet.prefix_length;
        }
        Self {
            pod_ip_config,
            primary,
            ipv6: info.network_container_ipv6_config.unwrap_or_default().into(),
            host: HostIpInfo { gateway: host.gateway, primary: host.primary_ip, subnet: host.subnet },
            nic_type: nic_text(nic).to_owned(),
            interface_name: info.interface_name,
            mac: info.mac_address,
            shared_nic: info.shared_nic,
            skip_default_routes: info.skip_default_routes,
            routes: List(info.routes.into_iter().map(Into::into).collect()),
            pnp_id: info.pnp_id,
            endpoint_policies: List(
                info.endpoint_policies
                    .into_iter()
                    .map(|policy| Policy { kind: policy.r#type, data: Raw::new(policy.settings_json) })
                    .collect(),
            ),
            allow_host_to_nc: info.allow_host_to_nc_communication,
            allow_nc_to_host: info.allow_nc_to_host_communication,
            // The reference fills it for interfaces that are no address of the pool (§6.20).
            nc: if info.ip_config_id.is_empty() { info.network_container_id } else { String::new() },
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct IpConfigRequest {
    #[serde(rename = "DesiredIPAddress")]
    pub(super) desired: String,
    #[serde(rename = "PodInterfaceID")]
    pub(super) interface_id: String,
    #[serde(rename = "InfraContainerID")]
    pub(super) container_id: String,
    #[serde(rename = "OrchestratorContext")]
    pub(super) context: Raw,
    #[serde(rename = "Ifname")]
    pub(super) ifname: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct IpConfigsRequest {
    #[serde(rename = "desiredIPAddresses")]
    pub(super) desired: List<String>,
    #[serde(rename = "podInterfaceID")]
    pub(super) interface_id: String,
    #[serde(rename = "infraContainerID")]
    pub(super) container_id: String,
    #[serde(rename = "orchestratorContext")]
    pub(super) context: Raw,
    #[serde(rename = "ifname")]
    pub(super) ifname: String,
    #[serde(rename = "secondaryInterfacesExist")]
    pub(super) secondary_interfaces: bool,
    #[serde(rename = "BackendInterfaceExist")]
    pub(super) backend_interface: bool,
    #[serde(rename = "BacknendInterfaceMacAddress")]
    pub(super) backend_macs: List<String>,
}

impl From<IpConfigRequest> for IpConfigsRequest {
    fn from(one: IpConfigRequest) -> Self {
        Self {
            desired: List(Some(one.desired).filter(|desired| !desired.is_empty()).into_iter().collect()),
            interface_id: one.interface_id,
            container_id: one.container_id,
            context: one.context,
            ifname: one.ifname,
            ..Self::default()
        }
    }
}

/// Go's `net.IPNet`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct IpNet {
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "Mask")]
    mask: Bytes,
}

impl IpNet {
    pub(super) fn from_cidr(text: &str) -> Option<Self> {
        let net: ipnet::IpNet = text.parse().ok()?;
        let mask = match net.netmask() {
            std::net::IpAddr::V4(mask) => mask.octets().to_vec(),
            std::net::IpAddr::V6(mask) => mask.octets().to_vec(),
        };
        Some(Self { ip: net.addr().to_string(), mask: Bytes(Some(mask)) })
    }

    /// The address with its prefix length. Without a mask it is a host's.
    pub(super) fn to_cidr(&self) -> Result<String, String> {
        let address =
            crate::model::parse_ip(&self.ip).map_err(|_| format!("invalid IP address: {}", self.ip))?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match self.mask.0.as_deref() {
            None | Some([]) => whole,
            Some(mask) => {
                let bits = u32::try_from(mask.len() * 8).unwrap_or(u32::MAX);
                let value = mask.iter().take(16).fold(0_u128, |value, octet| value << 8 | u128::from(*octet));
                let ones = value.count_ones();
                let contiguous = bits <= 128 && value.trailing_zeros().min(bits) == bits - ones;
                match (bits, whole) {
                    (32, 32) | (128, 128) if contiguous => ones,
                    // Sixteen octets for an IPv4 address: the last four count.
                    (128, 32) if contiguous && ones >= 96 => ones - 96,
                    _ => return Err(format!("invalid mask of {}", self.ip)),
                }
            }
        };
        Ok(format!("{address}/{prefix}"))
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct IpInfo {
    #[serde(rename = "IPv4")]
    pub(super) v4: List<IpNet>,
    #[serde(rename = "IPv6", skip_serializing_if = "is_empty")]
    pub(super) v6: List<IpNet>,
    #[serde(rename = "HnsEndpointID", skip_serializing_if = "String::is_empty")]
    pub(super) hns_endpoint: String,
    #[serde(rename = "HnsNetworkID", skip_serializing_if = "String::is_empty")]
    pub(super) hns_network: String,
    #[serde(rename = "HostVethName", skip_serializing_if = "String::is_empty")]
    pub(super) host_veth: String,
    #[serde(rename = "MacAddress", skip_serializing_if = "String::is_empty")]
    pub(super) mac: String,
    #[serde(rename = "NetworkContainerID", skip_serializing_if = "String::is_empty")]
    pub(super) nc: String,
    #[serde(rename = "NICType")]
    pub(super) nic_type: String,
}

fn is_empty<T>(list: &List<T>) -> bool {
    list.0.is_empty()
}

impl IpInfo {
    /// What it is in the contract, under its name.
    pub(super) fn into_pb(self, ifname: String) -> Result<pb::EndpointInterface, String> {
        let cidrs = |list: List<IpNet>| list.0.iter().map(IpNet::to_cidr).collect::<Result<Vec<_>, _>>();
        Ok(pb::EndpointInterface {
            ifname,
            nic_type: nic_number(&self.nic_type)?,
            ipv4: cidrs(self.v4)?,
            ipv6: cidrs(self.v6)?,
            host_veth_name: self.host_veth,
            mac_address: self.mac,
            hns_endpoint_id: self.hns_endpoint,
            hns_network_id: self.hns_network,
            network_container_id: self.nc,
            ..Default::default()
        })
    }
}

impl From<pb::EndpointInterface> for IpInfo {
    fn from(interface: pb::EndpointInterface) -> Self {
        let nets = |texts: &[String]| List(texts.iter().filter_map(|text| IpNet::from_cidr(text)).collect());
        Self {
            v4: nets(&interface.ipv4),
            v6: nets(&interface.ipv6),
            nic_type: nic_text(interface.nic_type()).to_owned(),
            hns_endpoint: interface.hns_endpoint_id,
            hns_network: interface.hns_network_id,
            host_veth: interface.host_veth_name,
            mac: interface.mac_address,
            nc: interface.network_container_id,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct EndpointInfo {
    #[serde(rename = "PodName")]
    pub(super) pod_name: String,
    #[serde(rename = "PodNamespace")]
    pub(super) pod_namespace: String,
    /// `null` where there is no record.
    #[serde(rename = "IfnameToIPMap")]
    pub(super) interfaces: Option<BTreeMap<String, IpInfo>>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PodInfo {
    #[serde(rename = "podName")]
    name: String,
    #[serde(rename = "podNamespace")]
    namespace: String,
    #[serde(rename = "PodInfraContainerID")]
    container: String,
    #[serde(rename = "PodInterfaceID")]
    interface_id: String,
    #[serde(rename = "Version")]
    scheme: i32,
    #[serde(rename = "SecondaryInterfaceSet")]
    secondary_interfaces: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct IpConfigurationStatus {
    state: &'static str,
    #[serde(rename = "ID")]
    pub(super) id: String,
    #[serde(rename = "IPAddress")]
    address: String,
    #[serde(rename = "LastStateTransition")]
    last_transition: String,
    #[serde(rename = "NCID")]
    nc: String,
    #[serde(rename = "PodInfo")]
    pod: Option<PodInfo>,
}

impl IpConfigurationStatus {
    /// `scheme` is 1 for interface ids, 2 for container ids.
    pub(super) fn new(ip: pb::IpConfig, scheme: i32) -> Self {
        let state = match ip.state() {
            pb::IpState::Available => "Available",
            pb::IpState::Assigned => "Assigned",
            pb::IpState::PendingProgramming => "PendingProgramming",
            pb::IpState::PendingRelease => "PendingRelease",
            pb::IpState::Unspecified => "",
        };
        let time =
            ip.last_state_transition.and_then(|time| jiff::Timestamp::new(time.seconds, time.nanos).ok());
        Self {
            state,
            id: ip.id,
            address: ip.ip_address,
            last_transition: time.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |time| time.to_string()),
            nc: ip.network_container_id,
            pod: ip.owner.map(|owner| {
                let pod = owner.pod.unwrap_or_default();
                PodInfo {
                    name: pod.name,
                    namespace: pod.namespace,
                    container: owner.infra_container_id,
                    interface_id: owner.pod_interface_id,
                    scheme,
                    secondary_interfaces: owner.secondary_interfaces_exist,
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_base64_of_their_octets() {
        for (cidr, mask) in [
            ("10.240.0.17/24", "////AA=="),
            ("10.240.0.17/32", "/////w=="),
            ("10.1.0.0/16", "//8AAA=="),
            ("fd00::5/128", "/////////////////////w=="),
            ("fd00::5/64", "//////////8AAAAAAAAAAA=="),
        ] {
            let net = IpNet::from_cidr(cidr).unwrap();
            let text = String::from_utf8(crate::gojson::encode(&net).unwrap()).unwrap();
            assert!(text.ends_with(&format!("\"Mask\":\"{mask}\"}}")), "{text}");
            assert_eq!(net.to_cidr().unwrap(), cidr);
        }
        let long = IpNet { ip: "10.0.0.1".into(), mask: Bytes(Some([[0xff; 15].as_slice(), &[0]].concat())) };
        assert_eq!(long.to_cidr().unwrap(), "10.0.0.1/24");
        for mask in [vec![255, 0, 255, 0], vec![255], vec![0x0f, 0, 0, 0]] {
            let net = IpNet { ip: "10.0.0.1".into(), mask: Bytes(Some(mask.clone())) };
            assert!(net.to_cidr().is_err(), "{mask:?}");
        }
        assert!(IpNet { ip: "x".into(), mask: Bytes(None) }.to_cidr().is_err());
    }

    #[test]
    fn contexts_name_pods_or_nobody() {
        let pod = |text: &str| pod_of(&Raw::new(text)).map(|pod| (pod.name, pod.namespace));
        assert_eq!(pod(r#"{"podname":"a","podNamespace":"b"}"#), Ok(("a".into(), "b".into())));
        assert_eq!(pod("null"), Ok((String::new(), String::new())));
        assert!(pod("\"text\"").is_err() && pod("[]").is_err());
        assert_eq!(pod_of(&Raw::default()).unwrap_err(), "unexpected end of JSON input");
    }
}
