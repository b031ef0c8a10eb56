//! `cns.v1.EndpointService`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{
    Context, convert, status,
    watch::{self, Responses},
};
use crate::{
    ledger::{Command, Committed, Effect, Rejection, UpdateEndpoint},
    model::{ContainerId, Endpoint},
    proto::v1::{self as pb, endpoint_service_server::EndpointService},
};

const PAGE: (usize, usize) = (1_000, 10_000);

/// See the contract.
#[derive(Clone, Debug)]
pub(super) struct Endpoints(pub(super) Context);

#[tonic::async_trait]
impl EndpointService for Endpoints {
    async fn get_endpoint(
        &self,
        request: Request<pb::GetEndpointRequest>,
    ) -> Result<Response<pb::GetEndpointResponse>, Status> {
        let container: ContainerId = convert::required("container_id", &request.into_inner().container_id)?;
        let endpoint = self.0.ledger.view().endpoint(&container).cloned();
        let endpoint =
            endpoint.ok_or_else(|| status::of_rejection(&Rejection::EndpointNotFound { container }))?;
        Ok(Response::new(pb::GetEndpointResponse { endpoint: Some(convert::pb_endpoint(&endpoint)) }))
    }

    async fn list_endpoints(
        &self,
        request: Request<pb::ListEndpointsRequest>,
    ) -> Result<Response<pb::ListEndpointsResponse>, Status> {
        let request = request.into_inner();
        let pod = convert::pod_filter("pod", request.pod)?;
        let after: Option<ContainerId> = convert::optional("page_token", &request.page_token)?;
        let size = super::page_size(request.page_size, PAGE);
        let view = self.0.ledger.view();
        let wanted = |endpoint: &&Arc<Endpoint>| pod.as_ref().is_none_or(|pod| endpoint.pod == *pod);
        let mut found = view.endpoints_from(after.as_ref()).filter(wanted);
        let page: Vec<Arc<Endpoint>> = found.by_ref().take(size).cloned().collect();
        let more = found.next().is_some();
        let next_page_token = match page.last() {
            Some(last) if more => last.container.to_string(),
            _ => String::new(),
        };
        // The writer waits for whoever holds the view: texts are made after.
        drop(found);
        drop(view);
        let endpoints = page.iter().map(|endpoint| convert::pb_endpoint(endpoint)).collect();
        Ok(Response::new(pb::ListEndpointsResponse { endpoints, next_page_token }))
    }

    async fn update_endpoint(
        &self,
        request: Request<pb::UpdateEndpointRequest>,
    ) -> Result<Response<pb::UpdateEndpointResponse>, Status> {
        let actor = Context::actor(&request);
        let request = request.into_inner();
        let nics = request.interfaces.into_iter().enumerate();
        let interfaces = nics.map(|(i, nic)| convert::endpoint_interface(&format!("interfaces[{i}]"), nic));
        let sandbox = convert::sandbox("sandbox", request.sandbox)?;
        let update = UpdateEndpoint {
            container: convert::required("container_id", &request.container_id)?,
            pod: convert::pod_filter("pod", request.pod)?,
            interfaces: interfaces.collect::<Result<_, _>>()?,
            witnessed: self.0.sandboxes.witness(sandbox.as_ref()).await,
            sandbox,
            began: convert::began(request.began_boottime_ns),
        };
        let endpoint = self.0.ledger.update_endpoint(actor, update).await.map_err(status::of_ledger)?;
        Ok(Response::new(pb::UpdateEndpointResponse { endpoint: Some(convert::pb_endpoint(&endpoint)) }))
    }

    async fn delete_endpoint(
        &self,
        request: Request<pb::DeleteEndpointRequest>,
    ) -> Result<Response<pb::DeleteEndpointResponse>, Status> {
        let actor = Context::actor(&request);
        let container = convert::required("container_id", &request.into_inner().container_id)?;
        self.0
            .ledger
            .submit(actor, Command::DeleteEndpoint { container })
            .await
            .map_err(status::of_ledger)?;
        Ok(Response::new(pb::DeleteEndpointResponse {}))
    }

    type WatchEndpointsStream = Responses<pb::WatchEndpointsResponse>;

    async fn watch_endpoints(
        &self,
        request: Request<pb::WatchEndpointsRequest>,
    ) -> Result<Response<Self::WatchEndpointsStream>, Status> {
        let send_initial_state = request.into_inner().send_initial_state;
        let watch = self.0.watch()?;
        let mut from = watch.since;
        let mut initial: Vec<Arc<Endpoint>> = Vec::new();
        if send_initial_state {
            // Only references are taken while the view is held: the writer waits for that.
            let view = self.0.ledger.view();
            from = view.seq();
            initial.extend(view.endpoints_from(None).cloned());
        }
        let initial = initial.into_iter().map(|endpoint| pb::WatchEndpointsResponse {
            endpoint: Some(convert::pb_endpoint(&endpoint)),
            ..Default::default()
        });
        let complete = send_initial_state
            .then(|| pb::WatchEndpointsResponse { initial_state_complete: true, ..Default::default() });
        let told = |committed: &Committed| {
            committed.effects.iter().filter_map(|effect| watched(effect, committed.entry.seq)).collect()
        };
        Ok(Response::new(watch.stream(initial.chain(complete), from, told, watch::begin_anew)))
    }
}

fn watched(effect: &Effect, sequence: u64) -> Option<pb::WatchEndpointsResponse> {
    let Effect::Endpoint { before, after } = effect else { return None };
    let endpoint = match (after, before) {
        (Some(after), _) => convert::pb_endpoint(after),
        (None, Some(before)) => {
            pb::Endpoint { container_id: before.container.to_string(), ..Default::default() }
        }
        (None, None) => return None,
    };
    Some(pb::WatchEndpointsResponse {
        endpoint: Some(endpoint),
        deleted: after.is_none(),
        sequence,
        initial_state_complete: false,
    })
}
