//! A secret of Key Vault as something that a TLS server can serve.

use base64::Engine as _;
use p12_keystore::Pkcs12Archive;
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer,
    pem::{PemObject as _, SectionKind},
};

use crate::tls::{Identity, IdentityError};

/// A secret that is no certificate to serve. Says nothing of the secret's own text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidCertificate {
    /// Neither of the two.
    #[error(
        "its content type is `{0}`; application/x-pkcs12 or application/x-pem-file is expected, which Key Vault sets when the secret belongs to a certificate"
    )]
    ContentType(String),
    /// Not base64.
    #[error("its value is not base64 although its content type is application/x-pkcs12")]
    Base64,
    /// Not PKCS#12, or with a password.
    #[error("its value is not PKCS#12 without a password: {0}")]
    Pkcs12(String),
    /// Not PEM.
    #[error("its value is not PEM: {0}")]
    Pem(&'static str),
    /// Nothing to serve.
    #[error("it has no certificate")]
    NoCertificate,
    /// No key.
    #[error("it has no private key; the certificate's key must be exportable")]
    NoKey,
    /// Certificates and keys that cannot be served.
    #[error("{0}")]
    Identity(#[from] IdentityError),
}

/// From a secret's content type and value: base64 of PKCS#12 with an empty password, or PEM with a key in PKCS#1, PKCS#8 or SEC1.
pub(super) fn decode(content_type: &str, value: &str) -> Result<Identity, InvalidCertificate> {
    let (certificates, keys) = match content_type {
        "application/x-pkcs12" => pkcs12(value)?,
        "application/x-pem-file" => pem(value)?,
        other => {
            let other = other.chars().take(64).flat_map(char::escape_default).collect();
            return Err(InvalidCertificate::ContentType(other));
        }
    };
    if certificates.is_empty() {
        return Err(InvalidCertificate::NoCertificate);
    }
    if keys.is_empty() {
        return Err(InvalidCertificate::NoKey);
    }
    Ok(Identity::new(certificates, keys)?)
}

type Parts = (Vec<CertificateDer<'static>>, Vec<PrivateKeyDer<'static>>);

fn pkcs12(value: &str) -> Result<Parts, InvalidCertificate> {
    let text: String = value.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| InvalidCertificate::Base64)?;
    let archive = Pkcs12Archive::from_pkcs12(&bytes, "")
        .map_err(|error| InvalidCertificate::Pkcs12(error.to_string()))?;
    let certificates =
        archive.certs.iter().map(|bag| CertificateDer::from(bag.cert.as_der().to_vec())).collect();
    let keys =
        archive.keys.iter().map(|bag| PrivatePkcs8KeyDer::from(bag.key.as_der().to_vec()).into()).collect();
    Ok((certificates, keys))
}

fn pem(value: &str) -> Result<Parts, InvalidCertificate> {
    let (mut certificates, mut keys) = (Vec::new(), Vec::new());
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(value.as_bytes()) {
        let (kind, der) =
            section.map_err(|_| InvalidCertificate::Pem("a section does not end, or is not base64"))?;
        match kind {
            SectionKind::Certificate => certificates.push(CertificateDer::from(der)),
            SectionKind::PrivateKey => keys.push(PrivateKeyDer::Pkcs8(der.into())),
            SectionKind::RsaPrivateKey => keys.push(PrivateKeyDer::Pkcs1(der.into())),
            SectionKind::EcPrivateKey => keys.push(PrivateKeyDer::Sec1(der.into())),
            _ => {}
        }
    }
    if certificates.is_empty() && keys.is_empty() {
        return Err(InvalidCertificate::Pem("it has neither a certificate nor a key"));
    }
    Ok((certificates, keys))
}

#[cfg(test)]
mod tests;
