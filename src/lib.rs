//! `cns`: the node service that gives containers their network.

#[cfg(feature = "daemon")]
pub mod ledger;
pub mod model;
pub mod nic;
pub mod paths;
pub mod proto;
