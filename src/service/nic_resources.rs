//! The NICs of the machine: what IMDS lists, under the names that the kernel gives them (spec/swiftv2.md §6). Network, subnet and the
//! number of pods of a NIC stand in custom resources, which no mode of this daemon reads yet.

use std::collections::HashMap;

use tonic::{Code, Status};

use super::{Context, host::agent_failed, status::Failure};
use crate::{
    model::{MacAddr, ReturnCode},
    nic::Netlink,
    proto::v1 as pb,
};

/// What names of the synthetic side of a NIC begin with. The other side bears the same MAC, and comes and goes with the host's updates.
const SYNTHETIC: &str = "eth";

impl Context {
    /// See the contract.
    pub(super) async fn nic_resources(&self) -> Result<Vec<pb::NicResource>, Status> {
        let imds = &self.agents("ListNICResources")?.imds;
        let (machine, listed) = tokio::try_join!(imds.compute(), imds.interfaces())
            .map_err(|error| agent_failed(ReturnCode::UnexpectedError, &error))?;
        let listed = listed.ok_or_else(|| {
            let message = "this host's IMDS does not list the network containers of NICs yet";
            Failure::new(Code::FailedPrecondition, ReturnCode::UnexpectedError, message)
                .detail("IMDS_TOO_OLD")
                .remedy("ask again after the platform has updated the host; on others this works")
        })?;
        for why in &listed.refused {
            tracing::debug!(why, "an entry of IMDS' list cannot be read");
        }
        let names = names().await;
        let nic = |interface: crate::host::imds::ImdsInterface| pb::NicResource {
            mac_address: interface.mac.to_string(),
            interface_name: names.get(&interface.mac).cloned().unwrap_or_default(),
            interface_compartment_id: interface.nc.map(|nc| nc.to_string()).unwrap_or_default(),
            vm_unique_id: machine.vm_id.clone(),
            capacity: 1,
            ..pb::NicResource::default()
        };
        Ok(listed.interfaces.into_iter().map(nic).collect())
    }
}

/// Names of NICs by their MAC. Without them the list is still of use.
async fn names() -> HashMap<MacAddr, String> {
    let links = match Netlink::open() {
        Ok(netlink) => netlink.links().await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let links = links.unwrap_or_else(|error| {
        tracing::warn!(error, "the names of the machine's NICs cannot be read");
        Vec::new()
    });
    let named = links.into_iter().filter(|link| link.name.starts_with(SYNTHETIC));
    named.filter_map(|link| Some((link.mac?, link.name))).collect()
}
