//! Replies: envelopes, status codes, headers (spec/rest-contract.md §2).

use std::fmt::Write as _;

use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use super::types::Response;
use crate::{gojson, model::ReturnCode};

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=UTF-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What goes back.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(super) status: StatusCode,
    content_type: Option<HeaderValue>,
    body: Vec<u8>,
    /// The return code that the reply carries, if its route tells it in a header.
    return_code: Option<u16>,
    location: Option<HeaderValue>,
    allow: Option<HeaderValue>,
}

/// `{"Response": …}` and nothing else.
#[derive(Debug, Serialize)]
pub(super) struct Nested {
    #[serde(rename = "Response")]
    pub(super) response: Response,
}

impl Reply {
    fn new(status: StatusCode, content_type: Option<HeaderValue>, body: Vec<u8>) -> Self {
        Self { status, content_type, body, return_code: None, location: None, allow: None }
    }

    /// JSON with status 200.
    pub(super) fn json<T: Serialize>(value: &T) -> Self {
        Self::json_with(StatusCode::OK, value)
    }

    pub(super) fn json_with<T: Serialize>(status: StatusCode, value: &T) -> Self {
        match gojson::encode(value) {
            Ok(mut body) => {
                body.push(b'\n');
                Self::new(status, Some(JSON), body)
            }
            // Only raw JSON that is none could do that, and it was checked when it came.
            Err(error) => {
                Self::text(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot write the reply: {error}"))
            }
        }
    }

    /// `{"ReturnCode":…,"Message":…}`.
    pub(super) fn flat(response: Response) -> Self {
        Self::json(&response)
    }

    /// `{"Response":{…}}`.
    pub(super) fn nested(response: Response) -> Self {
        Self::json(&Nested { response })
    }

    /// As Go's `http.Error`.
    pub(super) fn text(status: StatusCode, message: &str) -> Self {
        Self::new(status, Some(TEXT), format!("{message}\n").into_bytes())
    }

    pub(super) fn empty(status: StatusCode) -> Self {
        Self::new(status, None, Vec::new())
    }

    /// The request's JSON is none: 400 and plain text (§2.2).
    pub(super) fn undecodable(error: &gojson::DecodeError) -> Self {
        Self::text(StatusCode::BAD_REQUEST, &format!("Failed to decode request: {error}"))
    }

    /// The same, and the reference goes on and appends a document to the text.
    pub(super) fn undecodable_and<T: Serialize>(error: &gojson::DecodeError, value: &T) -> Self {
        let mut reply = Self::undecodable(error);
        reply.body.extend(Self::json(value).body);
        reply
    }

    pub(super) fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 page not found")
    }

    /// To a path as it would be sent, with the query that came.
    pub(super) fn redirect(path: &str, query: Option<&str>) -> Self {
        let target = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        let mut to = String::with_capacity(target.len());
        for byte in target.bytes() {
            if byte.is_ascii_graphic() {
                to.push(char::from(byte));
            } else {
                let _ = write!(to, "%{byte:02X}");
            }
        }
        let mut reply = Self::empty(StatusCode::TEMPORARY_REDIRECT);
        reply.location = HeaderValue::from_str(&to).ok();
        reply
    }

    /// The local listener's own words (§7).
    pub(super) fn local(status: StatusCode, message: &str, allow: Option<&'static str>) -> Self {
        let body = format!("{{\"message\":\"{message}\"}}\n").into_bytes();
        let mut reply = Self::new(status, Some(HeaderValue::from_static("application/json")), body);
        reply.allow = allow.map(HeaderValue::from_static);
        reply
    }

    /// Tells the return code in the header, too.
    pub(super) fn with_code(mut self, code: u16) -> Self {
        self.return_code = Some(code);
        self
    }

    /// The name of the return code that the header tells.
    pub(super) fn code_name(&self) -> Option<&'static str> {
        self.return_code.map(code_name)
    }

    /// As HTTP. A reply to HEAD says how long its body would be and has none.
    pub(super) fn into_http(self, is_head: bool) -> http::Response<http_body_util::Full<bytes::Bytes>> {
        let code = self.code_name();
        let length = self.body.len();
        let body = if is_head { bytes::Bytes::new() } else { self.body.into() };
        let mut response = http::Response::new(http_body_util::Full::new(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(content_type) = self.content_type {
            if content_type == TEXT {
                headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            }
            headers.insert(header::CONTENT_TYPE, content_type);
        }
        headers.insert(header::CONTENT_LENGTH, length.into());
        if let Some(code) = code {
            headers.insert("cns_return_code", HeaderValue::from_static(code));
        }
        if let Some(location) = self.location {
            headers.insert(header::LOCATION, location);
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, allow);
        }
        response
    }
}

/// The name that the header and the metric use (§4); what is no code of the enum is unknown.
fn code_name(number: u16) -> &'static str {
    ReturnCode::from_number(number).map_or("UnknownError", ReturnCode::legacy_name)
}
