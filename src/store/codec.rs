//! Records ↔ bytes: MessagePack with named fields, so that a field can be added without rewriting what is on disk.

use std::{net::IpAddr, path::Path};

use serde::{Serialize, de::DeserializeOwned};

use super::StoreError;

pub(super) fn encode<T: Serialize>(record: &T) -> Result<Vec<u8>, StoreError> {
    // Only a type that MessagePack cannot hold fails, and a record's type is known; still, no panic on the way to disk.
    rmp_serde::to_vec_named(record).map_err(|error| StoreError::Io {
        what: "encode a record for",
        path: super::STATE_FILE.into(),
        source: std::io::Error::other(error),
    })
}

pub(super) fn decode<T: DeserializeOwned>(path: &Path, what: &str, bytes: &[u8]) -> Result<T, StoreError> {
    rmp_serde::from_slice(bytes).map_err(|error| StoreError::Corrupt {
        path: path.to_owned(),
        why: format!("a record of {what}: {error}"),
    })
}

/// An address as a key: family, then octets, so that keys sort as addresses do.
pub(super) fn ip_key(address: IpAddr) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    match address {
        IpAddr::V4(v4) => {
            key.push(4);
            key.extend(v4.octets());
        }
        IpAddr::V6(v6) => {
            key.push(6);
            key.extend(v6.octets());
        }
    }
    key
}
