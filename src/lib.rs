//! `cns`: the node service that gives containers their network. It owns the node's pod addresses, network containers and
//! endpoints, and every answer that it gives is durable first.
//!
//! ```text
//!  CNI plugin, cnsctl, gRPC clients      legacy clients
//!        │ unix socket, TCP                    │ JSON over HTTP
//!        │                                  gateway ── legacy JSON ↔ the same services
//!     service ── who may do what, proto ↔ model, errors that say what to do
//!        │
//!    sources ── what DNC and NMAgent say the node shall have, in the modes that fetch it
//!      swift ── what a pod's request becomes where network containers belong to pods
//!        │
//!     ledger ─── one writer: Command → transition → reply; indices, journal, invariants
//!        │
//!      store ─── a log with one flush a batch, and redb behind it
//!
//!     host ───── clients of the machine's agents: NMAgent, wireserver, IMDS, DNC, Key Vault
//!     nic ────── netlink, namespaces, packet rules: used by the plugin, the reconciler and `app`
//! ```
//!
//! Imports go downwards only: `app → gateway → service → sources → ledger → model`. [`store`], [`nic`] and [`host`] are adapters that know
//! [`model`] and are handed to the others as values. [`model`] and the transitions in [`ledger`] do no I/O and read no clock.
//!
//! Where to start reading: a pod's request comes in at `service/ipam.rs`, is decided in `ledger/transition/request.rs`, made
//! durable by `ledger/writer.rs` through `store.rs`, and wired by `nic/transparent.rs` in the plugin (`clients/cni`).
//!
//! Without the feature `daemon` only what the plugin and `cnsctl` need is built: [`files`], [`model`], [`nic`], [`paths`], [`proto`].

#[cfg(feature = "daemon")]
pub mod app;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
pub mod conflist;
#[cfg(feature = "daemon")]
pub mod debug_command;
pub mod files;
#[cfg(feature = "daemon")]
pub mod gateway;
#[cfg(feature = "daemon")]
pub mod gojson;
#[cfg(feature = "daemon")]
pub mod host;
#[cfg(feature = "daemon")]
pub mod ledger;
pub mod model;
pub mod nic;
pub mod paths;
#[cfg(feature = "daemon")]
pub mod pool;
pub mod proto;
#[cfg(feature = "daemon")]
pub mod readiness;
#[cfg(feature = "daemon")]
pub mod reconcile;
#[cfg(feature = "daemon")]
pub mod service;
#[cfg(feature = "daemon")]
pub mod sources;
#[cfg(feature = "daemon")]
pub mod store;
#[cfg(feature = "daemon")]
pub mod swift;
#[cfg(feature = "daemon")]
pub mod telemetry;
#[cfg(feature = "daemon")]
pub mod tls;
