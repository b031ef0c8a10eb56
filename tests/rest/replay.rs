//! Replays a file against daemons and reports all that differs at once.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
};

use cns_fake_agents::{Agent, FakeAgents, Fault};

use super::{
    cns_under_test::{Cns, free_port, until},
    docker_under_test::Docker,
    http::{self, Answer},
    json::Json,
    need, pattern,
    vector::{AgentFault, Agents, Case, Daemon, Group, Response, Vectors},
};

/// A Standalone daemon whose NC has the addresses 10.244.0.2 to 10.244.0.14 for pods, or what the group wants.
async fn daemon(vectors: &Vectors, group: &Daemon) -> (Cns, SocketAddr, Option<FakeAgents>) {
    // Free a moment ago; the next port that the kernel gives away is another one.
    let port = free_port();
    let mut args = if group.local {
        vec!["-p".to_owned(), port.to_string()]
    } else {
        vec!["-c".to_owned(), format!("tcp://127.0.0.1:{port}")]
    };
    let mut cns = Cns::prepared(&[]);
    let path = cns.directory().join("cns_config.json");
    let agents = match &group.agents {
        Some(wanted) => Some(agents(wanted).await),
        None => None,
    };
    let content = match (&group.config, &agents) {
        (Some(config), _) => vectors.json(config).unwrap().to_string(),
        (None, Some(agents)) => serde_json::json!({
            "ChannelMode": "Direct",
            "WireserverIP": agents.address(Agent::Wireserver).to_string(),
            "TelemetrySettings": {"DisableAll": true},
            "Node": {"IMDSURL": agents.url(Agent::Imds), "DockerURL": docker(group)},
        })
        .to_string(),
        (None, None) => serde_json::json!({"Node": {"DockerURL": docker(group)}}).to_string(),
    };
    fs::write(&path, content).unwrap();
    args.extend(["--config-path".to_owned(), path.to_str().unwrap().to_owned()]);
    if group.config.is_none() && agents.is_none() && group.args.is_empty() {
        args.extend(["--standalone-cidr".to_owned(), "10.244.0.0/28".to_owned()]);
    }
    args.extend(group.args.iter().cloned());
    cns.set_args(&args.iter().map(String::as_str).collect::<Vec<_>>());
    cns.launch().await;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    until("the REST listener", || async { tokio::net::TcpStream::connect(server).await.is_ok() }).await;
    (cns, server, agents)
}

async fn agents(wanted: &Agents) -> FakeAgents {
    let agents = FakeAgents::start().await.unwrap();
    agents.world(|world| world.ncs = wanted.ncs.clone().into_iter().collect());
    for (target, fault) in &wanted.faults {
        let fault = match fault {
            AgentFault::Status(status) => Fault::Status(*status),
            AgentFault::Drop(_) => Fault::Drop,
        };
        agents.fail(target, fault);
    }
    agents
}

/// Where the group's docker is. That of the machine is no part of a test.
fn docker(group: &Daemon) -> String {
    let Some(wanted) = &group.docker else {
        return format!("http://127.0.0.1:{}", free_port());
    };
    let docker = Docker::start(&wanted.networks);
    for (method, fault) in &wanted.faults {
        docker.set_fault(method, Some(*fault));
    }
    docker.url()
}

/// A daemon with these arguments and a REST listener.
pub(crate) async fn daemon_with(args: &[&str]) -> (Cns, SocketAddr) {
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}");
    let cns = Cns::start(&[&["-c", &url], args].concat()).await;
    (cns, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// Without `-c` the daemon listens on the address by which this machine reaches others, too, and wants one.
fn has_primary_address() -> bool {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).is_ok()
}

/// Replays every group of the file `name`; panics with a report of every failure.
pub(crate) async fn replay(name: &str) {
    let vectors = Vectors::read(name).unwrap();
    let (mut failures, mut count) = (Vec::new(), 0);
    for group in &vectors.content.groups {
        for prefix in [Some(""), group.also_under.as_deref()].into_iter().flatten() {
            count += group.cases.len();
            failures.extend(replay_group(&vectors, group, prefix).await);
        }
    }
    let (failed, text) = (failures.len(), failures.join("\n"));
    assert!(failures.is_empty(), "{failed} of {count} cases of {} failed\n\n{text}", vectors.file);
}

async fn replay_group(vectors: &Vectors, group: &Group, prefix: &str) -> Vec<String> {
    if group.daemon.local && !has_primary_address() {
        need::skip(&format!("{} / {}", vectors.file, group.name), "this machine has no primary address");
        return Vec::new();
    }
    let (cns, server, _agents) = daemon(vectors, &group.daemon).await;
    let mut failures = Vec::new();
    for case in &group.cases {
        let (method, bytes) = request(vectors, case, prefix).unwrap();
        let answer = http::exchange(server, &bytes, &method).await;
        let wrong = match &answer {
            Ok(answer) => differences(vectors, &case.response, answer).unwrap(),
            Err(error) => vec![error.to_string()],
        };
        if wrong.is_empty() {
            continue;
        }
        let mut report =
            format!("--- {} / {}{prefix} / {}\n", vectors.file, group.name, case.name.escape_debug());
        let spec = case.spec.as_deref().unwrap_or("-");
        let _ = writeln!(report, "specification: {spec}");
        let _ = writeln!(report, "request:\n{}\n", shown(&bytes));
        let _ = writeln!(report, "expected: {}\n", expectation(vectors, &case.response).unwrap());
        match answer {
            Ok(answer) => drop(writeln!(report, "got: {}\n", shown(answer.to_string().as_bytes()))),
            Err(error) => drop(writeln!(report, "got: no answer, {error}\n")),
        }
        for line in wrong {
            let _ = writeln!(report, "  * {line}");
        }
        failures.push(report);
    }
    if failures.is_empty() {
        cns.assert_sound().await;
    }
    failures
}

/// Long bodies say nothing that their beginning does not.
fn shown(bytes: &[u8]) -> String {
    const ENOUGH: usize = 6_000;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(ENOUGH)]).replace('\r', "");
    let more = bytes.len().saturating_sub(ENOUGH);
    if more == 0 { text } else { format!("{text}… and {more} bytes more") }
}

/// The method and the bytes of a case's request.
pub(crate) fn request(vectors: &Vectors, case: &Case, prefix: &str) -> Result<(String, Vec<u8>), String> {
    let request = &case.request;
    let body = vectors.body(request)?;
    let mut headers = Vec::new();
    if request.body.is_some() && !request.headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"))
    {
        headers.push(("Content-Type".to_owned(), "application/json".to_owned()));
    }
    let given = request.headers.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
    headers.extend(given);
    let path = request.path.clone().unwrap_or_else(|| format!("{prefix}{}", vectors.content.route));
    let method = request.method.as_deref().unwrap_or(if body.is_some() { "POST" } else { "GET" });
    Ok((method.to_owned(), http::request(method, &path, &headers, body.as_deref())))
}

/// The headers that a response must have, or must not have: those of the case, and those that every response of its kind
/// has (§2.2, §2.3).
fn headers(response: &Response) -> Vec<(String, Option<String>)> {
    let mut wanted: Vec<_> =
        response.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut by_default = |name: &str, value: Option<&str>| {
        if !response.headers.keys().any(|given| given.eq_ignore_ascii_case(name)) {
            wanted.push((name.to_owned(), value.map(str::to_owned)));
        }
    };
    by_default("Cns_return_code", None);
    match (&response.text, &response.body) {
        (None, Some(_)) => by_default("Content-Type", Some("application/json; charset=UTF-8")),
        (Some(text), _) if !text.is_empty() => {
            by_default("Content-Type", Some("text/plain; charset=utf-8"));
            by_default("X-Content-Type-Options", Some("nosniff"));
        }
        _ => {}
    }
    wanted
}

fn expectation(vectors: &Vectors, response: &Response) -> Result<String, String> {
    let mut text = response.status.to_string();
    for (name, value) in headers(response) {
        let _ = write!(text, "\n{name}: {}", value.as_deref().unwrap_or("(absent)"));
    }
    let _ = write!(text, "\n\n{}", response.text.as_deref().unwrap_or_default());
    if let Some(body) = &response.body {
        let _ = write!(text, "{}", vectors.json(body)?);
    }
    Ok(text)
}

/// What is wrong with an answer; an error is a mistake in the file.
pub(crate) fn differences(
    vectors: &Vectors,
    expected: &Response,
    got: &Answer,
) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    if expected.status != got.status {
        wrong.push(format!("status: expected {}, got {}", expected.status, got.status));
    }
    for (name, value) in headers(expected) {
        match (value, got.header(&name)) {
            (Some(value), Some(got)) if pattern::matches(&value, got) => {}
            (None, None) => {}
            (value, got) => wrong.push(format!("{name}: expected {value:?}, got {got:?}")),
        }
    }
    let body = match &expected.body {
        Some(body) => Some(vectors.json(body)?),
        None => None,
    };
    if expected.text.is_none() && body.is_none() {
        return Ok(wrong);
    }
    let Ok(got) = std::str::from_utf8(&got.body) else {
        wrong.push("the body is no UTF-8".into());
        return Ok(wrong);
    };
    // A text before a JSON document is one line.
    let (text, rest) = match (&expected.text, &body) {
        (Some(_), Some(_)) => got.split_at(got.find('\n').map_or(got.len(), |end| end + 1)),
        (Some(_), None) => (got, ""),
        _ => ("", got),
    };
    if let Some(expected) = &expected.text
        && !pattern::matches(expected, text)
    {
        wrong.push(format!("text: expected {expected:?}, got {text:?}"));
    }
    if let Some(expected) = body {
        match Json::parse_prefix(rest) {
            Ok((json, after)) => {
                wrong.extend(expected.mismatches(&json));
                if after != "\n" {
                    wrong.push(format!("a line feed, and no more, follows the JSON; got {after:?}"));
                }
            }
            Err(error) => wrong.push(format!("the body is no JSON: {error}: {rest:?}")),
        }
    }
    Ok(wrong)
}
