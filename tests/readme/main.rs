//! README's commands, as a new user pastes them: on a machine of their own, made of namespaces, with the defaults.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "tests; each binary uses its own part of the support modules"
)]

#[path = "../support/need.rs"]
mod need;

use std::{fs, path::Path, process::Command};

/// The shell block that follows `mark`.
fn block<'a>(readme: &'a str, mark: &str) -> &'a str {
    let after = readme.split_once(mark).unwrap_or_else(|| panic!("README has no `{mark}`")).1;
    let block = after.split_once("```sh\n").expect("a shell block").1;
    block.split_once("```").expect("its end").0
}

/// What the first command starts, with the defaults, and then the blocks of the walk through it.
fn walk(readme: &str, parts: &[&str]) -> String {
    let start = block(readme, "Standalone mode with the pod network");
    // Building is cargo's affair, which runs this test after it.
    let start = start.trim().strip_prefix("cargo build && ").expect("the first command builds and starts");
    let mut script = format!(
        "set -euo pipefail\n\
         {start} & daemon=$!\n\
         trap 'kill $daemon; wait $daemon || true' EXIT\n\
         for i in $(seq 600); do target/debug/cnsctl status >/dev/null 2>&1 && break; sleep 0.1; done\n\
         set -x\n"
    );
    for part in parts {
        script += block(readme, &format!("<!-- walk-through: {part} -->"));
    }
    script
}

/// Runs a script on a machine of its own: its own network, and nothing in `/run`, `/tmp` and `/var/lib`.
fn run(script: &str, prelude: &str) -> String {
    let built = Path::new(env!("CARGO_BIN_EXE_cns")).parent().unwrap();
    let own = format!(
        "set -e\n\
         mount --make-rprivate /\n\
         mount --bind {} /mnt && mount --bind {} /media\n\
         for d in /run /var/lib /tmp; do mount -t tmpfs none $d; done\n\
         mkdir -p /tmp/checkout/target /tmp/checkout/tests && cd /tmp/checkout\n\
         ln -s /mnt target/debug && ln -s /media tests/data\n\
         ip link set lo up\n\
         ip link add uplink type veth peer downlink && ip link set uplink up && ip link set downlink up\n\
         ip address add 192.0.2.1/24 dev uplink && ip route add default via 192.0.2.2\n\
         {prelude}\n",
        built.display(),
        // The checkout itself may be below what is covered.
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").display(),
    );
    let output = Command::new("unshare")
        // With the script ends whatever it started.
        .args([
            "--mount",
            "--net",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "--",
            "bash",
            "-c",
            &format!("{own}\n{script}"),
        ])
        .env_remove("XDG_RUNTIME_DIR")
        .output()
        .unwrap();
    let said =
        format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}\n----\n{said}");
    said
}

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

#[test]
fn the_walk_through_works_as_root() {
    let test = "the_walk_through_works_as_root";
    if !need::need_root(test)
        || !["ip", "ping", "awk", "sed"].iter().all(|tool| need::need_program(test, tool))
    {
        return;
    }
    let said = run(&walk(&readme(), &["requests", "plugin"]), "");
    assert!(said.contains("10.244.0.2"), "{said}");
    assert!(said.contains("nothing is wrong"), "{said}");
    assert!(said.contains("1 received, 0% packet loss"), "{said}");
}

#[test]
fn the_same_through_reflection_with_a_public_tool() {
    let test = "the_same_through_reflection";
    if !need::need_root(test) || !need::need_program(test, "buf") {
        return;
    }
    let said = run(&walk(&readme(), &["requests", "reflection"]), "");
    assert!(said.contains("\"ipAddress\": \"10.244.0.2\""), "{said}");
    assert!(said.contains("RELEASE_OUTCOME_RELEASED"), "{said}");
}

#[test]
fn the_first_command_works_for_a_user_without_rights() {
    let test = "the_first_command_works_for_a_user";
    if !need::need_root(test) || !need::need_program(test, "setpriv") {
        return;
    }
    let script = walk(&readme(), &["requests"]);
    let as_user = format!(
        "cat > /tmp/script <<'SCRIPT'\n{script}\nSCRIPT\n\
         exec setpriv --reuid 4711 --regid 4711 --clear-groups --inh-caps=-all bash /tmp/script"
    );
    let said = run(&as_user, "chmod 1777 /tmp; chmod -R a+rX /tmp/checkout");
    assert!(said.contains("10.244.0.2"), "{said}");
    assert!(said.contains("/tmp/cns-4711"), "{said}");
}

/// The channel modes against the fake agents.
#[test]
fn the_channel_modes_work_as_they_are_shown() {
    let test = "the_channel_modes_work_as_they_are_shown";
    let agents = Path::new(env!("CARGO_BIN_EXE_cns")).with_file_name("fake-agents");
    if !need::need_root(test)
        || !need::need_program(test, "curl")
        || !need::need_program(test, &agents.display().to_string())
    {
        return;
    }
    let readme = readme();
    // On a busy machine two seconds may not be enough. 3 says that nobody answers, 5 that there are no addresses yet.
    let mode = |name: &str, up_to: u8| {
        let wait = format!(
            "& for i in $(seq 600); do code=0; target/debug/cnsctl status >/dev/null 2>&1 || code=$?; ((code == 0 || code == {up_to})) && break; sleep 0.1; done\n"
        );
        let shown = block(&readme, &format!("<!-- modes: {name} -->"));
        assert!(shown.contains("& sleep 2\n"), "{shown}");
        shown.replace("& sleep 2\n", &wait)
    };
    let script = format!(
        "set -u\n\
         target/debug/fake-agents --secondary-ips 16 --nc 5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11=1 --dnc-ncs tests/data/modes/dnc.json & agents=$!\n\
         trap 'kill $agents' EXIT\n\
         (\n{})\n(\n{})\n(\n{})\n",
        mode("azure-host", 0),
        mode("managed", 0),
        mode("direct", 5),
    );
    let said = run(&script, "");
    assert!(said.contains("10.240.0.5"), "{said}");
    assert!(said.contains("\"IPAddress\":\"10.7.0.9\""), "{said}");
    assert!(said.contains("10.7.0.17"), "{said}");
}

/// Between the steps, what their words say: the reference is stopped, `cns` is stopped, the reference is started.
#[test]
fn the_way_from_azure_cns_and_back_loses_no_pod() {
    let test = "the_way_from_azure_cns_and_back_loses_no_pod";
    if !need::need_root(test) || !need::need_program(test, "python3") {
        return;
    }
    let readme = readme();
    let step = |name: &str| block(&readme, &format!("<!-- migration: {name} -->")).replace("\n   ", "\n");
    let fixtures = "tests/data/legacy";
    // What a step of the list starts goes on until it is stopped.
    let forward = step("forward").trim().to_owned();
    let script = format!(
        "set -euo pipefail
         mkdir -p /var/lib/azure-network /var/run/azure-cns /tmp/bin /tmp/before
         cp {fixtures}/azure-cns.json /var/lib/azure-network/
         cp {fixtures}/azure-endpoints.json /var/run/azure-cns/
         for binary in cns cnsctl; do ln -s \"$PWD/target/debug/$binary\" /tmp/bin/; done
         ln -s cns /tmp/bin/azure-cns; export PATH=/tmp/bin:$PATH
         start() {{ {forward} & daemon=$!; for i in $(seq 600); do cnsctl status >/dev/null 2>&1 && break; sleep 0.1; done; }}
         stop() {{ kill $daemon; wait $daemon || true; }}
         trap stop EXIT
         start; check() {{ {check}
         }}; check | tee /tmp/there
         {export}
         stop
         {back}
         python3 - <<'SAME'
import json
same = lambda a, b: json.load(open(a)) == json.load(open(b))
assert same('{fixtures}/azure-endpoints.json', '/var/run/azure-cns/azure-endpoints.json'), 'endpoints'
SAME
         rm -r /var/lib/azure-cns; start; check >/tmp/back
         cut -d' ' -f1-7 /tmp/there | grep ^ID >/tmp/a; cut -d' ' -f1-7 /tmp/back | grep ^ID >/tmp/b; diff /tmp/a /tmp/b && echo the same twice",
        check = step("check"),
        export = step("export"),
        back = step("back"),
    );
    let said = run(&script, "");
    assert!(said.contains("nothing is wrong"), "{said}");
    assert!(said.contains("IPAddress: [10.240.0.17], State: [Assigned]"), "{said}");
    assert!(said.contains("the same twice"), "{said}");
}
