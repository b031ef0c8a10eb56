//! `ip list`, `ip request`, `ip release`.

use cns::proto::v1 as pb;
use cns_client::Client;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::{
    args::{IpCommand, Requester},
    failure::{Exit, Failure},
    output::{Cell, Out, Page, Tone},
    view::{
        Configuration, Pod, Route, Subnet, Time, ago, container_cell, given, nic_type, on_release, pod_cell,
        pod_to_wire, state, state_cell, state_to_wire,
    },
};

/// One address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpConfig {
    pub(crate) ip_address: String,
    pub(crate) id: String,
    pub(crate) network_container_id: String,
    pub(crate) state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<Owner>,
    pub(crate) last_state_transition: Option<Time>,
    network_container_version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cooling_until: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_release: Option<String>,
}

/// Who has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Pod>,
    pod_key: String,
    pub(crate) infra_container_id: String,
    pod_interface_id: String,
    ifname: String,
}

impl IpConfig {
    pub(crate) fn from_wire(wire: pb::IpConfig) -> Self {
        Self {
            ip_address: wire.ip_address,
            id: wire.id,
            network_container_id: wire.network_container_id,
            state: state(wire.state).unwrap_or_default(),
            owner: wire.owner.map(|owner| Owner {
                pod: Pod::from_wire(owner.pod),
                pod_key: owner.pod_key,
                infra_container_id: owner.infra_container_id,
                pod_interface_id: owner.pod_interface_id,
                ifname: owner.ifname,
            }),
            last_state_transition: Time::from_wire(wire.last_state_transition),
            network_container_version: wire.network_container_version,
            cooling_until: Time::from_wire(wire.cooling_until),
            on_release: on_release(wire.on_release),
        }
    }

    /// What else there is to know, in words.
    fn note(&self, now: jiff::Timestamp) -> String {
        let cooling = self
            .cooling_until
            .filter(|until| until.is_after(now))
            .map(|until| format!("cooling down for {}", until.until(now)));
        let afterwards = self.on_release.as_deref().map(|what| {
            match what {
                "GiveBack" => "goes back to the control plane when released",
                "Remove" => "withdrawn: goes when released",
                other => other,
            }
            .to_owned()
        });
        cooling.into_iter().chain(afterwards).collect::<Vec<_>>().join(", ")
    }
}

/// Addresses as a table.
pub(crate) fn table(page: Page, addresses: &[IpConfig], whole: bool, now: jiff::Timestamp) -> Page {
    let rows = addresses
        .iter()
        .map(|ip| {
            let owner = ip.owner.as_ref();
            vec![
                ip.ip_address.clone().into(),
                state_cell(&ip.state),
                pod_cell(owner.and_then(|owner| owner.pod.as_ref())),
                owner.map_or_else(Cell::default, |owner| container_cell(&owner.infra_container_id, whole)),
                owner.map_or_else(Cell::default, |owner| owner.ifname.clone().into()),
                ip.network_container_id.clone().into(),
                ago(ip.last_state_transition, now),
                Cell::toned(ip.note(now), Tone::Attention),
            ]
        })
        .collect();
    page.table(&["ADDRESS", "STATE", "POD", "CONTAINER", "INTERFACE", "NC", "SINCE", "NOTE"], rows)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    ip_configs: Vec<IpConfig>,
}

/// What a request gave.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Requested {
    pod_ip_infos: Vec<PodIpInfo>,
    repeated_request: bool,
    warnings: Vec<String>,
}

/// One address and how to wire it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodIpInfo {
    pod_ip_config: Option<Subnet>,
    network_container_id: String,
    ip_config_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_container_primary_ip_config: Option<Configuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_container_ipv6_config: Option<Configuration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_primary_ip_info: Option<HostPrimaryIpInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nic_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac_address: Option<String>,
    shared_nic: bool,
    skip_default_routes: bool,
    routes: Vec<Route>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct HostPrimaryIpInfo {
    gateway: String,
    primary_ip: String,
    subnet: String,
}

impl PodIpInfo {
    fn from_wire(wire: pb::PodIpInfo) -> Self {
        Self {
            pod_ip_config: Subnet::from_wire(wire.pod_ip_config),
            network_container_id: wire.network_container_id,
            ip_config_id: wire.ip_config_id,
            network_container_primary_ip_config: Configuration::from_wire(
                wire.network_container_primary_ip_config,
            ),
            network_container_ipv6_config: Configuration::from_wire(wire.network_container_ipv6_config),
            host_primary_ip_info: wire
                .host_primary_ip_info
                .filter(|host| *host != pb::HostPrimaryIpInfo::default())
                .map(|host| HostPrimaryIpInfo {
                    gateway: host.gateway,
                    primary_ip: host.primary_ip,
                    subnet: host.subnet,
                }),
            nic_type: nic_type(wire.nic_type),
            interface_name: given(wire.interface_name),
            mac_address: given(wire.mac_address),
            shared_nic: wire.shared_nic,
            skip_default_routes: wire.skip_default_routes,
            routes: wire.routes.into_iter().map(Route::from_wire).collect(),
        }
    }

    /// The gateway of the address's own family.
    fn gateway(&self) -> String {
        let v6 = self.pod_ip_config.as_ref().is_some_and(|subnet| subnet.ip_address.contains(':'));
        self.network_container_primary_ip_config
            .as_ref()
            .map(|config| if v6 { &config.gateway_ipv6_address } else { &config.gateway_ip_address })
            .cloned()
            .unwrap_or_default()
    }
}

/// What a release gave back.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Released {
    outcome: String,
    released_ip_addresses: Vec<String>,
}

pub(crate) async fn run(command: IpCommand, client: &Client, out: &mut Out) -> Result<(), Failure> {
    match command {
        IpCommand::List { state, pod, nc } => {
            let request = pb::ListIpConfigsRequest {
                states: state.into_iter().map(|state| state_to_wire(state.into()) as i32).collect(),
                network_container_id: nc.map(|id| id.to_string()).unwrap_or_default(),
                pod: pod.as_ref().map(pod_to_wire),
                ..Default::default()
            };
            let ip_configs =
                client.list_all_ip_configs(request).await?.into_iter().map(IpConfig::from_wire).collect();
            let whole = !out.is_terminal();
            out.print(&List { ip_configs }, |list| {
                table(Page::new(), &list.ip_configs, whole, jiff::Timestamp::now())
            })
        }
        IpCommand::Request { who, desired } => request(&who, &desired, client, out).await,
        // The contract releases all or nothing; `--desired` is there so that one command line serves both.
        IpCommand::Release { who, desired: _ } => release(&who, client, out).await,
    }
}

async fn request(
    who: &Requester,
    desired: &[std::net::IpAddr],
    client: &Client,
    out: &mut Out,
) -> Result<(), Failure> {
    let request = pb::RequestIpConfigsRequest {
        pod: Some(pod_to_wire(&who.pod)),
        infra_container_id: who.container_id.to_string(),
        pod_interface_id: pod_interface_id(who),
        ifname: who.ifname.to_string(),
        desired_ip_addresses: desired.iter().map(ToString::to_string).collect(),
        began_boottime_ns: Some(boottime_ns()?),
        ..Default::default()
    };
    let answer = client.request_ip_configs(request).await?;
    let requested = Requested {
        pod_ip_infos: answer.pod_ip_infos.into_iter().map(PodIpInfo::from_wire).collect(),
        repeated_request: answer.repeated_request,
        warnings: answer.warnings,
    };
    out.print(&requested, |requested| {
        let rows = requested
            .pod_ip_infos
            .iter()
            .map(|info| {
                vec![
                    info.pod_ip_config.as_ref().map(ToString::to_string).unwrap_or_default().into(),
                    info.gateway().into(),
                    info.nic_type.clone().unwrap_or_default().into(),
                    info.network_container_id.clone().into(),
                ]
            })
            .collect();
        let page = Page::new().table(&["ADDRESS", "GATEWAY", "NIC", "NC"], rows);
        requested.warnings.iter().fold(page, |page, warning| {
            page.line(Cell::toned(format!("warning: {warning}"), Tone::Attention))
        })
    })
}

async fn release(who: &Requester, client: &Client, out: &mut Out) -> Result<(), Failure> {
    let request = pb::ReleaseIpConfigsRequest {
        pod: Some(pod_to_wire(&who.pod)),
        infra_container_id: who.container_id.to_string(),
        pod_interface_id: pod_interface_id(who),
        ifname: who.ifname.to_string(),
        began_boottime_ns: Some(boottime_ns()?),
        ..Default::default()
    };
    let answer = client.release_ip_configs(request).await?;
    let (outcome, words) = match answer.outcome() {
        pb::ReleaseOutcome::Released | pb::ReleaseOutcome::Unspecified => ("Released", ""),
        pb::ReleaseOutcome::NothingHeld => ("NothingHeld", "nothing was held"),
        pb::ReleaseOutcome::Stale => {
            ("Stale", "nothing was released: the container was added again meanwhile")
        }
        pb::ReleaseOutcome::OtherInterface => {
            ("OtherInterface", "nothing was released: the container's addresses belong to another interface")
        }
    };
    let released =
        Released { outcome: outcome.to_owned(), released_ip_addresses: answer.released_ip_addresses };
    out.print(&released, |released| {
        if released.released_ip_addresses.is_empty() {
            return Page::new().line(if words.is_empty() {
                "released the endpoint record; it held no address"
            } else {
                words
            });
        }
        let rows =
            released.released_ip_addresses.iter().map(|address| vec![address.clone().into()]).collect();
        Page::new().table(&["RELEASED"], rows)
    })
}

/// As the plugin makes it: the first 8 characters of the container id, then the interface.
fn pod_interface_id(who: &Requester) -> String {
    let id = who.container_id.as_str();
    // Container ids are ASCII.
    format!("{}-{}", id.get(..8).unwrap_or(id), who.ifname)
}

/// When we began, on the clock by which the daemon orders calls.
fn boottime_ns() -> Result<u64, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("cannot read the boot-time clock: {error}"))
    };
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(|error| failed(&error))?;
    let seconds = u64::try_from(now.tv_sec()).map_err(|error| failed(&error))?;
    let nanos = u64::try_from(now.tv_nsec()).map_err(|error| failed(&error))?;
    Ok(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(container_id: &str) -> Requester {
        Requester {
            container_id: container_id.parse().unwrap(),
            pod: cns::model::PodIdentity::new("default", "web-0").unwrap(),
            ifname: "eth0".parse().unwrap(),
        }
    }

    #[test]
    fn the_interface_id_is_the_plugins() {
        assert_eq!(pod_interface_id(&who("1f2e3d4c5b6a7988")), "1f2e3d4c-eth0");
        assert_eq!(pod_interface_id(&who("c1")), "c1-eth0");
    }

    #[test]
    fn a_note_tells_what_the_state_does_not() {
        let now = jiff::Timestamp::from_second(1_000).unwrap();
        let wire = pb::IpConfig {
            ip_address: "10.0.0.5".into(),
            state: pb::IpState::Assigned as i32,
            on_release: pb::OnRelease::Remove as i32,
            cooling_until: Some(prost_types::Timestamp { seconds: 1_020, nanos: 0 }),
            ..Default::default()
        };
        assert_eq!(
            IpConfig::from_wire(wire.clone()).note(now),
            "cooling down for 20 s, withdrawn: goes when released"
        );
        let later = jiff::Timestamp::from_second(2_000).unwrap();
        assert_eq!(IpConfig::from_wire(wire).note(later), "withdrawn: goes when released");
    }

    #[test]
    fn json_has_the_contracts_keys() {
        let wire = pb::IpConfig {
            id: "10.0.0.5".into(),
            ip_address: "10.0.0.5".into(),
            network_container_id: "nc".into(),
            state: pb::IpState::Assigned as i32,
            owner: Some(pb::IpOwner {
                pod: Some(pb::PodIdentity { namespace: "default".into(), name: "web-0".into() }),
                pod_key: "c1-eth0".into(),
                infra_container_id: "c1".into(),
                pod_interface_id: "c1-eth0".into(),
                ifname: "eth0".into(),
                ..Default::default()
            }),
            last_state_transition: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
            ..Default::default()
        };
        assert_eq!(
            serde_json::to_value(IpConfig::from_wire(wire)).unwrap(),
            serde_json::json!({
                "ipAddress": "10.0.0.5", "id": "10.0.0.5", "networkContainerId": "nc", "state": "Assigned",
                "owner": {
                    "pod": {"namespace": "default", "name": "web-0"}, "podKey": "c1-eth0",
                    "infraContainerId": "c1", "podInterfaceId": "c1-eth0", "ifname": "eth0",
                },
                "lastStateTransition": "1970-01-01T00:00:00Z", "networkContainerVersion": 0,
            })
        );
    }
}
