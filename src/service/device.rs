//! `cns.v1.DeviceService`: defined, and not available until this daemon has a device plugin.

use tonic::{Request, Response, Status};

use super::status::unimplemented;
use crate::proto::v1::{self as pb, device_service_server::DeviceService};

const MISSING: &str = "this daemon has no device plugin yet";

/// See the contract.
#[derive(Clone, Copy, Debug)]
pub(super) struct Devices;

#[tonic::async_trait]
impl DeviceService for Devices {
    async fn assign_ib_devices_to_pod(
        &self,
        _: Request<pb::AssignIbDevicesToPodRequest>,
    ) -> Result<Response<pb::AssignIbDevicesToPodResponse>, Status> {
        Err(unimplemented("AssignIBDevicesToPod", MISSING))
    }

    async fn get_ib_device_status(
        &self,
        _: Request<pb::GetIbDeviceStatusRequest>,
    ) -> Result<Response<pb::GetIbDeviceStatusResponse>, Status> {
        Err(unimplemented("GetIBDeviceStatus", MISSING))
    }
}
