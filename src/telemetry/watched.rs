//! Metrics of what keeps account of itself: the machine's agents, and the CNI configuration list. Read when a scraper asks.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};
use tokio::sync::watch;

use super::process::Told as _;
use crate::{conflist::FileState, host::http::AgentState};

/// What is watched, once it is there. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched(Arc<Parts>);

#[derive(Debug, Default)]
pub(super) struct Parts {
    agents: OnceLock<Vec<AgentState>>,
    conflist: OnceLock<watch::Receiver<FileState>>,
}

impl Watched {
    pub(super) fn agents(&self, agents: Vec<AgentState>) {
        let _ = self.0.agents.set(agents);
    }

    pub(super) fn conflist(&self, state: watch::Receiver<FileState>) {
        let _ = self.0.conflist.set(state);
    }
}

impl Collector for Watched {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(agents) = self.0.agents.get() {
            encode_agents(&mut encoder, agents)?;
        }
        if let Some(state) = self.0.conflist.get() {
            let is_there = *state.borrow() == FileState::Written;
            ConstGauge::new(i64::from(is_there)).tell(
                &mut encoder,
                "cns_cni_conflist_written",
                "1 while the CNI configuration list is in place as this daemon wrote it",
            )?;
        }
        Ok(())
    }
}

fn encode_agents(encoder: &mut DescriptorEncoder<'_>, agents: &[AgentState]) -> fmt::Result {
    let help = "Calls of the agents of the machine and of other services";
    let mut calls = encoder.encode_descriptor("cns_agent_calls", help, None, MetricType::Counter)?;
    for agent in agents {
        let status = agent.status();
        for (outcome, count) in [("ok", status.answered), ("failed", status.failed)] {
            let labels = [("agent", agent.agent()), ("outcome", outcome)];
            ConstCounter::new(count).encode(calls.encode_family(&labels)?)?;
        }
    }
    let help = "Time that these calls took, with their retries";
    let mut took = encoder.encode_descriptor("cns_agent_call_seconds", help, None, MetricType::Counter)?;
    for agent in agents {
        let seconds = agent.status().took.as_secs_f64();
        ConstCounter::new(seconds).encode(took.encode_family(&[("agent", agent.agent())])?)?;
    }
    let help = "1 while the agent's last call failed";
    let mut failing = encoder.encode_descriptor("cns_agent_failing", help, None, MetricType::Gauge)?;
    for agent in agents {
        let is_failing = i64::from(agent.status().failed_in_a_row > 0);
        ConstGauge::new(is_failing).encode(failing.encode_family(&[("agent", agent.agent())])?)?;
    }
    Ok(())
}
