//! The daemon under test: the real binary on a temporary directory. A test is its client.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, TcpListener},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use cns::proto::v1::{
    debug_service_client::DebugServiceClient, endpoint_service_client::EndpointServiceClient,
    ipam_service_client::IpamServiceClient, network_container_service_client::NetworkContainerServiceClient,
    node_service_client::NodeServiceClient,
};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Longer than any start takes; only there so that a test that went wrong ends.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Cns {
    directory: TempDir,
    args: Vec<String>,
    netns: Option<PathBuf>,
    /// The soft limit of open files that it is started with.
    open_files: Option<u32>,
    unprivileged: bool,
    /// Where it finds systemd.
    systemd: Option<PathBuf>,
    child: Option<Child>,
}

impl Cns {
    /// Standalone with these further arguments.
    pub async fn start(args: &[&str]) -> Self {
        let mut cns = Self::prepared(args);
        cns.launch().await;
        cns
    }

    /// As [`Self::start`], but not started yet.
    pub fn prepared(args: &[&str]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        Self {
            directory,
            args: args.iter().map(ToString::to_string).collect(),
            netns: None,
            open_files: None,
            unprivileged: false,
            systemd: None,
            child: None,
        }
    }

    /// Lets it live in the network namespace at `path`.
    pub fn in_netns(mut self, path: &Path) -> Self {
        self.netns = Some(path.to_owned());
        self
    }

    /// Starts it with this soft limit of open files.
    pub fn with_open_files(mut self, soft: u32) -> Self {
        self.open_files = Some(soft);
        self
    }

    /// Lets it run as a user without privileges; only root can.
    pub fn unprivileged(mut self) -> Self {
        self.unprivileged = true;
        self
    }

    /// Lets it tell systemd, whose part the socket at `path` plays, how it is.
    pub fn tell_systemd(&mut self, path: &Path) {
        self.systemd = Some(path.to_owned());
    }

    /// Everything of this daemon is below this directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.directory().join("state")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory().join("cns.sock")
    }

    pub fn async_delete_dir(&self) -> PathBuf {
        self.directory().join("deleteIDs")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory().join("log")).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Replaces the arguments for the next start.
    pub fn set_args(&mut self, args: &[&str]) {
        self.args = args.iter().map(ToString::to_string).collect();
    }

    /// Further arguments for the next start.
    pub fn add_args(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(ToString::to_string));
    }

    /// Starts the process and does not wait until it serves.
    pub fn spawn(&mut self) -> &mut Child {
        let log =
            File::options().create(true).append(true).open(self.directory().join("log")).expect("a log file");
        let program = env!("CARGO_BIN_EXE_cns");
        let mut command = match self.open_files {
            Some(soft) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -Sn {soft}; exec \"$0\" \"$@\""), program]);
                shell
            }
            None => Command::new(program),
        };
        if self.unprivileged {
            const NOBODY: u32 = 65_534;
            // The build's directory may be closed to others.
            let copy = self.directory().join("cns");
            std::fs::copy(program, &copy).expect("a copy of the binary");
            std::os::unix::fs::chown(self.directory(), Some(NOBODY), Some(NOBODY)).expect("root");
            command = Command::new(copy);
            command.uid(NOBODY).gid(NOBODY);
        }
        if let Some(path) = &self.systemd {
            command.env("NOTIFY_SOCKET", path);
        }
        command
            .args(["--masquerade=false", "--log-level", "info"])
            .arg("--state-dir")
            .arg(self.state_dir())
            .arg("--grpc-socket")
            .arg(self.socket())
            .arg("--async-delete-dir")
            .arg(self.async_delete_dir())
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = match &self.netns {
            Some(path) => {
                let netns = cns::nic::Netns::open(path).expect("the daemon's namespace");
                netns.run(|| command.spawn()).expect("the daemon's namespace")
            }
            None => command.spawn(),
        };
        self.child.insert(child.expect("the daemon starts"))
    }

    /// Starts the process and waits until it serves.
    pub async fn launch(&mut self) {
        self.spawn();
        let begun = Instant::now();
        loop {
            if self.is_serving().await {
                return;
            }
            if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
                panic!("the daemon ended with {status}:\n{}", self.log());
            }
            assert!(begun.elapsed() < PATIENCE, "the daemon does not serve:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    async fn is_serving(&self) -> bool {
        match self.try_channel().await {
            Ok(channel) => NodeServiceClient::new(channel)
                .get_node_info(cns::proto::v1::GetNodeInfoRequest {})
                .await
                .is_ok_and(|info| info.get_ref().serving),
            Err(_) => false,
        }
    }

    /// SIGKILL, and wait until it is gone.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and wait until it ends. The test's own connections go on meanwhile: they have to answer the daemon's goodbye.
    pub async fn terminate(&mut self) -> io::Result<ExitStatus> {
        let Some(mut child) = self.child.take() else { return Err(io::Error::other("not running")) };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        tokio::task::spawn_blocking(move || child.wait()).await.map_err(io::Error::other)?
    }

    /// Waits until the process ends by itself.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.as_mut().ok_or_else(|| io::Error::other("not running"))?.wait()
    }

    pub async fn try_channel(&self) -> Result<Channel, tonic::transport::Error> {
        Endpoint::try_from(format!("unix:{}", self.socket().display()))?.connect().await
    }

    pub async fn channel(&self) -> Channel {
        self.try_channel().await.expect("a connection")
    }

    pub async fn ipam(&self) -> IpamServiceClient<Channel> {
        IpamServiceClient::new(self.channel().await)
    }

    pub async fn ncs(&self) -> NetworkContainerServiceClient<Channel> {
        NetworkContainerServiceClient::new(self.channel().await)
    }

    pub async fn endpoints(&self) -> EndpointServiceClient<Channel> {
        EndpointServiceClient::new(self.channel().await)
    }

    pub async fn node(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel().await)
    }

    pub async fn debug(&self) -> DebugServiceClient<Channel> {
        DebugServiceClient::new(self.channel().await)
    }

    /// Fails the test if the daemon finds anything wrong with its own state.
    pub async fn assert_sound(&self) {
        let report =
            self.debug().await.diagnose(cns::proto::v1::DiagnoseRequest {}).await.expect("a diagnosis");
        let broken: Vec<_> =
            report.into_inner().findings.into_iter().filter(|f| f.kind == "INVARIANT").collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

impl Drop for Cns {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("--- the daemon's log ---\n{}", self.log());
        }
    }
}

/// Waits for a condition; the bound is there only so that a failed test ends.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Another binary of the workspace, beside the daemon's.
pub fn sibling(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_cns")).with_file_name(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build` for the whole workspace first",
        path.display()
    );
    path
}

/// A port that nobody listens on, and none that the kernel gives to outgoing connections: with thousands of these, one that was free a
/// moment ago is soon taken. None is given twice within a test binary.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Away from well-known ones, below Linux' own.
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    // Test binaries may run side by side.
    let first = std::process::id() % (COUNT / 32) * 32;
    for _ in 0..COUNT {
        let port = FIRST + (first + GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(port).expect("a port");
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("all ports are taken")
}
