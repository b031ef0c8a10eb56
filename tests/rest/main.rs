//! The legacy REST contract, black box: vectors in `vectors/` are replayed against live daemons over raw HTTP/1.1. Adding a
//! case needs no code; `README.md` says how.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "../support/cns.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod cns_under_test;
#[path = "../support/docker.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod docker_under_test;
#[path = "../support/lab.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod lab;
#[path = "../support/need.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod need;

mod http;
mod json;
mod keyvault;
mod limits;
mod pattern;
mod replay;
mod router;
mod tls;
mod vector;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// One test for each file of `vectors/`, named like it.
macro_rules! vector_files {
    ($($name:ident)*) => {
        const FILES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                replay::replay(stringify!($name)).await;
            }
        )*
    };
}

vector_files! {
    apipa_endpoints
    attach_detach
    cpu_cores
    create_network_container
    debug
    decoding
    delete_network_container
    docker_networks
    encoding
    endpoints
    environment
    hns
    home_az
    host_local_ip
    interface_for_container
    local_listener
    nc_list
    network_containers
    nic_resources
    nmagent_supported_apis
    orchestrator_type
    publish
    query_network_containers
    release_ip_config
    release_ip_configs
    request_claim
    request_ip_config
    request_ip_configs
    routing
    standalone_swift
    unpublish
    vm_unique_id
}

/// The paths of spec/rest-contract.md §3 that have handlers.
const ROUTES: &[&str] = &[
    "/network/environment",
    "/network/create",
    "/network/delete",
    "/network/hns/create",
    "/network/hns/delete",
    "/network/ip/hostlocal",
    "/network/setorchestratortype",
    "/network/createorupdatenetworkcontainer",
    "/network/deletenetworkcontainer",
    "/network/getnetworkcontainerbyorchestratorcontext",
    "/network/getAllNetworkContainers",
    "/network/networkcontainers",
    "/network/getinterfaceforcontainer",
    "/network/attachcontainertonetwork",
    "/network/detachcontainerfromnetwork",
    "/hostcpucores",
    "/network/createhostncapipaendpoint",
    "/network/deletehostncapipaendpoint",
    "/network/publishnetworkcontainer",
    "/network/unpublishnetworkcontainer",
    "/network/nmagentsupportedapis",
    "/network/requestipconfigs",
    "/network/requestipconfig",
    "/network/releaseipconfigs",
    "/network/releaseipconfig",
    "/network/endpoints/",
    "/debug/ipaddresses",
    "/debug/podcontext",
    "/debug/restdata",
    "/homeaz",
    "/network/nicresources",
    "/network/requestclaimresourceinfo",
    "/nclist",
    "/metadata/vmuniqueid",
];

/// Fewer would mean that a file got lost.
const LEAST_CASES: usize = 850;

#[test]
fn vectors_are_well_formed() {
    let mut problems = Vec::new();
    let mut covered: BTreeMap<String, usize> = BTreeMap::new();
    let mut total = 0;
    for name in FILES {
        let vectors = match vector::Vectors::read(name) {
            Ok(vectors) => vectors,
            Err(error) => {
                problems.push(error);
                continue;
            }
        };
        let mut groups = BTreeSet::new();
        for group in &vectors.content.groups {
            if !groups.insert(&group.name) {
                problems.push(format!("{name}: two groups {}", group.name));
            }
            if let Some(Err(error)) = group.daemon.config.as_ref().map(|config| vectors.json(config)) {
                problems.push(format!("{name} / {}: config: {error}", group.name));
            }
            let mut cases = BTreeSet::new();
            for case in &group.cases {
                let place = format!("{name} / {} / {}", group.name, case.name);
                if !cases.insert(&case.name) {
                    problems.push(format!("{place}: twice"));
                }
                total += 1;
                match replay::request(&vectors, case, "") {
                    Ok(_) => {
                        let path = case.request.path.as_deref().unwrap_or(&vectors.content.route);
                        let path = path.split('?').next().unwrap_or_default();
                        let path = path.strip_prefix("/v0.2").unwrap_or(path);
                        let route = ROUTES.iter().find(|route| {
                            **route == path || (route.ends_with('/') && path.starts_with(**route))
                        });
                        *covered.entry(route.map_or("(other)", |route| route).to_owned()).or_default() += 1;
                    }
                    Err(error) => problems.push(format!("{place}: request: {error}")),
                }
                let nothing = http::Answer { status: 0, headers: Vec::new(), body: Vec::new() };
                match replay::differences(&vectors, &case.response, &nothing) {
                    Ok(wrong) if wrong.is_empty() => problems.push(format!("{place}: expects nothing")),
                    Ok(_) => {}
                    Err(error) => problems.push(format!("{place}: response: {error}")),
                }
            }
        }
    }
    for entry in fs::read_dir(vector::directory()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let listed = file.strip_suffix(".json").is_some_and(|name| FILES.contains(&name));
        if !listed && file != "shapes.json" {
            problems.push(format!("vectors/{file} is not listed in main.rs"));
        }
    }
    for route in ROUTES {
        if !covered.contains_key(*route) {
            problems.push(format!("no vector asks for {route}"));
        }
    }
    for (route, count) in &covered {
        println!("{count:4} {route}");
    }
    println!("{total:4} in all");
    assert!(total >= LEAST_CASES, "{total} cases, {LEAST_CASES} were there once");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
