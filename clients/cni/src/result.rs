//! The result of ADD (CNI spec 1.1, "ADD Success"), in the form of each supported version.

use std::net::IpAddr;

use cns::model::Family;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    error::{CniError, Code},
    version::CniVersion,
};

/// What a chain of plugins has made so far. Keys that we do not know are kept.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct AddResult {
    #[serde(rename = "cniVersion")]
    pub(crate) version: String,
    #[serde(deserialize_with = "null_is_default")]
    pub(crate) interfaces: Vec<Interface>,
    #[serde(deserialize_with = "null_is_default")]
    pub(crate) ips: Vec<Ip>,
    #[serde(deserialize_with = "null_is_default")]
    pub(crate) routes: Vec<Route>,
    #[serde(deserialize_with = "null_is_default")]
    pub(crate) dns: Map<String, Value>,
    #[serde(flatten)]
    pub(crate) other: Map<String, Value>,
}

/// An interface on the host (no sandbox) or in the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) mac: String,
    /// Bytes; since 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mtu: Option<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) sandbox: String,
    #[serde(flatten)]
    pub(crate) other: Map<String, Value>,
}

/// An address.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Ip {
    /// `4` or `6`; up to 0.4.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    pub(crate) address: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gateway: Option<IpAddr>,
    /// Index of its interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interface: Option<usize>,
    #[serde(flatten)]
    pub(crate) other: Map<String, Value>,
}

/// A route in the sandbox.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Route {
    pub(crate) dst: IpNet,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gw: Option<IpAddr>,
    #[serde(flatten)]
    pub(crate) other: Map<String, Value>,
}

fn null_is_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl AddResult {
    pub(crate) fn parse(value: Value) -> Result<Self, CniError> {
        serde_json::from_value(value).map_err(|error| {
            CniError::new(Code::InvalidConfig, format!("`prevResult` is not a CNI result: {error}"))
        })
    }

    /// Adds an interface and gives its index.
    pub(crate) fn push_interface(&mut self, interface: Interface) -> usize {
        self.interfaces.push(interface);
        self.interfaces.len() - 1
    }

    /// The addresses of the interface `ifname` in the sandbox at `netns`.
    pub(crate) fn addresses_of(&self, ifname: &str, netns: &str) -> Vec<IpNet> {
        let is_its = |index: &usize| {
            let found = self.interfaces.get(*index);
            found.is_some_and(|interface| interface.name == ifname && interface.sandbox == netns)
        };
        self.ips.iter().filter(|ip| ip.interface.as_ref().is_some_and(is_its)).map(|ip| ip.address).collect()
    }

    /// In the form of `version`.
    pub(crate) fn into_json(mut self, version: CniVersion) -> Result<Value, CniError> {
        version.as_str().clone_into(&mut self.version);
        for interface in &mut self.interfaces {
            if version < CniVersion::V1_1_0 {
                interface.mtu = None;
            }
        }
        for ip in &mut self.ips {
            let family = match Family::of(ip.address.addr()) {
                Family::V4 => "4",
                Family::V6 => "6",
            };
            ip.version = (version < CniVersion::V1_0_0).then(|| family.to_owned());
        }
        serde_json::to_value(self)
            .map_err(|error| CniError::new(Code::Generic, format!("cannot write the result: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made() -> AddResult {
        let mut result = AddResult::default();
        let index = result.push_interface(Interface {
            name: "eth0".into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: Some(1400),
            sandbox: "/run/netns/a".into(),
            other: Map::new(),
        });
        for (address, gateway) in [("10.0.0.5/24", "169.254.1.1"), ("fd00::5/64", "fe80::1234:5678:9abc")] {
            result.ips.push(Ip {
                version: None,
                address: address.parse().unwrap(),
                gateway: gateway.parse().ok(),
                interface: Some(index),
                other: Map::new(),
            });
        }
        result
    }

    #[test]
    fn each_version_has_its_own_form() {
        for version in crate::version::SUPPORTED {
            let json = made().into_json(version).unwrap();
            assert_eq!(json["cniVersion"], version.as_str());
            assert_eq!(
                json["interfaces"][0].get("mtu").is_some(),
                version >= CniVersion::V1_1_0,
                "{version:?}"
            );
            let families: Vec<_> =
                json["ips"].as_array().unwrap().iter().map(|ip| ip["version"].as_str()).collect();
            let expected = if version < CniVersion::V1_0_0 { [Some("4"), Some("6")] } else { [None, None] };
            assert_eq!(families, expected, "{version:?}");
            assert_eq!(json["dns"], json!({}));
        }
    }

    #[test]
    fn what_others_made_is_kept() {
        let theirs = json!({
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "net1", "sandbox": "/run/netns/a", "socketPath": "/x", "pciID": "0000:00:1f.6"}],
            "ips": [{"address": "192.0.2.7/24", "interface": 0}],
            "routes": [{"dst": "192.0.2.0/24", "mtu": 1400}],
            "dns": {"nameservers": ["192.0.2.1"]},
            "x": 1,
        });
        let result = AddResult::parse(theirs.clone()).unwrap();
        assert_eq!(result.addresses_of("net1", "/run/netns/a"), ["192.0.2.7/24".parse().unwrap()]);
        assert!(result.addresses_of("eth0", "/run/netns/a").is_empty());
        assert_eq!(result.into_json(CniVersion::V1_1_0).unwrap(), theirs);
    }

    #[test]
    fn lists_may_be_null() {
        let result =
            AddResult::parse(json!({"cniVersion": "0.4.0", "ips": null, "interfaces": null})).unwrap();
        assert!(result.ips.is_empty() && result.interfaces.is_empty());
    }
}
