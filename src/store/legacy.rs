//! The reference's three state files: `azure-cns.json`, `azure-endpoints.json` and the stateful CNI's `azure-vnet.json`
//! (spec/network-containers.md §10 and §17, spec/endpoint-state.md §2, spec/cni-plugin.md §7.2).
//!
//! Reading takes what makes sense and reports the rest; only a document that is none at all is an error. Writing gives the
//! reference what it would have written itself, so that an operator can go back and lose no pod. What the model does not
//! hold (docker networks, PnP ids, keys of other versions) is carried along as it was.

mod json;
mod read;
mod write;

use crate::{
    ledger::{LegacyState, View},
    service::{LegacyDocuments, LegacyFormat},
};

/// The files' names, in a directory of them.
pub const FILES: [&str; 3] = ["azure-cns.json", "azure-endpoints.json", "azure-vnet.json"];

/// Reads and writes the documents.
#[derive(Clone, Copy, Debug)]
pub struct LegacyFiles;

impl LegacyFormat for LegacyFiles {
    fn parse(&self, documents: &LegacyDocuments) -> Result<(LegacyState, Vec<String>), String> {
        read::parse(documents)
    }

    fn render(&self, view: &View) -> Result<LegacyDocuments, String> {
        write::render(view)
    }
}

#[cfg(test)]
mod tests;
