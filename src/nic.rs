//! The NIC subsystem: the only module that touches the kernel's network.
//!
//! It speaks netlink itself and wires a pod in *transparent* mode (spec/linux-dataplane.md §3, improved by its §9). Rules
//! that hold here:
//!
//! - No runtime thread ever changes its network namespace: what must happen inside one happens on a short-lived thread
//!   ([`Netns::run`]), or through a netlink socket that was opened there ([`Netns::netlink`]).
//! - Every step is idempotent, and what it made can be undone ([`Undo`]). Teardown runs every step and counts
//!   "already gone" as success ([`Teardown`]).
//! - The kernel is the source of truth: what is ours is told by a host veth's name and alias, never by a file.
//!
//! Knows nothing of the ledger, of Kubernetes, or of how addresses are chosen.

mod address;
mod attachment;
mod host_interface;
mod link;
mod neighbour;
mod netlink;
pub mod netns;
mod route;
pub mod rules;
mod sysctl;
mod transparent;
mod undo;
mod veth;

pub use self::{
    attachment::{Attachment, InvalidAttachment},
    host_interface::HostInterfaceWatch,
    link::{Link, LinkKind},
    netlink::{KernelError, Netlink},
    netns::{Liveness, Netns, NetnsError, NetnsId, liveness},
    rules::{Backend, Masquerade, NetworkMasquerade, RulesError, Snat},
    sysctl::{SysctlError, enable_forwarding},
    transparent::{
        Deviation, GATEWAY_V4, GATEWAY_V6, HOST_VETH_MAC, HostVeth, NicError, PodRoute, Transparent,
        WireSpec, Wired, gateway,
    },
    undo::{Teardown, TeardownError, Undo},
    veth::{host_veth_name, pod_name_key},
};
