use std::ffi::OsString;

use serde_json::{Value, json};

use super::*;

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment {
        variables: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        primary_address: Some([192, 0, 2, 7].into()),
        ..Environment::default()
    }
}

fn load(name: &str, args: &[&str], environment: &Environment) -> Result<Config, ConfigError> {
    let argv = std::iter::once(name).chain(args.iter().copied()).map(OsString::from);
    Config::load(&CommandLine::parse(argv).unwrap(), environment)
}

fn cns(args: &[&str]) -> Result<Config, ConfigError> {
    load("cns", args, &environment(&[]))
}

fn azure(args: &[&str]) -> Result<Config, ConfigError> {
    load("azure-cns", args, &environment(&[]))
}

/// With a file of that content.
fn with_file(name: &str, content: &Value, args: &[&str]) -> Result<Config, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("cns_config.json"), content.to_string()).unwrap();
    let environment = Environment { executable_dir: Some(directory.path().to_owned()), ..environment(&[]) };
    load(name, args, &environment)
}

fn fixture(name: &str) -> String {
    format!("{}/tests/data/config/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn with_nothing_said_it_is_standalone_with_the_default_network() {
    let config = cns(&[]).unwrap();
    assert_eq!((config.channel_mode, config.standalone_cidrs.len()), (ChannelMode::Standalone, 1));
    assert_eq!(config.standalone_cidrs[0].to_string(), DEFAULT_CIDR);
    assert_eq!((config.rest, config.metrics_bind_address, config.import_legacy), (None, None, None));
    assert!(config.manage_endpoint_state && config.async_delete);
    assert_eq!(config.log_target, LogTarget::Stderr);
    assert_eq!(config.notes, Vec::<String>::new());
    let json: Value = serde_json::from_str(&cns(&[]).unwrap().to_json()).unwrap();
    assert_eq!((&json["cool_down"], &json["channel_mode"]), (&json!(30.0), &json!("Standalone")));
}

#[test]
fn under_the_reference_s_name_the_defaults_are_the_reference_s() {
    let config = azure(&[]).unwrap();
    assert_eq!((config.channel_mode, config.standalone_cidrs.len()), (ChannelMode::Direct, 0));
    assert_eq!((config.manage_endpoint_state, config.masquerade), (false, false));
    assert_eq!(config.pod_key_scheme(), PodKeyScheme::InterfaceId);
    let rest = config.rest.unwrap();
    assert_eq!(rest.main, RestAddress::Tcp("192.0.2.7:10090".parse().unwrap()));
    assert_eq!(rest.local, Some("127.0.0.1:10090".parse().unwrap()));
    assert_eq!(config.metrics_bind_address, Some("[::]:9090".parse().unwrap()));
    assert!(config.metrics_by_default);
    assert_eq!((config.log_target, config.log_directory), (LogTarget::LogFile, "/var/log/".into()));
    let import = config.import_legacy.unwrap();
    assert_eq!(import.azure_cns, Path::new("/var/lib/azure-network/azure-cns.json"));
    assert_eq!(import.azure_endpoints, Path::new("/var/run/azure-cns/azure-endpoints.json"));
    assert_eq!((import.azure_vnet, import.by_default), (None, true));
}

#[test]
fn an_old_command_line_with_a_network_is_standalone() {
    let config =
        azure(&["-c", "tcp://127.0.0.1:10090", "-t", "stdout", "--standalone-cidr", "10.244.0.0/24"])
            .unwrap();
    assert_eq!(config.channel_mode, ChannelMode::Standalone);
    assert_eq!(config.pod_key_scheme(), PodKeyScheme::InfraContainerId);
    assert_eq!(config.log_target, LogTarget::Stdout);
    let rest = config.rest.unwrap();
    assert_eq!((rest.main.to_string(), rest.local), ("tcp://127.0.0.1:10090".into(), None));
}

#[test]
fn the_mode_is_what_says_it_first() {
    for (name, file, args, expected) in [
        ("cns", json!({}), &[][..], ChannelMode::Standalone),
        ("cns", json!({"ChannelMode": "Direct"}), &[], ChannelMode::Direct),
        ("cns", json!({"ChannelMode": "Direct"}), &["--channel-mode", "Standalone"], ChannelMode::Standalone),
        ("azure-cns", json!({}), &[], ChannelMode::Direct),
        ("azure-cns", json!({"ChannelMode": ""}), &[], ChannelMode::Direct),
        ("azure-cns", json!({"ChannelMode": "Standalone"}), &[], ChannelMode::Standalone),
        ("azure-cns", json!({"Node": {"StandaloneCIDRs": ["10.9.0.0/24"]}}), &[], ChannelMode::Standalone),
        ("azure-cns", json!({"ChannelMode": "CRD"}), &["--channel-mode=Direct"], ChannelMode::Direct),
        ("azure-cns", json!({}), &["-m=false"], ChannelMode::Direct),
    ] {
        assert_eq!(with_file(name, &file, args).unwrap().channel_mode, expected, "{name} {file} {args:?}");
    }
}

#[test]
fn a_mode_that_cannot_be_run_is_refused_with_where_it_was_said() {
    for mode in ["CRD", "MultiTenantCRD"] {
        let error = with_file("azure-cns", &json!({ "ChannelMode": mode }), &[]).unwrap_err().to_string();
        for part in
            ["ChannelMode (in /", "cns_config.json) ", mode, "runs Standalone, Direct, Managed, AzureHost; "]
        {
            assert!(error.contains(part), "{error}");
        }
        let error = cns(&["--channel-mode", mode]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--channel-mode {mode}: this version runs")), "{error}");
    }
}

#[test]
fn managed_needs_its_three_settings_from_the_file_or_with_the_switch() {
    let full = json!({"ChannelMode": "Managed", "ManagedSettings": {
        "PrivateEndpoint": "http://dnc.example:9000", "InfrastructureNetworkID": "v", "NodeID": "n"}});
    let managed = with_file("azure-cns", &full, &["-n", "other"]).unwrap().managed.unwrap();
    assert_eq!(managed.endpoint.to_string(), "http://dnc.example:9000");
    assert_eq!((managed.node_id.as_str(), managed.sync_interval), ("n", Duration::from_secs(30)));
    // The switch says the mode: then its flags count first.
    let managed = with_file("azure-cns", &full, &["-m", "-n", "other"]).unwrap().managed.unwrap();
    assert_eq!(managed.node_id, "other");
    let config = azure(&["-m", "-pe", "http://10.0.0.9", "-iv", "v", "-n", "n"]).unwrap();
    assert_eq!(config.channel_mode, ChannelMode::Managed);
    assert_eq!(config.notes, Vec::<String>::new());
    for key in ["PrivateEndpoint", "InfrastructureNetworkID", "NodeID"] {
        let mut file = full.clone();
        file["ManagedSettings"][key] = json!("");
        let error = with_file("azure-cns", &file, &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("ManagedSettings.{key} (in /")), "{error}");
        assert!(error.contains("is missing: ChannelMode Managed needs it"), "{error}");
    }
    let error = azure(&["-m", "-pe", "ftp://x", "-iv", "v", "-n", "n"]).unwrap_err().to_string();
    assert!(error.starts_with("--private-endpoint ftp://x: "), "{error}");
}

#[test]
fn azure_host_needs_endpoint_records_and_does_without_snat() {
    for manage in [json!(null), json!(false)] {
        let file = json!({"ChannelMode": "AzureHost", "ManageEndpointState": manage});
        let error = with_file("cns", &file, &[]).unwrap_err().to_string();
        assert!(error.starts_with("ManageEndpointState (in /") && error.contains("needs true"), "{error}");
    }
    // spec/network-containers.md §16 N8
    let file = json!({"ChannelMode": "AzureHost", "ManageEndpointState": true, "ProgramSNATIPTables": true});
    let config = with_file("azure-cns", &file, &[]).unwrap();
    assert_eq!((config.pod_key_scheme(), config.program_snat), (PodKeyScheme::InfraContainerId, false));
    assert!(config.notes.iter().any(|note| note.starts_with("ProgramSNATIPTables is without effect")));
}

#[test]
fn a_list_that_is_to_be_written_is_whole() {
    for (file, expected) in [
        (json!({"EnableCNIConflistGeneration": true}), "CNIConflistFilepath (in /"),
        (
            json!({"EnableCNIConflistGeneration": true, "CNIConflistFilepath": "x.conflist"}),
            "x.conflist: the absolute path",
        ),
        (
            json!({"EnableCNIConflistGeneration": true, "CNIConflistFilepath": "/x.conflist"}),
            "CNIConflistScenario (in /",
        ),
    ] {
        let error = with_file("cns", &file, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let file = json!({"EnableCNIConflistGeneration": true, "CNIConflistFilepath": "/x.conflist",
        "CNIConflistScenario": "cilium", "ChannelMode": "Direct"});
    let config = with_file("cns", &file, &["-np", "/bin"]).unwrap();
    let conflist = config.conflist.unwrap();
    assert_eq!((conflist.scenario.as_str(), conflist.programs), ("cilium", "/bin".into()));
    assert!(
        config.notes[0].starts_with("EnableCNIConflistGeneration is without effect"),
        "{:?}",
        config.notes
    );
}

#[test]
fn networks_and_another_mode_contradict_each_other() {
    let file = json!({"ChannelMode": "Direct"});
    let error = with_file("azure-cns", &file, &["--standalone-cidr", "10.1.0.0/24"]).unwrap_err().to_string();
    assert!(error.starts_with("--standalone-cidr: ") && error.contains("ChannelMode (in /"), "{error}");
}

#[test]
fn each_flag_is_one_nc_of_one_or_two_families() {
    let config =
        cns(&["--standalone-cidr", "10.1.0.0/24,fd00:1::/120", "--standalone-cidr", "10.2.0.0/24"]).unwrap();
    let texts: Vec<String> = config.standalone_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.1.0.0/24,fd00:1::/120", "10.2.0.0/24"]);
}

#[test]
fn errors_name_the_key_the_value_and_what_is_allowed() {
    for (args, expected) in [
        (&["--standalone-cidr", "10.1.0.0"][..], "--standalone-cidr 10.1.0.0"),
        (&["--standalone-cidr", "10.1.0.0/24", "--standalone-cidr", "10.1.0.128/25"], "overlap"),
        (&["--grpc-bind-address", "0.0.0.0:1"], "--tls-client-ca"),
        (&["--grpc-bind-address", "127.0.0.1:1", "--tls-cert", "x"], "--tls-key is missing"),
        (&["--tls-cert", "x", "--tls-key", "x", "--tls-client-ca", "x"], "--grpc-bind-address"),
        (&["--max-concurrent-requests", "0"], "--max-concurrent-requests 0: between 1 and 1048576"),
        (&["--journal-entries", "0"], "--journal-entries 0: between 1 and 10000000"),
        (&["--reconcile-interval", "0"], "--reconcile-interval 0: more than zero"),
        (&["--log-level", "cns=loud"], "--log-level cns=loud"),
        (&["--channel-mode", "direct"], "--channel-mode direct: one of Standalone, Direct"),
        (&["-c", "http://127.0.0.1:10090"], "-cns-url http://127.0.0.1:10090: the scheme names the network"),
        (&["-c", "tcp://127.0.0.1:10090/x"], "a tcp URL has no path"),
        (&["-p", "http"], "-cns-port http: a port from 1 to 65535"),
        (&["-cniconflistscenario", "calico"], "-cni-conflist-scenario calico: one of v4overlay"),
        (&["-cp", "/nonexistent/cns_config.json"], "/nonexistent/cns_config.json: there is no such file"),
    ] {
        let error = cns(args).unwrap_err();
        assert!(error.to_string().contains(expected), "{args:?}: {error}");
        assert_eq!(error.exit_code(), 2);
    }
    for (variable, value, expected) in [
        ("NODE_IP", "node-1", "NODE_IP node-1: an IP address is expected"),
        ("POD_CIDRs", "10.0.0.0/8,x", "POD_CIDRs x: CIDRs separated by commas"),
        ("SERVICE_CIDRs", "x", "SERVICE_CIDRs x"),
        ("INFRA_VNET_CIDRs", "x", "INFRA_VNET_CIDRs x"),
    ] {
        let error = load("cns", &[], &environment(&[(variable, value)])).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_samples_of_the_reference_are_accepted() {
    for name in ["cns", "azure-cns"] {
        let config = load(name, &["-cp", &fixture("cns_config.json")], &environment(&[])).unwrap();
        assert_eq!(config.channel_mode, ChannelMode::Direct);
        assert!(config.rest.is_none_or(|rest| rest.tls.is_none()), "UseHTTPS is off");
        let config = load(
            name,
            &["-c=tcp://127.0.0.1:10090", "--config-path", &fixture("good.json")],
            &environment(&[]),
        )
        .unwrap();
        assert_eq!(config.metrics_bind_address, Some("[::]:9091".parse().unwrap()));
        assert!(!config.metrics_by_default);
        let tls = config.rest.unwrap().tls.unwrap();
        assert_eq!(tls.address, "127.0.0.1:10091".parse().unwrap());
        assert_eq!((tls.source, tls.min_version), (TlsSource::File("/test".into()), TlsVersion::Tls13));
        assert_eq!((tls.client_auth, tls.client_ca, tls.client_subject), (true, None, None));
        let note = config.notes.iter().find(|note| note.contains("does not act on these settings")).unwrap();
        assert!(note.contains("EnablePprof") && note.contains("TelemetrySettings.DebugMode"), "{note}");
    }
}

#[test]
fn the_file_is_the_flag_s_else_the_variable_s_else_the_one_beside_the_executable() {
    let (good, sample) = (fixture("good.json"), fixture("cns_config.json"));
    let variables = environment(&[("CNS_CONFIGURATION_PATH", &good)]);
    assert_eq!(load("cns", &[], &variables).unwrap().config_file, Some(good.into()));
    let config = load("cns", &["-config-path", &sample], &variables).unwrap();
    assert_eq!(config.config_file, Some(sample.into()));
    let config = with_file("cns", &json!({"Node": {"CoolDownSecs": 1}}), &["-cp", "  "]).unwrap();
    assert_eq!(config.cool_down, Duration::from_secs(1));
    // Under the reference's name a file that is not there is no error.
    let config = azure(&["-cp", "/nonexistent"]).unwrap();
    assert!(config.config_file.is_none() && config.notes[0].contains("/nonexistent"), "{:?}", config.notes);
}

#[test]
fn a_flag_counts_before_the_file_and_the_file_before_the_default() {
    let file = json!({"MetricsBindAddress": "127.0.0.1:1", "AsyncPodDeletePath": "/a", "Node": {
        "StateDir": "/s", "GRPCSocket": "/g", "StandaloneCIDRs": ["10.9.0.0/24"], "Masquerade": true,
        "AllowUIDs": [1], "AllowGIDs": [2], "CoolDownSecs": 1, "ReconcileIntervalSecs": 2,
        "ReconcileGraceSecs": 3, "JournalEntries": 4, "MaxConcurrentRequests": 5, "DrainTimeoutSecs": 6,
        "LogLevel": "debug", "LogFormat": "json", "GRPCBindAddress": "127.0.0.1:2",
        "DockerURL": "http://127.0.0.1:4", "IMDSURL": "http://127.0.0.1:5", "OTLPEndpoint": "http://127.0.0.1:6"}});
    let config = with_file("cns", &file, &[]).unwrap();
    let shown: Value = serde_json::from_str(&config.to_json()).unwrap();
    for (key, expected) in [
        ("state_dir", json!("/s")),
        ("grpc_socket", json!("/g")),
        ("grpc_bind_address", json!("127.0.0.1:2")),
        ("standalone_cidrs", json!(["10.9.0.0/24"])),
        ("masquerade", json!(true)),
        ("allow_uids", json!([1])),
        ("allow_gids", json!([2])),
        ("cool_down", json!(1.0)),
        ("reconcile_interval", json!(2.0)),
        ("reconcile_grace", json!(3.0)),
        ("journal_entries", json!(4)),
        ("max_concurrent_requests", json!(5)),
        ("drain_timeout", json!(6.0)),
        ("log_level", json!("debug")),
        ("log_format", json!("json")),
        ("docker_url", json!("http://127.0.0.1:4")),
        ("otlp_endpoint", json!("http://127.0.0.1:6")),
        ("imds_url", json!("http://127.0.0.1:5")),
        ("metrics_bind_address", json!("127.0.0.1:1")),
        ("async_delete_dir", json!("/a")),
    ] {
        assert_eq!(shown[key], expected, "{key}");
    }
    let args = [
        "--state-dir=/S",
        "--grpc-socket=/G",
        "--grpc-bind-address=127.0.0.1:3",
        "--standalone-cidr=10.8.0.0/24",
        "--masquerade=false",
        "--allow-uid=9",
        "--allow-gid=9",
        "--cool-down=9",
        "--reconcile-interval=9",
        "--reconcile-grace=9",
        "--journal-entries=9",
        "--max-concurrent-requests=9",
        "--drain-timeout=9",
        "--otlp-endpoint=http://127.0.0.1:9",
        "--log-level=warn",
        "--log-format=text",
        "--metrics-bind-address=127.0.0.1:9",
        "--async-delete-dir=/A",
    ];
    let flags: Value = serde_json::from_str(&with_file("cns", &file, &args).unwrap().to_json()).unwrap();
    for (key, value) in shown.as_object().unwrap() {
        let same = [
            "program",
            "channel_mode",
            "tls",
            "grpc_settings_address",
            "rest",
            "metrics_by_default",
            "manage_endpoint_state",
            "docker_url",
            "wireserver_url",
            "imds_url",
            "managed",
            "conflist",
            "cni_plugin",
            "program_snat",
            "async_delete",
            "import_legacy",
            "log_target",
            "log_directory",
            "log_file",
            "config_file",
            "settings",
            "legacy_flags",
            "environment",
            "notes",
        ];
        assert!(same.contains(&key.as_str()) || flags[key] != *value, "{key}");
    }
    let error = with_file("cns", &json!({"Node": {"StandaloneCIDRs": ["x"]}}), &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("Node.StandaloneCIDRs (in /") && error.contains("`x` is not a CIDR"),
        "{error}"
    );
    let error = with_file("cns", &json!({"Node": {"LogLevel": "cns=loud"}}), &[]).unwrap_err().to_string();
    assert!(error.starts_with("Node.LogLevel (in /"), "{error}");
}

#[test]
fn the_rest_listeners_are_where_they_are_wanted() {
    let main =
        |config: Config| config.rest.map(|rest| (rest.main.to_string(), rest.local.map(|l| l.to_string())));
    let at = |main: &str, local: Option<&str>| Some((main.to_owned(), local.map(ToOwned::to_owned)));
    let port = Some("127.0.0.1:81");
    let rest = |rest: Value| json!({"Node": {"REST": rest}});
    for (name, file, args, expected) in [
        ("cns", json!({}), &["-c", "tcp://[::1]:81"][..], at("tcp://[::1]:81", None)),
        ("cns", json!({}), &["-p", "81"], at("tcp://192.0.2.7:81", port)),
        ("cns", json!({}), &["-p", "82", "-c", "unix:///x"], at("unix:///x", None)),
        ("cns", rest(json!({})), &[], at("tcp://192.0.2.7:10090", Some("127.0.0.1:10090"))),
        ("cns", rest(json!({"Port": 81})), &[], at("tcp://192.0.2.7:81", port)),
        ("cns", rest(json!({"URL": "tcp://:81"})), &[], at("tcp://[::]:81", None)),
        ("cns", rest(json!({"URL": "tcp://:80"})), &["-p", "81"], at("tcp://192.0.2.7:81", port)),
        ("azure-cns", json!({}), &["--cns-port=81"], at("tcp://192.0.2.7:81", port)),
        ("azure-cns", rest(json!({"Port": 80})), &["-p=81"], at("tcp://192.0.2.7:81", port)),
    ] {
        assert_eq!(main(with_file(name, &file, args).unwrap()), expected, "{name} {file} {args:?}");
    }
    let nowhere = Environment { primary_address: None, ..environment(&[]) };
    let error = load("azure-cns", &[], &nowhere).unwrap_err().to_string();
    assert!(error.contains("give -c tcp://ADDRESS:PORT"), "{error}");
    load("azure-cns", &["-c", "tcp://:1"], &nowhere).unwrap();
}

#[test]
fn tls_that_was_asked_for_and_cannot_be_is_an_error() {
    let full = json!({"UseHTTPS": true, "TLSPort": "443", "TLSCertificatePath": "/pem", "UseMTLS": true,
        "MtlsClientCertSubjectName": "dnc", "Node": {"REST": {"URL": "tcp://[::1]:80", "ClientCAPath": "/ca"}}});
    let tls = with_file("cns", &full, &[]).unwrap().rest.unwrap().tls.unwrap();
    assert_eq!(tls.address, "[::1]:443".parse().unwrap());
    assert_eq!((tls.client_ca, tls.client_subject), (Some("/ca".into()), Some("dnc".into())));
    for (key, value, args, expected) in [
        ("TLSPort", json!(""), &[][..], "TLSPort is needed too"),
        ("TLSPort", json!("80"), &[], "a port other than the main listener's"),
        ("TLSCertificatePath", json!(""), &[], "TLSCertificatePath or KeyVaultSettings.URL is needed too"),
        ("TLSPort", json!("443"), &["-c", "unix:///x"], "TLS needs a TCP address"),
    ] {
        let mut file = full.clone();
        file[key] = value;
        let error = with_file("cns", &file, args).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("cns_config.json"), "{key}: {error}");
    }
    // Nothing to secure: that is told.
    let mut file = full.clone();
    file["Node"] = json!({});
    let config = with_file("cns", &file, &[]).unwrap();
    assert!(config.rest.is_none() && config.notes[0].starts_with("UseHTTPS is without effect"));
}

#[test]
fn a_certificate_may_be_in_key_vault_and_a_file_counts_before_it() {
    let identity = "/subscriptions/0/resourceGroups/g/providers/Microsoft.ManagedIdentity/x";
    let full = json!({"UseHTTPS": true, "TLSPort": "443",
        "KeyVaultSettings": {"URL": "https://v.vault.azure.net", "CertificateName": "cns", "RefreshIntervalInHrs": 2},
        "MSISettings": {"ResourceID": identity}, "Node": {"REST": {"URL": "tcp://[::1]:80"}}});
    let source = |file: &serde_json::Value| {
        with_file("cns", file, &[]).map(|config| config.rest.unwrap().tls.unwrap().source)
    };
    let TlsSource::KeyVault { vault, refresh } = source(&full).unwrap() else { panic!("a file") };
    assert_eq!((vault.certificate_name.as_str(), vault.identity.as_deref()), ("cns", Some(identity)));
    let mut own = full.clone();
    own["MSISettings"] = json!({});
    let TlsSource::KeyVault { vault, .. } = source(&own).unwrap() else { panic!("a file") };
    assert_eq!(vault.identity, None, "the system-assigned one");
    assert_eq!(refresh, Duration::from_hours(2));
    assert!(!with_file("cns", &full, &[]).unwrap().notes.iter().any(|note| note.contains("KeyVault")));
    let mut other = full.clone();
    other["TLSCertificatePath"] = json!("/pem");
    assert_eq!(source(&other).unwrap(), TlsSource::File("/pem".into()));
    for (pointer, value, expected) in [
        ("/KeyVaultSettings/CertificateName", json!(""), "KeyVaultSettings.CertificateName"),
        ("/MSISettings/ResourceID", json!("mine"), "MSISettings.ResourceID"),
        ("/KeyVaultSettings/URL", json!("http://v.example"), "KeyVaultSettings.URL"),
    ] {
        let mut file = full.clone();
        *file.pointer_mut(pointer).unwrap() = value;
        let error = source(&file).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("cns_config.json"), "{error}");
    }
}

#[test]
fn endpoint_records_and_async_deletes_are_as_the_file_says() {
    for (name, file, manage, scheme) in [
        ("cns", json!({"ManageEndpointState": false}), false, PodKeyScheme::InterfaceId),
        ("cns", json!({"ChannelMode": "Direct"}), false, PodKeyScheme::InterfaceId),
        ("azure-cns", json!({"ManageEndpointState": true}), true, PodKeyScheme::InfraContainerId),
    ] {
        let config = with_file(name, &file, &[]).unwrap();
        assert_eq!(
            (config.manage_endpoint_state, config.pod_key_scheme()),
            (manage, scheme),
            "{name} {file}"
        );
    }
    assert!(!with_file("cns", &json!({"EnableAsyncPodDelete": false}), &[]).unwrap().async_delete);
}

#[test]
fn the_store_prefixes_say_where_to_import_from() {
    let environment = environment(&[("CNSStoreFilePath", "/e/")]);
    let config = load("cns", &["-storefilepath", "/s/pre-"], &environment).unwrap();
    let import = config.import_legacy.unwrap();
    assert_eq!(import.azure_cns, Path::new("/s/pre-azure-cns.json"));
    assert_eq!(import.azure_endpoints, Path::new("/e/azure-endpoints.json"));
    assert!(
        !import.by_default && config.notes[0].contains("does not end with a slash"),
        "{:?}",
        config.notes
    );
    let import = azure(&["--import-legacy", "/old"]).unwrap().import_legacy.unwrap();
    assert_eq!(import.azure_vnet, Some("/old/azure-vnet.json".into()));
}

#[test]
fn the_environment_and_the_conflist_flags_are_carried() {
    let variables = [
        ("NODENAME", "node-1"),
        ("NODE_IP", "10.0.0.4"),
        ("POD_CIDRs", "10.0.0.0/8, fd00::/8"),
        ("CNS_ENABLE_CNI_CONFLIST_GENERATION", ""),
    ];
    let args = ["-cniconflist", "/c", "-cniconflistscenario", "cilium", "-np", "/opt/cni/bin"];
    let config = load("cns", &args, &environment(&variables)).unwrap();
    assert_eq!(config.legacy_flags.net_plugin_path, Path::new("/opt/cni/bin"));
    assert_eq!(config.legacy_flags.http_response_header_timeout, Duration::from_mins(2));
    assert_eq!(config.environment.node_name.as_deref(), Some("node-1"));
    assert_eq!(config.environment.pod_cidrs.len(), 2);
    assert!(config.settings.enable_cni_conflist_generation);
    assert_eq!(config.settings.cni_conflist_filepath, "/c");
    assert_eq!(config.notes, Vec::<String>::new());
    // Without the list its flags change nothing, and that is told.
    let note = cns(&args).unwrap().notes.pop().unwrap();
    assert!(note.contains("-net-plugin-path") && note.contains("-cni-conflist-scenario"), "{note}");
}

/// In Standalone the pods' plugin is ours, and no other is run unless one is named.
#[test]
fn the_cni_plugin_is_known_where_dnc_changes_network_containers() {
    let plugin = |path: &str, list: &str| Some(CniPlugin { path: path.into(), list: list.into() });
    let usual = plugin("/opt/cni/bin", "/etc/cni/net.d/10-azure.conflist");
    assert_eq!(with_file("cns", &json!({"ChannelMode": "Direct"}), &[]).unwrap().cni_plugin, usual);
    let args = ["-np", "/bin:/opt", "-npconfig", "/c"];
    let direct = with_file("cns", &json!({"ChannelMode": "Direct"}), &args).unwrap();
    assert_eq!((direct.cni_plugin, direct.notes), (plugin("/bin:/opt", "/c"), vec![]));
    assert_eq!(cns(&[]).unwrap().cni_plugin, None);
    let named = cns(&args).unwrap();
    assert_eq!((named.cni_plugin, named.notes), (plugin("/bin:/opt", "/c"), vec![]));
}

#[test]
fn the_structured_logger_s_level_counts_where_it_is_switched_on() {
    let logger = |on: bool, level: &str| json!({"EnableLoggerV2": on, "Logger": {"level": level}});
    let level = |file: Value, args: &[&str]| with_file("azure-cns", &file, args).unwrap().log_level;
    assert_eq!(level(logger(true, "DEBUG"), &[]), "debug");
    assert_eq!(level(logger(true, "fatal"), &[]), "error");
    assert_eq!(level(logger(false, "debug"), &[]), "info");
    assert_eq!(level(logger(true, "error"), &["-l", "Debug"]), "debug");
    // Its file has a level of its own.
    let file = |on: bool, file: Value| {
        let config = with_file("cns", &json!({"EnableLoggerV2": on, "Logger": {"file": file}}), &[]).unwrap();
        (config.log_file, config.log_level, config.notes)
    };
    let usual =
        LogFile { path: "/var/log/azure-cns.log".into(), level: "info", backups: 10, most_bytes: 10 << 20 };
    assert_eq!(file(true, json!({})), (Some(usual), "info".into(), vec![]));
    let told = json!({"filepath": "/log/x", "level": "panic", "maxBackups": 0, "maxSize": 1});
    let other = LogFile { path: "/log/x".into(), level: "error", backups: 0, most_bytes: 1 << 20 };
    assert_eq!(file(true, told.clone()), (Some(other), "info".into(), vec![]));
    let (none, _, notes) = file(false, told);
    assert!(none.is_none() && notes[0].contains("EnableLoggerV2 is not set"), "{notes:?}");
}

/// Words of which command lines are made, and bits of JSON.
const WORDS: &[&str] = &[
    "-",
    "--",
    "-c",
    "--cns-url",
    "=",
    "-m",
    "-t",
    "stdout",
    "tcp://",
    "unix://",
    ":",
    "[::1]",
    "10090",
    "-l",
    "-v=",
    "--state-dir",
    "--masquerade",
    "--=",
    "-=",
    "\u{e4}",
    "-debugcmd",
    "",
    " ",
    "10.0.0.0/24",
    "--check-config",
];
const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "1e400",
    "\"",
    "\"ChannelMode\"",
    "\"Node\"",
    "\"REST\"",
    "\"Logger\"",
    "\"file\"",
    "\"CoolDownSecs\"",
    "\"TLSPort\"",
    "\"Direct\"",
    "\"\"",
    "{}",
    "[1]",
];

proptest::proptest! {
    #[test]
    fn nothing_on_a_command_line_is_worse_than_an_error(
        args in proptest::collection::vec(proptest::collection::vec(proptest::sample::select(WORDS), 0..4), 0..6),
        azure in proptest::bool::ANY,
    ) {
        let argv = std::iter::once(if azure { "azure-cns" } else { "cns" }.to_owned()).chain(args.iter().map(|words| words.concat()));
        if let Ok(command) = CommandLine::parse(argv.map(OsString::from)) {
            let _ = Config::load(&command, &environment(&[]));
        }
    }

    #[test]
    fn nothing_in_a_file_is_worse_than_an_error(
        parts in proptest::collection::vec(proptest::sample::select(JSON), 0..12)
    ) {
        let _ = FileSettings::parse(&parts.concat(), Path::new("/x"));
        let _ = FileSettings::parse(&format!("{{{}}}", parts.concat()), Path::new("/x"));
    }
}
