use serde_json::{Value, json};

use super::*;

fn parse(json: &Value) -> Result<(FileSettings, Vec<String>), ConfigError> {
    FileSettings::parse(&json.to_string(), Path::new("/etc/cns_config.json"))
}

/// A document in which only the field at `pointer` is there.
fn only(pointer: &str, value: &Value) -> Value {
    pointer.rsplit('/').filter(|key| !key.is_empty()).fold(value.clone(), |inner, key| json!({ key: inner }))
}

/// Every field: its path, its default, and another value.
fn fields() -> Vec<(&'static str, Value, Value)> {
    let off = |pointer| (pointer, json!(false), json!(true));
    vec![
        ("/ChannelMode", Value::Null, json!("MultiTenantCRD")),
        ("/ManageEndpointState", Value::Null, json!(false)),
        off("/InitializeFromCNI"),
        off("/EnableStateMigration"),
        off("/EnableCNIConflistGeneration"),
        ("/CNIConflistFilepath", json!(""), json!("/etc/cni/net.d/05-cilium.conflist")),
        ("/CNIConflistScenario", json!(""), json!("azurecni-chained-cilium")),
        ("/EnableAsyncPodDelete", Value::Null, json!(false)),
        ("/AsyncPodDeletePath", Value::Null, json!("/var/run/x")),
        off("/EnableIPAMv2"),
        off("/EnableSubnetScarcity"),
        off("/EnableSwiftV2"),
        off("/EnableSwiftV2PrefixAllocation"),
        off("/EnableSwiftV1DualStack"),
        off("/EnableHomeAZ"),
        off("/EnableK8sDevicePlugin"),
        off("/EnableStaleHNSCleanupOnNCCreate"),
        off("/ProgramSNATIPTables"),
        ("/IPv6PrefixClamp", json!(120), json!(124)),
        ("/SyncHostNCVersionIntervalMs", json!(1000), json!(5)),
        ("/SyncHostNCTimeoutMs", json!(500), json!(5)),
        ("/WireserverIP", json!("168.63.129.16"), json!("127.0.0.1:8080")),
        ("/MetricsBindAddress", Value::Null, json!("127.0.0.1:10092")),
        off("/EnableAPIServerHealthPing"),
        off("/EnablePprof"),
        off("/EnableLoggerV2"),
        ("/Logger/level", json!("info"), json!("debug")),
        (
            "/Logger/file",
            Value::Null,
            json!({"filepath": "/x", "level": "warn", "maxBackups": 0, "maxSize": 1}),
        ),
        (
            "/Logger/appInsights",
            Value::Null,
            json!({"level": "fatal", "ikey": "", "grace_period": "1s", "max_batch_interval": "1m30s", "max_batch_size": 1}),
        ),
        ("/Logger/etw", Value::Null, json!({"eventname": "e", "level": "panic", "providername": "p"})),
        off("/UseHTTPS"),
        ("/TLSPort", json!(""), json!("10091")),
        ("/TLSCertificatePath", Value::Null, json!("/test")),
        ("/TLSSubjectName", json!(""), json!("subj")),
        ("/TLSEndpoint", json!(""), json!("0.0.0.0")),
        off("/UseMTLS"),
        ("/MtlsClientCertSubjectName", json!(""), json!("dnc.example")),
        ("/MinTLSVersion", json!("TLS 1.2"), json!("TLS 1.3")),
        ("/KeyVaultSettings/URL", json!(""), json!("https://vault.example")),
        ("/KeyVaultSettings/CertificateName", json!(""), json!("cert")),
        ("/KeyVaultSettings/RefreshIntervalInHrs", json!(12), json!(1)),
        ("/MSISettings/ResourceID", json!(""), json!("/subscriptions/x")),
        ("/ManagedSettings/PrivateEndpoint", json!(""), json!("abc")),
        ("/ManagedSettings/InfrastructureNetworkID", json!(""), json!("abc")),
        ("/ManagedSettings/NodeID", json!(""), json!("abc")),
        ("/ManagedSettings/NodeSyncIntervalInSeconds", json!(30), json!(1)),
        ("/AZRSettings/PopulateHomeAzCacheRetryIntervalSecs", json!(60), json!(1)),
        ("/MellanoxMonitorIntervalSecs", json!(0), json!(30)),
        off("/GRPCSettings/Enable"),
        ("/GRPCSettings/IPAddress", json!("localhost"), json!("10.0.0.1")),
        ("/GRPCSettings/Port", json!(8080), json!(65535)),
        off("/TelemetrySettings/DisableAll"),
        off("/TelemetrySettings/DisableTrace"),
        off("/TelemetrySettings/DisableMetric"),
        off("/TelemetrySettings/DisableEvent"),
        ("/TelemetrySettings/TelemetryBatchSizeBytes", json!(32768), json!(16384)),
        ("/TelemetrySettings/TelemetryBatchIntervalInSecs", json!(30), json!(15)),
        ("/TelemetrySettings/HeartBeatIntervalInMins", json!(30), json!(1)),
        ("/TelemetrySettings/SnapshotIntervalInMins", json!(60), json!(1)),
        ("/TelemetrySettings/ConfigSnapshotIntervalInMins", json!(0), json!(60)),
        ("/TelemetrySettings/RefreshIntervalInSecs", json!(15), json!(1)),
        off("/TelemetrySettings/DisableMetadataRefreshThread"),
        off("/TelemetrySettings/DebugMode"),
        ("/Node/StateDir", Value::Null, json!("/var/lib/x")),
        ("/Node/GRPCSocket", Value::Null, json!("/run/x.sock")),
        ("/Node/GRPCBindAddress", Value::Null, json!("127.0.0.1:1")),
        ("/Node/GRPCTLSCertPath", Value::Null, json!("/c")),
        ("/Node/GRPCTLSKeyPath", Value::Null, json!("/k")),
        ("/Node/GRPCTLSClientCAPath", Value::Null, json!("/ca")),
        (
            "/Node/REST",
            Value::Null,
            json!({"URL": "unix:///x", "Port": 1, "ClientCAPath": "/ca", "KeyVaultRefreshSecs": 1.5}),
        ),
        ("/Node/StandaloneCIDRs", Value::Null, json!(["10.1.0.0/24", "fd00::/120"])),
        ("/Node/Masquerade", Value::Null, json!(false)),
        ("/Node/AllowUIDs", Value::Null, json!([0, 1000])),
        ("/Node/AllowGIDs", Value::Null, json!([7])),
        ("/Node/CoolDownSecs", Value::Null, json!(0.5)),
        ("/Node/ReconcileIntervalSecs", Value::Null, json!(1.0)),
        ("/Node/ReconcileGraceSecs", Value::Null, json!(0.0)),
        ("/Node/ImportLegacy", Value::Null, json!("/old")),
        ("/Node/JournalEntries", Value::Null, json!(5)),
        ("/Node/MaxConcurrentRequests", Value::Null, json!(5)),
        ("/Node/DrainTimeoutSecs", Value::Null, json!(1.5)),
        ("/Node/LogLevel", Value::Null, json!("debug")),
        ("/Node/LogFormat", Value::Null, json!("json")),
        ("/Node/DockerURL", Value::Null, json!("http://127.0.0.1:2376")),
        ("/Node/IMDSURL", Value::Null, json!("http://127.0.0.1:2377")),
        ("/Node/OTLPEndpoint", Value::Null, json!("http://127.0.0.1:4317")),
    ]
}

#[test]
fn every_field_is_read_and_has_its_default() {
    let default = serde_json::to_value(FileSettings::default()).unwrap();
    for (pointer, expected, other) in fields() {
        assert_eq!(default.pointer(pointer), Some(&expected), "{pointer}");
        for spelled in [pointer.to_owned(), pointer.to_lowercase(), pointer.to_uppercase()] {
            let (settings, notes) = parse(&only(&spelled, &other)).unwrap();
            let settings = serde_json::to_value(settings).unwrap();
            assert_eq!(settings.pointer(pointer), Some(&other), "{spelled}");
            assert!(!notes.iter().any(|note| note.contains("unknown")), "{spelled}: {notes:?}");
            let rest = fields().into_iter().filter(|(other, ..)| *other != pointer);
            for (pointer, expected, _) in rest {
                assert_eq!(settings.pointer(pointer), Some(&expected), "{pointer} with {spelled}");
            }
        }
        // `null` is absent.
        let (settings, _) = parse(&only(pointer, &Value::Null)).unwrap();
        assert_eq!(settings, FileSettings::default(), "{pointer}");
    }
}

#[test]
fn every_field_is_in_the_table_above() {
    fn leaves(value: &Value, path: &str, all: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    leaves(value, &format!("{path}/{key}"), all);
                }
            }
            _ => all.push(path.to_owned()),
        }
    }
    let mut all = Vec::new();
    leaves(&serde_json::to_value(FileSettings::default()).unwrap(), "", &mut all);
    for leaf in all {
        let secret = leaf.contains("/TelemetrySettings/AppInsights");
        assert!(secret || fields().iter().any(|(pointer, ..)| *pointer == leaf), "{leaf}");
    }
}

#[test]
fn a_wrong_value_names_key_value_file_and_what_is_allowed() {
    for (pointer, value, allowed) in [
        ("/ChannelMode", json!("crd"), "one of Standalone, Direct, Managed, CRD"),
        ("/ChannelMode", json!(7), "a text"),
        ("/ManageEndpointState", json!("true"), "true or false"),
        ("/EnableIPAMv2", json!(1), "true or false"),
        ("/CNIConflistScenario", json!("calico"), "one of v4overlay, dualStackOverlay"),
        ("/AsyncPodDeletePath", json!("deleteIDs"), "absolute path"),
        ("/IPv6PrefixClamp", json!("120"), "whole number"),
        ("/SyncHostNCVersionIntervalMs", json!(0), "a whole number from 1"),
        ("/SyncHostNCVersionIntervalMs", json!(-5), "a whole number from 1"),
        ("/SyncHostNCVersionIntervalMs", json!(1.5), "a whole number from 1"),
        ("/SyncHostNCTimeoutMs", json!(-1), "a whole number from 1"),
        ("/WireserverIP", json!("a b"), "an address or a name"),
        ("/MetricsBindAddress", json!("9090"), "an address and a port"),
        ("/MetricsBindAddress", json!(":99999"), "from 1 to 65535"),
        ("/Logger/level", json!("loud"), "one of debug, info"),
        ("/Logger/level", json!("Info"), "one of debug, info"),
        ("/Logger/file/maxSize", json!(0), "a whole number from 1"),
        ("/Logger/appInsights/grace_period", json!("soon"), "a time"),
        ("/Logger/file", json!([]), "an object"),
        ("/TLSPort", json!("0"), "from 1 to 65535"),
        ("/TLSPort", json!(10091), "a text"),
        ("/MinTLSVersion", json!("TLS 1.1"), "one of TLS 1.2, TLS 1.3"),
        ("/KeyVaultSettings/URL", json!("vault"), "https://"),
        ("/KeyVaultSettings/RefreshIntervalInHrs", json!(0), "a whole number from 1"),
        ("/ManagedSettings/NodeSyncIntervalInSeconds", json!(0), "a whole number from 1"),
        ("/AZRSettings/PopulateHomeAzCacheRetryIntervalSecs", json!(-60), "a whole number from 1"),
        ("/MellanoxMonitorIntervalSecs", json!(-1), "a whole number from 0"),
        ("/GRPCSettings/Port", json!(65536), "from 1 to 65535"),
        ("/Node/DockerURL", json!("unix:///var/run/docker.sock"), "http, a host and a port"),
        ("/Node/DockerURL", json!(2375), "a text"),
        ("/Node/IMDSURL", json!("ftp://x"), "is not an agent's address"),
        ("/Node/OTLPEndpoint", json!("ftp://x"), "is not an agent's address"),
        ("/TelemetrySettings/HeartBeatIntervalInMins", json!(0), "a whole number from 1"),
        ("/TelemetrySettings/ConfigSnapshotIntervalInMins", json!(-1), "a whole number from 0"),
        ("/TelemetrySettings", json!("off"), "an object"),
        ("/Node/StateDir", json!("state"), "absolute path"),
        ("/Node/StandaloneCIDRs", json!("10.0.0.0/24"), "a list"),
        ("/Node/AllowUIDs", json!([-1]), "from 0"),
        ("/Node/CoolDownSecs", json!(-1), "not below 0"),
        ("/Node/LogFormat", json!("xml"), "one of text, json"),
        ("/Node/REST/Port", json!(0), "from 1 to 65535"),
    ] {
        let error = parse(&only(pointer, &value)).unwrap_err();
        let text = error.to_string();
        let key = pointer.trim_start_matches('/').replace('/', ".");
        let given = value.as_array().map_or_else(|| value.to_string(), |_| String::new());
        for part in [key.as_str(), given.as_str(), "/etc/cns_config.json", allowed] {
            assert!(text.contains(part), "{pointer} {value}: `{part}` is missing in: {text}");
        }
        assert_eq!(error.exit_code(), 1, "{text}");
    }
}

#[test]
fn of_one_key_in_several_spellings_the_last_counts() {
    let text = r#"{"TLSPort": "1", "tlsport": "2", "EnableIPAMv2": true, "ENABLEIPAMV2": null}"#;
    let (settings, _) = FileSettings::parse(text, Path::new("x")).unwrap();
    assert_eq!((settings.tls_port, settings.enable_ipam_v2), (Some(2), true));
}

#[test]
fn unknown_keys_are_told_and_ignored() {
    let (settings, notes) =
        parse(&json!({"Colour": 1, "Node": {"Stte": 1}, "Logger": {"file": {"x": 1}}})).unwrap();
    assert!(settings.logger.file.is_some());
    let note = notes.iter().find(|note| note.contains("unknown and ignored")).unwrap();
    for key in ["Colour", "Node.Stte", "Logger.file.x"] {
        assert!(note.contains(key), "{note}");
    }
}

#[test]
fn what_is_not_json_is_refused_and_a_byte_order_mark_is_not() {
    let file = Path::new("/etc/cns_config.json");
    for text in ["", "{", "[]", "{} x", "// comment\n{}"] {
        let error = FileSettings::parse(text, file).unwrap_err();
        assert!(error.to_string().contains("/etc/cns_config.json"), "{text}: {error}");
        assert_eq!(error.exit_code(), 1);
    }
    FileSettings::parse("\u{feff}{}", file).unwrap();
}

#[test]
fn secrets_are_never_shown() {
    let json = json!({
        "TelemetrySettings": {"AppInsightsConnectionString": "s3cret", "AppInsightsInstrumentationKey": "s3cret"},
        "Logger": {"appInsights": {"ikey": "s3cret"}},
    });
    let (settings, notes) = parse(&json).unwrap();
    assert_eq!(settings.telemetry.app_insights_connection_string.reveal(), "s3cret");
    let shown = format!("{settings:?}{}{notes:?}", serde_json::to_string(&settings).unwrap());
    assert!(shown.contains("***") && !shown.contains("s3cret"), "{shown}");
    let wrong = json!({"TelemetrySettings": {"AppInsightsInstrumentationKey": {"s3cret": "s3cret"}}});
    assert!(!parse(&wrong).unwrap_err().to_string().contains("s3cret"));
}

#[test]
fn a_note_names_what_is_not_acted_on_and_only_that() {
    let (_, notes) = parse(&json!({"ChannelMode": "Direct", "EnablePprof": true, "UseHTTPS": true,
        "Logger": {"etw": {"level": "info"}}, "TLSSubjectName": "abc"}))
    .unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("EnablePprof") && notes[0].contains("TLSSubjectName"), "{notes:?}");
    assert!(!notes[0].contains("ChannelMode") && !notes[0].contains("UseHTTPS"), "{notes:?}");
    assert_eq!(parse(&json!({})).unwrap().1, Vec::<String>::new());
}

#[test]
fn a_clamp_outside_its_range_is_corrected_as_the_reference_does() {
    for given in [0, 64, 129, -1] {
        let (settings, notes) = parse(&json!({ "IPv6PrefixClamp": given })).unwrap();
        assert_eq!(settings.ipv6_prefix_clamp, 120);
        assert!(notes[0].contains("from 120 to 128"), "{notes:?}");
    }
}
