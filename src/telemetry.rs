//! Logs, metrics and probes.

pub mod http;
pub mod log;
pub mod metrics;
mod process;
