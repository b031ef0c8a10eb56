//! What one client can cost the others, and who may change state.

use std::{net::SocketAddr, os::unix::process::CommandExt as _, process::Command, time::Duration};

use cns::proto::v1 as pb;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    cns_under_test::Cns,
    http::{exchange, request},
    need, replay,
};

async fn daemon() -> (Cns, SocketAddr) {
    replay::daemon_with(&["--standalone-cidr", "10.244.0.0/24"]).await
}

fn wanted(container: &str) -> Value {
    json!({
        "podInterfaceID": "x", "infraContainerID": container, "ifname": "eth0",
        "orchestratorContext": {"podName": container, "podNamespace": "default"},
    })
}

/// Asks over REST; gives the address.
async fn ask(server: SocketAddr, container: &str) -> String {
    let body = wanted(container).to_string();
    let sent = request("POST", "/network/requestipconfigs", &[], Some(body.as_bytes()));
    let answer = exchange(server, &sent, "POST").await.unwrap();
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["response"]["ReturnCode"], 0, "{body}");
    body["podIPInfo"][0]["PodIPConfig"]["IPAddress"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_and_grpc_at_once_give_a_pod_one_address() {
    let (cns, server) = daemon().await;
    for i in 0..20 {
        let container = format!("container-{i}");
        let message = pb::RequestIpConfigsRequest {
            infra_container_id: container.clone(),
            ifname: "eth0".into(),
            ..Default::default()
        };
        let mut ipam = cns.ipam().await;
        let (rest, grpc) = tokio::join!(ask(server, &container), ipam.request_ip_configs(message));
        let grpc = grpc.unwrap().into_inner().pod_ip_infos.remove(0).pod_ip_config.unwrap().ip_address;
        assert_eq!(rest, grpc, "{container}");
    }
    cns.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_slow_connections_keep_nobody_out() {
    let (cns, server) = daemon().await;
    let mut idle = Vec::new();
    // More than there are places for, and as many as a process may open.
    for i in 0..800 {
        let Ok(mut stream) = TcpStream::connect(server).await else { break };
        if i % 2 == 0 {
            // Half a head, and never the rest.
            let _ = stream.write_all(b"POST /network/requestipconfigs HTTP/1.1\r\nHost: x\r\n").await;
        }
        idle.push(stream);
    }
    assert!(idle.len() > 600, "{}", idle.len());
    for i in 0..5 {
        ask(server, &format!("rest-{i}")).await;
        let message =
            pb::RequestIpConfigsRequest { infra_container_id: format!("grpc-{i}"), ..Default::default() };
        cns.ipam().await.request_ip_configs(message).await.unwrap();
    }
}

/// Asks over REST and over gRPC as if nothing else went on.
async fn others_are_served(cns: &Cns, server: SocketAddr, times: usize, name: &str) {
    for i in 0..times {
        ask(server, &format!("rest-{name}-{i}")).await;
        let message = pb::RequestIpConfigsRequest {
            infra_container_id: format!("grpc-{name}-{i}"),
            ..Default::default()
        };
        cns.ipam().await.request_ip_configs(message).await.unwrap();
    }
}

/// Lets this process have `wanted` files open; says so where it may not.
fn can_open(test: &str, wanted: u64) -> bool {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let can = soft >= wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok();
    if !can {
        need::skip(test, &format!("{wanted} files must be open, and the limit is {hard}"));
    }
    can
}

/// What the daemon has in memory, in MiB.
fn resident(cns: &Cns) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cns.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<i64>().unwrap() / 1024
}

/// Much more than any of these tests should make it need, and much less than what is sent.
const MOST_GROWTH: i64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_keep_nobody_out() {
    if !can_open("ten_thousand_idle_connections_keep_nobody_out", 12_000) {
        return;
    }
    let (cns, server) = daemon().await;
    let before = resident(&cns);
    let mut idle = Vec::new();
    for i in 0..10_000 {
        idle.push(TcpStream::connect(server).await.unwrap());
        if i % 1_000 == 0 {
            others_are_served(&cns, server, 1, &format!("meanwhile-{i}")).await;
        }
    }
    others_are_served(&cns, server, 5, "afterwards").await;
    let growth = resident(&cns) - before;
    assert!(growth < MOST_GROWTH, "{growth} MiB");
    cns.assert_sound().await;
    drop(idle);
}

/// Sends `head`, and then a byte now and then, forever; begins anew when it is thrown out.
async fn trickle(server: SocketAddr, head: &'static str) {
    loop {
        if let Ok(mut stream) = TcpStream::connect(server).await
            && stream.write_all(head.as_bytes()).await.is_ok()
        {
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_come_a_byte_at_a_time_keep_nobody_out() {
    if !can_open("requests_that_come_a_byte_at_a_time_keep_nobody_out", 12_000) {
        return;
    }
    let (cns, server) = daemon().await;
    // Each kind alone has more connections than there are places.
    for (name, head) in [
        ("head", "POST /network/requestipconfigs HTTP/1.1\r\nX-Slow: "),
        ("body", "POST /network/requestipconfigs HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"),
    ] {
        let mut slow = JoinSet::new();
        for _ in 0..700 {
            slow.spawn(trickle(server, head));
        }
        // They have to be there first.
        tokio::time::sleep(Duration::from_secs(2)).await;
        others_are_served(&cns, server, 10, name).await;
        slow.shutdown().await;
    }
    cns.assert_sound().await;
}

/// Sends a head and 100 MB of body, or as much of it as is taken, and gives the answer's first line.
async fn pour(server: SocketAddr, head: &'static str, chunked: bool) -> String {
    const PIECE: usize = 1_000_000;
    let (mut answer, mut sending) = TcpStream::connect(server).await.unwrap().into_split();
    let sent = tokio::spawn(async move {
        let piece =
            if chunked { format!("{PIECE:x}\r\n{}\r\n", "[".repeat(PIECE)) } else { "[".repeat(PIECE) };
        sending.write_all(head.as_bytes()).await?;
        for _ in 0..100 {
            sending.write_all(piece.as_bytes()).await?;
        }
        Ok::<_, std::io::Error>(sending)
    });
    let mut text = String::new();
    // A reset after the answer takes nothing away from it.
    let _ = answer.read_to_string(&mut text).await;
    drop(sent.await);
    text.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_at_once_keep_nobody_out() {
    let (cns, server) = daemon().await;
    let before = resident(&cns);
    let mut large = JoinSet::new();
    for _ in 0..4 {
        let announced =
            "POST /network/networkcontainers HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n";
        large.spawn(pour(server, announced, false));
        let not = "POST /network/networkcontainers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        large.spawn(pour(server, not, true));
        // Not too large, and no JSON: it is taken apart.
        let fits = "POST /network/networkcontainers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 60000000\r\n\r\n";
        large.spawn(pour(server, fits, false));
    }
    others_are_served(&cns, server, 10, "meanwhile").await;
    let mut most = 0;
    while let Some(first_line) = large.join_next().await {
        let first_line = first_line.unwrap();
        // The kernel may throw away an answer that a reset overtakes.
        let known = ["HTTP/1.1 413 ", "HTTP/1.1 400 ", "HTTP/1.1 408 "];
        assert!(
            first_line.is_empty() || known.iter().any(|status| first_line.starts_with(status)),
            "{first_line}"
        );
        most = most.max(resident(&cns) - before);
    }
    assert!(most < MOST_GROWTH, "{most} MiB");
    others_are_served(&cns, server, 2, "afterwards").await;
    cns.assert_sound().await;
}

#[tokio::test]
async fn the_daemon_opens_as_many_files_as_it_may() {
    let mut cns = Cns::prepared(&[]).with_open_files(256);
    cns.launch().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", cns.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let [soft, hard, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!(soft, hard);
    assert!(cns.log().contains("limit of open files"), "{}", cns.log());
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let (_cns, server) = daemon().await;
    let mut stream = TcpStream::connect(server).await.unwrap();
    let head = "POST /network/networkcontainers HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    ask(server, "afterwards").await;
}

/// Anybody on the host's network can reach a loopback port; only those who may over gRPC may change state here, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_on_this_machine_may_read_and_not_change() {
    if !need::need_root("a_stranger_on_this_machine_may_read_and_not_change") {
        return;
    }
    let (cns, server) = daemon().await;
    let as_stranger = |path: &'static str, body: String| async move {
        let sent = format!(
            "POST {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: {}\\r\\n\\r\\n{body}",
            body.len()
        );
        let script =
            format!("exec 3<>/dev/tcp/{}/{}; printf '%b' '{sent}' >&3; cat <&3", server.ip(), server.port());
        tokio::task::spawn_blocking(move || {
            let output = Command::new("bash").args(["-c", &script]).uid(4711).gid(4711).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
        .await
        .unwrap()
    };
    let refused = as_stranger("/network/requestipconfigs", wanted("stranger").to_string()).await;
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("user 4711"), "{refused}");
    let refused = as_stranger("/network/releaseipconfigs", wanted("stranger").to_string()).await;
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    let read = as_stranger("/debug/podcontext", String::new()).await;
    assert!(read.starts_with("HTTP/1.1 200 ") && read.contains("\"PodContext\":{}"), "{read}");
    cns.assert_sound().await;
}
