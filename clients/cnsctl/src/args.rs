//! The command line. What can be judged without a daemon is judged here, and ends with exit code 2.

use std::{ffi::OsString, net::IpAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use cns::model::{ContainerId, IfName, IpStateKind, NcId, PodIdentity};

use crate::{failure::EXIT_CODES, output::Format};

/// Ask and steer the node's container networking daemon, cns.
#[derive(Debug, Parser)]
#[command(name = "cnsctl", version, after_help = EXIT_CODES, max_term_width = 110)]
pub(crate) struct Cli {
    /// The daemon's unix socket
    ///
    /// Without it: /run/azure-cns/cns.sock; for a user who runs a daemon of their own, $XDG_RUNTIME_DIR/cns/cns.sock or
    /// /tmp/cns-UID/cns.sock.
    #[arg(long, global = true, value_name = "PATH", env = "CNS_SOCKET", hide_env_values = true, value_hint = ValueHint::FilePath)]
    socket: Option<OsString>,

    /// The form of the output
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Format,

    /// The longest to wait for the daemon, retries included (seconds)
    #[arg(long, global = true, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The socket to use. An empty `CNS_SOCKET` is none.
    pub(crate) fn socket(&self) -> PathBuf {
        match &self.socket {
            Some(path) if !path.is_empty() => path.into(),
            _ => cns::paths::client_socket(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// How the daemon is: mode, health, pool, store, and what is wrong
    Status,
    /// Pod addresses
    #[command(subcommand)]
    Ip(IpCommand),
    /// Network containers
    #[command(subcommand)]
    Nc(NcCommand),
    /// Sandboxes and their interfaces
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Everything that is known to have happened to an address, a pod or a container, newest last
    Explain {
        /// An IP address, a pod as NAMESPACE/NAME, or a container id
        #[arg(value_name = "IP|POD|CONTAINER")]
        subject: String,
    },
    /// Print what changes on the node, as it changes, until Ctrl-C
    Watch {
        /// Begin after this sequence number, as far as the journal reaches back
        #[arg(long, value_name = "SEQUENCE")]
        after: Option<u64>,
    },
    /// Check the node: broken invariants, leaks, and what the daemon would clean up
    Doctor,
    /// Collect what a support case needs: configuration, state, journal, findings
    Bundle {
        /// The directory for the files; it is made if it is missing
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Move state from and to the files of the reference implementation
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Put the CNI plugin where a container runtime finds it
    #[command(subcommand)]
    Cni(CniCommand),
    /// Print a completion script
    Completion {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum IpCommand {
    /// List addresses
    List {
        /// Only those in this state
        #[arg(long, value_enum, value_name = "STATE")]
        state: Option<State>,
        /// Only those of this pod
        #[arg(long, value_name = "NAMESPACE/NAME", value_parser = pod)]
        pod: Option<PodIdentity>,
        /// Only those of this network container
        #[arg(long, value_name = "ID")]
        nc: Option<NcId>,
    },
    /// Request addresses for a container, one for each family; repeating it returns the same
    Request {
        #[command(flatten)]
        who: Requester,
        /// An address to get, instead of any; repeat it for several
        #[arg(long, value_name = "IP")]
        desired: Vec<IpAddr>,
    },
    /// Release all addresses of a container; releasing what is not held is no error
    Release {
        #[command(flatten)]
        who: Requester,
        /// Accepted for symmetry with `request`: a release always gives back all addresses of the container
        #[arg(long, value_name = "IP")]
        desired: Vec<IpAddr>,
    },
}

/// For whom addresses are requested and released.
#[derive(Debug, Args)]
pub(crate) struct Requester {
    /// The sandbox's container id
    #[arg(long, value_name = "ID")]
    pub(crate) container_id: ContainerId,
    /// The pod
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = pod)]
    pub(crate) pod: PodIdentity,
    /// The interface's name in the pod
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    pub(crate) ifname: IfName,
}

/// States as the command line spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// Free to be given to a pod
    Available,
    /// Held by a pod
    Assigned,
    /// Not yet usable: the host has not programmed it
    PendingProgramming,
    /// To be given back to the control plane
    PendingRelease,
}

impl From<State> for IpStateKind {
    fn from(state: State) -> Self {
        match state {
            State::Available => Self::Available,
            State::Assigned => Self::Assigned,
            State::PendingProgramming => Self::PendingProgramming,
            State::PendingRelease => Self::PendingRelease,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum NcCommand {
    /// List network containers
    List,
    /// Show one network container
    Get {
        /// Its id
        id: NcId,
    },
    /// Create or update a network container from a JSON or YAML file, as `nc get` prints it
    Create {
        /// The file; `-` is standard input
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Delete a network container
    Delete {
        /// Its id
        id: NcId,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum EndpointCommand {
    /// List sandboxes
    List,
    /// Show one sandbox
    Get {
        /// Its container id
        container_id: ContainerId,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Read azure-cns.json, azure-endpoints.json and azure-vnet.json, as many as there are, into the daemon
    Import {
        /// The directory of the files
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Write the daemon's state as azure-cns.json, azure-endpoints.json and azure-vnet.json
    Export {
        /// The directory for the files; it is made if it is missing
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CniCommand {
    /// Install the plugin and a network configuration; running it again changes nothing
    Install {
        #[command(flatten)]
        place: CniPlace,
        /// The plugin to install, instead of the cns-cni that lies beside cnsctl
        #[arg(long, value_name = "PATH", value_hint = ValueHint::ExecutablePath)]
        plugin: Option<PathBuf>,
        /// The network's name in its configuration
        #[arg(long, value_name = "NAME", default_value = "cns", value_parser = network_name)]
        network_name: String,
    },
    /// Remove what `install` has put there
    Uninstall {
        #[command(flatten)]
        place: CniPlace,
    },
}

/// Where a runtime looks for plugins and their configuration.
#[derive(Debug, Args)]
pub(crate) struct CniPlace {
    /// The runtime's directory of plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin", value_hint = ValueHint::DirPath)]
    pub(crate) bin_dir: PathBuf,
    /// The runtime's directory of network configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d", value_hint = ValueHint::DirPath)]
    pub(crate) conf_dir: PathBuf,
    /// Replace or remove files of these names even if they are not ours
    #[arg(long)]
    pub(crate) force: bool,
}

fn pod(text: &str) -> Result<PodIdentity, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            PodIdentity::new(namespace, name).map_err(|error| error.to_string())
        }
        _ => Err("a pod is written NAMESPACE/NAME".to_owned()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (0.001..=3_600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "seconds are a number from 0.001 to 3600".to_owned())
}

/// CNI spec 1.1, network configuration: `name` begins with an alphanumeric character, then alphanumerics, `_`, `.`, `-`.
fn network_name(text: &str) -> Result<String, String> {
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
        Ok(text.to_owned())
    } else {
        Err("a network's name begins with a letter or digit; then letters, digits, `_`, `.` and `-` are allowed".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_lists_the_exit_codes() {
        assert!(Cli::command().render_help().to_string().contains("3  the daemon cannot be reached"));
    }

    #[test]
    fn what_cannot_be_right_is_refused_before_anything_is_asked() {
        for line in [
            "cnsctl ip request --container-id ../x --pod a/b",
            "cnsctl ip request --container-id c1 --pod nameonly",
            "cnsctl ip request --container-id c1 --pod a/b --ifname sixteen-bytes-xx",
            "cnsctl ip request --container-id c1 --pod a/b --desired 10.0.0.256",
            "cnsctl ip list --state Free",
            "cnsctl nc get 12",
            "cnsctl status --timeout 0",
            "cnsctl status --timeout forever",
            "cnsctl cni install --network-name ../x",
            "cnsctl",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn global_options_may_stand_behind_the_command() {
        let cli = parse("cnsctl ip list --state pending-release --socket /x -o json").unwrap();
        assert_eq!(cli.socket(), PathBuf::from("/x"));
        assert_eq!(cli.output, Format::Json);
    }
}
