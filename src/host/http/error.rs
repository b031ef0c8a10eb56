//! What can go wrong between this daemon and an agent.

use std::{fmt, time::Duration};

use ::http::StatusCode;

/// A call that brought no usable answer: to whom, which call, and what happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{agent} at {address}, {call}: {fault}")]
pub struct AgentError {
    /// The agent's name.
    pub agent: &'static str,
    /// Its base URL.
    pub address: String,
    /// The call in the field's words. Never the URL, which may hold a token.
    pub call: &'static str,
    /// What happened.
    pub fault: AgentFault,
}

/// What happened to a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentFault {
    /// There is no connection: refused, unreachable, unknown name, or a certificate that is not believed.
    #[error("cannot connect: {why}")]
    Connect {
        /// The system's words.
        why: String,
    },
    /// The time is over.
    #[error("{waiting} within {after:?}")]
    Timeout {
        /// What was waited for.
        waiting: Waiting,
        /// The time that was given.
        after: Duration,
    },
    /// The agent closed the connection before it answered, or answered what is not HTTP.
    #[error("the connection broke before an answer came: {why}")]
    Broken {
        /// The system's words.
        why: String,
    },
    /// The body is larger than it may be.
    #[error("the answer is larger than {limit} bytes, which is the limit")]
    TooLarge {
        /// Bytes.
        limit: usize,
    },
    /// The body ended before its end.
    #[error("the answer was cut off after {received} bytes: {why}")]
    Truncated {
        /// Bytes that came.
        received: usize,
        /// The system's words.
        why: String,
    },
    /// The agent answered with a status that is not 200.
    #[error("status {code}: {excerpt}")]
    Status {
        /// The status.
        code: StatusCode,
        /// The beginning of the body, made printable, tokens redacted.
        excerpt: String,
    },
    /// The answer is not what the call answers.
    #[error("the answer is no {what}: {why}")]
    Decode {
        /// What was expected.
        what: &'static str,
        /// What is wrong with it, and where.
        why: String,
    },
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent: {why}")]
    Unsendable {
        /// Why.
        why: String,
    },
}

impl AgentFault {
    /// The same question may be answered another time: the network, time, or 429 and 5xx of the agent.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Broken { .. } | Self::Truncated { .. } => {
                true
            }
            Self::Status { code, .. } => code.is_server_error() || matches!(code.as_u16(), 408 | 429),
            Self::TooLarge { .. } | Self::Decode { .. } | Self::Unsendable { .. } => false,
        }
    }

    /// The agent's status, if it answered with one that is not 200.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// What was waited for when the time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The connection.
    Connect,
    /// The answer's head.
    Answer,
    /// The rest of its body.
    Body,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "not connected",
            Self::Answer => "no answer",
            Self::Body => "the answer did not end",
        })
    }
}

/// A fault found while reading a whole answer.
#[derive(Debug)]
pub(in crate::host) enum ReadFault {
    Status { code: StatusCode, excerpt: String },
    Decode { what: &'static str, why: String },
}

impl ReadFault {
    pub(in crate::host) fn status(code: StatusCode, body: &[u8]) -> Self {
        Self::Status { code, excerpt: excerpt(body) }
    }

    pub(in crate::host) fn decode(what: &'static str, why: impl fmt::Display) -> Self {
        Self::Decode { what, why: why.to_string() }
    }
}

impl From<ReadFault> for AgentFault {
    fn from(fault: ReadFault) -> Self {
        match fault {
            ReadFault::Status { code, excerpt } => Self::Status { code, excerpt },
            ReadFault::Decode { what, why } => Self::Decode { what, why },
        }
    }
}

/// How much of a body an error shows, characters.
const EXCERPT: usize = 200;

/// The beginning of a body for people: one line, printable, without tokens.
pub(in crate::host) fn excerpt(body: &[u8]) -> String {
    if body.is_empty() {
        return "no body".to_owned();
    }
    // A token may straddle the cut, so redact first; bound that work, too.
    let text = redacted(&String::from_utf8_lossy(&body[..body.len().min(8 * EXCERPT)]));
    let mut shown: String = text.chars().take(EXCERPT).flat_map(printable).collect();
    if text.chars().nth(EXCERPT).is_some() || body.len() > 8 * EXCERPT {
        shown.push('…');
    }
    shown
}

fn printable(c: char) -> Box<dyn Iterator<Item = char>> {
    if c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    {
        Box::new(c.escape_default())
    } else {
        Box::new(std::iter::once(c))
    }
}

/// The text with every `authenticationToken/…` segment blanked, also where its slash is encoded once or twice: agents quote the
/// path that they were asked for.
fn redacted(text: &str) -> String {
    const NAME: &str = "authenticationtoken";
    const SLASHES: [&str; 3] = ["/", "%2f", "%252f"];
    // ASCII folding keeps byte offsets.
    let folded = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    while let Some(at) = folded[done..].find(NAME).map(|at| done + at + NAME.len()) {
        out.push_str(&text[done..at]);
        done = at;
        let Some(slash) = SLASHES.into_iter().find(|slash| folded[at..].starts_with(slash)) else { continue };
        let token = at + slash.len();
        // A token may hold slashes itself, so it ends where the path goes on, not at the next slash.
        let tail = &folded[token..];
        let goes_on = SLASHES.into_iter().filter_map(|slash| tail.find(&format!("{slash}api-version"))).min();
        let ends = tail.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '?' | '&'));
        let end = goes_on.into_iter().chain(ends).min().unwrap_or(tail.len());
        out.push_str(&text[at..token]);
        out.push_str("<redacted>");
        done = token + end;
    }
    out.push_str(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_body_makes_it_panic_or_keeps_a_token(
            before in "(authenticationToken|/|%2F|é|İ|api-version| |.){0,12}",
            after in "(/api-version/1| |\"|&).{0,12}",
        ) {
            let text = format!("{before} authenticationToken/QQQQQQ{after}");
            prop_assert!(!redacted(&text).contains("QQQQQQ"), "{}", redacted(&text));
            prop_assert!(!excerpt(text.as_bytes()).contains("QQQQQQ"));
            let _ = excerpt(&text.as_bytes()[1..]);
        }
    }

    #[test]
    fn tokens_are_blanked_however_the_path_is_written() {
        for (given, expected) in [
            ("no token here", "no token here"),
            (
                "GET /a/authenticationToken/se/cret==/api-version/1 failed",
                "GET /a/authenticationToken/<redacted>/api-version/1 failed",
            ),
            (
                "type=x%2FauthenticationToken%2Fsecret%2Fapi-version%2F1",
                "type=x%2FauthenticationToken%2F<redacted>%2Fapi-version%2F1",
            ),
            ("x%252fauthenticationtoken%252fsecret", "x%252fauthenticationtoken%252f<redacted>"),
            ("\"authenticationToken/secret\", and on", "\"authenticationToken/<redacted>\", and on"),
            (
                "authenticationToken/secret authenticationToken/secret",
                "authenticationToken/<redacted> authenticationToken/<redacted>",
            ),
            ("authenticationToken", "authenticationToken"),
        ] {
            assert_eq!(redacted(given), expected);
        }
    }

    #[test]
    fn excerpts_are_one_short_printable_line() {
        assert_eq!(excerpt(b""), "no body");
        assert_eq!(excerpt(b"a\r\n\x1b[31mb\xff"), "a\\r\\n\\u{1b}[31mb\u{fffd}");
        let long = excerpt(&vec![b'x'; 1 << 20]);
        assert_eq!(long.chars().count(), EXCERPT + 1);
        let straddling = format!("{}authenticationToken/secret/api-version/1", "x".repeat(EXCERPT - 22));
        assert!(!excerpt(straddling.as_bytes()).contains("se"), "{}", excerpt(straddling.as_bytes()));
    }
}
