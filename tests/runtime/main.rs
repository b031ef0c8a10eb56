//! A real container runtime: containerd and runc as Debian packages them run sandboxes that `cns-cni` wires.
//!
//! containerd runs in a network namespace of its own, with files of its own: nothing of the machine is touched.

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

mod containerd;
mod cri;
mod sandboxes;
