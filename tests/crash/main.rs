//! Crashes: the daemon is killed at random moments while clients work; the disk fills up, is read-only, its file is torn. Every
//! answer that a client received stays true, no address is given twice, none is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "../support/cns.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod cns_under_test;
#[path = "../support/need.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod need;

mod disk;
mod kill;
