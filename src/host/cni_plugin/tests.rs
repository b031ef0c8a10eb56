use std::{fs, os::unix::fs::PermissionsExt as _};

use tempfile::TempDir;

use super::*;

/// A directory with a list and a plugin, a shell script.
struct Machine(TempDir);

impl Machine {
    fn new(list: &str, script: &str) -> Self {
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("10-azure.conflist"), list).unwrap();
        let program = directory.path().join("azure-vnet");
        fs::write(&program, format!("#!/bin/sh\ncd {}\n{script}", directory.path().display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self(directory)
    }

    fn with(script: &str) -> Self {
        Self::new(LIST, script)
    }

    fn plugin(&self) -> CniPlugin {
        // The first directory has no such plugin.
        let path = format!("/nonexistent::{}", self.0.path().display()).into();
        CniPlugin { path, list: self.0.path().join("10-azure.conflist") }
    }

    async fn update(&self) -> Result<(), CniPluginError> {
        self.plugin().update(&nc(), &PodIdentity::new("default", "web-0").unwrap()).await
    }

    async fn refusal(&self) -> String {
        self.update().await.unwrap_err().to_string()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).unwrap()
    }
}

const LIST: &str = r#"{"cniVersion":"0.3.0","name":"azure","plugins":[
    {"type":"azure-vnet","mode":"bridge","ipam":{"type":"azure-cns"}},{"type":"portmap"}]}"#;

fn nc() -> NcId {
    "Swift_5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11".parse().unwrap()
}

#[tokio::test]
async fn the_first_plugin_of_the_list_is_run_as_libcni_runs_one() {
    let machine = Machine::with("env | grep ^CNI_ | sort > env; cat > stdin; echo '{}'");
    machine.update().await.unwrap();
    let expected = format!(
        "CNI_ARGS=K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0\nCNI_COMMAND=UPDATE\nCNI_CONTAINERID=\n\
         CNI_IFNAME={}\nCNI_NETNS=\nCNI_PATH=/nonexistent::{}\n",
        nc(),
        machine.0.path().display()
    );
    assert_eq!(machine.read("env"), expected);
    let config: Value = serde_json::from_str(&machine.read("stdin")).unwrap();
    let expected = serde_json::json!({
        "cniVersion": "0.3.0", "name": "azure", "type": "azure-vnet", "mode": "bridge", "ipam": {"type": "azure-cns"}
    });
    assert_eq!(config, expected);
}

#[tokio::test]
async fn a_failure_is_told_in_the_plugins_words() {
    let failing = [
        (r#"echo '{"code":100,"msg":"no such pod","details":"web-0"}'; exit 1"#, "no such pod: web-0"),
        ("echo begin >&2; echo 'the end' >&2; echo; exit 3", "exit status: 3: the end"),
        ("exit 1", "it said nothing"),
        ("kill -9 $$", "signal: 9"),
        // More than a pipe holds, on both, unread on the other side.
        ("cat /dev/zero | head -c 3000000 >&2; cat /dev/zero | head -c 3000000; echo; exit 1", "failed with"),
    ];
    for (script, expected) in failing {
        let said = Machine::with(script).refusal().await;
        assert!(said.contains("azure-vnet failed with") && said.contains(expected), "{script}: {said}");
        assert!(said.len() < 1_000, "{script}");
    }
}

/// It may not read what it is given.
#[tokio::test]
async fn a_plugin_that_reads_nothing_is_no_failure() {
    let long = format!(
        r#"{{"cniVersion":"0.3.0","name":"azure","plugins":[{{"type":"azure-vnet","x":"{}"}}]}}"#,
        "x".repeat(500_000)
    );
    Machine::new(&long, "exit 0").update().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_run_is_named() {
    let refused = [
        ("{", "cannot be used: EOF"),
        (r#"{"plugins":[]}"#, "`plugins` is empty or missing"),
        (r#"{"type":"azure-vnet"}"#, "`plugins` is empty or missing"),
        (r#"{"plugins":[{"mode":"bridge"}]}"#, "has no `type`"),
        (r#"{"plugins":[{"type":7}]}"#, "is 7, a file's name is expected"),
        (r#"{"plugins":[{"type":"../bin/sh"}]}"#, "\"../bin/sh\", a file's name"),
        (r#"{"plugins":[{"type":".."}]}"#, "a file's name"),
        (r#"{"plugins":[{"type":"azure-vnot"}]}"#, "`azure-vnot` is in none of /nonexistent::"),
    ];
    for (list, expected) in refused {
        let said = Machine::new(list, "touch ran").refusal().await;
        assert!(said.contains(expected), "{list}: {said}");
    }
    let machine = Machine::with("touch ran");
    fs::remove_file(machine.0.path().join("10-azure.conflist")).unwrap();
    let said = machine.refusal().await;
    assert!(said.contains("cannot be read") && said.contains("--net-plugin-config-file"), "{said}");
    let machine = Machine::with("touch ran");
    fs::set_permissions(machine.0.path().join("azure-vnet"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(machine.refusal().await.contains("cannot be run: Permission denied"));
}

/// A pod's names come from outside; the plugin must not take them for arguments.
#[tokio::test]
async fn names_cannot_smuggle_arguments() {
    let machine = Machine::with("touch ran");
    for (namespace, name) in [("default;CNI_X=1", "web-0"), ("default", "web-0;K8S_POD_NAME=other")] {
        let pod = PodIdentity::new(namespace, name).unwrap();
        let refused = machine.plugin().update(&nc(), &pod).await.unwrap_err();
        assert!(matches!(refused, CniPluginError::Pod(_)), "{refused}");
    }
    assert!(!machine.0.path().join("ran").exists());
}

/// Who waits no longer leaves no plugin behind.
#[tokio::test]
async fn a_plugin_that_nobody_waits_for_is_killed() {
    let machine = Machine::with("echo $$ > pid; exec sleep 1000");
    let waiting = tokio::spawn({
        let plugin = machine.plugin();
        async move { plugin.update(&nc(), &PodIdentity::new("default", "web-0").unwrap()).await }
    });
    let pid = loop {
        match fs::read_to_string(machine.0.path().join("pid")) {
            Ok(pid) if pid.ends_with('\n') => break pid.trim().to_owned(),
            _ => sleep(Duration::from_millis(10)).await,
        }
    };
    waiting.abort();
    // Reaped too: a zombie would still be there.
    while Path::new("/proc").join(&pid).exists() {
        sleep(Duration::from_millis(10)).await;
    }
}
