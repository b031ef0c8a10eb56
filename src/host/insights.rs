//! Application Insights: its track endpoint, which takes items as JSON lines (spec/metrics.md §6).

use std::str::FromStr;

use bytes::Bytes;
use serde::Deserialize;

use super::http::{
    AgentError, AgentState, Answer, BaseUrl, ClientError, HttpClient, InvalidBaseUrl, Limits, Outgoing,
    ReadError, ReadFault, Retry, Roots,
};

/// Where items without a connection string go: Azure's public cloud.
const PUBLIC: &str = "dc.services.visualstudio.com";
/// The longest connection string, characters; Azure's documentation has the same bound.
const LONGEST: usize = 4096;

/// Whose items are sent where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The resource's key. It stands in every item; whoever has it can send, and read nothing.
    pub key: InstrumentationKey,
    /// The ingestion service.
    pub endpoint: BaseUrl,
    /// A key alone means the public cloud, so it is used there only: a node of another cloud must not send its data out of it.
    pub only_in_public_cloud: bool,
}

/// An instrumentation key; not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct InstrumentationKey(String);

impl InstrumentationKey {
    /// The key, for the item that it belongs in.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for InstrumentationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InstrumentationKey(redacted)")
    }
}

/// What was given names no destination. Says nothing of the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDestination {
    /// The key.
    #[error("the instrumentation key is no UUID")]
    Key,
    /// A connection string that is none.
    #[error(
        "{0}; InstrumentationKey=<uuid>;IngestionEndpoint=https://<host>/ is expected, as the Azure portal shows it"
    )]
    Form(String),
    /// Its endpoint.
    #[error("IngestionEndpoint: {0}")]
    Endpoint(#[from] InvalidBaseUrl),
    /// Telemetry would cross the network in the clear.
    #[error("IngestionEndpoint {0} is not https")]
    NotHttps(BaseUrl),
}

impl FromStr for InstrumentationKey {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let key = text.trim().parse::<uuid::Uuid>().map_err(|_| InvalidDestination::Key)?;
        Ok(Self(key.hyphenated().to_string()))
    }
}

impl Destination {
    /// What `AppInsightsInstrumentationKey` stands for.
    pub fn of_key(key: &str) -> Result<Self, InvalidDestination> {
        let endpoint = format!("https://{PUBLIC}").parse()?;
        Ok(Self { key: key.parse()?, endpoint, only_in_public_cloud: true })
    }

    /// Reads `AppInsightsConnectionString`: `name=value` pairs with semicolons between them, names in any case.
    pub fn of_connection_string(text: &str) -> Result<Self, InvalidDestination> {
        let form = |why: &str| InvalidDestination::Form(why.to_owned());
        if text.len() > LONGEST {
            return Err(form("it is longer than 4096 characters"));
        }
        let (mut key, mut endpoint, mut suffix, mut location) = (None, None, None, None);
        for pair in text.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| form("a part of it has no `=`"))?;
            let value = Some(value.trim()).filter(|value| !value.is_empty());
            match name.trim().to_ascii_lowercase().as_str() {
                "instrumentationkey" => key = value,
                "ingestionendpoint" => endpoint = value,
                "endpointsuffix" => suffix = value,
                "location" => location = value,
                "authorization" if value.is_some_and(|value| !value.eq_ignore_ascii_case("ikey")) => {
                    return Err(form("its Authorization is not ikey"));
                }
                // Live metrics, the profiler and what may come are not for us.
                _ => {}
            }
        }
        let key = key.ok_or_else(|| form("it has no InstrumentationKey"))?.parse()?;
        let endpoint: BaseUrl = match (endpoint, suffix) {
            (Some(endpoint), _) => endpoint.parse()?,
            (None, Some(suffix)) => {
                let location = location.map(|location| format!("{location}.")).unwrap_or_default();
                format!("https://{location}dc.{}", suffix.trim_start_matches('.')).parse()?
            }
            (None, None) => format!("https://{PUBLIC}").parse()?,
        };
        if !endpoint.is_https() && !endpoint.is_loopback() {
            return Err(InvalidDestination::NotHttps(endpoint));
        }
        Ok(Self { key, endpoint, only_in_public_cloud: false })
    }
}

/// What of a batch was not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Items that may be taken another time, by their place in the batch.
    pub again: Vec<usize>,
    /// Items that it will never take, and its words.
    pub refused: Vec<(usize, String)>,
}

/// The client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Insights {
    http: HttpClient,
}

impl Insights {
    /// A client of the endpoint. Nothing is sent yet.
    pub fn new(endpoint: &BaseUrl, limits: Limits, roots: Roots) -> Result<Self, ClientError> {
        Ok(Self { http: HttpClient::new("Application Insights", endpoint.clone(), limits, roots)? })
    }

    /// The same client with at most `total` for each call.
    #[must_use]
    pub fn within(&self, total: std::time::Duration) -> Self {
        Self { http: self.http.within(total) }
    }

    /// How it last answered.
    pub fn state(&self) -> &AgentState {
        self.http.state()
    }

    /// Sends `count` items, one JSON object a line. One attempt: who has a queue decides about another.
    pub async fn track(&self, lines: Bytes, count: usize) -> Result<Tracked, AgentError> {
        let mut outgoing = Outgoing::post("track", "/v2.1/track", lines);
        outgoing.headers = vec![(
            ::http::header::CONTENT_TYPE,
            ::http::HeaderValue::from_static("application/x-json-stream"),
        )];
        self.http.call(&outgoing, &Retry::NEVER, |answer| read(answer, count).map_err(ReadError::from)).await
    }
}

fn read(answer: Answer, count: usize) -> Result<Tracked, ReadFault> {
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        errors: Vec<Refused>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Refused {
        index: usize,
        status_code: u16,
        #[serde(default)]
        message: String,
    }
    if !matches!(answer.status.as_u16(), 200 | 206) {
        return Err(ReadFault::status(answer.status, &answer.body));
    }
    let body: Body =
        serde_json::from_slice(&answer.body).map_err(|error| ReadFault::decode("answer to track", error))?;
    let mut tracked = Tracked::default();
    for refused in body.errors.into_iter().filter(|refused| refused.index < count) {
        // Too many at a time, too busy, or out of order for a moment.
        if matches!(refused.status_code, 408 | 429 | 439 | 500 | 502 | 503 | 504) {
            tracked.again.push(refused.index);
        } else {
            let why =
                format!("{}: {}", refused.status_code, super::http::excerpt(refused.message.as_bytes()));
            tracked.refused.push((refused.index, why));
        }
    }
    Ok(tracked)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0f8b1c2d-3e4f-5061-7283-94a5b6c7d8e9";

    #[test]
    fn connection_strings_name_key_and_endpoint() {
        for (text, endpoint) in [
            (format!("InstrumentationKey={KEY}"), "https://dc.services.visualstudio.com"),
            (
                format!(
                    "InstrumentationKey={KEY};IngestionEndpoint=https://westeurope-5.in.applicationinsights.azure.com/;LiveEndpoint=https://x/"
                ),
                "https://westeurope-5.in.applicationinsights.azure.com",
            ),
            (
                format!(" ingestionendpoint = http://127.0.0.1:10184 ; INSTRUMENTATIONKEY = {KEY} ;"),
                "http://127.0.0.1:10184",
            ),
            (
                format!("EndpointSuffix=applicationinsights.azure.cn;Location=x;InstrumentationKey={KEY}"),
                "https://x.dc.applicationinsights.azure.cn",
            ),
            (
                format!("Authorization=IKEY;EndpointSuffix=ai.contoso.com;InstrumentationKey={KEY}"),
                "https://dc.ai.contoso.com",
            ),
        ] {
            let destination = Destination::of_connection_string(&text).unwrap();
            assert_eq!(destination.endpoint.to_string(), endpoint, "{text}");
            assert_eq!((destination.key.reveal(), destination.only_in_public_cloud), (KEY, false));
        }
        assert!(Destination::of_key(KEY).unwrap().only_in_public_cloud);
    }

    #[test]
    fn what_names_none_is_refused_without_telling_the_key() {
        let long = format!("InstrumentationKey={KEY};x={}", "y".repeat(4096));
        for (text, why) in [
            ("", "no InstrumentationKey"),
            ("InstrumentationKey=", "no InstrumentationKey"),
            ("InstrumentationKey=secret", "no UUID"),
            (KEY, "has no `=`"),
            (&format!("InstrumentationKey={KEY};IngestionEndpoint=ftp://x"), "neither http nor https"),
            (&format!("InstrumentationKey={KEY};IngestionEndpoint=http://10.0.0.1"), "is not https"),
            (&format!("InstrumentationKey={KEY};Authorization=aad"), "is not ikey"),
            (&long, "longer than 4096"),
        ] {
            let said = Destination::of_connection_string(text).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
            assert!(!said.contains(KEY) && !said.contains("secret"), "{said}");
        }
        assert!(!format!("{:?}", Destination::of_key(KEY).unwrap()).contains(KEY));
    }

    #[test]
    fn answers_say_item_by_item_what_was_taken() {
        let answer = |status: u16, body: &'static str| {
            let status = ::http::StatusCode::from_u16(status).unwrap();
            read(Answer { status, body: Bytes::from_static(body.as_bytes()) }, 3)
        };
        let all = answer(200, r#"{"itemsReceived":3,"itemsAccepted":3,"errors":[]}"#).unwrap();
        assert_eq!(all, Tracked::default());
        let some = r#"{"itemsReceived":3,"itemsAccepted":1,"appId":"x","errors":[
            {"index":2,"statusCode":429,"message":"later"},{"index":0,"statusCode":400,"message":"no\ntime"},
            {"index":2,"statusCode":503,"message":"again"},{"index":99,"statusCode":500,"message":"none of ours"}]}"#;
        let some = answer(206, some).unwrap();
        assert_eq!(some, Tracked { again: vec![2, 2], refused: vec![(0, "400: no\\ntime".into())] });
        assert!(answer(200, "<html>").is_err() && answer(500, "{}").is_err() && answer(204, "").is_err());
    }
}
