//! Network containers of Azure Container Instances: the machine's CNI plugin is told before a changed one is recorded
//! (spec/network-containers.md §2, §14). The plugin is a script that writes down what it was told.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use cns::proto::v1 as pb;
use serde_json::{Value, json};
use tonic_types::StatusExt as _;

use super::{
    cns_under_test::until,
    node::{NC1, Node, nc, nc_id},
};

struct Plugin(PathBuf);

impl Plugin {
    /// Of this node, from its next start on.
    fn of(node: &mut Node) -> Self {
        let directory = node.cns.directory().join("cni");
        fs::create_dir(&directory).unwrap();
        let list = directory.join("10-azure.conflist");
        fs::write(&list, r#"{"cniVersion":"0.3.0","name":"azure","plugins":[{"type":"azure-vnet"}]}"#)
            .unwrap();
        let script = format!(
            "#!/bin/sh\ncd {}\necho \"$CNI_COMMAND $CNI_IFNAME $CNI_ARGS\" >> runs\n\
             while [ -e hold ]; do sleep 0.05; done\n\
             if [ -e fail ]; then echo '{{\"code\":100,\"msg\":\"no such pod\"}}'; exit 1; fi\n",
            directory.display()
        );
        let program = directory.join("azure-vnet");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let (path, list) = (directory.to_str().unwrap(), list.to_str().unwrap());
        node.cns.add_args(&["-np", path, "-npconfig", list]);
        Self(directory)
    }

    /// What it was told so far.
    fn runs(&self) -> Vec<String> {
        let runs = fs::read_to_string(self.0.join("runs")).unwrap_or_default();
        runs.lines().map(ToOwned::to_owned).collect()
    }

    /// Lets it fail, or wait.
    fn set(&self, what: &str, so: bool) {
        let path = self.0.join(what);
        if so { fs::write(path, "").unwrap() } else { fs::remove_file(path).unwrap() }
    }
}

/// A node to which DNC pushes.
async fn direct() -> (Node, Plugin) {
    let mut node = Node::prepared(json!({"ChannelMode": "Direct"})).await;
    let plugin = Plugin::of(&mut node);
    node.launch().await;
    let orchestrator = json!({"OrchestratorType": "Kubernetes", "DncPartitionKey": "p", "NodeID": "node-1"});
    assert_eq!(node.post("/network/setorchestratortype", &orchestrator).await["ReturnCode"], 0);
    (node, plugin)
}

fn of_aci(version: &str) -> Value {
    let mut definition = nc(1, version);
    definition["NetworkContainerid"] = json!(format!("Swift_{NC1}"));
    definition["NetworkContainerType"] = json!("AzureContainerInstance");
    definition
}

/// The outcome of a push over REST.
async fn push(node: &Node, definition: &Value) -> (i64, String) {
    let answer = node.post("/network/createorupdatenetworkcontainer", definition).await;
    let response = &answer["Response"];
    (response["ReturnCode"].as_i64().unwrap(), response["Message"].as_str().unwrap().to_owned())
}

async fn versions(node: &Node) -> Vec<String> {
    node.ncs().await.into_iter().map(|nc| nc.version).collect()
}

const DONE: (i64, String) = (0, String::new());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_t3_the_cni_is_told_of_another_version_before_it_is_recorded() {
    let (node, plugin) = direct().await;
    assert_eq!(push(&node, &of_aci("1")).await, DONE);
    assert_eq!(push(&node, &of_aci("1")).await, DONE);
    assert_eq!(plugin.runs(), Vec::<String>::new(), "T1: neither a new one nor the same again");

    plugin.set("fail", true);
    let (code, message) = push(&node, &of_aci("2")).await;
    assert_eq!(code, 99, "{message}");
    assert!(message.starts_with("CreateOrUpdateNetworkContainer failed"), "{message}");
    assert!(message.contains("/cni/azure-vnet failed with exit status: 1: no such pod"), "{message}");
    assert_eq!(versions(&node).await, ["1"], "it is as it was");
    plugin.set("fail", false);

    plugin.set("hold", true);
    let second = of_aci("2");
    let (done, ()) = tokio::join!(push(&node, &second), async {
        until("the plugin runs", || async { plugin.runs().len() == 2 }).await;
        assert_eq!(versions(&node).await, ["1"], "nothing is recorded before");
        plugin.set("hold", false);
    });
    assert_eq!((done, versions(&node).await), (DONE, vec!["2".to_owned()]));
    let told = format!("UPDATE Swift_{NC1} K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-1");
    assert_eq!(plugin.runs(), [told.as_str(); 2]);

    // Over gRPC, too. Many at once are recorded without it, as is what belongs to nobody.
    let read = |definition: Value| pb::NetworkContainer {
        id: definition["NetworkContainerid"].as_str().unwrap().into(),
        version: definition["Version"].as_str().unwrap().into(),
        r#type: pb::NetworkContainerType::AzureContainerInstance.into(),
        orchestrator_context: Some(pb::PodIdentity { namespace: "default".into(), name: "web-1".into() }),
        ..Default::default()
    };
    let request = pb::CreateOrUpdateNetworkContainerRequest { network_container: Some(read(of_aci("3"))) };
    node.cns.ncs().await.create_or_update_network_container(request.clone()).await.unwrap();
    assert_eq!((plugin.runs().len(), versions(&node).await), (3, vec!["3".to_owned()]));
    let many =
        pb::BatchCreateOrUpdateNetworkContainersRequest { network_containers: vec![read(of_aci("4"))] };
    node.cns.ncs().await.batch_create_or_update_network_containers(many).await.unwrap();
    for version in ["1", "2"] {
        assert_eq!(push(&node, &nc(2, version)).await, DONE, "another type");
    }
    assert_eq!(plugin.runs().len(), 3);
    plugin.set("fail", true);
    let refused = node.cns.ncs().await.create_or_update_network_container(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("no such pod"), "{}", refused.message());
    let details = refused.get_error_details();
    assert_eq!(details.error_info().unwrap().metadata["detail"], "CNI_UPDATE_FAILED");
    assert!(node.cns.log().contains("the CNI plugin did not take a changed network container"));
    node.cns.assert_sound().await;
}

/// A kill while the plugin runs loses nothing, and the next push does it all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t3_a_kill_in_the_middle_leaves_the_former_version() {
    let (mut node, plugin) = direct().await;
    assert_eq!(push(&node, &of_aci("1")).await, DONE);
    plugin.set("hold", true);
    let request = pb::CreateOrUpdateNetworkContainerRequest {
        network_container: Some(pb::NetworkContainer {
            id: format!("Swift_{NC1}"),
            version: "2".into(),
            r#type: pb::NetworkContainerType::AzureContainerInstance.into(),
            orchestrator_context: Some(pb::PodIdentity { namespace: "default".into(), name: "web-1".into() }),
            ..Default::default()
        }),
    };
    let mut ncs = node.cns.ncs().await;
    let pushed = tokio::spawn(async move { ncs.create_or_update_network_container(request).await });
    until("the plugin runs", || async { plugin.runs().len() == 1 }).await;
    node.cns.kill9();
    pushed.await.unwrap().unwrap_err();
    plugin.set("hold", false);
    node.launch().await;
    assert_eq!(versions(&node).await, ["1"]);
    assert_eq!(push(&node, &of_aci("2")).await, DONE);
    assert_eq!((plugin.runs().len(), versions(&node).await), (2, vec!["2".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t3_a_plugin_that_hangs_holds_up_nobody_else_and_is_killed() {
    let (node, plugin) = direct().await;
    assert_eq!(push(&node, &of_aci("1")).await, DONE);
    plugin.set("hold", true);
    let second = of_aci("2");
    let (late, ()) = tokio::join!(push(&node, &second), async {
        until("the plugin runs", || async { plugin.runs().len() == 1 }).await;
        for n in 2..10 {
            assert_eq!(push(&node, &nc(n, "1")).await, DONE);
        }
        assert!(is_running(&plugin.0));
    });
    assert!(late.0 == 99 && late.1.contains("did not end within 8 s"), "{late:?}");
    until("it is killed", || async { !is_running(&plugin.0) }).await;
    assert!(versions(&node).await.contains(&"1".to_owned()));
}

fn is_running(directory: &Path) -> bool {
    let program = directory.join("azure-vnet");
    let program = program.to_str().unwrap().as_bytes();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|argument| argument == program))
}

/// What DNC lists is announced as what it pushes; a failure is told once and tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t3_dnc_s_list_is_announced_too() {
    let mut node = Node::managed().await;
    let plugin = Plugin::of(&mut node);
    let listed = |version: &str| {
        let mut aci = nc(1, version);
        aci["NetworkContainerType"] = json!("AzureContainerInstance");
        vec![aci, nc(2, version)]
    };
    node.agents.world(|world| world.dnc_ncs = listed("9"));
    node.launch_and_wait().await;
    until("both are there", || async { versions(&node).await == ["9", "9"] }).await;
    plugin.set("fail", true);
    node.agents.world(|world| world.dnc_ncs = listed("10"));
    until("it is tried again", || async { plugin.runs().len() == 2 }).await;
    assert_eq!(versions(&node).await, ["9", "10"], "the other one is not held up");
    plugin.set("fail", false);
    until("both are new", || async { versions(&node).await == ["10", "10"] }).await;
    let runs = plugin.runs();
    node.asked("/networkcontainers", 2).await;
    assert_eq!(plugin.runs(), runs, "once it is recorded there is nothing to tell");
    assert!(runs[0].starts_with(&format!("UPDATE {} ", nc_id(1))), "{runs:?}");
    let log = node.cns.log();
    assert_eq!(log.matches("a network container that DNC lists cannot be taken").count(), 1, "{log}");
    node.cns.assert_sound().await;
}
