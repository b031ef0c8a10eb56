//! `explain`: the biography of an address, a pod or a container.

use std::net::IpAddr;

use cns::{
    model::{ContainerId, PodIdentity},
    proto::v1 as pb,
};
use cns_client::Client;
use serde::Serialize;

use crate::{
    endpoint::{self, Endpoint},
    events::Event,
    failure::{Exit, Failure},
    ip::{self, IpConfig},
    output::{Cell, Out, Page, Tone},
    view::pod_to_wire,
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Biography {
    summary: String,
    ip_configs: Vec<IpConfig>,
    endpoints: Vec<Endpoint>,
    events: Vec<Event>,
}

pub(crate) async fn run(subject: &str, client: &Client, out: &mut Out) -> Result<(), Failure> {
    let request = pb::ExplainRequest { subject: Some(parse(subject)?) };
    let answer = client.explain(request).await?;
    let biography = Biography {
        summary: answer.summary,
        ip_configs: answer.ip_configs.into_iter().map(IpConfig::from_wire).collect(),
        endpoints: answer.endpoints.into_iter().map(Endpoint::from_wire).collect(),
        events: answer.events.into_iter().map(Event::from_wire).collect(),
    };
    let nothing =
        biography.ip_configs.is_empty() && biography.endpoints.is_empty() && biography.events.is_empty();
    if nothing {
        let summary = match biography.summary.as_str() {
            "" => format!("nothing is known of {subject}"),
            words => words.to_owned(),
        };
        return Err(Failure::new(Exit::NotFound, summary));
    }
    let whole = !out.is_terminal();
    out.print(&biography, |biography| page(biography, whole, jiff::Timestamp::now()))
}

/// An address, `NAMESPACE/NAME`, or a container id: no text is two of them.
fn parse(subject: &str) -> Result<pb::explain_request::Subject, Failure> {
    use pb::explain_request::Subject;

    let wrong = |why: String| {
        Failure::new(Exit::Usage, why)
            .remedy("name an IP address, a pod as NAMESPACE/NAME, or a container id")
    };
    if let Ok(address) = subject.parse::<IpAddr>() {
        return Ok(Subject::IpAddress(address.to_string()));
    }
    if let Some((namespace, name)) = subject.split_once('/') {
        let pod = PodIdentity::new(namespace, name).map_err(|error| wrong(error.to_string()))?;
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(wrong(format!("`{subject}` is no pod")));
        }
        return Ok(Subject::Pod(pod_to_wire(&pod)));
    }
    let container: ContainerId =
        subject.parse().map_err(|error: cns::model::InvalidId| wrong(error.to_string()))?;
    Ok(Subject::ContainerId(container.to_string()))
}

fn page(biography: &Biography, whole: bool, now: jiff::Timestamp) -> Page {
    let heading = |page: Page, text: &str| page.line("").line(Cell::toned(text, Tone::Faint));
    let mut page = Page::new();
    for line in biography.summary.lines() {
        page = page.line(line);
    }
    if !biography.ip_configs.is_empty() {
        page = ip::table(heading(page, "Addresses"), &biography.ip_configs, whole, now);
    }
    if !biography.endpoints.is_empty() {
        page = endpoint::table(heading(page, "Sandboxes"), &biography.endpoints, whole, now);
    }
    page = heading(page, "History, newest last");
    if biography.events.is_empty() {
        page = page.line("nothing, as far back as the journal reaches");
    }
    biography.events.iter().fold(page, |page, event| page.spans(event.line()))
}

#[cfg(test)]
mod tests {
    use pb::explain_request::Subject;

    use super::*;

    #[test]
    fn a_subject_is_an_address_a_pod_or_a_container() {
        assert_eq!(parse("FD00::0005").unwrap(), Subject::IpAddress("fd00::5".into()));
        assert_eq!(
            parse("default/web-0").unwrap(),
            Subject::Pod(pb::PodIdentity { namespace: "default".into(), name: "web-0".into() })
        );
        assert_eq!(parse("1f2e3d4c").unwrap(), Subject::ContainerId("1f2e3d4c".into()));
        for wrong in ["", "a/", "/b", "a/b/c", ".x", "a b", "10.0.0.0/24/1"] {
            let failure = parse(wrong).unwrap_err();
            assert!(matches!(failure, Failure::Told { exit: Exit::Usage, .. }), "{wrong}: {failure:?}");
        }
    }
}
