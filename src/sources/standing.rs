//! Whether the mode's source answers, as far as readiness depends on it.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{
    model::{Now, Timestamp},
    readiness::Readiness,
};

/// The source has failed when it failed so often in a row: one lost answer is everyday, and a restart of the agent may cost two.
const FAILURES: u32 = 3;
/// And when it has for so long: pods that look for their network container make rounds come fast.
const AT_LEAST: Duration = Duration::from_secs(5);

/// Takes readiness back while the source fails. What is known is served all the same, but it may be out of date.
#[derive(Debug)]
pub(super) struct Standing {
    readiness: Readiness,
    at_least: Duration,
    failing: Option<Failing>,
}

#[derive(Debug)]
struct Failing {
    since: (Instant, Timestamp),
    times: u32,
    is_told: bool,
}

impl Standing {
    pub(super) fn new(readiness: Readiness) -> Self {
        Self { readiness, at_least: AT_LEAST, failing: None }
    }

    /// A round brought nothing. `what` is what is waited for then, and `why` the source's last word.
    pub(super) fn failed(&mut self, what: &str, why: &dyn fmt::Display) {
        let now = || (Instant::now(), Now::read().wall);
        let failing = self.failing.get_or_insert_with(|| Failing { since: now(), times: 0, is_told: false });
        failing.times = failing.times.saturating_add(1);
        let (begun, since) = failing.since;
        if failing.times >= FAILURES && begun.elapsed() >= self.at_least && !failing.is_told {
            // Once: the agent's state tells every failure's words.
            failing.is_told = true;
            self.readiness.lose(format!("{what}, in vain since {since}: {why}"));
        }
    }

    /// The source answered. Whether that makes the node ready is for the source to say.
    pub(super) fn answered(&mut self) {
        self.failing = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_several_failures_in_a_row_and_some_time() {
        let readiness = Readiness::ready();
        let told = readiness.told();
        let mut standing = Standing { at_least: Duration::ZERO, ..Standing::new(readiness.clone()) };
        for _ in 0..5 {
            standing.failed("DNC's list", &"refused");
            standing.failed("DNC's list", &"refused");
            standing.answered();
        }
        assert_eq!(*told.borrow(), None, "never three in a row");
        (0..3).for_each(|_| standing.failed("DNC's list", &"refused"));
        let what = told.borrow().clone().unwrap();
        assert!(what.starts_with("DNC's list, in vain since 20") && what.ends_with(": refused"), "{what}");
        readiness.set_ready();
        standing.answered();
        standing.at_least = Duration::from_hours(1);
        (0..9).for_each(|_| standing.failed("DNC's list", &"refused"));
        assert_eq!(*told.borrow(), None, "not for long enough");
    }
}
