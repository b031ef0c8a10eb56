//! The contract's messages ↔ the model. Everything that comes in is parsed here, once; no message travels deeper.

use std::{net::IpAddr, path::PathBuf, str::FromStr};

use ipnet::IpNet;
use prost_types::Timestamp as PbTimestamp;

use super::status::InvalidField;
use crate::{
    host::http::AgentState,
    ledger::NcView,
    model::{
        Actor, BootTime, ChangeNote, ContainerId, Endpoint, EndpointInterface, EndpointPolicy, Family,
        HostInterface, IfName, IpConfiguration, IpRecord, IpState, IpStateKind, JournalEntry,
        MultiTenancyInfo, NcId, NcLifecycle, NcRecord, NcRoute, NcSpec, NcType, NetworkInterfaceInfo,
        NicType, Now, OnRelease, OrchestratorType, Outcome, PodIdentity, PodKeyScheme, ReturnCode, Sandbox,
        SecondaryIpConfig, Timestamp, parse_ip,
    },
    proto::v1 as pb,
    swift::PodNic,
};

type Parsed<T> = Result<T, InvalidField>;

/// Parses a field that must be there.
pub(super) fn required<T: FromStr>(field: &str, text: &str) -> Parsed<T>
where
    T::Err: ToString,
{
    text.parse().map_err(|error: T::Err| {
        let why = error.to_string();
        // Not every parser says what it could not parse.
        let named = text.is_empty() || why.contains(text);
        InvalidField::new(field, if named { why } else { format!("`{}`: {why}", shown(text)) })
    })
}

/// A caller's text as a message can bear it.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(128).flat_map(char::escape_debug).collect();
    if text.chars().nth(128).is_some() {
        shown.push('…');
    }
    shown
}

/// Parses a field that may be empty.
pub(super) fn optional<T: FromStr>(field: &str, text: &str) -> Parsed<Option<T>>
where
    T::Err: ToString,
{
    if text.is_empty() { Ok(None) } else { required(field, text).map(Some) }
}

pub(super) fn ip(field: &str, text: &str) -> Parsed<IpAddr> {
    parse_ip(text).map_err(|error| InvalidField::new(field, error))
}

/// A gateway. The reference takes a CIDR, too (spec/rest-contract.md §6.8); its prefix means nothing.
fn gateway(field: &str, text: &str) -> Parsed<Option<IpAddr>> {
    match text.parse::<IpNet>() {
        Ok(net) => Ok(Some(net.addr())),
        Err(_) => optional_ip(field, text),
    }
}

fn optional_ip(field: &str, text: &str) -> Parsed<Option<IpAddr>> {
    if text.is_empty() { Ok(None) } else { ip(field, text).map(Some) }
}

pub(super) fn container(field: &str, text: &str) -> Parsed<Option<ContainerId>> {
    optional(field, text)
}

pub(super) fn ifname(field: &str, text: &str) -> Parsed<Option<IfName>> {
    optional(field, text)
}

pub(super) fn pod(field: &str, pod: Option<pb::PodIdentity>) -> Parsed<PodIdentity> {
    let pb::PodIdentity { namespace, name } = pod.unwrap_or_default();
    PodIdentity::new(&namespace, &name).map_err(|error| InvalidField::new(field, error))
}

/// A word that is kept and shown, never interpreted.
pub(super) fn label(field: &str, text: String) -> Parsed<String> {
    if text.len() <= 256 && !text.chars().any(char::is_control) {
        return Ok(text);
    }
    let why = format!("`{}`: at most 256 bytes without control characters are expected", shown(&text));
    Err(InvalidField::new(field, why))
}

/// A filter by pod; absent or without a name: none.
pub(super) fn pod_filter(field: &str, given: Option<pb::PodIdentity>) -> Parsed<Option<PodIdentity>> {
    Ok(Some(pod(field, given)?).filter(PodIdentity::is_known))
}

pub(super) fn began(nanos: Option<u64>) -> Option<BootTime> {
    nanos.map(BootTime::from_nanos)
}

pub(super) fn sandbox(field: &str, sandbox: Option<pb::Sandbox>) -> Parsed<Option<Sandbox>> {
    let Some(pb::Sandbox { netns_path, netns_inode, netns_device }) = sandbox else { return Ok(None) };
    if netns_path.is_empty() {
        return Ok(None);
    }
    let path = format!("{field}.netns_path");
    if !netns_path.starts_with('/') || netns_path.contains('\0') || netns_path.len() > 4096 {
        let why = format!("`{}`: an absolute path of at most 4096 bytes is expected", shown(&netns_path));
        return Err(InvalidField::new(path, why));
    }
    Ok(Some(Sandbox { netns: PathBuf::from(netns_path), device: netns_device, inode: netns_inode }))
}

fn subnet(field: &str, subnet: Option<pb::IpSubnet>) -> Parsed<Option<IpNet>> {
    let Some(pb::IpSubnet { ip_address, prefix_length }) = subnet else { return Ok(None) };
    if ip_address.is_empty() && prefix_length == 0 {
        return Ok(None);
    }
    let address = ip(&format!("{field}.ip_address"), &ip_address)?;
    let length = u8::try_from(prefix_length).ok().and_then(|length| IpNet::new(address, length).ok());
    let why = || format!("{prefix_length} is longer than the address {address}");
    length.map(Some).ok_or_else(|| {
        InvalidField::new(format!("{field}.prefix_length"), why()).code(ReturnCode::InvalidPrimaryIpConfig)
    })
}

fn ip_configuration(field: &str, config: Option<pb::IpConfiguration>) -> Parsed<IpConfiguration> {
    let config = config.unwrap_or_default();
    Ok(IpConfiguration {
        subnet: subnet(&format!("{field}.ip_subnet"), config.ip_subnet)?,
        subnet_v6: subnet(&format!("{field}.ip_subnet_v6"), config.ip_subnet_v6)?,
        dns_servers: config.dns_servers,
        gateway: gateway(&format!("{field}.gateway_ip_address"), &config.gateway_ip_address)?,
        gateway_v6: gateway(&format!("{field}.gateway_ipv6_address"), &config.gateway_ipv6_address)?,
    })
}

fn nic_type(field: &str, value: i32) -> Parsed<Option<NicType>> {
    Ok(
        match pb::NicType::try_from(value)
            .map_err(|_| InvalidField::new(field, format!("{value} is no NIC type")))?
        {
            pb::NicType::Unspecified => None,
            pb::NicType::Infra => Some(NicType::Infra),
            pb::NicType::DelegatedVm => Some(NicType::DelegatedVm),
            pb::NicType::Backend => Some(NicType::Backend),
            pb::NicType::AccelnetFrontend => Some(NicType::AccelnetFrontend),
            pb::NicType::Apipa => Some(NicType::Apipa),
        },
    )
}

fn pb_nic_type(nic_type: Option<NicType>) -> pb::NicType {
    match nic_type {
        None => pb::NicType::Unspecified,
        Some(NicType::Infra) => pb::NicType::Infra,
        Some(NicType::DelegatedVm) => pb::NicType::DelegatedVm,
        Some(NicType::Backend) => pb::NicType::Backend,
        Some(NicType::AccelnetFrontend) => pb::NicType::AccelnetFrontend,
        Some(NicType::Apipa) => pb::NicType::Apipa,
    }
}

fn nc_type(field: &str, value: i32) -> Parsed<NcType> {
    let unsupported =
        |why: String| InvalidField::new(field, why).code(ReturnCode::UnsupportedNetworkContainerType);
    let known = pb::NetworkContainerType::try_from(value)
        .map_err(|_| unsupported(format!("Unsupported network container type {value}")))?;
    Ok(match known {
        pb::NetworkContainerType::Unspecified => {
            return Err(unsupported("Unsupported network container type: none is given".into()));
        }
        pb::NetworkContainerType::AzureContainerInstance => NcType::AzureContainerInstance,
        pb::NetworkContainerType::WebApps => NcType::WebApps,
        pb::NetworkContainerType::Docker => NcType::Docker,
        pb::NetworkContainerType::Basic => NcType::Basic,
        pb::NetworkContainerType::JobObject => NcType::JobObject,
        pb::NetworkContainerType::Cow => NcType::Cow,
        pb::NetworkContainerType::BackendNicNc => NcType::BackendNicNc,
        pb::NetworkContainerType::Kubernetes => NcType::Kubernetes,
    })
}

pub(super) fn pb_nc_type(nc_type: NcType) -> pb::NetworkContainerType {
    match nc_type {
        NcType::AzureContainerInstance => pb::NetworkContainerType::AzureContainerInstance,
        NcType::WebApps => pb::NetworkContainerType::WebApps,
        NcType::Docker => pb::NetworkContainerType::Docker,
        NcType::Basic => pb::NetworkContainerType::Basic,
        NcType::JobObject => pb::NetworkContainerType::JobObject,
        NcType::Cow => pb::NetworkContainerType::Cow,
        NcType::BackendNicNc => pb::NetworkContainerType::BackendNicNc,
        NcType::Kubernetes => pb::NetworkContainerType::Kubernetes,
    }
}

pub(super) fn orchestrator(field: &str, value: i32) -> Parsed<OrchestratorType> {
    let unsupported =
        |why: String| InvalidField::new(field, why).code(ReturnCode::UnsupportedOrchestratorType);
    let known = pb::OrchestratorType::try_from(value)
        .map_err(|_| unsupported(format!("Invalid Orchestrator type {value}")))?;
    Ok(match known {
        pb::OrchestratorType::Unspecified => {
            return Err(unsupported("Invalid Orchestrator type: none is given".into()));
        }
        pb::OrchestratorType::Kubernetes => OrchestratorType::Kubernetes,
        pb::OrchestratorType::ServiceFabric => OrchestratorType::ServiceFabric,
        pb::OrchestratorType::Batch => OrchestratorType::Batch,
        pb::OrchestratorType::DbForPostgresql => OrchestratorType::DbForPostgreSql,
        pb::OrchestratorType::AzureFirstParty => OrchestratorType::AzureFirstParty,
        pb::OrchestratorType::KubernetesCrd => OrchestratorType::KubernetesCrd,
        pb::OrchestratorType::WebApps => OrchestratorType::WebApps,
    })
}

pub(super) fn pb_orchestrator(kind: Option<OrchestratorType>) -> pb::OrchestratorType {
    match kind {
        None => pb::OrchestratorType::Unspecified,
        Some(OrchestratorType::Kubernetes) => pb::OrchestratorType::Kubernetes,
        Some(OrchestratorType::ServiceFabric) => pb::OrchestratorType::ServiceFabric,
        Some(OrchestratorType::Batch) => pb::OrchestratorType::Batch,
        Some(OrchestratorType::DbForPostgreSql) => pb::OrchestratorType::DbForPostgresql,
        Some(OrchestratorType::AzureFirstParty) => pb::OrchestratorType::AzureFirstParty,
        Some(OrchestratorType::KubernetesCrd) => pb::OrchestratorType::KubernetesCrd,
        Some(OrchestratorType::WebApps) => pb::OrchestratorType::WebApps,
    }
}

pub(super) fn pb_scheme(scheme: PodKeyScheme) -> pb::PodKeyScheme {
    match scheme {
        PodKeyScheme::InterfaceId => pb::PodKeyScheme::InterfaceId,
        PodKeyScheme::InfraContainerId => pb::PodKeyScheme::InfraContainerId,
    }
}

pub(super) fn ip_state(field: &str, value: i32) -> Parsed<Option<IpStateKind>> {
    Ok(
        match pb::IpState::try_from(value)
            .map_err(|_| InvalidField::new(field, format!("{value} is no IP state")))?
        {
            pb::IpState::Unspecified => None,
            pb::IpState::Available => Some(IpStateKind::Available),
            pb::IpState::Assigned => Some(IpStateKind::Assigned),
            pb::IpState::PendingProgramming => Some(IpStateKind::PendingProgramming),
            pb::IpState::PendingRelease => Some(IpStateKind::PendingRelease),
        },
    )
}

pub(super) fn pb_ip_state(kind: Option<IpStateKind>) -> pb::IpState {
    match kind {
        None => pb::IpState::Unspecified,
        Some(IpStateKind::Available) => pb::IpState::Available,
        Some(IpStateKind::Assigned) => pb::IpState::Assigned,
        Some(IpStateKind::PendingProgramming) => pb::IpState::PendingProgramming,
        Some(IpStateKind::PendingRelease) => pb::IpState::PendingRelease,
    }
}

pub(super) fn family(field: &str, value: i32) -> Parsed<Option<Family>> {
    Ok(
        match pb::IpFamily::try_from(value)
            .map_err(|_| InvalidField::new(field, format!("{value} is no family")))?
        {
            pb::IpFamily::Unspecified => None,
            pb::IpFamily::Ipv4 => Some(Family::V4),
            pb::IpFamily::Ipv6 => Some(Family::V6),
        },
    )
}

/// The definition of an NC. The authorization token ends here: it is never kept (spec/network-containers.md §1.1).
pub(super) fn nc_spec(field: &str, nc: Option<pb::NetworkContainer>) -> Parsed<NcSpec> {
    let nc = nc.ok_or_else(|| {
        InvalidField::new(field, "a network container is expected")
            .code(ReturnCode::NetworkContainerNotSpecified)
    })?;
    let at = |name: &str| format!("{field}.{name}");
    let id_field = at("id");
    let id: NcId = if nc.id.is_empty() {
        return Err(InvalidField::new(id_field, "it is empty").code(ReturnCode::NetworkContainerNotSpecified));
    } else {
        required(&id_field, &nc.id)?
    };
    if !nc.primary_interface_identifier.is_empty() {
        let text = &nc.primary_interface_identifier;
        if text.parse::<IpNet>().is_err() && parse_ip(text).is_err() {
            let why = format!("`{text}` is neither an IP address nor a CIDR");
            return Err(InvalidField::new(at("primary_interface_identifier"), why));
        }
    }
    let mut secondary_ip_configs = std::collections::BTreeMap::new();
    for (id, config) in nc.secondary_ip_configs {
        let entry = format!("{}[{id}]", at("secondary_ip_configs"));
        let invalid = |error: InvalidField| error.code(ReturnCode::InvalidSecondaryIpConfig);
        let address = ip(&format!("{entry}.ip_address"), &config.ip_address).map_err(invalid)?;
        // The reference reads a negative version as "in every version".
        let nc_version = u64::try_from(config.nc_version).unwrap_or(0);
        let id = required(&entry, &id).map_err(invalid)?;
        secondary_ip_configs.insert(id, SecondaryIpConfig { address, nc_version });
    }
    let mut routes = Vec::with_capacity(nc.routes.len());
    for (i, route) in nc.routes.into_iter().enumerate() {
        let entry = format!("{}[{i}]", at("routes"));
        routes.push(NcRoute {
            destination: required(&format!("{entry}.destination"), &route.destination)?,
            gateway: optional_ip(&format!("{entry}.gateway_ip_address"), &route.gateway_ip_address)?,
            interface: route.interface_to_use,
        });
    }
    let mut cnet_address_space = Vec::with_capacity(nc.cnet_address_space.len());
    for (i, space) in nc.cnet_address_space.into_iter().enumerate() {
        cnet_address_space.extend(subnet(&format!("{}[{i}]", at("cnet_address_space")), Some(space))?);
    }
    let nic = nc.network_interface_info.unwrap_or_default();
    Ok(NcSpec {
        id,
        nc_type: nc_type(&at("type"), nc.r#type)?,
        version: nc.version,
        host_primary_ip: optional_ip(&at("host_primary_ip"), &nc.host_primary_ip)?,
        primary_interface_identifier: nc.primary_interface_identifier,
        local_ip_configuration: ip_configuration(&at("local_ip_configuration"), nc.local_ip_configuration)?,
        orchestrator_context: match nc.orchestrator_context {
            None => None,
            context => Some(pod(&at("orchestrator_context"), context)?),
        },
        ip_configuration: ip_configuration(&at("ip_configuration"), nc.ip_configuration)?,
        ipv6_configuration: ip_configuration(&at("ipv6_configuration"), nc.ipv6_configuration)?,
        secondary_ip_configs,
        multi_tenancy: nc
            .multi_tenancy_info
            .map(|info| MultiTenancyInfo { encap_type: info.encap_type, id: info.id }),
        cnet_address_space,
        routes,
        allow_host_to_nc: nc.allow_host_to_nc_communication,
        allow_nc_to_host: nc.allow_nc_to_host_communication,
        skip_default_routes: nc.skip_default_routes,
        endpoint_policies: nc
            .endpoint_policies
            .into_iter()
            .map(|policy| EndpointPolicy {
                policy_type: policy.r#type,
                endpoint_type: policy.endpoint_type,
                settings: policy.settings_json,
            })
            .collect(),
        status: nc.status,
        network_interface_info: NetworkInterfaceInfo {
            nic_type: nic_type(&at("network_interface_info.nic_type"), nic.nic_type)?,
            mac: optional(&at("network_interface_info.mac_address"), &nic.mac_address)?,
        },
    })
}

pub(super) fn endpoint_interface(field: &str, nic: pb::EndpointInterface) -> Parsed<EndpointInterface> {
    let at = |name: &str| format!("{field}.{name}");
    let nets = |name: &str, texts: &[String], family: Family| -> Parsed<Vec<IpNet>> {
        let parse = |(i, text): (usize, &String)| {
            let net: IpNet = required(&format!("{}[{i}]", at(name)), text)?;
            if Family::of(net.addr()) == family {
                Ok(net)
            } else {
                Err(InvalidField::new(format!("{}[{i}]", at(name)), format!("{net} is not {family}")))
            }
        };
        texts.iter().enumerate().map(parse).collect()
    };
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok(EndpointInterface {
        ifname: ifname(&at("ifname"), &nic.ifname)?,
        ipv4: nets("ipv4", &nic.ipv4, Family::V4)?,
        ipv6: nets("ipv6", &nic.ipv6, Family::V6)?,
        nic_type: nic_type(&at("nic_type"), nic.nic_type)?,
        host_veth_name: text(nic.host_veth_name),
        mac: optional(&at("mac_address"), &nic.mac_address)?,
        hns_endpoint_id: text(nic.hns_endpoint_id),
        hns_network_id: text(nic.hns_network_id),
        nc: optional(&at("network_container_id"), &nic.network_container_id)?,
        host_name: text(nic.host_name),
        host_ifindex: Some(nic.host_ifindex).filter(|index| *index != 0),
    })
}

// === model → contract ===

/// How an agent is doing.
pub(super) fn pb_agent(state: &AgentState) -> pb::AgentStatus {
    let status = state.status();
    pb::AgentStatus {
        name: state.agent().to_owned(),
        address: state.address().to_owned(),
        healthy: status.is_answering() == Some(true),
        since: status.since.map(pb_time),
        last_error: status.last_failure.as_ref().map(|failure| failure.error.clone()).unwrap_or_default(),
        failed_in_a_row: status.failed_in_a_row,
        last_success: status.last_success.map(pb_time),
    }
}

pub(super) fn pb_time(time: Timestamp) -> PbTimestamp {
    let nanos = time.unix_nanos();
    PbTimestamp {
        seconds: nanos.div_euclid(1_000_000_000),
        nanos: i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or(0),
    }
}

fn text<T: ToString>(value: Option<&T>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

pub(super) fn pb_pod(pod: &PodIdentity) -> pb::PodIdentity {
    pb::PodIdentity { namespace: pod.namespace().to_owned(), name: pod.name().to_owned() }
}

fn pb_subnet(net: IpNet) -> pb::IpSubnet {
    pb::IpSubnet { ip_address: net.addr().to_string(), prefix_length: net.prefix_len().into() }
}

fn pb_ip_configuration(config: &IpConfiguration) -> pb::IpConfiguration {
    pb::IpConfiguration {
        ip_subnet: config.subnet.map(pb_subnet),
        ip_subnet_v6: config.subnet_v6.map(pb_subnet),
        dns_servers: config.dns_servers.clone(),
        gateway_ip_address: text(config.gateway.as_ref()),
        gateway_ipv6_address: text(config.gateway_v6.as_ref()),
    }
}

fn pb_routes(routes: &[NcRoute]) -> Vec<pb::Route> {
    let one = |route: &NcRoute| pb::Route {
        destination: route.destination.to_string(),
        gateway_ip_address: text(route.gateway.as_ref()),
        interface_to_use: route.interface.clone(),
    };
    routes.iter().map(one).collect()
}

fn pb_policies(policies: &[EndpointPolicy]) -> Vec<pb::EndpointPolicy> {
    let one = |policy: &EndpointPolicy| pb::EndpointPolicy {
        r#type: policy.policy_type.clone(),
        endpoint_type: policy.endpoint_type.clone(),
        settings_json: policy.settings.clone(),
    };
    policies.iter().map(one).collect()
}

/// One address of a pod with what the CNI needs (spec/ipam.md §4.4). The prefix length is that of the address's family;
/// the reference gives the IPv4 length for both.
pub(super) fn pb_pod_ip_info(
    record: &IpRecord,
    nc: &NcRecord,
    host: Option<&HostInterface>,
) -> pb::PodIpInfo {
    let config = &nc.spec.ip_configuration;
    let same_family = |net: &&IpNet| Family::of(net.addr()) == Family::of(record.address);
    let length = [config.subnet.as_ref(), config.subnet_v6.as_ref()]
        .into_iter()
        .flatten()
        .find(same_family)
        .map_or(0, IpNet::prefix_len);
    pb::PodIpInfo {
        pod_ip_config: Some(pb::IpSubnet {
            ip_address: record.address.to_string(),
            prefix_length: length.into(),
        }),
        network_container_primary_ip_config: Some(pb_ip_configuration(config)),
        network_container_ipv6_config: Some(pb_ip_configuration(&nc.spec.ipv6_configuration)),
        host_primary_ip_info: host.and_then(pb_host_primary_ip_info),
        nic_type: pb::NicType::Infra.into(),
        interface_name: String::new(),
        mac_address: text(nc.spec.network_interface_info.mac.as_ref()),
        shared_nic: false,
        skip_default_routes: nc.spec.skip_default_routes,
        routes: pb_routes(&nc.spec.routes),
        pnp_id: String::new(),
        endpoint_policies: Vec::new(),
        allow_host_to_nc_communication: nc.spec.allow_host_to_nc,
        allow_nc_to_host_communication: nc.spec.allow_nc_to_host,
        network_container_id: nc.id().to_string(),
        ip_config_id: record.id.to_string(),
    }
}

/// An interface of a pod with NCs of its own (spec/rest-contract.md §6.20, standalone SwiftV2).
pub(super) fn pb_pod_nic(nic: PodNic<'_>, host: Option<&HostInterface>) -> pb::PodIpInfo {
    let info = |nc: &NcSpec, config: &IpConfiguration| pb::PodIpInfo {
        pod_ip_config: config.subnet.map(pb_subnet),
        network_container_primary_ip_config: Some(pb_ip_configuration(config)),
        host_primary_ip_info: host.and_then(pb_host_primary_ip_info),
        network_container_id: nc.id.to_string(),
        ..Default::default()
    };
    match nic {
        PodNic::Nc(nc) => pb::PodIpInfo {
            network_container_ipv6_config: Some(pb_ip_configuration(&nc.ipv6_configuration)),
            mac_address: text(nc.network_interface_info.mac.as_ref()),
            nic_type: pb_nic_type(nc.network_interface_info.nic_type).into(),
            skip_default_routes: nc.skip_default_routes,
            ..info(nc, &nc.ip_configuration)
        },
        PodNic::Apipa(nc) => pb::PodIpInfo {
            nic_type: pb::NicType::Apipa.into(),
            skip_default_routes: true,
            allow_host_to_nc_communication: nc.allow_host_to_nc,
            allow_nc_to_host_communication: nc.allow_nc_to_host,
            ..info(nc, &nc.local_ip_configuration)
        },
    }
}

/// The plugins that read it build IPv4 networks of it (spec/rest-contract.md §10), so a host that the world knows by IPv6 only
/// has none.
fn pb_host_primary_ip_info(host: &HostInterface) -> Option<pb::HostPrimaryIpInfo> {
    host.primary_ip().is_ipv4().then(|| pb::HostPrimaryIpInfo {
        gateway: text(host.gateway().as_ref()),
        primary_ip: host.primary_ip().to_string(),
        subnet: host.subnet().to_string(),
    })
}

pub(super) fn pb_ip_config(record: &IpRecord, cool_down: std::time::Duration, now: Now) -> pb::IpConfig {
    let assignment = record.state.assignment();
    let cooling = match (&record.state, record.freed) {
        (IpState::Available, Some(freed)) => {
            cool_down.checked_sub(now.boot.since(freed)).filter(|d| !d.is_zero())
        }
        _ => None,
    };
    let until = cooling.map(|left| {
        let nanos = i64::try_from(left.as_nanos()).unwrap_or(i64::MAX);
        pb_time(Timestamp::from_unix_nanos(now.wall.unix_nanos().saturating_add(nanos)))
    });
    let on_release = match (assignment, record.on_release) {
        (None, _) => pb::OnRelease::Unspecified,
        (Some(_), OnRelease::Free) => pb::OnRelease::Free,
        (Some(_), OnRelease::GiveBack) => pb::OnRelease::GiveBack,
        (Some(_), OnRelease::Remove) => pb::OnRelease::Remove,
    };
    pb::IpConfig {
        id: record.id.to_string(),
        ip_address: record.address.to_string(),
        network_container_id: record.nc.to_string(),
        state: pb_ip_state(Some(record.state.kind())).into(),
        owner: assignment.map(|owner| pb::IpOwner {
            pod: Some(pb_pod(&owner.pod)),
            pod_key: owner.key.to_string(),
            infra_container_id: text(owner.container.as_ref()),
            pod_interface_id: owner.interface_id.clone(),
            ifname: text(owner.ifname.as_ref()),
            secondary_interfaces_exist: owner.secondary_interfaces,
        }),
        last_state_transition: Some(pb_time(record.since)),
        network_container_version: record.nc_version,
        cooling_until: until,
        on_release: on_release.into(),
    }
}

pub(super) fn pb_counts(counts: [u32; 4]) -> pb::IpStateCounts {
    let [available, assigned, pending_programming, pending_release] = counts;
    pb::IpStateCounts { available, assigned, pending_programming, pending_release }
}

pub(super) fn pb_nc_status(nc: &NcView) -> pb::NetworkContainerStatus {
    let record = &nc.record;
    let lifecycle = match record.lifecycle {
        NcLifecycle::Active => pb::NetworkContainerLifecycle::Active,
        NcLifecycle::Deleting => pb::NetworkContainerLifecycle::Deleting,
    };
    pb::NetworkContainerStatus {
        id: record.id().to_string(),
        version: record.spec.version.clone(),
        host_version: record.host_version,
        vfp_update_complete: record.vfp_update_complete,
        lifecycle: lifecycle.into(),
        ipv4: Some(pb_counts(nc.counts[0])),
        ipv6: Some(pb_counts(nc.counts[1])),
        withdrawn: nc.withdrawn.iter().sum(),
        created: Some(pb_time(record.created)),
        updated: Some(pb_time(record.updated)),
    }
}

/// The definition of an NC; `secondaries` are its address records where it feeds the pool.
pub(super) fn pb_nc<'a>(
    spec: &NcSpec,
    secondaries: impl Iterator<Item = &'a IpRecord>,
) -> pb::NetworkContainer {
    let version = |version: u64| i64::try_from(version).unwrap_or(i64::MAX);
    let stored = spec.secondary_ip_configs.iter().map(|(id, config)| {
        let address = config.address.to_string();
        (
            id.to_string(),
            pb::SecondaryIpConfig { ip_address: address, nc_version: version(config.nc_version) },
        )
    });
    let records = secondaries.map(|record| {
        let address = record.address.to_string();
        (
            record.id.to_string(),
            pb::SecondaryIpConfig { ip_address: address, nc_version: version(record.nc_version) },
        )
    });
    let nic = &spec.network_interface_info;
    pb::NetworkContainer {
        id: spec.id.to_string(),
        r#type: pb_nc_type(spec.nc_type).into(),
        version: spec.version.clone(),
        host_primary_ip: text(spec.host_primary_ip.as_ref()),
        primary_interface_identifier: spec.primary_interface_identifier.clone(),
        authorization_token: String::new(),
        local_ip_configuration: Some(pb_ip_configuration(&spec.local_ip_configuration)),
        orchestrator_context: spec.orchestrator_context.as_ref().map(pb_pod),
        ip_configuration: Some(pb_ip_configuration(&spec.ip_configuration)),
        ipv6_configuration: Some(pb_ip_configuration(&spec.ipv6_configuration)),
        secondary_ip_configs: stored.chain(records).collect(),
        multi_tenancy_info: spec
            .multi_tenancy
            .as_ref()
            .map(|info| pb::MultiTenancyInfo { encap_type: info.encap_type.clone(), id: info.id }),
        cnet_address_space: spec.cnet_address_space.iter().copied().map(pb_subnet).collect(),
        routes: pb_routes(&spec.routes),
        allow_host_to_nc_communication: spec.allow_host_to_nc,
        allow_nc_to_host_communication: spec.allow_nc_to_host,
        skip_default_routes: spec.skip_default_routes,
        endpoint_policies: pb_policies(&spec.endpoint_policies),
        status: spec.status.clone(),
        network_interface_info: Some(pb::NetworkInterfaceInfo {
            nic_type: pb_nic_type(nic.nic_type).into(),
            mac_address: text(nic.mac.as_ref()),
        }),
    }
}

/// The interface of an NC as the legacy contract has it: named after the NC, with the NC's primary address
/// (spec/rest-contract.md §6.13).
pub(super) fn pb_interface(spec: &NcSpec) -> pb::GetInterfaceForContainerResponse {
    let primary = spec.ip_configuration.subnet.map(|net| net.addr());
    pb::GetInterfaceForContainerResponse {
        interface_name: spec.id.to_string(),
        interface_ip_address: text(primary.as_ref()),
        cnet_address_space: spec.cnet_address_space.iter().copied().map(pb_subnet).collect(),
        dns_servers: spec.ip_configuration.dns_servers.clone(),
        network_container_version: spec.version.clone(),
    }
}

pub(super) fn pb_endpoint(endpoint: &Endpoint) -> pb::Endpoint {
    let nets = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect();
    let interface = |nic: &EndpointInterface| pb::EndpointInterface {
        ifname: text(nic.ifname.as_ref()),
        nic_type: pb_nic_type(nic.nic_type).into(),
        ipv4: nets(&nic.ipv4),
        ipv6: nets(&nic.ipv6),
        host_veth_name: nic.host_veth_name.clone().unwrap_or_default(),
        mac_address: text(nic.mac.as_ref()),
        hns_endpoint_id: nic.hns_endpoint_id.clone().unwrap_or_default(),
        hns_network_id: nic.hns_network_id.clone().unwrap_or_default(),
        network_container_id: text(nic.nc.as_ref()),
        host_name: nic.host_name.clone().unwrap_or_default(),
        host_ifindex: nic.host_ifindex.unwrap_or(0),
    };
    pb::Endpoint {
        container_id: endpoint.container.to_string(),
        pod: Some(pb_pod(&endpoint.pod)),
        pod_interface_id: endpoint.interface_id.clone(),
        interfaces: endpoint.interfaces.iter().map(interface).collect(),
        sandbox: endpoint.sandbox.as_ref().map(|sandbox| pb::Sandbox {
            netns_path: sandbox.netns.to_string_lossy().into_owned(),
            netns_inode: sandbox.inode,
            netns_device: sandbox.device,
        }),
        witnessed: endpoint.witnessed,
        began_boottime_ns: endpoint.began.map(BootTime::nanos),
        created: Some(pb_time(endpoint.created)),
        updated: Some(pb_time(endpoint.updated)),
    }
}

fn pb_actor(actor: &Actor) -> pb::Actor {
    pb::Actor {
        uid: actor.uid,
        pid: actor.pid,
        origin: actor.origin.clone(),
        request_id: actor.request_id.clone(),
    }
}

pub(super) fn pb_event(entry: &JournalEntry) -> pb::Event {
    use pb::event_change::Change;
    let (outcome, reason, message) = match &entry.outcome {
        Outcome::Done => (pb::EventOutcome::Done, String::new(), String::new()),
        Outcome::Unchanged => (pb::EventOutcome::Unchanged, String::new(), String::new()),
        Outcome::Refused { reason, message } => (pb::EventOutcome::Refused, reason.clone(), message.clone()),
    };
    let change = |note: &ChangeNote| {
        let change = match note {
            ChangeNote::Ip { address, from, to, after_ms } => Change::Ip(pb::IpChange {
                ip_address: address.to_string(),
                from: pb_ip_state(*from).into(),
                to: pb_ip_state(*to).into(),
                after_ms: *after_ms,
            }),
            ChangeNote::Ips { count, from, to } => Change::Ips(pb::IpChanges {
                count: *count,
                from: pb_ip_state(*from).into(),
                to: pb_ip_state(*to).into(),
            }),
            ChangeNote::Nc { id, what } => {
                Change::NetworkContainer(pb::ObjectChange { id: id.to_string(), what: what.clone() })
            }
            ChangeNote::Endpoint { container, what } => {
                Change::Endpoint(pb::ObjectChange { id: container.to_string(), what: what.clone() })
            }
        };
        pb::EventChange { change: Some(change) }
    };
    pb::Event {
        sequence: entry.seq,
        time: Some(pb_time(entry.at)),
        actor: Some(pb_actor(&entry.actor)),
        operation: entry.operation.to_string(),
        container_id: text(entry.container.as_ref()),
        pod: entry.pod.as_ref().map(pb_pod),
        network_container_id: text(entry.nc.as_ref()),
        ip_addresses: entry.addresses.iter().map(ToString::to_string).collect(),
        outcome: outcome.into(),
        reason,
        message,
        changes: entry.changes.iter().map(change).collect(),
        why: entry.why.clone(),
    }
}
