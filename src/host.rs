//! Clients of the machine's agents: NMAgent and wireserver, IMDS, DNC, Key Vault (spec/host-agents.md), docker and Application
//! Insights; and the machine's own CNI plugin, which is run.
//!
//! The clients share one HTTP layer, [`http`]: no proxy, no redirect, bounded time and size. Each client is a cheap handle that can be
//! cloned; `within` gives one with less time; `state` tells how the agent last answered, for `cnsctl status`. A call is
//! cancelled by dropping its future.
//!
//! Nothing here knows the ledger or a channel mode: what an answer means is decided by who asked.

pub mod cni_plugin;
pub mod dnc;
pub mod docker;
pub mod http;
pub mod imds;
pub mod insights;
pub mod keyvault;
pub mod nmagent;
pub mod wireserver;

use self::{
    http::{BaseUrl, ClientError, Limits},
    imds::Imds,
    nmagent::Nmagent,
    wireserver::Wireserver,
};

/// The agents that every Azure machine has.
#[derive(Clone, Debug)]
pub struct Agents {
    /// NMAgent, through wireserver.
    pub nmagent: Nmagent,
    /// Wireserver itself.
    pub wireserver: Wireserver,
    /// The instance metadata service.
    pub imds: Imds,
}

impl Agents {
    /// At these addresses. Nothing is asked yet.
    pub fn new(wireserver: &BaseUrl, imds: &BaseUrl) -> Result<Self, ClientError> {
        let limits = Limits::default();
        Ok(Self {
            nmagent: Nmagent::new(wireserver, limits)?,
            wireserver: Wireserver::new(wireserver, limits)?,
            imds: Imds::new(imds, limits)?,
        })
    }

    /// The same with at most `total` for each call. A call that is cut off from outside leaves no trace in the agent's state, one that
    /// takes too long does.
    #[must_use]
    pub fn within(&self, total: std::time::Duration) -> Self {
        Self {
            nmagent: self.nmagent.within(total),
            wireserver: self.wireserver.within(total),
            imds: self.imds.within(total),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio_util::sync::CancellationToken;

    use cns_fake_agents as fake;

    use super::{dnc, http, imds, keyvault, nmagent, wireserver};

    /// Services spawn these calls; an `&` to something unsendable inside one would show there only.
    #[tokio::test]
    async fn every_call_can_be_made_from_a_task() {
        fn sendable<T>(_: &(impl Future<Output = T> + Send)) {}
        let agents = fake::FakeAgents::start().await.unwrap();
        let limits = http::Limits::default();
        let base: http::BaseUrl = agents.url(fake::Agent::Wireserver).parse().unwrap();
        let nc = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11".parse().unwrap();
        let target =
            wireserver::PublishTarget::new("10.0.0.4".parse().unwrap(), &nc, "t".parse().unwrap()).unwrap();
        let vnet = "9f1c4a6e-1f5e-4d39-8a5b-1b0d3c1f7e21".parse().unwrap();

        let wireserver = wireserver::Wireserver::new(&base, limits).unwrap();
        sendable(&wireserver.interfaces());
        sendable(&wireserver.join_network(&vnet));
        sendable(&wireserver.publish(&target, Bytes::new()));
        sendable(&wireserver.unpublish(&target, Bytes::new()));
        let nmagent = nmagent::Nmagent::new(&base, limits).unwrap();
        sendable(&nmagent.nc_versions());
        sendable(&nmagent.join_network(&vnet));
        let imds = imds::Imds::new(&agents.url(fake::Agent::Imds).parse().unwrap(), limits).unwrap();
        sendable(&imds.interfaces());
        sendable(&imds.compute());
        let config = dnc::DncConfig {
            endpoint: agents.url(fake::Agent::Dnc).parse().unwrap(),
            infrastructure_network_id: "v".into(),
            node_id: "n".into(),
        };
        let dnc = dnc::Dnc::new(config, dnc::DNC_LIMITS, http::Roots::System).unwrap();
        let node = dnc::NodeRegistration { num_cores: 1, nmagent_supported_apis: Vec::new() };
        sendable(&dnc.register_patiently(&node, dnc::RegisterPatience::default(), &CancellationToken::new()));
        sendable(&dnc.network_containers());
        let config = keyvault::KeyVaultConfig {
            url: agents.url(fake::Agent::KeyVault).parse().unwrap(),
            certificate_name: "c".into(),
            identity: None,
        };
        let vault = keyvault::KeyVault::new(config, imds, limits, http::Roots::System).unwrap();
        sendable(&vault.certificate());
    }
}
