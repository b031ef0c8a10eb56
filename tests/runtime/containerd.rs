//! containerd for one test, and an image made on the spot.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::json;

use crate::{cns_under_test::until, cri::Cri, lab::Space};

/// The runtime itself calls it for every sandbox.
pub const LOOPBACK: &str = "/usr/lib/cni/loopback";

const IMAGE: &str = "cns.test/sandbox:1";

pub struct Containerd {
    directory: PathBuf,
    child: Child,
    pub cri: Cri,
}

impl Containerd {
    /// Starts containerd in `host`, with everything below `directory`, and imports the image.
    pub async fn start(directory: &Path, host: &Space) -> Self {
        for made in ["bin", "conf"] {
            fs::create_dir_all(directory.join(made)).unwrap();
        }
        fs::copy(LOOPBACK, directory.join("bin/loopback")).unwrap();
        let config = directory.join("config.toml");
        fs::write(&config, configuration(directory)).unwrap();
        let log = File::create(directory.join("containerd.log")).unwrap();
        let mut command = Command::new("containerd");
        command
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        command.process_group(0);
        let child = host.netns.run(|| command.spawn().unwrap()).unwrap();
        let socket = directory.join("containerd.sock");
        until("containerd listens", async || match Cri::connect(&socket).await {
            Ok(cri) => cri.conditions().await.is_ok(),
            Err(_) => false,
        })
        .await;
        let cri = Cri::connect(&socket).await.unwrap();
        let containerd = Self { directory: directory.to_owned(), child, cri };
        let archive = image(directory);
        containerd.ctr(&["images", "import", archive.to_str().unwrap()]);
        containerd
    }

    pub fn bin_dir(&self) -> PathBuf {
        self.directory.join("bin")
    }

    pub fn conf_dir(&self) -> PathBuf {
        self.directory.join("conf")
    }

    pub async fn is_network_ready(&self) -> bool {
        let conditions = self.cri.conditions().await.unwrap();
        conditions.iter().any(|condition| condition.kind == "NetworkReady" && condition.status)
    }

    /// Runs `ctr` where CRI keeps its containers.
    #[track_caller]
    pub fn ctr(&self, arguments: &[&str]) -> String {
        let output = Command::new("ctr")
            .arg("--address")
            .arg(self.directory.join("containerd.sock"))
            .args(["--namespace", "k8s.io"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "ctr {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a busybox command inside a sandbox.
    #[track_caller]
    pub fn inside(&self, sandbox: &str, command: &[&str]) -> String {
        let head = ["tasks", "exec", "--exec-id", "probe", sandbox, "/bin/busybox"];
        self.ctr(&[&head[..], command].concat())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("containerd.log")).unwrap_or_default()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            eprintln!(
                "--- the end of containerd's log ---\n{}",
                lines[lines.len().saturating_sub(60)..].join("\n")
            );
        }
        // Its shims outlive it: they are found by their command line, which names our directory.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let ours = self.directory.to_str().unwrap_or("?").to_owned();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&command).contains(&ours) && pid != std::process::id().cast_signed() {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
        std::thread::sleep(Duration::from_millis(100));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut ours: Vec<_> = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|target| Path::new(target).starts_with(&self.directory))
            .collect();
        ours.sort_by_key(|target| std::cmp::Reverse(target.len()));
        for target in ours {
            let _ = nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

fn configuration(directory: &Path) -> String {
    let at = directory.display();
    format!(
        r#"
version = 2
root = "{at}/root"
state = "{at}/state"
[grpc]
  address = "{at}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  enable_unprivileged_icmp = true
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_tcp_service = true
  netns_mounts_under_state_dir = true
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{at}/bin"
    conf_dir = "{at}/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"#
    )
}

/// An image whose only file is busybox, as a docker archive.
fn image(directory: &Path) -> PathBuf {
    let (layer, archive) = (directory.join("layer"), directory.join("archive"));
    for made in ["bin", "proc", "sys", "dev", "etc"] {
        fs::create_dir_all(layer.join(made)).unwrap();
    }
    fs::create_dir_all(&archive).unwrap();
    fs::copy("/bin/busybox", layer.join("bin/busybox")).unwrap();
    tar(&archive.join("layer.tar"), &layer, &["."]);
    let config = json!({
        "architecture": match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other },
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&archive.join("layer.tar")))]},
    });
    fs::write(archive.join("config.json"), config.to_string()).unwrap();
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    fs::write(archive.join("manifest.json"), manifest.to_string()).unwrap();
    let image = directory.join("image.tar");
    tar(&image, &archive, &["manifest.json", "config.json", "layer.tar"]);
    image
}

fn tar(to: &Path, from: &Path, names: &[&str]) {
    let status = Command::new("tar").arg("-cf").arg(to).arg("-C").arg(from).args(names).status().unwrap();
    assert!(status.success());
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}
