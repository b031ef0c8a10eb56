//! When a source looks: at its interval, and when somebody cannot wait for that.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Looks begin at least so far apart, however many ask.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    begun: u64,
    ended: u64,
    last_begin: Option<Instant>,
}

/// Asks the source to look now. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SyncTrigger {
    asked: Arc<Notify>,
    rounds: watch::Receiver<Rounds>,
}

impl SyncTrigger {
    /// Waits for a look, `within` at most. One that is going on is shared. Where one ended less than a second ago this returns at
    /// once: what that did not find, another would not either.
    pub async fn now(&self, within: Duration) {
        let mut rounds = self.rounds.clone();
        let target = {
            let now = *rounds.borrow();
            if now.begun > now.ended {
                now.begun
            } else if now.last_begin.is_some_and(|last| last.elapsed() < AT_MOST_EVERY) {
                return;
            } else {
                self.asked.notify_one();
                now.begun + 1
            }
        };
        // Too late, or the source has ended: whoever asked goes on with what there is.
        let _ = tokio::time::timeout(within, rounds.wait_for(|rounds| rounds.ended >= target)).await;
    }
}

/// The source's side: tells it when to look.
#[derive(Debug)]
pub struct Turns {
    every: Duration,
    asked: Arc<Notify>,
    rounds: watch::Sender<Rounds>,
}

impl Turns {
    /// At this interval.
    pub fn every(every: Duration) -> Self {
        Self { every, asked: Arc::default(), rounds: watch::Sender::default() }
    }

    /// For those who cannot wait.
    pub fn trigger(&self) -> SyncTrigger {
        SyncTrigger { asked: self.asked.clone(), rounds: self.rounds.subscribe() }
    }

    /// Waits for the next turn, the first of which comes at once, and begins it; `false` when it is time to stop.
    pub async fn next(&self, stop: &CancellationToken) -> bool {
        let last = self.rounds.borrow().last_begin;
        let due = async {
            let Some(last) = last else { return };
            tokio::select! {
                () = tokio::time::sleep_until(last + self.every) => {}
                () = self.asked.notified() => tokio::time::sleep_until(last + AT_MOST_EVERY).await,
            }
        };
        if stop.run_until_cancelled(due).await.is_none() {
            return false;
        }
        // Whoever asked until now is served by this turn, and needs no further one.
        let _ = self.asked.notified().now_or_never();
        self.rounds.send_modify(|rounds| {
            rounds.begun += 1;
            rounds.last_begin = Some(Instant::now());
        });
        true
    }

    /// Ends the turn.
    pub fn done(&self) {
        self.rounds.send_modify(|rounds| rounds.ended = rounds.begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_are_shared_and_at_most_one_begins_each_second() {
        let (turns, stop) = (Turns::every(Duration::from_secs(30)), CancellationToken::new());
        let trigger = turns.trigger();
        let begin = Instant::now();
        let looks = async {
            let mut begun = Vec::new();
            while begun.len() < 3 && turns.next(&stop).await {
                begun.push(begin.elapsed());
                turns.done();
            }
            begun
        };
        let callers = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            // Within the second after a look nobody waits.
            trigger.now(Duration::from_secs(5)).await;
            assert_eq!(begin.elapsed(), Duration::from_millis(200));
            tokio::time::sleep(Duration::from_secs(2)).await;
            let all = (0..100).map(|_| trigger.now(Duration::from_secs(5)));
            futures_util::future::join_all(all).await;
            assert_eq!(begin.elapsed(), Duration::from_millis(2200));
        };
        let (begun, ()) = tokio::join!(looks, callers);
        // At once, for the hundred callers, and at the interval after that.
        assert_eq!(begun.iter().map(Duration::as_millis).collect::<Vec<_>>(), [0, 2200, 32_200]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_holds_nobody_up_for_long() {
        let (turns, stop) = (Turns::every(Duration::from_secs(30)), CancellationToken::new());
        let trigger = turns.trigger();
        assert!(turns.next(&stop).await);
        let begin = Instant::now();
        trigger.now(Duration::from_secs(5)).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
        stop.cancel();
        assert!(!turns.next(&stop).await);
    }
}
