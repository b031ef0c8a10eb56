//! Clients of the machine's agents: NMAgent and wireserver, IMDS, DNC, Key Vault (spec/host-agents.md).
//!
//! They share one HTTP layer, [`http`]: no proxy, no redirect, bounded time and size. Each client is a cheap handle that can be
//! cloned; `within` gives one with less time; `state` tells how the agent last answered, for `cnsctl status`. A call is
//! cancelled by dropping its future.
//!
//! Nothing here knows the ledger or a channel mode: what an answer means is decided by who asked.

pub mod dnc;
pub mod http;
pub mod imds;
pub mod keyvault;
pub mod nmagent;
pub mod wireserver;

#[cfg(any(test, feature = "test-util"))]
pub mod fake;
