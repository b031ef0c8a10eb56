//! The contract as generated code. What a message means is in `proto/`.

/// The descriptors of everything here, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("cns_descriptor");

/// Package `cns.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("cns.v1");
}
