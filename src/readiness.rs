//! Whether the daemon can do what it is for. The listeners serve before that: health, state and what does not depend on it can be
//! asked for while the channel mode still waits.

use tokio::sync::watch;

/// What the channel mode waits for; nothing once it is ready, and from then on for good (spec/startup.md §3). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Readiness(watch::Sender<Option<String>>);

impl Readiness {
    /// Nothing has to be waited for.
    pub fn ready() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Not ready: waiting for `what`, a few words for people.
    pub fn waiting(what: impl Into<String>) -> Self {
        Self(watch::Sender::new(Some(what.into())))
    }

    /// Says it more precisely. Without effect once it is ready.
    pub fn wait_for(&self, what: impl Into<String>) {
        let what = what.into();
        self.0.send_if_modified(|waiting| match waiting {
            Some(before) if *before != what => {
                *before = what;
                true
            }
            _ => false,
        });
    }

    /// It is ready.
    pub fn set_ready(&self) {
        self.0.send_if_modified(|waiting| waiting.take().is_some());
    }

    /// What is waited for, and every change of it.
    pub fn told(&self) -> watch::Receiver<Option<String>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_ready_it_stays_ready() {
        let readiness = Readiness::waiting("a");
        let mut told = readiness.told();
        readiness.wait_for("b");
        assert_eq!(told.borrow_and_update().as_deref(), Some("b"));
        readiness.set_ready();
        readiness.wait_for("c");
        assert_eq!(*told.borrow_and_update(), None);
    }
}
