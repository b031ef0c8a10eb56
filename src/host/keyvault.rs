//! Key Vault: the certificate that this node serves TLS with, fetched by the node's managed identity (spec/security.md §2).
//!
//! Plain REST: a token from IMDS, then the *secret* that has the certificate's name, which is the only object in Key Vault that holds
//! the private key. What comes back is decoded and checked: a certificate, a key that is the certificate's, and the CAs between; an operator
//! learns at start-up and not at the first handshake that a key is missing (the reference does not check).

mod certificate;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ::http::{HeaderValue, header};
use percent_encoding::utf8_percent_encode;
use serde::{Deserialize, Serialize};

pub use self::certificate::InvalidCertificate;
use super::{
    http::{
        AgentError, AgentState, Answer, BaseUrl, ClientError, HttpClient, Limits, Outgoing, Pause, ReadError,
        ReadFault, Retry, Roots,
    },
    imds::Imds,
    wireserver::{SEGMENT, interfaces::shown},
};
use crate::{gojson, tls::Identity};

/// Which identity reads which certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyVaultConfig {
    /// `KeyVaultSettings.URL`, e.g. `https://vault.vault.azure.net`.
    pub url: BaseUrl,
    /// `KeyVaultSettings.CertificateName`.
    pub certificate_name: String,
    /// `MSISettings.ResourceID`: the user-assigned identity's ARM resource id. Without one IMDS decides: the system-assigned
    /// identity of this VM, or its only user-assigned one.
    pub identity: Option<String>,
}

/// Settings that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyVaultConfigError {
    /// The bearer token would cross the network in the clear.
    #[error("KeyVaultSettings.URL `{0}` is not https; the access token would travel in the clear")]
    NotHttps(BaseUrl),
    /// Not a name.
    #[error(
        "KeyVaultSettings.CertificateName `{0}` is not a certificate's name: 1 to 127 of A-Z a-z 0-9 - are expected"
    )]
    Name(String),
    /// Not an ARM id.
    #[error(
        "MSISettings.ResourceID `{0}` is not the ARM resource id of an identity: /subscriptions/<id>/resourceGroups/<name>/providers/Microsoft.ManagedIdentity/userAssignedIdentities/<name> is expected, or nothing for the system-assigned identity"
    )]
    Identity(String),
}

impl KeyVaultConfig {
    /// Checks what can be judged without asking anybody. HTTP is taken for a loopback address only.
    pub fn checked(self) -> Result<Self, KeyVaultConfigError> {
        const PREFIX: &str = "/subscriptions/";
        let Self { url, certificate_name: name, identity } = &self;
        if !url.is_https() && !url.is_loopback() {
            return Err(KeyVaultConfigError::NotHttps(url.clone()));
        }
        let named =
            (1..=127).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !named {
            return Err(KeyVaultConfigError::Name(shown(name)));
        }
        let is_arm_id = |identity: &String| {
            identity.get(..PREFIX.len()).is_some_and(|text| text.eq_ignore_ascii_case(PREFIX))
        };
        match identity {
            Some(identity) if !is_arm_id(identity) => Err(KeyVaultConfigError::Identity(shown(identity))),
            _ => Ok(self),
        }
    }
}

/// A certificate that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyVaultError {
    /// IMDS gave no token: the identity is not assigned to this VM, or IMDS does not answer.
    #[error("no access token for Key Vault: {0}")]
    Token(#[source] AgentError),
    /// Key Vault gave no secret: 403 says that the identity may not read it, 404 that there is none.
    #[error(transparent)]
    Secret(AgentError),
    /// The secret is no certificate that can be served.
    #[error("the secret `{name}` in Key Vault cannot be served: {why}")]
    Certificate {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: InvalidCertificate,
    },
}

impl KeyVaultError {
    /// The same question may be answered another time.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Token(error) | Self::Secret(error) => error.fault.may_pass(),
            Self::Certificate { .. } => false,
        }
    }
}

/// An access token. Never printed.
#[derive(Clone)]
struct AccessToken {
    bearer: HeaderValue,
    until: Instant,
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(redacted)")
    }
}

/// A token is fetched anew so long before it expires.
const BEFORE_EXPIRY: Duration = Duration::from_mins(5);
/// No token is kept longer, whatever IMDS says.
const KEEP_AT_MOST: Duration = Duration::from_hours(24);

/// A client that fetches one certificate. Cheap to clone; clones share the token.
#[derive(Clone, Debug)]
pub struct KeyVault {
    http: HttpClient,
    imds: Imds,
    config: Arc<KeyVaultConfig>,
    token: Arc<Mutex<Option<AccessToken>>>,
    pause: Pause,
}

impl KeyVault {
    /// A client of the vault that [`KeyVaultConfig::checked`] has let through; tokens come from `imds`.
    pub fn new(
        config: KeyVaultConfig,
        imds: Imds,
        limits: Limits,
        roots: Roots,
    ) -> Result<Self, ClientError> {
        let http = HttpClient::new("Key Vault", config.url.clone(), limits, roots)?;
        let pause = Pause::Doubling { first: Duration::from_millis(500), most: Duration::from_secs(2) };
        Ok(Self { http, imds, config: Arc::new(config), token: Arc::default(), pause })
    }

    /// How Key Vault last answered. IMDS has a state of its own.
    pub fn state(&self) -> &AgentState {
        self.http.state()
    }

    /// The certificate's latest version. Three attempts at what may pass; a token that the vault refuses is fetched anew once,
    /// for it may have been revoked.
    pub async fn certificate(&self) -> Result<Identity, KeyVaultError> {
        let (token, cached) = self.token().await?;
        let secret = match self.secret(&token).await {
            Err(error) if cached && error.fault.status().is_some_and(|status| status.as_u16() == 401) => {
                *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.secret(&self.token().await?.0).await
            }
            outcome => outcome,
        };
        let secret = secret.map_err(KeyVaultError::Secret)?;
        certificate::decode(&secret.content_type, &secret.value)
            .map_err(|why| KeyVaultError::Certificate { name: self.config.certificate_name.clone(), why })
    }

    /// A token, and whether it was known before.
    async fn token(&self) -> Result<(AccessToken, bool), KeyVaultError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Body {
            access_token: String,
            /// Seconds, as text.
            expires_in: String,
        }
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|token| token.until > Instant::now()) {
            return Ok((known, true));
        }
        let encoded = |text: &str| utf8_percent_encode(text, SEGMENT).to_string();
        let mut target = format!(
            "/metadata/identity/oauth2/token?api-version=2018-02-01&resource={}",
            encoded(&resource(&self.config.url))
        );
        if let Some(identity) = &self.config.identity {
            target = format!("{target}&msi_res_id={}", encoded(identity));
        }
        let token = self
            .imds
            .get("managed identity token", &target, |body| {
                // The decoder's words could quote the token.
                let fault = |why| ReadFault::decode("access token", why);
                let body: Body =
                    gojson::decode(body).map_err(|_| fault("access_token or expires_in is not a string"))?;
                let mut bearer = HeaderValue::try_from(format!("Bearer {}", body.access_token))
                    .ok()
                    .filter(|_| !body.access_token.is_empty())
                    .ok_or_else(|| fault("access_token is missing or is no header value"))?;
                bearer.set_sensitive(true);
                let seconds =
                    body.expires_in.parse().map_err(|_| fault("expires_in is not a number of seconds"))?;
                let good = Duration::from_secs(seconds).min(KEEP_AT_MOST).saturating_sub(BEFORE_EXPIRY);
                Ok(AccessToken { bearer, until: Instant::now() + good })
            })
            .await
            .map_err(KeyVaultError::Token)?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok((token, false))
    }

    async fn secret(&self, token: &AccessToken) -> Result<Secret, AgentError> {
        let retry = Retry { attempts: 3, pause: self.pause, on: |error: &AgentError| error.fault.may_pass() };
        let target = format!("/secrets/{}?api-version=7.4", self.config.certificate_name);
        let outgoing = Outgoing::get("secret", target).header(header::AUTHORIZATION, token.bearer.clone());
        self.http
            .call(&outgoing, &retry, |answer: Answer| {
                // Nor may a fault quote the secret.
                let secret: Secret = gojson::decode(&answer.ok()?)
                    .map_err(|_| ReadFault::decode("secret", "value or contentType is not a string"))?;
                if secret.value.is_empty() {
                    return Err(ReadFault::decode("secret", "value is missing").into());
                }
                Ok::<_, ReadError<AgentError>>(secret)
            })
            .await
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Secret {
    value: String,
    #[serde(rename = "contentType")]
    content_type: String,
}

/// The audience of the token: the domain that all vaults of a cloud are in, so that other clouds work without a setting.
fn resource(url: &BaseUrl) -> String {
    const PUBLIC: &str = "https://vault.azure.net";
    match url.host().split_once('.') {
        Some((_, domain)) if domain.starts_with("vault.") => format!("https://{domain}"),
        // Private links, and names of one's own.
        _ => PUBLIC.to_owned(),
    }
}

#[cfg(test)]
mod tests;
