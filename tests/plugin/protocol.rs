//! What the specification says of variables, configurations and errors.

use serde_json::Value;

use crate::node::Node;

/// What is wrong, variables, configuration, code, part of the message.
type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, &'a str, u64, &'a str);

const CONF: &str = r#"{"cniVersion":"1.0.0","name":"pods","type":"cns-cni"}"#;

#[tokio::test]
async fn faults_of_the_caller_are_told_in_the_specified_way() {
    let Some(node) = Node::new("faults_of_the_caller", "10.240.0.0/24").await else { return };
    let all = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/not-there"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    let with = |name, value| all.map(|(n, v)| if n == name { (n, value) } else { (n, v) });
    let endless = "c".repeat(300);
    let own = "/proc/thread-self/ns/net";
    let cases: [Case<'_>; 14] = [
        ("unknown command", with("CNI_COMMAND", "GET").to_vec(), CONF, 4, "GET"),
        ("no container", with("CNI_CONTAINERID", "").to_vec(), CONF, 4, "CNI_CONTAINERID"),
        (
            "no variables",
            vec![("CNI_COMMAND", "CHECK")],
            CONF,
            4,
            "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_PATH",
        ),
        ("a path as container", with("CNI_CONTAINERID", "../etc").to_vec(), CONF, 4, "../etc"),
        ("an endless container", with("CNI_CONTAINERID", &endless).to_vec(), CONF, 4, "253"),
        ("a bad interface", with("CNI_IFNAME", "eth 0").to_vec(), CONF, 4, "eth 0"),
        ("a long interface", with("CNI_IFNAME", "interface-number-0").to_vec(), CONF, 4, "15 bytes"),
        ("no such namespace", all.to_vec(), CONF, 4, "is gone"),
        ("the host's namespace", with("CNI_NETNS", own).to_vec(), CONF, 4, "host's own"),
        ("no configuration", all.to_vec(), "", 6, "JSON"),
        ("half a configuration", all.to_vec(), &CONF[..20], 6, "JSON"),
        ("an old version", all.to_vec(), r#"{"cniVersion":"0.2.0","name":"pods"}"#, 1, "0.2.0"),
        ("no name", all.to_vec(), r#"{"cniVersion":"1.0.0"}"#, 7, "name"),
        ("malformed arguments", [&all[..], &[("CNI_ARGS", "K8S_POD_NAME")]].concat(), CONF, 4, "CNI_ARGS"),
    ];
    for (what, variables, input, code, part) in cases {
        let said = Node::wait(node.start(&variables, input.as_bytes())).await;
        assert!(said.output["cniVersion"].is_string(), "{what}: {said:?}");
        let (found, message) = said.error();
        assert_eq!(found, code, "{what}: {message}");
        assert!(message.contains(part), "{what}: {message}");
    }
    node.assert_clean("after requests that made no sense").await;
}

#[tokio::test]
async fn del_minds_malformed_arguments_less_than_a_container_that_stays() {
    let Some(node) = Node::new("del_minds_malformed_arguments_less", "10.240.0.0/24").await else { return };
    let pod = node.lab.pod("pod");
    node.add("c1", &pod).await.ok();
    let netns = pod.path().display().to_string();
    let variables = [
        ("CNI_COMMAND", "DEL"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", &*netns),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "what is this"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    node.run(&variables, &node.netconf()).await.ok();
    node.assert_clean("after DEL").await;
}

#[tokio::test]
async fn version_is_told_without_configuration_and_flags() {
    let Some(node) = Node::new("version_is_told", "10.240.0.0/24").await else { return };
    for input in ["", r#"{"cniVersion":"0.4.0"}"#] {
        let said = Node::wait(node.start(&[("CNI_COMMAND", "VERSION")], input.as_bytes())).await.ok();
        assert_eq!(said["supportedVersions"].as_array().map(Vec::len), Some(5));
        let echoed = if input.is_empty() { "1.1.0" } else { "0.4.0" };
        assert_eq!(said["cniVersion"], echoed);
    }
    let silent = Node::wait(node.start(&[], b"")).await;
    assert!(
        silent.succeeded && silent.output == Value::Null && silent.stderr.contains("1.1.0"),
        "{silent:?}"
    );

    let flag =
        std::process::Command::new(crate::cns_under_test::sibling("cns-cni")).arg("-v").output().unwrap();
    let text = String::from_utf8(flag.stdout).unwrap();
    assert_eq!(
        text.split_whitespace().count(),
        4,
        "the reference's node service reads the fourth word: {text}"
    );
}
