//! Where network containers come from, in the modes that fetch them: DNC's list ([`managed`]) and NMAgent's addresses
//! ([`node_subnet`]).
//!
//! A source asks its agent, compares the answer with what the ledger holds, and gives the ledger commands. It is believed about what
//! is new, and not blindly about what is gone (design §6): see [`Doubt`]. One that keeps failing takes the node's readiness back until
//! it gives a list again; what is known is served meanwhile.

pub mod cni_update;
mod doubt;
pub mod host_versions;
pub mod managed;
pub mod node_subnet;
mod outage;
mod trigger;

use tokio::sync::watch;

pub use self::{
    doubt::Doubt,
    trigger::{SyncTrigger, Turns},
};

/// Why a source is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// What it says.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// The source's alarm, if there is one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Alarms(watch::Sender<Option<Alarm>>);

impl Alarms {
    /// The alarm, and every change of it.
    pub fn told(&self) -> watch::Receiver<Option<Alarm>> {
        self.0.subscribe()
    }

    /// Raises it; one that says the same already is not told again.
    fn raise(&self, alarm: Alarm) {
        self.0.send_if_modified(|present| {
            if present.as_ref() == Some(&alarm) {
                return false;
            }
            tracing::error!(remedy = alarm.remedy, "{}", alarm.message);
            *present = Some(alarm);
            true
        });
    }

    fn clear(&self) {
        self.0.send_if_modified(|present| {
            let was_raised = present.take().is_some();
            if was_raised {
                tracing::info!("the source of network containers is believed again");
            }
            was_raised
        });
    }
}

/// What the services may know of the mode's source, and ask of it.
#[derive(Clone, Debug)]
pub struct SourceHandle {
    /// Asks it to look at once; absent where it cannot be asked.
    pub sync: Option<SyncTrigger>,
    /// Its alarm.
    pub alarms: watch::Receiver<Option<Alarm>>,
}
