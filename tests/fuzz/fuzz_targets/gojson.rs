//! Any bytes as requests of the legacy contract (spec/rest-contract.md §2.2, §5): nothing panics, and what was read is written
//! as something that reads as the same.

#![no_main]

use std::{collections::BTreeMap, fmt::Debug};

use cns::gojson::{Bytes, List, Raw, decode, encode};
use libfuzzer_sys::fuzz_target;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// One field of each kind that the requests have, with their names.
#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
struct Request {
    #[serde(rename = "NetworkContainerid")]
    id: String,
    #[serde(rename = "Version")]
    version: String,
    #[serde(rename = "IPConfiguration")]
    configuration: Configuration,
    #[serde(rename = "SecondaryIPConfigs")]
    secondary: BTreeMap<String, Secondary>,
    #[serde(rename = "CnetAddressSpace")]
    space: List<Subnet>,
    #[serde(rename = "AllowHostToNCCommunication")]
    allow: bool,
    #[serde(rename = "DNSServerCompartment")]
    compartment: u32,
    #[serde(rename = "CreateNetworkContainerRequestBody")]
    body: Bytes,
    #[serde(rename = "desiredIPAddresses")]
    desired: List<String>,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
struct Configuration {
    #[serde(rename = "IPSubnet")]
    subnet: Subnet,
    #[serde(rename = "DNSServers")]
    dns: List<String>,
    #[serde(rename = "GatewayIPAddress")]
    gateway: String,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
struct Subnet {
    #[serde(rename = "IPAddress")]
    address: String,
    #[serde(rename = "PrefixLength")]
    prefix_length: u8,
}

#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
struct Secondary {
    #[serde(rename = "IPAddress")]
    address: String,
    #[serde(rename = "NCVersion")]
    version: i64,
}

/// The same for raw fields, which are written with escapes that they did not have.
#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
struct RawRequest {
    #[serde(rename = "OrchestratorContext")]
    context: Raw,
    #[serde(rename = "Policies")]
    policies: List<Raw>,
}

fn written<T: Serialize + Debug>(value: &T) -> Vec<u8> {
    encode(value).unwrap_or_else(|error| panic!("{value:?} cannot be written: {error}"))
}

fn read_again<T: DeserializeOwned>(bytes: &[u8]) -> T {
    decode(bytes).unwrap_or_else(|error| panic!("{:?}: {error}", String::from_utf8_lossy(bytes)))
}

/// Reads; what was read must survive being written. Gives what was written.
fn survives<T: DeserializeOwned + Serialize + Debug + PartialEq>(bytes: &[u8]) {
    let Ok(value) = decode::<T>(bytes) else { return };
    assert_eq!(read_again::<T>(&written(&value)), value);
}

fuzz_target!(|bytes: &[u8]| {
    survives::<Request>(bytes);
    survives::<BTreeMap<String, Subnet>>(bytes);
    survives::<List<Secondary>>(bytes);
    if let Ok(value) = decode::<RawRequest>(bytes) {
        // Once it was written it has Go's escapes, and no others come.
        let once = written(&value);
        assert_eq!(written(&read_again::<RawRequest>(&once)), once);
        let text = std::str::from_utf8(&once).expect("JSON is UTF-8");
        assert!(!text.contains(['<', '>', '&', '\n', '\u{2028}', '\u{2029}']), "{text}");
        serde_json::from_str::<&serde_json::value::RawValue>(text).expect("what is written is JSON");
    }
});
