//! Lines of the log as items.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, OnceLock},
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use super::{
    item::{Item, Properties, Severity},
    outlet::Outlet,
};

/// What is said below this path is about reporting itself: to report it would bring more of it.
const OURSELVES: &str = "cns::telemetry";

/// A layer that gives every line that is logged, from `info` on, to an outlet, as soon as there is one. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Traces(Arc<OnceLock<Outlet>>);

impl Traces {
    /// From now on. Only the first outlet counts.
    pub fn connect(&self, outlet: Outlet) {
        let _ = self.0.set(outlet);
    }
}

impl<S: Subscriber> Layer<S> for Traces {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(outlet) = self.0.get() else { return };
        let metadata = event.metadata();
        let severity = match *metadata.level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            Level::INFO => Severity::Information,
            _ => return,
        };
        if metadata.target().starts_with(OURSELVES) {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        outlet.put(Item::Trace { severity, message: line.message, properties: line.fields });
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: Properties,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.fields.push((field.name(), value.to_owned()));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.fields.push((field.name(), format!("{value:?}")));
        }
    }
}
