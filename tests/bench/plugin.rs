//! ADD + DEL as whole processes, `cns-cni` in turns with the reference bridge + host-local plugins.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::unistd::geteuid;
use serde_json::json;

use super::{
    Failure,
    daemon::{Daemon, Networks},
    report::{Aim, Report, Times, micros, times},
};

const PAIRS: usize = 40;
/// Where Debian's `containernetworking-plugins` puts them.
const REFERENCE: &str = "/usr/lib/cni";
const WHAT: &str = "cns-cni ADD + DEL / bridge + host-local ADD + DEL";

/// A network namespace that `ip netns` made; removed when dropped.
struct Netns(String);

impl Netns {
    fn new(name: String) -> Result<Self, Failure> {
        run(Command::new("ip").args(["netns", "add", &name]))?;
        Ok(Self(name))
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let done = command.stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr)).into())
}

/// Our plugin: of the profile that ships it if that was built, else of the daemon's.
fn ours() -> Option<PathBuf> {
    let daemon = Path::new(env!("CARGO_BIN_EXE_cns"));
    let target = daemon.parent()?.parent()?;
    [target.join("plugin/cns-cni"), daemon.with_file_name("cns-cni")].into_iter().find(|path| path.is_file())
}

/// Whether it answers VERSION as a plugin does.
fn is_plugin(path: &Path) -> bool {
    let asked = Command::new(path).env("CNI_COMMAND", "VERSION").stdin(Stdio::null()).output();
    asked.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).contains("supportedVersions"))
}

struct Plugin {
    binary: PathBuf,
    conf: String,
    path: String,
}

impl Plugin {
    fn call(&self, command: &str, container: &str, netns: &str) -> Result<Duration, Failure> {
        let mut plugin = Command::new(&self.binary);
        plugin.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        plugin.env("CNI_COMMAND", command).env("CNI_CONTAINERID", container).env("CNI_NETNS", netns);
        plugin.env("CNI_IFNAME", "eth0").env("CNI_PATH", &self.path);
        plugin.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0");
        plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let begun = Instant::now();
        let mut child = plugin.spawn()?;
        child.stdin.take().ok_or("no stdin")?.write_all(self.conf.as_bytes())?;
        let done = child.wait_with_output()?;
        let spent = begun.elapsed();
        if done.status.success() {
            return Ok(spent);
        }
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        Err(format!("{} {command}: {} {out} {err}", self.binary.display(), done.status).into())
    }

    fn pair(&self, number: usize, netns: &str) -> Result<(Duration, Duration), Failure> {
        let container = format!("{number:064x}");
        let add = self.call("ADD", &container, netns)?;
        Ok((add, self.call("DEL", &container, netns)?))
    }
}

fn why_not() -> Result<PathBuf, String> {
    if !geteuid().is_root() {
        return Err("not root".into());
    }
    let ours = ours().ok_or("cns-cni is not built; `cargo build --profile plugin -p cns-cni` does it")?;
    if !is_plugin(&ours) {
        return Err(format!("{} is no CNI plugin yet", ours.display()));
    }
    for name in ["bridge", "host-local"] {
        if !Path::new(REFERENCE).join(name).is_file() {
            return Err(format!("{REFERENCE}/{name} is not there; install containernetworking-plugins"));
        }
    }
    if Command::new("ip").arg("-V").output().is_err() {
        return Err("`ip` is not there; install iproute2".into());
    }
    Ok(ours)
}

pub(crate) async fn measure(at: &Path, report: &mut Report) -> Result<(), Failure> {
    let binary = match why_not() {
        Ok(binary) => binary,
        Err(why) => {
            report.skipped(WHAT, why);
            return Ok(());
        }
    };
    eprintln!("plugin");
    let mut daemon = Daemon::new(at, "plugin", &Networks(&["10.244.0.0/24"]))?;
    daemon.start().await?;
    let below = |name: &str| -> Result<PathBuf, Failure> {
        let path = daemon.directory().join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    };
    let conf = json!({
        "cniVersion": "1.0.0", "name": "cns", "type": "cns-cni",
        "socket": daemon.socket(), "intentDir": below("intent")?, "asyncDeleteDir": below("deletes")?,
    });
    let ours = Plugin { binary, conf: conf.to_string(), path: REFERENCE.into() };
    let bridge = format!("cnsb{}", std::process::id() % 100_000);
    let conf = json!({
        "cniVersion": "1.0.0", "name": "reference", "type": "bridge", "bridge": bridge, "isGateway": true,
        "ipam": {
            "type": "host-local", "dataDir": below("host-local")?,
            "ranges": [[{ "subnet": "10.247.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }],
        },
    });
    let reference = Plugin {
        binary: Path::new(REFERENCE).join("bridge"),
        conf: conf.to_string(),
        path: REFERENCE.into(),
    };
    let measured = in_turns(&ours, &reference);
    // The bridge stays otherwise; there is none if the plugin never ran.
    let _ = Command::new("ip").args(["link", "del", &bridge]).stderr(Stdio::null()).status();
    let [ours_add, ours_del, theirs_add, theirs_del] = measured?;
    report.fact("cns-cni ADD, DEL, p50", format!("{}, {}", micros(ours_add), micros(ours_del)));
    report
        .fact("bridge + host-local ADD, DEL, p50", format!("{}, {}", micros(theirs_add), micros(theirs_del)));
    let (ours, theirs) = (ours_add + ours_del, theirs_add + theirs_del);
    let detail = format!("{} / {}", micros(ours), micros(theirs));
    report.ratio(WHAT, times(ours, theirs), Aim::AtMost(1.0), detail);
    Ok(())
}

fn in_turns(ours: &Plugin, reference: &Plugin) -> Result<[Duration; 4], Failure> {
    let mut spent: [Times; 4] = Default::default();
    for number in 0..=PAIRS {
        // A sandbox of its own for each: what an earlier one left must not make a later one cheap.
        let netns = Netns::new(format!("cns-speed-{}-{number}", std::process::id()))?;
        let mine = ours.pair(number, &netns.path())?;
        let theirs = reference.pair(number, &netns.path())?;
        // The first makes the bridge and pulls the binaries into memory.
        if number > 0 {
            for (times, time) in spent.iter_mut().zip([mine.0, mine.1, theirs.0, theirs.1]) {
                times.add(time);
            }
        }
    }
    Ok(spent.map(|times| times.median()))
}
