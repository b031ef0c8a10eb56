//! Against a server of the test: what is sent, and what becomes of every way in which docker can fail.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

const QUICK: Limits = Limits {
    connect: Duration::from_millis(200),
    inspect: Duration::from_millis(200),
    change: Duration::from_millis(200),
};

fn name() -> NetworkName {
    "azurenet".parse().unwrap()
}

/// Answers one request with these bytes and gives the request back; without bytes it answers nothing and keeps the connection.
async fn answering(answer: Option<&[u8]>) -> (Docker, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let answer = answer.map(<[u8]>::to_vec);
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 64 << 10];
        let mut length = 0;
        loop {
            length += stream.read(&mut request[length..]).await.unwrap();
            let text = String::from_utf8_lossy(&request[..length]);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let wanted = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= wanted.map_or(0, |length| length.parse().unwrap()) {
                break;
            }
        }
        match answer {
            // The client may close before it has all of an answer that is too large.
            Some(answer) => drop(stream.write_all(&answer).await),
            None => std::future::pending().await,
        }
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    (Docker::with_limits(url, QUICK), server)
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn new_network(name: &NetworkName, snat: bool) -> NewNetwork<'_> {
    NewNetwork { name, subnet: "10.224.0.0/16".parse().unwrap(), snat }
}

#[tokio::test]
async fn requests_are_as_docker_takes_them() {
    let (docker, server) = answering(Some(&http("200 OK", r#"{"Name":"azurenet","Id":"4f"}"#))).await;
    assert!(docker.network_exists(&name()).await.unwrap());
    let sent = server.await.unwrap();
    assert!(sent.starts_with("GET /networks/azurenet HTTP/1.1\r\n"), "{sent}");

    for (snat, options) in [(true, r#"{"com.microsoft.azure.network.mode":"bridge"}"#), (false, "null")] {
        let (docker, server) = answering(Some(&http("201 Created", r#"{"Id":"4f","Warning":""}"#))).await;
        docker.create_network(new_network(&name(), snat)).await.unwrap();
        let sent = server.await.unwrap();
        assert!(sent.starts_with("POST /networks/create HTTP/1.1\r\n"), "{sent}");
        assert!(sent.contains("content-type: application/json\r\n"), "{sent}");
        let body = format!(
            r#"{{"Name":"azurenet","Driver":"azure-vnet","IPAM":{{"Driver":"azure-vnet","Config":[{{"Subnet":"10.224.0.0/16"}}]}},"Internal":true,"Options":{options}}}"#
        );
        assert_eq!(sent.split_once("\r\n\r\n").unwrap().1, body);
    }

    let (docker, server) = answering(Some(b"HTTP/1.1 204 No Content\r\n\r\n")).await;
    assert!(docker.delete_network(&name()).await.unwrap());
    let sent = server.await.unwrap();
    assert!(sent.starts_with("DELETE /networks/azurenet HTTP/1.1\r\n"), "{sent}");
}

#[tokio::test]
async fn only_networks_of_the_plugin_in_bridge_mode_are_masqueraded() {
    let list = r#"[
        {"Name":"bridge","Driver":"bridge","Options":{"com.microsoft.azure.network.mode":"bridge"},"IPAM":{"Config":[{"Subnet":"172.17.0.0/16"}]}},
        {"Name":"azurenet","Driver":"azure-vnet","Options":{"com.microsoft.azure.network.mode":"bridge"},"IPAM":{"Config":[{"Subnet":"10.224.0.0/16"}]}},
        {"Name":"own-addresses","Driver":"azure-vnet","Options":{},"IPAM":{"Config":[{"Subnet":"10.225.0.0/16"}]}},
        {"Name":"without options","Driver":"azure-vnet","Options":null,"IPAM":null},
        {"Name":"without-subnet","Driver":"azure-vnet","Options":{"com.microsoft.azure.network.mode":"bridge"},"IPAM":{"Config":null}}
    ]"#;
    let (docker, server) = answering(Some(&http("200 OK", list))).await;
    let found = docker.masqueraded_networks().await.unwrap();
    assert_eq!(found, [(name(), "10.224.0.0/16".parse().unwrap())]);
    assert!(server.await.unwrap().starts_with("GET /networks HTTP/1.1\r\n"));
    for bad in [http("500 Internal Server Error", ""), http("200 OK", "{}")] {
        answering(Some(&bad)).await.0.masqueraded_networks().await.unwrap_err();
    }
}

#[tokio::test]
async fn a_network_that_is_not_there_is_no_failure() {
    let missing = http("404 Not Found", r#"{"message":"network azurenet not found"}"#);
    assert!(!answering(Some(&missing)).await.0.network_exists(&name()).await.unwrap());
    assert!(!answering(Some(&missing)).await.0.delete_network(&name()).await.unwrap());
    // docker found it by the beginning of its id.
    let other = http("200 OK", r#"{"Name":"other","Id":"azurenet"}"#);
    assert!(!answering(Some(&other)).await.0.network_exists(&name()).await.unwrap());
}

#[tokio::test]
async fn every_failure_is_told_apart() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let docker = Docker::with_limits(format!("http://{closed}").parse().unwrap(), QUICK);
    let error = docker.network_exists(&name()).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("onnection refused"), "{error}");

    let (docker, _server) = answering(None).await;
    let error = docker.network_exists(&name()).await.unwrap_err();
    assert!(matches!(error, DockerError::TimedOut { .. }) && error.is_unreachable(), "{error}");
    let (docker, _server) = answering(None).await;
    let error = docker.create_network(new_network(&name(), true)).await.unwrap_err();
    assert!(error.to_string().ends_with("/networks/create within 0.2 s"), "{error}");
    // A head, and never a body.
    let (docker, _server) = answering(Some(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{")).await;
    assert!(docker.network_exists(&name()).await.unwrap_err().is_unreachable());

    let (docker, _server) = answering(Some(&http(
        "500 Internal Server Error",
        r#"{"message":"plugin\n\"azure-vnet\" not found"}"#,
    )))
    .await;
    let error = docker.create_network(new_network(&name(), true)).await.unwrap_err();
    assert!(!error.is_unreachable());
    let text = error.to_string();
    assert!(text.ends_with("/networks/create: plugin \"azure-vnet\" not found"), "{text}");
    let (docker, _server) = answering(Some(&http("500 Internal Server Error", "oops"))).await;
    let error = docker.delete_network(&name()).await.unwrap_err();
    assert!(error.to_string().ends_with("/networks/azurenet"), "{error}");

    // A redirect is not followed, and 200 is not how docker says that it created something.
    let redirect = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n";
    let error = answering(Some(redirect)).await.0.network_exists(&name()).await.unwrap_err();
    assert!(matches!(&error, DockerError::Refused { status, .. } if status.as_u16() == 307), "{error}");
    let (docker, _server) = answering(Some(&http("200 OK", "{}"))).await;
    assert!(matches!(
        docker.create_network(new_network(&name(), true)).await,
        Err(DockerError::Refused { .. })
    ));

    for garbage in ["<html>", "[]", r#"{"Name":1}"#, ""] {
        let (docker, _server) = answering(Some(&http("200 OK", garbage))).await;
        let error = docker.network_exists(&name()).await.unwrap_err();
        assert!(matches!(error, DockerError::Unintelligible { .. }), "{garbage}: {error}");
    }
    let (docker, _server) = answering(Some(b"SSH-2.0-OpenSSH_9.2\r\n")).await;
    assert!(docker.network_exists(&name()).await.unwrap_err().is_unreachable());
    let huge = http("200 OK", &format!("{{\"Name\":\"{}\"}}", "x".repeat(LARGEST_ANSWER)));
    let (docker, _server) = answering(Some(&huge)).await;
    let error = docker.network_exists(&name()).await.unwrap_err();
    assert!(error.to_string().ends_with("larger than 1048576 bytes"), "{error}");
}

#[test]
fn only_a_plain_base_url_is_one() {
    for (given, kept) in [
        ("http://127.0.0.1:2375", "http://127.0.0.1:2375"),
        ("http://docker.local/", "http://docker.local"),
        ("http://[::1]:1", "http://[::1]:1"),
    ] {
        assert_eq!(given.parse::<DockerUrl>().unwrap().to_string(), kept);
    }
    for bad in [
        "",
        "127.0.0.1:2375",
        "tcp://127.0.0.1:2375",
        "https://127.0.0.1:2376",
        "unix:///var/run/docker.sock",
        "http://",
        "http://:2375",
        "http://h:0",
        "http://h:70000",
        "http://h:",
        "http://u:p@h",
        "http://h/v1.24",
        "http://h/?x",
        "http://h h",
    ] {
        assert!(bad.parse::<DockerUrl>().is_err(), "{bad}");
    }
}
