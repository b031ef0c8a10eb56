//! The one table: rejection ↔ legacy return code ↔ gRPC status, and the rich details every failure carries (design §3).

use std::{collections::HashMap, time::Duration};

use tonic::{Code, Status};
use tonic_types::{BadRequest, ErrorDetails, FieldViolation, StatusExt};

use crate::{
    ledger::{LedgerError, Rejection},
    model::{OrchestratorType, PodKeyScheme, ReturnCode},
};

/// `google.rpc.ErrorInfo.domain` of every failure.
pub const ERROR_DOMAIN: &str = "cns.azure.com";

/// When a caller should ask again for what only time can bring.
const RETRY_EXHAUSTED: Duration = Duration::from_secs(2);
/// When a caller should ask again after a disk failure or an overload.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(1);

/// The gRPC status of a return code that stands alone. Finer rejections may say something better; see [`code_of`].
pub const fn code_of_return_code(code: ReturnCode) -> Code {
    match code {
        ReturnCode::Success
        | ReturnCode::NetworkContainerVfpProgramComplete
        | ReturnCode::NetworkContainerVfpProgramCheckSkipped => Code::Ok,
        ReturnCode::InvalidParameter
        | ReturnCode::MalformedSubnet
        | ReturnCode::UnspecifiedNetworkName
        | ReturnCode::NetworkContainerNotSpecified
        | ReturnCode::DockerContainerNotSpecified
        | ReturnCode::InvalidPrimaryIpConfig
        | ReturnCode::InvalidSecondaryIpConfig
        | ReturnCode::EmptyOrchestratorContext
        | ReturnCode::UnsupportedOrchestratorContext
        | ReturnCode::UnsupportedNetworkType
        | ReturnCode::UnsupportedEnvironment
        | ReturnCode::UnsupportedNetworkContainerType
        | ReturnCode::UnsupportedNcVersion => Code::InvalidArgument,
        ReturnCode::NotFound | ReturnCode::UnknownContainerId | ReturnCode::ReservationNotFound => {
            Code::NotFound
        }
        ReturnCode::AddressUnavailable
        | ReturnCode::FailedToAllocateIpConfig
        | ReturnCode::FailedToAllocateBackendConfig => Code::ResourceExhausted,
        ReturnCode::UnsupportedOrchestratorType
        | ReturnCode::InvalidRequest
        | ReturnCode::PrimaryCaNotSame
        | ReturnCode::InconsistentIpConfigState
        | ReturnCode::NetworkContainerVfpProgramPending
        | ReturnCode::NilEndpointStateStore => Code::FailedPrecondition,
        ReturnCode::UnsupportedVerb | ReturnCode::UnsupportedApi => Code::Unimplemented,
        ReturnCode::UnreachableHost
        | ReturnCode::UnreachableDockerDaemon
        | ReturnCode::CallToHostFailed
        | ReturnCode::NetworkJoinFailed
        | ReturnCode::NetworkContainerPublishFailed
        | ReturnCode::NetworkContainerUnpublishFailed
        | ReturnCode::NmAgentSupportedApisError
        | ReturnCode::NmAgentInternalServerError
        | ReturnCode::NmAgentNcVersionListError
        | ReturnCode::ConnectionError => Code::Unavailable,
        ReturnCode::StatusUnauthorized => Code::PermissionDenied,
        ReturnCode::FailedToRunIpTableCmd | ReturnCode::UnexpectedError => Code::Internal,
    }
}

/// The gRPC status of a rejection.
pub fn code_of(rejection: &Rejection) -> Code {
    match rejection {
        Rejection::Exhausted { .. } => Code::ResourceExhausted,
        Rejection::NoNcs
        | Rejection::NoAddresses { .. }
        | Rejection::DesiredTaken { .. }
        | Rejection::DesiredUnavailable { .. }
        | Rejection::DesiredUnknown { .. }
        | Rejection::OtherInterface { .. }
        | Rejection::NotExactlyOneNc { .. }
        | Rejection::NotExactlyOneIp { .. }
        | Rejection::UnsupportedOrchestrator { .. }
        | Rejection::PrimaryChanged { .. }
        | Rejection::AssignedMissing { .. }
        | Rejection::NodeAlreadyRegistered { .. }
        | Rejection::NotEnoughToRelease { .. }
        | Rejection::AddressNotHeld { .. }
        | Rejection::EndpointHoldsAddresses { .. }
        | Rejection::EndpointsNotManaged => Code::FailedPrecondition,
        Rejection::Tombstoned { .. } | Rejection::RecentlyDeleted { .. } => Code::Aborted,
        Rejection::NoPodKey { .. }
        | Rejection::MissingContext { .. }
        | Rejection::InvalidPrimary { .. }
        | Rejection::InvalidSecondary { .. }
        | Rejection::InvalidEndpoint { .. } => Code::InvalidArgument,
        Rejection::EndpointNotFound { .. } => Code::NotFound,
    }
}

/// `FailedToAllocateIpConfig` → `FAILED_TO_ALLOCATE_IP_CONFIG`; a run of capitals is one word.
pub fn upper_snake(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut text = String::with_capacity(name.len() + 8);
    for (i, byte) in bytes.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|i| bytes.get(i));
        let after = bytes.get(i + 1);
        let starts_word = byte.is_ascii_uppercase()
            && before.is_some_and(|b| b.is_ascii_lowercase() || after.is_some_and(u8::is_ascii_lowercase));
        if starts_word {
            text.push('_');
        }
        text.push(char::from(byte.to_ascii_uppercase()));
    }
    text
}

/// A failure with a legacy return code, and nothing more to say.
pub fn failure(code: Code, return_code: ReturnCode, message: impl Into<String>) -> Status {
    Failure::new(code, return_code, message).into()
}

/// A failure in the making: what a machine and an operator need to know beside the message. Goes out as
/// `google.rpc.ErrorInfo` with the return code's name as its reason, and `RetryInfo` where waiting helps.
#[derive(Clone, Debug)]
pub struct Failure {
    code: Code,
    return_code: ReturnCode,
    message: String,
    metadata: HashMap<String, String>,
    retry: Option<Duration>,
}

impl Failure {
    /// With a message that names the value that failed.
    pub fn new(code: Code, return_code: ReturnCode, message: impl Into<String>) -> Self {
        Self { code, return_code, message: message.into(), metadata: HashMap::new(), retry: None }
    }

    /// A machine-readable reason, finer than the return code.
    #[must_use]
    pub fn detail(self, detail: &str) -> Self {
        self.put("detail", detail)
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(self, remedy: impl ToString) -> Self {
        self.put("remedy", remedy)
    }

    /// A value that a machine may want.
    #[must_use]
    pub fn put(mut self, key: &str, value: impl ToString) -> Self {
        self.metadata.insert(key.to_owned(), value.to_string());
        self
    }

    /// When to ask again.
    #[must_use]
    pub fn retry(self, after: Duration) -> Self {
        Self { retry: Some(after), ..self }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let Failure { code, return_code, message, mut metadata, retry } = failure;
        metadata.insert("return_code".into(), return_code.number().to_string());
        let mut details =
            ErrorDetails::with_error_info(upper_snake(return_code.name()), ERROR_DOMAIN, metadata);
        if retry.is_some() {
            details.set_retry_info(retry);
        }
        Self::with_error_details(code, message, details)
    }
}

/// The status that a ledger's failure becomes.
pub fn of_ledger(error: LedgerError) -> Status {
    match error {
        LedgerError::Rejected(rejection) => of_rejection(&rejection),
        LedgerError::Unavailable { .. } => Failure::new(
            Code::Unavailable,
            ReturnCode::UnexpectedError,
            error.to_string(),
        )
        .detail("STATE_NOT_DURABLE")
        .remedy(
            "make room on the disk of --state-dir, or make it writable; the daemon goes on by itself then",
        )
        .retry(RETRY_UNAVAILABLE)
        .into(),
        LedgerError::Overloaded => {
            Failure::new(Code::Unavailable, ReturnCode::UnexpectedError, error.to_string())
                .detail("OVERLOADED")
                .remedy("ask again in a moment")
                .retry(RETRY_UNAVAILABLE)
                .into()
        }
        LedgerError::Stopped => {
            Failure::new(Code::Unavailable, ReturnCode::UnexpectedError, "the daemon is stopping")
                .detail("STOPPING")
                .remedy("ask again when it is back")
                .retry(RETRY_UNAVAILABLE)
                .into()
        }
    }
}

/// The status that a rejection becomes: every refusal says what to do, and the values that it is about.
pub fn of_rejection(rejection: &Rejection) -> Status {
    fn list<T: ToString>(items: &[T]) -> String {
        items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
    let failure = Failure::new(code_of(rejection), rejection.return_code(), rejection.to_string())
        .detail(rejection.reason())
        .remedy(remedy_of(rejection));
    match rejection {
        Rejection::Exhausted { family, ncs } => {
            let ncs: Vec<_> = ncs.iter().map(|short| &short.nc).collect();
            failure.put("family", family).put("network_containers", list(&ncs)).retry(RETRY_EXHAUSTED)
        }
        Rejection::NoAddresses { ncs } => failure.put("network_containers", list(ncs)),
        Rejection::DesiredTaken { address, owner } => failure.put("address", address).put("owner", owner),
        Rejection::DesiredUnavailable { address, state } => {
            failure.put("address", address).put("state", state)
        }
        Rejection::DesiredUnknown { addresses } => failure.put("addresses", list(addresses)),
        Rejection::NoPodKey { scheme } => failure.put(
            "field",
            match scheme {
                PodKeyScheme::InterfaceId => "pod_interface_id",
                PodKeyScheme::InfraContainerId => "infra_container_id",
            },
        ),
        Rejection::OtherInterface { container, asked, has } => {
            failure.put("container_id", container).put("ifname", asked).put("has", has)
        }
        Rejection::Tombstoned { container, late_by } => {
            failure.put("container_id", container).put("late_by_ms", late_by.as_millis())
        }
        Rejection::RecentlyDeleted { container, retry_after } => {
            failure.put("container_id", container).retry(*retry_after)
        }
        Rejection::NotExactlyOneNc { found } | Rejection::NotExactlyOneIp { found } => {
            failure.put("found", found)
        }
        Rejection::UnsupportedOrchestrator { given } => {
            failure.put("orchestrator_type", given.map_or("", OrchestratorType::as_str))
        }
        Rejection::MissingContext { nc_type } => failure.put("network_container_type", nc_type),
        Rejection::InvalidPrimary { nc, .. } => failure.put("network_container_id", nc),
        Rejection::PrimaryChanged { nc, from, to } => {
            failure.put("network_container_id", nc).put("from", from).put("to", to)
        }
        Rejection::AssignedMissing { nc, addresses } => {
            failure.put("network_container_id", nc).put("addresses", list(addresses))
        }
        Rejection::InvalidSecondary { nc, id, address, .. } => {
            failure.put("network_container_id", nc).put("ip_config_id", id).put("address", address)
        }
        Rejection::NodeAlreadyRegistered { node_id } => failure.put("node_id", node_id),
        Rejection::NotEnoughToRelease { wanted, possible } => {
            failure.put("wanted", wanted).put("possible", possible)
        }
        Rejection::EndpointNotFound { container } | Rejection::InvalidEndpoint { container, .. } => {
            failure.put("container_id", container)
        }
        Rejection::AddressNotHeld { container, address, owner } => {
            let failure = failure.put("container_id", container).put("address", address);
            match owner {
                Some(owner) => failure.put("owner", owner),
                None => failure,
            }
        }
        Rejection::EndpointHoldsAddresses { container, addresses } => {
            failure.put("container_id", container).put("addresses", list(addresses))
        }
        Rejection::NoNcs | Rejection::EndpointsNotManaged => failure,
    }
    .into()
}

/// What whoever is refused, or their operator, can do about it.
const fn remedy_of(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::NoNcs => {
            "create a network container, or wait for the control plane to send one; see `cnsctl nc list`"
        }
        Rejection::Exhausted { .. } => {
            "release unused pods, widen the address range, or wait for the pool to grow"
        }
        Rejection::NoAddresses { .. } => "give a network container secondary addresses; see `cnsctl nc list`",
        Rejection::DesiredTaken { .. } => {
            "release its owner first, or ask for another address; `cnsctl explain` tells who has it and why"
        }
        Rejection::DesiredUnavailable { .. } => {
            "ask for another address or for any; `cnsctl explain` tells what it waits for"
        }
        Rejection::DesiredUnknown { .. } => {
            "ask for addresses of this node's network containers, or for any; see `cnsctl ip list`"
        }
        Rejection::NoPodKey { .. } => "send the sandbox's container id and the pod's interface id",
        Rejection::OtherInterface { .. } => "attach the container to this network once",
        Rejection::Tombstoned { .. } => "begin anew; a sandbox that was deleted stays so",
        Rejection::RecentlyDeleted { .. } => {
            "ask again after that time, or send the time at which the call began"
        }
        Rejection::NotExactlyOneNc { .. } | Rejection::NotExactlyOneIp { .. } => {
            "use the plural call, RequestIPConfigs or ReleaseIPConfigs"
        }
        Rejection::UnsupportedOrchestrator { .. } => {
            "register an orchestrator that allows this, with SetOrchestrator"
        }
        Rejection::MissingContext { .. } => {
            "say which pod the network container belongs to: this orchestrator gives each pod its own"
        }
        Rejection::InvalidPrimary { .. } => {
            "send the primary address that this kind of network container needs"
        }
        Rejection::PrimaryChanged { .. } => {
            "keep the primary subnet or widen it; for another one, create a new one"
        }
        Rejection::AssignedMissing { .. } => {
            "keep these addresses listed until their pods are gone; `cnsctl explain` tells whose they are"
        }
        Rejection::InvalidSecondary { .. } => {
            "list each address once, under one id, in one network container"
        }
        Rejection::NodeAlreadyRegistered { .. } => {
            "delete this node's network containers first, or register it under the id that it has"
        }
        Rejection::NotEnoughToRelease { .. } => "ask for fewer, or end pods first",
        Rejection::EndpointNotFound { .. } => "see `cnsctl endpoint list`; a record ends with its addresses",
        Rejection::InvalidEndpoint { .. } => "say for each interface its name and what it is",
        Rejection::AddressNotHeld { .. } => "record only addresses that the container was given",
        Rejection::EndpointHoldsAddresses { .. } => {
            "release them with ReleaseIPConfigs, which removes the record too"
        }
        Rejection::EndpointsNotManaged => "the CNI plugin keeps these records itself in this mode",
    }
}

/// A malformed field: INVALID_ARGUMENT naming it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidField {
    /// Path of the field in the message.
    pub field: String,
    /// What is wrong with it, with the value.
    pub why: String,
    /// The legacy return code that stands for it.
    pub return_code: ReturnCode,
}

impl InvalidField {
    /// With the general return code for bad parameters.
    pub fn new(field: impl Into<String>, why: impl ToString) -> Self {
        Self { field: field.into(), why: why.to_string(), return_code: ReturnCode::InvalidParameter }
    }

    /// With a return code of its own.
    #[must_use]
    pub fn code(self, return_code: ReturnCode) -> Self {
        Self { return_code, ..self }
    }
}

impl From<InvalidField> for Status {
    fn from(invalid: InvalidField) -> Self {
        let message = invalid.to_string();
        let InvalidField { field, why, return_code } = invalid;
        let metadata = [
            ("return_code", return_code.number().to_string()),
            ("detail", "INVALID_FIELD".into()),
            ("field", field.clone()),
            ("remedy", format!("correct `{field}` and ask again; the call changed nothing")),
        ];
        let metadata: HashMap<_, _> = metadata.map(|(key, value)| (key.to_owned(), value)).into();
        let mut details =
            ErrorDetails::with_error_info(upper_snake(return_code.name()), ERROR_DOMAIN, metadata);
        details.set_bad_request(BadRequest::new(vec![FieldViolation::new(field, why)]).field_violations);
        Self::with_error_details(Code::InvalidArgument, message, details)
    }
}

/// An operation whose subsystem is not part of this daemon yet.
pub fn unimplemented(rpc: &str, missing: &str) -> Status {
    let message = format!("{rpc} is not available: {missing}");
    Failure::new(Code::Unimplemented, ReturnCode::UnsupportedApi, message)
        .detail("NOT_AVAILABLE")
        .put("rpc", rpc)
        .into()
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;
    use crate::model::Family;

    #[test]
    fn reasons_are_the_return_codes_names() {
        for (name, expected) in [
            ("FailedToAllocateIpConfig", "FAILED_TO_ALLOCATE_IP_CONFIG"),
            ("InvalidPrimaryIPConfig", "INVALID_PRIMARY_IP_CONFIG"),
            ("UnsupportedNCVersion", "UNSUPPORTED_NC_VERSION"),
            ("NotFound", "NOT_FOUND"),
            ("FailedToRunIPTableCmd", "FAILED_TO_RUN_IP_TABLE_CMD"),
        ] {
            assert_eq!(upper_snake(name), expected);
        }
    }

    /// Both ways: every rejection's status leads back to its return code.
    #[test]
    fn every_failure_carries_its_return_code_and_it_can_be_read_back() {
        for code in ReturnCode::ALL {
            let status = failure(code_of_return_code(*code), *code, "x");
            let info = status.get_details_error_info();
            if status.code() == Code::Ok {
                continue;
            }
            let info = info.unwrap();
            assert_eq!((info.domain.as_str(), info.reason), (ERROR_DOMAIN, upper_snake(code.name())));
            let number: u16 = info.metadata["return_code"].parse().unwrap();
            assert_eq!(ReturnCode::from_number(number), Some(*code));
        }
        let exhausted = Rejection::Exhausted { family: Family::V4, ncs: vec![] };
        let status = of_rejection(&exhausted);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.get_details_retry_info().unwrap().retry_delay.is_some());
        assert_eq!(status.get_details_error_info().unwrap().metadata["detail"], "POOL_EXHAUSTED");
        let status = of_rejection(&Rejection::NoPodKey { scheme: PodKeyScheme::InfraContainerId });
        assert_eq!(status.get_details_error_info().unwrap().metadata["return_code"], "34");
        assert!(status.get_details_retry_info().is_none(), "a retry cannot cure it");
    }

    /// One of each.
    fn rejections() -> Vec<Rejection> {
        let nc = || "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11".parse::<crate::model::NcId>().unwrap();
        let container = || "c1".parse::<crate::model::ContainerId>().unwrap();
        let address = || "10.240.0.17".parse::<std::net::IpAddr>().unwrap();
        vec![
            Rejection::NoNcs,
            Rejection::Exhausted { family: Family::V4, ncs: vec![] },
            Rejection::NoAddresses { ncs: vec![nc()] },
            Rejection::DesiredTaken { address: address(), owner: "c1".into() },
            Rejection::DesiredUnavailable {
                address: address(),
                state: crate::model::IpStateKind::PendingRelease,
            },
            Rejection::DesiredUnknown { addresses: vec![address()] },
            Rejection::NoPodKey { scheme: PodKeyScheme::InterfaceId },
            Rejection::Tombstoned { container: container(), late_by: Duration::from_millis(7) },
            Rejection::RecentlyDeleted { container: container(), retry_after: Duration::from_secs(3) },
            Rejection::NotExactlyOneNc { found: 2 },
            Rejection::NotExactlyOneIp { found: 2 },
            Rejection::UnsupportedOrchestrator { given: None },
            Rejection::MissingContext { nc_type: "Docker".into() },
            Rejection::InvalidPrimary { nc: nc(), why: "x" },
            Rejection::PrimaryChanged { nc: nc(), from: "10.0.0.0/24".into(), to: "10.1.0.0/24".into() },
            Rejection::AssignedMissing { nc: nc(), addresses: vec![address()] },
            Rejection::InvalidSecondary {
                nc: nc(),
                id: "a1".parse().unwrap(),
                address: address(),
                why: "x".into(),
            },
            Rejection::NodeAlreadyRegistered { node_id: "node-1".into() },
            Rejection::NotEnoughToRelease { wanted: 3, possible: 1 },
            Rejection::EndpointNotFound { container: container() },
            Rejection::InvalidEndpoint { container: container(), why: "x".into() },
            Rejection::AddressNotHeld {
                container: container(),
                address: "10.240.0.17/24".parse().unwrap(),
                owner: Some("c2".into()),
            },
            Rejection::EndpointHoldsAddresses { container: container(), addresses: vec![address()] },
            Rejection::EndpointsNotManaged,
        ]
    }

    /// A refusal that leaves its caller at a loss is half a refusal.
    #[test]
    fn every_refusal_carries_a_remedy_and_the_values_it_is_about() {
        for rejection in rejections() {
            let status = of_rejection(&rejection);
            let metadata = status.get_details_error_info().unwrap().metadata;
            assert_eq!(metadata["detail"], rejection.reason());
            assert!(metadata["remedy"].len() > 10, "{rejection}");
            let bare = matches!(rejection, Rejection::NoNcs | Rejection::EndpointsNotManaged);
            assert!(bare || metadata.len() > 3, "{rejection}: {metadata:?}");
        }
        let status = of_rejection(&Rejection::DesiredTaken {
            address: "10.240.0.17".parse().unwrap(),
            owner: "c1".into(),
        });
        let metadata = status.get_details_error_info().unwrap().metadata;
        assert_eq!((metadata["address"].as_str(), metadata["owner"].as_str()), ("10.240.0.17", "c1"));
    }

    #[test]
    fn a_bad_field_is_named() {
        let status: Status = InvalidField::new("desired_ip_addresses[1]", "`x` is not an IP address").into();
        assert_eq!(status.code(), Code::InvalidArgument);
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, "desired_ip_addresses[1]");
    }
}
