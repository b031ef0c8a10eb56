//! Placeholders inside strings.

use std::net::IpAddr;

/// A placeholder's text, and what it stands for.
type Placeholder = (&'static str, fn(&str) -> bool);

/// Whether a text is what a placeholder stands for.
type Test<'a> = Box<dyn Fn(&str) -> bool + 'a>;

/// Every placeholder that can stand inside a string, beside `<contains:TEXT>`.
const PLACEHOLDERS: &[Placeholder] = &[
    ("<any>", |_| true),
    ("<string>", |_| true),
    ("<int>", |text| text.parse::<i64>().is_ok()),
    ("<time>", |text| text.parse::<jiff::Timestamp>().is_ok()),
    ("<uuid>", is_uuid),
    ("<ip>", |text| text.parse::<IpAddr>().is_ok()),
];

fn is_uuid(text: &str) -> bool {
    let hyphen = |index| matches!(index, 8 | 13 | 18 | 23);
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| if hyphen(i) { b == b'-' } else { b.is_ascii_hexdigit() })
}

/// Whether `pattern` begins with a placeholder: its test, and what follows it.
fn placeholder(pattern: &str) -> Option<(Test<'_>, &str)> {
    if let Some(rest) = pattern.strip_prefix("<contains:") {
        let (part, rest) = rest.split_once('>')?;
        return Some((Box::new(move |text| text.contains(part)), rest));
    }
    PLACEHOLDERS.iter().find_map(|(name, test)| Some((Box::new(test) as _, pattern.strip_prefix(name)?)))
}

/// Whether `text` is what `pattern` describes.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let Some(open) = pattern.find('<') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(&pattern[..open]) else {
        return false;
    };
    let pattern = &pattern[open..];
    match placeholder(pattern) {
        // Shortest first; the texts are short.
        Some((test, rest)) => (0..=text.len())
            .filter(|end| text.is_char_boundary(*end))
            .any(|end| test(&text[..end]) && matches(rest, &text[end..])),
        None => text.strip_prefix('<').is_some_and(|text| matches(&pattern[1..], text)),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn placeholders_stand_for_what_they_say() {
        for (pattern, text) in [
            ("", ""),
            ("abc", "abc"),
            ("<any>", ""),
            ("a <any> c", "a b b c"),
            ("<any>: <any>", "x: y"),
            ("<string>!", "!"),
            ("n=<int>.", "n=-12."),
            ("<time>", "2026-01-02T03:04:05.678901234Z"),
            ("<uuid>", "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11"),
            ("<ip>/<int>", "fd00::1/64"),
            ("<contains:b c>", "a b c d"),
            ("<a> < <any>", "<a> < x"),
        ] {
            assert!(matches(pattern, text), "{pattern} / {text}");
        }
        for (pattern, text) in [
            ("abc", "abcd"),
            ("a<any>c", "a"),
            ("<int>", "1.5"),
            ("<time>", "yesterday"),
            ("<uuid>", "5a2f0c1e7b7d4b389b1f0d0f6a2c9a11"),
            ("<contains:x>", "abc"),
            ("<ip>", "10.0.0"),
        ] {
            assert!(!matches(pattern, text), "{pattern} / {text}");
        }
    }
}
