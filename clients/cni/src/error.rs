//! Errors as the CNI specification wants them: one JSON object on standard output, with a code that the runtime acts on.

use cns::nic::NicError;
use serde_json::{Value, json};

use crate::version::CniVersion;

/// The code of an error. Below 100: the specification's; from 100: ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The configuration's `cniVersion` is not one we speak.
    IncompatibleVersion,
    /// A `CNI_*` variable is missing or malformed.
    Environment,
    /// A file or stream cannot be read or written.
    Io,
    /// The configuration is not JSON.
    Decode,
    /// The configuration does not make sense.
    InvalidConfig,
    /// The runtime should try again later.
    TryAgainLater,
    /// STATUS: no pod can be added now.
    NotAvailable,
    /// The daemon refused, and trying again will not help.
    Refused,
    /// The kernel refused, or the sandbox cannot be wired.
    Dataplane,
    /// What is asked for needs a part that this version does not have.
    Unsupported,
    /// CHECK: the sandbox is not as it was wired.
    Deviates,
    /// Anything else.
    Generic,
}

impl Code {
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::IncompatibleVersion => 1,
            Self::Environment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::InvalidConfig => 7,
            Self::TryAgainLater => 11,
            Self::NotAvailable => 50,
            Self::Refused => 100,
            Self::Dataplane => 101,
            Self::Unsupported => 103,
            Self::Deviates => 104,
            Self::Generic => 999,
        }
    }
}

/// A failed command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CniError {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) details: String,
}

impl CniError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new() }
    }

    /// Adds what helps to find the cause. Several are joined.
    pub(crate) fn details(mut self, details: impl Into<String>) -> Self {
        let details = details.into();
        if !details.is_empty() {
            if !self.details.is_empty() {
                self.details.push_str("; ");
            }
            self.details.push_str(&details);
        }
        self
    }

    /// As it is printed. `version` is that of the configuration, once it is known.
    pub(crate) fn to_json(&self, version: Option<CniVersion>) -> Value {
        let mut json = json!({
            "cniVersion": version.unwrap_or(CniVersion::LATEST).as_str(),
            "code": self.code.number(),
            "msg": self.message,
        });
        if !self.details.is_empty() {
            json["details"] = self.details.clone().into();
        }
        json
    }

    /// Of a failed call, while `doing` something.
    pub(crate) fn of_call(doing: &str, error: &cns_client::Error) -> Self {
        let code = match error {
            cns_client::Error::Refused(refusal) => {
                let retry = refusal.retry_after.is_some() || refusal.code == tonic::Code::Unavailable;
                if retry { Code::TryAgainLater } else { Code::Refused }
            }
            cns_client::Error::Unimplemented { .. } => Code::Refused,
            _ => Code::TryAgainLater,
        };
        let details = match error.refusal() {
            Some(refusal) => {
                let facts = refusal.details.iter().map(|(key, value)| format!("{key}: {value}"));
                facts.collect::<Vec<_>>().join("; ")
            }
            None if error.is_unreachable() => {
                "is the daemon running, and is `socket` in the network configuration its socket?".to_owned()
            }
            None => String::new(),
        };
        Self::new(code, format!("{doing}: {error}")).details(details)
    }

    /// Of the dataplane, while `doing` something.
    pub(crate) fn of_nic(doing: &str, error: &NicError) -> Self {
        Self::new(Code::Dataplane, format!("{doing}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_as_the_specification_wants() {
        let error = CniError::new(Code::Environment, "no").details("a").details("").details("b");
        assert_eq!(
            error.to_json(Some(CniVersion::V0_4_0)),
            json!({"cniVersion": "0.4.0", "code": 4, "msg": "no", "details": "a; b"})
        );
        assert_eq!(CniError::new(Code::Generic, "x").to_json(None)["cniVersion"], "1.1.0");
    }
}
