//! What is reported beside logs and metrics, in the reference's names (spec/metrics.md §6).

use ipnet::IpNet;

use crate::{
    model::{IpConfiguration, NcRecord, Timestamp},
    service::home_az::HomeAzState,
};

/// The texts that belong to an item, by name.
pub type Properties = Vec<(&'static str, String)>;

/// One thing to report.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A number.
    Metric {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What belongs to it.
        properties: Properties,
    },
    /// Something that is so, or happened.
    Event {
        /// Its name.
        name: &'static str,
        /// What it is about.
        operation: String,
        /// What belongs to it.
        properties: Properties,
    },
    /// A line of the log.
    Trace {
        /// How bad it is.
        severity: Severity,
        /// The line.
        message: String,
        /// Its fields.
        properties: Properties,
    },
}

/// How bad a line of the log is; the numbers are Application Insights'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// 1
    Information,
    /// 2
    Warning,
    /// 3
    Error,
}

impl Item {
    /// What metrics call it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Metric { .. } => "metric",
            Self::Event { .. } => "event",
            Self::Trace { .. } => "trace",
        }
    }

    /// About how many bytes it holds.
    pub(super) fn size(&self) -> usize {
        let (text, properties) = match self {
            Self::Metric { properties, .. } => (0, properties),
            Self::Event { operation, properties, .. } => (operation.len(), properties),
            Self::Trace { message, properties, .. } => (message.len(), properties),
        };
        properties.iter().fold(128 + text, |sum, (name, value)| sum + name.len() + value.len() + 16)
    }
}

/// An item and when it came about.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dated {
    pub(super) at: Timestamp,
    pub(super) item: Item,
}

/// That the daemon lives. In Direct mode it says what is known of the node's zone.
pub(super) fn heartbeat(zone: Option<&HomeAzState>) -> Item {
    let properties = match zone {
        None | Some(HomeAzState::Unknown) => Vec::new(),
        Some(HomeAzState::Zone { zone, ipv6_fix }) => vec![
            ("IsAZRSupported", "true".to_owned()),
            ("HomeAZ", zone.to_string()),
            ("IsAZRDualStackFixPresent", ipv6_fix.to_string()),
        ],
        // An answer, and no error: the reference's code is success, and its other values are Go's zero.
        Some(HomeAzState::Unsupported(_)) => vec![
            ("IsAZRSupported", "false".to_owned()),
            ("HomeAZ", "0".to_owned()),
            ("IsAZRDualStackFixPresent", "false".to_owned()),
        ],
        Some(HomeAzState::Failed { code, message }) => {
            vec![("HomeAZErrorCode", code.name().to_owned()), ("HomeAZErrorMsg", message.clone())]
        }
    };
    Item::Metric { name: "HeartBeat", value: 1.0, properties }
}

/// The configuration as it is in force, its secrets masked. The reference sends them, and its checksum's 16 bytes as if they were text
/// (§7.10).
pub(super) fn config_snapshot(config_json: &str) -> Item {
    use md5::{Digest as _, Md5};
    use std::fmt::Write as _;

    let checksum = Md5::digest(config_json.as_bytes()).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    Item::Event {
        name: "ConfigSnapshot",
        operation: checksum.clone(),
        properties: vec![
            ("CNSConfiguration", config_json.to_owned()),
            ("CNSConfigurationMD5Checksum", checksum),
        ],
    }
}

/// A network container, without its secondary addresses. The values are written as Go's `%+v` writes them: queries over what the
/// reference sent take them apart.
pub(super) fn nc_snapshot(nc: &NcRecord) -> Item {
    let spec = &nc.spec;
    let multi_tenancy = spec.multi_tenancy.as_ref();
    let context = spec
        .orchestrator_context
        .as_ref()
        .map(|pod| serde_json::json!({"PodName": pod.name(), "PodNamespace": pod.namespace()}).to_string());
    let space: Vec<String> = spec.cnet_address_space.iter().map(|net| subnet(Some(*net))).collect();
    Item::Event {
        name: "CNSNCSnapshot",
        operation: spec.id.to_string(),
        properties: vec![
            ("IPConfiguration", configuration(&spec.ip_configuration)),
            ("LocalIPConfiguration", configuration(&spec.local_ip_configuration)),
            ("PrimaryInterfaceIdentifier", spec.primary_interface_identifier.clone()),
            (
                "MultiTenancyInfo",
                format!(
                    "{{EncapType:{} ID:{}}}",
                    multi_tenancy.map_or("", |info| info.encap_type.as_str()),
                    multi_tenancy.map_or(0, |info| info.id)
                ),
            ),
            ("CnetAddressSpace", format!("[{}]", space.join(" "))),
            ("AllowNCToHostCommunication", spec.allow_nc_to_host.to_string()),
            ("AllowHostToNCCommunication", spec.allow_host_to_nc.to_string()),
            ("NetworkContainerType", spec.nc_type.to_string()),
            ("OrchestratorContext", context.unwrap_or_default()),
        ],
    }
}

fn configuration(configuration: &IpConfiguration) -> String {
    let text = |address: Option<std::net::IpAddr>| address.map(|a| a.to_string()).unwrap_or_default();
    format!(
        "{{IPSubnet:{} DNSServers:[{}] GatewayIPAddress:{} GatewayIPv6Address:{}}}",
        subnet(configuration.subnet),
        configuration.dns_servers.join(" "),
        text(configuration.gateway),
        text(configuration.gateway_v6),
    )
}

fn subnet(net: Option<IpNet>) -> String {
    let address = net.map(|net| net.addr().to_string()).unwrap_or_default();
    format!("{{IPAddress:{address} PrefixLength:{}}}", net.map_or(0, |net| net.prefix_len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MultiTenancyInfo, NcSpec, NcType, PodIdentity, ReturnCode};

    fn text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
        let (Item::Metric { properties, .. }
        | Item::Event { properties, .. }
        | Item::Trace { properties, .. }) = item;
        properties.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_heartbeat_tells_what_is_known_of_the_zone() {
        let zone = HomeAzState::Zone { zone: 2, ipv6_fix: true };
        let item = heartbeat(Some(&zone));
        assert_eq!(
            ["IsAZRSupported", "HomeAZ", "IsAZRDualStackFixPresent"].map(|name| text(&item, name)),
            [Some("true"), Some("2"), Some("true")]
        );
        let failed =
            HomeAzState::Failed { code: ReturnCode::NmAgentInternalServerError, message: "why".into() };
        let item = heartbeat(Some(&failed));
        assert_eq!(text(&item, "HomeAZErrorMsg"), Some("why"));
        assert_eq!(text(&item, "HomeAZErrorCode"), Some(ReturnCode::NmAgentInternalServerError.name()));
        for nothing in [heartbeat(None), heartbeat(Some(&HomeAzState::Unknown))] {
            assert_eq!(nothing, Item::Metric { name: "HeartBeat", value: 1.0, properties: Vec::new() });
        }
    }

    #[test]
    fn a_snapshot_is_written_as_go_writes_it() {
        let id = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";
        let mut spec = NcSpec::new(id.parse().unwrap(), NcType::Docker, 1);
        spec.ip_configuration = IpConfiguration {
            subnet: Some("10.7.0.9/24".parse().unwrap()),
            dns_servers: vec!["168.63.129.16".into(), "8.8.8.8".into()],
            gateway: Some("10.7.0.1".parse().unwrap()),
            ..IpConfiguration::default()
        };
        spec.multi_tenancy = Some(MultiTenancyInfo { encap_type: "Vlan".into(), id: 7 });
        spec.cnet_address_space = vec!["10.0.0.0/8".parse().unwrap(), "10.1.0.0/16".parse().unwrap()];
        spec.allow_host_to_nc = true;
        spec.orchestrator_context = Some(PodIdentity::new("shop", "web").unwrap());
        let nc = NcRecord {
            spec,
            host_version: None,
            vfp_update_complete: false,
            lifecycle: Default::default(),
            created: Timestamp::default(),
            updated: Timestamp::default(),
        };
        let item = nc_snapshot(&nc);
        assert!(matches!(&item, Item::Event { name: "CNSNCSnapshot", operation, .. } if operation == id));
        for (name, value) in [
            (
                "IPConfiguration",
                "{IPSubnet:{IPAddress:10.7.0.9 PrefixLength:24} DNSServers:[168.63.129.16 8.8.8.8] GatewayIPAddress:10.7.0.1 GatewayIPv6Address:}",
            ),
            (
                "LocalIPConfiguration",
                "{IPSubnet:{IPAddress: PrefixLength:0} DNSServers:[] GatewayIPAddress: GatewayIPv6Address:}",
            ),
            ("MultiTenancyInfo", "{EncapType:Vlan ID:7}"),
            (
                "CnetAddressSpace",
                "[{IPAddress:10.0.0.0 PrefixLength:8} {IPAddress:10.1.0.0 PrefixLength:16}]",
            ),
            ("AllowHostToNCCommunication", "true"),
            ("AllowNCToHostCommunication", "false"),
            ("NetworkContainerType", "Docker"),
            ("OrchestratorContext", r#"{"PodName":"web","PodNamespace":"shop"}"#),
        ] {
            assert_eq!(text(&item, name), Some(value), "{name}");
        }
    }

    #[test]
    fn the_checksum_is_text() {
        let item = config_snapshot("{}");
        let checksum = "99914b932bd37a50b983c5e7c90ae93b";
        assert!(matches!(&item, Item::Event { operation, .. } if operation == checksum));
        assert_eq!(text(&item, "CNSConfigurationMD5Checksum"), Some(checksum));
    }
}
