//! Disks that are full, read-only or torn.

use std::process::Command;

use cns::proto::v1 as pb;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    cns_under_test::{Cns, until},
    need,
};

fn ask(container: &str) -> pb::RequestIpConfigsRequest {
    pb::RequestIpConfigsRequest {
        infra_container_id: container.into(),
        ifname: "eth0".into(),
        ..Default::default()
    }
}

/// A small file system of its own; unmounted when dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(at: &std::path::Path, size: &str) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .status();
        assert!(mounted.unwrap().success());
        Self(at.to_owned())
    }

    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        for size in [1 << 16, 4096, 1] {
            let block = vec![0_u8; size];
            while file.write_all(&block).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn f8_a_full_disk_refuses_and_recovers_without_a_restart() {
    if !need::need_root("f8_a_full_disk_refuses_and_recovers_without_a_restart") {
        return;
    }
    let mut cns = Cns::prepared(&["--standalone-cidr", "10.244.0.0/16"]);
    let disk = SmallDisk::mount(&cns.state_dir(), "96m");
    cns.launch().await;
    let granted = cns.ipam().await.request_ip_configs(ask("before")).await.unwrap().into_inner();
    let channel = cns.channel().await;
    let status = |channel| async move {
        let check = HealthCheckRequest { service: String::new() };
        HealthClient::new(channel).check(check).await.map(|answer| answer.into_inner().status())
    };
    disk.fill();
    // Room inside the file is used first; then the disk says no.
    let mut refused = None;
    for i in 0..20_000 {
        if let Err(status) = cns.ipam().await.request_ip_configs(ask(&format!("c{i}"))).await {
            refused = Some((i, status));
            break;
        }
    }
    let (last, refusal) = refused.expect("a full disk refuses at some point");
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal}");
    assert!(refusal.message().contains("nothing was changed"), "{refusal}");
    until("health says so", || async { status(channel.clone()).await.unwrap() == ServingStatus::NotServing })
        .await;
    let mut ipam = cns.ipam().await;
    let again = ipam.list_pod_ip_configs(pb::ListPodIpConfigsRequest {
        infra_container_id: "before".into(),
        ..Default::default()
    });
    assert_eq!(again.await.unwrap().into_inner().ip_configs.len(), 1, "reading needs no disk");
    disk.free();
    until("health recovers by itself", || async {
        status(channel.clone()).await.unwrap() == ServingStatus::Serving
    })
    .await;
    let after = cns.ipam().await.request_ip_configs(ask("before")).await.unwrap().into_inner();
    assert_eq!(after.pod_ip_infos, granted.pod_ip_infos);
    cns.ipam().await.request_ip_configs(ask(&format!("c{last}"))).await.unwrap();
    cns.assert_sound().await;
    // What was refused is nowhere on disk, what was answered is.
    cns.kill9();
    cns.launch().await;
    let info = cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.ip_counts.unwrap().assigned as usize, last + 2);
    cns.assert_sound().await;
}

#[tokio::test]
async fn a_read_only_state_directory_is_named_and_nothing_is_served() {
    if !need::need_root("a_read_only_state_directory_is_named_and_nothing_is_served") {
        return;
    }
    let mut cns = Cns::prepared(&[]);
    let disk = SmallDisk::mount(&cns.state_dir(), "8m");
    assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).status().unwrap().success());
    cns.spawn();
    assert_eq!(cns.wait().unwrap().code(), Some(1));
    let log = cns.log();
    assert!(log.contains("Read-only file system") && log.contains("state"), "{log}");
}

#[tokio::test]
async fn f6_a_torn_file_is_kept_beside_and_the_daemon_comes_up() {
    let mut cns = Cns::start(&[]).await;
    cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap();
    cns.kill9();
    let path = cns.state_dir().join("state.redb");
    let sound = std::fs::read(&path).unwrap();
    let torn = &sound[..sound.len() / 3];
    std::fs::write(&path, torn).unwrap();
    cns.launch().await;
    let kept: Vec<_> = std::fs::read_dir(cns.state_dir())
        .unwrap()
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("state.redb.corrupt-"))
        .collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(std::fs::read(kept[0].path()).unwrap(), torn);
    assert!(cns.log().contains("damaged"), "{}", cns.log());
    cns.ipam().await.request_ip_configs(ask("c1")).await.unwrap();
    cns.assert_sound().await;
}
