//! The legacy contract's return codes.

use serde::{Deserialize, Serialize};

macro_rules! return_codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// A return code of the legacy contract (spec/rest-contract.md §4).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u16)]
        pub enum ReturnCode {
            $($(#[$doc])* $variant = $number,)*
        }

        impl ReturnCode {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its number on the wire.
            pub const fn number(self) -> u16 {
                self as u16
            }

            /// Its own name. The reference prints some of them as `UnknownError`; see [`Self::legacy_name`].
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The code with this number.
            pub fn from_number(number: u16) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.number() == number)
            }
        }
    };
}

return_codes! {
    /// 0
    Success = 0, "Success";
    /// 1
    UnsupportedNetworkType = 1, "UnsupportedNetworkType";
    /// 2
    InvalidParameter = 2, "InvalidParameter";
    /// 3
    UnsupportedEnvironment = 3, "UnsupportedEnvironment";
    /// 4
    UnreachableHost = 4, "UnreachableHost";
    /// 5
    ReservationNotFound = 5, "ReservationNotFound";
    /// 8
    MalformedSubnet = 8, "MalformedSubnet";
    /// 9
    UnreachableDockerDaemon = 9, "UnreachableDockerDaemon";
    /// 10
    UnspecifiedNetworkName = 10, "UnspecifiedNetworkName";
    /// 14
    NotFound = 14, "NotFound";
    /// 15
    AddressUnavailable = 15, "AddressUnavailable";
    /// 16
    NetworkContainerNotSpecified = 16, "NetworkContainerNotSpecified";
    /// 17
    CallToHostFailed = 17, "CallToHostFailed";
    /// 18
    UnknownContainerId = 18, "UnknownContainerID";
    /// 19
    UnsupportedOrchestratorType = 19, "UnsupportedOrchestratorType";
    /// 20
    DockerContainerNotSpecified = 20, "DockerContainerNotSpecified";
    /// 21
    UnsupportedVerb = 21, "UnsupportedVerb";
    /// 22
    UnsupportedNetworkContainerType = 22, "UnsupportedNetworkContainerType";
    /// 23
    InvalidRequest = 23, "InvalidRequest";
    /// 24
    NetworkJoinFailed = 24, "NetworkJoinFailed";
    /// 25
    NetworkContainerPublishFailed = 25, "NetworkContainerPublishFailed";
    /// 26
    NetworkContainerUnpublishFailed = 26, "NetworkContainerUnpublishFailed";
    /// 27
    InvalidPrimaryIpConfig = 27, "InvalidPrimaryIPConfig";
    /// 28
    PrimaryCaNotSame = 28, "PrimaryCANotSame";
    /// 29
    InconsistentIpConfigState = 29, "InconsistentIPConfigState";
    /// 30
    InvalidSecondaryIpConfig = 30, "InvalidSecondaryIPConfig";
    /// 31
    NetworkContainerVfpProgramPending = 31, "NetworkContainerVfpProgramPending";
    /// 32
    FailedToAllocateIpConfig = 32, "FailedToAllocateIpConfig";
    /// 33
    EmptyOrchestratorContext = 33, "EmptyOrchestratorContext";
    /// 34
    UnsupportedOrchestratorContext = 34, "UnsupportedOrchestratorContext";
    /// 35
    NetworkContainerVfpProgramComplete = 35, "NetworkContainerVfpProgramComplete";
    /// 36
    NetworkContainerVfpProgramCheckSkipped = 36, "NetworkContainerVfpProgramCheckSkipped";
    /// 37
    NmAgentSupportedApisError = 37, "NmAgentSupportedApisError";
    /// 38
    UnsupportedNcVersion = 38, "UnsupportedNCVersion";
    /// 39
    FailedToRunIpTableCmd = 39, "FailedToRunIPTableCmd";
    /// 40
    NilEndpointStateStore = 40, "NilEndpointStateStore";
    /// 41
    NmAgentInternalServerError = 41, "NmAgentInternalServerError";
    /// 42
    StatusUnauthorized = 42, "StatusUnauthorized";
    /// 43
    UnsupportedApi = 43, "UnsupportedAPI";
    /// 44
    FailedToAllocateBackendConfig = 44, "FailedToAllocateBackendConfig";
    /// 45
    ConnectionError = 45, "ConnectionError";
    /// 99
    UnexpectedError = 99, "UnexpectedError";
    /// 100
    NmAgentNcVersionListError = 100, "NmAgentNCVersionListError";
}

impl ReturnCode {
    /// The name that the reference writes into the `Cns_return_code` header.
    pub const fn legacy_name(self) -> &'static str {
        match self {
            Self::FailedToRunIpTableCmd
            | Self::NilEndpointStateStore
            | Self::UnsupportedApi
            | Self::ConnectionError
            | Self::NmAgentNcVersionListError => "UnknownError",
            other => other.name(),
        }
    }
}
