use proptest::prelude::*;

use super::*;

fn list(inner: &str) -> HostInterfaces {
    HostInterfaces::decode(format!("<Interfaces>{inner}</Interfaces>").as_bytes()).unwrap()
}

fn fault(body: &[u8]) -> String {
    match HostInterfaces::decode(body) {
        Err(ReadFault::Decode { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

const ONE: &str = r#"<Interface IsPrimary="True" MacAddress="000D3AF9DCA6">
  <IPSubnet Prefix="10.240.0.0/16">
    <IPAddress IsPrimary="1" Address="10.240.0.4"/><IPAddress Address="10.240.0.5" IsPrimary="false"></IPAddress>
    <IPAddress Address="10.240.0.6"/>
  </IPSubnet></Interface>"#;

#[test]
fn the_primary_interface_and_the_pool_of_the_node() {
    let other = ONE.replace("True", "false").replace("10.240", "10.99");
    let found = list(&format!("{other}{ONE}"));
    assert!(found.refused.is_empty(), "{:?}", found.refused);
    let primary = found.primary().unwrap();
    assert_eq!(primary.mac.unwrap().to_string(), "00:0d:3a:f9:dc:a6");
    assert_eq!(primary.subnet.to_string(), "10.240.0.0/16");
    assert_eq!(primary.gateway, "10.240.0.1".parse::<IpAddr>().unwrap());
    assert_eq!(primary.primary_ip, Some("10.240.0.4".parse().unwrap()));
    let pool = found.secondary_addresses();
    assert_eq!(
        pool,
        ["10.240.0.5", "10.240.0.6"].map(|ip| ip.parse::<IpAddr>().unwrap()),
        "only primary ones"
    );
}

#[test]
fn the_primary_interface_needs_a_subnet_with_room_for_a_gateway() {
    let empty = r#"<Interface MacAddress="000D3AF9DCA6" IsPrimary="true"/>"#;
    assert_eq!(list("").primary(), Err(NoPrimaryInterface::None { interfaces: 0 }));
    assert_eq!(list(empty).primary(), Err(NoPrimaryInterface::None { interfaces: 1 }));
    assert_eq!(list(&format!("{empty}{ONE}")).primary().unwrap().subnet.to_string(), "10.240.0.0/16");
    for tight in ["10.240.0.4/32", "fd00::4/128"] {
        let error = list(&ONE.replace("10.240.0.0/16", tight)).primary().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("insufficient address space to generate gateway IP in {tight}")
        );
    }
    for (subnet, expected) in [
        ("10.240.0.9/16", "10.240.0.1"),
        ("10.255.255.254/31", "10.255.255.255"),
        ("10.0.255.0/32", ""),
        ("fd00::ffff/64", "fd00::1"),
    ] {
        assert_eq!(gateway(subnet.parse().unwrap()), expected.parse().ok(), "{subnet}");
    }
    let two = ONE.replace(r#"Address="10.240.0.6""#, r#"Address="10.240.0.6" IsPrimary="true""#);
    assert_eq!(list(&two).primary().unwrap().primary_ip, Some("10.240.0.6".parse().unwrap()), "the last one");
}

/// In the reference one bad text fails the whole answer (spec/host-agents.md §5).
#[test]
fn one_bad_entry_is_told_and_does_not_lose_the_others() {
    for (good, bad, told) in [
        ("10.240.0.5", "10.240.0.500", "`10.240.0.500` is not an IP address"),
        ("10.240.0.5", "10.241.0.5", "10.241.0.5 is not an address of its subnet 10.240.0.0/16"),
        ("10.240.0.5", "10.240.0.4", "10.240.0.4 stands in the list more than once"),
        ("10.240.0.5", "fd00::5", "fd00::5 is not an address of its subnet 10.240.0.0/16"),
        ("10.240.0.5", "&#x1b;[2J", "`\\u{1b}[2J` is not an IP address"),
    ] {
        let found = list(&ONE.replace(good, bad));
        assert_eq!(found.refused, [told]);
        assert_eq!(found.secondary_addresses(), ["10.240.0.6".parse::<IpAddr>().unwrap()], "{bad}");
        assert!(found.primary().is_ok());
    }
    let found = list(&format!("{}{ONE}", ONE.replace("10.240.0.0/16", "10.240.0.0/99")));
    assert_eq!(found.refused[0], "`10.240.0.0/99` is not the prefix of a subnet");
    assert_eq!(found.refused.len(), 4, "its addresses, too: {:?}", found.refused);
    assert_eq!(found.secondary_addresses().len(), 2);
    let found = list(&ONE.replace("000D3AF9DCA6", "x").replace("True", "yes"));
    assert_eq!(
        found.refused,
        ["`x` is not the MAC address of an interface", "`yes` of Interface is neither true nor false"]
    );
    let found = list(&ONE.replace("10.240.0.5", "10.240.0.5\"/><IPAddress Address=\"x").repeat(50));
    assert_eq!(found.refused.len(), 32, "a hostile list does not fill the log");
}

#[test]
fn what_is_no_interface_list_is_a_fault_that_says_where() {
    for (body, expected) in [
        ("", "there is no element"),
        ("{\"httpStatusCode\":\"200\"}", "there is no element"),
        ("<html><body>503</body></html>", "the root element is `html`, not `Interfaces`"),
        ("<Interfaces>", "ends inside an element"),
        ("<Interfaces></Other>", "malformed XML at byte"),
        ("<Interfaces/><Interfaces/>", "a second root element"),
        ("<Interfaces><Interface IsPrimary=yes/></Interfaces>", "malformed XML at byte 12"),
        ("<!DOCTYPE x [<!ENTITY a \"aa\">]><Interfaces>&a;</Interfaces>", "a document type at byte 0"),
        ("<Interfaces>&a;</Interfaces>", "an entity that XML does not define"),
        ("<Interfaces><Interface MacAddress=\"&a;\"/></Interfaces>", "malformed XML"),
    ] {
        let why = fault(body.as_bytes());
        assert!(why.contains(expected), "{body}: {why}");
    }
    assert!(fault(b"<Interfaces>\xff").contains("not UTF-8 at byte 12"));
    assert!(fault("<a>".repeat(100_000).as_bytes()).contains("more than 16 elements are nested"));
    assert!(HostInterfaces::decode("\u{feff}<?xml version=\"1.0\"?><Interfaces/>".as_bytes()).is_ok());
}

#[test]
fn macs_are_read_in_the_spellings_of_agents() {
    let mac = Some(MacAddr::new([0, 0x0d, 0x3a, 0xf9, 0xdc, 0xa6]));
    for text in [
        "000D3AF9DCA6",
        "000d3af9dca6",
        "00:0D:3a:F9:DC:A6",
        "00-0d-3a-f9-dc-a6",
        "000d.3af9.dca6",
        " 000D3AF9DCA6 ",
    ] {
        assert_eq!(parse_mac(text), mac, "{text}");
    }
    for text in
        ["", "000D3AF9DCA", "000D3AF9DCA6A", "000D3AF9DCAG", "0.00d3af9dca.6", "+00D3AF9DCA6", "é00D3AF9DCA"]
    {
        assert_eq!(parse_mac(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn nothing_like_xml_makes_it_panic(
        text in "(<Interfaces>|</Interfaces>|<Interface |<IPSubnet Prefix='10.0.0.0/8'>|<IPAddress Address='|IsPrimary=|'1'|/>|>|&|;|<!|\\[|é|.){0,20}",
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let _ = HostInterfaces::decode(text.as_bytes());
        let _ = HostInterfaces::decode(format!("<Interfaces>{text}").as_bytes());
        let _ = HostInterfaces::decode(&bytes);
        let _ = parse_mac(&text);
    }
}
