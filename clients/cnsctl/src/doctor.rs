//! `doctor`: broken invariants, leaks, and what the daemon would do about them.

use cns::proto::v1 as pb;
use cns_client::Client;
use serde::Serialize;

use crate::{
    failure::{Exit, Failure},
    output::{Cell, Out, Page, Tone},
    view::given,
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    healthy: bool,
    findings: Vec<Finding>,
    checked_ip_configs: u32,
    checked_endpoints: u32,
    checked_network_containers: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    severity: &'static str,
    kind: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_id: Option<String>,
    ip_addresses: Vec<String>,
}

pub(crate) async fn run(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let report = judge(client.diagnose(pb::DiagnoseRequest {}).await?);
    out.print(&report, page)?;
    if report.healthy { Ok(()) } else { Err(Failure::Shown(Exit::Unhealthy)) }
}

fn judge(answer: pb::DiagnoseResponse) -> Report {
    let findings: Vec<_> = answer
        .findings
        .into_iter()
        .map(|finding| Finding {
            severity: match finding.severity() {
                pb::FindingSeverity::Info => "Info",
                pb::FindingSeverity::Warning => "Warning",
                // A daemon that does not say how bad it is is taken seriously.
                pb::FindingSeverity::Error | pb::FindingSeverity::Unspecified => "Error",
            },
            kind: finding.kind,
            message: finding.message,
            remedy: given(finding.remedy),
            container_id: given(finding.container_id),
            ip_addresses: finding.ip_addresses,
        })
        .collect();
    Report {
        healthy: findings.iter().all(|finding| finding.severity == "Info"),
        findings,
        checked_ip_configs: answer.checked_ip_configs,
        checked_endpoints: answer.checked_endpoints,
        checked_network_containers: answer.checked_network_containers,
    }
}

fn page(report: &Report) -> Page {
    let mut page = Page::new();
    for finding in &report.findings {
        let tone = match finding.severity {
            "Info" => Tone::Faint,
            "Warning" => Tone::Attention,
            _ => Tone::Bad,
        };
        page = page.spans(vec![
            Cell::toned(format!("{}: ", finding.severity.to_lowercase()), tone),
            format!("{} ({})", finding.message, finding.kind).into(),
        ]);
        let concerned = finding.container_id.iter().map(|id| format!("container {id}"));
        let concerned: Vec<_> = concerned.chain(finding.ip_addresses.iter().cloned()).collect();
        if !concerned.is_empty() {
            page = page.line(Cell::toned(format!("  {}", concerned.join(", ")), Tone::Faint));
        }
        if let Some(remedy) = &finding.remedy {
            page = page.line(format!("  {remedy}"));
        }
    }
    let checked = format!(
        "checked {} addresses, {} sandboxes, {} network containers: ",
        report.checked_ip_configs, report.checked_endpoints, report.checked_network_containers
    );
    let count =
        |severity: &str| report.findings.iter().filter(|finding| finding.severity == severity).count();
    let (verdict, tone) = if report.healthy {
        ("nothing is wrong".to_owned(), Tone::Good)
    } else {
        (format!("{} errors, {} warnings", count("Error"), count("Warning")), Tone::Bad)
    };
    page.spans(vec![checked.into(), Cell::toned(verdict, tone)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(severities: &[pb::FindingSeverity]) -> Report {
        let findings = severities
            .iter()
            .map(|&severity| pb::Finding { severity: severity as i32, ..Default::default() })
            .collect();
        judge(pb::DiagnoseResponse { findings, ..Default::default() })
    }

    #[test]
    fn only_worth_knowing_is_healthy() {
        use pb::FindingSeverity::{Error, Info, Unspecified, Warning};

        assert!(report(&[]).healthy);
        assert!(report(&[Info]).healthy);
        for severity in [Warning, Error, Unspecified] {
            assert!(!report(&[Info, severity]).healthy, "{severity:?}");
        }
    }
}
