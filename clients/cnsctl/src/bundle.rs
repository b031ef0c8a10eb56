//! `bundle`: what a support case needs, as files.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use cns::proto::v1 as pb;
use cns_client::Client;
use serde::Serialize;

use crate::{
    failure::{Exit, Failure},
    output::{Out, Page},
};

#[derive(Debug, Serialize)]
struct Collected {
    files: Vec<PathBuf>,
}

pub(crate) async fn run(dir: &Path, client: &Client, out: &mut Out) -> Result<(), Failure> {
    // First the daemon: without one, no directory is left behind.
    let mut chunks = client.collect_bundle(pb::CollectBundleRequest {}).await?;
    fs::create_dir_all(dir).map_err(|error| Failure::file("create directory", dir, &error))?;
    let mut files: Vec<PathBuf> = Vec::new();
    let mut open: Option<File> = None;
    while let Some(next) = chunks.next().await? {
        let path = dir.join(plain_name(&next.file_name)?);
        let file = match &mut open {
            // Chunks of one file follow each other.
            Some(file) if files.last() == Some(&path) => file,
            slot => {
                let created = create(&path).map_err(|error| Failure::file("create", &path, &error))?;
                files.push(path.clone());
                slot.insert(created)
            }
        };
        file.write_all(&next.chunk).map_err(|error| Failure::file("write", &path, &error))?;
    }
    out.print(&Collected { files }, |collected| {
        let rows = collected.files.iter().map(|path| vec![path.display().to_string().into()]).collect();
        Page::new().table(&["WRITTEN"], rows)
    })
}

/// For its owner only: it names pods and addresses. An existing file is not touched.
fn create(path: &Path) -> std::io::Result<File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// The daemon names the files; none may leave the directory.
fn plain_name(name: &str) -> Result<&str, Failure> {
    let plain = !name.is_empty()
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if plain {
        Ok(name)
    } else {
        Err(Failure::new(Exit::Failed, format!("the daemon sent a file with an odd name, `{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_the_directory() {
        assert_eq!(plain_name("ip-configs.jsonl").unwrap(), "ip-configs.jsonl");
        for odd in ["", ".bashrc", "..", "../x", "/etc/passwd", "a/b", "a\0"] {
            assert!(plain_name(odd).is_err(), "{odd:?}");
        }
    }
}
