//! Pods' requests while NMAgent hangs, beside the same while it answers, in turns: no pod waits for an agent.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cns::proto::v1 as pb;
use cns_fake_agents::{Agent, FakeAgents, Fault};
use pb::{nm_agent_service_client::NmAgentServiceClient, node_service_client::NodeServiceClient};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use super::{
    Failure,
    daemon::{Daemon, Networks, Pod},
    report::{Aim, Report, Times, micros, times},
};

/// Addresses of the node subnet.
const ADDRESSES: u32 = 1_024;
const CLIENTS: usize = 8;
/// Calls that wait for an agent at any time.
const WAITING: usize = 8;
const ROUND: Duration = Duration::from_secs(1);
/// Long enough for a hanging agent to be noticed, were it waited for.
const PATIENCE: Duration = Duration::from_mins(1);

async fn round(daemon: &Daemon, found: &mut Times) -> Result<(), Failure> {
    let over = Arc::new(AtomicBool::new(false));
    let mut waiting = JoinSet::new();
    for _ in 0..WAITING {
        let endpoint = Endpoint::try_from(format!("unix:{}", daemon.socket().display()))?;
        let (channel, over) = (endpoint.connect().await?, over.clone());
        waiting.spawn(async move {
            let (mut nmagent, mut node) =
                (NmAgentServiceClient::new(channel.clone()), NodeServiceClient::new(channel));
            while !over.load(Ordering::Relaxed) {
                // Whether they are answered does not matter here.
                let _ = nmagent.list_supported_ap_is(pb::ListSupportedApIsRequest::default()).await;
                let _ = node.get_vm_unique_id(pb::GetVmUniqueIdRequest {}).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = daemon.client()?;
        clients.spawn(async move {
            client.health("").await?;
            let (mut requests, started) = (Times::default(), Instant::now());
            while started.elapsed() < ROUND {
                let pod = Pod::new();
                let begun = Instant::now();
                client.request_ip_configs(pod.request()).await?;
                requests.add(begun.elapsed());
                client.release_ip_configs(pod.release()).await?;
            }
            Ok::<_, Failure>(requests)
        });
    }
    while let Some(done) = clients.join_next().await {
        found.extend(&done??);
    }
    over.store(true, Ordering::Relaxed);
    waiting.abort_all();
    Ok(())
}

pub(crate) async fn measure(at: &Path, rounds: usize, report: &mut Report) -> Result<(), Failure> {
    let agents = FakeAgents::start().await?;
    agents.world(|world| {
        if let Some(interface) = world.interfaces.first_mut() {
            let first = u32::from(std::net::Ipv4Addr::new(10, 240, 1, 0));
            let secondary = (0..ADDRESSES).map(|n| std::net::Ipv4Addr::from(first + n));
            interface.addresses.truncate(1);
            interface.addresses.extend(secondary.map(|address| (address.to_string(), false)));
        }
    });
    let mut daemon = Daemon::new(at, "agents", &Networks(&[]))?;
    daemon.configure(&json!({
        "ChannelMode": "AzureHost", "ManageEndpointState": true,
        "WireserverIP": agents.address(Agent::Wireserver).to_string(),
        "TelemetrySettings": {"DisableAll": true},
        "Node": {"IMDSURL": agents.url(Agent::Imds)},
    }))?;
    daemon.start().await?;
    let begun = Instant::now();
    loop {
        let (client, pod) = (daemon.client()?, Pod::new());
        match client.request_ip_configs(pod.request()).await {
            Ok(_) => break,
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    let (mut calm, mut hanging) = (Times::default(), Times::default());
    for number in 1..=rounds {
        eprintln!("agents: round {number} of {rounds}");
        agents.heal();
        round(&daemon, &mut calm).await?;
        agents.fail("", Fault::Hang);
        round(&daemon, &mut hanging).await?;
    }
    for (what, percent, aim) in [("p50", 50, Aim::AtMost(1.3)), ("p99", 99, Aim::AtMost(1.3))] {
        let (calm, hanging) = (calm.percentile(percent), hanging.percentile(percent));
        report.ratio(
            format!("NMAgent hangs / answers: {what} of RequestIPConfigs, {CLIENTS} clients"),
            times(hanging, calm),
            aim,
            format!("{} / {}", micros(hanging), micros(calm)),
        );
    }
    Ok(())
}
