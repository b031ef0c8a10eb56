//! The REST gateway: legacy JSON over HTTP → the services → legacy JSON (spec/rest-contract.md).
//!
//! It translates and decides nothing about addresses, network containers or endpoints: each route calls a service, in process.
//! Go's habits with JSON are those of [`crate::gojson`]; the shapes are in `types`; which paths exist is the table in `routes`.
//!
//! ```text
//!   listen ── connections: how many, how long, how much ── routes ── handlers (ip, nc, endpoint, node, host, debug) ── service
//! ```

mod debug;
mod endpoint;
mod host;
mod ip;
pub mod listen;
mod nc;
mod node;
mod reply;
mod routes;
mod types;

use std::sync::Arc;

use http::{HeaderMap, Method};
use tonic::{Request, Status};

use self::reply::Reply;
use crate::{
    model::{Environment, Family, NcSpec, PodKeyScheme, ReturnCode},
    service::{
        Context, is_indexed_by_pod,
        peer::{Caller, Policy},
    },
    telemetry::metrics::Metrics,
};

/// What decides which routes there are and what they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Channel mode Direct: DNC's questions about this node have routes.
    pub direct: bool,
    /// CNS manages endpoint state: `/network/endpoints/` works, and pods are keyed by container id.
    pub manage_endpoints: bool,
    /// There is a listener that knows other machines' clients by their certificates.
    pub mutual_tls: bool,
}

/// A network container in the legacy form (`CreateNetworkContainerRequest`), read and checked as the API does; or why not. It may
/// hold an authorization token, which is dropped.
pub fn read_network_container(json: &str) -> Result<NcSpec, String> {
    nc::read_definition(json)
}

/// The gateway, shared by its listeners.
#[derive(Clone, Debug)]
pub struct Gateway {
    context: Context,
    settings: Settings,
    policy: Arc<Policy>,
    metrics: Arc<Metrics>,
}

impl Gateway {
    /// Over these services.
    pub fn new(context: Context, settings: Settings, policy: Policy, metrics: Arc<Metrics>) -> Self {
        Self { context, settings, policy: Arc::new(policy), metrics }
    }

    /// Whether this caller may change state. On this machine it is who the policy says, as over gRPC. Other machines can only
    /// come where the operator made the listener reachable for them, and the legacy contract has no way to tell who they are; but
    /// where they can show a certificate, who does not may only read: the reference leaves the cleartext listener open beside
    /// mutual TLS (spec/security.md §8 row 1).
    fn may_change(&self, call: &Call) -> bool {
        if call.is_remote {
            call.caller.certified || !self.settings.mutual_tls
        } else {
            self.policy.may_change(&call.caller)
        }
    }

    /// What SetEnvironment recorded.
    fn environment(&self) -> Option<Environment> {
        self.context.ledger().view().orchestrator().environment.clone()
    }

    /// The pod key scheme's number: 1 for interface ids, 2 for container ids.
    fn scheme(&self) -> i32 {
        match self.context.ledger().config().scheme {
            PodKeyScheme::InterfaceId => 1,
            PodKeyScheme::InfraContainerId => 2,
        }
    }

    /// How many families the node serves: as many addresses a pod gets.
    fn families(&self) -> usize {
        let view = self.context.ledger().view();
        let served = |family: &Family| view.ncs().any(|nc| nc.counts[family.index()].iter().any(|n| *n > 0));
        Family::ALL.iter().filter(|family| served(family)).count()
    }

    /// Whether the orchestrator has an NC per pod.
    fn has_pod_indexed_ncs(&self) -> bool {
        self.context.ledger().view().orchestrator().kind.is_some_and(is_indexed_by_pod)
    }
}

/// One request, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Decoded path.
    pub(crate) path: String,
    /// The path as it was sent.
    pub(crate) escaped: String,
    /// What follows the path's `?`. No route looks at it; a redirect keeps it.
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) caller: Caller,
    /// From another machine: the kernel does not tell who it is.
    pub(crate) is_remote: bool,
}

impl Call {
    fn is_post(&self) -> bool {
        self.method == Method::POST
    }

    fn is_get(&self) -> bool {
        self.method == Method::GET
    }

    /// A service's request on behalf of this caller.
    fn ask<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.caller.clone());
        // As over gRPC, so that one id runs from the caller to the journal.
        if let Some(id) = self.headers.get("x-request-id")
            && let Ok(id) = tonic::metadata::MetadataValue::try_from(id.as_bytes())
        {
            request.metadata_mut().insert("x-request-id", id);
        }
        request
    }
}

/// A refusal of a service in legacy words.
#[derive(Clone, Debug)]
struct Refused {
    code: ReturnCode,
    message: String,
    /// The machine-readable reason, finer than the code.
    detail: String,
    /// The request itself was malformed: the field.
    field: Option<String>,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        use tonic_types::StatusExt as _;

        let details = status.get_error_details();
        let info = details.error_info();
        let fact = |key: &str| info.and_then(|info| info.metadata.get(key)).cloned();
        let code = fact("return_code")
            .and_then(|number| number.parse().ok())
            .and_then(ReturnCode::from_number)
            .unwrap_or(ReturnCode::UnexpectedError);
        let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
        Self {
            code,
            message: match violation {
                Some(violation) => violation.description.clone(),
                None => status.message().to_owned(),
            },
            detail: fact("detail").unwrap_or_default(),
            field: violation.map(|violation| violation.field.clone()),
        }
    }
}
