//! The channel modes (design §6).

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

/// Where network containers and pods' addresses come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelMode {
    /// One static network container per configured network; nothing outside the process. Ours.
    Standalone,
    /// DNC tells, over REST or gRPC.
    Direct,
    /// DNC is polled.
    Managed,
    /// NodeNetworkConfig.
    Crd,
    /// MultiTenantNetworkContainer.
    MultiTenantCrd,
    /// NMAgent's secondary addresses.
    AzureHost,
}

impl ChannelMode {
    /// Every mode.
    pub const ALL: [Self; 6] =
        [Self::Standalone, Self::Direct, Self::Managed, Self::Crd, Self::MultiTenantCrd, Self::AzureHost];

    /// Its text in `cns_config.json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standalone => "Standalone",
            Self::Direct => "Direct",
            Self::Managed => "Managed",
            Self::Crd => "CRD",
            Self::MultiTenantCrd => "MultiTenantCRD",
            Self::AzureHost => "AzureHost",
        }
    }

    /// Whether this version can run it.
    pub fn is_supported(self) -> bool {
        !matches!(self, Self::Crd | Self::MultiTenantCrd)
    }
}

impl fmt::Display for ChannelMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ChannelMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// No mode has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("one of {} is allowed, in this spelling", ChannelMode::ALL.map(ChannelMode::as_str).join(", "))]
pub struct UnknownChannelMode;

impl FromStr for ChannelMode {
    type Err = UnknownChannelMode;

    /// The spelling counts, as it does for the reference: where both read one file, both must read the same mode.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text).ok_or(UnknownChannelMode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_the_legacy_ones() {
        for mode in ChannelMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "crd".parse::<ChannelMode>().unwrap_err().to_string();
        assert!(error.contains("CRD, MultiTenantCRD"), "{error}");
    }
}
