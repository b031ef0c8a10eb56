//! Journal entries, and `watch`.

use cns::proto::v1 as pb;
use cns_client::Client;
use serde::Serialize;

use crate::{
    failure::{Exit, Failure},
    output::{Cell, Out, Page, Tone},
    reader_gone::reader_gone,
    view::{Pod, Time, given, state},
};

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    sequence: u64,
    time: Option<Time>,
    operation: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<Pod>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_container_id: Option<String>,
    ip_addresses: Vec<String>,
    changes: Vec<Change>,
    actor: Actor,
}

/// One effect. One of the four is present, as in the contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<IpChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ips: Option<IpChanges>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_container: Option<ObjectChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<ObjectChange>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct IpChange {
    ip_address: String,
    from: Option<String>,
    to: Option<String>,
    after_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct IpChanges {
    count: u32,
    from: Option<String>,
    to: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectChange {
    id: String,
    what: String,
}

/// Who.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Actor {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    origin: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

impl Event {
    pub(crate) fn from_wire(wire: pb::Event) -> Self {
        let outcome = match wire.outcome() {
            pb::EventOutcome::Unspecified | pb::EventOutcome::Done => "Done",
            pb::EventOutcome::Unchanged => "Unchanged",
            pb::EventOutcome::Refused => "Refused",
        };
        Self {
            outcome,
            sequence: wire.sequence,
            time: Time::from_wire(wire.time),
            operation: wire.operation,
            reason: given(wire.reason),
            message: given(wire.message),
            why: given(wire.why),
            container_id: given(wire.container_id),
            pod: Pod::from_wire(wire.pod),
            network_container_id: given(wire.network_container_id),
            ip_addresses: wire.ip_addresses,
            changes: wire.changes.into_iter().filter_map(Change::from_wire).collect(),
            actor: wire.actor.map(Actor::from_wire).unwrap_or_default(),
        }
    }

    /// One line for people: when, what, for whom, how it ended, what changed, why, by whom.
    pub(crate) fn line(&self) -> Vec<Cell> {
        let time = self.time.map(Time::short).unwrap_or_default();
        let (outcome, tone) = match self.outcome {
            "Refused" => (format!("refused: {}", self.refusal()), Tone::Bad),
            "Unchanged" => ("nothing to change".to_owned(), Tone::Faint),
            _ => ("done".to_owned(), Tone::Good),
        };
        let mut rest = String::new();
        for change in &self.changes {
            rest.push_str("; ");
            rest.push_str(&change.words());
        }
        if self.changes.is_empty() && !self.ip_addresses.is_empty() {
            rest.push_str("; ");
            rest.push_str(&self.ip_addresses.join(", "));
        }
        if let Some(why) = &self.why {
            rest.push_str("; because ");
            rest.push_str(why);
        }
        vec![
            Cell::toned(format!("{time} #{} ", self.sequence), Tone::Faint),
            format!("{}{}: ", self.operation, self.whom()).into(),
            Cell::toned(outcome, tone),
            rest.into(),
            Cell::toned(format!(" ({})", self.actor.words()), Tone::Faint),
        ]
    }

    /// Each part with a space before it.
    fn whom(&self) -> String {
        let pod = self.pod.as_ref().map(|pod| format!(" pod {pod}"));
        let container = self.container_id.as_ref().map(|id| format!(" container {id}"));
        let nc = self.network_container_id.as_ref().map(|id| format!(" NC {id}"));
        [pod, container, nc].into_iter().flatten().collect()
    }

    fn refusal(&self) -> String {
        match (&self.message, &self.reason) {
            (Some(message), Some(reason)) => format!("{message} ({reason})"),
            (Some(only), None) | (None, Some(only)) => only.clone(),
            (None, None) => "no reason given".to_owned(),
        }
    }
}

impl Change {
    /// `None` for a kind of change that this build does not know.
    fn from_wire(wire: pb::EventChange) -> Option<Self> {
        let object = |change: pb::ObjectChange| Some(ObjectChange { id: change.id, what: change.what });
        Some(match wire.change? {
            pb::event_change::Change::Ip(change) => Self {
                ip: Some(IpChange {
                    from: state(change.from),
                    to: state(change.to),
                    ip_address: change.ip_address,
                    after_ms: change.after_ms,
                }),
                ..Self::default()
            },
            pb::event_change::Change::Ips(change) => Self {
                ips: Some(IpChanges { count: change.count, from: state(change.from), to: state(change.to) }),
                ..Self::default()
            },
            pb::event_change::Change::NetworkContainer(change) => {
                Self { network_container: object(change), ..Self::default() }
            }
            pb::event_change::Change::Endpoint(change) => {
                Self { endpoint: object(change), ..Self::default() }
            }
        })
    }

    fn words(&self) -> String {
        if let Some(IpChange { ip_address, from, to, after_ms }) = &self.ip {
            let after = match after_ms {
                0 => String::new(),
                ms => format!(" after {}", elapsed(*ms)),
            };
            return format!("{ip_address} {}{after}", transition(from.as_deref(), to.as_deref()));
        }
        if let Some(IpChanges { count, from, to }) = &self.ips {
            return format!("{count} addresses {}", transition(from.as_deref(), to.as_deref()));
        }
        let (kind, change) = match (&self.network_container, &self.endpoint) {
            (Some(change), _) => ("NC", change),
            (None, Some(change)) => ("endpoint", change),
            (None, None) => return String::new(),
        };
        format!("{kind} {} {}", change.id, change.what)
    }
}

impl Actor {
    fn from_wire(wire: pb::Actor) -> Self {
        Self { uid: wire.uid, pid: wire.pid, origin: wire.origin, request_id: given(wire.request_id) }
    }

    fn words(&self) -> String {
        let origin = if self.origin.is_empty() { "unknown" } else { &self.origin };
        let uid = self.uid.map(|uid| format!(", uid {uid}"));
        let pid = self.pid.map(|pid| format!(", pid {pid}"));
        let request = self.request_id.as_ref().map(|id| format!(", request {id}"));
        let details: String = [uid, pid, request].into_iter().flatten().collect();
        format!("by {origin}{details}")
    }
}

fn transition(from: Option<&str>, to: Option<&str>) -> String {
    match (from, to) {
        (None, Some(to)) => format!("is new and {to}"),
        (Some(from), None) => format!("is gone, was {from}"),
        (Some(from), Some(to)) => format!("{from} → {to}"),
        (None, None) => "unchanged".to_owned(),
    }
}

fn elapsed(milliseconds: u64) -> String {
    if milliseconds < 1_000 {
        return format!("{milliseconds} ms");
    }
    i64::try_from(milliseconds).map_or_else(
        |_| format!("{milliseconds} ms"),
        |milliseconds| crate::output::duration(jiff::SignedDuration::from_millis(milliseconds)),
    )
}

/// Entries that are no longer there.
#[derive(Debug, Serialize)]
struct Missed {
    missed: u64,
}

/// `watch`: until Ctrl-C, until nobody reads, or until the daemon stops.
pub(crate) async fn watch(after: Option<u64>, client: &Client, out: &mut Out) -> Result<(), Failure> {
    let from_sequence = after.map_or(0, |sequence| sequence.saturating_add(1));
    let mut events = client.watch_events(pb::WatchEventsRequest { from_sequence }).await?;
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut unread = std::pin::pin!(reader_gone());
    loop {
        let next = tokio::select! {
            biased;
            _ = &mut interrupted => return Ok(()),
            () = &mut unread => return Err(Failure::ClosedPipe),
            next = events.next() => next?,
        };
        let Some(next) = next else {
            return Err(Failure::new(Exit::Unreachable, "the cns daemon stopped")
                .remedy("run `cnsctl watch` again when it is back"));
        };
        if next.missed > 0 {
            out.print_next(&Missed { missed: next.missed }, |missed| {
                let words = format!("{} earlier changes are no longer in the journal", missed.missed);
                Page::new().line(Cell::toned(words, Tone::Attention))
            })?;
        }
        if let Some(event) = next.event {
            out.print_next(&Event::from_wire(event), |event| Page::new().spans(event.line()))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(change: pb::Event) -> String {
        let wire = pb::Event {
            sequence: 12,
            time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 1 }),
            operation: "RequestIPConfigs".into(),
            container_id: "c1".into(),
            pod: Some(pb::PodIdentity { namespace: "default".into(), name: "web-0".into() }),
            actor: Some(pb::Actor {
                uid: Some(0),
                pid: Some(4711),
                origin: "unix".into(),
                request_id: "add-1".into(),
            }),
            ..change
        };
        Event::from_wire(wire).line().into_iter().map(Cell::into_text).collect()
    }

    #[test]
    fn a_line_tells_what_happened_to_whom_why_and_by_whom() {
        let change = pb::event_change::Change::Ip(pb::IpChange {
            ip_address: "10.244.0.5".into(),
            from: pb::IpState::Available as i32,
            to: pb::IpState::Assigned as i32,
            after_ms: 35_000,
        });
        assert_eq!(
            event(pb::Event {
                outcome: pb::EventOutcome::Done as i32,
                changes: vec![pb::EventChange { change: Some(change) }],
                ..Default::default()
            }),
            "2023-11-14T22:13:20Z #12 RequestIPConfigs pod default/web-0 container c1: done; 10.244.0.5 Available → Assigned after 35 s (by unix, uid 0, pid 4711, request add-1)"
        );
        assert_eq!(
            event(pb::Event {
                outcome: pb::EventOutcome::Refused as i32,
                reason: "EXHAUSTED".into(),
                message: "no available IPv4 address".into(),
                why: "the pool is too small".into(),
                ..Default::default()
            }),
            "2023-11-14T22:13:20Z #12 RequestIPConfigs pod default/web-0 container c1: refused: no available IPv4 address (EXHAUSTED); because the pool is too small (by unix, uid 0, pid 4711, request add-1)"
        );
    }
}
