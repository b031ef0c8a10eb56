//! What can go wrong with a call, told apart by what the caller can do about it.
//!
//! A daemon that cannot be reached is not a daemon that refused: a CNI plugin leaves a note for later in the first case
//! and must report the second. Refusals carry the fields of the `google.rpc` details that the daemon attached.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use cns::model::ReturnCode;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// `google.rpc.ErrorInfo.domain` of every refusal of ours.
const DOMAIN: &str = "cns.azure.com";

/// Key of the legacy return code's number in `google.rpc.ErrorInfo.metadata`.
const RETURN_CODE: &str = "return_code";

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing listens on the socket, or this user may not connect to it. The call changed nothing.
    #[error("cannot reach the cns daemon at {}: {}", socket.display(), root_cause(source.as_ref()))]
    Unreachable {
        /// The socket that was tried.
        socket: PathBuf,
        /// What the kernel answered.
        #[source]
        source: Source,
    },
    /// The connection broke after the call was sent. Whether it took effect is not known.
    #[error("the cns daemon at {} closed the connection during {operation}: {}", socket.display(), root_cause(source.as_ref()))]
    Interrupted {
        /// The rpc.
        operation: &'static str,
        /// The socket in use.
        socket: PathBuf,
        /// What the transport saw.
        #[source]
        source: Source,
    },
    /// No answer within the deadline. Whether the call took effect is not known.
    #[error("{operation} was not answered within {after:?}")]
    Timeout {
        /// The rpc.
        operation: &'static str,
        /// The whole time allowed, with retries.
        after: Duration,
        /// The last refusal of an attempt, if a retry was under way.
        last: Option<Box<Refusal>>,
    },
    /// The daemon answered no. The call changed nothing.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The daemon has no such rpc, or says that the subsystem behind it is not there.
    #[error("{operation} is not implemented by this daemon: {message}")]
    Unimplemented {
        /// The rpc.
        operation: &'static str,
        /// The daemon's words.
        message: String,
    },
}

/// The daemon's refusal, decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The rpc.
    pub operation: &'static str,
    /// gRPC status code.
    pub code: Code,
    /// Return code of the legacy contract, if the daemon gave one.
    pub return_code: Option<ReturnCode>,
    /// Machine-readable reason (`FAILED_TO_ALLOCATE_IP_CONFIG`); empty if the status had no `google.rpc.ErrorInfo`.
    pub reason: String,
    /// The daemon's words for a human.
    pub message: String,
    /// How long to wait before a retry can help (`google.rpc.RetryInfo`); `None` if waiting does not help.
    pub retry_after: Option<Duration>,
    /// Fields of the request that are malformed, each with what is wrong (`google.rpc.BadRequest`).
    pub fields: Vec<(String, String)>,
    /// Further facts (`google.rpc.ErrorInfo.metadata`), without the return code.
    pub details: BTreeMap<String, String>,
}

impl Error {
    /// No answer came because the daemon is not there (any more): the caller may leave its wish for later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Interrupted { .. })
    }

    /// The daemon's refusal, if it answered with one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Timeout { last, .. } => last.as_deref(),
            _ => None,
        }
    }

    /// The thing asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == Code::NotFound)
    }

    /// The request itself is at fault: sending it again cannot help.
    pub fn is_invalid_argument(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == Code::InvalidArgument)
    }

    pub(crate) fn from_status(
        operation: &'static str,
        socket: &std::path::Path,
        allowed: Duration,
        status: Status,
    ) -> Self {
        // A status that came over the wire has no source; one that tonic made of a transport error has.
        if std::error::Error::source(&status).is_some() {
            if find::<tonic::TimeoutExpired>(&status).is_some() {
                return Self::Timeout { operation, after: allowed, last: None };
            }
            let socket = socket.to_owned();
            return if find::<tonic::ConnectError>(&status).is_some() {
                Self::Unreachable { socket, source: Box::new(status) }
            } else {
                Self::Interrupted { operation, socket, source: Box::new(status) }
            };
        }
        match status.code() {
            Code::DeadlineExceeded => Self::Timeout { operation, after: allowed, last: None },
            Code::Unimplemented => Self::Unimplemented { operation, message: status.message().to_owned() },
            _ => Self::Refused(Box::new(Refusal::decode(operation, &status))),
        }
    }
}

impl Refusal {
    fn decode(operation: &'static str, status: &Status) -> Self {
        // Details that do not decode are worth less than the status they came with: it is reported without them.
        let details = status.check_error_details().unwrap_or_else(|_| ErrorDetails::new());
        let (reason, mut metadata) = details
            .error_info()
            .filter(|info| info.domain == DOMAIN)
            .map(|info| (info.reason.clone(), info.metadata.clone().into_iter().collect::<BTreeMap<_, _>>()))
            .unwrap_or_default();
        let return_code = metadata
            .remove(RETURN_CODE)
            .and_then(|number| number.parse().ok())
            .and_then(ReturnCode::from_number);
        let fields = details
            .bad_request()
            .into_iter()
            .flat_map(|bad| &bad.field_violations)
            .map(|violation| (violation.field.clone(), violation.description.clone()))
            .collect();
        Self {
            operation,
            code: status.code(),
            return_code,
            reason,
            message: status.message().to_owned(),
            retry_after: details.retry_info().map(|info| info.retry_delay.unwrap_or_default()),
            fields,
            details: metadata,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused: ", self.operation)?;
        if self.message.is_empty() {
            write!(f, "{:?}", self.code)?;
        } else {
            f.write_str(&self.message)?;
        }
        for (field, problem) in &self.fields {
            // The message of a malformed request usually is the violation itself.
            if !self.message.contains(problem.as_str()) {
                write!(f, "; {field}: {problem}")?;
            }
        }
        match (self.reason.as_str(), self.return_code) {
            ("", None) => {}
            ("", Some(code)) => write!(f, " (return code {})", code.number())?,
            (reason, None) => write!(f, " ({reason})")?,
            (reason, Some(code)) => write!(f, " ({reason}, return code {})", code.number())?,
        }
        match self.retry_after {
            Some(wait) if wait.is_zero() => f.write_str("; try again"),
            Some(wait) => write!(f, "; try again in {:.1} s", wait.as_secs_f64()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

fn find<'a, E: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a E> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref())
}

/// Tonic wraps what the kernel said in several layers that each say "transport error": only the innermost helps.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::Path};

    use super::*;

    fn decode(status: Status) -> Error {
        Error::from_status("RequestIPConfigs", Path::new("/run/cns.sock"), Duration::from_secs(5), status)
    }

    #[test]
    fn a_refusal_says_reason_code_and_when_to_ask_again() {
        let mut details = ErrorDetails::new();
        details
            .set_error_info(
                "FAILED_TO_ALLOCATE_IP_CONFIG",
                DOMAIN,
                HashMap::from([
                    (RETURN_CODE.to_owned(), "32".to_owned()),
                    ("family".to_owned(), "IPv4".to_owned()),
                ]),
            )
            .set_retry_info(Some(Duration::from_millis(1500)));
        let error =
            decode(Status::with_error_details(Code::ResourceExhausted, "no available IPv4 address", details));
        let refusal = error.refusal().unwrap();
        assert_eq!(refusal.return_code, Some(ReturnCode::FailedToAllocateIpConfig));
        assert_eq!(refusal.retry_after, Some(Duration::from_millis(1500)));
        assert_eq!(refusal.details, BTreeMap::from([("family".to_owned(), "IPv4".to_owned())]));
        assert_eq!(
            error.to_string(),
            "RequestIPConfigs refused: no available IPv4 address (FAILED_TO_ALLOCATE_IP_CONFIG, return code 32); try again in 1.5 s"
        );
        assert!(!error.is_unreachable());
    }

    #[test]
    fn a_malformed_field_is_named() {
        let details =
            ErrorDetails::with_bad_request_violation("desired_ip_addresses[0]", "`nope` is not an address");
        let error = decode(Status::with_error_details(Code::InvalidArgument, "malformed request", details));
        assert!(error.is_invalid_argument());
        assert_eq!(
            error.to_string(),
            "RequestIPConfigs refused: malformed request; desired_ip_addresses[0]: `nope` is not an address"
        );
    }

    #[test]
    fn details_of_another_domain_are_not_taken_for_ours() {
        let details = ErrorDetails::with_error_info("PROXY_DENIED", "proxy.example", HashMap::new());
        let error = decode(Status::with_error_details(Code::PermissionDenied, "no", details));
        assert_eq!(error.refusal().unwrap().reason, "");
    }

    #[test]
    fn details_that_do_not_decode_leave_the_status() {
        let error = decode(Status::with_details(Code::NotFound, "no such container", vec![0xff; 7].into()));
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "RequestIPConfigs refused: no such container");
    }

    #[test]
    fn a_missing_rpc_and_a_late_answer_are_no_refusals() {
        assert!(matches!(decode(Status::unimplemented("no NMAgent here")), Error::Unimplemented { .. }));
        let late = decode(Status::deadline_exceeded("too late"));
        assert!(matches!(late, Error::Timeout { .. }));
        assert_eq!(late.to_string(), "RequestIPConfigs was not answered within 5s");
    }

    #[test]
    fn a_status_that_the_transport_made_is_no_refusal() {
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let error = decode(Status::from_error(Box::new(broken)));
        assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        assert!(error.is_unreachable());
        assert_eq!(
            error.to_string(),
            "the cns daemon at /run/cns.sock closed the connection during RequestIPConfigs: broken pipe"
        );
    }
}
