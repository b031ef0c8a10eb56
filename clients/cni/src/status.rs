//! STATUS: whether a pod could be added now (CNI spec 1.1, "STATUS").

use std::collections::BTreeMap;

use cns::{model::Family, proto::v1 as pb};

use crate::{
    daemon::Invocation,
    environment::Command,
    error::{CniError, Code},
    netconf::NetConf,
};

pub(crate) async fn run(netconf: &NetConf) -> Result<(), CniError> {
    let client = Invocation::begin(Command::Status, netconf)?.client;
    let unavailable = |message: String| CniError::new(Code::NotAvailable, message);
    let failed = |error: cns_client::Error| {
        let error = CniError::of_call("pods cannot be added", &error);
        CniError { code: Code::NotAvailable, ..error }
    };

    let info = client.get_node_info(pb::GetNodeInfoRequest {}).await.map_err(failed)?;
    if !info.serving {
        return Err(unavailable(format!(
            "pods cannot be added: the cns daemon does not serve: {}",
            info.not_serving_reason
        )));
    }
    // A pod gets one address of each family or none at all.
    let request =
        pb::ListNetworkContainersRequest { without_secondary_ip_configs: true, ..Default::default() };
    let entries = client.list_all_network_containers(request).await.map_err(failed)?;
    let mut free: BTreeMap<Family, u32> = BTreeMap::new();
    for status in entries.into_iter().filter_map(|entry| entry.status) {
        for (family, counts) in [(Family::V4, status.ipv4), (Family::V6, status.ipv6)] {
            let counts = counts.unwrap_or_default();
            let known =
                [counts.available, counts.assigned, counts.pending_programming, counts.pending_release];
            if known.iter().any(|count| *count > 0) {
                *free.entry(family).or_default() += counts.available;
            }
        }
    }
    if free.is_empty() {
        return Err(unavailable(
            "pods cannot be added: the cns daemon has no address to give yet".to_owned(),
        ));
    }
    let exhausted: Vec<_> =
        free.iter().filter(|(_, free)| **free == 0).map(|(family, _)| family.to_string()).collect();
    if exhausted.is_empty() {
        return Ok(());
    }
    Err(unavailable(format!("pods cannot be added: no free {} address", exhausted.join(" and no free ")))
        .details("`cnsctl ip list` shows who has them, `cnsctl doctor` what leaks"))
}
