//! `cni install` and `cni uninstall`: the plugin and a network configuration, where a container runtime looks for them.
//!
//! A runtime calls the network ready as soon as it finds a configuration (spec/conflist.md). So the plugin is put in
//! place before the configuration that names it, and removed after it. A file of the same name that is not ours stays
//! as it is unless it is forced.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use cns::files::{Written, remove_durably, write_atomically};
use serde::Serialize;

use crate::{
    args::{CniCommand, CniPlace},
    failure::{Exit, Failure},
    output::{Cell, Out, Page, Tone},
};

/// The plugin's file name, and so its `type` in a configuration.
const PLUGIN: &str = "cns-cni";

/// Runtimes use the first configuration in the order of names.
const CONFLIST: &str = "10-cns.conflist";

/// No plugin is larger, and a file that is need not be read to know that it is not ours.
const LARGEST_PLUGIN: u64 = 256 << 20;

/// What every build of the plugin holds: the name under which it introduces itself to the daemon.
fn marker() -> &'static [u8] {
    let agent = cns_client::USER_AGENT;
    agent.split_inclusive('/').next().unwrap_or(agent).as_bytes()
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    files: Vec<FileReport>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileReport {
    path: PathBuf,
    result: &'static str,
}

/// A CNI network configuration list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Conflist<'a> {
    cni_version: &'a str,
    cni_versions: &'a [&'a str],
    name: &'a str,
    plugins: [Netconf<'a>; 1],
}

#[derive(Serialize)]
struct Netconf<'a> {
    #[serde(rename = "type")]
    plugin: &'a str,
    socket: &'a str,
}

pub(crate) fn run(command: CniCommand, socket: &Path, out: &mut Out) -> Result<(), Failure> {
    let report = match command {
        CniCommand::Install { place, plugin, network_name } => {
            install(&place, plugin.as_deref(), &network_name, socket)?
        }
        CniCommand::Uninstall { place } => uninstall(&place)?,
    };
    out.print(&report, |report| {
        let rows = report
            .files
            .iter()
            .map(|file| {
                let tone =
                    if matches!(file.result, "unchanged" | "absent") { Tone::Faint } else { Tone::Good };
                vec![Cell::toned(file.result, tone), file.path.display().to_string().into()]
            })
            .collect();
        Page::new().table(&["RESULT", "FILE"], rows)
    })
}

fn install(place: &CniPlace, plugin: Option<&Path>, network: &str, socket: &Path) -> Result<Report, Failure> {
    let binary = read_plugin(&source_of_plugin(plugin)?)?;
    let conflist = conflist(network, &absolute(socket)?)?;
    let (plugin, configuration) = (place.bin_dir.join(PLUGIN), place.conf_dir.join(CONFLIST));
    if !place.force {
        // Both before either is touched: half an installation helps nobody.
        refuse_foreign(&plugin, is_our_plugin, "replace")?;
        refuse_foreign(&configuration, is_our_conflist, "replace")?;
    }
    for dir in [&place.bin_dir, &place.conf_dir] {
        fs::create_dir_all(dir).map_err(|error| Failure::file("create directory", dir, &error))?;
    }
    let put = |path: PathBuf, content: &[u8], mode| {
        let written =
            write_atomically(&path, content, mode).map_err(|error| Failure::file("write", &path, &error))?;
        let result = match written {
            Written::Created => "created",
            Written::Replaced => "replaced",
            Written::Unchanged => "unchanged",
        };
        Ok::<_, Failure>(FileReport { path, result })
    };
    Ok(Report { files: vec![put(plugin, &binary, 0o755)?, put(configuration, &conflist, 0o644)?] })
}

fn uninstall(place: &CniPlace) -> Result<Report, Failure> {
    let (plugin, configuration) = (place.bin_dir.join(PLUGIN), place.conf_dir.join(CONFLIST));
    if !place.force {
        refuse_foreign(&configuration, is_our_conflist, "remove")?;
        refuse_foreign(&plugin, is_our_plugin, "remove")?;
    }
    let remove = |path: PathBuf| {
        let removed = remove_durably(&path).map_err(|error| Failure::file("remove", &path, &error))?;
        Ok::<_, Failure>(FileReport { path, result: if removed { "removed" } else { "absent" } })
    };
    Ok(Report { files: vec![remove(configuration)?, remove(plugin)?] })
}

fn conflist(network: &str, socket: &Path) -> Result<Vec<u8>, Failure> {
    let socket = socket.to_str().ok_or_else(|| {
        Failure::new(Exit::Usage, format!("the socket's path {} is not UTF-8", socket.display()))
            .remedy("a network configuration is JSON and cannot name it: use another path")
    })?;
    let list = Conflist {
        // Runtimes older than CNI 1.1 know nothing of `cniVersions` and fail on a version above their own; newer ones
        // take the highest they know from it, and with it GC and STATUS.
        cni_version: "1.0.0",
        cni_versions: &["0.4.0", "1.0.0", "1.1.0"],
        name: network,
        plugins: [Netconf { plugin: PLUGIN, socket }],
    };
    let mut text = serde_json::to_vec_pretty(&list).map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot write the network configuration: {error}"))
    })?;
    text.push(b'\n');
    Ok(text)
}

/// A runtime runs the plugin from a directory of its own: a relative path would name another file there.
fn absolute(socket: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(socket).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot use socket {}: {error}", socket.display()))
    })
}

fn source_of_plugin(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot find where cnsctl lies: {error}")))
        .map_err(|failure| failure.remedy("name the plugin with --plugin"))?;
    Ok(own.with_file_name(PLUGIN))
}

fn read_plugin(path: &Path) -> Result<Vec<u8>, Failure> {
    let remedy = "build it with `cargo build --release -p cns-cni`, or name it with --plugin";
    let found = fs::metadata(path)
        .map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot find the plugin {}: {error}", path.display()))
        })
        .map_err(|failure| failure.remedy(remedy))?;
    let why = if !found.is_file() {
        "it is not a file"
    } else if found.permissions().mode() & 0o111 == 0 {
        "it is not executable"
    } else if found.len() > LARGEST_PLUGIN {
        "it is larger than any plugin"
    } else {
        return fs::read(path).map_err(|error| Failure::file("read", path, &error));
    };
    Err(Failure::new(Exit::Failed, format!("{} is no plugin: {why}", path.display())).remedy(remedy))
}

fn refuse_foreign(path: &Path, ours: fn(&[u8]) -> bool, doing: &str) -> Result<(), Failure> {
    let content = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::file("look at", path, &error)),
        // A link is somebody's decision; what it leads to may be ours, the link is not.
        Ok(found) if found.is_file() && found.len() <= LARGEST_PLUGIN => {
            fs::read(path).map_err(|error| Failure::file("read", path, &error))?
        }
        Ok(_) => Vec::new(),
    };
    if ours(&content) {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, format!("{} exists and is not ours", path.display()))
        .remedy(format!("move it away, or {doing} it with --force")))
}

fn is_our_plugin(content: &[u8]) -> bool {
    let marker = marker();
    content.windows(marker.len()).any(|part| part == marker)
}

fn is_our_conflist(content: &[u8]) -> bool {
    let Ok(list) = serde_json::from_slice::<serde_json::Value>(content) else {
        return false;
    };
    let plugins = list.get("plugins").and_then(serde_json::Value::as_array);
    plugins.is_some_and(|plugins| {
        plugins.iter().any(|plugin| plugin.get("type").and_then(serde_json::Value::as_str) == Some(PLUGIN))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node {
        _root: tempfile::TempDir,
        place: CniPlace,
        plugin: PathBuf,
    }

    impl Node {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let plugin = root.path().join("built");
            fs::write(&plugin, [b"\x7fELF ", marker(), b"0.1.0"].concat()).unwrap();
            fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
            let place = CniPlace {
                bin_dir: root.path().join("opt/cni/bin"),
                conf_dir: root.path().join("etc/cni/net.d"),
                force: false,
            };
            Self { _root: root, place, plugin }
        }

        fn install(&self) -> Result<Report, Failure> {
            install(&self.place, Some(&self.plugin), "pods", Path::new("/run/azure-cns/cns.sock"))
        }

        fn conflist(&self) -> PathBuf {
            self.place.conf_dir.join(CONFLIST)
        }
    }

    fn results(report: Result<Report, Failure>) -> Vec<&'static str> {
        report.unwrap().files.into_iter().map(|file| file.result).collect()
    }

    #[test]
    fn installs_once_updates_and_uninstalls() {
        let node = Node::new();
        assert_eq!(results(node.install()), ["created", "created"]);
        assert_eq!(results(node.install()), ["unchanged", "unchanged"]);
        let list: serde_json::Value = serde_json::from_slice(&fs::read(node.conflist()).unwrap()).unwrap();
        assert_eq!(list["name"], "pods");
        assert_eq!(list["plugins"][0]["type"], "cns-cni");
        assert_eq!(list["plugins"][0]["socket"], "/run/azure-cns/cns.sock");
        assert_eq!(list["cniVersion"], "1.0.0");

        let newer = [b"\x7fELF ", marker(), b"0.2.0"].concat();
        fs::write(&node.plugin, &newer).unwrap();
        assert_eq!(results(node.install()), ["replaced", "unchanged"]);
        let installed = node.place.bin_dir.join(PLUGIN);
        assert_eq!(fs::read(&installed).unwrap(), newer);
        assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);

        assert_eq!(results(uninstall(&node.place)), ["removed", "removed"]);
        assert_eq!(results(uninstall(&node.place)), ["absent", "absent"]);
    }

    #[test]
    fn a_foreign_file_is_left_alone_unless_forced() {
        let mut node = Node::new();
        fs::create_dir_all(&node.place.conf_dir).unwrap();
        let theirs = br#"{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"bridge"}]}"#;
        fs::write(node.conflist(), theirs).unwrap();
        for refused in [node.install(), uninstall(&node.place)] {
            let failure = refused.unwrap_err();
            assert!(failure.to_string().contains("10-cns.conflist exists and is not ours"), "{failure}");
            assert!(failure.to_string().contains("--force"), "{failure}");
        }
        assert_eq!(fs::read(node.conflist()).unwrap(), theirs);
        assert!(!node.place.bin_dir.join(PLUGIN).exists(), "nothing of the installation was done");
        node.place.force = true;
        assert_eq!(results(node.install()), ["created", "replaced"]);
    }

    #[test]
    fn a_foreign_plugin_of_our_name_is_left_alone() {
        let node = Node::new();
        fs::create_dir_all(&node.place.bin_dir).unwrap();
        fs::write(node.place.bin_dir.join(PLUGIN), "#!/bin/sh\n").unwrap();
        assert!(node.install().unwrap_err().to_string().contains("cns-cni exists and is not ours"));
    }

    #[test]
    fn a_plugin_that_cannot_run_is_refused() {
        let node = Node::new();
        fs::set_permissions(&node.plugin, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(node.install().unwrap_err().to_string().contains("not executable"));
        fs::remove_file(&node.plugin).unwrap();
        assert!(node.install().unwrap_err().to_string().contains("--plugin"));
    }
}
