//! Wireserver: the host's interfaces, and the proxy through which DNC has network containers published.
//!
//! Rules: spec/host-agents.md §6.1 and §6.2, spec/rest-contract.md §6.17 and §6.18, spec/security.md §3. What a caller sends is
//! never pasted into a URL: an interface, ids and a token are parsed, and a URL of our own is made of them.

pub(super) mod interfaces;
mod publish;

use std::time::Duration;

use bytes::Bytes;

pub(super) use self::publish::SEGMENT;
pub use self::{
    interfaces::{
        HostAddress, HostInterface, HostInterfaces, HostSubnet, NoPrimaryInterface, PrimaryInterface,
    },
    publish::{AuthToken, InvalidAuthToken, InvalidPublishTarget, NotAUuid, PublishTarget, VnetId},
};
use super::http::{
    AgentError, AgentState, BaseUrl, ClientError, HttpClient, Limits, Outgoing, Pause, ReadError, Retry,
    Roots,
};

/// The agent's address where none is configured (`WireserverIP`).
pub const WIRESERVER: &str = "168.63.129.16";

/// The query of the interface list, for wireserver and NMAgent alike.
pub(super) const INTERFACES: &str = "getinterfaceinfov1";

/// The largest body that is passed on to NMAgent, bytes.
pub const LARGEST_PUBLISH_BODY: usize = 1 << 20;

/// A client of wireserver. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Wireserver {
    http: HttpClient,
}

/// What NMAgent answered to a proxied call. The body goes back to the caller as it is: callers look for `httpStatusCode` in it
/// themselves (spec/rest-contract.md §6.17).
#[derive(Clone, PartialEq, Eq)]
pub struct Proxied {
    /// Wireserver's own HTTP status.
    pub status: u16,
    /// As it came.
    pub body: Bytes,
}

impl Proxied {
    /// Whether wireserver answered 200, which is all that the reference looks at.
    pub fn is_ok(&self) -> bool {
        self.status == 200
    }

    /// NMAgent's status in the body, for logs and for people.
    pub fn nmagent_status(&self) -> Option<u16> {
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct Body {
            #[serde(rename = "httpStatusCode")]
            status: String,
        }
        crate::gojson::decode::<Body>(&self.body).ok()?.status.parse().ok()
    }
}

impl std::fmt::Debug for Proxied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Bodies are for the caller, not for logs (spec/security.md §4).
        f.debug_struct("Proxied")
            .field("status", &self.status)
            .field("nmagent_status", &self.nmagent_status())
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// A publish or unpublish that failed before or without an answer.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The caller's body is not passed on.
    #[error("the request body has {given} bytes; at most {LARGEST_PUBLISH_BODY} are passed on to NMAgent")]
    BodyTooLarge {
        /// Bytes.
        given: usize,
    },
    /// No readable answer.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl super::http::CallError for ProxyError {
    fn agent_is_well(&self) -> bool {
        false
    }
}

impl Wireserver {
    /// A client of wireserver at `base`; a path in it is dropped.
    pub fn new(base: &BaseUrl, limits: Limits) -> Result<Self, ClientError> {
        Ok(Self { http: HttpClient::new("wireserver", base.origin(), limits, Roots::System)? })
    }

    /// The same client with at most `total` for each call.
    #[must_use]
    pub fn within(&self, total: Duration) -> Self {
        Self { http: self.http.within(total) }
    }

    /// How wireserver last answered.
    pub fn state(&self) -> &AgentState {
        self.http.state()
    }

    /// The host's interfaces and their addresses. Three attempts; the reference has one, without a time limit, and its failure ends
    /// start-up (spec/host-agents.md §1).
    pub async fn interfaces(&self) -> Result<HostInterfaces, AgentError> {
        let retry = Retry {
            attempts: 3,
            pause: Pause::Doubling { first: Duration::from_millis(200), most: Duration::from_secs(1) },
            on: |error: &AgentError| error.fault.may_pass(),
        };
        let target = format!("/machine/plugins?comp=nmagent&type={INTERFACES}");
        self.http
            .call(&Outgoing::get("interface list", target), &retry, |answer| {
                Ok::<_, ReadError<AgentError>>(HostInterfaces::decode(&answer.ok()?)?)
            })
            .await
    }

    /// Joins a virtual network: NMAgent then knows it on this host.
    pub async fn join_network(&self, vnet: &VnetId) -> Result<Proxied, ProxyError> {
        let kind = format!("NetworkManagement/joinedVirtualNetworks/{vnet}/api-version/1");
        self.post("join network", &kind, Bytes::from_static(EMPTY)).await
    }

    /// Publishes a network container. The body is passed on as it is, and may be empty.
    pub async fn publish(&self, target: &PublishTarget, body: Bytes) -> Result<Proxied, ProxyError> {
        self.post("publish network container", &target.kind(), body).await
    }

    /// Unpublishes it.
    pub async fn unpublish(&self, target: &PublishTarget, body: Bytes) -> Result<Proxied, ProxyError> {
        let body = if body.is_empty() { Bytes::from_static(EMPTY) } else { body };
        self.post("unpublish network container", &format!("{}/method/DELETE", target.kind()), body).await
    }

    /// One attempt: these calls have effects, and DNC repeats what fails. The proxy's path ends in a slash and its slashes are not
    /// encoded, unlike those of NMAgent's library: both are known to work (spec/host-agents.md §9).
    async fn post(&self, call: &'static str, kind: &str, body: Bytes) -> Result<Proxied, ProxyError> {
        if body.len() > LARGEST_PUBLISH_BODY {
            return Err(ProxyError::BodyTooLarge { given: body.len() });
        }
        let target = format!("/machine/plugins/?comp=nmagent&type={kind}");
        self.http
            .call(&Outgoing::post(call, target, body), &Retry::NEVER, |answer| {
                Ok(Proxied { status: answer.status.as_u16(), body: answer.body })
            })
            .await
    }
}

/// An empty JSON string: wireserver answers 411 to a POST without a length.
pub(super) const EMPTY: &[u8] = b"\"\"";

#[cfg(test)]
mod tests;
