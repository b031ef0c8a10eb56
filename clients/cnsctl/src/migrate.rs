//! `migrate import` and `migrate export`: the three files of the reference implementation.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cns::{files::write_atomically, proto::v1 as pb};
use cns_client::Client;
use serde::Serialize;

use crate::{
    args::MigrateCommand,
    failure::{Exit, Failure},
    output::{Cell, Out, Page, Tone},
};

const CNS: &str = "azure-cns.json";
const ENDPOINTS: &str = "azure-endpoints.json";
const VNET: &str = "azure-vnet.json";

/// No node's state is larger; a device given by mistake has no end.
const LARGEST: u64 = 64 << 20;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Imported {
    files: Vec<PathBuf>,
    network_containers: u32,
    endpoints: u32,
    assigned_ip_configs: u32,
    skipped: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Exported {
    files: Vec<PathBuf>,
}

pub(crate) async fn run(command: MigrateCommand, client: &Client, out: &mut Out) -> Result<(), Failure> {
    match command {
        MigrateCommand::Import { dir } => import(&dir, client, out).await,
        MigrateCommand::Export { dir } => export(&dir, client, out).await,
    }
}

async fn import(dir: &Path, client: &Client, out: &mut Out) -> Result<(), Failure> {
    let mut files = Vec::new();
    let mut read = |name: &str| -> Result<Vec<u8>, Failure> {
        let path = dir.join(name);
        let content = read_if_there(&path)?;
        if content.is_some() {
            files.push(path);
        }
        Ok(content.unwrap_or_default())
    };
    let request = pb::ImportLegacyStateRequest {
        azure_cns_json: read(CNS)?.into(),
        azure_endpoints_json: read(ENDPOINTS)?.into(),
        azure_vnet_json: read(VNET)?.into(),
    };
    if files.is_empty() {
        let what = format!("{} has none of {CNS}, {ENDPOINTS}, {VNET}", dir.display());
        return Err(Failure::new(Exit::NotFound, what).remedy("name the directory that has them with --dir"));
    }
    let answer = client.import_legacy_state(request).await?;
    let imported = Imported {
        files,
        network_containers: answer.network_containers,
        endpoints: answer.endpoints,
        assigned_ip_configs: answer.assigned_ip_configs,
        skipped: answer.skipped,
    };
    out.print(&imported, |imported| {
        let page = Page::new().line(format!(
            "imported {} network containers, {} sandboxes, {} assigned addresses from {} files",
            imported.network_containers,
            imported.endpoints,
            imported.assigned_ip_configs,
            imported.files.len()
        ));
        imported.skipped.iter().fold(page, |page, why| {
            page.spans(vec![Cell::toned("skipped: ", Tone::Attention), why.clone().into()])
        })
    })
}

/// `None` if there is no such file. An empty one counts as there: the daemon says what is wrong with it.
fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::file("look at", path, &error)),
    };
    if !found.is_file() || found.len() > LARGEST {
        return Err(Failure::new(
            Exit::Usage,
            format!("{} is not a file of at most {LARGEST} bytes", path.display()),
        ));
    }
    fs::read(path).map(Some).map_err(|error| Failure::file("read", path, &error))
}

async fn export(dir: &Path, client: &Client, out: &mut Out) -> Result<(), Failure> {
    let answer = client.export_legacy_state(pb::ExportLegacyStateRequest {}).await?;
    fs::create_dir_all(dir).map_err(|error| Failure::file("create directory", dir, &error))?;
    let mut files = Vec::new();
    for (name, content) in [
        (CNS, answer.azure_cns_json),
        (ENDPOINTS, answer.azure_endpoints_json),
        (VNET, answer.azure_vnet_json),
    ] {
        if content.is_empty() {
            continue;
        }
        let path = dir.join(name);
        // Pod names and addresses are nobody else's business.
        write_atomically(&path, &content, 0o600).map_err(|error| Failure::file("write", &path, &error))?;
        files.push(path);
    }
    out.print(&Exported { files }, |exported| {
        let rows = exported.files.iter().map(|path| vec![path.display().to_string().into()]).collect();
        Page::new().table(&["WRITTEN"], rows)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_missing_but_not_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CNS);
        assert_eq!(read_if_there(&path).unwrap(), None);
        fs::write(&path, "{}").unwrap();
        assert_eq!(read_if_there(&path).unwrap().as_deref(), Some(b"{}".as_slice()));
        assert!(read_if_there(dir.path()).unwrap_err().to_string().contains("is not a file"));
    }
}
