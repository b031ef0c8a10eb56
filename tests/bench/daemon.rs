//! The daemon that is measured: the real binary on a directory of a real disk, and a client of it.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::{fs::MetadataExt, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use cns::{model::Now, proto::v1 as pb};
use cns_client::{Client, Health, Options};

use super::Failure;

/// No start takes as long; only there so that a run that went wrong ends.
const PATIENCE: Duration = Duration::from_mins(2);

/// The networks of a daemon, and how many addresses they make.
#[derive(Clone, Debug)]
pub(crate) struct Networks(pub(crate) &'static [&'static str]);

/// 16 addresses exactly: 13 of the first network and one of each other.
pub(crate) const SMALL: Networks =
    Networks(&["10.244.0.0/28", "10.245.0.0/30", "10.245.0.4/30", "10.245.0.8/30"]);
/// 1 024 addresses, in as many networks.
pub(crate) const MIDDLE: Networks =
    Networks(&["10.244.0.0/22", "10.245.0.0/30", "10.245.0.4/30", "10.245.0.8/30"]);
/// 65 536 addresses exactly, in as many networks.
pub(crate) const LARGE: Networks =
    Networks(&["10.244.0.0/16", "10.245.0.0/30", "10.245.0.4/30", "10.245.0.8/30"]);
/// Full with 10 000 endpoints (10 234 addresses), and [`SMALL`] beside.
pub(crate) const SMALL_BESIDE_ENDPOINTS: Networks = Networks(&[
    "10.246.0.0/19",
    "10.246.32.0/21",
    "10.244.0.0/28",
    "10.245.0.0/30",
    "10.245.0.4/30",
    "10.245.0.8/30",
]);
/// Full with 10 000 endpoints (10 234 addresses), and [`MIDDLE`] beside.
pub(crate) const MIDDLE_BESIDE_ENDPOINTS: Networks = Networks(&[
    "10.246.0.0/19",
    "10.246.32.0/21",
    "10.244.0.0/22",
    "10.245.0.0/30",
    "10.245.0.4/30",
    "10.245.0.8/30",
]);
/// As many as fill the endpoints' networks of those two.
pub(crate) const ENDPOINTS: usize = 10_234;

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    directory: PathBuf,
    networks: Networks,
    rest: Option<SocketAddr>,
    config: Option<PathBuf>,
    child: Option<Child>,
}

impl Daemon {
    /// A daemon of its own directory below `parent`; not started.
    pub(crate) fn new(parent: &Path, name: &str, networks: &Networks) -> Result<Self, Failure> {
        let directory = parent.join(name);
        fs::create_dir_all(&directory)?;
        Ok(Self { directory, networks: networks.clone(), rest: None, config: None, child: None })
    }

    /// The same networks and a copy of the state, in another directory.
    pub(crate) fn copy(&self, parent: &Path, name: &str) -> Result<Self, Failure> {
        let copy = Self::new(parent, name, &self.networks)?;
        fs::create_dir_all(copy.directory.join("state"))?;
        for file in fs::read_dir(self.directory.join("state"))? {
            let file = file?;
            fs::copy(file.path(), copy.directory.join("state").join(file.file_name()))?;
        }
        Ok(copy)
    }

    /// From the next start on it has this configuration file.
    pub(crate) fn configure(&mut self, config: &serde_json::Value) -> Result<(), Failure> {
        let path = self.directory.join("cns_config.json");
        fs::write(&path, config.to_string())?;
        self.config = Some(path);
        Ok(())
    }

    /// From the next start on legacy clients are served, too: at this address.
    pub(crate) fn serve_rest(&mut self) -> Result<SocketAddr, Failure> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        self.rest = Some(free);
        Ok(free)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Starts it; the time until it says that it is ready and answers a call.
    pub(crate) async fn start(&mut self) -> Result<Duration, Failure> {
        let notify = self.directory.join("n");
        let _ = fs::remove_file(&notify);
        let notified = tokio::net::UnixDatagram::from_std(nonblocking(UnixDatagram::bind(&notify)?)?)?;
        let log = File::options().create(true).append(true).open(self.directory.join("log"))?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_cns"));
        command.args(["--masquerade=false", "--log-level", "info", "--state-dir"]);
        command.arg(self.directory.join("state"));
        command.arg("--grpc-socket").arg(self.socket());
        command.arg("--async-delete-dir").arg(self.directory.join("deletes"));
        for network in self.networks.0 {
            command.args(["--standalone-cidr", network]);
        }
        if let Some(config) = &self.config {
            command.arg("--config-path").arg(config);
        }
        if let Some(address) = self.rest {
            command.args(["-c", &format!("tcp://{address}")]);
        }
        command.env("NOTIFY_SOCKET", &notify).env_remove("CNS_STANDALONE_CIDR");
        let begun = Instant::now();
        self.child =
            Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(log)).spawn()?);
        let mut told = [0_u8; 4096];
        loop {
            let length = tokio::time::timeout(PATIENCE, notified.recv(&mut told)).await.map_err(|_| {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                format!("the daemon does not become ready:\n{log}")
            })??;
            if String::from_utf8_lossy(&told[..length]).contains("READY=1") {
                break;
            }
        }
        match self.client()?.health("").await? {
            Health::Serving => Ok(begun.elapsed()),
            other => Err(format!("the daemon is ready and says {other:?}").into()),
        }
    }

    /// Ends it in order.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        if let Some(mut child) = self.child.take() {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
            tokio::task::spawn_blocking(move || child.wait()).await??;
        }
        Ok(())
    }

    /// A client with a connection of its own.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(self.socket(), Options::default())?)
    }

    /// A line of `/proc/<pid>/status` in KiB.
    pub(crate) fn status_kib(&self, field: &str) -> Result<u64, Failure> {
        let pid = self.child.as_ref().ok_or("not running")?.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|line| line.starts_with(field)).ok_or("no such field")?;
        Ok(line.split_whitespace().nth(1).ok_or("no value")?.parse()?)
    }

    /// Makes as many endpoints that stay.
    pub(crate) async fn fill(&self, endpoints: usize) -> Result<(), Failure> {
        let mut clients = tokio::task::JoinSet::new();
        for which in 0..64 {
            let client = self.client()?;
            clients.spawn(async move {
                for _ in (which..endpoints).step_by(64) {
                    client.request_ip_configs(Pod::new().request()).await?;
                }
                Ok::<(), cns_client::Error>(())
            });
        }
        while let Some(done) = clients.join_next().await {
            done??;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn nonblocking(socket: UnixDatagram) -> io::Result<UnixDatagram> {
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A pod as a plugin describes it: new ids every time, as a runtime makes them.
#[derive(Debug)]
pub(crate) struct Pod {
    container: String,
    name: String,
}

static PODS: AtomicU64 = AtomicU64::new(1);

impl Pod {
    pub(crate) fn new() -> Self {
        let number = PODS.fetch_add(1, Ordering::Relaxed);
        // Spread as real ids are: ids that ascend would be too kind to a tree.
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let container = format!("{spread:016x}{:016x}{number:032x}", spread.rotate_left(29));
        Self { container, name: format!("web-7d4b9c6f5-{number:06x}") }
    }

    pub(crate) fn container(&self) -> &str {
        &self.container
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As azure-vnet makes it: the container id's beginning, and the interface.
    pub(crate) fn interface(&self) -> String {
        format!("{}-eth0", &self.container[..8])
    }

    fn identity(&self) -> pb::PodIdentity {
        pb::PodIdentity { namespace: "default".into(), name: self.name.clone() }
    }

    pub(crate) fn request(&self) -> pb::RequestIpConfigsRequest {
        // Our own namespace stands for the pod's: the daemon looks at it as it looks at a pod's.
        let netns_path = format!("/proc/{}/ns/net", std::process::id());
        let sandbox = fs::metadata(&netns_path).ok().map(|found| pb::Sandbox {
            netns_path,
            netns_inode: found.ino(),
            netns_device: found.dev(),
        });
        pb::RequestIpConfigsRequest {
            pod: Some(self.identity()),
            infra_container_id: self.container.clone(),
            pod_interface_id: self.interface(),
            ifname: "eth0".into(),
            sandbox,
            began_boottime_ns: Some(Now::read().boot.nanos()),
            ..Default::default()
        }
    }

    pub(crate) fn release(&self) -> pb::ReleaseIpConfigsRequest {
        pb::ReleaseIpConfigsRequest {
            pod: Some(self.identity()),
            infra_container_id: self.container.clone(),
            pod_interface_id: self.interface(),
            ifname: "eth0".into(),
            began_boottime_ns: Some(Now::read().boot.nanos()),
            ..Default::default()
        }
    }
}

/// The file system's kind; an error for one that keeps nothing on a disk.
pub(crate) fn disk_of(directory: &Path) -> Result<&'static str, Failure> {
    use nix::sys::statfs::{
        BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs,
    };
    match statfs(directory)?.filesystem_type() {
        TMPFS_MAGIC => {
            Err(format!("{} is a tmpfs, where nothing is durable; choose --dir", directory.display()).into())
        }
        EXT4_SUPER_MAGIC => Ok("ext4"),
        XFS_SUPER_MAGIC => Ok("xfs"),
        BTRFS_SUPER_MAGIC => Ok("btrfs"),
        OVERLAYFS_SUPER_MAGIC => Ok("overlayfs"),
        _ => Ok("another file system"),
    }
}
