//! JSON as the reference reads its configuration: keys in any case, of several the last one, `null` as if absent. The order
//! of keys is kept for that, and a value knows its path for errors.

use std::{collections::BTreeMap, fmt, path::Path};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::ConfigError;

/// A JSON value whose objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl fmt::Display for Json {
    /// For an error: short.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(_) => f.write_str("[…]"),
            Self::Object(_) => f.write_str("{…}"),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Json, E> {
        Ok(Json::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(serde_json::Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            object.push(entry);
        }
        Ok(Json::Object(object))
    }
}

/// What reading found beside the values.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Keys that mean nothing.
    pub(super) unknown: Vec<String>,
}

/// A field that is there, and not null.
pub(super) struct Found<'a> {
    pub(super) value: Json,
    pub(super) path: String,
    pub(super) file: &'a Path,
    pub(super) seen: &'a mut Seen,
}

pub(super) type Read<T> = Result<T, ConfigError>;

impl Found<'_> {
    /// The value is not allowed.
    pub(super) fn wrong<T>(&self, allowed: impl Into<String>) -> Read<T> {
        Err(ConfigError::InFile {
            key: self.path.clone(),
            given: self.value.to_string(),
            file: self.file.to_owned(),
            allowed: allowed.into(),
        })
    }

    pub(super) fn flag(&self) -> Read<bool> {
        if let Json::Bool(flag) = self.value { Ok(flag) } else { self.wrong("true or false is expected") }
    }

    pub(super) fn text(&self) -> Read<String> {
        if let Json::Text(text) = &self.value { Ok(text.clone()) } else { self.wrong("a text is expected") }
    }

    pub(super) fn integer(&self, least: i64, most: i64) -> Read<i64> {
        let number = if let Json::Number(number) = &self.value { number.as_i64() } else { None };
        match number {
            Some(number) if (least..=most).contains(&number) => Ok(number),
            _ if most == i64::from(i32::MAX) => {
                self.wrong(format!("a whole number from {least} is expected"))
            }
            _ => self.wrong(format!("a whole number from {least} to {most} is expected")),
        }
    }

    /// The elements, each as if it were a field.
    pub(super) fn list<T>(mut self, mut read: impl FnMut(Found<'_>) -> Read<T>) -> Read<Vec<T>> {
        if !matches!(self.value, Json::List(_)) {
            return self.wrong("a list is expected");
        }
        let Json::List(items) = std::mem::replace(&mut self.value, Json::Null) else { return Ok(Vec::new()) };
        let mut list = Vec::new();
        for (i, value) in items.into_iter().enumerate() {
            let path = format!("{}[{i}]", self.path);
            list.push(read(Found { value, path, file: self.file, seen: self.seen })?);
        }
        Ok(list)
    }
}

/// The fields of an object, each to be taken once.
pub(super) struct Section<'a> {
    fields: BTreeMap<String, Json>,
    names: BTreeMap<String, String>,
    prefix: String,
    file: &'a Path,
    seen: &'a mut Seen,
}

impl<'a> Section<'a> {
    /// The fields of the whole document.
    pub(super) fn of_document(json: Json, file: &'a Path, seen: &'a mut Seen) -> Read<Self> {
        Self::of(Found { value: json, path: String::new(), file, seen })
    }

    pub(super) fn of(found: Found<'a>) -> Read<Self> {
        let Json::Object(entries) = found.value else {
            return found.wrong("an object is expected");
        };
        let mut fields = BTreeMap::new();
        let mut names = BTreeMap::new();
        for (name, value) in entries {
            let key = name.to_ascii_lowercase();
            names.insert(key.clone(), name);
            // Go leaves a field as it was when `null` comes for it; only pointers are cleared.
            if value != Json::Null {
                fields.insert(key, value);
            }
        }
        let prefix = if found.path.is_empty() { String::new() } else { format!("{}.", found.path) };
        Ok(Self { fields, names, prefix, file: found.file, seen: found.seen })
    }

    /// What `read` makes of the field; it is given `None` for one that is absent.
    pub(super) fn take<T>(&mut self, name: &str, read: impl FnOnce(Option<Found<'_>>) -> Read<T>) -> Read<T> {
        let key = name.to_ascii_lowercase();
        self.names.remove(&key);
        let path = format!("{}{name}", self.prefix);
        let found = self.fields.remove(&key).map(|value| Found {
            value,
            path,
            file: self.file,
            seen: &mut *self.seen,
        });
        read(found)
    }
}

impl Drop for Section<'_> {
    /// What nobody took means nothing.
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.seen.unknown.extend(names.into_values().map(|name| format!("{}{name}", self.prefix)));
    }
}
