//! The machine's agents, faked, for trying a channel mode without a cloud:
//!
//! ```text
//! cargo run -p cns-fake-agents -- --secondary-ips 16 --home-az 1
//! ```
//!
//! Prints the settings that point a daemon at them, and then each request that they receive. Nothing is kept when it ends.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use cns_fake_agents::{Agent, FakeAgents};

/// Fake NMAgent, wireserver, IMDS, DNC, Key Vault and Application Insights on this machine
#[derive(Debug, Parser)]
struct Args {
    /// Where NMAgent listens, behind wireserver
    #[arg(long, default_value = "127.0.0.1:10180")]
    wireserver: SocketAddr,
    /// Where IMDS listens
    #[arg(long, default_value = "127.0.0.1:10181")]
    imds: SocketAddr,
    /// Where DNC listens
    #[arg(long, default_value = "127.0.0.1:10182")]
    dnc: SocketAddr,
    /// Where Key Vault listens
    #[arg(long, default_value = "127.0.0.1:10183")]
    key_vault: SocketAddr,
    /// Where Application Insights listens
    #[arg(long, default_value = "127.0.0.1:10184")]
    insights: SocketAddr,
    /// Availability zone of the node; 0 for a region without zones
    #[arg(long, default_value_t = 2)]
    home_az: u32,
    /// How many secondary addresses the primary interface has, from 10.240.0.5 on
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(..=60_000))]
    secondary_ips: u16,
    /// A network container that NMAgent has programmed
    #[arg(long, value_name = "ID=VERSION")]
    nc: Vec<String>,
    /// A file with a JSON list of CreateNetworkContainerRequest objects: what DNC says the node shall have
    #[arg(long, value_name = "FILE")]
    dnc_ncs: Option<std::path::PathBuf>,
    /// A file with a certificate and its key, PEM: Key Vault's secret `cns-tls`
    #[arg(long, value_name = "FILE")]
    certificate: Option<std::path::PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake-agents: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let at = |agent| match agent {
        Agent::Wireserver => args.wireserver,
        Agent::Imds => args.imds,
        Agent::Dnc => args.dnc,
        Agent::KeyVault => args.key_vault,
        Agent::Insights => args.insights,
    };
    let agents = FakeAgents::listen(at).await?;
    let read = |path: &std::path::Path| {
        std::fs::read_to_string(path)
            .map_err(|error| anyhow::anyhow!("cannot read {}: {error}", path.display()))
    };
    let ncs = args.nc.iter().map(|nc| {
        let (id, version) =
            nc.split_once('=').ok_or_else(|| anyhow::anyhow!("--nc {nc}: ID=VERSION is expected"))?;
        Ok((id.to_owned(), version.to_owned()))
    });
    let ncs = ncs.collect::<anyhow::Result<Vec<_>>>()?;
    let dnc_ncs = match &args.dnc_ncs {
        None => Vec::new(),
        Some(path) => serde_json::from_str(&read(path)?)
            .map_err(|error| anyhow::anyhow!("{} is no JSON list: {error}", path.display()))?,
    };
    let certificate = args.certificate.as_deref().map(read).transpose()?;
    agents.world(|world| {
        world.home_az = args.home_az;
        world.ncs = ncs;
        world.dnc_ncs = dnc_ncs;
        if let Some(interface) = world.interfaces.first_mut() {
            let first = u32::from(std::net::Ipv4Addr::new(10, 240, 0, 5));
            let secondary = (0..u32::from(args.secondary_ips)).map(|n| std::net::Ipv4Addr::from(first + n));
            interface.addresses.truncate(1);
            interface.addresses.extend(secondary.map(|address| (address.to_string(), false)));
        }
        if let Some(pem) = certificate {
            world.secrets.insert("cns-tls".into(), ("application/x-pem-file".into(), pem));
        }
    });
    println!("WireserverIP                     {}", agents.address(Agent::Wireserver));
    println!("IMDS                             {}", agents.url(Agent::Imds));
    println!("ManagedSettings.PrivateEndpoint  {}", agents.url(Agent::Dnc));
    println!("KeyVaultSettings.URL             {}", agents.url(Agent::KeyVault));
    println!("AppInsightsConnectionString      {}", agents.connection_string());
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => return Ok(()),
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        for request in agents.take_requests() {
            println!("{request}");
        }
    }
}
