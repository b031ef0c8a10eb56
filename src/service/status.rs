//! The one table: rejection ↔ legacy return code ↔ gRPC status, and the rich details every failure carries (design §3).

use std::{collections::HashMap, net::IpAddr, time::Duration};

use tonic::{Code, Status};
use tonic_types::{BadRequest, ErrorDetails, FieldViolation, StatusExt};

use crate::{
    ledger::{LedgerError, Rejection},
    model::ReturnCode,
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

/// A failure with a legacy return code.
pub fn failure(code: Code, return_code: ReturnCode, message: impl Into<String>) -> Status {
    detailed(code, return_code, message.into(), HashMap::new(), None)
}

fn detailed(
    code: Code,
    return_code: ReturnCode,
    message: String,
    mut metadata: HashMap<String, String>,
    retry: Option<Duration>,
) -> Status {
    metadata.insert("return_code".into(), return_code.number().to_string());
    let mut details = ErrorDetails::with_error_info(upper_snake(return_code.name()), ERROR_DOMAIN, metadata);
    if retry.is_some() {
        details.set_retry_info(retry);
    }
    Status::with_error_details(code, message, details)
}

/// The status that a ledger's failure becomes.
pub fn of_ledger(error: LedgerError) -> Status {
    match error {
        LedgerError::Rejected(rejection) => of_rejection(&rejection),
        LedgerError::Unavailable { .. } | LedgerError::Overloaded => detailed(
            Code::Unavailable,
            ReturnCode::UnexpectedError,
            error.to_string(),
            HashMap::from([("detail".into(), "STATE_NOT_DURABLE".into())]),
            Some(RETRY_UNAVAILABLE),
        ),
        LedgerError::Stopped => detailed(
            Code::Unavailable,
            ReturnCode::UnexpectedError,
            "the daemon is stopping".into(),
            HashMap::new(),
            Some(RETRY_UNAVAILABLE),
        ),
    }
}

/// The status that a rejection becomes.
pub fn of_rejection(rejection: &Rejection) -> Status {
    let list = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut metadata = HashMap::from([("detail".to_owned(), rejection.reason().to_owned())]);
    let mut put = |key: &str, value: String| drop(metadata.insert(key.to_owned(), value));
    let mut retry = None;
    match rejection {
        Rejection::Exhausted { family, ncs } => {
            put("family", family.to_string());
            put("network_containers", ncs.iter().map(|s| s.nc.to_string()).collect::<Vec<_>>().join(","));
            put(
                "remedy",
                "release unused pods, widen the address range, or wait for the pool to grow".into(),
            );
            retry = Some(RETRY_EXHAUSTED);
        }
        Rejection::RecentlyDeleted { retry_after, .. } => retry = Some(*retry_after),
        Rejection::DesiredTaken { address, owner } => {
            put("address", address.to_string());
            put("owner", owner.clone());
        }
        Rejection::DesiredUnavailable { address, state } => {
            put("address", address.to_string());
            put("state", state.to_string());
        }
        Rejection::DesiredUnknown { addresses }
        | Rejection::AssignedMissing { addresses, .. }
        | Rejection::EndpointHoldsAddresses { addresses, .. } => put("addresses", list(addresses)),
        _ => {}
    }
    detailed(code_of(rejection), rejection.return_code(), rejection.to_string(), metadata, retry)
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
        let number = invalid.return_code.number().to_string();
        let mut details = ErrorDetails::with_error_info(
            upper_snake(invalid.return_code.name()),
            ERROR_DOMAIN,
            HashMap::from([("return_code".to_owned(), number)]),
        );
        let violation = FieldViolation::new(invalid.field, invalid.why);
        details.set_bad_request(BadRequest::new(vec![violation]).field_violations);
        Self::with_error_details(Code::InvalidArgument, message, details)
    }
}

/// An operation whose subsystem is not part of this daemon yet.
pub fn unimplemented(rpc: &str, missing: &str) -> Status {
    detailed(
        Code::Unimplemented,
        ReturnCode::UnsupportedApi,
        format!("{rpc} is not available: {missing}"),
        HashMap::from([("rpc".to_owned(), rpc.to_owned())]),
        None,
    )
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;
    use crate::model::{Family, PodKeyScheme};

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

    #[test]
    fn a_bad_field_is_named() {
        let status: Status = InvalidField::new("desired_ip_addresses[1]", "`x` is not an IP address").into();
        assert_eq!(status.code(), Code::InvalidArgument);
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations[0].field, "desired_ip_addresses[1]");
    }
}
