//! Files that a command reads: JSON or YAML, by what they hold rather than by their name.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

use serde::de::DeserializeOwned;

use crate::failure::{Exit, Failure};

/// Nothing that a person writes is larger; a device given by mistake has no end.
const LARGEST: u64 = 64 << 20;

/// Reads one value from `path`; `-` is standard input.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let text = text(path)?;
    parse(&text).map_err(|why| {
        Failure::new(Exit::Usage, format!("{} is not as expected: {why}", shown(path)))
            .remedy("`cnsctl nc get ID -o yaml` prints one as it should be")
    })
}

fn text(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let result = if path.as_os_str() == "-" {
        io::stdin().lock().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text))
    };
    match result {
        Ok(_) if text.len() as u64 > LARGEST => {
            Err(Failure::new(Exit::Usage, format!("{} is larger than {LARGEST} bytes", shown(path))))
        }
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::new(Exit::Usage, format!("cannot read {}: {error}", shown(path)))),
    }
}

/// JSON is YAML too, but JSON's own parser explains JSON's errors.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    if text.trim_start().starts_with(['{', '[']) {
        serde_json::from_str(text).map_err(|error| error.to_string())
    } else {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }
}

pub(crate) fn shown(path: &Path) -> String {
    if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Value {
        ip_address: String,
        #[serde(default)]
        routes: Vec<String>,
    }

    #[test]
    fn json_and_yaml_give_the_same() {
        let expected = Value { ip_address: "10.0.0.1".into(), routes: vec!["0.0.0.0/0".into()] };
        assert_eq!(
            parse::<Value>(r#"{"ipAddress": "10.0.0.1", "routes": ["0.0.0.0/0"]}"#).unwrap(),
            expected
        );
        assert_eq!(parse::<Value>("ipAddress: 10.0.0.1\nroutes:\n  - 0.0.0.0/0\n").unwrap(), expected);
    }

    #[test]
    fn an_error_names_the_key_and_the_place() {
        for text in [r#"{"ipAdress": "10.0.0.1"}"#, "ipAdress: 10.0.0.1\n"] {
            let error = parse::<Value>(text).unwrap_err();
            assert!(error.contains("ipAdress") && error.contains("line 1"), "{error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let failure = read::<Value>(Path::new("/nonexistent/nc.yaml")).unwrap_err();
        assert!(failure.to_string().contains("/nonexistent/nc.yaml"), "{failure}");
    }
}
