use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::pem::PemObject as _;

use super::*;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn params(name: &str, is_ca: bool) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
}

fn root() -> Authority {
    CertifiedIssuer::self_signed(params("root", true), KeyPair::generate().unwrap()).unwrap()
}

fn intermediate(name: &str, root: &Authority) -> Authority {
    CertifiedIssuer::signed_by(params(name, true), KeyPair::generate().unwrap(), root).unwrap()
}

struct Pem {
    root: String,
    intermediate: String,
    leaf: String,
    key: String,
}

fn pem() -> Pem {
    let root = root();
    let intermediate = intermediate("intermediate", &root);
    let key = KeyPair::generate().unwrap();
    let leaf = params("node-1", false).signed_by(&key, &intermediate).unwrap();
    Pem { root: root.pem(), intermediate: intermediate.pem(), leaf: leaf.pem(), key: key.serialize_pem() }
}

fn ders(pems: &[&str]) -> Vec<CertificateDer<'static>> {
    pems.iter().map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).collect()
}

#[test]
fn the_chain_is_served_from_the_keys_certificate_up_whatever_the_order_of_the_file() {
    let Pem { root, intermediate, leaf, key } = pem();
    let stranger = self::root().pem();
    for file in [
        [&leaf, &intermediate, &root, &key, ""].concat(),
        [&key, &root, &intermediate, &leaf, ""].concat(),
        [&intermediate, &key, "words between blocks\n", &stranger, &leaf].concat(),
    ] {
        let identity = Identity::from_pem(file.as_bytes(), file.as_bytes()).unwrap();
        assert_eq!(identity.chain, ders(&[&leaf, &intermediate]), "{file}");
        assert_eq!(identity.subject, "CN=node-1");
        assert!(!identity.authorities.contains(&ders(&[&leaf])[0]));
    }
}

#[test]
fn what_is_no_identity_says_what_is_missing() {
    let Pem { leaf, intermediate, key, .. } = pem();
    let stranger = KeyPair::generate().unwrap().serialize_pem();
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let torn = &leaf[..leaf.len() / 2];
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (file, expected) in [
        (String::new(), "no PEM block PRIVATE KEY"),
        (leaf.clone(), "no PEM block PRIVATE KEY"),
        (key.clone(), "no PEM block CERTIFICATE"),
        ([&leaf, &intermediate, stranger.as_str()].concat(), "CN=node-1; CN=intermediate"),
        ([&leaf, encrypted].concat(), "encrypted"),
        ([key.as_str(), torn].concat(), "no PEM"),
        ([key.as_str(), no_certificate].concat(), "certificate 1 cannot be read"),
    ] {
        let error = Identity::from_pem(file.as_bytes(), file.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!error.contains(&key[40..80]), "a key must not be shown: {error}");
    }
}

/// The reference takes PKCS#8 only (spec/security.md §2).
#[test]
fn a_key_may_have_any_of_its_forms() {
    let key = "-----BEGIN EC PRIVATE KEY-----\n\
        MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PuoAoGCCqGSM49\n\
        AwEHoUQDQgAEPR3tU2Fta9ktY+6P9G0cWO+0kETA6SFs38GecTyudlHz6xvCdz8q\n\
        EKTcWGekdmdDPsHloRNtsiCa697B2O9IFA==\n\
        -----END EC PRIVATE KEY-----\n";
    // What is told is that no certificate belongs to it: it was read.
    let leaf = pem().leaf;
    let error = Identity::from_pem(leaf.as_bytes(), key.as_bytes()).unwrap_err();
    assert!(matches!(error, IdentityError::Mismatch(_)), "{error}");
}

#[test]
fn a_change_that_cannot_be_used_is_told_once_and_the_earlier_certificate_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let first = pem();
    std::fs::write(&certificate, &first.leaf).unwrap();
    std::fs::write(&key, &first.key).unwrap();
    let files = Files { identity: certificate.clone(), key: Some(key.clone()) };
    let terms = Terms { oldest: Oldest::Tls12, protocols: &["h2"], clients: None };
    let (server, mut following) = files.serve(terms).unwrap();
    let before = server.config.load_full();
    assert!(!following.look(), "nothing changed");

    // A certificate is replaced before its key is: for a moment they do not belong together.
    let second = pem();
    std::fs::write(&certificate, &second.leaf).unwrap();
    assert!(following.look());
    let refused = server.state().refused.clone().unwrap();
    assert!(refused.contains("none of its certificates belongs to the key"), "{refused}");
    assert!(Arc::ptr_eq(&before, &server.config.load_full()));
    assert!(!following.look(), "told once");

    std::fs::write(&certificate, &first.leaf).unwrap();
    assert!(following.look() && server.state().refused.is_none(), "as before");

    std::fs::remove_file(&key).unwrap();
    assert!(following.look());
    let refused = server.state().refused.clone().unwrap();
    assert!(refused.contains("key.pem"), "{refused}");

    std::fs::write(&certificate, &second.leaf).unwrap();
    std::fs::write(&key, &second.key).unwrap();
    assert!(following.look() && server.state().refused.is_none());
    assert!(!Arc::ptr_eq(&before, &server.config.load_full()));
}

#[test]
fn a_file_that_cannot_be_a_certificate_is_not_read_to_its_end() {
    let terms = Terms { oldest: Oldest::Tls13, protocols: &[], clients: None };
    let files = Files { identity: "/dev/zero".into(), key: None };
    let error = files.serve(terms.clone()).unwrap_err().to_string();
    assert!(error.contains("larger than"), "{error}");
    let files = Files { identity: "/nowhere/cert.pem".into(), key: None };
    let error = files.serve(terms).unwrap_err().to_string();
    assert!(error.contains("/nowhere/cert.pem: No such file"), "{error}");
}
