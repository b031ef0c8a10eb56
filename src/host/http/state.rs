//! How an agent is doing, for people.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;

use crate::model::{Now, Timestamp};

/// How an agent's last calls went. Clones share one state; reading never waits.
#[derive(Clone, Debug)]
pub struct AgentState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    agent: &'static str,
    address: String,
    status: ArcSwap<AgentStatus>,
}

/// A snapshot of an agent's state. A call that was cancelled leaves no trace in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentStatus {
    /// When the agent last answered.
    pub last_success: Option<Timestamp>,
    /// The last call that failed.
    pub last_failure: Option<AgentFailure>,
    /// Calls that have failed since the last success.
    pub failed_in_a_row: u32,
    /// Since when it has been as it is now: answering if `failed_in_a_row` is 0, else failing. Absent until the first call ends.
    pub since: Option<Timestamp>,
    /// Calls that were answered, since the start.
    pub answered: u64,
    /// Calls that failed.
    pub failed: u64,
    /// How long all of them took together, with their retries.
    pub took: Duration,
}

impl AgentStatus {
    /// Whether the last call was answered; `None` until one has ended.
    pub fn is_answering(&self) -> Option<bool> {
        self.since.map(|_| self.failed_in_a_row == 0)
    }
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFailure {
    /// When it ended.
    pub at: Timestamp,
    /// What happened.
    pub error: String,
}

impl AgentState {
    /// Of an agent that nobody has asked yet.
    pub(crate) fn new(agent: &'static str, address: String) -> Self {
        Self(Arc::new(Inner { agent, address, status: ArcSwap::default() }))
    }

    /// The agent's name.
    pub fn agent(&self) -> &'static str {
        self.0.agent
    }

    /// Its base URL.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// How it is doing now.
    pub fn status(&self) -> Arc<AgentStatus> {
        self.0.status.load_full()
    }

    /// A call was answered, after so long.
    pub(crate) fn succeeded(&self, took: Duration) {
        let at = Now::read().wall;
        let before = self.change(|status| {
            let since = if status.is_answering() == Some(true) { status.since } else { Some(at) };
            AgentStatus {
                last_success: Some(at),
                failed_in_a_row: 0,
                since,
                answered: status.answered + 1,
                took: status.took.saturating_add(took),
                ..status.clone()
            }
        });
        if before.failed_in_a_row > 0 {
            let (agent, failed) = (self.0.agent, before.failed_in_a_row);
            tracing::info!(agent, address = %self.0.address, failed, "agent answers again");
        }
    }

    /// A call failed, after so long.
    pub(crate) fn failed(&self, error: String, took: Duration) {
        let at = Now::read().wall;
        let failure = AgentFailure { at, error };
        let before = self.change(|status| {
            let since = if status.is_answering() == Some(false) { status.since } else { Some(at) };
            let failed_in_a_row = status.failed_in_a_row.saturating_add(1);
            AgentStatus {
                last_failure: Some(failure.clone()),
                failed_in_a_row,
                since,
                failed: status.failed + 1,
                took: status.took.saturating_add(took),
                ..status.clone()
            }
        });
        // A loop that asks every second must not fill the log with one failure.
        if before.failed_in_a_row == 0 {
            tracing::warn!(agent = self.0.agent, error = %failure.error, "agent call failed");
        }
    }

    fn change(&self, change: impl Fn(&AgentStatus) -> AgentStatus) -> Arc<AgentStatus> {
        self.0.status.rcu(|status| change(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_when_it_turned_and_not_when_it_was_last_asked() {
        let state = AgentState::new("NMAgent", "http://h".into());
        assert_eq!(state.status().is_answering(), None);
        state.failed("first".into(), Duration::from_secs(1));
        let first = state.status().since;
        std::thread::sleep(std::time::Duration::from_millis(2));
        state.failed("second".into(), Duration::from_secs(2));
        let status = state.status();
        assert_eq!((status.since, status.failed_in_a_row, status.is_answering()), (first, 2, Some(false)));
        assert_eq!(status.last_failure.as_ref().unwrap().error, "second");
        state.succeeded(Duration::from_secs(3));
        let status = state.status();
        assert_eq!((status.failed_in_a_row, status.is_answering()), (0, Some(true)));
        assert!(status.since > first && status.last_failure.is_some(), "the last error stays readable");
        let since = status.since;
        std::thread::sleep(std::time::Duration::from_millis(2));
        state.succeeded(Duration::from_secs(3));
        let status = state.status();
        assert_eq!((status.since, status.answered, status.failed), (since, 2, 2));
        assert_eq!(status.took, Duration::from_secs(9));
    }
}
