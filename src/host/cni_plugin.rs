//! The machine's own CNI plugin, run by the daemon: a container of Azure Container Instances is told by `CNI_COMMAND=UPDATE` that the
//! routes of its network container have changed (spec/network-containers.md §2, spec/cni-plugin.md §5.5).
//!
//! `UPDATE` is no command of the CNI specification; `azure-vnet` has it. The environment and the configuration on standard input are
//! what libcni gives a plugin.

use std::{
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::model::{NcId, PodIdentity};

/// A plugin may take so long: whoever changes a network container waits for it, and no call may take more than 10 s (design §3).
const WITHIN: Duration = Duration::from_secs(8);
/// No CNI list and no answer of a plugin is longer.
const LONGEST: u64 = 1 << 20;
/// A plugin that is being replaced on the disk can be run a moment later, as libcni knows too.
const BUSY: (u32, Duration) = (5, Duration::from_millis(200));

/// Where the plugin is, and what it is configured with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CniPlugin {
    /// Directories of plugins, separated by colons like `CNI_PATH` (`-np`).
    pub path: PathBuf,
    /// The CNI configuration list whose first plugin is run (`-npconfig`).
    pub list: PathBuf,
}

/// Why the plugin did not do it.
#[derive(Debug, thiserror::Error)]
pub enum CniPluginError {
    /// No list.
    #[error(
        "the CNI list {} cannot be read: {source}; --net-plugin-config-file says where it is", path.display()
    )]
    Unreadable {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Not a list.
    #[error("the CNI list {} cannot be used: {why}", path.display())]
    List {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No plugin.
    #[error("the CNI plugin `{name}` is in none of {}; --net-plugin-path says where it is", path.display())]
    NotFound {
        /// Its name, from the list.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The names would become arguments of their own.
    #[error("pod {0} cannot be told to a CNI plugin: `;` and `=` separate its arguments")]
    Pod(PodIdentity),
    /// It cannot be run.
    #[error("the CNI plugin {} cannot be run: {source}", program.display())]
    NotRun {
        /// Its path.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It hangs; it was killed.
    #[error("the CNI plugin {} did not end within {} s", program.display(), WITHIN.as_secs())]
    Late {
        /// Its path.
        program: PathBuf,
    },
    /// It failed.
    #[error("the CNI plugin {} failed with {status}: {said}", program.display())]
    Failed {
        /// Its path.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// Its message, or the end of its standard error.
        said: String,
    },
}

impl CniPlugin {
    /// Runs `UPDATE` for the pod's network container. Ends with the plugin's end, or kills it: after 8 s, or when the future is
    /// dropped.
    pub async fn update(&self, nc: &NcId, pod: &PodIdentity) -> Result<(), CniPluginError> {
        if [pod.namespace(), pod.name()].iter().any(|name| name.contains([';', '='])) {
            return Err(CniPluginError::Pod(pod.clone()));
        }
        let (name, config) = self.first_of_list().await?;
        let program = self.find(&name).await?;
        let mut command = Command::new(&program);
        command
            .env("CNI_COMMAND", "UPDATE")
            // The pod is found by its names.
            .env("CNI_CONTAINERID", "")
            .env("CNI_NETNS", "")
            .env("CNI_IFNAME", nc.as_str())
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE={};K8S_POD_NAME={}", pod.namespace(), pod.name()))
            .env("CNI_PATH", &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let ran = timeout(WITHIN, async { talk(spawn(&mut command).await?, &config).await }).await;
        let (status, said) = match ran {
            Err(_) => return Err(CniPluginError::Late { program }),
            Ok(Err(source)) => return Err(CniPluginError::NotRun { program, source }),
            Ok(Ok(ended)) => ended,
        };
        if status.success() { Ok(()) } else { Err(CniPluginError::Failed { program, status, said }) }
    }

    /// The name of the list's first plugin, and its configuration: the plugin's own, with what the list says for all.
    async fn first_of_list(&self) -> Result<(String, Vec<u8>), CniPluginError> {
        let path = &self.list;
        let unreadable = |source| CniPluginError::Unreadable { path: path.clone(), source };
        let wrong = |why: String| CniPluginError::List { path: path.clone(), why };
        let mut content = Vec::new();
        let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
        file.take(LONGEST + 1).read_to_end(&mut content).await.map_err(unreadable)?;
        if content.len() as u64 > LONGEST {
            return Err(wrong(format!("it is longer than {LONGEST} bytes")));
        }
        let list: List = serde_json::from_slice(&content).map_err(|error| wrong(error.to_string()))?;
        let Some(mut plugin) = list.plugins.into_iter().next() else {
            return Err(wrong("`plugins` is empty or missing".to_owned()));
        };
        let name = match plugin.get("type") {
            // Of this machine's directory, and of no other (CNI spec, section 3: a name of a file).
            Some(Value::String(name))
                if !name.is_empty() && !name.contains('/') && name != "." && name != ".." =>
            {
                name.clone()
            }
            Some(other) => {
                return Err(wrong(format!(
                    "`type` of the first plugin is {other}, a file's name is expected"
                )));
            }
            None => return Err(wrong("the first plugin has no `type`".to_owned())),
        };
        plugin.insert("name".to_owned(), list.name.into());
        plugin.insert("cniVersion".to_owned(), list.cni_version.into());
        Ok((name, Value::Object(plugin).to_string().into_bytes()))
    }

    async fn find(&self, name: &str) -> Result<PathBuf, CniPluginError> {
        for directory in std::env::split_paths(&self.path).filter(|path| path != Path::new("")) {
            let program = directory.join(name);
            if tokio::fs::metadata(&program).await.is_ok_and(|found| found.is_file()) {
                return Ok(program);
            }
        }
        Err(CniPluginError::NotFound { name: name.to_owned(), path: self.path.clone() })
    }
}

/// What of a CNI configuration list concerns its plugins.
#[derive(Deserialize)]
struct List {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "cniVersion")]
    cni_version: String,
    #[serde(default)]
    plugins: Vec<Map<String, Value>>,
}

async fn spawn(command: &mut Command) -> io::Result<Child> {
    let (tries, pause) = BUSY;
    for _ in 1..tries {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => sleep(pause).await,
            spawned => return spawned,
        }
    }
    command.spawn()
}

/// Gives it its configuration, and waits for what it says and for its end.
async fn talk(mut child: Child, config: &[u8]) -> io::Result<(ExitStatus, String)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let tell = async move {
        if let Some(mut stdin) = stdin {
            // One that does not read it to the end has its reasons.
            let _ = stdin.write_all(config).await;
        }
    };
    let ((), out, err) = tokio::join!(tell, hear(stdout), hear(stderr));
    let (out, err) = (out?, err?);
    let status = child.wait().await?;
    Ok((status, complaint(&out, &err)))
}

/// All of it, up to a bound; whoever says more is not listened to.
async fn hear(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut heard = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(LONGEST).read_to_end(&mut heard).await?;
    }
    Ok(heard)
}

/// What a failed plugin wants to tell: the CNI error on standard output, else the end of what else it said.
fn complaint(out: &[u8], err: &[u8]) -> String {
    #[derive(Deserialize)]
    struct CniError {
        #[serde(default)]
        msg: String,
        #[serde(default)]
        details: String,
    }
    if let Ok(CniError { msg, details }) = serde_json::from_slice(out)
        && !msg.is_empty()
    {
        let said = if details.is_empty() { msg } else { format!("{msg}: {details}") };
        return printable(&said);
    }
    let last = |text: &[u8]| {
        String::from_utf8_lossy(text).lines().map(str::trim).rfind(|line| !line.is_empty()).map(printable)
    };
    last(err).or_else(|| last(out)).unwrap_or_else(|| "it said nothing".to_owned())
}

/// One line, for people.
fn printable(text: &str) -> String {
    text.chars().take(512).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests;
