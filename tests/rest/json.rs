//! JSON as it stands in a text: the order of members, repeated members, the form of numbers and the escapes in strings are
//! kept, insignificant white space is not. And the comparison with a pattern, whose strings may hold placeholders.

use std::fmt;

use super::pattern;

/// A JSON text, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Json {
    /// `null`, `true`, `false` or a number, as written.
    Literal(String),
    /// What stands between the quotes, escapes and all.
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Takes one JSON text apart that fills `text`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (json, rest) = Self::parse_prefix(text)?;
        if rest.trim_ascii().is_empty() { Ok(json) } else { Err(format!("more after the JSON: {rest:?}")) }
    }

    /// Takes apart the JSON text with which `text` begins, and returns the rest.
    pub(crate) fn parse_prefix(text: &str) -> Result<(Self, &str), String> {
        let mut values =
            serde_json::Deserializer::from_str(text).into_iter::<Box<serde_json::value::RawValue>>();
        let value = values.next().ok_or("no JSON")?.map_err(|error| error.to_string())?;
        let rest = text.get(values.byte_offset()..).unwrap_or_default();
        let mut reader = Reader(value.get());
        Ok((reader.value(), rest))
    }

    /// How a pattern differs from what came: one line each, with the place.
    pub(crate) fn mismatches(&self, got: &Self) -> Vec<String> {
        let mut found = Vec::new();
        compare("$", self, got, &mut found);
        found
    }

    /// A word for what it is.
    fn kind(&self) -> &'static str {
        match self {
            Self::Literal(text) if text == "null" => "null",
            Self::Literal(text) if text == "true" || text == "false" => "a boolean",
            Self::Literal(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Compact, as Go writes it.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(text) => f.write_str(text),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Object(members) => {
                f.write_str("{")?;
                for (index, (name, value)) in members.iter().enumerate() {
                    write!(f, "{}\"{name}\":{value}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("}")
            }
        }
    }
}

fn compare(at: &str, expected: &Json, got: &Json, found: &mut Vec<String>) {
    let differs = || format!("{at}: expected {expected}, got {got}");
    match (expected, got) {
        (Json::Text(pattern), _) if pattern == "<any>" => {}
        (Json::Text(pattern), Json::Literal(text)) if pattern == "<int>" => {
            if text.parse::<i64>().is_err() {
                found.push(differs());
            }
        }
        (Json::Text(pattern), Json::Text(text)) => {
            if !pattern::matches(pattern, text) {
                found.push(differs());
            }
        }
        (Json::List(expected), Json::List(got)) => compare_lists(at, expected, got, found),
        (Json::Object(expected), Json::Object(got)) => {
            let names = |members: &[(String, Json)]| -> Vec<String> {
                members.iter().map(|(name, _)| name.clone()).collect()
            };
            let (wanted, present) = (names(expected), names(got));
            let same = wanted.len() == present.len()
                && wanted.iter().zip(&present).all(|(wanted, name)| pattern::matches(wanted, name));
            if !same {
                found.push(format!("{at}: expected the members {wanted:?}, got {present:?}"));
            }
            for (name, value) in expected {
                if let Some((_, got)) = got.iter().find(|(present, _)| pattern::matches(name, present)) {
                    compare(&format!("{at}.{name}"), value, got, found);
                }
            }
        }
        (Json::Literal(expected), Json::Literal(got)) if expected == got => {}
        _ if expected.kind() == got.kind() => found.push(differs()),
        _ => {
            found.push(format!("{at}: expected {}, got {}: {expected} / {got}", expected.kind(), got.kind()));
        }
    }
}

/// A first element `"<unordered>"` lets the others come in any order.
fn compare_lists(at: &str, expected: &[Json], got: &[Json], found: &mut Vec<String>) {
    let (unordered, expected) = match expected {
        [Json::Text(first), rest @ ..] if first == "<unordered>" => (true, rest),
        _ => (false, expected),
    };
    if expected.len() != got.len() {
        found.push(format!("{at}: expected {} elements, got {}", expected.len(), got.len()));
        return;
    }
    if !unordered {
        for (index, (expected, got)) in expected.iter().zip(got).enumerate() {
            compare(&format!("{at}[{index}]"), expected, got, found);
        }
        return;
    }
    let mut left: Vec<&Json> = got.iter().collect();
    for (index, expected) in expected.iter().enumerate() {
        match left.iter().position(|got| expected.mismatches(got).is_empty()) {
            Some(at) => drop(left.remove(at)),
            None => found.push(format!("{at}: nothing matches element {index}, {expected}")),
        }
    }
}

/// Reads a text that is known to be JSON.
struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn value(&mut self) -> Json {
        self.space();
        match self.0.as_bytes().first() {
            Some(b'"') => Json::Text(self.text()),
            Some(b'[') => {
                let mut items = Vec::new();
                while self.next_item(']') {
                    items.push(self.value());
                }
                Json::List(items)
            }
            Some(b'{') => {
                let mut members = Vec::new();
                while self.next_item('}') {
                    let name = self.text();
                    self.space();
                    self.skip(1);
                    members.push((name, self.value()));
                }
                Json::Object(members)
            }
            _ => {
                let end = self.0.find([',', ']', '}', ' ', '\t', '\r', '\n']).unwrap_or(self.0.len());
                let literal = self.0[..end].to_owned();
                self.skip(end);
                Json::Literal(literal)
            }
        }
    }

    /// Goes over the opening bracket or a comma; `false` at the closing one.
    fn next_item(&mut self, close: char) -> bool {
        self.space();
        let opens = self.0.starts_with(['[', '{', ',']);
        if opens {
            self.skip(1);
            self.space();
        }
        let ends = self.0.starts_with(close);
        if ends {
            self.skip(1);
        }
        !ends
    }

    fn text(&mut self) -> String {
        let mut escaped = false;
        let end = self.0[1..].find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let end = end.map_or(self.0.len(), |end| end + 1);
        let text = self.0[1..end].to_owned();
        self.skip(end + 1);
        text
    }

    fn space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn skip(&mut self, bytes: usize) {
        self.0 = self.0.get(bytes..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::Json;

    #[test]
    fn a_text_survives_but_for_its_white_space() {
        let text = r#" { "b" : [ 1.50, -2e3 , "a\"\\" , { } , [ ] ] , "a":null,"a" : true } "#;
        let json = Json::parse(text).unwrap();
        assert_eq!(json.to_string(), r#"{"b":[1.50,-2e3,"a\"\\",{},[]],"a":null,"a":true}"#);
        let (first, rest) = Json::parse_prefix("{\"a\":1}\n{\"b\":2}\n").unwrap();
        assert_eq!((first.to_string().as_str(), rest), ("{\"a\":1}", "\n{\"b\":2}\n"));
        Json::parse("{\"a\":1}x").unwrap_err();
        Json::parse("").unwrap_err();
    }

    #[test]
    fn order_numbers_and_escapes_are_compared_as_they_stand() {
        let differ = |expected: &str, got: &str| {
            !Json::parse(expected).unwrap().mismatches(&Json::parse(got).unwrap()).is_empty()
        };
        assert!(!differ(r#"{"a":1,"b":[null]}"#, r#"{ "a": 1, "b": [ null ] }"#));
        for (expected, got) in [
            (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
            (r#"{"a":1}"#, r#"{"a":1.0}"#),
            (r#""\u003c""#, r#""<""#),
            ("[1,2]", "[2,1]"),
            ("[]", "null"),
            (r#""1""#, "1"),
            ("false", "true"),
        ] {
            assert!(differ(expected, got), "{expected} / {got}");
        }
        assert!(!differ(r#"["<unordered>",1,2]"#, "[2,1]"));
        assert!(differ(r#"["<unordered>",1,1]"#, "[2,1]"));
        assert!(!differ(r#"{"a":"<any>","b":"<int>"}"#, r#"{"a":[1],"b":-7}"#));
        assert!(differ(r#"["<int>"]"#, "[1.5]"));
    }
}
