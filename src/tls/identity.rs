//! What a server proves itself with: a certificate, what links it to a root, and its key.

use rustls::{InconsistentKeys, crypto::ring::sign::any_supported_type, sign::CertifiedKey};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject as _},
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Why certificates and a key are no identity.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum IdentityError {
    /// Not PEM.
    #[error("no PEM: {0}")]
    Pem(String),
    /// No certificate.
    #[error("it has no PEM block CERTIFICATE")]
    NoCertificate,
    /// No key.
    #[error("it has no PEM block PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY")]
    NoKey,
    /// A key that only its owner's passphrase opens.
    #[error("the key is encrypted, and there is nobody to ask for its passphrase; store it without one")]
    Encrypted,
    /// A key that TLS has no use for.
    #[error(
        "the key cannot be used: {0}; RSA of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519 is expected"
    )]
    Key(rustls::Error),
    /// A certificate that cannot be read.
    #[error("certificate {number} cannot be read: {why}")]
    Certificate {
        /// From 1, as they stand in the file.
        number: usize,
        /// The parser's words.
        why: String,
    },
    /// Certificates of other keys.
    #[error("none of its certificates belongs to the key; there are: {0}")]
    Mismatch(String),
}

impl IdentityError {
    /// Whether the key is what is wrong.
    pub fn is_about_the_key(&self) -> bool {
        matches!(self, Self::NoKey | Self::Encrypted | Self::Key(_))
    }
}

/// A certificate with its chain and key.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// What is served: the certificate, then the authorities that link it to its root, without the root itself.
    pub chain: Vec<CertificateDer<'static>>,
    /// Every authority's certificate that came with it.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The certificate's key, in any of its forms.
    pub key: PrivateKeyDer<'static>,
    /// The certificate's subject.
    pub subject: String,
    /// End of its validity, seconds since 1970.
    pub not_after: i64,
}

impl Identity {
    /// From PEM text: certificates in any order, the key in PKCS#8, PKCS#1 or SEC1 form. Other blocks are passed over.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let certificates = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| IdentityError::Pem(error.to_string()))?;
        let key = match PrivateKeyDer::from_pem_slice(key) {
            Ok(key) => key,
            Err(pem::Error::NoItemsFound) if contains(key, b"BEGIN ENCRYPTED PRIVATE KEY") => {
                return Err(IdentityError::Encrypted);
            }
            Err(pem::Error::NoItemsFound) => return Err(IdentityError::NoKey),
            Err(error) => return Err(IdentityError::Pem(error.to_string())),
        };
        Self::new(certificates, vec![key])
    }

    /// The certificate is the one that belongs to a key, and of several the one that ends last, for a renewed one may keep its key.
    /// The reference takes the first that is no authority from a file, and the last from Key Vault (spec/security.md §2); where they
    /// are right, so is this.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        keys: Vec<PrivateKeyDer<'static>>,
    ) -> Result<Self, IdentityError> {
        if certificates.is_empty() {
            return Err(IdentityError::NoCertificate);
        }
        if keys.is_empty() {
            return Err(IdentityError::NoKey);
        }
        let parsed = certificates
            .iter()
            .enumerate()
            .map(|(at, der)| match X509Certificate::from_der(der) {
                Ok((_, certificate)) => Ok(certificate),
                Err(error) => Err(IdentityError::Certificate { number: at + 1, why: error.to_string() }),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut unusable = None;
        let mut found = None;
        for key in keys {
            let signing = match any_supported_type(&key) {
                Ok(signing) => signing,
                Err(error) => {
                    unusable = Some(IdentityError::Key(error));
                    continue;
                }
            };
            let belongs = |at: &usize| {
                let pair = CertifiedKey::new(vec![certificates[*at].clone()], signing.clone());
                matches!(
                    pair.keys_match(),
                    Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown))
                )
            };
            let ends = |at: &usize| parsed[*at].validity().not_after.timestamp();
            if let Some(leaf) = (0..certificates.len()).filter(belongs).max_by_key(ends) {
                found = Some((leaf, key));
                break;
            }
        }
        let Some((leaf, key)) = found else {
            let subjects: Vec<_> = parsed.iter().map(|one| one.subject().to_string()).collect();
            return Err(unusable.unwrap_or_else(|| IdentityError::Mismatch(subjects.join("; "))));
        };
        let mut order = vec![leaf];
        loop {
            let last = &parsed[order[order.len() - 1]];
            let signs = |at: &usize| {
                let other = &parsed[*at];
                let is_root = other.subject().as_raw() == other.issuer().as_raw();
                !order.contains(at) && !is_root && other.subject().as_raw() == last.issuer().as_raw()
            };
            match (0..parsed.len()).find(signs) {
                Some(next) => order.push(next),
                None => break,
            }
        }
        let (subject, not_after) =
            (parsed[leaf].subject().to_string(), parsed[leaf].validity().not_after.timestamp());
        let chain = order.iter().map(|at| certificates[*at].clone()).collect();
        let authorities = certificates
            .iter()
            .enumerate()
            // Whoever is no authority must not sign clients' certificates, wherever it was found.
            .filter(|(at, _)| *at != leaf && parsed[*at].is_ca())
            .map(|(_, der)| der.clone())
            .collect();
        Ok(Self { chain, authorities, key, subject, not_after })
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
