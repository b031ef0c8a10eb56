//! Clients of the machine's agents.

pub mod docker;
