//! What each agent answers when all is well.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Agent, Recorded, World, wire::Reply};

pub(super) fn answer(world: &mut World, request: &Recorded) -> Reply {
    match request.agent {
        Agent::Wireserver => wireserver(world, request),
        Agent::Imds => imds(world, request),
        Agent::Dnc => dnc(world, request),
        Agent::KeyVault => key_vault(world, request),
        Agent::Insights => insights(world, request),
    }
}

/// Items that Application Insights remembers here; a program that runs for days must not keep them all.
const TRACKED: usize = 4096;

fn insights(world: &mut World, request: &Recorded) -> Reply {
    if request.method != "POST" || request.target != "/v2.1/track" {
        return Reply::text(404, "no such page");
    }
    if request.headers.get("content-type").is_none_or(|kind| kind != "application/x-json-stream") {
        return Reply::text(415, "application/x-json-stream is expected");
    }
    let (mut received, mut errors) = (0_usize, Vec::new());
    for line in request.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let whole = |item: &Value| {
            let texts = ["name", "time", "iKey"].iter().all(|key| item[*key].is_string());
            texts && item["data"]["baseType"].is_string() && item["data"]["baseData"]["ver"] == 2
        };
        match serde_json::from_slice::<Value>(line) {
            Ok(item) if whole(&item) => world.tracked.push(item),
            Ok(_) => {
                errors.push(json!({"index": received, "statusCode": 400, "message": "a field is missing"}));
            }
            Err(error) => {
                errors.push(json!({"index": received, "statusCode": 400, "message": error.to_string()}));
            }
        }
        received += 1;
    }
    if world.tracked.len() > TRACKED {
        world.tracked.drain(..TRACKED / 2);
    }
    let accepted = received - errors.len();
    let answer = json!({"itemsReceived": received, "itemsAccepted": accepted, "errors": errors});
    match (accepted, errors.len()) {
        (_, 0) => Reply::json(&answer),
        (0, _) => Reply::text(400, answer.to_string()),
        _ => Reply { status: 206, ..Reply::json(&answer) },
    }
}

fn wireserver(world: &mut World, request: &Recorded) -> Reply {
    if request.method == "POST" && request.headers.get("content-length").is_none_or(|length| length == "0") {
        return Reply::text(411, "length required");
    }
    let Some((path, query)) = request.target.split_once('?') else {
        return Reply::text(404, "no such page");
    };
    if !matches!(path, "/machine/plugins" | "/machine/plugins/") {
        return Reply::text(404, "no such page");
    }
    let parameters: Vec<(&str, String)> = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (name, form_decoded(value)))
        .collect();
    match parameters.as_slice() {
        [("comp", comp), ("type", kind)] if comp == "nmagent" => {
            nmagent(world, &request.method, kind, &request.body)
        }
        _ => Reply::text(400, "comp and type are expected, in this order, and nothing else"),
    }
}

fn nmagent(world: &mut World, method: &str, kind: &str, body: &[u8]) -> Reply {
    let segments: Vec<&str> = kind.split('/').collect();
    let done = || Reply::json(&json!({"httpStatusCode": "200"}));
    match (method, segments.as_slice()) {
        ("GET", ["GetSupportedApis"]) => xml(supported_apis(&world.supported_apis)),
        ("GET", ["getinterfaceinfov1"]) => xml(interfaces(world)),
        ("GET", ["GetHomeAz", "api-version", "1"]) => Reply::json(&json!({
            "httpStatusCode": "200", "homeAz": world.home_az, "apiVersion": world.home_az_api_version,
        })),
        ("GET", ["NetworkManagement", "interfaces", "api-version", "2"]) => {
            let ncs: Vec<Value> = world
                .ncs
                .iter()
                .map(|(id, version)| json!({"networkContainerId": id, "version": version}))
                .collect();
            Reply::json(&json!({"httpStatusCode": "200", "networkContainers": ncs}))
        }
        (_, ["NetworkManagement", "joinedVirtualNetworks", vnet, "api-version", "1", rest @ ..]) => {
            match (method, rest) {
                ("POST", []) => {
                    world.joined.insert((*vnet).to_owned());
                    done()
                }
                ("POST", ["method", "DELETE"]) => {
                    if world.joined.remove(*vnet) {
                        done()
                    } else {
                        inner(400)
                    }
                }
                ("GET", []) if world.joined.contains(*vnet) => Reply::json(&json!({
                    "httpStatusCode": "200", "cnetSpace": "10.1.0.0/16", "defaultGateway": "10.1.0.1",
                    "dnsServers": ["168.63.129.16"], "vnetSpace": "10.0.0.0/8", "vnetVersion": "1",
                    "subnets": [{"addressPrefix": "10.1.0.0/24", "subnetName": "delegated", "tags": null}],
                })),
                _ => inner(404),
            }
        }
        (_, ["NetworkManagement", "interfaces", _, "networkContainers", nc, rest @ ..]) => {
            network_container(world, method, nc, rest, body)
        }
        _ => inner(404),
    }
}

fn network_container(world: &mut World, method: &str, nc: &str, rest: &[&str], body: &[u8]) -> Reply {
    let found = world.ncs.iter().position(|(id, _)| id.eq_ignore_ascii_case(nc));
    match (method, rest) {
        ("GET", ["version", "authenticationToken", .., "api-version", "1"]) => {
            found.and_then(|at| world.ncs.get(at)).map_or_else(
                || inner(404),
                |(id, version)| {
                    Reply::json(
                        &json!({"httpStatusCode": "200", "networkContainerId": id, "version": version}),
                    )
                },
            )
        }
        ("POST", ["authenticationToken", .., "api-version", "1", "method", "DELETE"]) => {
            world.ncs.retain(|(id, _)| !id.eq_ignore_ascii_case(nc));
            Reply::json(&json!({"httpStatusCode": "200"}))
        }
        ("POST", ["authenticationToken", .., "api-version", "1"]) => {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            let version = body["version"].as_str().unwrap_or("0").to_owned();
            match found.and_then(|at| world.ncs.get_mut(at)) {
                Some(known) => known.1 = version,
                None => world.ncs.push((nc.to_owned(), version)),
            }
            Reply::json(&json!({"httpStatusCode": "200"}))
        }
        _ => inner(404),
    }
}

fn inner(status: u16) -> Reply {
    Reply::json(&json!({"httpStatusCode": status.to_string()}))
}

fn xml(text: String) -> Reply {
    Reply { status: 200, content_type: "text/xml".into(), body: text.into() }
}

fn supported_apis(apis: &[String]) -> String {
    let types: String = apis.iter().fold(String::new(), |mut text, api| {
        let _ = write!(text, "<type>{}</type>", escaped(api));
        text
    });
    format!("<SupportedAPIsResponseXML>{types}</SupportedAPIsResponseXML>")
}

fn interfaces(world: &World) -> String {
    let mut text = "<Interfaces>".to_owned();
    for interface in &world.interfaces {
        let (mac, primary, prefix) =
            (escaped(&interface.mac), interface.is_primary, escaped(&interface.prefix));
        let _ = write!(
            text,
            "<Interface MacAddress=\"{mac}\" IsPrimary=\"{primary}\"><IPSubnet Prefix=\"{prefix}\">"
        );
        for (address, primary) in &interface.addresses {
            let _ = write!(text, "<IPAddress Address=\"{}\" IsPrimary=\"{primary}\"/>", escaped(address));
        }
        text.push_str("</IPSubnet></Interface>");
    }
    text.push_str("</Interfaces>");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn imds(world: &World, request: &Recorded) -> Reply {
    if request.headers.get("metadata").is_none_or(|value| !value.eq_ignore_ascii_case("true")) {
        return Reply::text(400, r#"{"error":"Bad request. Required metadata header not specified"}"#);
    }
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let parameter = |name: &str| {
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, v)| form_decoded(v))
    };
    let known = parameter("api-version").is_some_and(|version| world.imds_versions.contains(&version));
    match path {
        "/metadata/versions" => Reply::json(&json!({"apiVersions": world.imds_versions})),
        "/metadata/instance/compute" if known => Reply::json(&json!({
            "vmId": world.vm_id, "name": "node-1", "location": "westeurope", "azEnvironment": "AzurePublicCloud",
            "subscriptionId": "00000000-0000-0000-0000-000000000001", "resourceGroupName": "rg",
            "vmScaleSetName": "", "vmSize": "Standard_D4s_v5", "zone": "2", "osType": "Linux", "version": "22.04.202511010",
        })),
        "/metadata/instance/network" if known => {
            let interfaces: Vec<Value> = world
                .imds_interfaces
                .iter()
                .map(|(mac, compartment)| json!({"macAddress": mac, "interfaceCompartmentID": compartment}))
                .collect();
            Reply::json(&json!({"interface": interfaces}))
        }
        "/metadata/identity/oauth2/token" => match (parameter("resource"), parameter("msi_res_id")) {
            // Without an identity: the machine's own.
            (Some(resource), identity)
                if identity.as_ref().is_none_or(|id| id.starts_with("/subscriptions/")) =>
            {
                Reply::json(&json!({
                    "access_token": world.access_token, "expires_in": world.token_expires_in.to_string(),
                    "resource": resource, "token_type": "Bearer",
                }))
            }
            _ => Reply::text(400, r#"{"error":"invalid_request","error_description":"Identity not found"}"#),
        },
        "/metadata/instance/compute" | "/metadata/instance/network" => {
            Reply::text(400, r#"{"error":"Bad request. api-version is invalid or was not specified"}"#)
        }
        _ => Reply::text(404, "no such page"),
    }
}

fn dnc(world: &mut World, request: &Recorded) -> Reply {
    let Some((path, "api-version=2018-03-01")) = request.target.split_once('?') else {
        return Reply::text(400, "api-version is not known");
    };
    let segments: Vec<String> = path.trim_start_matches('/').split('/').map(percent_decoded).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match (request.method.as_str(), segments.as_slice()) {
        ("POST", ["networks", _, "node", node]) => {
            let Ok(body) = serde_json::from_slice(&request.body) else {
                return Reply::text(400, "the body is not JSON");
            };
            world.registered = Some(body);
            let (kind, partition) = &world.registration;
            Reply::json(&json!({"OrchestratorType": kind, "DncPartitionKey": partition, "NodeID": node}))
        }
        ("GET", ["networks", _, "node", _, "networkcontainers"]) => {
            Reply::json(&json!({"NetworkContainers": world.dnc_ncs}))
        }
        _ => Reply::text(404, "no such page"),
    }
}

fn key_vault(world: &World, request: &Recorded) -> Reply {
    let authorized = format!("Bearer {}", world.access_token);
    if request.headers.get("authorization") != Some(&authorized) {
        return Reply::text(
            401,
            r#"{"error":{"code":"Unauthorized","message":"AKV10000: no bearer token"}}"#,
        );
    }
    let path = request.target.split_once('?').map_or(request.target.as_str(), |(path, _)| path);
    let name = path.strip_prefix("/secrets/").unwrap_or_default();
    match world.secrets.get(name) {
        Some((kind, value)) => Reply::json(&json!({
            "value": value, "contentType": kind, "attributes": {"enabled": true},
            "id": format!("https://vault.example/secrets/{name}/0123456789abcdef0123456789abcdef"),
        })),
        None => Reply::text(404, r#"{"error":{"code":"SecretNotFound","message":"no such secret"}}"#),
    }
}

pub(super) fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn form_decoded(text: &str) -> String {
    percent_decoded(&text.replace('+', " "))
}
