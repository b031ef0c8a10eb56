//! docker's API over HTTP, as far as container networks go (spec/rest-contract.md §6.2, 6.3; Docker Engine API v1.18 and later).
//!
//! docker is the source of truth about its networks: none is recorded here, as the reference does. Whether one exists, and which ones
//! are to be masqueraded, is asked every time.

use std::{fmt, str::FromStr, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use ipnet::IpNet;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, Serializer};

use crate::model::NetworkName;

/// Where docker listens when it does (spec/rest-contract.md §6.2).
pub const DEFAULT_URL: &str = "http://127.0.0.1:2375";

/// docker's plugin for networks and for their addresses; the networks of this service are that plugin's.
const PLUGIN: &str = "azure-vnet";

/// The plugin's option for how containers are attached, and its value for a network whose containers are masqueraded.
const MODE_OPTION: (&str, &str) = ("com.microsoft.azure.network.mode", "bridge");

/// The largest answer that is read: an inspected network lists its containers.
const LARGEST_ANSWER: usize = 1 << 20;

/// Characters that stand for themselves in a segment of a path (RFC 3986 §2.3).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// How long calls may take. One that looks and one that changes follow each other within the ten seconds of an RPC.
#[derive(Clone, Copy, Debug)]
struct Limits {
    connect: Duration,
    inspect: Duration,
    change: Duration,
}

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(1),
    inspect: Duration::from_secs(2),
    // The network plugin configures the host's interface meanwhile.
    change: Duration::from_secs(6),
};

/// A text that is no base URL of docker's API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a URL such as {DEFAULT_URL} is expected: http, a host and a port, and nothing after it")]
pub struct InvalidDockerUrl;

/// The base URL of docker's API: `http://HOST[:PORT]`, and no more.
#[derive(Clone, PartialEq, Eq)]
pub struct DockerUrl(String);

impl Default for DockerUrl {
    fn default() -> Self {
        Self(DEFAULT_URL.to_owned())
    }
}

impl FromStr for DockerUrl {
    type Err = InvalidDockerUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| InvalidDockerUrl)?;
        let authority = uri.authority().ok_or(InvalidDockerUrl)?;
        let is_plain = uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none();
        let host = authority.host();
        let has_port = match authority.as_str().strip_prefix(host) {
            Some("") => true,
            // Of a port that does not fit, the parser only says that there is none.
            Some(rest) => {
                rest.strip_prefix(':').and_then(|port| port.parse().ok()).is_some_and(|port: u16| port != 0)
            }
            // A user before the host.
            None => false,
        };
        if is_plain && has_port && !host.is_empty() {
            Ok(Self(format!("http://{authority}")))
        } else {
            Err(InvalidDockerUrl)
        }
    }
}

impl fmt::Display for DockerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DockerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for DockerUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// What docker did not do.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// No answer: nobody listens, or the connection broke.
    #[error("docker does not answer at {url}: {why}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// Why, with its reasons.
        why: String,
    },
    /// No answer in time. What was asked for may still be done.
    #[error("docker did not answer at {url} within {} s", after.as_secs_f32())]
    TimedOut {
        /// What was asked.
        url: String,
        /// How long was waited.
        after: Duration,
    },
    /// It answered with a status that means no.
    #[error("docker answered {status} at {url}{}{message}", if message.is_empty() { "" } else { ": " })]
    Refused {
        /// What was asked.
        url: String,
        /// The HTTP status.
        status: StatusCode,
        /// docker's reason, shortened; empty when it gave none.
        message: String,
    },
    /// It answered something that docker does not answer.
    #[error("what answered at {url} is not docker: {why}")]
    Unintelligible {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        why: String,
    },
}

impl DockerError {
    /// Nobody answered, so the same may go well later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. })
    }
}

/// A network to be created.
#[derive(Clone, Debug)]
pub struct NewNetwork<'a> {
    /// Its name.
    pub name: &'a NetworkName,
    /// Where its containers' addresses come from: the subnet of the host's primary interface.
    pub subnet: IpNet,
    /// Its containers reach the world with the host's address.
    pub snat: bool,
}

/// A client of docker's API. It follows no redirect, uses no proxy, and keeps no connection.
#[derive(Clone, Debug)]
pub struct Docker {
    base: DockerUrl,
    client: Client<HttpConnector, Full<Bytes>>,
    limits: Limits,
}

/// An answer, read whole.
struct Answer {
    url: String,
    status: StatusCode,
    body: Bytes,
}

impl Docker {
    /// A client of the docker at `base`. Asks nothing yet.
    pub fn new(base: DockerUrl) -> Self {
        Self::with_limits(base, LIMITS)
    }

    fn with_limits(base: DockerUrl, limits: Limits) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(limits.connect));
        // Calls are rare, and one that fails because docker was restarted meanwhile would be a riddle.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Self { base, client, limits }
    }

    /// Whether there is a network of exactly this name. docker also takes an id, or the beginning of one, for a name; such a
    /// network is not meant.
    pub async fn network_exists(&self, name: &NetworkName) -> Result<bool, DockerError> {
        #[derive(Deserialize)]
        struct Inspected {
            #[serde(rename = "Name")]
            name: String,
        }

        let answer = self.call(Method::GET, &network_path(name), Bytes::new(), self.limits.inspect).await?;
        match answer.status {
            StatusCode::OK => match serde_json::from_slice::<Inspected>(&answer.body) {
                Ok(found) => Ok(found.name == name.as_str()),
                Err(error) => Err(DockerError::Unintelligible { url: answer.url, why: error.to_string() }),
            },
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(answer.refusal()),
        }
    }

    /// The networks of the plugin `azure-vnet` whose containers are to be masqueraded, with their first subnet each. One whose name
    /// or subnet nobody here would have made is left out.
    pub async fn masqueraded_networks(&self) -> Result<Vec<(NetworkName, IpNet)>, DockerError> {
        let answer = self.call(Method::GET, "/networks", Bytes::new(), self.limits.inspect).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refusal());
        }
        let all: Vec<serde_json::Value> = serde_json::from_slice(&answer.body)
            .map_err(|error| DockerError::Unintelligible { url: answer.url, why: error.to_string() })?;
        let (option, mode) = MODE_OPTION;
        let ours =
            |network: &&serde_json::Value| network["Driver"] == PLUGIN && network["Options"][option] == mode;
        let parsed = |network: &serde_json::Value| {
            let name = network["Name"].as_str()?.parse().ok()?;
            let subnet = network["IPAM"]["Config"][0]["Subnet"].as_str()?.parse().ok()?;
            Some((name, subnet))
        };
        Ok(all.iter().filter(ours).filter_map(parsed).collect())
    }

    /// Creates a network of the plugin `azure-vnet` with one subnet.
    pub async fn create_network(&self, network: NewNetwork<'_>) -> Result<(), DockerError> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Create<'a> {
            name: &'a str,
            driver: &'static str,
            #[serde(rename = "IPAM")]
            ipam: Ipam,
            internal: bool,
            options: Option<serde_json::Value>,
        }

        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Ipam {
            driver: &'static str,
            config: [Subnet; 1],
        }

        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Subnet {
            subnet: IpNet,
        }

        let (option, mode) = MODE_OPTION;
        let body = serde_json::to_vec(&Create {
            name: network.name.as_str(),
            driver: PLUGIN,
            ipam: Ipam { driver: PLUGIN, config: [Subnet { subnet: network.subnet }] },
            // The plugin routes; docker's own rules would be in its way.
            internal: true,
            options: network.snat.then(|| serde_json::json!({ option: mode })),
        });
        // Texts, which JSON can always hold.
        let body = body.map_err(|error| DockerError::Unintelligible {
            url: self.base.to_string(),
            why: error.to_string(),
        })?;
        let answer = self.call(Method::POST, "/networks/create", body.into(), self.limits.change).await?;
        if answer.status == StatusCode::CREATED { Ok(()) } else { Err(answer.refusal()) }
    }

    /// Deletes a network. `false`: there was none.
    pub async fn delete_network(&self, name: &NetworkName) -> Result<bool, DockerError> {
        let answer = self.call(Method::DELETE, &network_path(name), Bytes::new(), self.limits.change).await?;
        match answer.status {
            StatusCode::NO_CONTENT => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(answer.refusal()),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Answer, DockerError> {
        let url = format!("{}{path}", self.base);
        let unreachable = |error: &dyn std::error::Error| DockerError::Unreachable {
            url: url.clone(),
            why: reasons(error),
        };
        let request = Request::builder()
            .method(method)
            .uri(&url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| unreachable(&error))?;
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| unreachable(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect().await;
            let body = body.map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    let why = format!("the answer is larger than {LARGEST_ANSWER} bytes");
                    DockerError::Unintelligible { url: url.clone(), why }
                } else {
                    unreachable(error.as_ref())
                }
            })?;
            Ok((status, body.to_bytes()))
        };
        let timed_out = |_| DockerError::TimedOut { url: url.clone(), after: within };
        let (status, body) = tokio::time::timeout(within, exchange).await.map_err(timed_out)??;
        Ok(Answer { url, status, body })
    }
}

impl Answer {
    fn refusal(self) -> DockerError {
        #[derive(Deserialize)]
        struct Reason {
            message: String,
        }

        let message = match serde_json::from_slice::<Reason>(&self.body) {
            Ok(Reason { message }) => one_line(&message),
            Err(_) => String::new(),
        };
        DockerError::Refused { url: self.url, status: self.status, message }
    }
}

/// Others' text, short and on one line.
fn one_line(text: &str) -> String {
    text.chars().take(512).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn network_path(name: &NetworkName) -> String {
    format!("/networks/{}", utf8_percent_encode(name.as_str(), SEGMENT))
}

/// An error with its reasons: hyper's own text hides the kernel's.
fn reasons(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(reason) = source {
        let reason_text = reason.to_string();
        if !text.contains(&reason_text) {
            text.push_str(": ");
            text.push_str(&reason_text);
        }
        source = reason.source();
    }
    text
}

#[cfg(test)]
#[path = "docker/tests.rs"]
mod tests;
