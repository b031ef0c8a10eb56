//! A secret of Key Vault as something that a TLS server can serve.

use std::fmt;

use base64::Engine as _;
use p12_keystore::Pkcs12Archive;
use rustls::{
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer,
        pem::{PemObject as _, SectionKind},
    },
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A certificate chain and its key, checked to belong together. No PEM, no password, nothing left to decode.
pub struct ServerCertificate {
    /// The leaf, then each certificate's issuer as far as the secret has it, then what other CAs the secret has in their order.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: PrivateKeyDer<'static>,
    /// When the leaf expires, seconds since the Unix epoch.
    pub not_after: i64,
}

impl Clone for ServerCertificate {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key(), not_after: self.not_after }
    }
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificate")
            .field("certificates", &self.chain.len())
            .field("not_after", &self.not_after)
            .field("key", &"(redacted)")
            .finish()
    }
}

/// A secret that is no certificate to serve. Says nothing of the secret's own text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// A certificate that is none.
    #[error("its certificate {0} is not X.509")]
    X509(usize),
    /// Only CAs, or nothing.
    #[error("it has no certificate that is not a CA's")]
    NoLeaf,
    /// No key.
    #[error("it has no private key; the certificate's key must be exportable")]
    NoKey,
    /// A key that TLS cannot use.
    #[error("its private key cannot be used: {0}")]
    Key(String),
    /// The key of something else.
    #[error("its private key is not the key of any of its certificates")]
    KeyMismatch,
}

impl ServerCertificate {
    /// From a secret's content type and value: base64 of PKCS#12 with an empty password, or PEM with a key in PKCS#1, PKCS#8 or SEC1.
    pub fn decode(content_type: &str, value: &str) -> Result<Self, InvalidCertificate> {
        let (certificates, keys) = match content_type {
            "application/x-pkcs12" => pkcs12(value)?,
            "application/x-pem-file" => pem(value)?,
            other => {
                let other = other.chars().take(64).flat_map(char::escape_default).collect();
                return Err(InvalidCertificate::ContentType(other));
            }
        };
        assemble(&certificates, keys)
    }
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

/// A certificate as far as its place in a chain is concerned.
struct Parsed<'a> {
    der: &'a CertificateDer<'static>,
    subject: Vec<u8>,
    issuer: Vec<u8>,
    is_ca: bool,
    not_after: i64,
}

fn assemble(
    certificates: &[CertificateDer<'static>],
    keys: Vec<PrivateKeyDer<'static>>,
) -> Result<ServerCertificate, InvalidCertificate> {
    let mut parsed = Vec::new();
    for (at, der) in certificates.iter().enumerate() {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|_| InvalidCertificate::X509(at + 1))?;
        parsed.push(Parsed {
            der,
            subject: certificate.subject().as_raw().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
            is_ca: certificate.is_ca(),
            not_after: certificate.validity().not_after.timestamp(),
        });
    }
    if parsed.iter().all(|certificate| certificate.is_ca) {
        return Err(InvalidCertificate::NoLeaf);
    }
    if keys.is_empty() {
        return Err(InvalidCertificate::NoKey);
    }
    // The reference takes the last certificate that is no CA's. Where there are several, the key decides.
    let mut unusable = None;
    let mut found = None;
    'keys: for key in keys {
        for (at, leaf) in parsed.iter().enumerate().rev().filter(|(_, certificate)| !certificate.is_ca) {
            match CertifiedKey::from_der(vec![leaf.der.clone()], key.clone_key(), &ring::default_provider()) {
                Ok(_) => {
                    found = Some((at, key));
                    break 'keys;
                }
                Err(rustls::Error::InconsistentKeys(_)) => {}
                Err(error) => unusable = Some(InvalidCertificate::Key(error.to_string())),
            }
        }
    }
    let Some((at, key)) = found else { return Err(unusable.unwrap_or(InvalidCertificate::KeyMismatch)) };
    let leaf = parsed.remove(at);
    parsed.retain(|certificate| certificate.is_ca);
    Ok(ServerCertificate { chain: ordered(&leaf, parsed), key, not_after: leaf.not_after })
}

/// The leaf and its issuers one after the other, which TLS 1.2 wants; then the rest, for what follows the chain does no harm.
fn ordered(leaf: &Parsed<'_>, mut cas: Vec<Parsed<'_>>) -> Vec<CertificateDer<'static>> {
    let mut chain = vec![leaf.der.clone()];
    let mut issuer = leaf.issuer.clone();
    while let Some(at) = cas.iter().position(|ca| ca.subject == issuer) {
        let ca = cas.remove(at);
        chain.push(ca.der.clone());
        issuer = ca.issuer;
    }
    chain.extend(cas.into_iter().map(|ca| ca.der.clone()));
    chain
}

#[cfg(test)]
mod tests;
