//! Which versions of the CNI specification are spoken.

use serde_json::{Value, json};

/// A version of the specification, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CniVersion {
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

/// All of them, in ascending order.
pub(crate) const SUPPORTED: [CniVersion; 5] =
    [CniVersion::V0_3_0, CniVersion::V0_3_1, CniVersion::V0_4_0, CniVersion::V1_0_0, CniVersion::V1_1_0];

impl CniVersion {
    pub(crate) const LATEST: Self = Self::V1_1_0;

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        SUPPORTED.into_iter().find(|version| version.as_str() == text)
    }
}

/// The answer to VERSION. It echoes the version that it was asked in, if that is one we speak.
pub(crate) fn answer(input: &[u8]) -> Value {
    let asked = serde_json::from_slice::<Value>(input)
        .ok()
        .and_then(|value| CniVersion::parse(value.get("cniVersion")?.as_str()?))
        .unwrap_or(CniVersion::LATEST);
    json!({
        "cniVersion": asked.as_str(),
        "supportedVersions": SUPPORTED.map(CniVersion::as_str),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_echoes_what_it_was_asked_in() {
        for (input, echoed) in [
            (r#"{"cniVersion":"0.4.0"}"#, "0.4.0"),
            (r#"{"cniVersion":"0.1.0"}"#, "1.1.0"),
            ("", "1.1.0"),
            ("[", "1.1.0"),
        ] {
            let answer = answer(input.as_bytes());
            assert_eq!(answer["cniVersion"], echoed, "{input}");
            assert_eq!(answer["supportedVersions"].as_array().map(Vec::len), Some(5));
        }
    }

    #[test]
    fn versions_are_ordered_and_read_back() {
        assert!(SUPPORTED.is_sorted());
        for version in SUPPORTED {
            assert_eq!(CniVersion::parse(version.as_str()), Some(version));
        }
        assert_eq!(CniVersion::parse("1.0"), None);
    }
}
