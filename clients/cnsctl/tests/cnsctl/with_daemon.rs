//! Against the real daemon: what an operator does, in every form of output.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::fixture::{Ran, cnsctl, ran, ran_with_input};

/// The real daemon on a directory of its own. It is killed with this value.
struct Daemon {
    dir: tempfile::TempDir,
    process: Child,
}

impl Daemon {
    /// Starts one with these networks and waits until it serves.
    fn start(cidr: &str) -> Self {
        let binary = std::path::Path::new(env!("CARGO_BIN_EXE_cnsctl")).with_file_name("cns");
        assert!(binary.exists(), "{} is missing: run `cargo build` first", binary.display());
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new(binary)
            .args(["--standalone-cidr", cidr, "--masquerade=false", "--state-dir"])
            .arg(dir.path().join("state"))
            .arg("--grpc-socket")
            .arg(dir.path().join("cns.sock"))
            .arg("--async-delete-dir")
            .arg(dir.path().join("deleteIDs"))
            .args(["--log-level", "warn"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut daemon = Self { dir, process };
        let begun = Instant::now();
        while daemon.run(&["status"]).code == Some(3) {
            assert!(daemon.process.try_wait().unwrap().is_none(), "the daemon ended");
            assert!(begun.elapsed() < Duration::from_mins(1), "the daemon does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = cnsctl(["--socket"]);
        command.arg(self.dir.path().join("cns.sock")).args(line);
        command
    }

    fn run(&self, line: &[&str]) -> Ran {
        ran(&mut self.command(line))
    }

    #[track_caller]
    fn json(&self, line: &[&str]) -> Value {
        let text = ran(self.command(line).args(["-o", "json"])).succeeds();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// Requests addresses for a container of pod `default/POD`.
    #[track_caller]
    fn request(&self, container: &str, pod: &str) -> Vec<String> {
        let pod = format!("default/{pod}");
        let answer = self.json(&["ip", "request", "--container-id", container, "--pod", &pod]);
        let infos = answer["podIpInfos"].as_array().unwrap();
        infos.iter().map(|info| info["podIpConfig"]["ipAddress"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const DUAL: &str = "10.244.0.0/28,fd00:10:244::/124";

const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

#[test]
fn addresses_are_requested_listed_explained_and_released() {
    let daemon = Daemon::start(DUAL);
    let given = daemon.request("c1", "web-0");
    assert_eq!(given.len(), 2, "{given:?}");
    assert_eq!(daemon.request("c1", "web-0"), given, "asking again gives the same");

    let listed = daemon.json(&["ip", "list", "--state", "assigned", "--pod", "default/web-0"]);
    let listed = listed["ipConfigs"].as_array().unwrap().clone();
    assert_eq!(listed.iter().map(|ip| ip["ipAddress"].as_str().unwrap()).collect::<Vec<_>>(), given);
    for ip in &listed {
        assert_eq!(ip["state"], "Assigned");
        assert_eq!(ip["owner"]["pod"], json!({"namespace": "default", "name": "web-0"}));
        assert_eq!(ip["owner"]["infraContainerId"], "c1");
    }
    let table = daemon.run(&["ip", "list", "--state", "assigned"]).succeeds();
    let row: Vec<_> = table.lines().nth(1).unwrap().split('\t').collect();
    assert_eq!(row[..5], [given[0].as_str(), "Assigned", "default/web-0", "c1", "eth0"], "{table}");

    assert_eq!(daemon.json(&["endpoint", "get", "c1"])["containerId"], "c1");
    for subject in [given[0].as_str(), given[1].as_str(), "default/web-0", "c1"] {
        let biography = daemon.json(&["explain", subject]);
        let operations: Vec<_> = biography["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["operation"].as_str().unwrap())
            .collect();
        assert!(operations.contains(&"RequestIPConfigs"), "{subject}: {operations:?}");
        let told = daemon.run(&["explain", subject]).succeeds();
        assert!(told.contains("c1") && told.contains("History, newest last"), "{subject}: {told}");
    }

    let release = ["ip", "release", "--container-id", "c1", "--pod", "default/web-0"];
    let released = daemon.json(&release);
    assert_eq!(released, json!({"outcome": "Released", "releasedIpAddresses": given}));
    assert_eq!(daemon.json(&release)["outcome"], "NothingHeld");
    assert_eq!(daemon.run(&release).succeeds(), "nothing was held\n");
    assert_eq!(daemon.run(&["ip", "list", "--state", "assigned"]).succeeds().lines().count(), 1);
    daemon.run(&["endpoint", "get", "c1"]).fails(4);
    let story = daemon.run(&["explain", &given[0]]).succeeds();
    let (asked, freed) = (story.find("RequestIPConfigs"), story.find("ReleaseIPConfigs"));
    assert!(asked.is_some() && asked < freed, "oldest first: {story}");
}

#[test]
fn every_command_prints_in_every_form() {
    let daemon = Daemon::start(DUAL);
    let address = daemon.request("c1", "web-0").remove(0);
    let nc = daemon.json(&["nc", "list"])["networkContainers"][0]["id"].as_str().unwrap().to_owned();
    for line in [
        &["status"][..],
        &["ip", "list"],
        &["ip", "list", "--nc", &nc],
        &["ip", "request", "--container-id", "c1", "--pod", "default/web-0"],
        &["nc", "list"],
        &["nc", "get", &nc],
        &["endpoint", "list"],
        &["endpoint", "get", "c1"],
        &["explain", &address],
        &["doctor"],
        &["ip", "release", "--container-id", "c1", "--pod", "default/web-0"],
    ] {
        let table = daemon.run(line).succeeds();
        assert!(!table.trim().is_empty(), "{line:?}");
        let json = ran(daemon.command(line).args(["-o", "json"])).succeeds();
        let json: Value = serde_json::from_str(&json).unwrap();
        assert!(json.is_object(), "{line:?}");
        let yaml = ran(daemon.command(line).args(["-o", "yaml"])).succeeds();
        let first = json.as_object().unwrap().keys().next().unwrap();
        assert!(yaml.contains(&format!("{first}:")), "{line:?}: {yaml}");
    }
}

#[test]
fn status_shows_the_pool_and_doctor_finds_nothing_wrong() {
    let daemon = Daemon::start(DUAL);
    daemon.request("c1", "web-0");
    let status = daemon.json(&["status"]);
    assert_eq!(status["healthy"], true, "{status}");
    assert_eq!(status["channelMode"], "Standalone");
    assert_eq!(status["ipCounts"]["assigned"], 2);
    let families: Vec<_> =
        status["pools"].as_array().unwrap().iter().map(|pool| pool["family"].clone()).collect();
    assert_eq!(families, ["IPv4", "IPv6"]);
    let told = daemon.run(&["status"]).succeeds();
    assert!(told.contains("health: healthy") && told.contains("mode: Standalone"), "{told}");
    assert!(daemon.run(&["doctor"]).succeeds().contains("nothing is wrong"));
}

#[test]
fn a_pool_that_is_used_up_is_refused_and_reported() {
    let daemon = Daemon::start("10.244.0.0/30");
    let free = daemon.json(&["ip", "list", "--state", "available"])["ipConfigs"].as_array().unwrap().len();
    for number in 0..free {
        daemon.request(&format!("c{number}"), &format!("web-{number}"));
    }
    let refused = daemon.run(&["ip", "request", "--container-id", "late", "--pod", "default/late"]).fails(1);
    assert!(refused.contains("return code 32") && refused.contains("try again in"), "{refused}");
    let status = daemon.run(&["status"]).exits(5).out;
    assert!(status.contains("no IPv4 address is free"), "{status}");
    daemon.run(&["doctor"]).exits(5);
    let why = daemon.run(&["explain", "default/late"]).succeeds();
    assert!(why.contains("refused"), "{why}");
}

#[test]
fn a_desired_address_is_given_or_refused_with_its_owner() {
    let daemon = Daemon::start("10.244.0.0/28");
    let want = |container: &str, address: &str| {
        daemon.run(&[
            "ip",
            "request",
            "--container-id",
            container,
            "--pod",
            "default/x",
            "--desired",
            address,
        ])
    };
    assert!(want("c1", "10.244.0.9").succeeds().contains("10.244.0.9/28"));
    let taken = want("c2", "10.244.0.9").fails(1);
    assert!(taken.contains("10.244.0.9") && taken.contains("already assigned"), "{taken}");
    let unknown = want("c3", "192.0.2.1").fails(1);
    assert!(unknown.contains("192.0.2.1"), "{unknown}");
}

#[test]
fn a_network_container_is_created_from_a_file_changed_and_deleted() {
    let daemon = Daemon::start("10.244.0.0/28");
    let create = |text: &str| ran_with_input(&mut daemon.command(&["nc", "create", "-f", "-"]), text);
    let yaml = format!(
        "id: {NC}\ntype: Docker\nversion: 0\nipConfiguration:\n  ipSubnet: {{ipAddress: 10.99.0.1, prefixLength: 24}}\n  \
         gatewayIpAddress: 10.99.0.1\nsecondaryIpConfigs:\n  a1: {{ipAddress: 10.99.0.5}}\n"
    );
    assert_eq!(create(&yaml).succeeds(), format!("created network container {NC}\n"));
    assert_eq!(create(&yaml).succeeds(), format!("updated network container {NC}\n"));
    let listed = daemon.json(&["ip", "list", "--nc", NC]);
    assert_eq!(listed["ipConfigs"][0]["ipAddress"], "10.99.0.5");
    let printed = ran(daemon.command(&["nc", "get", NC]).args(["-o", "yaml"])).succeeds();
    assert_eq!(create(&printed).succeeds(), format!("updated network container {NC}\n"), "{printed}");

    assert!(create("id: 12\n").fails(2).contains("standard input"));
    assert!(create(&yaml.replace("Docker", "Dockr")).fails(2).contains("Dockr"));
    assert!(create(&yaml.replace("10.99.0.5", "10.99.0.500")).fails(1).contains("10.99.0.500"));
    let broken = daemon.dir.path().join("absent.yaml");
    daemon.run(&["nc", "create", "-f", broken.to_str().unwrap()]).fails(2);

    assert_eq!(daemon.run(&["nc", "delete", NC]).succeeds(), format!("deleted network container {NC}\n"));
    daemon.run(&["nc", "delete", NC]).fails(4);
    daemon.run(&["nc", "get", NC]).fails(4);
}

#[test]
fn what_nobody_knows_is_code_4() {
    let daemon = Daemon::start("10.244.0.0/28");
    for line in
        [&["explain", "192.0.2.1"][..], &["explain", "a/b"], &["explain", "c1"], &["endpoint", "get", "c1"]]
    {
        daemon.run(line).fails(4);
    }
    daemon.run(&["explain", "not a subject"]).fails(2);
}

#[test]
fn a_reader_that_goes_early_is_no_failure() {
    let daemon = Daemon::start("10.244.0.0/20");
    for output in ["table", "json", "yaml"] {
        let mut child = daemon
            .command(&["ip", "list", "-o", output])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), b"".as_slice()), "{output}");
    }
}

#[test]
fn watch_shows_a_request_as_it_happens() {
    let daemon = Daemon::start("10.244.0.0/28");
    let mut child = daemon
        .command(&["watch", "--after", "0", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut next = |wanted: &str| loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "{wanted} was not shown");
        let event: Value = serde_json::from_str(&line).unwrap();
        if event["operation"] == wanted {
            return event;
        }
    };
    // What was there before, then what comes.
    next("UpsertNc");
    let given = daemon.request("c1", "web-0");
    let event = next("RequestIPConfigs");
    assert_eq!(event["ipAddresses"], json!(given));
    assert_eq!(event["changes"][0]["ip"]["to"], "Assigned", "{event}");
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn state_moves_to_legacy_files_and_back() {
    let (from, to) = (Daemon::start("10.244.0.0/28"), Daemon::start("10.244.0.0/28"));
    let given = from.request("c1", "web-0");
    let files = from.dir.path().join("legacy");
    let dir = files.to_str().unwrap();
    let written = from.run(&["migrate", "export", "--dir", dir]).succeeds();
    assert!(written.contains("azure-cns.json") && written.contains("azure-endpoints.json"), "{written}");
    let imported = to.json(&["migrate", "import", "--dir", dir]);
    assert_eq!(imported["endpoints"], 1, "{imported}");
    let there = to.json(&["ip", "list", "--state", "assigned"]);
    assert_eq!(there["ipConfigs"][0]["ipAddress"], given[0].as_str(), "{imported} {there}");
    let empty = tempfile::tempdir().unwrap();
    to.run(&["migrate", "import", "--dir", empty.path().to_str().unwrap()]).fails(4);
}

#[test]
fn a_bundle_tells_the_whole_state() {
    let daemon = Daemon::start("10.244.0.0/28");
    daemon.request("c1", "web-0");
    let dir = daemon.dir.path().join("case");
    daemon.run(&["bundle", "--dir", dir.to_str().unwrap()]).succeeds();
    let endpoints = std::fs::read_to_string(dir.join("endpoints.jsonl")).unwrap();
    assert!(endpoints.contains("web-0"), "{endpoints}");
}
