use super::*;
use crate::host::http::{AgentFault, Waiting};
use cns_fake_agents::{Agent, FakeAgents, Fault};

const VNET: &str = "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21";
const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

/// With pauses of a few milliseconds.
fn client(agents: &FakeAgents) -> Nmagent {
    let limits = Limits { attempt: Duration::from_millis(300), ..Limits::default() };
    let client = Nmagent::new(&agents.url(Agent::Wireserver).parse().unwrap(), limits).unwrap();
    Nmagent { patience: Pause::Fixed(Duration::from_millis(5)), ..client }
}

fn target(token: &str) -> PublishTarget {
    PublishTarget::new("10.0.0.4".parse().unwrap(), &NC.parse().unwrap(), token.parse().unwrap()).unwrap()
}

fn vnet() -> VnetId {
    VNET.parse().unwrap()
}

fn put() -> PutNetworkContainer {
    PutNetworkContainer {
        version: 3,
        vnet: vnet(),
        subnet_name: "delegated".into(),
        ipv4_addresses: vec!["10.1.0.5".parse().unwrap()],
        policies: vec![("p-id".into(), "p-type".into())],
        vlan_id: 0,
        gre_key: 0,
        az_id: 1,
        azr_enabled: true,
    }
}

/// Every call of spec/host-agents.md §5, in its wire format.
#[tokio::test]
async fn every_call_travels_as_the_library_sends_it() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    assert_eq!(client.supported_apis().await.unwrap(), ["GetHomeAz", "GetSupportedApis"]);
    assert_eq!(client.home_az().await.unwrap(), HomeAz { zone: NonZeroU32::new(2), ipv6_fix: true });
    assert_eq!(client.interfaces().await.unwrap().secondary_addresses().len(), 3);
    client.join_network(&vnet()).await.unwrap();
    let network = client.network_configuration(&vnet()).await.unwrap();
    assert_eq!((network.cnet_space.as_str(), network.subnets[0].name.as_str()), ("10.1.0.0/16", "delegated"));
    client.put_network_container(&target("a+b/c=="), &put()).await.unwrap();
    assert_eq!(client.nc_version(&target("a+b/c==")).await.unwrap().number(), Some(3));
    assert_eq!(client.nc_versions().await.unwrap().ncs[0].version, "3");
    client.delete_network_container(&target("a+b/c==")).await.unwrap();
    client.delete_network(&vnet()).await.unwrap();
    assert_eq!(client.nc_versions().await.unwrap(), NcVersions::default());

    let container = format!("NetworkManagement%2Finterfaces%2F10.0.0.4%2FnetworkContainers%2F{NC}");
    let token = "authenticationToken%2Fa%2Bb%2Fc%3D%3D%2Fapi-version%2F1";
    let network = format!("NetworkManagement%2FjoinedVirtualNetworks%2F{VNET}%2Fapi-version%2F1");
    let versions = "NetworkManagement%2Finterfaces%2Fapi-version%2F2";
    let body = format!(
        r#"{{"version":"3","virtualNetworkId":"{VNET}","subnetName":"delegated","ipV4Addresses":["10.1.0.5"],"policies":["p-id, p-type"],"vlanId":0,"greKey":0,"azID":1,"azrEnabled":true}}"#
    );
    let expected = [
        ("GET", "GetSupportedApis".to_owned(), ""),
        ("GET", "GetHomeAz%2Fapi-version%2F1".to_owned(), ""),
        ("GET", "getinterfaceinfov1".to_owned(), ""),
        ("POST", network.clone(), "\"\""),
        ("GET", network.clone(), ""),
        ("POST", format!("{container}%2F{token}"), &body),
        ("GET", format!("{container}%2Fversion%2F{token}"), ""),
        ("GET", versions.to_owned(), ""),
        ("POST", format!("{container}%2F{token}%2Fmethod%2FDELETE"), "\"\""),
        ("POST", format!("{network}%2Fmethod%2FDELETE"), "\"\""),
        ("GET", versions.to_owned(), ""),
    ];
    let sent = agents.take_requests();
    assert_eq!(sent.len(), expected.len());
    for (request, (method, kind, body)) in sent.iter().zip(expected) {
        assert_eq!(request.target, format!("/machine/plugins?comp=nmagent&type={kind}"));
        assert_eq!((request.method.as_str(), &request.body[..]), (method, body.as_bytes()), "{kind}");
        let json = request.headers.get("content-type").map(String::as_str);
        assert_eq!(json, (method == "POST").then_some("application/json"), "{kind}");
    }
}

#[tokio::test]
async fn refusals_are_told_apart_and_say_who_refused() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    for (inner, refusal) in [
        ("102", Refusal::InProgress),
        ("401", Refusal::Unauthorized),
        ("404", Refusal::NotFound),
        ("409", Refusal::Conflict),
        ("500", Refusal::Internal),
        ("503", Refusal::Other),
        ("201", Refusal::Other),
    ] {
        agents.heal();
        agents.fail("GetHomeAz", Fault::InnerStatus(inner.into()));
        let error = client.home_az().await.unwrap_err();
        assert_eq!((error.refusal(), error.status()), (Some(refusal), inner.parse().ok()));
        assert!(
            error
                .to_string()
                .starts_with(&format!("NMAgent, GetHomeAz: refused by nmagent with status {inner}: ")),
            "{error}"
        );
    }
    for (outer, refusal) in [(401, Refusal::Unauthorized), (404, Refusal::NotFound), (500, Refusal::Internal)]
    {
        agents.heal();
        agents.fail("GetHomeAz", Fault::Status(outer));
        let error = client.home_az().await.unwrap_err();
        assert_eq!(error.refusal(), Some(refusal));
        assert!(error.to_string().contains("refused by wireserver"), "{error}");
    }
    agents.heal();
    agents.fail("GetHomeAz", Fault::Hang);
    let error = client.within(Duration::from_millis(100)).home_az().await.unwrap_err();
    let NmagentError::Agent(AgentError { fault: AgentFault::Timeout { waiting, .. }, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(*waiting, Waiting::Answer);
    for (fault, expected) in [
        (Fault::NoInnerStatus, "no httpStatusCode property returned"),
        (Fault::InnerStatus("soon".into()), "`soon` is not an HTTP status"),
        (Fault::Body("<html/>".into()), "GetHomeAz: the answer is no home AZ: "),
        (Fault::Drop, "the connection broke"),
        (Fault::Truncate, "cut off after"),
    ] {
        agents.heal();
        agents.fail("GetHomeAz", fault);
        let error = client.home_az().await.unwrap_err();
        assert!(error.refusal().is_none() && error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn home_az_has_two_versions_and_zero_is_no_zone() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    for (zone, version, expected) in
        [(0, 0, (None, false)), (3, 0, (Some(3), false)), (1, 2, (Some(1), true))]
    {
        agents.world(|world| (world.home_az, world.home_az_api_version) = (zone, version));
        let found = client.home_az().await.unwrap();
        assert_eq!((found.zone.map(NonZeroU32::get), found.ipv6_fix), expected);
    }
    agents.world(|world| world.home_az_api_version = 3);
    let error = client.home_az().await.unwrap_err().to_string();
    assert!(error.ends_with("invalid homeaz api version (must be 0 or 2): received 3"), "{error}");
    agents.fail("GetHomeAz", Fault::Body(r#"{"httpStatusCode":"200","HOMEAZ":4,"new":{}}"#.into()));
    assert_eq!(client.home_az().await.unwrap().zone, NonZeroU32::new(4), "case and new keys do not matter");
}

#[tokio::test]
async fn joining_is_tried_again_while_nmagent_is_at_it() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    agents.fail_times("joinedVirtualNetworks", Fault::InnerStatus("102".into()), 5);
    client.join_network(&vnet()).await.unwrap();
    assert_eq!(agents.take_requests().len(), 6);
    agents.fail_times("joinedVirtualNetworks", Fault::InnerStatus("102".into()), 2);
    client.network_configuration(&vnet()).await.unwrap();
    agents.take_requests();

    agents.fail("joinedVirtualNetworks", Fault::InnerStatus("500".into()));
    assert_eq!(client.join_network(&vnet()).await.unwrap_err().refusal(), Some(Refusal::Internal));
    assert_eq!(agents.take_requests().len(), 1, "other refusals are for the caller");

    // The reference would wait without end, and would not notice that nobody waits with it (spec/host-agents.md §10.10).
    agents.heal();
    agents.fail("joinedVirtualNetworks", Fault::InnerStatus("102".into()));
    assert_eq!(client.join_network(&vnet()).await.unwrap_err().refusal(), Some(Refusal::InProgress));
    assert_eq!(agents.take_requests().len(), 16);
    let slow = Nmagent { patience: Pause::Fixed(Duration::from_secs(1)), ..client };
    assert_eq!(slow.join_within, Some(JOIN_WITHIN));
    tokio::time::timeout(Duration::from_millis(100), slow.join_network(&vnet())).await.unwrap_err();
    let error = slow.within(Duration::from_millis(50)).join_network(&vnet()).await.unwrap_err();
    assert_eq!(error.refusal(), Some(Refusal::InProgress), "no pause outlasts the caller's time");
}

#[tokio::test]
async fn leaving_a_network_that_was_not_joined_is_not_found() {
    let agents = FakeAgents::start().await.unwrap();
    let error = client(&agents).delete_network(&vnet()).await.unwrap_err();
    assert_eq!((error.refusal(), error.status()), (Some(Refusal::NotFound), Some(400)));
    agents.fail("GetHomeAz", Fault::InnerStatus("400".into()));
    assert_eq!(client(&agents).home_az().await.unwrap_err().refusal(), Some(Refusal::Other), "only there");
}

/// Large lists are cut in the reference, and ids in another case are not recognised (spec/host-agents.md §10.1, §10.7).
#[tokio::test]
async fn version_lists_may_be_large_chunked_null_or_partly_hostile() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    let many: Vec<(String, String)> =
        (0..5000).map(|n| (format!("5a2f0c1e-7b7d-4b38-9b1f-{n:012x}"), n.to_string())).collect();
    agents.world(|world| world.ncs = many);
    agents.fail("interfaces/api-version/2", Fault::Chunked);
    let found = client.nc_versions().await.unwrap();
    assert_eq!((found.ncs.len(), found.by_id().len(), found.refused.len()), (5000, 5000, 0));

    agents.heal();
    let entries = [
        ("x&comp=other", "1"),
        (NC, "7"),
        ("../../etc", "1"),
        (&format!("Swift_{}", NC.to_uppercase()), "8"),
    ];
    agents.world(|world| world.ncs = entries.map(|(id, version)| (id.into(), version.into())).into());
    let found = client.nc_versions().await.unwrap();
    assert_eq!(
        found.by_id()[&NC.parse().unwrap()].number(),
        Some(8),
        "prefix and case do not matter, the last counts"
    );
    assert_eq!((found.ncs.len(), found.refused.len()), (2, 2));
    assert!(found.refused[0].contains("`x&comp=other` is not a network container id"), "{:?}", found.refused);

    for (list, ncs, refused) in [
        ("null", 0, 0),
        ("[]", 0, 0),
        (r#"[null,7,{"networkContainerId":7}]"#, 0, 3),
        (&format!(r#"[{{"NETWORKCONTAINERID":"{NC}","version":"soon"}}]"#), 1, 0),
        (&format!(r#"[{{"networkContainerId":"{NC}","version":null}}]"#), 1, 0),
    ] {
        agents.heal();
        let body = format!(r#"{{"httpStatusCode":"200","networkContainers":{list}}}"#);
        agents.fail("interfaces/api-version/2", Fault::Body(body.into()));
        let found = client.nc_versions().await.unwrap();
        assert_eq!((found.ncs.len(), found.refused.len()), (ncs, refused), "{list}");
        assert!(found.ncs.iter().all(|nc| nc.number().is_none()));
    }
}

#[tokio::test]
async fn supported_apis_are_the_types_below_the_root() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    agents.world(|world| world.supported_apis = vec!["a&b<c".into()]);
    assert_eq!(client.supported_apis().await.unwrap(), ["a&b<c"]);
    agents.fail("GetSupportedApis", Fault::ContentType("application/json".into()));
    assert_eq!(client.supported_apis().await.unwrap(), ["a&b<c"], "content types say nothing");
    for (body, expected) in [
        ("<x/>", &[][..]),
        ("<x><type/><other>no</other><type> yes <b>no</b></type></x>", &["", "yes"]),
        ("<x><y><type>deeper</type></y><type><![CDATA[plain]]></type></x>", &["plain"]),
    ] {
        agents.heal();
        agents.fail("GetSupportedApis", Fault::Body(body.into()));
        assert_eq!(client.supported_apis().await.unwrap(), expected, "{body}");
    }
    agents.heal();
    agents.fail("GetSupportedApis", Fault::InnerStatus("500".into()));
    assert_eq!(client.supported_apis().await.unwrap_err().refusal(), Some(Refusal::Internal));
}

#[tokio::test]
async fn what_nmagent_needs_is_checked_before_anything_is_sent() {
    let agents = FakeAgents::start().await.unwrap();
    for (container, missing) in [
        (PutNetworkContainer { subnet_name: String::new(), ..put() }, "subnet name"),
        (PutNetworkContainer { ipv4_addresses: Vec::new(), ..put() }, "IPv4 address"),
    ] {
        let error = client(&agents).put_network_container(&target("t"), &container).await.unwrap_err();
        assert!(error.to_string().contains(missing), "{error}");
    }
    assert!(agents.take_requests().is_empty());
}

#[tokio::test]
async fn no_error_shows_a_token() {
    let agents = FakeAgents::start().await.unwrap();
    let echo = format!("no /networkContainers/{NC}/authenticationToken/sec+ret/api-version/1");
    for fault in [Fault::InnerStatus("401".into()), Fault::Status(500), Fault::Drop, Fault::Body(echo.into())]
    {
        agents.heal();
        agents.fail("authenticationToken", fault);
        let client = client(&agents);
        let error = client.nc_version(&target("sec+ret")).await.unwrap_err();
        let words = format!("{error} {error:?} {:?} {:?}", client.state().status(), target("sec+ret"));
        assert!(!words.contains("sec+ret") && !words.contains("sec%2Bret"), "{words}");
    }
}

#[tokio::test]
async fn not_found_is_no_failure_of_the_agent() {
    let agents = FakeAgents::start().await.unwrap();
    let client = client(&agents);
    agents.fail("GetHomeAz", Fault::InnerStatus("404".into()));
    client.home_az().await.unwrap_err();
    assert_eq!(client.state().status().is_answering(), Some(true));
    agents.heal();
    agents.fail("GetHomeAz", Fault::InnerStatus("401".into()));
    client.home_az().await.unwrap_err();
    let status = client.state().status();
    assert!(status.last_failure.as_ref().unwrap().error.contains("OwningServiceInstanceId"), "{status:?}");
}
