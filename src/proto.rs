//! The contract as generated code. What a message means is in `proto/`.

/// The descriptors of everything here, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("cns_descriptor");

/// Package `cns.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("cns.v1");
}

/// Package `cns`: a contract that exists already.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
pub mod compat {
    tonic::include_proto!("cns");
}

/// Every rpc of the contract as `package.Service/Method`.
pub fn methods() -> Vec<String> {
    // The build made it; there is nothing that could be done about a broken one.
    let Ok(set) = <prost_types::FileDescriptorSet as prost::Message>::decode(FILE_DESCRIPTOR_SET) else {
        return Vec::new();
    };
    let mut methods = Vec::new();
    for file in set.file.iter().filter(|file| matches!(file.package(), "cns.v1" | "cns")) {
        for service in &file.service {
            let name = |rpc: &prost_types::MethodDescriptorProto| {
                format!("{}.{}/{}", file.package(), service.name(), rpc.name())
            };
            methods.extend(service.method.iter().map(name));
        }
    }
    methods
}
