//! The reference's command line and file, told to the binary: under its name and under ours.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
    thread::JoinHandle,
};

use serde_json::{Value, json};

use super::{
    cns_under_test::{Cns, free_port, until},
    pb,
};

/// The binary under the reference's name, without the variables that a test's own environment may have.
fn azure(directory: &Path) -> Command {
    let path = directory.join("azure-cns");
    if !path.exists() {
        symlink(env!("CARGO_BIN_EXE_cns"), &path).unwrap();
    }
    bare(Command::new(path))
}

fn ours() -> Command {
    bare(Command::new(env!("CARGO_BIN_EXE_cns")))
}

fn bare(mut command: Command) -> Command {
    for name in ["CNSIpAddress", "CNSPort", "CNS_CONFIGURATION_PATH", "CNSStoreFilePath", "CNS_CHANNEL_MODE"]
    {
        command.env_remove(name);
    }
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn fixture(name: &str) -> String {
    format!("{}/tests/data/config/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_name_decides_about_the_defaults() {
    let directory = tempfile::tempdir().unwrap();
    let effective = |mut command: Command, args: &[&str]| -> Value {
        let output = command.args(args).arg("-check-config").output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let listen = ["-c", "tcp://127.0.0.1:10090"];
    let theirs = effective(azure(directory.path()), &listen);
    assert_eq!(
        (theirs["channel_mode"].as_str(), theirs["log_target"].as_str()),
        (Some("Direct"), Some("logfile"))
    );
    assert_eq!(theirs["metrics_bind_address"], "[::]:9090");
    assert_eq!(theirs["rest"]["main"], "tcp://127.0.0.1:10090");
    let mine = effective(ours(), &[]);
    assert_eq!(
        (mine["channel_mode"].as_str(), mine["log_target"].as_str()),
        (Some("Standalone"), Some("stderr"))
    );
    assert_eq!((mine["rest"].is_null(), mine["metrics_bind_address"].is_null()), (true, true));
    let old = [&listen[..], &["-t", "stdout", "--standalone-cidr", "10.244.0.0/24"]].concat();
    let old = effective(azure(directory.path()), &old);
    assert_eq!(
        (old["channel_mode"].as_str(), old["manage_endpoint_state"].as_bool()),
        (Some("Standalone"), Some(true))
    );
    // A copy's name counts as a link's does, and the file beside it is found.
    let copy = directory.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_cns"), copy.join("azure-cns")).unwrap();
    std::fs::write(copy.join("cns_config.json"), r#"{"metricsbindaddress": ":10092"}"#).unwrap();
    let copied = effective(azure(&copy), &listen);
    assert_eq!(
        (copied["program"].as_str(), &copied["metrics_bind_address"]),
        (Some("azure-cns"), &"[::]:10092".into())
    );
}

#[test]
fn the_samples_are_accepted_and_secrets_are_masked() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["cns_config.json", "good.json"] {
        let output = azure(directory.path())
            .args(["-c", "tcp://127.0.0.1:10090", "-config-path", &fixture(name), "--check-config"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {}", stderr(&output));
    }
    let file = directory.path().join("secret.json");
    std::fs::write(&file, r#"{"TelemetrySettings": {"AppInsightsInstrumentationKey": "s3cret"}}"#).unwrap();
    let output = ours().arg("-cp").arg(&file).arg("--check-config").output().unwrap();
    assert!(
        stdout(&output).contains("\"***\"") && !stdout(&output).contains("s3cret"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn versions_and_help_are_those_of_the_name() {
    let directory = tempfile::tempdir().unwrap();
    for flag in ["-v", "--version", "-version"] {
        let output = azure(directory.path()).arg(flag).output().unwrap();
        let expected = format!("Azure Container Network Service\nVersion {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), expected));
        let output = ours().arg(flag).output().unwrap();
        assert_eq!(stdout(&output), format!("cns {}\n", env!("CARGO_PKG_VERSION")));
    }
    for flag in ["-h", "--help", "-help"] {
        let output = azure(directory.path()).arg(flag).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let help = stdout(&output);
        assert!(help.contains("Usage: azure-cns") && help.contains("Legacy flags"), "{help}");
    }
}

#[test]
fn what_is_wrong_is_told_with_the_reference_s_exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.json");
    std::fs::write(&file, r#"{"ChannelMode": "CRD", "SyncHostNCVersionIntervalMs": 0}"#).unwrap();
    let file = file.to_str().unwrap();
    let broken = directory.path().join("broken.json");
    std::fs::write(&broken, "{").unwrap();
    for (args, code, expected) in [
        (&["-nosuch"][..], 2, "Usage: azure-cns"),
        (&["-c"], 2, "flag needs an argument: -c"),
        (&["-m=maybe"], 2, "invalid boolean value \"maybe\" for -m"),
        (&["-t", "Printer"], 1, "Invalid value 'printer' for argument 'log-target'."),
        (&["-log-level=loud"], 1, "Invalid value 'loud' for argument 'log-level'."),
        (&["-c", "http://127.0.0.1:1"], 2, "--cns-url http://127.0.0.1:1: the scheme names the network"),
        (&["-cp", file], 1, "SyncHostNCVersionIntervalMs 0 (in "),
        (&["-cp", broken.to_str().unwrap()], 1, "this is not JSON"),
        (&["-m"], 2, "ManagedSettings.PrivateEndpoint is missing: ChannelMode Managed needs it"),
        (&["-c", "tcp://:1", "-t", "logfile", "-o", "/nonexistent/x"], 1, "name another directory with -o"),
    ] {
        let output = azure(directory.path()).args(args).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn a_value_of_the_environment_is_told_by_its_variable() {
    for (variable, value) in [
        ("CNS_CHANNEL_MODE", "crd"),
        ("CNS_CHANNEL_MODE", "CRD"),
        ("CNS_STANDALONE_CIDR", "10.1.0.0"),
        ("CNS_LOG_LEVEL", "cns=loud"),
    ] {
        let output = ours().env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(&format!("{variable} {value}: ")), "{}", stderr(&output));
    }
    let output = ours().env("CNS_CHANNEL_MODE", "").arg("--check-config").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// Starts the daemon under the reference's name, and waits until it says that it is ready.
struct Azure {
    child: std::process::Child,
    cns: Cns,
}

impl Azure {
    fn start(args: &[&str]) -> Self {
        let cns = Cns::prepared(&[]);
        let child = azure(cns.directory())
            .args(args)
            .args(["-state-dir", cns.state_dir().to_str().unwrap(), "-masquerade=false"])
            .args(["-storefilepath", &format!("{}/", cns.directory().display())])
            .args(["--grpc-socket", cns.socket().to_str().unwrap()])
            .args(["--async-delete-dir", cns.async_delete_dir().to_str().unwrap()])
            .stdout(std::fs::File::create(cns.directory().join("out")).unwrap())
            .stderr(std::fs::File::create(cns.directory().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, cns }
    }

    async fn info(&self) -> pb::GetNodeInfoResponse {
        until("it serves", || async { self.cns.try_channel().await.is_ok() }).await;
        self.cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner()
    }

    fn said(&self, file: &str) -> String {
        std::fs::read_to_string(self.cns.directory().join(file)).unwrap_or_default()
    }
}

impl Drop for Azure {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn an_old_command_line_starts_a_daemon_that_serves() {
    let url = format!("tcp://127.0.0.1:{}", free_port());
    let azure =
        Azure::start(&["-c", &url, "-t", "stdout", "--standalone-cidr", "10.244.0.0/24", "-np", "/opt"]);
    let info = azure.info().await;
    assert_eq!(info.channel_mode, "Standalone");
    assert_eq!(info.pod_key_scheme(), pb::PodKeyScheme::InfraContainerId);
    let granted = azure.cns.ipam().await.request_ip_configs(super::ask("c1")).await.unwrap().into_inner();
    assert_eq!(super::addresses(&granted), ["10.244.0.2"]);
    until("the log says ready", || async { azure.said("out").contains("ready") }).await;
    let said = azure.said("out");
    assert!(said.contains("does not act on these flags: --net-plugin-path"), "{said}");
    assert_eq!(azure.said("log"), "", "all of it goes to standard output");
}

#[tokio::test]
async fn direct_waits_for_dnc_with_nothing_of_its_own() {
    let cns = Cns::prepared(&[]);
    let logs = cns.directory().display().to_string();
    let url = format!("tcp://127.0.0.1:{}", free_port());
    let azure = Azure::start(&["-c", &url, "-o", &logs]);
    let info = azure.info().await;
    assert_eq!(info.channel_mode, "Direct");
    assert_eq!(info.pod_key_scheme(), pb::PodKeyScheme::InterfaceId);
    assert_eq!(info.orchestrator_type(), pb::OrchestratorType::Unspecified);
    let mut ncs = azure.cns.ncs().await;
    let list = ncs.list_network_containers(pb::ListNetworkContainersRequest::default()).await.unwrap();
    assert_eq!(list.into_inner().entries.len(), 0);
    let log = cns.directory().join("azure-cns.log");
    let ready = || async { std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")) };
    until("the log file says ready", ready).await;
    azure.cns.assert_sound().await;
}

#[tokio::test]
async fn stdoutfile_is_both_and_syslog_needs_one() {
    let cns = Cns::prepared(&[]);
    let logs = cns.directory().display().to_string();
    let url = format!("tcp://127.0.0.1:{}", free_port());
    let azure = Azure::start(&["-c", &url, "-t", "StdoutFile", "-o", &logs]);
    until("standard output says ready", || async { azure.said("out").contains("ready") }).await;
    let log = cns.directory().join("azure-cns.log");
    until("the file says the same", || async { std::fs::read_to_string(&log).unwrap() == azure.said("out") })
        .await;
    if !Path::new("/dev/log").exists() {
        let output = azure_with(&["-c", &url, "-t", "syslog"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("-t syslog: /dev/log"), "{}", stderr(&output));
    }
}

/// With the reference's structured logger there is a file of JSON lines with a level of its own; where it is the log's own file, all
/// lines there are JSON.
#[tokio::test]
async fn the_structured_logger_has_a_file_of_its_own() {
    let cns = Cns::prepared(&[]);
    let config = cns.directory().join("cns_config.json");
    let log = cns.directory().join("azure-cns.log");
    let file = |level: &str| {
        let file = json!({"filepath": log, "level": level, "maxBackups": 1, "maxSize": 1});
        json!({"EnableLoggerV2": true, "Logger": {"level": "error", "file": file}})
    };
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let says_ready =
        || async { lines().iter().any(|line| line["fields"]["message"].as_str() == Some("ready")) };
    let (logs, config_path) = (cns.directory().display().to_string(), config.display().to_string());

    std::fs::write(&config, file("info").to_string()).unwrap();
    let url = format!("tcp://127.0.0.1:{}", free_port());
    let azure = Azure::start(&["-c", &url, "-t", "stdout", "-cp", &config_path]);
    until("the file says ready", says_ready).await;
    assert_eq!(azure.said("out"), "", "there it is errors only");
    drop(azure);

    std::fs::remove_file(&log).unwrap();
    let url = format!("tcp://127.0.0.1:{}", free_port());
    let azure = Azure::start(&["-c", &url, "-t", "logfile", "-o", &logs, "-cp", &config_path]);
    until("all lines are JSON", says_ready).await;
    assert_eq!(azure.said("out"), "");
    drop(azure);

    let mut wrong = file("info");
    wrong["Logger"]["file"]["filepath"] = json!("/nonexistent/x.log");
    std::fs::write(&config, wrong.to_string()).unwrap();
    let output = azure_with(&["-c", "tcp://:1", "-t", "stdout", "-cp", &config_path]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("/nonexistent/x.log") && said.contains("Logger.file.filepath"), "{said}");
}

fn azure_with(args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    azure(directory.path()).args(args).output().unwrap()
}

/// Answers one request with `body`, and hands back what was asked.
fn answer_once(status: &'static str, body: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let asked = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(&stream);
        let mut head = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
            head += &line;
        }
        let mut content = vec![0; length];
        reader.read_exact(&mut content).unwrap();
        write!(
            &stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        format!("{}\n{}", head.lines().next().unwrap_or_default(), String::from_utf8_lossy(&content))
    });
    (port, asked)
}

fn debug(port: &str, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    azure(directory.path()).env("CNSIpAddress", "127.0.0.1").env("CNSPort", port).args(args).output().unwrap()
}

/// rest-contract §6.24, and an address that nobody has; the order is not that of the texts.
const ADDRESSES: &str = r#"{"IPConfigurationStatus":[
{"state":"Assigned","ID":"0c6f4c8e-1c5d-4c83-9d5c-bd2b8c1a3f10","IPAddress":"10.240.0.17","LastStateTransition":"2026-01-02T03:04:05.678901234Z","NCID":"5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11","PodInfo":{"podName":"web-0","podNamespace":"default","PodInfraContainerID":"1f2e3d4c5b6a7988","PodInterfaceID":"1f2e3d4c-eth0","Version":1,"SecondaryInterfaceSet":false}},
{"state":"Assigned","ID":"b","IPAddress":"10.240.0.9","LastStateTransition":"2026-01-02T03:04:05+01:00","NCID":"n","PodInfo":{"podName":"p","podNamespace":"ns","PodInfraContainerID":"c2","PodInterfaceID":"i2","Version":2,"SecondaryInterfaceSet":false}},
{"state":"Available","ID":"a","IPAddress":"10.240.0.10","LastStateTransition":"0001-01-01T00:00:00Z","NCID":"n","PodInfo":null}
],"Response":{"ReturnCode":0,"Message":""}}"#;

#[test]
fn debugcmd_get_prints_the_reference_s_lines() {
    let (port, asked) = answer_once("200 OK", ADDRESSES);
    let output = debug(&port, &["-debugcmd", "get", "-debugarg", "Assigned"]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert_eq!(
        asked.join().unwrap(),
        "POST /debug/ipaddresses HTTP/1.1\n{\"IPConfigStateFilter\":[\"Assigned\"]}"
    );
    let expected = "\
ID: [a], NCID: [n], IPAddress: [10.240.0.10], State: [Available], LastStateTransition: [0001-01-01T00:00:00Z] PodInfo: [%!s(<nil>)]
ID: [0c6f4c8e-1c5d-4c83-9d5c-bd2b8c1a3f10], NCID: [5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11], IPAddress: [10.240.0.17], State: [Assigned], LastStateTransition: [2026-01-02T03:04:05Z] PodInfo: [InfraContainerID: [1f2e3d4c5b6a7988], InterfaceID: [1f2e3d4c-eth0], Key: [1f2e3d4c-eth0], Name: [web-0], Namespace: [default]]
ID: [b], NCID: [n], IPAddress: [10.240.0.9], State: [Assigned], LastStateTransition: [2026-01-02T03:04:05+01:00] PodInfo: [InfraContainerID: [c2], InterfaceID: [i2], Key: [c2], Name: [p], Namespace: [ns]]
";
    assert_eq!(stdout(&output), expected);
    // Any other word is all of them; the command's case does not matter, the argument's does.
    for argument in [&["-cmd=GET"][..], &["-debugcmd", "Get", "-darg", "assigned"]] {
        let (port, asked) = answer_once("200 OK", r#"{"IPConfigurationStatus":[]}"#);
        assert_eq!(stdout(&debug(&port, argument)), "");
        let all = r#"{"IPConfigStateFilter":["Available","Assigned","PendingProgramming","PendingRelease"]}"#;
        assert!(asked.join().unwrap().ends_with(all));
    }
}

#[test]
fn debugcmd_prints_contexts_and_memory() {
    let body = r#"{"PodContext":{"1f2e3d4c-eth0":["a","b"],"2-eth0":["c"]},"Response":{"ReturnCode":0,"Message":""}}"#;
    let (port, asked) = answer_once("200 OK", body);
    let output = debug(&port, &["--debugcmd=getPodContexts"]);
    assert!(asked.join().unwrap().starts_with("GET /debug/podcontext HTTP/1.1"));
    assert_eq!(stdout(&output), "1 1f2e3d4c-eth0 : [a b]\n2 2-eth0 : [c]\n");
    let body = r#"{"HTTPRestServiceData":{"PodIPIDByPodInterfaceKey":{"k":["a"]},"PodIPConfigState":{"a":
        {"state":"Available","ID":"a","IPAddress":"10.0.0.1","LastStateTransition":"2026-01-02T03:04:05Z","NCID":"n","PodInfo":null}}},
        "Response":{"ReturnCode":0,"Message":""}}"#;
    let (port, asked) = answer_once("200 OK", body);
    let output = debug(&port, &["-cmd", "getinmemory"]);
    assert!(asked.join().unwrap().starts_with("GET /debug/restdata HTTP/1.1"));
    assert_eq!(
        stdout(&output),
        "PodIPIDByOrchestratorContext: map[k:[a]]\n\
         PodIPConfigState: map[a:ID: [a], NCID: [n], IPAddress: [10.0.0.1], State: [Available], \
         LastStateTransition: [2026-01-02T03:04:05Z] PodInfo: [%!s(<nil>)]]\n"
    );
}

#[test]
fn debugcmd_tells_its_failures_on_standard_output() {
    for (status, body, expected) in [
        ("500 Internal Server Error", "oops", "500 Internal Server Error"),
        ("200 OK", "oops", "the answer is not understood"),
        ("400 Bad Request", r#"{"Response":{"ReturnCode":99,"Message":"no"}}"#, "return code 99: no"),
    ] {
        let (port, asked) = answer_once(status, body);
        let output = debug(&port, &["-debugcmd", "get"]);
        asked.join().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stdout(&output).contains(expected), "{}", stdout(&output));
    }
    let output = debug("1", &["-debugcmd", "put"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).starts_with("No debug cmd supplied, options are: get"), "{}", stdout(&output));
    let output = ours().args(["-debugcmd", "get"]).output().unwrap();
    assert!(stdout(&output).contains("CNSIpAddress is not set"), "{}", stdout(&output));
}

#[test]
fn debugcmd_does_not_wait_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let output = debug(&port, &["-debugcmd", "get"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("no answer within 5 s"), "{}", stdout(&output));
}
