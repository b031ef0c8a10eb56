//! proto/ → generated code and a descriptor set for reflection, with a vendored protoc: no system package is needed.

use std::{env, error::Error, path::PathBuf};

const PROTOS: &[&str] = &[
    "proto/cns/v1/types.proto",
    "proto/cns/v1/ipam.proto",
    "proto/cns/v1/network_container.proto",
    "proto/cns/v1/endpoint.proto",
    "proto/cns/v1/nmagent.proto",
    "proto/cns/v1/node.proto",
    "proto/cns/v1/device.proto",
    "proto/cns/v1/debug.proto",
    "proto/compat/cns.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut prost = tonic_prost_build::Config::new();
    prost.protoc_executable(protoc_bin_vendored::protoc_bin_path()?);
    tonic_prost_build::configure()
        .file_descriptor_set_path(out.join("cns_descriptor.bin"))
        // The plugin's build has no server; the attribute follows the feature of the crate that includes the code.
        .server_mod_attribute(".", "#[cfg(feature = \"daemon\")]")
        .bytes(".")
        .btree_map(".")
        .compile_with_config(
            prost,
            PROTOS,
            &["proto", protoc_bin_vendored::include_path()?.to_str().ok_or("include path")?],
        )?;
    Ok(())
}
