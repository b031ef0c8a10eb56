//! How a call of NMAgent travels through wireserver, and how its answer comes back (spec/host-agents.md §3).

use std::fmt;

use ::http::StatusCode;
use bytes::Bytes;
use percent_encoding::utf8_percent_encode;
use serde_json::{Map, Value};

use super::super::{
    http::{Answer, Outgoing, ReadFault},
    wireserver::{EMPTY, SEGMENT},
};

/// A call with its path as NMAgent knows it, wrapped for wireserver. There is no PUT: what NMAgent's library puts is posted.
pub(super) struct Wrapped {
    pub(super) outgoing: Outgoing,
    /// Leaving a network that was not joined is answered with 400, and means 404 (spec/host-agents.md §4).
    pub(super) bad_request_is_not_found: bool,
}

impl Wrapped {
    pub(super) fn get(call: &'static str, path: &[&str]) -> Self {
        Self { outgoing: Outgoing::get(call, target(path)), bad_request_is_not_found: false }
    }

    /// An empty body becomes an empty JSON string, for wireserver wants a length.
    pub(super) fn post(call: &'static str, path: &[&str], body: Bytes) -> Self {
        let body = if body.is_empty() { Bytes::from_static(EMPTY) } else { body };
        Self { outgoing: Outgoing::post(call, target(path), body), bad_request_is_not_found: false }
    }
}

/// The path becomes the parameter `type`, encoded once as a whole. The reference also turns `=`, `&` and `?` into slashes, in
/// tokens too, and breaks those that are base64 (§10.3); no path of ours has a query, and a token stays what it is.
fn target(path: &[&str]) -> String {
    let path = path.join("/");
    format!("/machine/plugins?comp=nmagent&type={}", utf8_percent_encode(&path, SEGMENT))
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answerer {
    /// Wireserver itself: NMAgent may not have seen the request.
    Wireserver,
    /// NMAgent.
    Nmagent,
}

impl fmt::Display for Answerer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wireserver => "wireserver",
            Self::Nmagent => "nmagent",
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unwrapped {
    pub(super) by: Answerer,
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// Takes NMAgent's status out of wireserver's answer. A body that is no JSON object has none and counts as 200: XML travels so.
pub(super) fn unwrap(answer: Answer) -> Result<Unwrapped, ReadFault> {
    const KEY: &str = "httpStatusCode";
    let Answer { status, body } = answer;
    if status != StatusCode::OK {
        return Ok(Unwrapped { by: Answerer::Wireserver, status: status.as_u16(), body });
    }
    let Ok(object) = serde_json::from_slice::<Map<String, Value>>(&body) else {
        return Ok(Unwrapped { by: Answerer::Wireserver, status: 200, body });
    };
    let fault = |why: String| ReadFault::decode("answer of NMAgent", why);
    let text = match object.get(KEY) {
        Some(Value::String(text)) => text,
        Some(other) => return Err(fault(format!("{KEY} is {other}, not a string"))),
        None => return Err(fault(format!("no {KEY} property returned in Wireserver response"))),
    };
    if let Ok(status @ 100..=999) = text.parse() {
        Ok(Unwrapped { by: Answerer::Nmagent, status, body })
    } else {
        let shown: String = text.chars().take(16).flat_map(char::escape_default).collect();
        Err(fault(format!("{KEY} `{shown}` is not an HTTP status")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_the_parameter_type() {
        assert_eq!(
            target(&["GetHomeAz", "api-version", "1"]),
            "/machine/plugins?comp=nmagent&type=GetHomeAz%2Fapi-version%2F1"
        );
        assert_eq!(target(&[]), "/machine/plugins?comp=nmagent&type=");
        assert_eq!(target(&["a+b/c==", "x&y"]), "/machine/plugins?comp=nmagent&type=a%2Bb%2Fc%3D%3D%2Fx%26y");
    }

    #[test]
    fn the_inner_status_is_what_counts() {
        let unwrapped = |status: u16, body: &'static str| {
            let status = StatusCode::from_u16(status).unwrap();
            unwrap(Answer { status, body: Bytes::from_static(body.as_bytes()) })
                .map(|unwrapped| (unwrapped.by, unwrapped.status))
                .map_err(|fault| format!("{fault:?}"))
        };
        assert_eq!(unwrapped(503, r#"{"httpStatusCode":"200"}"#), Ok((Answerer::Wireserver, 503)));
        assert_eq!(unwrapped(200, "<xml/>"), Ok((Answerer::Wireserver, 200)));
        assert_eq!(unwrapped(200, ""), Ok((Answerer::Wireserver, 200)));
        assert_eq!(unwrapped(200, "[]"), Ok((Answerer::Wireserver, 200)));
        for status in [102, 200, 401, 404, 409, 500] {
            let body = format!(" {{\"x\":1,\"httpStatusCode\":\"{status}\"}}");
            let answer = Answer { status: StatusCode::OK, body: body.into() };
            let found = unwrap(answer).unwrap();
            assert_eq!((found.by, found.status), (Answerer::Nmagent, status));
        }
        for (body, expected) in [
            ("{}", "no httpStatusCode property returned"),
            (r#"{"HTTPStatusCode":"200"}"#, "no httpStatusCode property returned"),
            (r#"{"httpStatusCode":200}"#, "httpStatusCode is 200, not a string"),
            (r#"{"httpStatusCode":null}"#, "not a string"),
            (r#"{"httpStatusCode":"OK"}"#, "`OK` is not an HTTP status"),
            (r#"{"httpStatusCode":"99999"}"#, "`99999` is not an HTTP status"),
            (r#"{"httpStatusCode":"-200"}"#, "`-200` is not an HTTP status"),
        ] {
            assert!(unwrapped(200, body).unwrap_err().contains(expected), "{body}");
        }
    }
}
