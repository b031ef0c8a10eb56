use proptest::prelude::*;

use super::*;

const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

fn url(interface: &str, nc: &str, token: &str) -> String {
    format!(
        "http://168.63.129.16/machine/plugins/?comp=nmagent&type=NetworkManagement/interfaces/{interface}/networkContainers/{nc}/authenticationToken/{token}/api-version/1"
    )
}

#[test]
fn the_urls_of_legacy_callers_are_understood() {
    let plain = PublishTarget::from_url(&url("10.0.0.4", NC, "se-cr.et")).unwrap();
    assert_eq!((plain.interface.to_string().as_str(), plain.nc.as_str()), ("10.0.0.4", NC));
    assert_eq!(
        plain.kind(),
        format!(
            "NetworkManagement/interfaces/10.0.0.4/networkContainers/{NC}/authenticationToken/se-cr.et/api-version/1"
        )
    );
    let whole = url("10.0.0.4", NC, "se-cr.et");
    for same in [
        format!("{whole}/method/DELETE"),
        whole.replace("NetworkManagement/", "x/NetworkManagement/"),
        whole.replace("http://168.63.129.16/machine/plugins/", "https://evil.example/"),
        whole.replace("comp=nmagent&", ""),
        format!("{whole}&type=other"),
        format!("{whole}#fragment"),
        whole.split_once("type=").map(|(a, b)| format!("{a}type={}", b.replace('/', "%2F"))).unwrap(),
    ] {
        assert_eq!(PublishTarget::from_url(&same).as_ref(), Ok(&plain), "{same}");
    }
    let swift = PublishTarget::from_url(&url("fd00::4", &format!("Swift_{NC}"), "a")).unwrap();
    assert!(
        swift.kind().contains(&format!("/interfaces/fd00%3A%3A4/networkContainers/Swift_{NC}/")),
        "{}",
        swift.kind()
    );
}

/// Tokens in base64 have `+`, `/` and `=`. The reference's library turns `=` into `/` (spec/host-agents.md §10.3).
#[test]
fn tokens_in_base64_arrive_as_they_were() {
    for written in ["a+b/c==", "a%2Bb%2Fc%3D%3D", "a%2bb/c%3d="] {
        let target = PublishTarget::from_url(&url("10.0.0.4", NC, written)).unwrap();
        assert_eq!(target.token.secret(), "a+b/c==", "{written}");
        assert!(
            target.kind().ends_with("/authenticationToken/a%2Bb%2Fc%3D%3D/api-version/1"),
            "{}",
            target.kind()
        );
    }
}

/// spec/security.md §3: the reference pastes what it finds into a query of wireserver.
#[test]
fn nothing_can_be_injected_and_the_error_names_the_part() {
    for (bad, expected) in [
        ("http://h/?comp=nmagent".to_owned(), "no query parameter `type`"),
        ("http://h/".to_owned(), "no query parameter `type`"),
        (String::new(), "no query parameter `type`"),
        ("http://h/?type=x".to_owned(), "`NetworkManagement/interfaces` is missing"),
        ("http://h/?type=NetworkManagement/interfaces/10.0.0.4".to_owned(), "`networkContainers` is missing"),
        (url("10.0.0.4", NC, "t").replace("authenticationToken", "x"), "`authenticationToken` is missing"),
        (url("10.0.0.4", NC, "t").replace("api-version/1", "x"), "`api-version/1` is missing"),
        (url("10.0.0.4%26comp%3Dx", NC, "t"), "the interface in the URL is not valid: `10.0.0.4&comp=x`"),
        (url("host.example", NC, "t"), "the interface in the URL"),
        (url("", NC, "t"), "the interface in the URL"),
        (url("10.0.0.4%0d%0aX:y", NC, "t"), "`10.0.0.4\\r\\nX:y` is not an IP address"),
        (url("10.0.0.4", "", "t"), "the network container in the URL"),
        (url("10.0.0.4", "x%26comp%3Dother", "t"), "`x&comp=other` is not a network container id"),
        (url("10.0.0.4", &format!("Swift_Swift_{NC}"), "t"), "is not a network container id"),
        (url("10.0.0.4", NODE_SUBNET_NC_ID, "t"), "is not a network container id"),
        (url("10.0.0.4", NC, ""), "token (redacted) has 0 characters"),
        (url("10.0.0.4", NC, &"t".repeat(37)), "token (redacted) has 37 characters"),
        (url("10.0.0.4", NC, "se%26cret"), "invalid character at position 3"),
        (url("10.0.0.4", NC, "se%23cret"), "invalid character"),
        (url("10.0.0.4", NC, "se%2525cret"), "invalid character"),
        (url("10.0.0.4", NC, "se%3Fcret"), "invalid character"),
        (url("10.0.0.4", NC, "secret%0d%0aX:y"), "invalid character"),
        (url("10.0.0.4", NC, "s%C3%A9cret"), "invalid character"),
        (url("10.0.0.4", NC, "../../secret"), "path segment"),
        (url("10.0.0.4", NC, "secret/method/DELETE"), "path segment"),
        (url("10.0.0.4", NC, "secret/api-version/1/method"), "path segment"),
    ] {
        let error = PublishTarget::from_url(&bad).unwrap_err().to_string();
        assert!(error.contains(expected), "{bad}: {error}");
        assert!(!error.contains("cret"), "a token is shown: {error}");
    }
    let long = PublishTarget::from_url(&url(&"9".repeat(100_000), NC, "t")).unwrap_err().to_string();
    assert!(long.len() < 200);
}

#[test]
fn virtual_networks_are_uuids() {
    for good in [NC.to_owned(), format!("Swift_{NC}"), NC.to_uppercase()] {
        assert_eq!(good.parse::<VnetId>().unwrap().to_string(), good);
    }
    for bad in [
        "",
        "x&comp=other",
        "vnet#",
        &format!("{NC}/api-version/1?"),
        NODE_SUBNET_NC_ID,
        &format!("{NC}%26a"),
    ] {
        let error = bad.parse::<VnetId>().unwrap_err().to_string();
        assert!(error.contains("is not a virtual network id"), "{error}");
    }
}

#[test]
fn a_target_shows_no_token() {
    let target = PublishTarget::from_url(&url("10.0.0.4", NC, "secret")).unwrap();
    assert!(!format!("{target:?} {:?}", target.token).contains("secret"));
}

proptest! {
    #[test]
    fn whatever_is_accepted_stays_one_value_of_one_parameter(
        interface in "10\\.0\\.0\\.4|fd00::4|.{0,12}",
        nc in "(Swift_)?5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a1[0-9a-g]|.{0,12}",
        token in "[A-Za-z0-9._~+/=%&#? -]{0,38}|.{0,12}",
    ) {
        if let Ok(target) = PublishTarget::from_url(&url(&interface, &nc, &token)) {
            let kind = target.kind();
            prop_assert!(kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"/%-._~".contains(&b)), "{}", kind);
            let decoded = percent_decode_str(&kind).decode_utf8().unwrap();
            prop_assert_eq!(decoded.matches("/api-version/").count(), 1);
            prop_assert!(!decoded.contains("/method/") && !decoded.contains("/../"));
        }
    }

    #[test]
    fn no_url_makes_it_panic(url in ".{0,60}", tail in "(NetworkManagement/interfaces/|/networkContainers/|/authenticationToken/|/api-version/1|.){0,12}") {
        let _ = PublishTarget::from_url(&url);
        let _ = PublishTarget::from_url(&format!("?type={tail}"));
    }
}
