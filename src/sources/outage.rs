//! When a source that fails costs the node its readiness.

use std::{fmt, time::Duration};

use crate::{model::Now, readiness::Readiness};

/// A source that failed in so many rounds in a row is gone. One failure is a connection that broke, a second one an agent that is
/// being restarted: neither is worth a node that goes away and comes back. The third is an outage that somebody should see.
const ROUNDS: u32 = 3;
/// And for so long: pods that look for their network container make rounds follow each other at once.
const AT_LEAST: Duration = Duration::from_secs(5);

/// Takes readiness back while the source is gone. What is known is served all the same: only readiness changes.
#[derive(Debug)]
pub(super) struct Outage {
    /// Who is asked.
    agent: &'static str,
    readiness: Readiness,
    /// Rounds that failed in a row, and when the first of them ended.
    failed: Option<(u32, Now)>,
    pub(super) at_least: Duration,
    /// Whether readiness is to be given back: it never is to a node that was not ready yet.
    was_ready: bool,
}

impl Outage {
    /// None so far.
    pub(super) fn new(agent: &'static str, readiness: Readiness) -> Self {
        Self { agent, readiness, failed: None, at_least: AT_LEAST, was_ready: false }
    }

    /// A round brought nothing; `true` if the agent is what the node waits for now.
    pub(super) fn failed(&mut self, why: &dyn fmt::Display) -> bool {
        let now = Now::read();
        let (before, since) = self.failed.unwrap_or((0, now));
        let rounds = before.saturating_add(1);
        self.failed = Some((rounds, since));
        if rounds < ROUNDS || now.boot.since(since.boot) < self.at_least {
            return false;
        }
        let what = format!("{}, which has given no usable list since {}: {why}", self.agent, since.wall);
        self.was_ready |= self.readiness.take_back(what);
        true
    }

    /// The source gave a list, whether or not it is believed.
    pub(super) fn ended(&mut self) {
        self.failed = None;
        if std::mem::take(&mut self.was_ready) {
            self.readiness.set_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_in_a_row_take_readiness_back_and_one_list_gives_it_again() {
        let readiness = Readiness::ready();
        let (outage, told) = (Outage::new("DNC", readiness.clone()), readiness.told());
        let mut outage = Outage { at_least: Duration::ZERO, ..outage };
        for _ in 0..3 {
            assert!(!outage.failed(&"a") && !outage.failed(&"b"));
            outage.ended();
        }
        assert!(!outage.failed(&"c") && !outage.failed(&"d"));
        assert_eq!(*told.borrow(), None);
        assert!(outage.failed(&"e"));
        let words = told.borrow().clone().unwrap();
        let (begin, end) = ("DNC, which has given no usable list since ", ": e");
        let since = words.strip_prefix(begin).and_then(|words| words.strip_suffix(end)).unwrap().to_owned();
        assert!(outage.failed(&"f"));
        assert_eq!(told.borrow().as_deref(), Some(&*format!("{begin}{since}: f")), "the last error");
        outage.ended();
        assert_eq!(*told.borrow(), None);
        assert!(!outage.failed(&"g"), "it begins anew");
        outage.at_least = Duration::from_hours(1);
        assert!((0..9).all(|_| !outage.failed(&"h")), "many at once are no outage yet");
    }

    #[test]
    fn a_node_that_was_not_ready_does_not_become_so_by_an_outage_that_ends() {
        let readiness = Readiness::waiting("addresses");
        let (outage, told) = (Outage::new("NMAgent", readiness.clone()), readiness.told());
        let mut outage = Outage { at_least: Duration::ZERO, ..outage };
        for _ in 0..4 {
            outage.failed(&"a");
        }
        assert!(told.borrow().as_ref().is_some_and(|words| words.starts_with("NMAgent, which")));
        outage.ended();
        assert!(told.borrow().is_some());
    }
}
