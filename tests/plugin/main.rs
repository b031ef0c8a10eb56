//! The CNI plugin as a runtime runs it: the real binary, a real daemon, real namespaces. As root; skipped aloud where that is
//! impossible.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    dead_code,
    missing_docs,
    missing_debug_implementations,
    reason = "tests; each binary uses its own part of the support modules"
)]

#[path = "../support/cns.rs"]
mod cns_under_test;
#[path = "../support/lab.rs"]
mod lab;
#[path = "../support/need.rs"]
mod need;

mod commands;
mod faults;
mod gate;
mod interleaving;
mod node;
mod protocol;
