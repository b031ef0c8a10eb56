//! `status`: how the daemon is, and in plain words what is wrong.

use cns::proto::v1 as pb;
use cns_client::{Client, Health};
use serde::Serialize;

use crate::{
    failure::{Exit, Failure},
    nc::NetworkContainer,
    output::{Cell, Out, Page, Tone, duration},
    view::{Counts, Time},
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    healthy: bool,
    problems: Vec<String>,
    notes: Vec<String>,
    serving: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_serving_reason: Option<String>,
    channel_mode: String,
    version: String,
    uptime_seconds: u64,
    node_id: String,
    socket: String,
    state_directory: String,
    sequence: u64,
    endpoints: u32,
    network_containers: u32,
    tombstones: u32,
    ip_counts: Counts,
    pools: Vec<Pool>,
    agents: Vec<Agent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<String>,
}

/// An agent of the machine, as the daemon's own calls found it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Agent {
    name: String,
    address: String,
    /// Absent before the first call has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    healthy: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_success: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    failed_in_a_row: u32,
}

impl Agent {
    fn from_wire(agent: pb::AgentStatus) -> Self {
        let since = Time::from_wire(agent.since);
        Self {
            name: agent.name,
            address: agent.address,
            healthy: since.map(|_| agent.healthy),
            since,
            last_success: Time::from_wire(agent.last_success),
            last_error: crate::view::given(agent.last_error),
            failed_in_a_row: agent.failed_in_a_row,
        }
    }

    fn words(&self, now: jiff::Timestamp) -> String {
        let Self { name, address, .. } = self;
        let ago = |time: Option<Time>| time.map(|time| time.ago(now)).unwrap_or_default();
        match self.healthy {
            None => format!("{name} at {address}: not asked yet"),
            Some(true) => format!("{name} at {address}: answered {} ago", ago(self.last_success)),
            Some(false) => {
                let since = self.since.map(Time::short).unwrap_or_default();
                let error = self.last_error.as_deref().unwrap_or("no reason is known");
                // The error says itself whom it is about.
                let error = error.strip_prefix(&format!("{name} at {address}, ")).unwrap_or(error);
                format!(
                    "{name} at {address}: no good answer since {since} ({}), {} calls in a row: {error}",
                    ago(self.since),
                    self.failed_in_a_row
                )
            }
        }
    }
}

/// The addresses of one family in one network container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pool {
    network_container_id: String,
    family: &'static str,
    lifecycle: String,
    total: u32,
    counts: Counts,
}

pub(crate) async fn run(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let health = client.health("").await?;
    let node = client.get_node_info(pb::GetNodeInfoRequest {}).await?;
    let request =
        pb::ListNetworkContainersRequest { without_secondary_ip_configs: true, ..Default::default() };
    let ncs = client.list_all_network_containers(request).await?.into_iter().map(NetworkContainer::from_wire);
    let status = judge(health, node, &ncs.collect::<Vec<_>>(), client.socket().display().to_string());
    out.print(&status, page)?;
    if status.healthy { Ok(()) } else { Err(Failure::Shown(Exit::Unhealthy)) }
}

fn judge(health: Health, node: pb::GetNodeInfoResponse, ncs: &[NetworkContainer], socket: String) -> Status {
    let pools: Vec<Pool> = ncs
        .iter()
        .flat_map(|nc| nc.observed.iter().map(move |observed| (nc, observed)))
        .flat_map(|(nc, observed)| {
            observed.families().map(|(family, counts)| Pool {
                network_container_id: nc.id.clone(),
                family,
                lifecycle: observed.lifecycle.clone(),
                total: counts.total(),
                counts,
            })
        })
        .collect();
    let mut problems = Vec::new();
    let mut notes = Vec::new();
    let waiting_for = crate::view::given(node.waiting_for);
    // The whole does not serve while it waits; calls are taken all the same.
    let serving = node.serving && (health == Health::Serving || waiting_for.is_some());
    if !serving {
        problems.push(match node.not_serving_reason.as_str() {
            "" => "the daemon takes no requests now: it is starting or stopping".to_owned(),
            reason => format!("the daemon takes no requests that change anything: {reason}"),
        });
    }
    problems.extend(waiting_for.iter().map(|what| format!("the node is not ready: it waits for {what}")));
    if ncs.is_empty() {
        problems.push("there is no network container, so no pod gets an address".to_owned());
    }
    for family in ["IPv4", "IPv6"] {
        let active = || pools.iter().filter(|pool| pool.family == family && pool.lifecycle == "Active");
        let (total, free, waiting) = active().fold((0_u32, 0_u32, 0_u32), |(total, free, waiting), pool| {
            (
                total.saturating_add(pool.total),
                free.saturating_add(pool.counts.available),
                waiting.saturating_add(pool.counts.pending_programming),
            )
        });
        if total > 0 && free == 0 {
            let wait = match waiting {
                0 => String::new(),
                waiting => format!(", {waiting} are waiting to be programmed by the host"),
            };
            problems.push(format!(
                "no {family} address is free: all {total} are taken{wait}; the next pod gets none"
            ));
        } else if total > 0 && u64::from(free) * 10 < u64::from(total) {
            notes.push(format!("{family} addresses run short: {free} of {total} are free"));
        }
    }
    for nc in ncs {
        let Some(observed) = &nc.observed else { continue };
        if observed.lifecycle == "Deleting" {
            notes.push(format!("network container {} was deleted and goes when its pods have gone", nc.id));
        }
        if observed.withdrawn > 0 {
            notes.push(format!(
                "network container {} lacks {} addresses that pods hold; they go when released",
                nc.id, observed.withdrawn
            ));
        }
    }
    let agents: Vec<Agent> = node.agents.into_iter().map(Agent::from_wire).collect();
    Status {
        healthy: problems.is_empty(),
        problems,
        notes,
        serving,
        not_serving_reason: crate::view::given(node.not_serving_reason),
        channel_mode: node.channel_mode,
        version: node.version,
        uptime_seconds: node.uptime_seconds,
        node_id: node.node_id,
        socket,
        state_directory: node.state_directory,
        sequence: node.sequence,
        endpoints: node.endpoints,
        network_containers: node.network_containers,
        tombstones: node.tombstones,
        ip_counts: Counts::from_wire(node.ip_counts),
        pools,
        agents,
        waiting_for,
    }
}

fn page(status: &Status) -> Page {
    let health = if status.healthy {
        Cell::toned("healthy", Tone::Good)
    } else {
        Cell::toned(if status.serving { "serving, but not healthy" } else { "not serving" }, Tone::Bad)
    };
    let uptime = jiff::SignedDuration::from_secs(i64::try_from(status.uptime_seconds).unwrap_or(i64::MAX));
    let mut fields = vec![
        ("health", health),
        ("mode", status.channel_mode.clone().into()),
        ("version", status.version.clone().into()),
        ("up for", duration(uptime).into()),
        ("socket", status.socket.clone().into()),
        ("state", status.state_directory.clone().into()),
        ("journal", format!("at #{}", status.sequence).into()),
        (
            "sandboxes",
            format!("{} recorded, {} remembered as deleted", status.endpoints, status.tombstones).into(),
        ),
    ];
    if !status.node_id.is_empty() {
        fields.push(("node", status.node_id.clone().into()));
    }
    let rows = status
        .pools
        .iter()
        .map(|pool| {
            let free = if pool.counts.available == 0 { Tone::Bad } else { Tone::Good };
            vec![
                pool.network_container_id.clone().into(),
                pool.family.into(),
                pool.total.to_string().into(),
                Cell::toned(pool.counts.available.to_string(), free),
                pool.counts.assigned.to_string().into(),
                pool.counts.pending_programming.to_string().into(),
                pool.counts.pending_release.to_string().into(),
            ]
        })
        .collect();
    let page = Page::new()
        .fields(fields)
        .line("")
        .table(&["NC", "FAMILY", "TOTAL", "FREE", "ASSIGNED", "PROGRAMMING", "RELEASING"], rows);
    let now = jiff::Timestamp::now();
    let page = if status.agents.is_empty() { page } else { page.line("") };
    let page = status.agents.iter().fold(page, |page, agent| {
        let tone = if agent.healthy == Some(false) { Tone::Bad } else { Tone::Good };
        page.spans(vec![Cell::toned("agent: ", tone), agent.words(now).into()])
    });
    let page = if status.problems.is_empty() && status.notes.is_empty() { page } else { page.line("") };
    let page = status.problems.iter().fold(page, |page, problem| {
        page.spans(vec![Cell::toned("problem: ", Tone::Bad), problem.clone().into()])
    });
    status.notes.iter().fold(page, |page, note| {
        page.spans(vec![Cell::toned("note: ", Tone::Attention), note.clone().into()])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nc(available: u32, assigned: u32) -> NetworkContainer {
        NetworkContainer::from_wire(pb::NetworkContainerEntry {
            network_container: Some(pb::NetworkContainer { id: "nc-1".into(), ..Default::default() }),
            status: Some(pb::NetworkContainerStatus {
                ipv4: Some(pb::IpStateCounts { available, assigned, ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    fn status(health: Health, ncs: &[NetworkContainer]) -> Status {
        let reason = if health == Health::Serving { "" } else { "the disk is full since 15:00" };
        let node = pb::GetNodeInfoResponse {
            serving: health == Health::Serving,
            not_serving_reason: reason.into(),
            ..Default::default()
        };
        judge(health, node, ncs, "/run/cns.sock".into())
    }

    #[test]
    fn a_node_with_free_addresses_is_healthy() {
        let status = status(Health::Serving, &[nc(200, 50)]);
        assert!(status.healthy && status.problems.is_empty() && status.notes.is_empty(), "{status:?}");
    }

    #[test]
    fn each_agent_is_told_in_words() {
        let now = jiff::Timestamp::from_second(1_700_000_000).unwrap();
        let at = |ago: i64| Some(prost_types::Timestamp { seconds: 1_700_000_000 - ago, nanos: 0 });
        let agent = |agent| Agent::from_wire(agent).words(now);
        let base =
            || pb::AgentStatus { name: "NMAgent".into(), address: "http://h".into(), ..Default::default() };
        assert_eq!(agent(base()), "NMAgent at http://h: not asked yet");
        let well = pb::AgentStatus { healthy: true, since: at(900), last_success: at(3), ..base() };
        assert_eq!(agent(well), "NMAgent at http://h: answered 3 s ago");
        let ill = pb::AgentStatus {
            since: at(120),
            last_error: "NMAgent at http://h, GetHomeAz: cannot connect: refused".into(),
            failed_in_a_row: 7,
            ..base()
        };
        let told = agent(ill);
        assert!(told.contains("(2 min), 7 calls in a row: GetHomeAz: cannot connect: refused"), "{told}");
    }

    #[test]
    fn what_is_wrong_is_said_in_words() {
        let full = status(Health::Serving, &[nc(0, 250)]);
        assert!(!full.healthy);
        assert_eq!(full.problems, ["no IPv4 address is free: all 250 are taken; the next pod gets none"]);
        let short = status(Health::Serving, &[nc(3, 250)]);
        assert!(short.healthy);
        assert_eq!(short.notes, ["IPv4 addresses run short: 3 of 253 are free"]);
        let broken = status(Health::NotServing, &[nc(200, 50)]);
        assert!(broken.problems[0].contains("the disk is full since 15:00"), "{broken:?}");
        assert!(!status(Health::Serving, &[]).healthy);
    }
}
