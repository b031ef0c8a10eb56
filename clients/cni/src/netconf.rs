//! The network configuration on standard input: ours, and azure-vnet's (spec/cni-plugin.md §2.3).
//!
//! Keys are matched without regard to case, as the reference does and shipped configurations rely on. Only `prevResult`
//! is kept as it is: it belongs to the specification, and chained plugins' own keys in it must survive.

use std::{collections::HashSet, net::IpAddr, path::PathBuf};

use cns::{model::parse_ip, nic::Attachment, paths::SYSTEM_SOCKET};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    error::{CniError, Code},
    result::AddResult,
    version::{CniVersion, SUPPORTED},
};

/// Where intents are kept: it must not outlive a boot, as no sandbox does.
const INTENT_DIR: &str = "/run/cns-cni/intents";

/// Where the daemon looks for releases that could not be delivered (spec/cni-plugin.md §5.3).
const ASYNC_DELETE_DIR: &str = "/var/run/azure-vnet/deleteIDs";

/// A network configuration.
#[derive(Clone, Debug)]
pub(crate) struct NetConf {
    /// The version in which results are to be given.
    pub(crate) cni_version: CniVersion,
    /// The network's name.
    pub(crate) name: String,
    /// The daemon's socket.
    pub(crate) socket: PathBuf,
    /// Where intents are kept.
    pub(crate) intent_dir: PathBuf,
    /// Where undeliverable releases are left; none: DEL fails instead.
    pub(crate) async_delete_dir: Option<PathBuf>,
    /// The host NIC whose MTU pods get.
    pub(crate) master: Option<String>,
    /// Addresses that the pod is to have, by the `ips` capability.
    pub(crate) desired: Vec<IpAddr>,
    /// Passed through to the result.
    pub(crate) dns: Value,
    /// The result of an earlier plugin (ADD) or of our own ADD (CHECK, DEL).
    pub(crate) previous: Option<AddResult>,
    /// GC: the attachments that live.
    pub(crate) valid: Option<HashSet<(String, String)>>,
}

/// As it is written, keys in lower case.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    cniversion: String,
    name: String,
    mode: String,
    master: String,
    multitenancy: bool,
    executionmode: String,
    disableasyncdelete: bool,
    ipam: WrittenIpam,
    socket: Option<PathBuf>,
    intentdir: Option<PathBuf>,
    asyncdeletedir: Option<PathBuf>,
    dns: Value,
    runtimeconfig: RuntimeConfig,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Vec<WrittenAttachment>>,
    // What runtimes with the key's older spelling send.
    #[serde(rename = "cni.dev/attachments")]
    attachments: Option<Vec<WrittenAttachment>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenIpam {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    ips: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct WrittenAttachment {
    containerid: String,
    ifname: String,
}

impl NetConf {
    /// Reads a configuration. Notes its version in `version` as soon as that is known.
    pub(crate) fn parse(input: &[u8], version: &mut Option<CniVersion>) -> Result<Self, CniError> {
        let mut raw: Map<String, Value> = serde_json::from_slice(input).map_err(|error| {
            CniError::new(Code::Decode, format!("the network configuration is not a JSON object: {error}"))
        })?;
        let previous = take(&mut raw, "prevresult").filter(|value| !value.is_null());
        let written: Written = serde_json::from_value(lower_case(Value::Object(raw)))
            .map_err(|error| invalid(format!("the network configuration is malformed: {error}")))?;

        let cni_version = CniVersion::parse(&written.cniversion).ok_or_else(|| {
            let given = if written.cniversion.is_empty() { "missing" } else { written.cniversion.as_str() };
            let supported = SUPPORTED.map(CniVersion::as_str).join(", ");
            CniError::new(
                Code::IncompatibleVersion,
                format!("cniVersion of the network configuration is {given}; supported are {supported}"),
            )
        })?;
        *version = Some(cni_version);
        if written.name.is_empty() {
            return Err(invalid("the network configuration has no `name`".into()));
        }
        // Only the name's form matters here: the rest is a stand-in.
        if let (Ok(container), Ok(ifname)) = ("c".parse(), "i".parse()) {
            Attachment::new(&written.name, container, ifname)
                .map_err(|error| invalid(format!("`name`: {error}")))?;
        }
        written.refuse_unsupported()?;

        let mut desired = Vec::with_capacity(written.runtimeconfig.ips.len());
        for text in &written.runtimeconfig.ips {
            // With or without prefix, as the specification's conventions allow; the prefix is the network container's.
            let address = text.split_once('/').map_or(text.as_str(), |(address, _)| address);
            let parsed = parse_ip(address);
            desired.push(parsed.map_err(|error| invalid(format!("`runtimeConfig.ips`: {error}")))?);
        }
        let absolute = |key: &str, path: Option<PathBuf>, default: &str| match path {
            None => Ok(PathBuf::from(default)),
            Some(path) if path.is_absolute() => Ok(path),
            Some(path) => Err(invalid(format!("`{key}` must be an absolute path, not {}", path.display()))),
        };
        let async_delete_dir = absolute("asyncDeleteDir", written.asyncdeletedir, ASYNC_DELETE_DIR)?;
        let lists = [written.valid_attachments, written.attachments];
        Ok(Self {
            cni_version,
            name: written.name,
            socket: absolute("socket", written.socket, SYSTEM_SOCKET)?,
            intent_dir: absolute("intentDir", written.intentdir, INTENT_DIR)?,
            async_delete_dir: (!written.disableasyncdelete).then_some(async_delete_dir),
            master: Some(written.master).filter(|master| !master.is_empty()),
            desired,
            dns: written.dns,
            previous: previous.map(AddResult::parse).transpose()?,
            valid: lists.into_iter().flatten().next().map(|list| {
                list.into_iter().map(|attachment| (attachment.containerid, attachment.ifname)).collect()
            }),
        })
    }
}

impl Written {
    fn refuse_unsupported(&self) -> Result<(), CniError> {
        let unsupported = |key: &str, value: &str, allowed: &str| {
            Err(invalid(format!(
                "`{key}` is `{}`, which cns-cni does not do: {allowed}",
                value.escape_default()
            )))
        };
        if !matches!(self.mode.as_str(), "" | "transparent") {
            return unsupported("mode", &self.mode, "use `transparent` or leave it out");
        }
        if self.multitenancy {
            return unsupported("multiTenancy", "true", "leave it out");
        }
        if !matches!(self.executionmode.as_str(), "" | "default" | "v4swift") {
            return unsupported("executionMode", &self.executionmode, "use `default` or leave it out");
        }
        if !matches!(self.ipam.kind.as_str(), "" | "azure-cns") {
            return unsupported("ipam.type", &self.ipam.kind, "addresses come from cns; use `azure-cns`");
        }
        Ok(())
    }
}

fn invalid(message: String) -> CniError {
    CniError::new(Code::InvalidConfig, message)
}

/// Takes the value of a key that is matched without regard to case.
fn take(map: &mut Map<String, Value>, key: &str) -> Option<Value> {
    let found = map.keys().find(|found| found.eq_ignore_ascii_case(key)).cloned()?;
    map.remove(&found)
}

fn lower_case(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            // JSON null is "not given", as in the reference.
            let given = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(given.map(|(key, value)| (key.to_ascii_lowercase(), lower_case(value))).collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(lower_case).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetConf, CniError> {
        NetConf::parse(text.as_bytes(), &mut None)
    }

    #[test]
    fn keys_match_in_any_case_and_unknown_ones_are_ignored() {
        let conf = parse(
            r#"{"CNIVersion":"0.3.0","Name":"azure","type":"azure-vnet","MODE":"transparent","Master":"eth0",
                "Socket":"/tmp/x.sock","DisableAsyncDelete":true,"ipam":{"Type":"azure-cns","mode":"v4overlay"},
                "ipsToRouteViaHost":["169.254.20.10"],"whatever":{"A":[1]},"bridge":null,
                "runtimeConfig":{"IPs":["10.0.0.7/24","fd00::7"]},"dns":{"nameservers":["10.0.0.10"]}}"#,
        )
        .unwrap();
        assert_eq!((conf.name.as_str(), conf.cni_version), ("azure", CniVersion::V0_3_0));
        assert_eq!(conf.socket, PathBuf::from("/tmp/x.sock"));
        assert_eq!(conf.master.as_deref(), Some("eth0"));
        assert_eq!(conf.async_delete_dir, None);
        assert_eq!(conf.desired.len(), 2);
        assert_eq!(conf.dns["nameservers"][0], "10.0.0.10");
    }

    #[test]
    fn the_shipped_configuration_of_the_reference_is_accepted() {
        let conf = parse(
            r#"{"cniVersion":"0.3.0","name":"azure","type":"azure-vnet","mode":"transparent",
                "ipsToRouteViaHost":["169.254.20.10"],"ipam":{"type":"azure-cns"}}"#,
        )
        .unwrap();
        assert_eq!(conf.socket, PathBuf::from(SYSTEM_SOCKET));
        assert_eq!(conf.async_delete_dir, Some(PathBuf::from(ASYNC_DELETE_DIR)));
        assert!(conf.valid.is_none() && conf.previous.is_none());
    }

    #[test]
    fn attachments_are_read_under_both_names() {
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            let text = format!(
                r#"{{"cniVersion":"1.1.0","name":"n","{key}":[{{"containerID":"c1","ifname":"eth0"}}]}}"#
            );
            let valid = parse(&text).unwrap().valid.unwrap();
            assert!(valid.contains(&("c1".into(), "eth0".into())), "{key}");
        }
    }

    #[test]
    fn faults_are_told_by_code_and_key() {
        for (text, code, part) in [
            ("", Code::Decode, "JSON"),
            ("[]", Code::Decode, "JSON"),
            (r#"{"name":"n"}"#, Code::IncompatibleVersion, "missing"),
            (r#"{"name":"n","cniVersion":"0.2.0"}"#, Code::IncompatibleVersion, "0.2.0"),
            (r#"{"cniVersion":"1.0.0"}"#, Code::InvalidConfig, "`name`"),
            (r#"{"cniVersion":"1.0.0","name":"a/b"}"#, Code::InvalidConfig, "a/b"),
            (r#"{"cniVersion":"1.0.0","name":"n","socket":"x.sock"}"#, Code::InvalidConfig, "`socket`"),
            (r#"{"cniVersion":"1.0.0","name":"n","mode":"bridge"}"#, Code::InvalidConfig, "transparent"),
            (r#"{"cniVersion":"1.0.0","name":"n","multiTenancy":true}"#, Code::InvalidConfig, "multiTenancy"),
            (
                r#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"host-local"}}"#,
                Code::InvalidConfig,
                "ipam",
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"n","executionMode":"baremetal"}"#,
                Code::InvalidConfig,
                "executionMode",
            ),
            (r#"{"cniVersion":"1.0.0","name":"n","master":7}"#, Code::InvalidConfig, "malformed"),
            (
                r#"{"cniVersion":"1.0.0","name":"n","runtimeConfig":{"ips":["x"]}}"#,
                Code::InvalidConfig,
                "ips",
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"n","prevResult":{"ips":7}}"#,
                Code::InvalidConfig,
                "prevResult",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.code, code, "{text}");
            assert!(error.message.contains(part), "{text}: {error}");
        }
    }
}
