//! `cns.v1.IpamService`.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use tonic::{Code, Request, Response, Status};

use super::{
    Context, convert, network_container,
    status::{self, Failure},
    watch::{self, Responses},
};
use crate::{
    ledger::{Committed, Effect, LedgerError, Rejection, ReleaseIps, ReleaseOutcome, RequestIps, Requester},
    model::{IpRecord, NcId, Now, PodKey, ReturnCode, parse_ip},
    proto::v1::{self as pb, ipam_service_server::IpamService},
    swift,
};

/// Page sizes: what the server chooses, and the most it gives.
const PAGE: (usize, usize) = (1_000, 10_000);

/// When a pod should ask again whose NC the host has not programmed yet.
const PROGRAMMED_SOON: Duration = Duration::from_secs(2);

/// See the contract.
#[derive(Clone, Debug)]
pub(super) struct Ipam(pub(super) Context);

impl Ipam {
    /// The interfaces of a pod whose NCs are its own (spec/swiftv2.md §5). Unlike in the reference, which ignores what became of each
    /// NC (§12 there), a pod without NCs, or with one that the host has not programmed, is refused: it would start without a network.
    async fn of_own_ncs(
        &self,
        request: pb::RequestIpConfigsRequest,
    ) -> Result<Response<pb::RequestIpConfigsResponse>, Status> {
        let container = convert::container("infra_container_id", &request.infra_container_id)?;
        let pod = convert::pod("pod", request.pod)?;
        let scheme = self.0.ledger.config().scheme;
        if PodKey::of(scheme, container.as_ref(), &request.pod_interface_id).is_none() {
            return Err(status::of_rejection(&Rejection::NoPodKey { scheme }));
        }
        let service = network_container::NetworkContainers(self.0.clone());
        service.look_for(&pod).await;
        let pending = service.pending(&pod).await;
        if !pending.is_empty() {
            let ids = pending.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let code = ReturnCode::NetworkContainerVfpProgramPending;
            let message = format!("NetworkContainer VFP programming is pending: {ids}");
            return Err(Failure::new(Code::FailedPrecondition, code, message)
                .detail("PROGRAMMING_PENDING")
                .put("network_container_ids", ids)
                .remedy("ask again; the host programs network containers shortly after they are published")
                .retry(PROGRAMMED_SOON)
                .into());
        }
        let view = self.0.ledger.view();
        let ncs: Vec<_> = view.ncs_of_pod(&pod).map(|nc| nc.record.clone()).collect();
        if ncs.is_empty() {
            return Err(network_container::unknown_of(&pod));
        }
        let host = self.0.host_interface();
        let nics = swift::pod_nics(ncs.iter().map(|nc| &nc.spec));
        Ok(Response::new(pb::RequestIpConfigsResponse {
            pod_ip_infos: nics.into_iter().map(|nic| convert::pb_pod_nic(nic, host.as_ref())).collect(),
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl IpamService for Ipam {
    async fn request_ip_configs(
        &self,
        request: Request<pb::RequestIpConfigsRequest>,
    ) -> Result<Response<pb::RequestIpConfigsResponse>, Status> {
        let actor = Context::actor(&request);
        let request = request.into_inner();
        if request.backend_interface_exist {
            // Nothing is taken from the pool for a pod that cannot be wired whole (spec/ipam.md §15 R12).
            let macs = request.backend_interface_mac_addresses.join(", ");
            let message = format!("BackendNIC allocation failed: Backend Network adapter not found: {macs}");
            return Err(Failure::new(
                Code::FailedPrecondition,
                ReturnCode::FailedToAllocateIpConfig,
                message,
            )
            .detail("BACKEND_NIC_NOT_FOUND")
            .put("mac_addresses", macs)
            .remedy("schedule the pod on a node with this adapter, or ask without backend interfaces")
            .into());
        }
        // The old call for one address never knew of pods' own NCs (spec/rest-contract.md §6.21).
        if self.0.pods_have_ncs() && !request.exactly_one {
            return self.of_own_ncs(request).await;
        }
        let mut desired = Vec::with_capacity(request.desired_ip_addresses.len());
        for (i, text) in request.desired_ip_addresses.iter().enumerate() {
            let invalid = |_| {
                status::InvalidField::new(
                    format!("desired_ip_addresses[{i}]"),
                    format!("[validateDesiredIPAddresses] invalid ip {text} specified as desired IP"),
                )
                .code(ReturnCode::FailedToAllocateIpConfig)
            };
            desired.push(parse_ip(text).map_err(invalid)?);
        }
        let begun = Instant::now();
        let sandbox = convert::sandbox("sandbox", request.sandbox)?;
        let mut ask = RequestIps {
            requester: Requester::Client,
            container: convert::container("infra_container_id", &request.infra_container_id)?,
            interface_id: request.pod_interface_id,
            ifname: convert::ifname("ifname", &request.ifname)?,
            pod: convert::pod("pod", request.pod)?,
            desired,
            witnessed: self.0.sandboxes.witness(sandbox.as_ref()).await,
            sandbox,
            began: convert::began(request.began_boottime_ns),
            secondary_interfaces: request.secondary_interfaces_exist,
            single: request.exactly_one,
        };
        let key = PodKey::of(self.0.ledger.config().scheme, ask.container.as_ref(), &ask.interface_id);
        self.0.sandboxes.release_earlier_of(&ask.pod, ask.container.as_ref()).await;
        let mut outcome = self.0.ledger.request_ips(actor.clone(), ask.clone()).await;
        if matches!(outcome, Err(LedgerError::Rejected(Rejection::Exhausted { .. })))
            && self.0.sandboxes.sweep().await
        {
            // The witness may be a moment old by now; the answer must not depend on it.
            ask.witnessed = self.0.sandboxes.witness(ask.sandbox.as_ref()).await;
            outcome = self.0.ledger.request_ips(actor, ask).await;
        }
        if let Some(key) = key {
            match &outcome {
                // Asked again: it does not wait, and was counted.
                Ok(granted) if granted.repeated => drop(self.0.first_requests.forget(&key)),
                Ok(_) => self.0.first_requests.granted(&key, begun),
                Err(_) => self.0.first_requests.refused(key, begun),
            }
        }
        let granted = outcome.map_err(status::of_ledger)?;
        let host = self.0.host_interface();
        Ok(Response::new(pb::RequestIpConfigsResponse {
            pod_ip_infos: granted
                .ips
                .iter()
                .map(|(record, nc)| convert::pb_pod_ip_info(record, nc, host.as_ref()))
                .collect(),
            warnings: granted.warnings,
            repeated_request: granted.repeated,
        }))
    }

    async fn release_ip_configs(
        &self,
        request: Request<pb::ReleaseIpConfigsRequest>,
    ) -> Result<Response<pb::ReleaseIpConfigsResponse>, Status> {
        let actor = Context::actor(&request);
        let request = request.into_inner();
        let release = ReleaseIps {
            container: convert::container("infra_container_id", &request.infra_container_id)?,
            interface_id: request.pod_interface_id,
            ifname: convert::ifname("ifname", &request.ifname)?,
            pod: convert::pod("pod", request.pod)?,
            began: convert::began(request.began_boottime_ns),
            single: request.exactly_one,
        };
        let scheme = self.0.ledger.config().scheme;
        if let Some(key) = PodKey::of(scheme, release.container.as_ref(), &release.interface_id) {
            self.0.first_requests.forget(&key);
        }
        let released = self.0.ledger.release_ips(actor, release).await.map_err(status::of_ledger)?;
        let outcome = match released.outcome {
            ReleaseOutcome::Released => pb::ReleaseOutcome::Released,
            ReleaseOutcome::NothingHeld => pb::ReleaseOutcome::NothingHeld,
            ReleaseOutcome::Stale => pb::ReleaseOutcome::Stale,
            ReleaseOutcome::OtherInterface => pb::ReleaseOutcome::OtherInterface,
        };
        Ok(Response::new(pb::ReleaseIpConfigsResponse {
            released_ip_addresses: released.addresses.iter().map(ToString::to_string).collect(),
            outcome: outcome.into(),
        }))
    }

    async fn list_ip_configs(
        &self,
        request: Request<pb::ListIpConfigsRequest>,
    ) -> Result<Response<pb::ListIpConfigsResponse>, Status> {
        let request = request.into_inner();
        let mut states = HashSet::new();
        for (i, state) in request.states.iter().enumerate() {
            states.extend(convert::ip_state(&format!("states[{i}]"), *state)?);
        }
        let nc: Option<NcId> = convert::optional("network_container_id", &request.network_container_id)?;
        let family = convert::family("family", request.family)?;
        let pod = convert::pod_filter("pod", request.pod)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(convert::ip("page_token", token)?),
        };
        let size = super::page_size(request.page_size, PAGE);
        let matches = |record: &&Arc<IpRecord>| {
            (states.is_empty() || states.contains(&record.state.kind()))
                && nc.as_ref().is_none_or(|nc| record.nc == *nc)
                && family.is_none_or(|family| crate::model::Family::of(record.address) == family)
                && pod
                    .as_ref()
                    .is_none_or(|pod| record.state.assignment().is_some_and(|owner| owner.pod == *pod))
        };
        let (now, cool_down) = (Now::read(), self.0.ledger.config().cool_down);
        let view = self.0.ledger.view();
        let mut found = view.ips_from(after).filter(matches);
        let page: Vec<Arc<IpRecord>> = found.by_ref().take(size).cloned().collect();
        let more = found.next().is_some();
        let next_page_token = match page.last() {
            Some(last) if more => last.address.to_string(),
            _ => String::new(),
        };
        // The writer waits for whoever holds the view: texts are made after.
        drop(found);
        drop(view);
        let ip_configs = page.iter().map(|record| convert::pb_ip_config(record, cool_down, now)).collect();
        Ok(Response::new(pb::ListIpConfigsResponse { ip_configs, next_page_token }))
    }

    async fn list_pod_ip_configs(
        &self,
        request: Request<pb::ListPodIpConfigsRequest>,
    ) -> Result<Response<pb::ListPodIpConfigsResponse>, Status> {
        let request = request.into_inner();
        let container = convert::container("infra_container_id", &request.infra_container_id)?;
        let pod = convert::pod_filter("pod", request.pod)?;
        if container.is_none() && pod.is_none() {
            return Err(status::InvalidField::new("pod", "a pod's name or a container id is expected").into());
        }
        let found = self.0.held_by(pod.as_ref(), container.as_ref());
        let (now, cool_down) = (Now::read(), self.0.ledger.config().cool_down);
        let ip_configs = found.iter().map(|record| convert::pb_ip_config(record, cool_down, now)).collect();
        Ok(Response::new(pb::ListPodIpConfigsResponse { ip_configs }))
    }

    async fn request_claim_resource_info(
        &self,
        _: Request<pb::RequestClaimResourceInfoRequest>,
    ) -> Result<Response<pb::RequestClaimResourceInfoResponse>, Status> {
        Err(status::unimplemented(
            "RequestClaimResourceInfo",
            "this daemon has no delegated NICs (SwiftV2) yet",
        ))
    }

    type WatchIPConfigsStream = Responses<pb::WatchIpConfigsResponse>;

    async fn watch_ip_configs(
        &self,
        request: Request<pb::WatchIpConfigsRequest>,
    ) -> Result<Response<Self::WatchIPConfigsStream>, Status> {
        let request = request.into_inner();
        let nc: Option<NcId> = convert::optional("network_container_id", &request.network_container_id)?;
        let watch = self.0.watch()?;
        let (now, cool_down) = (Now::read(), self.0.ledger.config().cool_down);
        let mut from = watch.since;
        let mut initial: Vec<Arc<IpRecord>> = Vec::new();
        if request.send_initial_state {
            // Only references are taken while the view is held: the writer waits for that.
            let view = self.0.ledger.view();
            from = view.seq();
            initial.extend(view.ips_from(None).filter(|record| is_of(nc.as_ref(), record)).cloned());
        }
        let initial = initial.into_iter().map(move |record| pb::WatchIpConfigsResponse {
            ip_config: Some(convert::pb_ip_config(&record, cool_down, now)),
            ..Default::default()
        });
        let complete = request
            .send_initial_state
            .then(|| pb::WatchIpConfigsResponse { initial_state_complete: true, ..Default::default() });
        let told = move |committed: &Committed| {
            let change = |effect: &Effect| watched(effect, committed.entry.seq, nc.as_ref(), cool_down);
            committed.effects.iter().filter_map(change).collect()
        };
        Ok(Response::new(watch.stream(initial.chain(complete), from, told, watch::begin_anew)))
    }
}

fn is_of(nc: Option<&NcId>, record: &IpRecord) -> bool {
    nc.is_none_or(|nc| record.nc == *nc)
}

/// What a watcher of the network container, or of all, is told of an effect. An address that moves to another one is gone from
/// the first and new in the second.
fn watched(
    effect: &Effect,
    sequence: u64,
    nc: Option<&NcId>,
    cool_down: std::time::Duration,
) -> Option<pb::WatchIpConfigsResponse> {
    let Effect::Ip { before, after } = effect else { return None };
    let before = before.as_ref().filter(|record| is_of(nc, record));
    let after = after.as_ref().filter(|record| is_of(nc, record));
    let now = Now::read();
    let show = |record: &Arc<IpRecord>| convert::pb_ip_config(record, cool_down, now);
    let ip_config = match (before, after) {
        (None, None) => return None,
        // The record goes: it has no state any more.
        (Some(before), None) => pb::IpConfig {
            id: before.id.to_string(),
            ip_address: before.address.to_string(),
            network_container_id: before.nc.to_string(),
            ..Default::default()
        },
        (None, Some(after)) => show(after),
        (Some(before), Some(after)) => {
            let shown = show(after);
            // Not everything that is kept is told.
            if shown == show(before) {
                return None;
            }
            shown
        }
    };
    Some(pb::WatchIpConfigsResponse {
        ip_config: Some(ip_config),
        previous_state: convert::pb_ip_state(before.map(|record| record.state.kind())).into(),
        sequence,
        initial_state_complete: false,
    })
}
