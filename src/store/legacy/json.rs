//! Go's habits with JSON, as far as these files show them: keys match in any case with the exact one first, `null` is the zero
//! value, and an error says where it is.

use std::{net::IpAddr, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ipnet::IpNet;
use serde_json::Value;

use crate::model::parse_ip;

static NULL: Value = Value::Null;

/// A value with its path.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

pub(super) type Read<T> = Result<T, String>;

impl<'a> Node<'a> {
    pub(super) fn new(value: &'a Value, file: &str) -> Self {
        Self { value, path: file.to_owned() }
    }

    fn wrong<T>(&self, expected: &str) -> Read<T> {
        let mut found = self.value.to_string();
        if found.len() > 60 {
            found = format!("{}…", found.chars().take(60).collect::<String>());
        }
        Err(format!("{}: {expected} is expected, found {found}", self.path))
    }

    /// A field; absent is `null`.
    pub(super) fn get(&self, name: &str) -> Self {
        let field = self.value.as_object().and_then(|object| {
            let folded =
                || object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
            object.get(name).or_else(folded)
        });
        Self { value: field.unwrap_or(&NULL), path: format!("{}.{name}", self.path) }
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(super) fn text(&self) -> Read<String> {
        match self.value {
            Value::Null => Ok(String::new()),
            Value::String(text) => Ok(text.clone()),
            _ => self.wrong("a text"),
        }
    }

    pub(super) fn flag(&self) -> Read<bool> {
        match self.value {
            Value::Null => Ok(false),
            Value::Bool(flag) => Ok(*flag),
            _ => self.wrong("true or false"),
        }
    }

    pub(super) fn integer(&self) -> Read<i64> {
        match self.value {
            Value::Null => Ok(0),
            value => value.as_i64().map_or_else(|| self.wrong("an integer"), Ok),
        }
    }

    pub(super) fn items(&self) -> Read<Vec<Self>> {
        match self.value {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) => {
                let node = |(i, value)| Self { value, path: format!("{}[{i}]", self.path) };
                Ok(items.iter().enumerate().map(node).collect())
            }
            _ => self.wrong("a list"),
        }
    }

    pub(super) fn entries(&self) -> Read<Vec<(&'a str, Self)>> {
        match self.value {
            Value::Null => Ok(Vec::new()),
            Value::Object(entries) => {
                let node = |(key, value): (&'a String, &'a Value)| {
                    (key.as_str(), Self { value, path: format!("{}.{key}", self.path) })
                };
                Ok(entries.iter().map(node).collect())
            }
            _ => self.wrong("an object"),
        }
    }

    /// A text that is something; `None` when it is empty.
    pub(super) fn parsed<T: FromStr>(&self) -> Read<Option<T>>
    where
        T::Err: ToString,
    {
        match self.text()?.as_str() {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|error: T::Err| format!("{}: {}", self.path, error.to_string())),
        }
    }

    /// An address; `None` when it is empty.
    pub(super) fn address(&self) -> Read<Option<IpAddr>> {
        match self.text()?.as_str() {
            "" => Ok(None),
            text => parse_ip(text).map(Some).map_err(|error| format!("{}: {error}", self.path)),
        }
    }

    /// `{"IPAddress","PrefixLength"}`; `None` for the zero value.
    pub(super) fn subnet(&self) -> Read<Option<IpNet>> {
        let Some(address) = self.get("IPAddress").address()? else { return Ok(None) };
        let length = self.get("PrefixLength").integer()?;
        let net = u8::try_from(length).ok().and_then(|length| IpNet::new(address, length).ok());
        net.map(Some).ok_or_else(|| format!("{}.PrefixLength: {length} does not fit {address}", self.path))
    }

    /// Go's `net.IPNet`: `{"IP","Mask"}` with the mask's bytes in base64.
    pub(super) fn ip_net(&self) -> Read<Option<IpNet>> {
        let Some(address) = self.get("IP").address()? else { return Ok(None) };
        let mask = self.get("Mask");
        let bytes = STANDARD.decode(mask.text()?).map_err(|error| format!("{}: {error}", mask.path))?;
        // An IPv4 mask may come in its 16-byte form.
        let bytes = match (address, bytes.len()) {
            (IpAddr::V4(_), 16) => &bytes[12..],
            _ => &bytes[..],
        };
        let length: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
        let length = u8::try_from(length).unwrap_or(u8::MAX);
        let most = if address.is_ipv4() { 32 } else { 128 };
        // The reference masks IPv6 with the IPv4 length and Windows sometimes with nothing: a host's own address then.
        let length = if bytes.is_empty() { most } else { length };
        IpNet::new(address, length).map(Some).map_err(|error| format!("{}: {error}", self.path))
    }
}

/// The mask of a network, as Go writes it.
pub(super) fn mask(net: IpNet) -> String {
    match net.netmask() {
        IpAddr::V4(mask) => STANDARD.encode(mask.octets()),
        IpAddr::V6(mask) => STANDARD.encode(mask.octets()),
    }
}

/// Bytes, as Go writes them.
pub(super) fn bytes(octets: &[u8]) -> String {
    STANDARD.encode(octets)
}

/// Bytes, as Go writes them.
pub(super) fn decode_bytes(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
