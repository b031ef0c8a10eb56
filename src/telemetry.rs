//! Logs, metrics, probes and reports.

mod envelope;
pub mod http;
pub mod item;
pub mod log;
pub mod metrics;
pub mod otlp;
pub mod outlet;
mod process;
pub mod report;
pub mod traces;
mod watched;
