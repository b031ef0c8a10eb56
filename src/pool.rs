//! Where pods' addresses come from.

pub mod static_cidr;
