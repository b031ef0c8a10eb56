//! Typed client of the cns gRPC API: one connection over the daemon's unix socket, a deadline for every call, retries of
//! what a retry can cure, and errors that say what the caller can do.
//!
//! ```no_run
//! # async fn example() -> Result<(), cns_client::Error> {
//! use cns_client::{Client, Options};
//!
//! let client = Client::new("/run/azure-cns/cns.sock", Options::default())?;
//! let health = client.health("").await?;
//! # let _ = health; Ok(())
//! # }
//! ```

mod client;
mod connect;
mod error;
mod retry;
mod rpcs;

pub use client::{Changes, Client, Health, Options};
pub use connect::USER_AGENT;
pub use error::{Error, Refusal};
pub use retry::{Effect, Retry};
