//! Who may connect where clients need a certificate (spec/security.md §2, mTLS).

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Who signs clients' certificates.
#[derive(Debug)]
pub(super) enum Trust {
    /// Authorities.
    Authorities(Arc<dyn ClientCertVerifier>),
    /// Nobody: whoever holds the served certificate's own key may connect. `None` matches nothing.
    Exactly(Option<CertificateDer<'static>>),
}

/// Why a client's certificate is not good enough, beside what the TLS library says.
#[derive(Debug, thiserror::Error)]
enum Unwelcome {
    #[error(
        "it is not the certificate that is served here, and no authority for clients is configured (Node.REST.ClientCAPath)"
    )]
    Another,
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error("it bears the names {presented:?}, and MtlsClientCertSubjectName is {expected:?}")]
    Name { presented: Vec<String>, expected: String },
}

/// Verifies clients' certificates: first who signed them, then whose they are.
#[derive(Debug)]
pub(super) struct Clients {
    trust: Trust,
    subject: Option<String>,
    provider: Arc<CryptoProvider>,
}

impl Clients {
    pub(super) fn new(trust: Trust, subject: Option<String>, provider: Arc<CryptoProvider>) -> Self {
        Self { trust, subject, provider }
    }
}

fn refused(why: Unwelcome) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    match X509Certificate::from_der(der) {
        Ok((_, certificate)) => Ok(certificate),
        Err(error) => Err(refused(Unwelcome::Unreadable(error.to_string()))),
    }
}

/// Validity and purpose, which no chain check looks at for a certificate that is trusted as it is.
fn is_in_force(certificate: &X509Certificate<'_>, now: UnixTime) -> Result<(), Error> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < certificate.validity().not_before.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
    }
    if now > certificate.validity().not_after.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::Expired));
    }
    // RFC 5280 §4.2.1.12: without the extension any purpose is fine.
    match certificate.extended_key_usage() {
        Ok(Some(usage)) if !usage.value.client_auth && !usage.value.any => {
            Err(Error::InvalidCertificate(CertificateError::InvalidPurpose))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(refused(Unwelcome::Unreadable(error.to_string()))),
    }
}

/// A DNS name of the certificate, else its common name, in any case; wildcards mean themselves only.
fn bears(certificate: &X509Certificate<'_>, expected: &str) -> Result<(), Unwelcome> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let dns = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let presented: Vec<&str> = dns.chain(common).collect();
    if presented.iter().any(|name| name.eq_ignore_ascii_case(expected)) {
        return Ok(());
    }
    let presented = presented.into_iter().map(str::to_owned).collect();
    Err(Unwelcome::Name { presented, expected: expected.to_owned() })
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &self.trust {
            Trust::Authorities(verifier) => verifier.root_hint_subjects(),
            Trust::Exactly(_) => &[],
        }
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match &self.trust {
            Trust::Authorities(verifier) => {
                verifier.verify_client_cert(end_entity, intermediates, now)?;
            }
            Trust::Exactly(served) => {
                if served.as_deref() != Some(end_entity.as_ref()) {
                    return Err(refused(Unwelcome::Another));
                }
                is_in_force(&parse(end_entity)?, now)?;
            }
        }
        if let Some(expected) = &self.subject {
            bears(&parse(end_entity)?, expected).map_err(refused)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
