//! The dataplane against the real kernel: namespaces, veth pairs, packets. As root; skipped aloud where that is impossible.

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
#[path = "../support/docker.rs"]
mod docker_under_test;
#[path = "../support/lab.rs"]
mod lab;
#[path = "../support/need.rs"]
mod need;

mod docker;
mod host_interface;
mod masquerade;
mod snat;
mod wiring;
