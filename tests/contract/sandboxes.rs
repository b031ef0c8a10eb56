//! Sandboxes that die without saying so: found by the reconciler, by the pod's next sandbox, and before a shortage is told.
//! Releases that a plugin left in the async-delete directory.

use std::{os::unix::fs::MetadataExt as _, path::PathBuf, process::Command};

use super::{
    addresses, ask,
    cns_under_test::{Cns, until},
    give, need, pb,
};

/// A named network namespace; removed when dropped.
struct Netns(String);

impl Netns {
    fn new(name: &str) -> Self {
        let name = format!("cnst-{}-{name}", std::process::id());
        assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
        Self(name)
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }

    fn sandbox(&self) -> pb::Sandbox {
        let meta = std::fs::metadata(self.path()).unwrap();
        pb::Sandbox {
            netns_path: self.path().display().to_string(),
            netns_inode: meta.ino(),
            netns_device: meta.dev(),
        }
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn in_sandbox(container: &str, pod: &str, netns: &Netns) -> pb::RequestIpConfigsRequest {
    pb::RequestIpConfigsRequest {
        pod: Some(pb::PodIdentity { namespace: "prod".into(), name: pod.into() }),
        sandbox: Some(netns.sandbox()),
        ..ask(container)
    }
}

async fn assigned(cns: &Cns) -> u32 {
    let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    info.ip_counts.unwrap().assigned
}

const QUICK: &[&str] = &["--reconcile-interval", "100ms", "--reconcile-grace", "200ms"];
const NEVER: &[&str] = &["--reconcile-interval", "1h", "--standalone-cidr", "10.244.0.0/30"];

#[tokio::test]
async fn the_reconciler_releases_what_a_dead_sandbox_holds_and_leaves_the_living() {
    if !need::need_root("the_reconciler_releases_what_a_dead_sandbox_holds_and_leaves_the_living") {
        return;
    }
    let cns = Cns::start(QUICK).await;
    let (dead, alive) = (Netns::new("dead"), Netns::new("alive"));
    cns.ipam().await.request_ip_configs(in_sandbox("c1", "a", &dead)).await.unwrap();
    cns.ipam().await.request_ip_configs(in_sandbox("c2", "b", &alive)).await.unwrap();
    // This one never said where it lives: nothing is concluded from that.
    cns.ipam().await.request_ip_configs(ask("c3")).await.unwrap();
    drop(dead);
    until("the dead sandbox's address is free", || async { assigned(&cns).await == 2 }).await;
    let subject = pb::explain_request::Subject::ContainerId("c1".into());
    let told =
        cns.debug().await.explain(pb::ExplainRequest { subject: Some(subject) }).await.unwrap().into_inner();
    let last = told.events.last().unwrap();
    assert_eq!(
        (last.operation.as_str(), last.actor.as_ref().unwrap().origin.as_str()),
        ("ReleaseDeadSandbox", "reconciler")
    );
    assert!(last.why.contains("is gone"), "{last:?}");
    cns.assert_sound().await;
}

#[tokio::test]
async fn doctor_names_a_dead_sandbox_before_it_is_released() {
    if !need::need_root("doctor_names_a_dead_sandbox_before_it_is_released") {
        return;
    }
    let cns = Cns::start(NEVER).await;
    let dead = Netns::new("named");
    cns.ipam().await.request_ip_configs(in_sandbox("c1", "a", &dead)).await.unwrap();
    drop(dead);
    let report = cns.debug().await.diagnose(pb::DiagnoseRequest {}).await.unwrap().into_inner();
    let finding = report.findings.iter().find(|finding| finding.kind == "DEAD_SANDBOX").unwrap();
    assert_eq!(
        (finding.container_id.as_str(), &finding.ip_addresses[..]),
        ("c1", &["10.244.0.2".to_owned()][..])
    );
    assert!(finding.remedy.contains("reconciler"), "{finding:?}");
}

#[tokio::test]
async fn b3_a_sandbox_made_anew_gets_what_its_dead_predecessor_held() {
    if !need::need_root("b3_a_sandbox_made_anew_gets_what_its_dead_predecessor_held") {
        return;
    }
    // One address in all: without the look at the predecessor the new sandbox gets none.
    let cns = Cns::start(NEVER).await;
    let (old, new) = (Netns::new("old"), Netns::new("new"));
    cns.ipam().await.request_ip_configs(in_sandbox("c1", "web-0", &old)).await.unwrap();
    cns.ipam().await.request_ip_configs(in_sandbox("c2", "web-0", &new)).await.unwrap_err();
    assert_eq!(assigned(&cns).await, 1, "while it lives it keeps its address");
    drop(old);
    let got =
        cns.ipam().await.request_ip_configs(in_sandbox("c2", "web-0", &new)).await.unwrap().into_inner();
    assert_eq!(addresses(&got), ["10.244.0.2"]);
    cns.assert_sound().await;
}

#[tokio::test]
async fn before_a_shortage_is_told_dead_sandboxes_are_looked_for() {
    if !need::need_root("before_a_shortage_is_told_dead_sandboxes_are_looked_for") {
        return;
    }
    let cns = Cns::start(NEVER).await;
    let (dead, alive) = (Netns::new("full"), Netns::new("waiting"));
    cns.ipam().await.request_ip_configs(in_sandbox("c1", "one", &dead)).await.unwrap();
    drop(dead);
    let got =
        cns.ipam().await.request_ip_configs(in_sandbox("c2", "two", &alive)).await.unwrap().into_inner();
    assert_eq!(addresses(&got), ["10.244.0.2"]);
}

#[tokio::test]
async fn a_sandbox_that_the_daemon_never_saw_is_not_taken_for_dead() {
    let cns = Cns::start(QUICK).await;
    let nowhere = pb::Sandbox { netns_path: "/run/netns/never-was".into(), netns_inode: 7, netns_device: 4 };
    let request = pb::RequestIpConfigsRequest { sandbox: Some(nowhere), ..ask("c1") };
    cns.ipam().await.request_ip_configs(request).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(assigned(&cns).await, 1);
    let report = cns.debug().await.diagnose(pb::DiagnoseRequest {}).await.unwrap().into_inner();
    assert!(report.findings.iter().any(|finding| finding.container_id == "c1"), "{report:?}");
}

#[tokio::test]
async fn l4_what_a_plugin_left_is_released_also_if_it_was_left_while_the_daemon_was_down() {
    let mut cns = Cns::start(QUICK).await;
    for container in ["c1", "c2", "c3"] {
        cns.ipam().await.request_ip_configs(ask(container)).await.unwrap();
    }
    std::fs::create_dir_all(cns.async_delete_dir()).unwrap();
    std::fs::write(cns.async_delete_dir().join("c1"), "c1-eth0").unwrap();
    until("the file left while it runs is taken", || async { assigned(&cns).await == 2 }).await;
    cns.kill9();
    std::fs::write(cns.async_delete_dir().join("c2"), "c2-eth0").unwrap();
    std::fs::write(cns.async_delete_dir().join("not ours"), "x").unwrap();
    cns.launch().await;
    until("the file left while it was down is taken", || async { assigned(&cns).await == 1 }).await;
    until("the files are removed", || async {
        std::fs::read_dir(cns.async_delete_dir()).unwrap().count() == 1
    })
    .await;
    cns.ipam().await.release_ip_configs(give("c3")).await.unwrap();
    cns.assert_sound().await;
}
