//! When pods that have no address yet first asked for one.
//!
//! The reference keeps pods that never got one for ever, and evicts live ones when there are many (spec/metrics.md §7 row 7). Here
//! a pod that is released is forgotten, and so is one that has not asked for long.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::model::ContainerId;

/// Pods remembered, as in the reference.
const MOST: usize = 250;
/// A pod that has not asked for so long is dead, whatever was heard of it: runtimes ask again within seconds to minutes.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(30);

#[derive(Debug, Default)]
pub(super) struct Pending(HashMap<ContainerId, Asked>);

#[derive(Debug)]
struct Asked {
    first: Instant,
    last: Instant,
}

impl Pending {
    /// It asked and got nothing.
    pub(super) fn refused(&mut self, container: &ContainerId, now: Instant) {
        if let Some(asked) = self.0.get_mut(container) {
            asked.last = now;
            return;
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, asked| now.saturating_duration_since(asked.last) < FORGOTTEN_AFTER);
        }
        if self.0.len() >= MOST {
            // The one that has been silent longest is the likeliest to be dead.
            let silent = self.0.iter().min_by_key(|(_, asked)| asked.last).map(|(key, _)| key.clone());
            silent.and_then(|silent| self.0.remove(&silent));
        }
        self.0.insert(container.clone(), Asked { first: now, last: now });
    }

    /// It got an address; how long it has waited, if it was refused before.
    pub(super) fn served(&mut self, container: &ContainerId, now: Instant) -> Option<Duration> {
        self.0.remove(container).map(|asked| now.saturating_duration_since(asked.first))
    }

    /// It is gone.
    pub(super) fn released(&mut self, container: &ContainerId) {
        self.0.remove(container);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_forgotten_and_the_living_are_not_evicted_for_them() {
        let id = |n: usize| format!("c{n}").parse::<ContainerId>().unwrap();
        let (start, mut pending) = (Instant::now(), Pending::default());
        let at = |secs| start + Duration::from_secs(secs);
        pending.refused(&id(0), start);
        for n in 1..MOST {
            pending.refused(&id(n), at(1));
        }
        // The oldest still asks; the reference would evict it.
        pending.refused(&id(0), at(5));
        pending.refused(&id(MOST), at(6));
        assert_eq!(pending.0.len(), MOST);
        assert_eq!(pending.served(&id(0), at(9)), Some(Duration::from_secs(9)), "from its first request");
        assert_eq!(pending.served(&id(0), at(9)), None, "once");
        pending.released(&id(MOST));
        assert_eq!(pending.served(&id(MOST), at(9)), None);
        for n in 0..3 {
            pending.refused(&id(10_000 + n), at(4000));
        }
        assert_eq!(pending.0.len(), 3, "the silent ones went when room was needed");
    }
}
