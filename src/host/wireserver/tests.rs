use super::*;
use cns_fake_agents::{Agent, FakeAgents, Fault};

const VNET: &str = "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21";
const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

fn client(agents: &FakeAgents) -> Wireserver {
    Wireserver::new(&agents.url(Agent::Wireserver).parse().unwrap(), Limits::default()).unwrap()
}

fn target(token: &str) -> PublishTarget {
    let token = token.parse().unwrap();
    PublishTarget::new("10.0.0.4".parse().unwrap(), &NC.parse().unwrap(), token).unwrap()
}

#[tokio::test]
async fn the_interface_list_is_asked_for_and_a_status_is_looked_at() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let found = client.interfaces().await.unwrap();
    assert_eq!(found.primary().unwrap().primary_ip, Some("10.240.0.4".parse().unwrap()));
    assert_eq!(found.secondary_addresses().len(), 3);
    let requests = agents.take_requests();
    assert_eq!(requests[0].target, "/machine/plugins?comp=nmagent&type=getinterfaceinfov1");
    assert_eq!(requests[0].method, "GET");

    // The reference would take an HTML error page for XML (spec/host-agents.md §10.8).
    agents.fail("getinterface", Fault::Status(404));
    let error = client.interfaces().await.unwrap_err();
    assert_eq!(error.fault.status().unwrap(), 404);
    agents.heal();
    agents.fail_times("getinterface", Fault::Drop, 2);
    client.interfaces().await.unwrap();
    agents.heal();
    agents.fail("getinterface", Fault::Body("<html/>".into()));
    let error = client.interfaces().await.unwrap_err().to_string();
    assert!(
        error.ends_with(
            "interface list: the answer is no interface list: the root element is `html`, not `Interfaces`"
        ),
        "{error}"
    );
}

/// The wire format is exact: raw slashes, a slash before `?`, and a two-byte body where there is none (spec/host-agents.md §6.2).
#[tokio::test]
async fn the_proxy_sends_what_the_reference_sends() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let answer = client.join_network(&VNET.parse().unwrap()).await.unwrap();
    assert!(answer.is_ok());
    assert_eq!(
        (answer.nmagent_status(), &answer.body[..]),
        (Some(200), &b"{\"httpStatusCode\":\"200\"}"[..])
    );
    client.publish(&target("tok"), Bytes::from_static(b"{\"version\":\"3\"}")).await.unwrap();
    assert_eq!(agents.world(|world| world.ncs.clone()), [(NC.to_owned(), "3".to_owned())]);
    client.unpublish(&target("a+b/c=="), Bytes::new()).await.unwrap();
    assert!(agents.world(|world| world.ncs.is_empty() && world.joined.contains(VNET)));

    let sent = agents.take_requests();
    let prefix = "/machine/plugins/?comp=nmagent&type=NetworkManagement";
    let expected = [
        (format!("{prefix}/joinedVirtualNetworks/{VNET}/api-version/1"), "\"\""),
        (
            format!(
                "{prefix}/interfaces/10.0.0.4/networkContainers/{NC}/authenticationToken/tok/api-version/1"
            ),
            "{\"version\":\"3\"}",
        ),
        (
            format!(
                "{prefix}/interfaces/10.0.0.4/networkContainers/{NC}/authenticationToken/a%2Bb%2Fc%3D%3D/api-version/1/method/DELETE"
            ),
            "\"\"",
        ),
    ];
    assert_eq!(sent.len(), expected.len());
    for (request, (target, body)) in sent.iter().zip(expected) {
        assert_eq!(
            (request.method.as_str(), &request.target, &request.body[..]),
            ("POST", &target, body.as_bytes())
        );
        assert_eq!(request.headers["content-type"], "application/json");
        assert_eq!(request.headers["content-length"], body.len().to_string());
    }
}

#[tokio::test]
async fn any_status_is_passed_on_and_nothing_is_sent_twice() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    agents.fail("authenticationToken", Fault::Status(500));
    let answer = client.publish(&target("tok"), Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (500, &b"the fake agent says 500"[..]));
    assert_eq!(agents.take_requests().len(), 1);
    agents.heal();
    agents.fail("authenticationToken", Fault::InnerStatus("401".into()));
    let answer = client.publish(&target("tok"), Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!((answer.status, answer.nmagent_status()), (200, Some(401)), "the caller looks for it");
    agents.heal();
    agents.fail("authenticationToken", Fault::Drop);
    let error = client.publish(&target("secret"), Bytes::from_static(b"{}")).await.unwrap_err();
    let words = format!("{error} {error:?}");
    assert!(words.contains("publish network container") && !words.contains("secret"), "{words}");
    assert_eq!(agents.take_requests().len(), 2);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_not_sent() {
    let agents = FakeAgents::start().await.unwrap();
    let body = Bytes::from(vec![b'x'; LARGEST_PUBLISH_BODY + 1]);
    let error = client(&agents).publish(&target("tok"), body).await.unwrap_err();
    assert!(error.to_string().contains("1048577 bytes; at most 1048576"), "{error}");
    assert!(agents.take_requests().is_empty());
}
