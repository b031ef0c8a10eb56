//! `-debugcmd`: asks a running daemon over its REST API, and prints what the reference prints. Scripts read the lines of `get`.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::Duration,
};

use axum::body::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    config::{ConfigError, Environment},
    gojson::{self, DecodeError},
};

/// As long as the reference waits.
const TIMEOUT: Duration = Duration::from_secs(5);

/// More than any node's addresses are.
const MOST_BYTES: usize = 256 << 20;

/// Go's form of a pod that is none.
const NO_POD: &str = "%!s(<nil>)";

/// The states of an address, in the reference's words.
const STATES: [&str; 4] = ["Available", "Assigned", "PendingProgramming", "PendingRelease"];

/// Why nothing is printed.
#[derive(Debug, thiserror::Error)]
pub enum DebugError {
    /// No such command.
    #[error("No debug cmd supplied, options are: get, getPodContexts, getInMemory")]
    Command,
    /// Where the daemon is was not said.
    #[error("{0} is not set: CNSIpAddress and CNSPort say where the daemon's REST API is")]
    NotSet(&'static str),
    /// It was said in a way that cannot be.
    #[error(transparent)]
    Environment(#[from] ConfigError),
    /// The address makes no URL.
    #[error("{url}: {source}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong.
        source: http::Error,
    },
    /// The daemon cannot be reached, or hung up.
    #[error("{url}: {why}")]
    Http {
        /// What was asked.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// It did not answer in time.
    #[error("{url}: no answer within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// What was asked.
        url: String,
    },
    /// It answered something else.
    #[error("{url}: {status}")]
    Status {
        /// What was asked.
        url: String,
        /// The answer.
        status: StatusCode,
    },
    /// It answered something that is not what was asked for.
    #[error("{url}: the answer is not understood: {source}")]
    Json {
        /// What was asked.
        url: String,
        /// What is wrong.
        source: DecodeError,
    },
    /// It refused.
    #[error("{url}: return code {code}: {message}")]
    Refused {
        /// What was asked.
        url: String,
        /// The reference's code.
        code: i64,
        /// The daemon's words.
        message: String,
    },
}

/// Runs a command and returns what is to be printed. The command's case does not matter, the argument's does.
pub async fn run(command: &str, argument: &str, environment: &Environment) -> Result<String, DebugError> {
    let command = command.to_lowercase();
    if !["get", "getpodcontexts", "getinmemory"].contains(&command.as_str()) {
        return Err(DebugError::Command);
    }
    let daemon = Daemon::of(environment)?;
    match command.as_str() {
        "get" => {
            let one = STATES.iter().position(|state| *state == argument);
            let states = one.map_or(&STATES[..], |index| &STATES[index..=index]);
            let body = serde_json::json!({ "IPConfigStateFilter": states });
            let answer: Addresses = daemon.ask(Method::POST, "/debug/ipaddresses", body.to_string()).await?;
            Ok(lines_of_addresses(answer.addresses))
        }
        "getpodcontexts" => {
            let answer: PodContexts = daemon.ask(Method::GET, "/debug/podcontext", String::new()).await?;
            let mut text = String::new();
            for (index, (context, ids)) in answer.contexts.iter().enumerate() {
                // Writing to a text cannot fail.
                let _ = writeln!(text, "{} {context} : [{}]", index + 1, ids.join(" "));
            }
            Ok(text)
        }
        _ => {
            let answer: InMemory = daemon.ask(Method::GET, "/debug/restdata", String::new()).await?;
            let InMemoryData { pods, addresses } = answer.data;
            let pods: Vec<String> =
                pods.iter().map(|(key, ids)| format!("{key}:[{}]", ids.join(" "))).collect();
            let addresses: Vec<String> =
                addresses.iter().map(|(id, address)| format!("{id}:{address}")).collect();
            Ok(format!(
                "PodIPIDByOrchestratorContext: map[{}]\nPodIPConfigState: map[{}]\n",
                pods.join(" "),
                addresses.join(" ")
            ))
        }
    }
}

/// One line an address, in the order of the addresses' texts.
fn lines_of_addresses(mut addresses: Vec<Address>) -> String {
    addresses.sort_by(|one, other| one.ip.cmp(&other.ip));
    addresses.iter().fold(String::new(), |mut text, address| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{address}");
        text
    })
}

/// The daemon's REST API.
struct Daemon {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Daemon {
    fn of(environment: &Environment) -> Result<Self, DebugError> {
        let set = |name| environment.text(name)?.ok_or(DebugError::NotSet(name));
        let (host, port) = (set("CNSIpAddress")?, set("CNSPort")?);
        let literal = host.contains(':') && !host.starts_with('[');
        let host = if literal { format!("[{host}]") } else { host.to_owned() };
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { base: format!("http://{host}:{port}"), client })
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<T, DebugError> {
        let url = format!("{}{path}", self.base);
        let request = Request::builder()
            .method(method)
            .uri(&url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|source| DebugError::Url { url: url.clone(), source })?;
        let failed = |error: &dyn std::error::Error| DebugError::Http { url: url.clone(), why: chain(error) };
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| failed(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
            let body = body.map_err(|error| failed(error.as_ref()))?.to_bytes();
            Ok::<_, DebugError>((status, body))
        };
        let (status, body) = tokio::time::timeout(TIMEOUT, exchange)
            .await
            .map_err(|_| DebugError::Timeout { url: url.clone() })??;
        // A refusal says more than its status.
        if let Ok(Envelope { response: Some(response) }) = gojson::decode(&body)
            && response.code != 0
        {
            return Err(DebugError::Refused { url, code: response.code, message: response.message });
        }
        if !status.is_success() {
            return Err(DebugError::Status { url, status });
        }
        gojson::decode(&body).map_err(|source| DebugError::Json { url, source })
    }
}

/// An error with its reasons: hyper's own text hides the kernel's.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        // Writing to a text cannot fail.
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Envelope {
    #[serde(rename = "Response")]
    response: Option<Response>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    #[serde(rename = "ReturnCode")]
    code: i64,
    #[serde(rename = "Message")]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Addresses {
    #[serde(rename = "IPConfigurationStatus")]
    addresses: Vec<Address>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodContexts {
    #[serde(rename = "PodContext")]
    contexts: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InMemory {
    #[serde(rename = "HTTPRestServiceData")]
    data: InMemoryData,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct InMemoryData {
    #[serde(rename = "PodIPIDByPodInterfaceKey")]
    pods: BTreeMap<String, Vec<String>>,
    #[serde(rename = "PodIPConfigState")]
    addresses: BTreeMap<String, Address>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    state: String,
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "IPAddress")]
    ip: String,
    #[serde(rename = "LastStateTransition")]
    changed: String,
    #[serde(rename = "NCID")]
    nc: String,
    #[serde(rename = "PodInfo")]
    pod: Option<Pod>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    #[serde(rename = "podName")]
    name: String,
    #[serde(rename = "podNamespace")]
    namespace: String,
    #[serde(rename = "PodInfraContainerID")]
    container: String,
    #[serde(rename = "PodInterfaceID")]
    interface: String,
    #[serde(rename = "Version")]
    scheme: i64,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, id, ip, changed, nc, pod } = self;
        write!(
            f,
            "ID: [{id}], NCID: [{nc}], IPAddress: [{ip}], State: [{state}], LastStateTransition: [{}] PodInfo: [",
            whole_seconds(changed)
        )?;
        match pod {
            Some(pod) => pod.fmt(f)?,
            None => f.write_str(NO_POD)?,
        }
        f.write_str("]")
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, namespace, container, interface, scheme } = self;
        let key = match scheme {
            1 => interface.clone(),
            2 => container.clone(),
            _ => format!("{name}:{namespace}"),
        };
        write!(
            f,
            "InfraContainerID: [{container}], InterfaceID: [{interface}], Key: [{key}], Name: [{name}], Namespace: [{namespace}]"
        )
    }
}

/// RFC 3339 without a fraction, as Go's `time.RFC3339` prints it.
fn whole_seconds(time: &str) -> String {
    let Some((seconds, fraction)) = time.split_once('.') else { return time.to_owned() };
    format!("{seconds}{}", fraction.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_loses_its_fraction_and_keeps_its_offset() {
        for (given, expected) in [
            ("2026-01-02T03:04:05.678901234Z", "2026-01-02T03:04:05Z"),
            ("2026-01-02T03:04:05.6+02:00", "2026-01-02T03:04:05+02:00"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ] {
            assert_eq!(whole_seconds(given), expected);
        }
    }

    #[tokio::test]
    async fn what_cannot_be_asked_says_why() {
        let environment = |variables: &[(&str, &str)]| Environment {
            variables: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            ..Environment::default()
        };
        let here = [("CNSIpAddress", "127.0.0.1"), ("CNSPort", "1")];
        for (command, variables, expected) in [
            ("put", &here[..], "No debug cmd supplied, options are: get"),
            ("get", &here[..1], "CNSPort is not set"),
            ("get", &here[1..], "CNSIpAddress is not set"),
            ("get", &[("CNSIpAddress", "a b"), ("CNSPort", "1")], "http://a b:1/debug/ipaddresses: "),
            ("getPodContexts", &here, "http://127.0.0.1:1/debug/podcontext: "),
        ] {
            let error = run(command, "", &environment(variables)).await.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{command} {variables:?}: {error}");
        }
        let error = run("get", "", &environment(&here)).await.unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
    }
}
