//! CNI configuration lists: what tells a runtime that the node's network is ready (spec/conflist.md).
//!
//! The file appears when the node can give addresses, and not before: a runtime that finds it starts pods. It is written as a
//! whole and durably, and made anew if it is lost. One that somebody else changed is left as it is, and that is told.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use serde::{Serialize, Serializer, ser::SerializeMap};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::files::{Written, write_atomically};

/// How often the file is looked at, and tried again where it could not be written.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Runtimes run as root; tools that look at the list need not.
const MODE: u32 = 0o644;

/// Which plugins a list names, and in which mode they work. The names are those of `CNIConflistScenario`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// `v4overlay`: azure-vnet with an IPv4 overlay.
    V4Overlay,
    /// `dualStackOverlay`: azure-vnet with an overlay of both families.
    DualStackOverlay,
    /// `overlay`: meant to replace both.
    Overlay,
    /// `swift`: azure-vnet with addresses of the pod subnet.
    Swift,
    /// `cilium`: cilium-cni with azure-ipam.
    Cilium,
    /// `azurecni-chained-cilium`: azure-vnet, then cilium-cni.
    ChainedCilium,
}

impl Scenario {
    /// All, in the order of the specification.
    pub const ALL: [Self; 6] = [
        Self::V4Overlay,
        Self::DualStackOverlay,
        Self::Overlay,
        Self::Swift,
        Self::Cilium,
        Self::ChainedCilium,
    ];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4Overlay => "v4overlay",
            Self::DualStackOverlay => "dualStackOverlay",
            Self::Overlay => "overlay",
            Self::Swift => "swift",
            Self::Cilium => "cilium",
            Self::ChainedCilium => "azurecni-chained-cilium",
        }
    }

    /// The list, as the reference writes it: indented by tabs, keys in its order, a newline at the end (§4).
    pub fn conflist(self) -> Vec<u8> {
        let (version, name) = match self {
            Self::Cilium => ("0.3.1", "cilium"),
            _ => ("0.3.0", "azure"),
        };
        let plugins = match self {
            Self::V4Overlay => vec![azure_vnet(Some("v4swift"), Some("v4overlay")), Plugin::PortMap],
            Self::DualStackOverlay => vec![azure_vnet(None, Some("dualStackOverlay")), Plugin::PortMap],
            Self::Overlay => vec![azure_vnet(None, Some("overlay")), Plugin::PortMap],
            Self::Swift => vec![azure_vnet(Some("v4swift"), None), Plugin::PortMap],
            Self::Cilium => vec![Plugin::Cilium],
            Self::ChainedCilium => vec![azure_vnet(Some("v4swift"), None), Plugin::Azure(CHAINED_CILIUM)],
        };
        let list = List { cni_version: version, name, plugins };
        let mut text = Vec::new();
        let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
        // Writing texts and numbers into memory does not fail.
        let written = list.serialize(&mut serde_json::Serializer::with_formatter(&mut text, tabs));
        debug_assert!(written.is_ok(), "{written:?}");
        text.push(b'\n');
        text
    }

    /// The programs that the list names: without them the network is not ready, whatever the list says.
    pub const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Cilium => &["cilium-cni", "azure-ipam"],
            Self::ChainedCilium => &["azure-vnet", "cilium-cni"],
            _ => &["azure-vnet", "portmap"],
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Scenario {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// No scenario has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("one of v4overlay, dualStackOverlay, overlay, swift, cilium and azurecni-chained-cilium is expected")]
pub struct UnknownScenario;

impl FromStr for Scenario {
    type Err = UnknownScenario;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|scenario| scenario.as_str() == text).ok_or(UnknownScenario)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    cni_version: &'static str,
    name: &'static str,
    plugins: Vec<Plugin>,
}

enum Plugin {
    Azure(Netconf),
    PortMap,
    Cilium,
}

/// azure-vnet's configuration, of which the reference writes the empty objects, too.
struct Netconf {
    name: Option<&'static str>,
    kind: &'static str,
    mode: Option<&'static str>,
    execution_mode: Option<&'static str>,
    ipam_mode: Option<&'static str>,
    ipam_type: &'static str,
}

/// Node-local DNS: reached over the host, not over the pod's gateway.
const VIA_HOST: [&str; 1] = ["169.254.20.10"];

const CHAINED_CILIUM: Netconf = Netconf {
    name: Some("cilium"),
    kind: "cilium-cni",
    mode: None,
    execution_mode: None,
    ipam_mode: None,
    ipam_type: "",
};

fn azure_vnet(execution_mode: Option<&'static str>, ipam_mode: Option<&'static str>) -> Plugin {
    Plugin::Azure(Netconf {
        name: None,
        kind: "azure-vnet",
        mode: Some("transparent"),
        execution_mode,
        ipam_mode,
        ipam_type: "azure-cns",
    })
}

#[derive(Serialize)]
struct Ipam {
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    r#type: &'static str,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
struct RuntimeConfig {
    dns: Empty,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Capabilities {
    port_mappings: bool,
}

impl Serialize for Plugin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Azure(netconf) => {
                if let Some(name) = netconf.name {
                    map.serialize_entry("name", name)?;
                }
                map.serialize_entry("type", netconf.kind)?;
                if let Some(mode) = netconf.mode {
                    map.serialize_entry("mode", mode)?;
                    map.serialize_entry("ipsToRouteViaHost", &VIA_HOST)?;
                }
                if let Some(mode) = netconf.execution_mode {
                    map.serialize_entry("executionMode", mode)?;
                }
                map.serialize_entry("ipam", &Ipam { mode: netconf.ipam_mode, r#type: netconf.ipam_type })?;
                map.serialize_entry("dns", &Empty {})?;
                map.serialize_entry("runtimeConfig", &RuntimeConfig { dns: Empty {} })?;
                map.serialize_entry("windowsSettings", &Empty {})?;
            }
            Self::PortMap => {
                map.serialize_entry("type", "portmap")?;
                map.serialize_entry("capabilities", &Capabilities { port_mappings: true })?;
                map.serialize_entry("snat", &true)?;
            }
            Self::Cilium => {
                map.serialize_entry("type", "cilium-cni")?;
                map.serialize_entry("ipam", &Ipam { mode: None, r#type: "azure-ipam" })?;
                map.serialize_entry("enable-debug", &true)?;
                map.serialize_entry("log-file", "/var/log/cilium-cni.log")?;
            }
        }
        map.end()
    }
}

/// How the file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// The node cannot give addresses yet.
    Waiting,
    /// It is there, as it should be.
    Written,
    /// Somebody else changed it.
    Foreign,
    /// It cannot be written; tried again.
    Failed(String),
}

/// Keeps the list where runtimes look.
#[derive(Debug)]
pub struct Keeper {
    path: PathBuf,
    scenario: Scenario,
    programs: PathBuf,
    content: Vec<u8>,
    was_written: bool,
    state: watch::Sender<FileState>,
}

impl Keeper {
    /// For the list at `path`; the plugins are expected in the directory `programs`.
    pub fn new(path: PathBuf, scenario: Scenario, programs: PathBuf) -> Self {
        let content = scenario.conflist();
        Self {
            path,
            scenario,
            programs,
            content,
            was_written: false,
            state: watch::Sender::new(FileState::Waiting),
        }
    }

    /// How the file is, and every change of it.
    pub fn state(&self) -> watch::Receiver<FileState> {
        self.state.subscribe()
    }

    /// Waits until `ready` says that the node can give addresses; then keeps the file there until told to stop. It stays when the
    /// daemon stops: a restart must not make the node unready.
    pub async fn run(self, mut ready: watch::Receiver<bool>, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            is_ready = ready.wait_for(|is_ready| *is_ready) => if is_ready.is_err() { return },
        }
        let mut keeper = self;
        loop {
            let looked = tokio::task::spawn_blocking(move || {
                keeper.look();
                keeper
            });
            let Ok(back) = looked.await else { return };
            keeper = back;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    fn look(&mut self) {
        let state = match self.bring_in_line() {
            Ok(state) => state,
            Err(error) => FileState::Failed(format!("{}: {error}", self.path.display())),
        };
        let before = self.state.send_replace(state.clone());
        if before == state {
            return;
        }
        match state {
            FileState::Waiting => {}
            FileState::Written => self.warn_of_missing_programs(),
            FileState::Foreign => tracing::warn!(
                path = %self.path.display(),
                "somebody else changed the CNI configuration list; it is left so, remove it to have it written anew"
            ),
            FileState::Failed(why) => {
                tracing::error!(
                    why,
                    "the CNI configuration list cannot be written; runtimes see no network until it is there"
                );
            }
        }
    }

    fn bring_in_line(&mut self) -> io::Result<FileState> {
        if self.was_written {
            match fs::read(&self.path) {
                Ok(found) if found == self.content => return Ok(FileState::Written),
                Ok(_) => return Ok(FileState::Foreign),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::warn!(path = %self.path.display(), "the CNI configuration list is gone and is written anew");
                }
                Err(error) => return Err(error),
            }
        } else {
            self.keep_the_old()?;
        }
        let written = write_atomically(&self.path, &self.content, MODE)?;
        self.was_written = true;
        if written != Written::Unchanged {
            tracing::info!(path = %self.path.display(), scenario = %self.scenario, "the CNI configuration list is written");
        }
        Ok(FileState::Written)
    }

    /// What was there before the first write is kept as `<path>-old`, if it is another one: runtimes do not load that.
    fn keep_the_old(&self) -> io::Result<()> {
        match fs::read(&self.path) {
            Ok(found) if found != self.content => {
                let mut old = self.path.clone().into_os_string();
                old.push("-old");
                write_atomically(Path::new(&old), &found, MODE).map(drop)
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The directory may be the host's, and out of sight; so this is only told.
    fn warn_of_missing_programs(&self) {
        let missing: Vec<_> =
            self.scenario.programs().iter().filter(|program| !self.programs.join(program).exists()).collect();
        if self.programs.exists() && !missing.is_empty() {
            tracing::warn!(directory = %self.programs.display(), ?missing, "the list names plugins that are not there");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The golden files of the specification (tests/data/conflist).
    fn golden(scenario: Scenario) -> &'static str {
        match scenario {
            Scenario::V4Overlay => {
                include_str!("../tests/data/conflist/azure-linux-swift-v4overlay.conflist")
            }
            Scenario::DualStackOverlay => {
                include_str!("../tests/data/conflist/azure-linux-swift-dualstack-overlay.conflist")
            }
            Scenario::Overlay => include_str!("../tests/data/conflist/azure-linux-swift-overlay.conflist"),
            Scenario::Swift => include_str!("../tests/data/conflist/azure-linux-swift.conflist"),
            Scenario::Cilium => include_str!("../tests/data/conflist/cilium.conflist"),
            Scenario::ChainedCilium => include_str!("../tests/data/conflist/azure-chained-cilium.conflist"),
        }
    }

    #[test]
    fn every_scenario_is_the_references_to_the_byte() {
        for scenario in Scenario::ALL {
            let ours = String::from_utf8(scenario.conflist()).unwrap();
            // Two of the golden files lack the last newline, which the reference's generator always writes (§4).
            assert_eq!(ours, format!("{}\n", golden(scenario).trim_end()), "{scenario}");
            assert_eq!(scenario.as_str().parse(), Ok(scenario));
        }
        assert_eq!("Swift".parse::<Scenario>(), Err(UnknownScenario));
    }

    fn keeper(directory: &Path) -> Keeper {
        Keeper::new(directory.join("05-cilium.conflist"), Scenario::Cilium, directory.join("bin"))
    }

    #[tokio::test]
    async fn nothing_is_there_before_the_node_is_ready() {
        let directory = tempfile::tempdir().unwrap();
        let keeper = keeper(directory.path());
        let (path, mut state) = (keeper.path.clone(), keeper.state());
        let (ready, told) = watch::channel(false);
        let stop = CancellationToken::new();
        let running = tokio::spawn(keeper.run(told, stop.clone()));
        tokio::task::yield_now().await;
        assert!(!path.exists());
        ready.send(true).unwrap();
        state.wait_for(|state| *state == FileState::Written).await.unwrap();
        assert_eq!(fs::read(&path).unwrap(), Scenario::Cilium.conflist());
        stop.cancel();
        running.await.unwrap();
        assert!(path.exists(), "a restart must not make the node unready");
    }

    #[test]
    fn a_lost_file_is_made_anew_and_a_changed_one_is_left() {
        use std::os::unix::fs::PermissionsExt as _;

        let directory = tempfile::tempdir().unwrap();
        let mut keeper = keeper(directory.path());
        let state = keeper.state();
        keeper.look();
        assert_eq!(fs::metadata(&keeper.path).unwrap().permissions().mode() & 0o777, 0o644);
        fs::remove_file(&keeper.path).unwrap();
        keeper.look();
        assert_eq!(
            (fs::read(&keeper.path).unwrap(), state.borrow().clone()),
            (keeper.content.clone(), FileState::Written)
        );
        fs::write(&keeper.path, "theirs").unwrap();
        keeper.look();
        assert_eq!(fs::read(&keeper.path).unwrap(), b"theirs");
        assert_eq!(*state.borrow(), FileState::Foreign);
    }

    #[test]
    fn what_was_there_before_is_kept_aside_unless_it_is_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let old = directory.path().join("05-cilium.conflist-old");
        let path = directory.path().join("05-cilium.conflist");
        fs::write(&path, "of an earlier version").unwrap();
        keeper(directory.path()).look();
        assert_eq!(fs::read(&old).unwrap(), b"of an earlier version");
        // The next start finds its own file: the last different one stays aside.
        keeper(directory.path()).look();
        assert_eq!(fs::read(&old).unwrap(), b"of an earlier version");
    }

    #[test]
    fn a_write_that_fails_is_told_and_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut keeper =
            Keeper::new(directory.path().join("net.d/x.conflist"), Scenario::Swift, "/nowhere".into());
        let state = keeper.state();
        keeper.look();
        assert!(matches!(&*state.borrow(), FileState::Failed(why) if why.contains("net.d/x.conflist")));
        fs::create_dir(directory.path().join("net.d")).unwrap();
        keeper.look();
        assert_eq!(*state.borrow(), FileState::Written);
    }
}
