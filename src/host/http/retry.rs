//! Asking again.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// How often a call is made, how long it pauses, and after which errors. Declared beside each call.
#[derive(Debug)]
pub struct Retry<E> {
    /// Attempts in all; at least one is made.
    pub attempts: u32,
    /// Before each further attempt.
    pub pause: Pause,
    /// Whether this error is one that another attempt may cure.
    pub on: fn(&E) -> bool,
}

/// The time between two attempts. Each is varied by a tenth up or down, so that a fleet of nodes that lost an agent at one time does
/// not come back at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Always the same.
    Fixed(Duration),
    /// Twice as long each time, up to `most`. The reference's has no end (spec/host-agents.md §4).
    Doubling {
        /// The first.
        first: Duration,
        /// The longest.
        most: Duration,
    },
}

impl Pause {
    /// The pause after the `failed`th failure (from 1), before it is varied.
    pub fn after(self, failed: u32) -> Duration {
        match self {
            Self::Fixed(pause) => pause,
            Self::Doubling { first, most } => {
                let factor = 2_u32.checked_pow(failed.saturating_sub(1)).unwrap_or(u32::MAX);
                first.checked_mul(factor).unwrap_or(most).min(most)
            }
        }
    }
}

impl<E> Retry<E> {
    /// One attempt.
    pub const NEVER: Self = Self { attempts: 1, pause: Pause::Fixed(Duration::ZERO), on: |_| false };

    /// Runs `attempt` until it succeeds, fails for good, or has no time or attempts left. The last error is returned: it
    /// says more than that the time is over. Cancelled by being dropped, in a pause as well.
    pub(in crate::host) async fn run<T, F: Future<Output = Result<T, E>>>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, E> {
        let mut failed = 0;
        loop {
            let error = match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            failed += 1;
            if failed >= self.attempts || !(self.on)(&error) {
                return Err(error);
            }
            let wake = Instant::now() + varied(self.pause.after(failed));
            if wake >= deadline {
                return Err(error);
            }
            tokio::time::sleep_until(wake).await;
        }
    }
}

/// The pause, a tenth longer or shorter at random.
pub(crate) fn varied(pause: Duration) -> Duration {
    // The standard library's hash keys are its only source of randomness, and good enough for this.
    let thousandth = u32::try_from(RandomState::new().build_hasher().finish() % 201).unwrap_or_default();
    pause / 1000 * (900 + thousandth)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn doubling_has_an_end() {
        let pause = Pause::Doubling { first: Duration::from_secs(1), most: Duration::from_secs(8) };
        let pauses: Vec<u64> = [1, 2, 3, 4, 5, 40, u32::MAX].map(|n| pause.after(n).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8, 8]);
        for _ in 0..100 {
            let varied = varied(Duration::from_secs(10)).as_millis();
            assert!((9_000..=11_000).contains(&varied), "{varied}");
        }
    }

    #[tokio::test]
    async fn attempts_errors_and_time_each_end_it() {
        let retry =
            Retry { attempts: 4, pause: Pause::Fixed(Duration::from_millis(20)), on: |error| *error < 3 };
        let retry = &retry;
        let tries = |errors: &'static [i32], deadline: u64| async move {
            let made = Cell::new(0);
            let outcome = retry
                .run(Instant::now() + Duration::from_millis(deadline), || {
                    let at = made.get();
                    made.set(at + 1);
                    async move { errors.get(at).map_or(Ok(()), |error| Err(*error)) }
                })
                .await;
            (outcome, made.get())
        };
        assert_eq!(tries(&[], 900).await, (Ok(()), 1));
        assert_eq!(tries(&[1, 1], 900).await, (Ok(()), 3));
        assert_eq!(tries(&[1, 3, 1], 900).await, (Err(3), 2), "not every error is worth another attempt");
        assert_eq!(tries(&[1, 1, 1, 2, 1], 900).await, (Err(2), 4), "attempts are counted");
        assert_eq!(tries(&[1, 2, 1, 1], 30).await, (Err(2), 2), "no pause outlasts the deadline");
    }
}
