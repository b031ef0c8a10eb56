//! `cns`: the node service that gives containers their network.

#[cfg(feature = "daemon")]
pub mod app;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
pub mod ledger;
pub mod model;
pub mod nic;
pub mod paths;
#[cfg(feature = "daemon")]
pub mod pool;
pub mod proto;
#[cfg(feature = "daemon")]
pub mod reconcile;
#[cfg(feature = "daemon")]
pub mod service;
#[cfg(feature = "daemon")]
pub mod store;
#[cfg(feature = "daemon")]
pub mod telemetry;
