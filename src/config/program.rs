//! Under which name the daemon was invoked: the reference's name stands for the reference's defaults.

use std::{ffi::OsStr, path::Path};

use serde::Serialize;

/// The name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// Ours, or any that is not the reference's.
    #[default]
    Cns,
    /// The reference's.
    AzureCns,
}

impl Program {
    /// By the file name of `argv[0]`: a symbolic link or a copy of that name is enough.
    pub fn of(argv0: Option<&OsStr>) -> Self {
        let name = argv0.map(Path::new).and_then(Path::file_name);
        if name == Some(OsStr::new("azure-cns")) { Self::AzureCns } else { Self::Cns }
    }

    /// The name itself.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cns => "cns",
            Self::AzureCns => "azure-cns",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_decides() {
        for argv0 in ["azure-cns", "/usr/bin/azure-cns", "./azure-cns"] {
            assert_eq!(Program::of(Some(OsStr::new(argv0))), Program::AzureCns, "{argv0}");
        }
        for argv0 in ["cns", "/opt/azure-cns/cns", "azure-cns-2", ""] {
            assert_eq!(Program::of(Some(OsStr::new(argv0))), Program::Cns, "{argv0}");
        }
        assert_eq!(Program::of(None), Program::Cns);
    }
}
