//! `cns.v1.DebugService`: what happened, what is, what is wrong.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;
use tonic::{Code, Request, Response, Status};

use super::{Context, LegacyDocuments, convert, sandbox, status, veth, watch::Responses};
use crate::{
    ledger::{Committed, NcView, View},
    model::{
        ContainerId, Endpoint, Family, IpRecord, IpState, IpStateKind, JournalEntry, NcId, Now, OnRelease,
        Operation, Outcome, PodIdentity, ReturnCode,
    },
    nic::Liveness,
    proto::v1::{self as pb, debug_service_server::DebugService},
};

/// The most that one chunk of a bundle carries.
const CHUNK: usize = 64 << 10;

/// See the contract.
#[derive(Clone, Debug)]
pub(super) struct Debug(pub(super) Context);

impl Debug {
    async fn journal(
        &self,
        filter: impl Fn(&JournalEntry) -> bool + Send + 'static,
    ) -> Result<Vec<JournalEntry>, Status> {
        let journal = self.0.journal.clone();
        let read = spawn_blocking(move || journal.read(&filter)).await;
        read.map_err(|error| internal(&error))?
            .map_err(|error| internal(&format!("the journal cannot be read: {error}")))
    }

    fn state(&self, without_ip_configs: bool) -> pb::GetStateResponse {
        let node = Some(self.0.node_info());
        let (now, cool_down) = (Now::read(), self.0.ledger.config().cool_down);
        // The writer waits for whoever holds the view: texts are made after.
        let (ncs, ips, endpoints) = {
            let view = self.0.ledger.view();
            let ncs: Vec<NcView> = view.ncs().cloned().collect();
            let ips: Vec<_> = view.ips_from(None).filter(|_| !without_ip_configs).cloned().collect();
            let endpoints: Vec<_> = view.endpoints_from(None).cloned().collect();
            (ncs, ips, endpoints)
        };
        let entry = |nc: &NcView| pb::NetworkContainerEntry {
            network_container: Some(convert::pb_nc(&nc.record.spec, std::iter::empty())),
            status: Some(convert::pb_nc_status(nc)),
            programming_pending: false,
        };
        pb::GetStateResponse {
            node,
            network_containers: ncs.iter().map(entry).collect(),
            ip_configs: ips.iter().map(|record| convert::pb_ip_config(record, cool_down, now)).collect(),
            endpoints: endpoints.iter().map(|endpoint| convert::pb_endpoint(endpoint)).collect(),
        }
    }

    async fn findings(&self) -> Result<pb::DiagnoseResponse, Status> {
        let inspection = self.0.ledger.inspect().await.map_err(status::of_ledger)?;
        let mut findings: Vec<pb::Finding> = inspection
            .violations
            .into_iter()
            .map(|message| pb::Finding {
                severity: pb::FindingSeverity::Error.into(),
                kind: "INVARIANT".into(),
                message,
                remedy: "this is a bug: keep the state file and `cnsctl bundle`, and report it".into(),
                ..Default::default()
            })
            .collect();
        findings.extend(self.dead_sandboxes().await?);
        findings.extend(self.stray_veths().await);
        findings.extend(self.pool_findings());
        findings.extend(self.source_finding());
        findings.extend(self.agent_findings());
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(pb::DiagnoseResponse {
            findings,
            checked_ip_configs: count(inspection.addresses),
            checked_endpoints: count(inspection.endpoints),
            checked_network_containers: count(inspection.ncs),
        })
    }

    /// Agents whose last call failed.
    fn agent_findings(&self) -> impl Iterator<Item = pb::Finding> {
        let states = self.0.agent_states();
        states.into_iter().filter_map(|state| {
            let status = state.status();
            let failure = status.last_failure.as_ref().filter(|_| status.is_answering() == Some(false))?;
            let since = status.since.map(|since| since.to_string()).unwrap_or_default();
            Some(pb::Finding {
                severity: pb::FindingSeverity::Warning.into(),
                kind: "AGENT_FAILING".into(),
                message: format!(
                    "{} has failed {} times in a row since {since}: {}",
                    state.agent(),
                    status.failed_in_a_row,
                    failure.error
                ),
                remedy: format!("see that {} can be reached from this machine and is well", state.address()),
                ..Default::default()
            })
        })
    }

    async fn stray_veths(&self) -> Vec<pb::Finding> {
        let listed = match veth::host_network() {
            Ok(network) => veth::strays(&self.0.ledger, &network).await,
            Err(error) => Err(error),
        };
        let finding = |severity: pb::FindingSeverity, kind: &str, message, remedy: String| pb::Finding {
            severity: severity.into(),
            kind: kind.into(),
            message,
            remedy,
            ..Default::default()
        };
        match listed {
            Ok(strays) => strays
                .into_iter()
                .map(|stray| {
                    let name = &stray.veth.link.name;
                    let (severity, remedy) = if stray.deleted_here {
                        let remedy = "the reconciler deletes it after the grace period".to_owned();
                        (pb::FindingSeverity::Warning, remedy)
                    } else {
                        let remedy = format!(
                            "it may be another daemon's, or of a pod that runs on although the state was lost; if not, \
                             `ip link delete {name}`"
                        );
                        (pb::FindingSeverity::Info, remedy)
                    };
                    pb::Finding {
                        container_id: stray.attachment.container().to_string(),
                        ..finding(
                            severity,
                            "STRAY_VETH",
                            format!("host veth {name} ({}) has no endpoint record", stray.attachment),
                            remedy,
                        )
                    }
                })
                .collect(),
            Err(error) => vec![finding(
                pb::FindingSeverity::Info,
                "HOST_NETWORK_UNSEEN",
                format!("host veths could not be looked at: {error}"),
                "run the daemon where it sees the host's network".to_owned(),
            )],
        }
    }

    async fn dead_sandboxes(&self) -> Result<Vec<pb::Finding>, Status> {
        let endpoints: Vec<Arc<Endpoint>> = self.0.ledger.view().endpoints_from(None).cloned().collect();
        let judged = spawn_blocking(move || {
            let look = |endpoint: Arc<Endpoint>| {
                let sandbox = endpoint.sandbox.clone()?;
                let found = sandbox::look(&sandbox);
                Some((endpoint, found, sandbox::describe(&sandbox, found)))
            };
            endpoints
                .into_iter()
                .filter_map(look)
                .filter(|(_, found, _)| *found != Liveness::Alive)
                .collect::<Vec<_>>()
        });
        let judged = judged.await.map_err(|error| internal(&error))?;
        Ok(judged
            .into_iter()
            .map(|(endpoint, found, words)| {
                let held = self.0.held_by(None, Some(&endpoint.container));
                let (severity, remedy) = match (found, endpoint.witnessed) {
                    (Liveness::Gone | Liveness::Replaced, true) => (
                        pb::FindingSeverity::Warning,
                        "the reconciler releases what it holds after the grace period",
                    ),
                    (Liveness::Gone | Liveness::Replaced, false) => (
                        pb::FindingSeverity::Warning,
                        "this daemon never saw the sandbox alive and leaves it alone; \
                         `cnsctl ip release` if the container is gone",
                    ),
                    (_, _) => {
                        (pb::FindingSeverity::Info, "check that the daemon sees the runtime's namespaces")
                    }
                };
                pb::Finding {
                    severity: severity.into(),
                    kind: if found == Liveness::Unknown { "UNSEEN_SANDBOX" } else { "DEAD_SANDBOX" }.into(),
                    message: format!("container {} of pod {}: {words}", endpoint.container, endpoint.pod),
                    remedy: remedy.into(),
                    container_id: endpoint.container.to_string(),
                    ip_addresses: held.iter().map(|record| record.address.to_string()).collect(),
                }
            })
            .collect())
    }

    fn pool_findings(&self) -> Vec<pb::Finding> {
        let mut findings = Vec::new();
        let view = self.0.ledger.view();
        for family in Family::ALL {
            let mut sums = [0_u32; 4];
            for nc in view.ncs() {
                for (sum, count) in sums.iter_mut().zip(nc.counts[usize::from(family == Family::V6)]) {
                    *sum += count;
                }
            }
            if sums.iter().sum::<u32>() > 0 && sums[IpStateKind::Available.index()] == 0 {
                findings.push(pb::Finding {
                    severity: pb::FindingSeverity::Warning.into(),
                    kind: "POOL_EXHAUSTED".into(),
                    message: format!("no free {family} address: the next pod gets none"),
                    remedy: "release unused pods or widen the address range".into(),
                    ..Default::default()
                });
            }
        }
        let withdrawn: Vec<&Arc<IpRecord>> = view
            .ips_from(None)
            .filter(|ip| ip.state.kind() == IpStateKind::Assigned && ip.on_release == OnRelease::Remove)
            .collect();
        if !withdrawn.is_empty() {
            findings.push(pb::Finding {
                severity: pb::FindingSeverity::Info.into(),
                kind: "WITHDRAWN_IN_USE".into(),
                message: format!(
                    "{} addresses are in use that their source no longer lists",
                    withdrawn.len()
                ),
                remedy: "they stay with their pods and go when these end".into(),
                ip_addresses: withdrawn.iter().take(64).map(|ip| ip.address.to_string()).collect(),
                ..Default::default()
            });
        }
        findings
    }

    fn source_finding(&self) -> Option<pb::Finding> {
        let alarm = self.0.source.as_ref()?.alarms.borrow().clone()?;
        Some(pb::Finding {
            severity: pb::FindingSeverity::Warning.into(),
            kind: "SOURCE_DOUBTED".into(),
            message: alarm.message,
            remedy: alarm.remedy,
            ..Default::default()
        })
    }

    fn summary(&self, asked: &Subject, addresses: &[Arc<IpRecord>], events: &[JournalEntry]) -> String {
        let mut lines: Vec<String> = addresses.iter().map(|record| self.words(record)).collect();
        if let Subject::Ip(address) = asked
            && addresses.is_empty()
        {
            lines.push(format!("{address} is in no network container of this node"));
        }
        if let Subject::Container(container) = asked
            && let Some(tombstone) = self.0.ledger.view().tombstone(container)
        {
            lines.push(format!(
                "container {container} was deleted at {}; a call for it that began before is refused",
                tombstone.at
            ));
        }
        if !matches!(asked, Subject::Ip(_)) && addresses.is_empty() {
            lines.push(format!("{asked} holds no address"));
        }
        let refusal = events.iter().rev().find(|entry| entry.operation == Operation::RequestIpConfigs);
        if let Some(JournalEntry { at, outcome: Outcome::Refused { message, .. }, .. }) = refusal {
            lines.push(format!("its last request was refused at {at}: {message}"));
        }
        lines.join("\n")
    }

    fn words(&self, record: &IpRecord) -> String {
        let (address, nc, since) = (record.address, &record.nc, record.since);
        match &record.state {
            IpState::Available => match record.freed {
                Some(freed) => {
                    let rested = Now::read().boot.since(freed);
                    let left = self.0.ledger.config().cool_down.saturating_sub(rested);
                    if left.is_zero() {
                        format!("{address} is free since {since} ({nc})")
                    } else {
                        format!(
                            "{address} was freed at {since} and rests {} s more ({nc})",
                            left.as_secs() + 1
                        )
                    }
                }
                None => format!("{address} is free; no pod had it since the machine started ({nc})"),
            },
            IpState::Assigned(owner) => {
                let after = match record.on_release {
                    OnRelease::Free => "",
                    OnRelease::GiveBack => "; it will be given back when the pod lets go",
                    OnRelease::Remove => "; its source no longer lists it, it goes when the pod lets go",
                };
                let container = owner.container.as_ref().map_or("", ContainerId::as_str);
                let pod = if owner.pod.is_known() { format!(" of pod {}", owner.pod) } else { String::new() };
                format!("{address} belongs to container {container}{pod} since {since} ({nc}){after}")
            }
            IpState::PendingProgramming => {
                let host = self.0.ledger.view().nc(nc).and_then(|nc| nc.record.host_version);
                let host = host.map_or("nothing".to_owned(), |version| format!("version {version}"));
                format!(
                    "{address} waits since {since} for the host to program version {} of {nc}; it has {host}",
                    record.nc_version
                )
            }
            IpState::PendingRelease => {
                format!("{address} waits since {since} to be given back to the control plane ({nc})")
            }
        }
    }
}

fn internal(error: &impl ToString) -> Status {
    status::failure(Code::Internal, ReturnCode::UnexpectedError, error.to_string())
}

enum Subject {
    Ip(IpAddr),
    Pod(PodIdentity),
    Container(ContainerId),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Container(container) => write!(f, "container {container}"),
        }
    }
}

#[tonic::async_trait]
impl DebugService for Debug {
    async fn get_state(
        &self,
        request: Request<pb::GetStateRequest>,
    ) -> Result<Response<pb::GetStateResponse>, Status> {
        Ok(Response::new(self.state(request.into_inner().without_ip_configs)))
    }

    type WatchEventsStream = Responses<pb::WatchEventsResponse>;

    async fn watch_events(
        &self,
        request: Request<pb::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let from = request.into_inner().from_sequence;
        // Subscribed before the journal is read, so that nothing falls between; what both have is told once.
        let watch = self.0.watch()?;
        let kept = if from == 0 { Vec::new() } else { self.journal(move |entry| entry.seq >= from).await? };
        let next = kept.last().map_or(watch.since, |entry| entry.seq + 1);
        // Sequences have no gaps of their own: what is wanted and not there was pushed out by later entries.
        let wanted = if from == 0 { 0 } else { next.saturating_sub(from) };
        let missed = wanted.saturating_sub(u64::try_from(kept.len()).unwrap_or(u64::MAX));
        let gone = (missed > 0).then_some(pb::WatchEventsResponse { event: None, missed });
        let tell = |entry: &JournalEntry| pb::WatchEventsResponse {
            event: Some(convert::pb_event(entry)),
            missed: 0,
        };
        let kept = kept.into_iter().map(move |entry| tell(&entry));
        let from = next.max(from);
        let told = move |committed: &Committed| vec![tell(&committed.entry)];
        let remedy = |next| format!("watch again from sequence {next}: the journal has what was dropped");
        Ok(Response::new(watch.stream(gone.into_iter().chain(kept), from, told, remedy)))
    }

    async fn get_config(
        &self,
        _: Request<pb::GetConfigRequest>,
    ) -> Result<Response<pb::GetConfigResponse>, Status> {
        Ok(Response::new(pb::GetConfigResponse { config_json: self.0.facts.config_json.clone() }))
    }

    type CollectBundleStream = Responses<pb::CollectBundleResponse>;

    async fn collect_bundle(
        &self,
        _: Request<pb::CollectBundleRequest>,
    ) -> Result<Response<Self::CollectBundleStream>, Status> {
        // A bundle is held in memory until it is fetched.
        let place = self.0.stream_place()?;
        let journal = self.journal(|_| true).await?;
        let lines = |values: Vec<serde_json::Value>| {
            let text: Vec<String> = values.iter().map(ToString::to_string).collect();
            text.join("\n").into_bytes()
        };
        let journal = journal.iter().filter_map(|entry| serde_json::to_value(entry).ok()).collect();
        let (ips, endpoints, ncs) = {
            let view = self.0.ledger.view();
            let ips: Vec<_> = view.ips_from(None).cloned().collect();
            let endpoints: Vec<_> = view.endpoints_from(None).cloned().collect();
            let ncs: Vec<_> = view.ncs().map(|nc| nc.record.clone()).collect();
            (ips, endpoints, ncs)
        };
        let ips = ips.iter().filter_map(|ip| serde_json::to_value(&**ip).ok()).collect();
        let endpoints = endpoints.iter().filter_map(|e| serde_json::to_value(&**e).ok()).collect();
        let ncs = ncs.iter().filter_map(|nc| serde_json::to_value(&**nc).ok()).collect();
        let findings = self.findings().await?;
        let findings: Vec<String> = findings
            .findings
            .iter()
            .map(|finding| format!("{}: {} ({})", finding.kind, finding.message, finding.remedy))
            .collect();
        let files: Vec<(&str, Vec<u8>)> = vec![
            ("config.json", self.0.facts.config_json.clone().into_bytes()),
            ("findings.txt", findings.join("\n").into_bytes()),
            ("network-containers.jsonl", lines(ncs)),
            ("ip-configs.jsonl", lines(ips)),
            ("endpoints.jsonl", lines(endpoints)),
            ("journal.jsonl", lines(journal)),
        ];
        let chunks = files.into_iter().flat_map(|(name, content)| {
            let parts: Vec<Vec<u8>> = if content.is_empty() {
                vec![Vec::new()]
            } else {
                content.chunks(CHUNK).map(<[u8]>::to_vec).collect()
            };
            parts.into_iter().map(move |chunk| {
                Ok(pb::CollectBundleResponse { file_name: name.to_owned(), chunk: chunk.into() })
            })
        });
        let held = stream::iter(chunks).inspect(move |_| {
            let _ = &place;
        });
        Ok(Response::new(Box::pin(self.0.until_stopped(held))))
    }

    async fn explain(
        &self,
        request: Request<pb::ExplainRequest>,
    ) -> Result<Response<pb::ExplainResponse>, Status> {
        use pb::explain_request::Subject as Asked;
        let subject = match request.into_inner().subject {
            Some(Asked::IpAddress(text)) => Subject::Ip(convert::ip("ip_address", &text)?),
            Some(Asked::Pod(pod)) => Subject::Pod(convert::pod("pod", Some(pod))?),
            Some(Asked::ContainerId(text)) => Subject::Container(convert::required("container_id", &text)?),
            None => {
                let why = "an address, a pod or a container is expected";
                return Err(status::InvalidField::new("subject", why).into());
            }
        };
        let held: Vec<Arc<IpRecord>> = match &subject {
            Subject::Ip(address) => self.0.ledger.view().ip(*address).cloned().into_iter().collect(),
            Subject::Pod(pod) => self.0.held_by(Some(pod), None),
            Subject::Container(container) => self.0.held_by(None, Some(container)),
        };
        let ncs: HashSet<NcId> = held.iter().map(|record| record.nc.clone()).collect();
        let events = match &subject {
            Subject::Ip(address) => {
                let address = *address;
                let of_nc = move |entry: &JournalEntry| {
                    matches!(
                        entry.operation,
                        Operation::UpsertNc | Operation::DeleteNc | Operation::SetHostVersions
                    ) && matches!(entry.outcome, Outcome::Done)
                        && entry.nc.as_ref().is_some_and(|nc| ncs.contains(nc))
                };
                self.journal(move |entry| entry.addresses.contains(&address) || of_nc(entry)).await?
            }
            Subject::Pod(pod) => {
                let pod = pod.clone();
                self.journal(move |entry| entry.pod.as_ref() == Some(&pod)).await?
            }
            Subject::Container(container) => {
                let container = container.clone();
                self.journal(move |entry| entry.container.as_ref() == Some(&container)).await?
            }
        };
        let endpoints: Vec<Arc<Endpoint>> = {
            let view = self.0.ledger.view();
            let of = |container: &ContainerId| view.endpoint(container).cloned();
            match &subject {
                Subject::Ip(_) => {
                    held.iter().filter_map(|ip| of(ip.state.assignment()?.container.as_ref()?)).collect()
                }
                Subject::Pod(pod) => view.containers_of_pod(pod).filter_map(of).collect(),
                Subject::Container(container) => of(container).into_iter().collect(),
            }
        };
        let (now, cool_down) = (Now::read(), self.0.ledger.config().cool_down);
        Ok(Response::new(pb::ExplainResponse {
            summary: self.summary(&subject, &held, &events),
            ip_configs: held.iter().map(|record| convert::pb_ip_config(record, cool_down, now)).collect(),
            endpoints: endpoints.iter().map(|endpoint| convert::pb_endpoint(endpoint)).collect(),
            events: events.iter().map(convert::pb_event).collect(),
        }))
    }

    async fn diagnose(
        &self,
        _: Request<pb::DiagnoseRequest>,
    ) -> Result<Response<pb::DiagnoseResponse>, Status> {
        Ok(Response::new(self.findings().await?))
    }

    async fn import_legacy_state(
        &self,
        request: Request<pb::ImportLegacyStateRequest>,
    ) -> Result<Response<pb::ImportLegacyStateResponse>, Status> {
        let actor = Context::actor(&request);
        let request = request.into_inner();
        let documents = LegacyDocuments {
            azure_cns: request.azure_cns_json.to_vec(),
            azure_endpoints: request.azure_endpoints_json.to_vec(),
            azure_vnet: request.azure_vnet_json.to_vec(),
        };
        let format = self.0.legacy.clone();
        let parsed =
            spawn_blocking(move || format.parse(&documents)).await.map_err(|error| internal(&error))?;
        let (legacy, mut skipped) = parsed.map_err(|why| status::InvalidField::new("documents", why))?;
        let imported = self.0.ledger.import_legacy(actor, legacy).await.map_err(status::of_ledger)?;
        skipped.extend(imported.skipped);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Response::new(pb::ImportLegacyStateResponse {
            network_containers: count(imported.ncs),
            endpoints: count(imported.endpoints),
            assigned_ip_configs: count(imported.assigned),
            skipped,
        }))
    }

    async fn export_legacy_state(
        &self,
        _: Request<pb::ExportLegacyStateRequest>,
    ) -> Result<Response<pb::ExportLegacyStateResponse>, Status> {
        // A copy: the documents of a large node take a while, and the writer must not wait for them.
        let (format, snapshot) = (self.0.legacy.clone(), View::clone(&self.0.ledger.view()));
        let rendered = spawn_blocking(move || format.render(&snapshot)).await;
        let documents = rendered.map_err(|error| internal(&error))?.map_err(|error| internal(&error))?;
        Ok(Response::new(pb::ExportLegacyStateResponse {
            azure_cns_json: documents.azure_cns.into(),
            azure_endpoints_json: documents.azure_endpoints.into(),
            azure_vnet_json: documents.azure_vnet.into(),
        }))
    }
}
