//! Items as Application Insights' ingestion takes them: the envelope of its data model, version 2. Field names and bounds are those of
//! the public schema; which texts stand where is the reference's (spec/metrics.md §6).

use serde_json::{Map, Value, json};

use super::item::{Dated, Item, Severity};
use crate::{host::imds::Compute, model::Orchestrator};

/// The reference's name, by which dashboards know the daemon.
const APP_NAME: &str = "azure-cns";
/// The operating system, in Go's word.
const OS: &str = "linux";
/// The schema's bounds, characters. What is longer would be refused with the whole item.
const LONGEST_VALUE: usize = 8192;
const LONGEST_MESSAGE: usize = 32_768;
const LONGEST_OPERATION: usize = 128;

/// Whose items they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    /// The instrumentation key.
    pub(super) key: &'a str,
    /// The host's name.
    pub(super) hostname: &'a str,
    /// What IMDS says of the machine, once it is known.
    pub(super) machine: Option<&'a Compute>,
    /// Who schedules the node, once that is known.
    pub(super) orchestrator: &'a Orchestrator,
}

impl Origin<'_> {
    /// One line, without a line's end.
    pub(super) fn envelope(&self, dated: &Dated) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let mut tags = Map::new();
        let mut texts = Map::new();
        let mut text = |name: &str, value: &str| {
            if !value.is_empty() {
                texts.insert(name.to_owned(), bounded(value, LONGEST_VALUE).into());
            }
        };
        if let Some(kind) = self.orchestrator.kind {
            text("OrchestratorType", kind.as_str());
            text("NodeID", &self.orchestrator.node_id);
        }
        tags.insert("ai.application.ver".into(), version.into());
        tags.insert("ai.cloud.role".into(), APP_NAME.into());
        tags.insert("ai.cloud.roleInstance".into(), self.hostname.into());
        if let Some(machine) = self.machine {
            tags.insert("ai.session.id".into(), bounded(&machine.vm_id, 64).into());
            text("Region", &machine.location);
            text("ResourceGroup", &machine.resource_group);
            text("VMID", &machine.vm_id);
        }
        let properties = match &dated.item {
            Item::Metric { properties, .. } => {
                if let Some(machine) = self.machine {
                    text("SubscriptionID", &machine.subscription_id);
                    text("VMName", &machine.name);
                    text("AppVersion", version);
                    text("OS", OS);
                }
                properties
            }
            Item::Event { properties, .. } | Item::Trace { properties, .. } => {
                if let Some(machine) = self.machine {
                    text("VMSize", &machine.size);
                    text("OSVersion", &machine.os_version);
                    tags.insert("ai.user.accountId".into(), bounded(&machine.subscription_id, 1024).into());
                    tags.insert("ai.user.id".into(), bounded(&machine.name, 128).into());
                }
                text("AppName", APP_NAME);
                tags.insert("ai.user.authUserId".into(), OS.into());
                tags.insert("ai.operation.parentId".into(), version.into());
                properties
            }
        };
        let (name, kind, mut data) = match &dated.item {
            Item::Metric { name, value, .. } => {
                let metric = json!({"name": name, "value": value, "count": 1});
                ("Metric", "MetricData", json!({"metrics": [metric]}))
            }
            Item::Event { name, operation, .. } => {
                if let Some(machine) = self.machine {
                    text("VMName", &machine.name);
                }
                text("OS", OS);
                text("AppVersion", version);
                tags.insert("ai.operation.id".into(), bounded(operation, LONGEST_OPERATION).into());
                ("Event", "EventData", json!({"name": name}))
            }
            Item::Trace { severity, message, .. } => {
                let (number, level) = match severity {
                    Severity::Information => (1, "info"),
                    Severity::Warning => (2, "warning"),
                    Severity::Error => (3, "error"),
                };
                text("hostname", self.hostname);
                text("Level", level);
                let node = bounded(&self.orchestrator.node_id, LONGEST_OPERATION);
                tags.insert("ai.operation.id".into(), node.into());
                let message = bounded(message, LONGEST_MESSAGE);
                ("Message", "MessageData", json!({"message": message, "severityLevel": number}))
            }
        };
        for (name, value) in properties {
            texts.insert((*name).to_owned(), bounded(value, LONGEST_VALUE).into());
        }
        data["ver"] = 2.into();
        data["properties"] = Value::Object(texts);
        json!({
            "name": format!("Microsoft.ApplicationInsights.{name}"),
            "time": dated.at.to_string(),
            "iKey": self.key,
            "tags": tags,
            "data": {"baseType": kind, "baseData": data},
        })
        .to_string()
    }
}

/// At most so many characters of a text.
fn bounded(text: &str, most: usize) -> &str {
    match text.char_indices().nth(most) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{OrchestratorType, Timestamp};

    fn machine() -> Compute {
        Compute {
            vm_id: "vm-1".into(),
            name: "node-7".into(),
            location: "westeurope".into(),
            subscription_id: "sub".into(),
            resource_group: "rg".into(),
            size: "Standard_D4".into(),
            os_version: "22.04.202401".into(),
            ..Compute::default()
        }
    }

    fn envelope(item: Item, machine: Option<&Compute>, orchestrator: &Orchestrator) -> Value {
        let origin = Origin { key: "key", hostname: "host", machine, orchestrator };
        let line = origin.envelope(&Dated { at: Timestamp::default(), item });
        assert!(!line.contains('\n'), "one line an item");
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn each_kind_has_its_form_and_its_texts() {
        let machine = machine();
        let orchestrator = Orchestrator {
            kind: Some(OrchestratorType::Kubernetes),
            node_id: "n1".into(),
            ..Orchestrator::default()
        };
        let metric =
            Item::Metric { name: "HeartBeat", value: 1.0, properties: vec![("HomeAZ", "2".to_owned())] };
        let metric = envelope(metric, Some(&machine), &orchestrator);
        assert_eq!(
            (&metric["name"], &metric["iKey"], &metric["data"]["baseType"]),
            (&json!("Microsoft.ApplicationInsights.Metric"), &json!("key"), &json!("MetricData"))
        );
        assert_eq!(metric["time"], "1970-01-01T00:00:00Z");
        let data = &metric["data"]["baseData"];
        assert_eq!((&data["ver"], &data["metrics"][0]["name"]), (&json!(2), &json!("HeartBeat")));
        assert_eq!(data["metrics"][0]["value"], 1.0);
        assert_eq!(
            data["properties"],
            json!({
                "OrchestratorType": "Kubernetes", "NodeID": "n1", "HomeAZ": "2", "Region": "westeurope",
                "SubscriptionID": "sub", "VMName": "node-7", "AppVersion": env!("CARGO_PKG_VERSION"),
                "ResourceGroup": "rg", "VMID": "vm-1", "OS": "linux",
            })
        );
        assert_eq!(metric["tags"]["ai.session.id"], "vm-1");

        let event = Item::Event { name: "CNSNCSnapshot", operation: "nc".into(), properties: Vec::new() };
        let event = envelope(event, Some(&machine), &orchestrator);
        assert_eq!(event["data"]["baseData"]["name"], "CNSNCSnapshot");
        assert_eq!(
            event["data"]["baseData"]["properties"],
            json!({
                "OrchestratorType": "Kubernetes", "NodeID": "n1", "Region": "westeurope", "ResourceGroup": "rg",
                "VMSize": "Standard_D4", "OSVersion": "22.04.202401", "VMID": "vm-1", "VMName": "node-7",
                "OS": "linux", "AppName": "azure-cns", "AppVersion": env!("CARGO_PKG_VERSION"),
            })
        );
        for (tag, value) in [
            ("ai.operation.id", "nc"),
            ("ai.user.accountId", "sub"),
            ("ai.user.id", "node-7"),
            ("ai.session.id", "vm-1"),
            ("ai.user.authUserId", "linux"),
            ("ai.operation.parentId", env!("CARGO_PKG_VERSION")),
        ] {
            assert_eq!(event["tags"][tag], value, "{tag}");
        }

        let trace = Item::Trace {
            severity: Severity::Warning,
            message: "line\nof two".into(),
            properties: vec![("agent", "IMDS".to_owned())],
        };
        let trace = envelope(trace, None, &orchestrator);
        let data = &trace["data"]["baseData"];
        assert_eq!((&data["message"], &data["severityLevel"]), (&json!("line\nof two"), &json!(2)));
        assert_eq!(
            (&data["properties"]["hostname"], &data["properties"]["agent"]),
            (&json!("host"), &json!("IMDS"))
        );
        assert_eq!(trace["tags"]["ai.operation.id"], "n1");
    }

    #[test]
    fn what_is_not_known_yet_is_left_out_and_what_is_too_long_is_cut() {
        let item = Item::Event {
            name: "ConfigSnapshot",
            operation: "x".repeat(500),
            properties: vec![("CNSConfiguration", "ä".repeat(10_000))],
        };
        let event = envelope(item, None, &Orchestrator::default());
        let properties = &event["data"]["baseData"]["properties"];
        assert_eq!(properties["CNSConfiguration"].as_str().unwrap().chars().count(), LONGEST_VALUE);
        assert_eq!(event["tags"]["ai.operation.id"].as_str().unwrap().len(), LONGEST_OPERATION);
        for name in ["NodeID", "Region", "VMID"] {
            assert!(properties.get(name).is_none(), "{name}");
        }
        assert!(event["tags"].get("ai.session.id").is_none());
    }
}
