//! The NIC subsystem: the only module that touches the kernel's network.

pub mod netns;
