//! The public Go client of Azure CNS, unmodified, against the daemon: `main.go` calls every method of it and checks the answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    dead_code,
    missing_docs,
    missing_debug_implementations,
    reason = "tests; each binary uses its own part of the support modules"
)]

#[path = "../support/cns.rs"]
mod cns_under_test;

use std::{io::Write as _, path::Path, process::Command};

use cns_under_test::{Cns, free_port};

/// The client is somebody else's and comes from outside: where it cannot be had that is said, and is no fault of ours.
fn skip(why: &str) {
    let text = format!("SKIP the_public_go_client_notices_nothing: {why}\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A port that was free a moment ago.
async fn serve(port: u16, config: &str, directory: &Path) -> (Cns, String) {
    let file = directory.join(format!("{port}.json"));
    std::fs::write(&file, config).unwrap();
    let address = format!("tcp://127.0.0.1:{port}");
    let cns = Cns::start(&["--config-path", file.to_str().unwrap(), "-c", &address]).await;
    (cns, format!("http://127.0.0.1:{port}"))
}

#[tokio::test]
async fn the_public_go_client_notices_nothing() {
    if Command::new("go").arg("version").output().is_err() {
        return skip("Go is not installed");
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("interop");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    let go = |arguments: &[&str]| {
        Command::new("go")
            .current_dir(&source)
            .args(arguments)
            .env("GOFLAGS", "-mod=readonly")
            .output()
            .unwrap()
    };
    let fetched = go(&["mod", "download"]);
    if !fetched.status.success() {
        let why = String::from_utf8_lossy(&fetched.stderr);
        return skip(&format!(
            "the client's module cannot be had: {}",
            why.lines().next().unwrap_or_default()
        ));
    }
    let built = go(&["build", "-o", program.to_str().unwrap(), "."]);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let (pool, pool_url) = serve(free_port(), "{}", directory.path()).await;
    let (direct, direct_url) = serve(
        free_port(),
        r#"{"ChannelMode":"Direct","WireserverIP":"127.0.0.1:1","Node":{"IMDSURL":"http://127.0.0.1:1"}}"#,
        directory.path(),
    )
    .await;
    let output = tokio::task::spawn_blocking(move || {
        Command::new(program).args([pool_url, direct_url]).output().unwrap()
    });
    let output = output.await.unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.matches("ok ").count() > 25, "{said}");
    pool.assert_sound().await;
    direct.assert_sound().await;
}
