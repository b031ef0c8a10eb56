//! A certificate that is fetched from somewhere, again and again.
//!
//! The reference gives up after ten attempts in ten seconds and ends the process, however long its certificate is still good for
//! (spec/security.md §8 row 5). Here an outage leaves the earlier certificate served, is told once, and is tried to its end.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{CertificateState, Identity, LOOK_EVERY, Server, Terms, TlsError, read_authorities, tell};

/// Fetches the certificate; an error is for people, without secrets.
pub type Fetch = Box<dyn Fn() -> BoxFuture<'static, Result<Identity, String>> + Send + Sync>;

/// The time to the next fetch, given how many have failed in a row. It is to differ from node to node: a fleet that began at one time,
/// or lost its source at one time, must not ask at one time.
pub type Pace = Box<dyn Fn(u32) -> Duration + Send + Sync>;

/// Keeps a server's certificate what a source has.
pub struct Refreshing {
    server: Arc<Server>,
    identity: Identity,
    authorities: Option<Vec<u8>>,
    fetch: Fetch,
    pace: Pace,
    /// What could not be used, so that it is told once.
    failed: Option<String>,
    failures: u32,
}

impl fmt::Debug for Refreshing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refreshing")
            .field("server", &self.server)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Refreshing {
    /// A server of what was fetched first. [`Refreshing::run`] fetches again as `pace` says.
    pub fn serve(
        terms: Terms,
        identity: Identity,
        fetch: Fetch,
        pace: Pace,
    ) -> Result<(Arc<Server>, Self), TlsError> {
        let authorities = read_authorities(&terms)?;
        let server = Arc::new(Server::new(terms, &identity)?);
        tell(&server, "serving TLS");
        let refreshing =
            Self { server: server.clone(), identity, authorities, fetch, pace, failed: None, failures: 0 };
        Ok((server, refreshing))
    }

    /// Fetches again and again until told to stop. `on_change` is called first and after each change, also of what is wrong.
    pub async fn run(mut self, on_change: impl Fn(&CertificateState) + Send, stop: CancellationToken) {
        on_change(&self.server.state());
        let follows_a_file =
            self.server.terms.clients.as_ref().is_some_and(|clients| clients.authorities.is_some());
        let mut next = Instant::now() + (self.pace)(self.failures);
        loop {
            // Clients' authorities are in a file, which is looked at as often as any.
            let wake = if follows_a_file { next.min(Instant::now() + LOOK_EVERY) } else { next };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(wake) => {}
            }
            let due = Instant::now() >= next;
            let fetched = if due {
                tokio::select! {
                    () = stop.cancelled() => return,
                    fetched = (self.fetch)() => Some(fetched),
                }
            } else {
                None
            };
            // Reading a file may block, on a network file system for long.
            let terms = self.server.terms.clone();
            let Ok(authorities) = tokio::task::spawn_blocking(move || read_authorities(&terms)).await else {
                return;
            };
            if self.take(fetched, authorities) {
                on_change(&self.server.state());
            }
            if due {
                next = Instant::now() + (self.pace)(self.failures);
            }
        }
    }

    /// Serves what was fetched, if it is new; whether something changed.
    fn take(
        &mut self,
        fetched: Option<Result<Identity, String>>,
        authorities: Result<Option<Vec<u8>>, TlsError>,
    ) -> bool {
        let fetched = match fetched {
            Some(Ok(identity)) => {
                self.failures = 0;
                Some(identity)
            }
            Some(Err(why)) => {
                self.failures = self.failures.saturating_add(1);
                return self.refuse(why);
            }
            // Only the file was looked at: what the source's state is stays as it was.
            None if self.failures > 0 => return false,
            None => None,
        };
        let authorities = match authorities {
            Ok(authorities) => authorities,
            Err(error) => return self.refuse(error.to_string()),
        };
        let fresh = fetched.filter(|fetched| *fetched != self.identity);
        if fresh.is_none() && authorities == self.authorities {
            let was_failing = self.failed.take().is_some();
            if was_failing {
                self.server
                    .state
                    .rcu(|state| CertificateState { refused: None, ..CertificateState::clone(state) });
                tracing::info!("the TLS certificate can be fetched again; it is the one that is served");
            }
            return was_failing;
        }
        let identity = fresh.as_ref().unwrap_or(&self.identity);
        if let Err(error) = self.server.install(identity, authorities.as_deref()) {
            return self.refuse(error.to_string());
        }
        self.authorities = authorities;
        self.failed = None;
        if let Some(fresh) = fresh {
            self.identity = fresh;
        }
        tell(&self.server, "the TLS certificate changed");
        true
    }

    fn refuse(&mut self, why: String) -> bool {
        if self.failed.as_ref() == Some(&why) {
            return false;
        }
        // An outage has many faces; its first is told.
        if self.failed.is_none() {
            tracing::error!(
                error = why,
                "the TLS certificate cannot be refreshed; the earlier one goes on being served, and it is tried again"
            );
        } else {
            tracing::debug!(error = why, "the TLS certificate can still not be refreshed");
        }
        self.server.refuse(why.clone());
        self.failed = Some(why);
        true
    }
}

#[cfg(test)]
mod tests;
