//! Managed: registration with DNC, and its list.

use std::time::Duration;

use cns::proto::v1 as pb;
use cns_fake_agents::Fault;
use serde_json::json;

use super::{
    cns_under_test::until,
    node::{Node, Systemd, nc, nc_id},
};

const LIST: &str = "/networkcontainers";
const VERSIONS: &str = "interfaces/api-version/2";
/// The same as it is sent.
const ENCODED: &str = "interfaces%2Fapi-version%2F2";

async fn query(node: &Node, pod: &str) -> serde_json::Value {
    let body = json!({"OrchestratorContext": {"podName": pod, "podNamespace": "default"}});
    node.post("/network/getnetworkcontainerbyorchestratorcontext", &body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_registers_through_failures_and_is_not_ready_before() {
    let mut node = Node::managed().await;
    node.agents.fail_times("GetSupportedApis", Fault::Status(500), 1);
    node.agents.fail("/networks/", Fault::Status(503));
    node.agents.world(|world| world.dnc_ncs = vec![nc(1, "1")]);
    node.launch().await;
    assert!(!node.whole_is_serving().await);
    until("DNC is what it waits for", || async {
        node.readiness().await == (503, "waiting for registration of this node with DNC\n".into())
    })
    .await;
    assert_eq!(node.nc_ids().await, Vec::<String>::new());
    node.agents.heal();
    until("ready", || async { node.readiness().await.0 == 200 }).await;
    until("health follows", || node.whole_is_serving()).await;
    let registered = node.agents.world(|world| world.registered.clone()).unwrap();
    assert_eq!(registered["NmAgentSupportedApis"], json!(["GetHomeAz", "GetSupportedApis"]));
    assert!(registered["NumCores"].as_u64() > Some(0));
    let info = node.cns.node().await.get_node_info(pb::GetNodeInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.dnc_partition_key.as_str(), info.channel_mode.as_str()), ("partition-1", "Managed"));
    until("the first NC", || async { node.nc_ids().await == [nc_id(1)] }).await;
    assert_eq!(query(&node, "web-1").await["NetworkContainerID"], nc_id(1));
    assert!(node.cns.terminate().await.unwrap().success());
}

/// The reference stays ready, whatever happens (spec/metrics.md §7.8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_dnc_is_away_it_serves_and_is_not_ready() {
    let mut node = Node::managed().await;
    let systemd = Systemd::of(&mut node.cns);
    node.agents.world(|world| {
        world.dnc_ncs = vec![nc(1, "1")];
        world.ncs = vec![(nc_id(1), "1".into())];
    });
    node.launch_and_wait().await;
    let ready = || async { node.readiness().await.0 == 200 && node.whole_is_serving().await };
    until("the first NC", || async { node.nc_ids().await == [nc_id(1)] }).await;
    for _ in 0..2 {
        node.agents.fail(LIST, Fault::Status(503));
        node.taken_back("DNC, which has given no usable list since 2").await;
        assert!(node.readiness().await.1.contains("status 503"));
        assert_eq!(node.request("web-1").await["response"]["ReturnCode"], 0);
        assert_eq!(query(&node, "web-1").await["NetworkContainerID"], nc_id(1));
        node.agents.heal();
        until("it is ready again", ready).await;
    }
    // A list that cannot be right is one.
    node.agents.world(|world| world.dnc_ncs.clear());
    until("the alarm", || async { node.metric("cns_source_doubted 1").await }).await;
    node.asked(LIST, 4).await;
    assert!(ready().await);
    assert!(node.cns.terminate().await.unwrap().success());
    let log = node.cns.log();
    assert_eq!(log.matches("no longer ready").count(), 2, "told once each: {log}");
    let told = systemd.told();
    assert_eq!(told.matches("READY=1").count(), 1, "{told}");
    assert_eq!(told.matches("STATUS=serving").count(), 3, "{told}");
    assert!(told.contains("STATUS=waiting for DNC, which has given no usable list since 2"), "{told}");
}

/// spec/host-agents.md §10.13: the reference waits for SIGKILL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_during_registration_is_an_orderly_one() {
    for (target, fault) in [
        ("GetSupportedApis", Fault::Hang),
        ("GetSupportedApis", Fault::Status(401)),
        ("/networks/", Fault::Hang),
        ("/networks/", Fault::Status(500)),
    ] {
        let mut node = Node::managed().await;
        node.agents.fail(target, fault.clone());
        node.launch().await;
        until("it tries", || {
            let asked = node.agents.take_requests().iter().any(|request| request.target.contains(target));
            async move { asked }
        })
        .await;
        assert!(node.cns.terminate().await.unwrap().success(), "{target} {fault:?}");
        let log = node.cns.log();
        assert!(log.contains("stopped") && !log.contains("cut off"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q7_the_list_is_followed_by_numbers() {
    let mut node = Node::managed().await;
    node.agents.world(|world| world.dnc_ncs = (1..=4).map(|n| nc(n, "9")).collect());
    node.launch_and_wait().await;
    let version = async |n: usize| {
        let found = node.ncs().await.into_iter().find(|nc| nc.id == nc_id(n));
        found.map(|nc| nc.version)
    };
    until("all are there", || async { node.nc_ids().await.len() == 4 }).await;
    node.agents.world(|world| {
        world.dnc_ncs = vec![nc(1, "10"), nc(2, "8"), nc(3, "x")];
    });
    until("10 is newer than 9", || async { version(1).await.as_deref() == Some("10") }).await;
    until("another text is another version", || async { version(3).await.as_deref() == Some("x") }).await;
    until("one of four that is gone goes", || async { version(4).await.is_none() }).await;
    assert_eq!(version(2).await.as_deref(), Some("9"), "8 is older");
    node.cns.assert_sound().await;
}

/// spec/host-agents.md §10.5: the reference deletes all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_cannot_be_right_deletes_nothing_and_raises_an_alarm() {
    let mut node = Node::managed().await;
    node.agents.world(|world| world.dnc_ncs = (1..=4).map(|n| nc(n, "1")).collect());
    node.launch_and_wait().await;
    until("all are there", || async { node.nc_ids().await.len() == 4 }).await;
    assert!(node.metric("cns_source_doubted 0").await);
    // Empty, for as long as it may last; a new one comes all the same.
    node.agents.world(|world| world.dnc_ncs.clear());
    until("the alarm", || async { node.metric("cns_source_doubted 1").await }).await;
    node.asked(LIST, 5).await;
    assert_eq!(node.nc_ids().await.len(), 4);
    let log = node.cns.log();
    assert_eq!(log.matches("DNC's list is empty").count(), 1, "told once: {log}");
    assert!(node.findings().await.contains(&"SOURCE_DOUBTED".into()));
    // With an entry that cannot be read, the whole is not known.
    node.agents.world(|world| {
        world.dnc_ncs =
            vec![nc(1, "1"), nc(2, "1"), nc(3, "1"), nc(5, "1"), json!({"NetworkContainerid": "'; DROP"})];
    });
    until("the new one", || async { node.nc_ids().await.contains(&nc_id(5)) }).await;
    node.asked(LIST, 4).await;
    assert_eq!(node.nc_ids().await.len(), 5);
    // Failures are no lists.
    for fault in [
        Fault::Status(500),
        Fault::Truncate,
        Fault::Body(b"{}".as_slice().into()),
        Fault::Body(b"{\"NetworkContainers\":null}".as_slice().into()),
        Fault::Body(b"<html>".as_slice().into()),
        Fault::Drop,
    ] {
        node.agents.fail(LIST, fault);
        node.asked(LIST, 2).await;
        node.agents.heal();
    }
    assert_eq!(node.nc_ids().await.len(), 5);
    // Most are missing: believed once it was said three times.
    node.agents.world(|world| world.dnc_ncs = vec![nc(1, "1")]);
    until("it is confirmed", || async { node.nc_ids().await == [nc_id(1)] }).await;
    until("the alarm ends", || async { node.metric("cns_source_doubted 0").await }).await;
    let log = node.cns.log();
    assert_eq!(log.matches("an entry of DNC's list cannot be read").count(), 1, "told once: {log}");
    node.cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nmagent_s_faults_hold_nothing_up_and_complete_nothing() {
    let mut node = Node::managed().await;
    node.launch_and_wait().await;
    let faults = [
        Fault::Status(401),
        Fault::InnerStatus("404".into()),
        Fault::Status(500),
        Fault::Hang,
        Fault::Truncate,
        Fault::NoInnerStatus,
        Fault::Huge(4 << 20),
        Fault::TruncateChunked,
    ];
    for (n, fault) in faults.into_iter().enumerate() {
        node.agents.fail(VERSIONS, fault.clone());
        node.agents.world(|world| {
            world.dnc_ncs.push(nc(n, "2"));
            world.ncs.push((nc_id(n), "2".into()));
        });
        until("it is added", || async { node.nc_ids().await.contains(&nc_id(n)) }).await;
        node.asked(ENCODED, 1).await;
        let status = node.ncs().await.into_iter().find(|nc| nc.id == nc_id(n)).unwrap();
        assert_eq!((status.host_version, status.vfp_update_complete), (None, false), "{fault:?}");
        node.agents.heal();
        until("NMAgent says so", || async { node.ncs().await.iter().all(|nc| nc.host_version == Some(2)) })
            .await;
    }
    for ok in [false, true] {
        let rounds = format!("sync_host_nc_version_total{{ok=\"{ok}\"}}");
        until("its rounds are counted", || node.counted(&rounds)).await;
    }
    assert!(node.metric("has_networkcontainer 8").await);
    // Chunked, with ids in capitals, ids that are none, and more than the reference's 4 KiB.
    node.agents.fail(VERSIONS, Fault::Chunked);
    node.agents.world(|world| {
        world.dnc_ncs.push(nc(99, "3"));
        world.ncs = (1000..3000).map(|n| (nc_id(n), "1".into())).collect();
        world.ncs.push(("../../x\" or 1".into(), "3".into()));
        world.ncs.push((format!("Swift_{}", nc_id(99).to_uppercase()), "3".into()));
    });
    until("it is found", || async {
        node.ncs().await.iter().any(|nc| nc.id == nc_id(99) && nc.host_version == Some(3))
    })
    .await;
    // V5: nothing is behind, so nobody is asked.
    node.agents.heal();
    node.asked(LIST, 2).await;
    node.agents.take_requests();
    node.asked(LIST, 2).await;
    assert!(!node.agents.take_requests().iter().any(|request| request.target.contains(ENCODED)));
    node.cns.assert_sound().await;
}

/// A definition that cannot be taken is told once and takes no other with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_taken_is_told_once_and_tried_again() {
    let mut node = Node::managed().await;
    let mut bad = nc(1, "1");
    bad["NetworkContainerType"] = json!("ClearContainer");
    let mut malformed = nc(2, "1");
    malformed["IPConfiguration"]["GatewayIPAddress"] = json!("x");
    node.agents.world(|world| world.dnc_ncs = vec![bad, malformed, nc(3, "1")]);
    node.launch_and_wait().await;
    until("the good one", || async { node.nc_ids().await == [nc_id(3)] }).await;
    node.asked(LIST, 3).await;
    let log = node.cns.log();
    assert_eq!(log.matches("Unsupported network container type ClearContainer").count(), 1, "{log}");
    node.agents.world(|world| world.dnc_ncs = (1..=3).map(|n| nc(n, "1")).collect());
    until("both are right now", || async { node.nc_ids().await.len() == 3 }).await;
}

/// spec/network-containers.md §5: a lookup of a pod that has none asks DNC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_of_an_unknown_pod_asks_dnc_at_once_and_never_waits_long() {
    let mut node = Node::prepared(json!({"ChannelMode": "Managed"})).await;
    // The interval is longer than the test.
    let path = node.cns.directory().join("cns_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["ManagedSettings"]["NodeSyncIntervalInSeconds"] = json!(3600);
    std::fs::write(&path, config.to_string()).unwrap();
    node.launch_and_wait().await;
    node.agents.world(|world| world.dnc_ncs = vec![nc(1, "1")]);
    // The first look began less than a second ago: asking again is what a plugin does.
    until("the lookup finds it", || async { query(&node, "web-1").await["NetworkContainerID"] == nc_id(1) })
        .await;
    node.agents.fail(LIST, Fault::Hang);
    let (first, second) = tokio::join!(query(&node, "web-2"), query(&node, "web-3"));
    for answer in [first, second] {
        assert_eq!(answer["Response"]["ReturnCode"], 18, "Q6: {answer}");
    }
    assert_eq!(
        query(&node, "web-1").await["NetworkContainerID"],
        nc_id(1),
        "one that is known waits for nothing"
    );
    assert!(node.cns.terminate().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_of_a_sync_it_is_sound_and_goes_on() {
    let mut node = Node::managed().await;
    node.agents.world(|world| world.dnc_ncs = (0..400).map(|n| nc(n, "1")).collect());
    for round in 0..5_u64 {
        node.launch().await;
        node.asked(LIST, 1).await;
        tokio::time::sleep(Duration::from_millis(round * 17)).await;
        node.cns.kill9();
    }
    node.launch_and_wait().await;
    until("all are there", || async { node.nc_ids().await.len() == 400 }).await;
    node.cns.assert_sound().await;
    // A stop in the middle is an orderly one.
    node.agents.world(|world| world.dnc_ncs = (0..400).map(|n| nc(n, "2")).collect());
    node.asked(LIST, 1).await;
    assert!(node.cns.terminate().await.unwrap().success());
    node.launch_and_wait().await;
    until("all are newer", || async { node.ncs().await.iter().all(|nc| nc.version == "2") }).await;
    node.cns.assert_sound().await;
}
