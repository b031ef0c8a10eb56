//! What needs no daemon, and what is said when there is none.

use std::{fs, path::Path, process::Stdio};

use crate::fixture::{cnsctl, plugin_in, ran};

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let help = ran(&mut cnsctl(["--help"])).succeeds();
    for word in [
        "status",
        "ip",
        "nc",
        "endpoint",
        "explain",
        "watch",
        "doctor",
        "migrate",
        "cni",
        "completion",
        "CNS_SOCKET",
        "Exit codes:",
    ] {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
}

#[test]
fn a_wrong_command_line_is_code_2() {
    for line in [
        &["ip", "list", "--state", "free"][..],
        &["ip", "request", "--pod", "a/b"],
        &["ip", "request", "--container-id", "c1", "--pod", "a"],
        &["nc", "get", "not-a-uuid"],
        &["-o", "xml", "status"],
        &["frobnicate"],
        &[],
    ] {
        let ran = ran(&mut cnsctl(line)).exits(2);
        assert_eq!(ran.out, "", "{line:?}");
    }
}

#[test]
fn without_a_daemon_every_command_is_code_3_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("absent.sock");
    let file = dir.path().join("nc.yaml");
    fs::write(&file, "id: 5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11\ntype: Docker\n").unwrap();
    let file = file.to_str().unwrap();
    for line in [
        &["status"][..],
        &["ip", "list"],
        &["ip", "request", "--container-id", "c1", "--pod", "a/b"],
        &["ip", "release", "--container-id", "c1", "--pod", "a/b"],
        &["nc", "list"],
        &["nc", "get", "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11"],
        &["nc", "create", "-f", file],
        &["nc", "delete", "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11"],
        &["endpoint", "list"],
        &["endpoint", "get", "c1"],
        &["explain", "10.0.0.1"],
        &["watch"],
        &["doctor"],
        &["migrate", "export", "--dir", "/nonexistent"],
    ] {
        for output in ["table", "json", "yaml"] {
            let told = ran(cnsctl(line).args(["-o", output, "--timeout", "0.5"]).env("CNS_SOCKET", &socket))
                .fails(3);
            assert!(told.contains(socket.to_str().unwrap()) && told.contains("--socket"), "{line:?}: {told}");
        }
    }
}

#[test]
fn completion_scripts_know_the_commands_and_survive_a_closed_pipe() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ran(&mut cnsctl(["completion", shell])).succeeds();
        assert!(script.contains("explain"), "{shell}");
    }
    let mut child =
        cnsctl(["completion", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn the_plugin_is_installed_once_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, conf) = (dir.path().join("bin"), dir.path().join("net.d"));
    let plugin = plugin_in(dir.path());
    let cni = |verb: &str, output: &str| {
        let mut command = cnsctl(["cni", verb, "-o", output, "--socket", "/run/some/cns.sock"]);
        command.arg("--bin-dir").arg(&bin).arg("--conf-dir").arg(&conf);
        if verb == "install" {
            command.arg("--plugin").arg(&plugin).args(["--network-name", "pods"]);
        }
        ran(&mut command)
    };
    let (binary, list) = (bin.join("cns-cni"), conf.join("10-cns.conflist"));
    assert_eq!(
        cni("install", "table").succeeds(),
        format!("RESULT\tFILE\ncreated\t{}\ncreated\t{}\n", binary.display(), list.display())
    );
    let again: serde_json::Value = serde_json::from_str(&cni("install", "json").succeeds()).unwrap();
    assert_eq!(again["files"][0]["result"], "unchanged");
    assert_eq!(again["files"][1]["path"], list.to_str().unwrap());
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    assert_eq!(written["name"], "pods");
    assert_eq!(written["plugins"][0]["socket"], "/run/some/cns.sock");

    fs::write(&list, "{}").unwrap();
    let told = cni("uninstall", "table").fails(1);
    assert!(told.contains("10-cns.conflist exists and is not ours") && told.contains("--force"), "{told}");
    fs::remove_file(&list).unwrap();
    let removed = cni("uninstall", "yaml").succeeds();
    assert!(removed.contains("result: removed") && removed.contains("result: absent"), "{removed}");
    assert!(!binary.exists());
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = plugin_in(dir.path());
    let told = ran(cnsctl(["cni", "install", "--bin-dir", "/proc/nope", "--conf-dir"])
        .arg(dir.path())
        .arg("--plugin")
        .arg(plugin))
    .fails(1);
    assert!(told.contains("/proc/nope"), "{told}");
    let told = ran(cnsctl(["cni", "install", "--plugin", "/nonexistent/cns-cni", "--bin-dir"])
        .arg(dir.path())
        .arg("--conf-dir")
        .arg(dir.path()))
    .fails(1);
    assert!(told.contains("/nonexistent/cns-cni") && told.contains("--plugin"), "{told}");
    assert!(!Path::new("/proc/nope").exists());
}
