//! NMAgent: the fabric's agent on the host, which programs network containers and knows which are programmed. It is reached through
//! wireserver only, which wraps each call and each answer (spec/host-agents.md §2–§5).
//!
//! The outer HTTP status is wireserver's; NMAgent's own stands in the body as `httpStatusCode`. Which of the two refused is part of
//! the error. Content types say nothing: XML comes as XML whatever its label.

mod wrap;

use std::{collections::HashMap, num::NonZeroU32, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use self::wrap::Answerer;
use self::wrap::{Unwrapped, Wrapped};
use super::{
    http::{
        AgentError, AgentState, Answer, BaseUrl, CallError, ClientError, HttpClient, Limits, Pause,
        ReadError, ReadFault, Retry, Roots, excerpt,
    },
    wireserver::{self, AuthToken, HostInterfaces, PublishTarget, VnetId, interfaces},
};
use crate::{
    gojson::{self, List, Raw},
    model::NcId,
};

/// Why NMAgent did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NmagentError {
    /// It answered, and refused. [`Refusal`] is what a caller decides by.
    #[error("NMAgent, {call}: refused by {by} with status {status}: {refusal}: {excerpt}")]
    Refused {
        /// The call.
        call: &'static str,
        /// Who refused.
        by: Answerer,
        /// As it came.
        status: u16,
        /// What it means.
        refusal: Refusal,
        /// The beginning of the body.
        excerpt: String,
    },
    /// There was no answer, or none that can be read.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The request has nothing in a field that NMAgent needs; nothing was sent.
    #[error("NMAgent, {call}: the request has no {missing}")]
    Incomplete {
        /// The call.
        call: &'static str,
        /// The field.
        missing: &'static str,
    },
}

/// What a refusal means (spec/host-agents.md §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 102: it is at it; ask again.
    #[error("the request is still being worked on")]
    InProgress,
    /// 401.
    #[error("the request did not come from an interface with an OwningServiceInstanceId property")]
    Unauthorized,
    /// 404; and 400 to leaving a network that was not joined.
    #[error("not found")]
    NotFound,
    /// 409.
    #[error("it conflicts with another request")]
    Conflict,
    /// 500.
    #[error("an error occurred while NMAgent worked on the request")]
    Internal,
    /// Any other.
    #[error("a status that NMAgent does not document")]
    Other,
}

impl NmagentError {
    /// The refusal, if there was one.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            Self::Agent(_) | Self::Incomplete { .. } => None,
        }
    }

    /// The status, if NMAgent or wireserver answered with one that is not 200.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Agent(_) | Self::Incomplete { .. } => None,
        }
    }
}

impl CallError for NmagentError {
    fn agent_is_well(&self) -> bool {
        matches!(self.refusal(), Some(Refusal::NotFound | Refusal::Conflict | Refusal::InProgress))
    }
}

/// The version of each network container that the host has programmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcVersions {
    /// In NMAgent's order; ids are echoed as they came.
    pub ncs: Vec<NcVersion>,
    /// Entries that cannot be read, for one log line each. They do not lose the others.
    pub refused: Vec<String>,
}

/// One network container's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcVersion {
    /// The network container. Prefix and case do not matter to a comparison.
    pub id: NcId,
    /// As it came; in practice a decimal number.
    pub version: String,
}

impl NcVersion {
    /// The version as a number; absent if it is none, which counts as not reported (spec/host-agents.md §5.1).
    pub fn number(&self) -> Option<u64> {
        self.version.parse().ok()
    }
}

impl NcVersions {
    /// By id. Of repeated ids the last counts, as in the reference.
    pub fn by_id(&self) -> HashMap<NcId, &NcVersion> {
        self.ncs.iter().map(|nc| (nc.id.clone(), nc)).collect()
    }
}

/// Where the node is, as NMAgent knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeAz {
    /// The availability zone; absent if NMAgent said 0, which the home AZ monitor takes for an error and NodeInfo for "no zones"
    /// (spec/host-agents.md §5).
    pub zone: Option<NonZeroU32>,
    /// Whether NMAgent has the fix for IPv6 (`apiVersion` 2).
    pub ipv6_fix: bool,
}

/// A virtual network's configuration, as NMAgent has it. Texts are passed on as they came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VirtualNetwork {
    /// The container network's address space.
    #[serde(rename = "cnetSpace")]
    pub cnet_space: String,
    /// Default gateway.
    #[serde(rename = "defaultGateway")]
    pub default_gateway: String,
    /// Resolvers.
    #[serde(rename = "dnsServers")]
    pub dns_servers: Vec<String>,
    /// Subnets.
    pub subnets: Vec<VirtualSubnet>,
    /// The network's address space.
    #[serde(rename = "vnetSpace")]
    pub vnet_space: String,
    /// Its version.
    #[serde(rename = "vnetVersion")]
    pub vnet_version: String,
}

/// A subnet of a virtual network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VirtualSubnet {
    /// CIDR.
    #[serde(rename = "addressPrefix")]
    pub address_prefix: String,
    /// Name.
    #[serde(rename = "subnetName")]
    pub name: String,
    /// Tags.
    pub tags: Vec<VirtualTag>,
}

/// A tag of a subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VirtualTag {
    /// Name.
    pub name: String,
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
}

/// What NMAgent is to program for a network container (spec/host-agents.md §5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutNetworkContainer {
    /// Version.
    pub version: u64,
    /// Its virtual network.
    pub vnet: VnetId,
    /// Its subnet's name; not empty.
    pub subnet_name: String,
    /// Its addresses; at least one.
    pub ipv4_addresses: Vec<std::net::Ipv4Addr>,
    /// Policies: id and type.
    pub policies: Vec<(String, String)>,
    /// VLAN; 0 is the default.
    pub vlan_id: u32,
    /// GRE key.
    pub gre_key: u16,
    /// Availability zone.
    pub az_id: u32,
    /// Whether it is resilient to the loss of a zone.
    pub azr_enabled: bool,
}

#[derive(Serialize)]
struct PutBody<'a> {
    version: String,
    #[serde(rename = "virtualNetworkId")]
    vnet: String,
    #[serde(rename = "subnetName")]
    subnet_name: &'a str,
    #[serde(rename = "ipV4Addresses")]
    ipv4_addresses: &'a [std::net::Ipv4Addr],
    policies: List<String>,
    #[serde(rename = "vlanId")]
    vlan_id: u32,
    #[serde(rename = "greKey")]
    gre_key: u16,
    #[serde(rename = "azID")]
    az_id: u32,
    #[serde(rename = "azrEnabled")]
    azr_enabled: bool,
}

impl PutNetworkContainer {
    fn missing(&self) -> Option<&'static str> {
        if self.subnet_name.is_empty() {
            Some("subnet name")
        } else if self.ipv4_addresses.is_empty() {
            Some("IPv4 address")
        } else {
            None
        }
    }

    fn body(&self) -> PutBody<'_> {
        PutBody {
            version: self.version.to_string(),
            vnet: self.vnet.to_string(),
            subnet_name: &self.subnet_name,
            ipv4_addresses: &self.ipv4_addresses,
            policies: List(self.policies.iter().map(|(id, kind)| format!("{id}, {kind}")).collect()),
            vlan_id: self.vlan_id,
            gre_key: self.gre_key,
            az_id: self.az_id,
            azr_enabled: self.azr_enabled,
        }
    }
}

/// A client of NMAgent. Cheap to clone.
///
/// Only joining a network and asking for its configuration are tried again, and only while NMAgent says that it is at it (102). The
/// others are asked by loops, whose next turn is their retry.
#[derive(Clone, Debug)]
pub struct Nmagent {
    http: HttpClient,
    /// Between two attempts while NMAgent is at it.
    patience: Pause,
    /// How long it may be at it, unless the caller said otherwise.
    join_within: Option<Duration>,
}

/// How long NMAgent may be at it.
const JOIN_WITHIN: Duration = Duration::from_mins(1);
/// More attempts than fit into that minute.
const JOIN_ATTEMPTS: u32 = 16;

impl Nmagent {
    /// A client of NMAgent behind the wireserver at `base`; a path in it is dropped.
    pub fn new(base: &BaseUrl, limits: Limits) -> Result<Self, ClientError> {
        let http = HttpClient::new("NMAgent", base.origin(), limits, Roots::System)?;
        let patience = Pause::Doubling { first: Duration::from_secs(1), most: Duration::from_secs(8) };
        Ok(Self { http, patience, join_within: Some(JOIN_WITHIN) })
    }

    /// The same client with at most `total` for each call.
    #[must_use]
    pub fn within(&self, total: Duration) -> Self {
        Self { http: self.http.within(total), patience: self.patience, join_within: None }
    }

    /// How NMAgent last answered.
    pub fn state(&self) -> &AgentState {
        self.http.state()
    }

    /// The names of the APIs that NMAgent has.
    pub async fn supported_apis(&self) -> Result<Vec<String>, NmagentError> {
        let path = Wrapped::get("GetSupportedApis", &["GetSupportedApis"]);
        self.ask(path, &Retry::NEVER, |body| {
            let fault = |why: String| ReadFault::decode("list of supported APIs", why);
            let mut apis: Vec<String> = Vec::new();
            let mut in_type = false;
            interfaces::events(body, |event| {
                match event {
                    interfaces::Parsed::Open(1, element) => {
                        in_type = element.name == "type";
                        if in_type {
                            apis.push(String::new());
                        }
                    }
                    interfaces::Parsed::Text(2, text) if in_type => {
                        if let Some(api) = apis.last_mut() {
                            api.push_str(text);
                        }
                    }
                    interfaces::Parsed::Open(..) | interfaces::Parsed::Text(..) => {}
                }
                Ok(())
            })
            .map_err(fault)?;
            Ok(apis.into_iter().map(|api| api.trim().to_owned()).collect())
        })
        .await
    }

    /// The versions that the host has programmed, of every network container that NMAgent knows.
    pub async fn nc_versions(&self) -> Result<NcVersions, NmagentError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Body {
            #[serde(rename = "networkContainers")]
            ncs: List<Raw>,
        }
        let path = Wrapped::get(
            "list of network container versions",
            &["NetworkManagement", "interfaces", "api-version", "2"],
        );
        self.ask(path, &Retry::NEVER, |body| {
            let body: Body = json("list of network container versions", body)?;
            let mut found = NcVersions::default();
            for entry in &body.ncs.0 {
                match nc_version(entry.get().unwrap_or_default().as_bytes()) {
                    Ok(nc) => found.ncs.push(nc),
                    // A hostile list must not fill the log.
                    Err(why) if found.refused.len() < 32 => found.refused.push(why),
                    Err(_) => {}
                }
            }
            Ok(found)
        })
        .await
    }

    /// The node's availability zone. [`Refusal::NotFound`] says that the region has none.
    pub async fn home_az(&self) -> Result<HomeAz, NmagentError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Body {
            #[serde(rename = "homeAz")]
            zone: u32,
            #[serde(rename = "apiVersion")]
            version: u32,
        }
        self.ask(Wrapped::get("GetHomeAz", &["GetHomeAz", "api-version", "1"]), &Retry::NEVER, |body| {
            let Body { zone, version } = json("home AZ", body)?;
            if !matches!(version, 0 | 2) {
                let why = format!("invalid homeaz api version (must be 0 or 2): received {version}");
                return Err(ReadFault::decode("home AZ", why));
            }
            Ok(HomeAz { zone: NonZeroU32::new(zone), ipv6_fix: version == 2 })
        })
        .await
    }

    /// The host's interfaces with the secondary addresses that node subnet mode gives to pods.
    pub async fn interfaces(&self) -> Result<HostInterfaces, NmagentError> {
        self.ask(
            Wrapped::get("interface list", &[wireserver::INTERFACES]),
            &Retry::NEVER,
            HostInterfaces::decode,
        )
        .await
    }

    /// Makes NMAgent know a virtual network on this host. Waits, up to a minute, while NMAgent is at it.
    pub async fn join_network(&self, vnet: &VnetId) -> Result<(), NmagentError> {
        let path = Wrapped::post("join network", &joined(&vnet.to_string()), Bytes::new());
        self.patient().ask(path, &self.while_in_progress(), |_| Ok(())).await
    }

    /// Makes it forget the network. [`Refusal::NotFound`] says that it was not joined.
    pub async fn delete_network(&self, vnet: &VnetId) -> Result<(), NmagentError> {
        let vnet = vnet.to_string();
        let path = [&joined(&vnet)[..], &["method", "DELETE"]].concat();
        let mut path = Wrapped::post("delete network", &path, Bytes::new());
        path.bad_request_is_not_found = true;
        self.ask(path, &Retry::NEVER, |_| Ok(())).await
    }

    /// A joined network's configuration. Waits as [`Self::join_network`].
    pub async fn network_configuration(&self, vnet: &VnetId) -> Result<VirtualNetwork, NmagentError> {
        let path = Wrapped::get("network configuration", &joined(&vnet.to_string()));
        self.patient().ask(path, &self.while_in_progress(), |body| json("network configuration", body)).await
    }

    /// Has a network container programmed.
    pub async fn put_network_container(
        &self,
        target: &PublishTarget,
        container: &PutNetworkContainer,
    ) -> Result<(), NmagentError> {
        let call = "put network container";
        if let Some(missing) = container.missing() {
            return Err(NmagentError::Incomplete { call, missing });
        }
        let body = gojson::encode(&container.body()).map_err(|error| {
            NmagentError::Agent(
                self.http.error(call, super::http::AgentFault::Unsendable { why: error.to_string() }),
            )
        })?;
        let (interface, nc) = (target.interface.to_string(), target.nc.to_string());
        let path = Wrapped::post(call, &with_token(&interface, &nc, &target.token), body.into());
        self.ask(path, &Retry::NEVER, |_| Ok(())).await
    }

    /// Has it removed.
    pub async fn delete_network_container(&self, target: &PublishTarget) -> Result<(), NmagentError> {
        let (interface, nc) = (target.interface.to_string(), target.nc.to_string());
        let path = [&with_token(&interface, &nc, &target.token)[..], &["method", "DELETE"]].concat();
        let path = Wrapped::post("delete network container", &path, Bytes::new());
        self.ask(path, &Retry::NEVER, |_| Ok(())).await
    }

    /// The programmed version of one network container, asked with its token.
    pub async fn nc_version(&self, target: &PublishTarget) -> Result<NcVersion, NmagentError> {
        let (interface, nc) = (target.interface.to_string(), target.nc.to_string());
        let path = [
            "NetworkManagement",
            "interfaces",
            &interface,
            "networkContainers",
            &nc,
            "version",
            "authenticationToken",
            target.token.secret(),
            "api-version",
            "1",
        ];
        self.ask(Wrapped::get("network container version", &path), &Retry::NEVER, |body| {
            nc_version(body).map_err(|why| ReadFault::decode("network container version", why))
        })
        .await
    }

    /// NMAgent may take a minute to join a network; whoever gave a shorter time by [`Self::within`] keeps it.
    fn patient(&self) -> Self {
        self.join_within
            .map_or_else(|| self.clone(), |time| Self { http: self.http.lasting(time), ..self.clone() })
    }

    fn while_in_progress(&self) -> Retry<NmagentError> {
        Retry {
            attempts: JOIN_ATTEMPTS,
            pause: self.patience,
            on: |error| error.refusal() == Some(Refusal::InProgress),
        }
    }

    async fn ask<T>(
        &self,
        wrapped: Wrapped,
        retry: &Retry<NmagentError>,
        read: impl Fn(&[u8]) -> Result<T, ReadFault>,
    ) -> Result<T, NmagentError> {
        let call = wrapped.outgoing.call;
        self.http
            .call(&wrapped.outgoing, retry, |answer: Answer| {
                let Unwrapped { by, status, body } = wrap::unwrap(answer)?;
                if status == 200 {
                    return Ok(read(&body)?);
                }
                let refusal = match status {
                    400 if wrapped.bad_request_is_not_found => Refusal::NotFound,
                    102 => Refusal::InProgress,
                    401 => Refusal::Unauthorized,
                    404 => Refusal::NotFound,
                    409 => Refusal::Conflict,
                    500 => Refusal::Internal,
                    _ => Refusal::Other,
                };
                let excerpt = excerpt(&body);
                Err(ReadError::Own(NmagentError::Refused { call, by, status, refusal, excerpt }))
            })
            .await
    }
}

fn joined(vnet: &str) -> [&str; 5] {
    ["NetworkManagement", "joinedVirtualNetworks", vnet, "api-version", "1"]
}

fn with_token<'a>(interface: &'a str, nc: &'a str, token: &'a AuthToken) -> [&'a str; 9] {
    let token = token.secret();
    [
        "NetworkManagement",
        "interfaces",
        interface,
        "networkContainers",
        nc,
        "authenticationToken",
        token,
        "api-version",
        "1",
    ]
}

fn json<T: serde::de::DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, ReadFault> {
    gojson::decode(body).map_err(|error| ReadFault::decode(what, error))
}

fn nc_version(body: &[u8]) -> Result<NcVersion, String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Entry {
        #[serde(rename = "networkContainerId")]
        id: String,
        version: String,
    }
    let Entry { id, version } = gojson::decode(body).map_err(|error| error.to_string())?;
    let id = id.parse().map_err(|error: crate::model::InvalidId| error.to_string())?;
    Ok(NcVersion { id, version })
}

#[cfg(test)]
mod tests;
