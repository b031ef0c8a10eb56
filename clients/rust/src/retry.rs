//! When a failed call is sent again, and after which wait.
//!
//! Only what a retry can cure, and only where sending twice cannot do harm: see [`Effect`]. The waits grow and are
//! spread, so that the plugins of a node full of pods do not come back in one wave when the daemon restarts.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    time::Duration,
};

use tonic::Code;

use crate::Error;

/// What sending a call twice does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The second call does what the first did: it reads, or the contract says that it is idempotent.
    Idempotent,
    /// The second call may be judged differently, because the first may have taken effect: it is sent again only if the
    /// first is known not to have.
    Once,
}

/// How often and how fast to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Calls in all, the first included; 1 = no retry.
    pub attempts: u32,
    /// Wait before the second call; doubles with each.
    pub first_wait: Duration,
    /// The longest wait. If the daemon asks for a longer one, the refusal is the answer: whoever called us has more
    /// patience than a call has.
    pub longest_wait: Duration,
}

impl Retry {
    /// One call, whatever happens.
    pub const NEVER: Self = Self { attempts: 1, first_wait: Duration::ZERO, longest_wait: Duration::ZERO };
}

impl Default for Retry {
    /// Rides out a restart of the daemon: six calls over about two seconds.
    fn default() -> Self {
        Self { attempts: 6, first_wait: Duration::from_millis(50), longest_wait: Duration::from_secs(1) }
    }
}

impl Retry {
    /// How long to wait before the next call, after `attempt` (from 1) failed with `error`; `None` to give up.
    ///
    /// `remaining` is what is left of the deadline: a wait that would use it up is not begun.
    pub(crate) fn wait(
        &self,
        attempt: u32,
        error: &Error,
        effect: Effect,
        remaining: Duration,
    ) -> Option<Duration> {
        if attempt >= self.attempts || !is_retryable(error, effect) {
            return None;
        }
        let doubled =
            self.first_wait.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(self.longest_wait);
        let asked = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
        let wait = spread(doubled.max(asked), asked);
        (asked <= self.longest_wait && wait < remaining).then_some(wait)
    }
}

fn is_retryable(error: &Error, effect: Effect) -> bool {
    match error {
        Error::Unreachable { source, .. } => !is_permanent(source.as_ref()),
        Error::Interrupted { .. } => effect == Effect::Idempotent,
        // A refusal with RetryInfo changed nothing, so it may be asked again whatever its effect. UNAVAILABLE without it
        // is any proxy's or the transport's word: it may have been sent after the command reached the ledger.
        Error::Refused(refusal) => {
            refusal.retry_after.is_some()
                || (refusal.code == Code::Unavailable && effect == Effect::Idempotent)
        }
        Error::Timeout { .. } | Error::Unimplemented { .. } => false,
    }
}

/// A socket that this user may not open, or whose path is no path of a socket, stays closed; one that is absent or refuses
/// is a restart under way.
fn is_permanent(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput))
}

/// A random time between half of `wait` and `wait`, never below what the daemon `asked` for.
fn spread(wait: Duration, asked: Duration) -> Duration {
    // RandomState is seeded by the operating system; a crate for one number is not worth its start-up in a plugin.
    let half = wait / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
    let random = RandomState::new().hash_one(0_u8) % nanos.saturating_add(1);
    (half + Duration::from_nanos(random)).max(asked)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Refusal;

    const AMPLE: Duration = Duration::from_mins(1);

    fn refused(code: Code, retry_after: Option<Duration>) -> Error {
        Error::Refused(Box::new(Refusal {
            operation: "X",
            code,
            return_code: None,
            reason: String::new(),
            message: String::new(),
            retry_after,
            fields: Vec::new(),
            details: BTreeMap::new(),
        }))
    }

    fn unreachable(kind: io::ErrorKind) -> Error {
        Error::Unreachable { socket: "/x".into(), source: Box::new(io::Error::from(kind)) }
    }

    #[test]
    fn waits_grow_are_spread_and_end() {
        let retry = Retry { attempts: 5, ..Retry::default() };
        let error = unreachable(io::ErrorKind::ConnectionRefused);
        for (attempt, full) in [(1, 50), (2, 100), (3, 200), (4, 400)] {
            let wait = retry.wait(attempt, &error, Effect::Once, AMPLE).unwrap();
            let full = Duration::from_millis(full);
            assert!(wait >= full / 2 && wait <= full, "attempt {attempt}: {wait:?}");
        }
        assert_eq!(retry.wait(5, &error, Effect::Once, AMPLE), None);
        let waits: Vec<_> = (0..8).filter_map(|_| retry.wait(4, &error, Effect::Once, AMPLE)).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]), "all alike: {waits:?}");
    }

    #[test]
    fn the_daemons_wish_is_a_lower_bound_and_our_patience_an_upper_one() {
        let asked = Duration::from_millis(900);
        let error = refused(Code::ResourceExhausted, Some(asked));
        assert!(Retry::default().wait(1, &error, Effect::Once, AMPLE).unwrap() >= asked);
        assert_eq!(Retry::default().wait(1, &error, Effect::Once, Duration::from_millis(500)), None);
        let later = refused(Code::ResourceExhausted, Some(Duration::from_secs(2)));
        assert_eq!(Retry::default().wait(1, &later, Effect::Once, AMPLE), None, "told, not waited for");
    }

    #[test]
    fn only_what_a_retry_can_cure_is_retried() {
        let retry = Retry::default();
        let again = |error: &Error, effect| retry.wait(1, error, effect, AMPLE).is_some();
        assert!(!again(&refused(Code::InvalidArgument, None), Effect::Idempotent));
        assert!(!again(&refused(Code::ResourceExhausted, None), Effect::Idempotent));
        assert!(again(&refused(Code::Unavailable, None), Effect::Idempotent));
        assert!(!again(&refused(Code::Unavailable, None), Effect::Once));
        assert!(again(&refused(Code::Unavailable, Some(Duration::ZERO)), Effect::Once));
        assert!(again(&unreachable(io::ErrorKind::NotFound), Effect::Once));
        assert!(!again(&unreachable(io::ErrorKind::PermissionDenied), Effect::Once));
        let interrupted = Error::Interrupted {
            operation: "X",
            socket: "/x".into(),
            source: Box::new(io::Error::from(io::ErrorKind::BrokenPipe)),
        };
        assert!(again(&interrupted, Effect::Idempotent));
        assert!(!again(&interrupted, Effect::Once));
        assert_eq!(
            Retry::NEVER.wait(1, &unreachable(io::ErrorKind::NotFound), Effect::Idempotent, AMPLE),
            None
        );
    }
}
