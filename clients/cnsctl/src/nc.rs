//! `nc list`, `nc get`, `nc create`, `nc delete`.

use std::collections::BTreeMap;

use cns::proto::v1 as pb;
use cns_client::Client;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    args::NcCommand,
    failure::{Exit, Failure},
    input,
    output::{Cell, Out, Page, Tone},
    view::{
        Configuration, Counts, Pod, Route, Subnet, Time, ago, nc_type, nc_type_to_wire, nic_type,
        nic_type_to_wire,
    },
};

/// A network container: what `nc get` prints and `nc create` takes. `observed` is printed and not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NetworkContainer {
    pub(crate) id: String,
    #[serde(rename = "type")]
    nc_type: String,
    #[serde(default, deserialize_with = "text_or_number")]
    version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host_primary_ip: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    primary_interface_identifier: String,
    /// Taken, never kept by the daemon, never printed.
    #[serde(default, skip_serializing)]
    authorization_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    local_ip_configuration: Option<Configuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    orchestrator_context: Option<Pod>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ip_configuration: Option<Configuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ipv6_configuration: Option<Configuration>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    secondary_ip_configs: BTreeMap<String, SecondaryIpConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    multi_tenancy_info: Option<MultiTenancyInfo>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cnet_address_space: Vec<Subnet>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
    #[serde(default)]
    allow_host_to_nc_communication: bool,
    #[serde(default)]
    allow_nc_to_host_communication: bool,
    #[serde(default)]
    skip_default_routes: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    endpoint_policies: Vec<EndpointPolicy>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network_interface_info: Option<NetworkInterfaceInfo>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "ignored")]
    pub(crate) observed: Option<Observed>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecondaryIpConfig {
    ip_address: String,
    #[serde(default)]
    nc_version: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MultiTenancyInfo {
    encap_type: String,
    id: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EndpointPolicy {
    #[serde(rename = "type")]
    policy_type: String,
    endpoint_type: String,
    settings_json: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetworkInterfaceInfo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nic_type: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    mac_address: String,
}

/// What the daemon knows beside the definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Observed {
    pub(crate) lifecycle: String,
    host_version: Option<u64>,
    vfp_update_complete: bool,
    pub(crate) ipv4: Counts,
    pub(crate) ipv6: Counts,
    pub(crate) withdrawn: u32,
    created: Option<Time>,
    updated: Option<Time>,
}

impl Observed {
    fn from_wire(wire: pb::NetworkContainerStatus) -> Self {
        let lifecycle = match wire.lifecycle() {
            pb::NetworkContainerLifecycle::Deleting => "Deleting",
            pb::NetworkContainerLifecycle::Active | pb::NetworkContainerLifecycle::Unspecified => "Active",
        };
        Self {
            lifecycle: lifecycle.to_owned(),
            host_version: wire.host_version,
            vfp_update_complete: wire.vfp_update_complete,
            ipv4: Counts::from_wire(wire.ipv4),
            ipv6: Counts::from_wire(wire.ipv6),
            withdrawn: wire.withdrawn,
            created: Time::from_wire(wire.created),
            updated: Time::from_wire(wire.updated),
        }
    }

    /// The families that the NC serves, with their counts.
    pub(crate) fn families(&self) -> impl Iterator<Item = (&'static str, Counts)> {
        [("IPv4", self.ipv4), ("IPv6", self.ipv6)].into_iter().filter(|(_, counts)| counts.total() > 0)
    }
}

impl NetworkContainer {
    pub(crate) fn from_wire(entry: pb::NetworkContainerEntry) -> Self {
        let wire = entry.network_container.unwrap_or_default();
        Self {
            nc_type: nc_type(wire.r#type),
            id: wire.id,
            version: wire.version,
            host_primary_ip: wire.host_primary_ip,
            primary_interface_identifier: wire.primary_interface_identifier,
            authorization_token: String::new(),
            local_ip_configuration: Configuration::from_wire(wire.local_ip_configuration),
            orchestrator_context: Pod::from_wire(wire.orchestrator_context),
            ip_configuration: Configuration::from_wire(wire.ip_configuration),
            ipv6_configuration: Configuration::from_wire(wire.ipv6_configuration),
            secondary_ip_configs: wire
                .secondary_ip_configs
                .into_iter()
                .map(|(id, ip)| {
                    (id, SecondaryIpConfig { ip_address: ip.ip_address, nc_version: ip.nc_version })
                })
                .collect(),
            multi_tenancy_info: wire
                .multi_tenancy_info
                .map(|info| MultiTenancyInfo { encap_type: info.encap_type, id: info.id }),
            cnet_address_space: wire
                .cnet_address_space
                .into_iter()
                .filter_map(|subnet| Subnet::from_wire(Some(subnet)))
                .collect(),
            routes: wire.routes.into_iter().map(Route::from_wire).collect(),
            allow_host_to_nc_communication: wire.allow_host_to_nc_communication,
            allow_nc_to_host_communication: wire.allow_nc_to_host_communication,
            skip_default_routes: wire.skip_default_routes,
            endpoint_policies: wire
                .endpoint_policies
                .into_iter()
                .map(|policy| EndpointPolicy {
                    policy_type: policy.r#type,
                    endpoint_type: policy.endpoint_type,
                    settings_json: policy.settings_json,
                })
                .collect(),
            status: wire.status,
            network_interface_info: wire
                .network_interface_info
                .filter(|info| *info != pb::NetworkInterfaceInfo::default())
                .map(|info| NetworkInterfaceInfo {
                    nic_type: nic_type(info.nic_type),
                    mac_address: info.mac_address,
                }),
            observed: entry.status.map(Observed::from_wire),
        }
    }

    /// Fails with the name of the field whose text means nothing. Everything else the daemon judges.
    fn into_wire(self) -> Result<pb::NetworkContainer, String> {
        let nic = |info: NetworkInterfaceInfo| {
            let nic_type = info.nic_type.as_deref().map(nic_type_to_wire).transpose();
            let nic_type = nic_type.map_err(|why| format!("networkInterfaceInfo.nicType: {why}"))?;
            Ok::<_, String>(pb::NetworkInterfaceInfo {
                nic_type: nic_type.unwrap_or_default() as i32,
                mac_address: info.mac_address,
            })
        };
        Ok(pb::NetworkContainer {
            r#type: nc_type_to_wire(&self.nc_type).map_err(|why| format!("type: {why}"))? as i32,
            id: self.id,
            version: self.version,
            host_primary_ip: self.host_primary_ip,
            primary_interface_identifier: self.primary_interface_identifier,
            authorization_token: self.authorization_token,
            local_ip_configuration: self.local_ip_configuration.map(Configuration::into_wire),
            orchestrator_context: self.orchestrator_context.map(Pod::into_wire),
            ip_configuration: self.ip_configuration.map(Configuration::into_wire),
            ipv6_configuration: self.ipv6_configuration.map(Configuration::into_wire),
            secondary_ip_configs: self
                .secondary_ip_configs
                .into_iter()
                .map(|(id, ip)| {
                    (id, pb::SecondaryIpConfig { ip_address: ip.ip_address, nc_version: ip.nc_version })
                })
                .collect(),
            multi_tenancy_info: self
                .multi_tenancy_info
                .map(|info| pb::MultiTenancyInfo { encap_type: info.encap_type, id: info.id }),
            cnet_address_space: self.cnet_address_space.into_iter().map(Subnet::into_wire).collect(),
            routes: self.routes.into_iter().map(Route::into_wire).collect(),
            allow_host_to_nc_communication: self.allow_host_to_nc_communication,
            allow_nc_to_host_communication: self.allow_nc_to_host_communication,
            skip_default_routes: self.skip_default_routes,
            endpoint_policies: self
                .endpoint_policies
                .into_iter()
                .map(|policy| pb::EndpointPolicy {
                    r#type: policy.policy_type,
                    endpoint_type: policy.endpoint_type,
                    settings_json: policy.settings_json,
                })
                .collect(),
            status: self.status,
            network_interface_info: self.network_interface_info.map(nic).transpose()?,
        })
    }
}

/// A version is text on the wire; a file's author writes a number.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Version;

    impl de::Visitor<'_> for Version {
        type Value = String;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a version number")
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }

    deserializer.deserialize_any(Version)
}

fn ignored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Observed>, D::Error> {
    de::IgnoredAny::deserialize(deserializer).map(|_| None)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    network_containers: Vec<NetworkContainer>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Accepted {
    id: String,
    /// It is new; else an existing one was replaced.
    created: bool,
    observed: Option<Observed>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Deleted {
    id: String,
    held_ip_addresses: Vec<String>,
}

/// Network containers as a table: a row for each family that one serves.
pub(crate) fn table(page: Page, ncs: &[NetworkContainer], now: jiff::Timestamp) -> Page {
    let row = |nc: &NetworkContainer, family: &str, counts: Counts| {
        let observed = nc.observed.as_ref();
        let lifecycle = observed.map(|observed| observed.lifecycle.clone()).unwrap_or_default();
        let tone = if lifecycle == "Active" { Tone::Plain } else { Tone::Attention };
        let free = if counts.available == 0 && counts.total() > 0 { Tone::Bad } else { Tone::Plain };
        vec![
            nc.id.clone().into(),
            nc.nc_type.clone().into(),
            nc.version.clone().into(),
            observed
                .and_then(|observed| observed.host_version)
                .map(|v| v.to_string())
                .unwrap_or_default()
                .into(),
            Cell::toned(lifecycle, tone),
            family.into(),
            Cell::toned(counts.available.to_string(), free),
            counts.assigned.to_string().into(),
            counts.pending_programming.saturating_add(counts.pending_release).to_string().into(),
            ago(observed.and_then(|observed| observed.updated), now),
        ]
    };
    let rows = ncs
        .iter()
        .flat_map(|nc| {
            let mut rows: Vec<_> = nc
                .observed
                .iter()
                .flat_map(Observed::families)
                .map(|(family, counts)| row(nc, family, counts))
                .collect();
            if rows.is_empty() {
                rows.push(row(nc, "", Counts::default()));
            }
            rows
        })
        .collect();
    page.table(
        &["NC", "TYPE", "VERSION", "HOST", "LIFECYCLE", "FAMILY", "FREE", "ASSIGNED", "PENDING", "CHANGED"],
        rows,
    )
}

fn detail(nc: &NetworkContainer, now: jiff::Timestamp) -> Page {
    let text = |text: &str| Cell::from(text);
    let mut fields = vec![("id", text(&nc.id)), ("type", text(&nc.nc_type)), ("version", text(&nc.version))];
    let subnet = |subnet: &Option<Subnet>| subnet.as_ref().map(ToString::to_string).unwrap_or_default();
    for (names, configuration) in [
        (
            ["primary address", "primary IPv6 address", "gateway", "IPv6 gateway", "resolvers"],
            &nc.ip_configuration,
        ),
        (
            [
                "second address",
                "second IPv6 address",
                "second gateway",
                "second IPv6 gateway",
                "second resolvers",
            ],
            &nc.ipv6_configuration,
        ),
        (
            ["local address", "local IPv6 address", "local gateway", "local IPv6 gateway", "local resolvers"],
            &nc.local_ip_configuration,
        ),
    ] {
        let Some(configuration) = configuration else { continue };
        let values = [
            subnet(&configuration.ip_subnet),
            subnet(&configuration.ip_subnet_v6),
            configuration.gateway_ip_address.clone(),
            configuration.gateway_ipv6_address.clone(),
            configuration.dns_servers.join(", "),
        ];
        fields.extend(
            names.into_iter().zip(values).filter(|(_, value)| !value.is_empty()).map(|(n, v)| (n, v.into())),
        );
    }
    if let Some(pod) = &nc.orchestrator_context {
        fields.push(("pod", pod.to_string().into()));
    }
    if !nc.status.is_empty() {
        fields.push(("status", text(&nc.status)));
    }
    fields.push(("secondary addresses", nc.secondary_ip_configs.len().to_string().into()));
    if let Some(observed) = &nc.observed {
        if observed.withdrawn > 0 {
            let words = format!("{} held by pods and not listed any more", observed.withdrawn);
            fields.push(("withdrawn", Cell::toned(words, Tone::Attention)));
        }
        for (name, time) in [("created", observed.created), ("changed", observed.updated)] {
            if let Some(time) = time {
                fields.push((name, format!("{} ({} ago)", time.short(), time.ago(now)).into()));
            }
        }
    }
    table(Page::new().fields(fields), std::slice::from_ref(nc), now)
}

pub(crate) async fn run(command: NcCommand, client: &Client, out: &mut Out) -> Result<(), Failure> {
    match command {
        NcCommand::List => {
            let request =
                pb::ListNetworkContainersRequest { without_secondary_ip_configs: true, ..Default::default() };
            let entries = client.list_all_network_containers(request).await?;
            let list =
                List { network_containers: entries.into_iter().map(NetworkContainer::from_wire).collect() };
            out.print(&list, |list| table(Page::new(), &list.network_containers, jiff::Timestamp::now()))
        }
        NcCommand::Get { id } => {
            let by = pb::get_network_container_request::By::Id(id.to_string());
            let answer =
                client.get_network_container(pb::GetNetworkContainerRequest { by: Some(by) }).await?;
            let entry = answer.entries.into_iter().next().ok_or_else(|| {
                Failure::new(Exit::NotFound, format!("network container {id} does not exist"))
                    .remedy("`cnsctl nc list` shows those that do")
            })?;
            out.print(&NetworkContainer::from_wire(entry), |nc| detail(nc, jiff::Timestamp::now()))
        }
        NcCommand::Create { file } => {
            let nc: NetworkContainer = input::read(&file)?;
            let wire = nc.into_wire().map_err(|why| {
                Failure::new(Exit::Usage, format!("{} is not as expected: {why}", input::shown(&file)))
            })?;
            let id = wire.id.clone();
            let request = pb::CreateOrUpdateNetworkContainerRequest { network_container: Some(wire) };
            let answer = client.create_or_update_network_container(request).await?;
            let accepted =
                Accepted { id, created: answer.created, observed: answer.status.map(Observed::from_wire) };
            out.print(&accepted, |accepted| {
                let verb = if accepted.created { "created" } else { "updated" };
                Page::new().line(format!("{verb} network container {}", accepted.id))
            })
        }
        NcCommand::Delete { id } => {
            let answer = client
                .delete_network_container(pb::DeleteNetworkContainerRequest { id: id.to_string() })
                .await?;
            if !answer.existed {
                return Err(Failure::new(Exit::NotFound, format!("network container {id} does not exist")));
            }
            let deleted = Deleted { id: id.to_string(), held_ip_addresses: answer.held_ip_addresses };
            out.print(&deleted, |deleted| {
                if deleted.held_ip_addresses.is_empty() {
                    return Page::new().line(format!("deleted network container {}", deleted.id));
                }
                Page::new().line(format!(
                    "network container {} gives no address any more and goes when its pods have released {}",
                    deleted.id,
                    deleted.held_ip_addresses.join(", ")
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> pb::NetworkContainerEntry {
        pb::NetworkContainerEntry {
            network_container: Some(pb::NetworkContainer {
                id: "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11".into(),
                r#type: pb::NetworkContainerType::Docker as i32,
                version: "3".into(),
                authorization_token: "secret".into(),
                ip_configuration: Some(pb::IpConfiguration {
                    ip_subnet: Some(pb::IpSubnet { ip_address: "10.240.0.5".into(), prefix_length: 24 }),
                    gateway_ip_address: "10.240.0.1".into(),
                    ..Default::default()
                }),
                secondary_ip_configs: [(
                    "a1".to_owned(),
                    pb::SecondaryIpConfig { ip_address: "10.240.0.17".into(), nc_version: 3 },
                )]
                .into(),
                network_interface_info: Some(pb::NetworkInterfaceInfo {
                    nic_type: pb::NicType::DelegatedVm as i32,
                    mac_address: "00:11:22:33:44:55".into(),
                }),
                ..Default::default()
            }),
            status: Some(pb::NetworkContainerStatus {
                lifecycle: pb::NetworkContainerLifecycle::Active as i32,
                ipv4: Some(pb::IpStateCounts { available: 1, ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn what_get_prints_create_takes_in_both_forms() {
        let printed = NetworkContainer::from_wire(entry());
        let mut expected = entry().network_container.unwrap();
        expected.authorization_token.clear();
        let json = serde_json::to_string(&printed).unwrap();
        assert!(!json.contains("secret") && json.contains("observed"), "{json}");
        let back: NetworkContainer = serde_json::from_str(&json).unwrap();
        assert_eq!(back.into_wire().unwrap(), expected);
        let yaml = serde_saphyr::to_string(&printed).unwrap();
        let back: NetworkContainer = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(back.into_wire().unwrap(), expected, "{yaml}");
    }

    #[test]
    fn a_version_may_be_a_number() {
        for text in ["id: x\ntype: Docker\nversion: 7\n", "id: x\ntype: Docker\nversion: '7'\n"] {
            assert_eq!(serde_saphyr::from_str::<NetworkContainer>(text).unwrap().version, "7");
        }
        assert_eq!(
            serde_json::from_str::<NetworkContainer>(r#"{"id":"x","type":"Docker","version":7}"#)
                .unwrap()
                .version,
            "7"
        );
    }

    #[test]
    fn a_wrong_word_names_its_field() {
        let nc = NetworkContainer { id: "x".into(), nc_type: "Dockr".into(), ..Default::default() };
        let why = nc.into_wire().unwrap_err();
        assert!(why.starts_with("type: ") && why.contains("Dockr"), "{why}");
        let error =
            serde_json::from_str::<NetworkContainer>(r#"{"id":"x","type":"Docker","gateway":"10.0.0.1"}"#);
        assert!(error.unwrap_err().to_string().contains("gateway"));
    }
}
