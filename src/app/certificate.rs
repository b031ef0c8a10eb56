//! The certificate of the REST listener: from a file, or from Key Vault (spec/security.md §2).

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::AppError;
use crate::{
    config::{Config, TlsSource},
    host::{
        http::{Limits, Pause, Roots, varied},
        imds::Imds,
        keyvault::{KeyVault, KeyVaultConfig, KeyVaultError},
    },
    tls::{CertificateState, Files, Following, Identity, Refreshing, Server, Terms, TlsError},
};

/// Fetches at the start, each of which takes 10 s at most and tries again by itself.
const FIRST_FETCHES: u32 = 4;
/// Between them.
const FIRST_PAUSES: Pause = Pause::Doubling { first: Duration::from_secs(1), most: Duration::from_secs(4) };
/// The first pause after a fetch that failed later on.
const LATER_PAUSE: Duration = Duration::from_secs(30);

/// What keeps a listener's certificate up to date.
#[derive(Debug)]
pub(super) enum Keeping {
    /// Files are looked at.
    Files(Following),
    /// It is fetched.
    Fetched(Box<Refreshing>),
}

impl Keeping {
    /// Until `stop`; `on_change` is called first and after each change.
    pub(super) async fn run(self, on_change: impl Fn(&CertificateState) + Send, stop: CancellationToken) {
        match self {
            Self::Files(following) => following.run(on_change, stop).await,
            Self::Fetched(refreshing) => refreshing.run(on_change, stop).await,
        }
    }
}

/// The client of the vault, where the certificate is in one. Nothing is asked yet.
pub(super) fn vault(config: &Config, imds: Option<&Imds>) -> Result<Option<KeyVault>, AppError> {
    let tls = config.rest.as_ref().and_then(|rest| rest.tls.as_ref());
    match tls.map(|tls| &tls.source) {
        Some(TlsSource::KeyVault { vault, .. }) => client(config, vault, imds).map(Some),
        _ => Ok(None),
    }
}

fn client(config: &Config, vault: &KeyVaultConfig, imds: Option<&Imds>) -> Result<KeyVault, AppError> {
    let limits = Limits::default();
    let imds = match imds {
        Some(imds) => imds.clone(),
        None => Imds::new(&config.imds_url, limits)?,
    };
    Ok(KeyVault::new(vault.clone(), imds, limits, Roots::System)?)
}

/// A server of the certificate, and what keeps it. A certificate that cannot be had is an error: a client that was promised TLS
/// must not find nothing there.
pub(super) async fn serve(
    config: &Config,
    source: &TlsSource,
    terms: Terms,
    vault: Option<KeyVault>,
) -> Result<(Arc<Server>, Keeping), AppError> {
    let failed = |source: TlsError| AppError::Tls { what: "UseHTTPS", source };
    match source {
        TlsSource::File(path) => {
            let files = Files { identity: path.clone(), key: None };
            let (server, following) = files.serve(terms).map_err(failed)?;
            Ok((server, Keeping::Files(following)))
        }
        TlsSource::KeyVault { vault: settings, refresh } => {
            let vault = match vault {
                Some(vault) => vault,
                None => client(config, settings, None)?,
            };
            let identity = first(&vault).await.map_err(AppError::KeyVault)?;
            let fetch = Box::new(move || {
                let vault = vault.clone();
                let fetched = async move { vault.certificate().await.map_err(|error| error.to_string()) };
                Box::pin(fetched) as futures_util::future::BoxFuture<'static, _>
            });
            let every = *refresh;
            let after = Pause::Doubling { first: LATER_PAUSE.min(every), most: every };
            let pace = Box::new(move |failed| varied(if failed == 0 { every } else { after.after(failed) }));
            let (server, refreshing) = Refreshing::serve(terms, identity, fetch, pace).map_err(failed)?;
            Ok((server, Keeping::Fetched(Box::new(refreshing))))
        }
    }
}

/// The first fetch. What another attempt cannot cure is not tried again: an operator is waiting for the reason.
async fn first(vault: &KeyVault) -> Result<Identity, KeyVaultError> {
    let mut failed = 0;
    loop {
        match vault.certificate().await {
            Ok(identity) => return Ok(identity),
            Err(error) => {
                failed += 1;
                if failed >= FIRST_FETCHES || !error.may_pass() {
                    return Err(error);
                }
                tracing::warn!(%error, failed, "the certificate cannot be fetched yet; it is tried again");
                tokio::time::sleep(varied(FIRST_PAUSES.after(failed))).await;
            }
        }
    }
}
