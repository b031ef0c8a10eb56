//! JSON as Go's `encoding/json` reads and writes it (spec/rest-contract.md §2.2, §2.3), as a serde layer: a type derives
//! `Serialize` and `Deserialize` as always, with `#[serde(default)]`, and is read with [`decode`] and written with [`encode`].
//!
//! Reading: only the first value counts; field names match exactly, else without regard to case; unknown fields are ignored,
//! of repeated ones the last counts; `null` is the zero value of whatever is expected; integers take no fraction, no exponent
//! and nothing out of range; each byte that is not UTF-8 becomes U+FFFD. Writing: `<`, `>`, `&`, U+2028 and U+2029 are escaped.
//!
//! What Go tells apart and Rust's own types do not has types here: [`Raw`] (absent, or any JSON, also `null`), [`List`] and
//! [`Bytes`] (an empty one is `null`).

use std::{borrow::Cow, fmt, io};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Values that are deeper than Go's limit are refused, whoever they are for.
const DEEPEST: usize = 10_000;
/// What a type reads is read recursively and must be less deep; raw and unknown values are passed over.
const DEEPEST_READ: usize = 100;

/// Why bytes are not what was expected. The words are for people; they resemble Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(String);

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// Reads the first JSON value of `bytes`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let text = repaired(bytes);
    if text.trim_start_matches([' ', '\t', '\r', '\n']).is_empty() {
        return Err(DecodeError("EOF".into()));
    }
    // Nobody looks at what follows the value, even where it touches it.
    match <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(&text)) {
        Err(error) if error.is_eof() => Err(DecodeError("unexpected EOF".into())),
        Err(error) => Err(DecodeError(error.to_string())),
        Ok(value) if is_too_deep(value.get()) => Err(too_deep()),
        Ok(value) => T::deserialize(Go { text: value.get(), depth: 0 }),
    }
}

/// Bytes as text; of a broken sequence, each byte becomes a character of its own, as in Go.
fn repaired(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

/// Whether JSON has lists and objects deeper in each other than Go reads them.
fn is_too_deep(json: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return true;
        }
    }
    false
}

fn too_deep() -> DecodeError {
    DecodeError("exceeded max depth".into())
}

/// Writes a value, without a line feed at its end.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::with_capacity(256);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Escaping))?;
    Ok(bytes)
}

/// Compact JSON with Go's escapes.
#[derive(Clone, Copy, Debug)]
struct Escaping;

impl serde_json::ser::Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        escape(writer, text)
    }

    // The characters can only stand in the strings of raw JSON. What stands between its values goes, as in Go: an answer is
    // one line.
    fn write_raw_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let (mut in_string, mut escaped) = (false, false);
        let is_between = |c: char| {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = !in_string,
                ' ' | '\t' | '\r' | '\n' => return !in_string,
                _ => {}
            }
            false
        };
        text.split(is_between).try_for_each(|part| escape(writer, part))
    }
}

fn escape<W: ?Sized + io::Write>(writer: &mut W, text: &str) -> io::Result<()> {
    let mut rest = text;
    while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        let (plain, from) = rest.split_at(at);
        writer.write_all(plain.as_bytes())?;
        let mut characters = from.chars();
        let escaped = match characters.next() {
            Some('<') => "\\u003c",
            Some('>') => "\\u003e",
            Some('&') => "\\u0026",
            Some('\u{2028}') => "\\u2028",
            _ => "\\u2029",
        };
        writer.write_all(escaped.as_bytes())?;
        rest = characters.as_str();
    }
    writer.write_all(rest.as_bytes())
}

/// One value that is known to be JSON.
#[derive(Clone, Copy)]
struct Go<'a> {
    text: &'a str,
    depth: usize,
}

/// The name by which [`Raw`] asks for the text itself.
const RAW: &str = "$gojson::Raw";

impl<'a> Go<'a> {
    fn is_null(self) -> bool {
        self.text == "null"
    }

    fn first(self) -> u8 {
        self.text.as_bytes().first().copied().unwrap_or_default()
    }

    fn kind(self) -> &'static str {
        match self.first() {
            b'{' => "object",
            b'[' => "array",
            b'"' => "string",
            b't' | b'f' => "bool",
            b'n' => "null",
            _ => "number",
        }
    }

    fn mismatch(self, expected: &str) -> DecodeError {
        DecodeError(format!("json: cannot unmarshal {} into Go value of type {expected}", self.kind()))
    }

    fn inner(self, text: &'a str) -> Result<Self, DecodeError> {
        if self.depth >= DEEPEST_READ {
            return Err(too_deep());
        }
        Ok(Self { text, depth: self.depth + 1 })
    }

    fn members(self) -> Result<Vec<(Cow<'a, str>, &'a str)>, DecodeError> {
        if self.is_null() {
            return Ok(Vec::new());
        }
        if self.first() != b'{' {
            return Err(self.mismatch("struct"));
        }
        let Members(members) = serde_json::from_str(self.text).map_err(DecodeError::custom)?;
        Ok(members.into_iter().map(|(key, value)| (string(key.get()), value.get())).collect())
    }

    fn elements(self) -> Result<Vec<&'a str>, DecodeError> {
        if self.is_null() {
            return Ok(Vec::new());
        }
        if self.first() != b'[' {
            return Err(self.mismatch("slice"));
        }
        let elements: Vec<&RawValue> = serde_json::from_str(self.text).map_err(DecodeError::custom)?;
        Ok(elements.into_iter().map(RawValue::get).collect())
    }

    fn string(self) -> Result<Cow<'a, str>, DecodeError> {
        match self.first() {
            _ if self.is_null() => Ok(Cow::Borrowed("")),
            b'"' => Ok(string(self.text)),
            _ => Err(self.mismatch("string")),
        }
    }

    fn integer<T: std::str::FromStr + Default>(self, name: &str) -> Result<T, DecodeError> {
        if self.is_null() {
            return Ok(T::default());
        }
        if self.kind() != "number" {
            return Err(self.mismatch(name));
        }
        self.text.parse().map_err(|_| {
            DecodeError(format!("json: cannot unmarshal number {} into Go value of type {name}", self.text))
        })
    }
}

/// An object's members in order, keys as they are written.
struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

/// The value of a JSON string. A surrogate without its other half becomes U+FFFD, as in Go.
fn string(quoted: &str) -> Cow<'_, str> {
    let inner = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(quoted);
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let mut value = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        value.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut characters = rest.chars();
        match characters.next() {
            Some('b') => value.push('\u{8}'),
            Some('f') => value.push('\u{c}'),
            Some('n') => value.push('\n'),
            Some('r') => value.push('\r'),
            Some('t') => value.push('\t'),
            Some('u') => {
                let (first, after) = unit(characters.as_str());
                rest = after;
                let pair = rest.strip_prefix("\\u").map(unit);
                match (first, pair) {
                    (0xd800..=0xdbff, Some((second @ 0xdc00..=0xdfff, after))) => {
                        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        value.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                        rest = after;
                    }
                    _ => value.push(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)),
                }
                continue;
            }
            Some(other) => value.push(other),
            None => {}
        }
        rest = characters.as_str();
    }
    value.push_str(rest);
    Cow::Owned(value)
}

/// Four hexadecimal digits, and what follows them.
fn unit(text: &str) -> (u32, &str) {
    match text.split_at_checked(4) {
        Some((digits, rest)) => (u32::from_str_radix(digits, 16).unwrap_or(0xfffd), rest),
        None => (0xfffd, ""),
    }
}

/// Go folds case by Unicode's simple folding; beyond ASCII only these two fold into it.
fn fold(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\u{212a}' => 'k',
            '\u{17f}' => 's',
            other => other.to_ascii_lowercase(),
        })
        .collect()
}

macro_rules! integers {
    ($($method:ident $visit:ident $name:literal;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
                visitor.$visit(self.integer($name)?)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Go<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.first() {
            b'{' => self.deserialize_map(visitor),
            b'[' => self.deserialize_seq(visitor),
            b'"' => self.deserialize_string(visitor),
            b't' | b'f' => self.deserialize_bool(visitor),
            b'n' => visitor.visit_unit(),
            _ => match (self.text.parse::<i64>(), self.text.parse::<f64>()) {
                (Ok(integer), _) => visitor.visit_i64(integer),
                (_, Ok(float)) => visitor.visit_f64(float),
                _ => Err(self.mismatch("number")),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.text {
            "true" => visitor.visit_bool(true),
            "false" | "null" => visitor.visit_bool(false),
            _ => Err(self.mismatch("bool")),
        }
    }

    integers! {
        deserialize_i8 visit_i8 "int8";
        deserialize_i16 visit_i16 "int16";
        deserialize_i32 visit_i32 "int32";
        deserialize_i64 visit_i64 "int";
        deserialize_u8 visit_u8 "uint8";
        deserialize_u16 visit_u16 "uint16";
        deserialize_u32 visit_u32 "uint32";
        deserialize_u64 visit_u64 "uint";
        deserialize_f32 visit_f32 "float32";
        deserialize_f64 visit_f64 "float64";
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.string()? {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        if name == RAW { visitor.visit_borrowed_str(self.text) } else { visitor.visit_newtype_struct(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_seq(Elements { of: self, rest: self.elements()?.into_iter() })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_map(Pairs { of: self, rest: self.members()?.into_iter(), value: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let mut known: Vec<(Cow<'de, str>, &'de str)> = Vec::new();
        for (key, value) in self.members()? {
            let exact = fields.iter().copied().find(|field| *field == key);
            let Some(field) = exact.or_else(|| {
                let folded = fold(&key);
                fields.iter().copied().find(|field| fold(field) == folded)
            }) else {
                continue;
            };
            match known.iter_mut().find(|(name, _)| *name == field) {
                Some(before) => before.1 = value,
                None => known.push((Cow::Borrowed(field), value)),
            }
        }
        visitor.visit_map(Pairs { of: self, rest: known.into_iter(), value: None })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_enum(de::value::CowStrDeserializer::new(self.string()?))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }
}

struct Elements<'a> {
    of: Go<'a>,
    rest: std::vec::IntoIter<&'a str>,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        self.rest.next().map(|text| seed.deserialize(self.of.inner(text)?)).transpose()
    }
}

struct Pairs<'a> {
    of: Go<'a>,
    rest: std::vec::IntoIter<(Cow<'a, str>, &'a str)>,
    value: Option<&'a str>,
}

impl<'de> MapAccess<'de> for Pairs<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(de::value::CowStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        let text = self.value.take().unwrap_or("null");
        seed.deserialize(self.of.inner(text)?)
    }
}

/// Any JSON, kept as it was written (Go's `json.RawMessage`). Absent is not `null`: a legacy caller that sends `null` has said
/// something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw(Option<Box<str>>);

impl Raw {
    /// JSON text; must be JSON.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(Some(text.into()))
    }

    /// The text; none if the field was absent.
    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
                Ok(Raw::new(text))
            }
        }
        deserializer.deserialize_newtype_struct(RAW, Text)
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.get() {
            Some(text) => serde_json::from_str::<&RawValue>(text)
                .map_err(serde::ser::Error::custom)?
                .serialize(serializer),
            None => serializer.serialize_unit(),
        }
    }
}

/// A list that is `null` when it is empty, as Go's nil is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self)
    }
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_empty() { serializer.serialize_unit() } else { self.0.serialize(serializer) }
    }
}

/// Bytes as padded base64; `None` is Go's nil and `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Option<Vec<u8>>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use base64::Engine as _;
        let Some(mut text) = Option::<String>::deserialize(deserializer)? else { return Ok(Self(None)) };
        // Go's decoder passes over line ends.
        text.retain(|c| !matches!(c, '\r' | '\n'));
        let bytes = base64::engine::general_purpose::STANDARD.decode(text);
        bytes
            .map(|bytes| Self(Some(bytes)))
            .map_err(|error| D::Error::custom(format!("illegal base64 data: {error}")))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64::Engine as _;
        match &self.0 {
            Some(bytes) => serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(bytes)),
            None => serializer.serialize_unit(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Inner {
        #[serde(rename = "IPAddress")]
        address: String,
        #[serde(rename = "PrefixLength")]
        prefix: u8,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Outer {
        #[serde(rename = "Name")]
        name: String,
        #[serde(rename = "Flag")]
        flag: bool,
        #[serde(rename = "Number")]
        number: i64,
        #[serde(rename = "Inner")]
        inner: Inner,
        #[serde(rename = "Names")]
        names: List<String>,
        #[serde(rename = "Map")]
        map: BTreeMap<String, Inner>,
        #[serde(rename = "Raw")]
        raw: Raw,
        #[serde(rename = "Bytes")]
        bytes: Bytes,
    }

    fn read(text: &str) -> Result<Outer, DecodeError> {
        decode(text.as_bytes())
    }

    #[test]
    fn names_match_exactly_else_in_any_case_and_the_last_counts() {
        assert_eq!(read(r#"{"name":"a","NAME":"b","nAmE":"c"}"#).unwrap().name, "c");
        assert_eq!(read(r#"{"inner":{"ipaddress":"x","PREFIXLENGTH":7}}"#).unwrap().inner.prefix, 7);
        assert_eq!(read(r#"{"unknown":[{}],"Name":"a"} trailing"#).unwrap().name, "a");
        assert_eq!(read("{\"f\u{212a}\":1}").unwrap(), Outer::default());
    }

    #[test]
    fn null_is_zero_everywhere_and_nothing_is_not() {
        let all =
            r#"{"Name":null,"Flag":null,"Number":null,"Inner":null,"Names":null,"Map":null,"Bytes":null}"#;
        assert_eq!(read(all).unwrap(), Outer::default());
        for null in ["null", " null ", "nullx", "null{}", "null\0"] {
            assert_eq!(read(null).unwrap(), Outer::default(), "{null}");
        }
        assert_eq!(read(r#"{"Names":[null,"a"]}"#).unwrap().names.0, ["", "a"]);
        assert_eq!(read(r#"{"Map":{"k":null}}"#).unwrap().map["k"], Inner::default());
        assert_eq!(read("").unwrap_err().to_string(), "EOF");
        assert_eq!(read(" \n").unwrap_err().to_string(), "EOF");
        assert_eq!(read("{\"Name\":").unwrap_err().to_string(), "unexpected EOF");
    }

    #[test]
    fn raw_tells_null_from_absent() {
        assert_eq!(read("{}").unwrap().raw.get(), None);
        assert_eq!(read(r#"{"raw":null}"#).unwrap().raw.get(), Some("null"));
        assert_eq!(read(r#"{"Raw": {"a" : 1}}"#).unwrap().raw.get(), Some(r#"{"a" : 1}"#));
    }

    #[test]
    fn numbers_are_whole_and_in_range() {
        for bad in ["1.5", "1e2", "256", "-1", "\"1\"", "true", "[]"] {
            assert!(read(&format!(r#"{{"Inner":{{"PrefixLength":{bad}}}}}"#)).is_err(), "{bad}");
        }
        assert_eq!(read(r#"{"Number":-9223372036854775808}"#).unwrap().number, i64::MIN);
        assert!(read(r#"{"Number":9223372036854775808}"#).is_err());
        for bad in [r#"{"Name":1}"#, r#"{"Flag":"true"}"#, r#"{"Names":{}}"#, r#"{"Inner":[]}"#, "[]", "7"] {
            assert!(read(bad).unwrap_err().to_string().contains("cannot unmarshal"), "{bad}");
        }
    }

    #[test]
    fn strings_are_repaired_as_go_repairs_them() {
        let name = |text: &str| read(&format!("{{\"Name\":\"{text}\"}}")).unwrap().name;
        assert_eq!(name(r"a\n\u0041\\\/\u00e9"), "a\nA\\/é");
        assert_eq!(name(r"\ud83d\ude00"), "😀");
        assert_eq!(name(r"\ud83dx"), "\u{fffd}x");
        assert_eq!(name(r"\ud83d\u0041"), "\u{fffd}A");
        assert_eq!(decode::<Outer>(b"{\"Name\":\"a\xffb\"}").unwrap().name, "a\u{fffd}b");
        // Three bytes of a character of four.
        assert_eq!(decode::<Outer>(b"{\"Name\":\"\xf0\x9f\x98\"}").unwrap().name, "\u{fffd}\u{fffd}\u{fffd}");
    }

    #[test]
    fn bytes_are_base64_and_depth_is_bounded() {
        assert_eq!(read(r#"{"Bytes":"AQI="}"#).unwrap().bytes, Bytes(Some(vec![1, 2])));
        assert_eq!(read(r#"{"Bytes":""}"#).unwrap().bytes, Bytes(Some(vec![])));
        assert!(read(r#"{"Bytes":"A"}"#).unwrap_err().to_string().contains("base64"));
        let deep = |lists: usize| read(&format!("{{\"Raw\":{}{}}}", "[".repeat(lists), "]".repeat(lists)));
        assert!(deep(9_999).unwrap().raw.get().is_some());
        assert_eq!(deep(10_000).unwrap_err().to_string(), "exceeded max depth");
        let brackets = format!("{{\"Name\":\"\\\"{}\"}}", "[".repeat(20_000));
        assert_eq!(read(&brackets).unwrap().name.len(), 20_001);
    }

    #[test]
    fn output_is_escaped_as_gos() {
        #[derive(Serialize)]
        struct Out {
            text: &'static str,
            raw: Raw,
            none: Raw,
            list: List<u8>,
            bytes: Bytes,
        }
        let out = Out {
            text: "<a&b>\u{2028}\"é",
            raw: Raw::new("{\"x\" :\t[ 1,\r\n\"< \\\" >\" ] }"),
            none: Raw::default(),
            list: List::default(),
            bytes: Bytes(Some(vec![])),
        };
        let text = String::from_utf8(encode(&out).unwrap()).unwrap();
        assert_eq!(
            text,
            r#"{"text":"\u003ca\u0026b\u003e\u2028\"é","raw":{"x":[1,"\u003c \" \u003e"]},"none":null,"list":null,"bytes":""}"#
        );
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Outer>(&bytes);
        }

        #[test]
        fn nothing_like_json_makes_it_panic(text in r#"[\{\}\[\]",:\\unlrtfase0-9.eE+ NameRwByI-]{0,80}"#) {
            let _ = decode::<Outer>(text.as_bytes());
        }
    }
}
