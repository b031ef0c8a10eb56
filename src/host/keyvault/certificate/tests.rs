use super::*;

macro_rules! data {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/keyvault/", $name))
    };
}

const PKCS12: &str = "application/x-pkcs12";
const PEM: &str = "application/x-pem-file";
const ROOT: &str = data!("root.pem");
const CA: &str = data!("ca.pem");
const RSA: &str = data!("leaf-rsa.pem");
const EC: &str = data!("leaf-ec.pem");

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn pem_of(parts: &[&str]) -> Result<Identity, InvalidCertificate> {
    decode(PEM, &parts.concat())
}

fn refused(parts: &[&str]) -> InvalidCertificate {
    pem_of(parts).unwrap_err()
}

#[test]
fn pkcs12_in_the_encryptions_of_key_vault_and_of_today() {
    for (value, leaf) in
        [(data!("rsa-3des.pfx.b64"), RSA), (data!("rsa-aes.pfx.b64"), RSA), (data!("ec.pfx.b64"), EC)]
    {
        let found = decode(PKCS12, value).unwrap();
        assert_eq!(found.chain, [der(leaf), der(CA)], "leaf first, then its issuers below the root");
        assert!(found.authorities.contains(&der(ROOT)) && found.authorities.contains(&der(CA)));
        assert!(matches!(found.key, PrivateKeyDer::Pkcs8(_)));
        assert!(found.not_after > 4_000_000_000);
        let lines: Vec<&str> =
            value.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
        let folded = lines.join("\r\n");
        assert_eq!(decode(PKCS12, &folded).unwrap().chain, found.chain);
    }
}

#[test]
fn pem_with_a_key_of_every_form() {
    for (leaf, key, matches) in [
        (RSA, data!("rsa.pkcs1.pem"), (|key| matches!(key, PrivateKeyDer::Pkcs1(_))) as fn(&_) -> bool),
        (RSA, data!("rsa.pkcs8.pem"), |key| matches!(key, PrivateKeyDer::Pkcs8(_))),
        (EC, data!("ec.pkcs8.pem"), |key| matches!(key, PrivateKeyDer::Pkcs8(_))),
        (EC, data!("ec.sec1.pem"), |key| matches!(key, PrivateKeyDer::Sec1(_))),
    ] {
        let found = pem_of(&[key, ROOT, leaf, CA]).unwrap();
        assert_eq!(found.chain, [der(leaf), der(CA)]);
        assert!(matches(&found.key));
        assert_eq!(pem_of(&[leaf, key]).unwrap().chain, [der(leaf)], "no CA is no error");
    }
}

/// The reference serves the last certificate that is no CA's, whichever the key belongs to, and does not miss a key until a handshake
/// does (spec/security.md §2).
#[test]
fn the_leaf_is_the_keys_and_a_key_must_be_there() {
    let ec_key = data!("ec.sec1.pem");
    for order in [[RSA, EC], [EC, RSA]] {
        assert_eq!(pem_of(&[order[0], order[1], ec_key, CA]).unwrap().chain, [der(EC), der(CA)]);
    }
    assert_eq!(pem_of(&[EC, data!("rsa.pkcs1.pem"), ec_key]).unwrap().chain, [der(EC)]);
    assert_eq!(refused(&[RSA, CA]), InvalidCertificate::NoKey);
    for others in [&[RSA, ec_key][..], &[CA, ROOT, ec_key]] {
        assert!(matches!(refused(others), InvalidCertificate::Identity(IdentityError::Mismatch(_))));
    }
    assert_eq!(refused(&[ec_key]), InvalidCertificate::NoCertificate);
    assert_eq!(decode(PKCS12, data!("no-key.pfx.b64")).unwrap_err(), InvalidCertificate::NoKey);
}

#[test]
fn what_is_no_certificate_is_told_without_its_text() {
    let (key, cut) = (data!("ec.pkcs8.pem"), RSA.replace("-----END", ""));
    let no_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert_eq!(refused(&["hello secret"]), InvalidCertificate::Pem("it has neither a certificate nor a key"));
    assert!(matches!(refused(&[&cut]), InvalidCertificate::Pem(_)));
    assert!(matches!(
        refused(&[RSA, no_x509, key]),
        InvalidCertificate::Identity(IdentityError::Certificate { number: 2, .. })
    ));
    assert!(matches!(refused(&[RSA, no_key]), InvalidCertificate::Identity(IdentityError::Key(_))));
    let pkcs12 = |value: &str| decode(PKCS12, value).unwrap_err();
    assert_eq!(pkcs12("hello secret"), InvalidCertificate::Base64);
    assert!(matches!(pkcs12("AAAA"), InvalidCertificate::Pkcs12(_)));
    assert!(matches!(pkcs12(data!("password.pfx.b64")), InvalidCertificate::Pkcs12(_)));
    let whole = data!("ec.pfx.b64");
    for end in (0..whole.len()).step_by(4) {
        assert!(matches!(pkcs12(&whole[..end]), InvalidCertificate::Pkcs12(_)), "cut at {end}");
    }
    for kind in ["", "text/plain", "application/x-pkcs12; charset=x"] {
        let error = decode(kind, "secret").unwrap_err().to_string();
        assert!(error.contains(&format!("`{kind}`")) && !error.contains("secret`"), "{error}");
    }
    let shown = format!("{:?}", pem_of(&[EC, key]).unwrap());
    let PrivateKeyDer::Pkcs8(der) = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap() else {
        panic!("PKCS#8");
    };
    let secret = format!("{:?}", der.secret_pkcs8_der());
    assert!(!shown.contains(secret.trim_matches(['[', ']'])), "{shown}");
}
