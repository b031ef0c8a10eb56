//! Whether the daemon can do what it is for. The listeners serve before that: health, state and what does not depend on it can be
//! asked for while the channel mode still waits.

use tokio::sync::watch;

/// What the channel mode waits for; nothing while it is ready. It goes back when what the mode depends on is gone, and comes again; the
/// reference's stays, whatever happens (spec/startup.md §3). Cheap to clone.
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

    /// Says it more precisely. Without effect while it is ready.
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

    /// It is ready no longer and waits for `what`, also where it waited for something else. `true` if it was ready.
    pub fn take_back(&self, what: impl Into<String>) -> bool {
        let what = Some(what.into());
        let mut was_ready = false;
        self.0.send_if_modified(|waiting| {
            was_ready = waiting.is_none();
            let is_news = *waiting != what;
            *waiting = what;
            is_news
        });
        was_ready
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
    fn it_stays_ready_until_it_is_taken_back() {
        let readiness = Readiness::waiting("a");
        let mut told = readiness.told();
        readiness.wait_for("b");
        assert_eq!(told.borrow_and_update().as_deref(), Some("b"));
        readiness.set_ready();
        readiness.wait_for("c");
        assert_eq!(*told.borrow_and_update(), None);
        assert!(readiness.take_back("d"));
        assert_eq!(told.borrow_and_update().as_deref(), Some("d"));
        assert!(!readiness.take_back("d"));
        assert!(!told.has_changed().unwrap(), "it says the same");
        assert!(!readiness.take_back("e"));
        assert_eq!(told.borrow_and_update().as_deref(), Some("e"));
        readiness.set_ready();
        assert_eq!(*told.borrow_and_update(), None);
    }
}
