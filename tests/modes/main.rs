//! Channel modes that fetch what they know, black box: the real daemon with its configuration file against the fake agents, driven
//! over gRPC and REST from start to shutdown.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "../support/cns.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod cns_under_test;
#[path = "../rest/http.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod http;
#[path = "../support/need.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
mod need;

mod azure_host;
mod cni_update;
mod keepers;
mod managed;
mod node;
mod telemetry;
