//! How long pods waited for their addresses: from a pod's first request to its first success (spec/metrics.md §2,
//! `ip_assignment_latency_seconds`; spec/ipam.md §15 X3).

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use super::ServiceObserver;
use crate::model::PodKey;

/// Pods that wait at a time, as far as is remembered: the reference's number.
const MOST: usize = 250;

/// When pods that wait first asked. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct FirstRequests {
    waiting: Arc<Mutex<Waiting>>,
    pub(super) observer: Option<Arc<dyn ServiceObserver>>,
}

#[derive(Debug, Default)]
struct Waiting {
    since: HashMap<PodKey, Instant>,
    /// Oldest first; may name pods that wait no longer.
    order: VecDeque<PodKey>,
}

impl fmt::Debug for FirstRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstRequests").finish_non_exhaustive()
    }
}

impl FirstRequests {
    /// A request that began at `begun` was refused. Beyond the bound the pod that has waited longest is forgotten.
    pub(super) fn refused(&self, key: PodKey, begun: Instant) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.since.contains_key(&key) {
            return;
        }
        while waiting.order.len() >= MOST {
            if let Some(oldest) = waiting.order.pop_front() {
                waiting.since.remove(&oldest);
            }
        }
        waiting.order.push_back(key.clone());
        waiting.since.insert(key, begun);
    }

    /// A request that began at `begun` was granted.
    pub(super) fn granted(&self, key: &PodKey, begun: Instant) {
        let first = self.forget(key).unwrap_or(begun);
        if let Some(observer) = &self.observer {
            observer.pod_waited(first.elapsed());
        }
    }

    /// The pod goes: it waits no longer. The reference counts dead pods for ever (metrics.md §7 row 7).
    pub(super) fn forget(&self, key: &PodKey) -> Option<Instant> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let since = waiting.since.remove(key)?;
        waiting.order.retain(|other| other != key);
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sources::host_versions::SyncObserver;

    #[derive(Debug, Default)]
    struct Told(Mutex<Vec<u64>>);

    impl SyncObserver for Told {}

    impl ServiceObserver for Told {
        fn pod_waited(&self, waited: Duration) {
            self.0.lock().unwrap().push(waited.as_secs());
        }
    }

    fn key(n: usize) -> PodKey {
        PodKey::new(&format!("pod-{n}")).unwrap()
    }

    #[test]
    fn x3_it_counts_from_the_first_request_and_dead_pods_are_forgotten() {
        let told = Arc::new(Told::default());
        let requests = FirstRequests { observer: Some(told.clone()), ..FirstRequests::default() };
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        requests.refused(key(1), ago(30));
        requests.refused(key(1), ago(20));
        requests.granted(&key(1), ago(10));
        requests.granted(&key(1), ago(5));
        requests.refused(key(2), ago(60));
        requests.forget(&key(2));
        requests.granted(&key(2), ago(2));
        assert_eq!(*told.0.lock().unwrap(), [30, 5, 2]);
    }

    #[test]
    fn no_more_are_remembered_than_the_bound() {
        let requests = FirstRequests::default();
        for n in 0..MOST + 10 {
            requests.refused(key(n), Instant::now());
        }
        let waiting = requests.waiting.lock().unwrap();
        assert_eq!((waiting.since.len(), waiting.order.len()), (MOST, MOST));
        assert!(!waiting.since.contains_key(&key(9)) && waiting.since.contains_key(&key(10)));
    }
}
