//! Every rpc of the contract as a method of [`Client`]. What it does and refuses is written in `proto/cns/v1`.

use cns::proto::v1::{
    self as pb, debug_service_client::DebugServiceClient, device_service_client::DeviceServiceClient,
    endpoint_service_client::EndpointServiceClient, ipam_service_client::IpamServiceClient,
    network_container_service_client::NetworkContainerServiceClient,
    nm_agent_service_client::NmAgentServiceClient, node_service_client::NodeServiceClient,
};

use crate::{
    Effect, Error,
    client::{Changes, Client},
};

/// A snapshot of a node with 65 536 addresses and as many endpoints is far beyond tonic's default of 4 MiB.
const LARGEST_MESSAGE: usize = 256 << 20;

macro_rules! rpcs {
    ($($service:ident: $client:ident {
        $(unary $effect:ident $method:ident = $generated:ident($request:ident) -> $response:ident, $name:literal;)*
        $(stream $smethod:ident($srequest:ident) -> $sresponse:ident, $sname:literal;)*
    })*) => {
        impl Client {
            $(
                $(
                    #[doc = concat!("`", stringify!($service), ".", $name, "`.")]
                    pub async fn $method(&self, request: pb::$request) -> Result<pb::$response, Error> {
                        self.call($name, Effect::$effect, request, |channel, request| async move {
                            $client::new(channel)
                                .max_decoding_message_size(LARGEST_MESSAGE)
                                .$generated(request)
                                .await
                        })
                        .await
                    }
                )*
                $(
                    #[doc = concat!("`", stringify!($service), ".", $sname, "`.")]
                    pub async fn $smethod(&self, request: pb::$srequest) -> Result<Changes<pb::$sresponse>, Error> {
                        self.open($sname, request, |channel, request| async move {
                            $client::new(channel)
                                .max_decoding_message_size(LARGEST_MESSAGE)
                                .$smethod(request)
                                .await
                        })
                        .await
                    }
                )*
            )*
        }
    };
}

// `Idempotent` is what the contract says a second call does: nothing more than the first. The others answer differently
// the second time, or could overwrite what somebody else did in between.
rpcs! {
    IpamService: IpamServiceClient {
        unary Idempotent request_ip_configs = request_ip_configs(RequestIpConfigsRequest) -> RequestIpConfigsResponse, "RequestIPConfigs";
        unary Idempotent release_ip_configs = release_ip_configs(ReleaseIpConfigsRequest) -> ReleaseIpConfigsResponse, "ReleaseIPConfigs";
        unary Idempotent list_ip_configs = list_ip_configs(ListIpConfigsRequest) -> ListIpConfigsResponse, "ListIPConfigs";
        unary Idempotent list_pod_ip_configs = list_pod_ip_configs(ListPodIpConfigsRequest) -> ListPodIpConfigsResponse, "ListPodIPConfigs";
        unary Idempotent request_claim_resource_info = request_claim_resource_info(RequestClaimResourceInfoRequest) -> RequestClaimResourceInfoResponse, "RequestClaimResourceInfo";
        stream watch_ip_configs(WatchIpConfigsRequest) -> WatchIpConfigsResponse, "WatchIPConfigs";
    }
    NetworkContainerService: NetworkContainerServiceClient {
        unary Once create_or_update_network_container = create_or_update_network_container(CreateOrUpdateNetworkContainerRequest) -> CreateOrUpdateNetworkContainerResponse, "CreateOrUpdateNetworkContainer";
        unary Once batch_create_or_update_network_containers = batch_create_or_update_network_containers(BatchCreateOrUpdateNetworkContainersRequest) -> BatchCreateOrUpdateNetworkContainersResponse, "BatchCreateOrUpdateNetworkContainers";
        unary Once delete_network_container = delete_network_container(DeleteNetworkContainerRequest) -> DeleteNetworkContainerResponse, "DeleteNetworkContainer";
        unary Idempotent get_network_container = get_network_container(GetNetworkContainerRequest) -> GetNetworkContainerResponse, "GetNetworkContainer";
        unary Idempotent list_network_containers = list_network_containers(ListNetworkContainersRequest) -> ListNetworkContainersResponse, "ListNetworkContainers";
        unary Idempotent get_network_container_status = get_network_container_status(GetNetworkContainerStatusRequest) -> GetNetworkContainerStatusResponse, "GetNetworkContainerStatus";
        unary Once publish_network_container = publish_network_container(PublishNetworkContainerRequest) -> PublishNetworkContainerResponse, "PublishNetworkContainer";
        unary Once unpublish_network_container = unpublish_network_container(UnpublishNetworkContainerRequest) -> UnpublishNetworkContainerResponse, "UnpublishNetworkContainer";
        unary Idempotent get_interface_for_container = get_interface_for_container(GetInterfaceForContainerRequest) -> GetInterfaceForContainerResponse, "GetInterfaceForContainer";
        unary Once attach_container_to_network = attach_container_to_network(AttachContainerToNetworkRequest) -> AttachContainerToNetworkResponse, "AttachContainerToNetwork";
        unary Once detach_container_from_network = detach_container_from_network(DetachContainerFromNetworkRequest) -> DetachContainerFromNetworkResponse, "DetachContainerFromNetwork";
        unary Once create_host_nc_apipa_endpoint = create_host_nc_apipa_endpoint(CreateHostNcApipaEndpointRequest) -> CreateHostNcApipaEndpointResponse, "CreateHostNCApipaEndpoint";
        unary Once delete_host_nc_apipa_endpoint = delete_host_nc_apipa_endpoint(DeleteHostNcApipaEndpointRequest) -> DeleteHostNcApipaEndpointResponse, "DeleteHostNCApipaEndpoint";
    }
    EndpointService: EndpointServiceClient {
        unary Idempotent get_endpoint = get_endpoint(GetEndpointRequest) -> GetEndpointResponse, "GetEndpoint";
        unary Idempotent list_endpoints = list_endpoints(ListEndpointsRequest) -> ListEndpointsResponse, "ListEndpoints";
        unary Idempotent update_endpoint = update_endpoint(UpdateEndpointRequest) -> UpdateEndpointResponse, "UpdateEndpoint";
        unary Once delete_endpoint = delete_endpoint(DeleteEndpointRequest) -> DeleteEndpointResponse, "DeleteEndpoint";
        stream watch_endpoints(WatchEndpointsRequest) -> WatchEndpointsResponse, "WatchEndpoints";
    }
    NMAgentService: NmAgentServiceClient {
        unary Idempotent list_supported_apis = list_supported_ap_is(ListSupportedApIsRequest) -> ListSupportedApIsResponse, "ListSupportedAPIs";
        unary Idempotent list_network_container_versions = list_network_container_versions(ListNetworkContainerVersionsRequest) -> ListNetworkContainerVersionsResponse, "ListNetworkContainerVersions";
        unary Idempotent sync_host_nc_versions = sync_host_nc_versions(SyncHostNcVersionsRequest) -> SyncHostNcVersionsResponse, "SyncHostNCVersions";
        unary Idempotent get_home_az = get_home_az(GetHomeAzRequest) -> GetHomeAzResponse, "GetHomeAZ";
    }
    NodeService: NodeServiceClient {
        unary Once set_orchestrator = set_orchestrator(SetOrchestratorRequest) -> SetOrchestratorResponse, "SetOrchestrator";
        unary Idempotent get_node_info = get_node_info(GetNodeInfoRequest) -> GetNodeInfoResponse, "GetNodeInfo";
        unary Idempotent get_host_local_ip = get_host_local_ip(GetHostLocalIpRequest) -> GetHostLocalIpResponse, "GetHostLocalIP";
        unary Idempotent get_cpu_cores = get_cpu_cores(GetCpuCoresRequest) -> GetCpuCoresResponse, "GetCPUCores";
        unary Idempotent get_vm_unique_id = get_vm_unique_id(GetVmUniqueIdRequest) -> GetVmUniqueIdResponse, "GetVMUniqueID";
        unary Idempotent list_nic_resources = list_nic_resources(ListNicResourcesRequest) -> ListNicResourcesResponse, "ListNICResources";
        unary Once set_environment = set_environment(SetEnvironmentRequest) -> SetEnvironmentResponse, "SetEnvironment";
        unary Once create_network = create_network(CreateNetworkRequest) -> CreateNetworkResponse, "CreateNetwork";
        unary Once delete_network = delete_network(DeleteNetworkRequest) -> DeleteNetworkResponse, "DeleteNetwork";
        unary Once create_hns_network = create_hns_network(CreateHnsNetworkRequest) -> CreateHnsNetworkResponse, "CreateHNSNetwork";
        unary Once delete_hns_network = delete_hns_network(DeleteHnsNetworkRequest) -> DeleteHnsNetworkResponse, "DeleteHNSNetwork";
    }
    DeviceService: DeviceServiceClient {
        unary Once assign_ib_devices_to_pod = assign_ib_devices_to_pod(AssignIbDevicesToPodRequest) -> AssignIbDevicesToPodResponse, "AssignIBDevicesToPod";
        unary Idempotent get_ib_device_status = get_ib_device_status(GetIbDeviceStatusRequest) -> GetIbDeviceStatusResponse, "GetIBDeviceStatus";
    }
    DebugService: DebugServiceClient {
        unary Idempotent get_state = get_state(GetStateRequest) -> GetStateResponse, "GetState";
        unary Idempotent get_config = get_config(GetConfigRequest) -> GetConfigResponse, "GetConfig";
        unary Idempotent explain = explain(ExplainRequest) -> ExplainResponse, "Explain";
        unary Idempotent diagnose = diagnose(DiagnoseRequest) -> DiagnoseResponse, "Diagnose";
        unary Once import_legacy_state = import_legacy_state(ImportLegacyStateRequest) -> ImportLegacyStateResponse, "ImportLegacyState";
        unary Idempotent export_legacy_state = export_legacy_state(ExportLegacyStateRequest) -> ExportLegacyStateResponse, "ExportLegacyState";
        stream watch_events(WatchEventsRequest) -> WatchEventsResponse, "WatchEvents";
        stream collect_bundle(CollectBundleRequest) -> CollectBundleResponse, "CollectBundle";
    }
}

macro_rules! all_pages {
    ($($(#[$doc:meta])* $method:ident = $page:ident($request:ident) -> $field:ident: $item:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $method(&self, mut request: pb::$request) -> Result<Vec<pb::$item>, Error> {
                    let mut all = Vec::new();
                    loop {
                        let page = self.$page(request.clone()).await?;
                        all.extend(page.$field);
                        if page.next_page_token.is_empty() {
                            return Ok(all);
                        }
                        request.page_token = page.next_page_token;
                    }
                }
            )*
        }
    };
}

all_pages! {
    /// Every page of `IpamService.ListIPConfigs`. The deadline is that of each page.
    list_all_ip_configs = list_ip_configs(ListIpConfigsRequest) -> ip_configs: IpConfig;
    /// Every page of `NetworkContainerService.ListNetworkContainers`. The deadline is that of each page.
    list_all_network_containers = list_network_containers(ListNetworkContainersRequest) -> entries: NetworkContainerEntry;
    /// Every page of `EndpointService.ListEndpoints`. The deadline is that of each page.
    list_all_endpoints = list_endpoints(ListEndpointsRequest) -> endpoints: Endpoint;
}

#[cfg(test)]
mod tests {
    use cns::proto::FILE_DESCRIPTOR_SET;
    use prost::Message;

    /// The names here are typed by hand: each must be an rpc of the contract, and each rpc must be here.
    #[test]
    fn every_rpc_of_the_contract_has_a_method() {
        let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let mut expected: Vec<_> = set
            .file
            .iter()
            .filter(|file| file.package() == "cns.v1")
            .flat_map(|file| &file.service)
            .flat_map(|service| service.method.iter().map(|rpc| format!("\"{}\";", rpc.name())))
            .collect();
        expected.sort();
        let mut found: Vec<_> = include_str!("rpcs.rs")
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("unary ") || line.starts_with("stream "))
            .filter_map(|line| line.rsplit(' ').next().map(str::to_owned))
            .collect();
        found.sort();
        assert_eq!(found, expected);
    }
}
