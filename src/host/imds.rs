//! IMDS: what the platform says about this VM (spec/host-agents.md §6.3).
//!
//! Every call is tried three times. Network metadata exists from one API version on, so IMDS is asked which versions it has; the
//! reference asks that at every turn of a loop, here the answer is remembered (§10.2).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ::http::{HeaderName, HeaderValue};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    http::{
        AgentError, AgentFault, AgentState, Answer, BaseUrl, ClientError, HttpClient, Limits, Outgoing,
        Pause, ReadError, ReadFault, Retry, Roots,
    },
    wireserver::interfaces::{parse_mac, shown},
};
use crate::{
    gojson::{self, List, Raw},
    model::{MacAddr, NcId},
};

/// The agent's address where none is configured.
pub const IMDS: &str = "http://169.254.169.254";

/// The API version that has network containers on NICs.
pub const NETWORK_API_VERSION: &str = "2025-07-24";

/// How long IMDS is believed when it lacks an API version: hosts are updated while VMs run.
const LACKING_FOR: Duration = Duration::from_mins(1);

/// The version that IMDS reports for a network container on a NIC: such ones never change.
const NC_ON_NIC_VERSION: u64 = 1;

/// A client of IMDS. Cheap to clone; clones share what was learned.
#[derive(Clone, Debug)]
pub struct Imds {
    http: HttpClient,
    has_network: Arc<Mutex<Option<Negotiated>>>,
    pause: Pause,
}

#[derive(Clone, Copy, Debug)]
struct Negotiated {
    has_network: bool,
    at: Instant,
}

/// The VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Compute {
    /// Its unique id; not empty.
    #[serde(rename = "vmId")]
    pub vm_id: String,
    /// Its name.
    pub name: String,
    /// Region.
    pub location: String,
    /// Availability zone; empty where there is none.
    pub zone: String,
    /// Cloud, e.g. `AzurePublicCloud`.
    #[serde(rename = "azEnvironment")]
    pub az_environment: String,
    /// Subscription.
    #[serde(rename = "subscriptionId")]
    pub subscription_id: String,
    /// Resource group.
    #[serde(rename = "resourceGroupName")]
    pub resource_group: String,
    /// Scale set; empty where there is none.
    #[serde(rename = "vmScaleSetName")]
    pub scale_set: String,
    /// Size.
    #[serde(rename = "vmSize")]
    pub size: String,
    /// Version of the image that the VM was made of.
    #[serde(rename = "version")]
    pub os_version: String,
}

/// The VM's NICs as IMDS lists them, and what of the list could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImdsInterfaces {
    /// The NICs.
    pub interfaces: Vec<ImdsInterface>,
    /// What was left out and why, for one log line each.
    pub refused: Vec<String>,
}

/// One NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImdsInterface {
    /// Its MAC.
    pub mac: MacAddr,
    /// The network container that rides on it (`interfaceCompartmentID`); absent if none does.
    pub nc: Option<NcId>,
}

impl ImdsInterfaces {
    /// The host version of each network container that rides on a NIC.
    pub fn nc_versions(&self) -> HashMap<NcId, u64> {
        let ncs = self.interfaces.iter().filter_map(|interface| interface.nc.clone());
        ncs.map(|nc| (nc, NC_ON_NIC_VERSION)).collect()
    }
}

impl Imds {
    /// A client of IMDS at `base`; a path in it is dropped.
    pub fn new(base: &BaseUrl, limits: Limits) -> Result<Self, ClientError> {
        let http = HttpClient::new("IMDS", base.origin(), limits, Roots::System)?;
        let pause = Pause::Doubling { first: Duration::from_millis(100), most: Duration::from_millis(200) };
        Ok(Self { http, has_network: Arc::default(), pause })
    }

    /// The same client with at most `total` for each call, retries included.
    #[must_use]
    pub fn within(&self, total: Duration) -> Self {
        Self { http: self.http.within(total), ..self.clone() }
    }

    /// How IMDS last answered.
    pub fn state(&self) -> &AgentState {
        self.http.state()
    }

    /// The VM. An empty or unprintable id is an error.
    pub async fn compute(&self) -> Result<Compute, AgentError> {
        self.get(
            "compute metadata",
            "/metadata/instance/compute?api-version=2021-01-01&format=json",
            |body| {
                let compute: Compute = json("compute metadata", body)?;
                let id = &compute.vm_id;
                if id.is_empty() {
                    return Err(ReadFault::decode("compute metadata", "vm unique ID not found"));
                }
                if id.len() > 128 || !id.bytes().all(|b| b.is_ascii_graphic()) {
                    return Err(ReadFault::decode(
                        "compute metadata",
                        format!("`{}` is no VM id", shown(id)),
                    ));
                }
                Ok(compute)
            },
        )
        .await
    }

    /// The VM's unique id.
    pub async fn vm_unique_id(&self) -> Result<String, AgentError> {
        self.compute().await.map(|compute| compute.vm_id)
    }

    /// The API versions that this host's IMDS has.
    pub async fn versions(&self) -> Result<Vec<String>, AgentError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Body {
            #[serde(rename = "apiVersions")]
            versions: List<String>,
        }
        self.get("versions", "/metadata/versions", |body| {
            Ok(json::<Body>("list of versions", body)?.versions.0)
        })
        .await
    }

    /// The VM's NICs, and which network containers ride on them; `None` where this host's IMDS does not have them yet, which is
    /// no error. The reference answers an empty list to every error; whoever wants that has [`Result::unwrap_or_default`].
    pub async fn interfaces(&self) -> Result<Option<ImdsInterfaces>, AgentError> {
        if !self.has_network().await? {
            return Ok(None);
        }
        let target = format!("/metadata/instance/network?api-version={NETWORK_API_VERSION}&format=json");
        self.get("network metadata", &target, interfaces).await.map(Some)
    }

    async fn has_network(&self) -> Result<bool, AgentError> {
        let known = *self.has_network.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known
            && (known.has_network || known.at.elapsed() < LACKING_FOR)
        {
            return Ok(known.has_network);
        }
        let has_network = self.versions().await?.iter().any(|version| version == NETWORK_API_VERSION);
        let learned = Negotiated { has_network, at: Instant::now() };
        *self.has_network.lock().unwrap_or_else(PoisonError::into_inner) = Some(learned);
        Ok(has_network)
    }

    /// One call with IMDS' header and its retries.
    pub(super) async fn get<T>(
        &self,
        call: &'static str,
        target: &str,
        read: impl Fn(&[u8]) -> Result<T, ReadFault>,
    ) -> Result<T, AgentError> {
        let retry = Retry { attempts: 3, pause: self.pause, on: |error: &AgentError| may_pass(&error.fault) };
        let outgoing = Outgoing::get(call, target)
            .header(HeaderName::from_static("metadata"), HeaderValue::from_static("true"));
        self.http
            .call(&outgoing, &retry, |answer: Answer| Ok::<_, ReadError<AgentError>>(read(&answer.ok()?)?))
            .await
    }
}

/// IMDS' own guidance: besides what may always pass, 404 and 410 come while the host is updated. The reference retries every
/// status; the others say that the request is wrong, and it would be wrong three times.
fn may_pass(fault: &AgentFault) -> bool {
    fault.may_pass() || fault.status().is_some_and(|status| matches!(status.as_u16(), 404 | 410))
}

fn json<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, ReadFault> {
    gojson::decode(body).map_err(|error| ReadFault::decode(what, error))
}

fn interfaces(body: &[u8]) -> Result<ImdsInterfaces, ReadFault> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Body {
        interface: List<Raw>,
    }
    let body: Body = json("network metadata", body)?;
    let mut found = ImdsInterfaces::default();
    for entry in &body.interface.0 {
        match interface(entry.get().unwrap_or_default().as_bytes()) {
            Ok(interface) => found.interfaces.push(interface),
            // A hostile list must not fill the log.
            Err(why) if found.refused.len() < 32 => found.refused.push(why),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn interface(entry: &[u8]) -> Result<ImdsInterface, String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Entry {
        #[serde(rename = "macAddress")]
        mac: String,
        #[serde(rename = "interfaceCompartmentID")]
        compartment: String,
    }
    let entry: Entry = gojson::decode(entry).map_err(|error| error.to_string())?;
    let mac = parse_mac(&entry.mac)
        .ok_or_else(|| format!("`{}` is not the MAC address of an interface", shown(&entry.mac)))?;
    let nc = match entry.compartment.as_str() {
        "" => None,
        id => Some(id.parse().map_err(|error| format!("interface {mac}: {error}"))?),
    };
    Ok(ImdsInterface { mac, nc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cns_fake_agents::{Agent, FakeAgents, Fault};

    const NC: &str = "5a2f0c1e-7b7d-4b38-9b1f-0d0f6a2c9a11";

    fn client(agents: &FakeAgents) -> Imds {
        let client = Imds::new(&agents.url(Agent::Imds).parse().unwrap(), Limits::default()).unwrap();
        Imds { pause: Pause::Fixed(Duration::from_millis(5)), ..client }
    }

    fn targets(agents: &FakeAgents) -> Vec<String> {
        agents.take_requests().into_iter().map(|request| request.target).collect()
    }

    #[tokio::test]
    async fn the_vm_is_known_by_its_id() {
        let agents = FakeAgents::start().await.unwrap();
        let client = client(&agents);
        assert_eq!(client.vm_unique_id().await.unwrap(), "5d7e0f3c-6a2b-4c1d-8e9f-001122334455");
        let compute = client.compute().await.unwrap();
        assert_eq!((compute.az_environment.as_str(), compute.zone.as_str()), ("AzurePublicCloud", "2"));
        let request = &agents.take_requests()[0];
        assert_eq!(request.target, "/metadata/instance/compute?api-version=2021-01-01&format=json");
        assert_eq!(request.headers["metadata"], "true");

        agents.world(|world| world.vm_id = String::new());
        let error = client.vm_unique_id().await.unwrap_err().to_string();
        assert!(error.ends_with("vm unique ID not found"), "{error}");
        assert_eq!(agents.take_requests().len(), 1, "asking again would not bring one");
        agents.world(|world| world.vm_id = "a\nb".into());
        assert!(client.vm_unique_id().await.unwrap_err().to_string().contains("`a\\nb` is no VM id"));
        agents.fail("compute", Fault::Body(r#"{"vmId":7}"#.into()));
        assert!(client.vm_unique_id().await.is_err());
    }

    #[tokio::test]
    async fn each_call_has_three_attempts() {
        let agents = FakeAgents::start().await.unwrap();
        let client = client(&agents);
        for (fault, attempts) in [
            (Fault::Drop, 3),
            (Fault::Status(500), 3),
            (Fault::Status(429), 3),
            (Fault::Status(404), 3),
            (Fault::Status(400), 1),
        ] {
            agents.heal();
            agents.fail("compute", fault.clone());
            client.vm_unique_id().await.unwrap_err();
            assert_eq!(agents.take_requests().len(), attempts, "{fault:?}");
        }
        agents.heal();
        agents.fail_times("compute", Fault::Status(503), 2);
        client.vm_unique_id().await.unwrap();
    }

    #[tokio::test]
    async fn versions_are_negotiated_once() {
        let agents = FakeAgents::start().await.unwrap();
        let client = client(&agents);
        agents.world(|world| world.imds_interfaces.push(("00-0d-3a-f9-dc-a7".into(), NC.to_uppercase())));
        for _ in 0..2 {
            let found = client.interfaces().await.unwrap().unwrap();
            assert_eq!(found.interfaces[1].mac.to_string(), "00:0d:3a:f9:dc:a7");
            assert_eq!(found.nc_versions(), HashMap::from([(NC.parse().unwrap(), 1)]));
        }
        let network = "/metadata/instance/network?api-version=2025-07-24&format=json";
        assert_eq!(targets(&agents), ["/metadata/versions", network, network]);

        let client = self::client(&agents);
        agents.world(|world| world.imds_versions = vec!["2025-07-23".into(), "2025-07-24-preview".into()]);
        for _ in 0..2 {
            assert_eq!(client.interfaces().await.unwrap(), None);
        }
        assert_eq!(targets(&agents), ["/metadata/versions"]);
        *client.has_network.lock().unwrap() =
            Instant::now().checked_sub(LACKING_FOR).map(|at| Negotiated { has_network: false, at });
        agents.world(|world| world.imds_versions.push(NETWORK_API_VERSION.into()));
        assert!(client.interfaces().await.unwrap().is_some(), "the host was updated");
    }

    #[tokio::test]
    async fn a_failed_negotiation_is_not_remembered() {
        let agents = FakeAgents::start().await.unwrap();
        let client = client(&agents);
        agents.fail_times("versions", Fault::Status(500), 3);
        client.interfaces().await.unwrap_err();
        assert!(client.interfaces().await.unwrap().is_some());
        agents.fail("versions", Fault::Body(r#"{"apiVersions":null}"#.into()));
        assert_eq!(self::client(&agents).interfaces().await.unwrap(), None);
    }

    /// In the reference one bad MAC fails the whole answer.
    #[test]
    fn one_bad_nic_does_not_lose_the_others() {
        let found = interfaces(
            format!(
                r#"{{"interface":[{{"macAddress":"000D3AF9DCA6","interfaceCompartmentID":"{NC}"}},{{"macAddress":"x"}},null,
                {{"macAddress":"000D3AF9DCA7","interfaceCompartmentID":"a&b"}},{{"macAddress":"000D.3AF9.DCA8"}},7]}}"#
            )
            .as_bytes(),
        )
        .unwrap();
        assert_eq!(found.interfaces.len(), 2);
        assert_eq!(found.refused.len(), 4, "{:?}", found.refused);
        assert!(
            found.refused[2].starts_with("interface 00:0d:3a:f9:dc:a7: `a&b` is not a network container id")
        );
        assert_eq!(interfaces(br#"{"interface":null}"#).unwrap(), ImdsInterfaces::default());
    }
}
