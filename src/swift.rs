//! SwiftV2 without a cluster: what a pod's request becomes where network containers belong to pods (spec/swiftv2.md §5).
//!
//! No pool and no record is involved: the control plane has made the pod's NCs, and each is an interface. Pure; who asks for the
//! NCs, and whether the host has programmed them, is the service's affair.

use crate::model::NcSpec;

/// One interface of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNic<'a> {
    /// An NC's own.
    Nc(&'a NcSpec),
    /// The link-local one between host and container, as this NC allows it.
    Apipa(&'a NcSpec),
}

/// The interfaces of a pod with these NCs, in their order. Of NCs that allow traffic between host and container the last counts, as
/// in the reference: a pod has one such interface.
pub fn pod_nics<'a>(ncs: impl IntoIterator<Item = &'a NcSpec>) -> Vec<PodNic<'a>> {
    let mut nics = Vec::new();
    let mut apipa = None;
    for nc in ncs {
        nics.push(PodNic::Nc(nc));
        if nc.allow_host_to_nc || nc.allow_nc_to_host {
            apipa = Some(PodNic::Apipa(nc));
        }
    }
    nics.extend(apipa);
    nics
}
