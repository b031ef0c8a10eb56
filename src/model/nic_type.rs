//! Which interface of a pod.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Which interface of a pod an address or record is about (spec/rest-contract.md §5, `NICType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NicType {
    /// The pod's primary interface on the cluster network: `InfraNIC`. A legacy record's empty text means this too.
    Infra,
    /// A NIC of the virtual machine handed to the pod: `FrontendNIC`.
    DelegatedVm,
    /// An InfiniBand function: `BackendNIC`.
    Backend,
    /// An accelerated-networking function: `FrontendNIC_Accelnet`.
    AccelnetFrontend,
    /// The host-to-container path over link-local addresses: `ApipaNIC`.
    Apipa,
}

/// The text names no NIC type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a NIC type: InfraNIC, FrontendNIC, BackendNIC, FrontendNIC_Accelnet or ApipaNIC is expected"
)]
pub struct UnknownNicType(String);

impl NicType {
    const ALL: [Self; 5] =
        [Self::Infra, Self::DelegatedVm, Self::Backend, Self::AccelnetFrontend, Self::Apipa];

    /// The legacy contract's text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Infra => "InfraNIC",
            Self::DelegatedVm => "FrontendNIC",
            Self::Backend => "BackendNIC",
            Self::AccelnetFrontend => "FrontendNIC_Accelnet",
            Self::Apipa => "ApipaNIC",
        }
    }
}

impl fmt::Display for NicType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for NicType {
    type Err = UnknownNicType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|nic| nic.as_str() == text).ok_or_else(|| UnknownNicType(text.to_owned()))
    }
}
