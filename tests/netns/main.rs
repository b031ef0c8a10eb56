//! The dataplane against the real kernel: namespaces, veth pairs, packets. As root; skipped aloud where that is impossible.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, missing_docs, reason = "tests")]

#[path = "../support/lab.rs"]
mod lab;
#[path = "../support/need.rs"]
mod need;

mod masquerade;
mod wiring;
