//! Where the daemon listens, and with which certificates.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::{
    CommandLine, ConfigError, DEFAULT_PORT, Environment, FileRead, Program, RestAddress, RestListeners,
    RestTls, RestUrlError, TlsFiles, TlsSource, TlsVersion, told,
};
use crate::host::{
    http::{BaseUrl, InvalidBaseUrl},
    keyvault::KeyVaultConfig,
};

/// The REST listeners. A flag that names the address counts most, then one that names the port, then the file.
pub(super) fn rest_listeners(
    command: &CommandLine,
    environment: &Environment,
    file: &FileRead,
) -> Result<Option<RestListeners>, ConfigError> {
    let node = file.settings.node.rest.as_ref();
    let port = command.legacy.text("cns-port").map(|text| match text.trim().parse::<u16>() {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(ConfigError::value("--cns-port", text, "a port from 1 to 65535 is expected")),
    });
    let port = port.transpose()?;
    let in_file = node.map(|rest| rest.url.as_str()).filter(|url| !url.is_empty() && port.is_none());
    let url = told(command.legacy.text("cns-url"), "--cns-url", file, in_file, "Node.REST.URL");
    let mut listeners = if let Some((url, key)) = url {
        let main = url.trim().parse().map_err(|error: RestUrlError| ConfigError::value(key, url, error))?;
        RestListeners::at(main)
    } else if port.is_some() || node.is_some() || command.program == Program::AzureCns {
        let port = port.or(node.and_then(|rest| rest.port)).unwrap_or(DEFAULT_PORT);
        RestListeners::of_machine(environment.primary_address.ok_or(ConfigError::NoPrimaryAddress)?, port)
    } else {
        return Ok(None);
    };
    listeners.tls = rest_tls(&listeners.main, file)?;
    Ok(Some(listeners))
}

/// The listener of `GRPCSettings`: the reference's is in cleartext and open to all; this one is not.
pub(super) fn grpc_settings(file: &FileRead, has_tls: bool) -> Result<Option<SocketAddr>, ConfigError> {
    let settings = &file.settings.grpc;
    if !settings.enable {
        return Ok(None);
    }
    let key = file.key("GRPCSettings.IPAddress");
    let wrong = |allowed| ConfigError::value(&key, &settings.ip_address, allowed);
    let address: std::net::IpAddr = if settings.ip_address.eq_ignore_ascii_case("localhost") {
        std::net::Ipv4Addr::LOCALHOST.into()
    } else {
        settings.ip_address.parse().map_err(|_| wrong("an address or `localhost` is expected"))?
    };
    if !address.is_loopback() && !has_tls {
        return Err(wrong(
            "an address other than loopback needs --tls-cert, --tls-key and --tls-client-ca; without them anyone on the \
             network could give and take addresses",
        ));
    }
    Ok(Some(SocketAddr::new(address, settings.port)))
}

pub(super) fn agent_url(key: &str, text: &str) -> Result<BaseUrl, ConfigError> {
    text.parse().map_err(|error: InvalidBaseUrl| ConfigError::value(key, text, error))
}

/// The TLS listener. What is asked for and cannot be is an error: a client that was promised TLS must not get cleartext.
fn rest_tls(main: &RestAddress, file: &FileRead) -> Result<Option<RestTls>, ConfigError> {
    let settings = &file.settings;
    if !settings.use_https {
        return Ok(None);
    }
    let wrong = |allowed| ConfigError::value(file.key("UseHTTPS"), "true", allowed);
    let port = settings.tls_port.ok_or_else(|| wrong("TLSPort is needed too, such as \"10091\""))?;
    let RestAddress::Tcp(main) = main else {
        return Err(wrong(
            "the main listener is a unix socket, and TLS needs a TCP address; give -c tcp://ADDRESS:PORT",
        ));
    };
    if main.port() == port {
        let key = file.key("TLSPort");
        return Err(ConfigError::value(key, port, "a port other than the main listener's is expected"));
    }
    let source = tls_source(file)?.ok_or_else(|| {
        wrong("TLSCertificatePath or KeyVaultSettings.URL is needed too, where the certificate is")
    })?;
    let subject = &settings.mtls_client_cert_subject_name;
    Ok(Some(RestTls {
        address: SocketAddr::new(main.ip(), port),
        source,
        min_version: if settings.min_tls_version == "TLS 1.3" {
            TlsVersion::Tls13
        } else {
            TlsVersion::Tls12
        },
        client_auth: settings.use_mtls,
        client_ca: settings.node.rest.as_ref().and_then(|rest| rest.client_ca.clone()),
        client_subject: Some(subject.clone()).filter(|subject| !subject.is_empty()),
    }))
}

/// Where the certificate is: a file counts before Key Vault, as with the reference (spec/security.md §2).
fn tls_source(file: &FileRead) -> Result<Option<TlsSource>, ConfigError> {
    let settings = &file.settings;
    if let Some(path) = &settings.tls_certificate_path {
        return Ok(Some(TlsSource::File(path.clone())));
    }
    if settings.key_vault.url.is_empty() {
        return Ok(None);
    }
    let vault = KeyVaultConfig {
        url: agent_url(&file.key("KeyVaultSettings.URL"), &settings.key_vault.url)?,
        certificate_name: settings.key_vault.certificate_name.clone(),
        identity: Some(settings.msi.resource_id.clone()).filter(|id| !id.is_empty()),
    };
    let vault =
        vault.checked().map_err(|source| ConfigError::KeyVault { file: file.path.clone(), source })?;
    let hours = u64::try_from(settings.key_vault.refresh_interval_in_hrs).unwrap_or(12);
    let ours = settings.node.rest.as_ref().and_then(|rest| rest.key_vault_refresh_secs);
    if ours.is_some_and(|ours| ours.is_zero()) {
        let key = file.key("Node.REST.KeyVaultRefreshSecs");
        return Err(ConfigError::value(key, "0", "more than zero is expected"));
    }
    let refresh = ours.unwrap_or(Duration::from_secs(hours.saturating_mul(3600)));
    Ok(Some(TlsSource::KeyVault { vault, refresh }))
}

pub(super) fn tls(
    cert: Option<&PathBuf>,
    key: Option<&PathBuf>,
    client_ca: Option<&PathBuf>,
) -> Result<Option<TlsFiles>, ConfigError> {
    match (cert, key, client_ca) {
        (None, None, None) => Ok(None),
        (Some(cert), Some(key), Some(client_ca)) => {
            Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.clone() }))
        }
        (None, _, _) => Err(ConfigError::HalfTls { missing: "--tls-cert" }),
        (_, None, _) => Err(ConfigError::HalfTls { missing: "--tls-key" }),
        (_, _, None) => Err(ConfigError::HalfTls { missing: "--tls-client-ca" }),
    }
}
