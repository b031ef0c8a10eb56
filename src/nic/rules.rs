//! Packet rules: what leaves the pod CIDRs is masqueraded.
//!
//! The whole wish is written as one transaction that replaces the one before: there is no moment without the rules, and
//! nothing to compare. Everything of ours stands in one table (nftables) or chain (iptables) that bears our name and a
//! comment. No shell: programs get arguments and standard input.

use std::{
    io::{self, Write},
    process::{Command, Stdio},
};

use ipnet::IpNet;

use super::netns::{Netns, NetnsError};
use crate::model::{Family, NetworkName};

mod iptables;
mod nft;
mod snat;

pub use snat::Snat;

/// The mark on everything of ours.
const COMMENT: &str = "cns: pods reach the world with the host's address";

/// The same, on what lets pods through a firewall that drops what it does not know.
const FORWARD_COMMENT: &str = "cns: pods pass";

/// Which program holds the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `nft`.
    Nftables,
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables,
}

/// Rules could not be set or removed.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// Neither program is installed.
    #[error(
        "neither `nft` nor `iptables-restore` is installed: install the package `nftables`, or switch masquerading off"
    )]
    NoProgram,
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Start {
        /// Its name.
        program: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
    /// A program refused.
    #[error("{program} failed ({status}): {stderr}")]
    Refused {
        /// Its name.
        program: &'static str,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// Neither program could do it.
    #[error("{nftables}; and {iptables}")]
    Both {
        /// What nftables said.
        nftables: Box<RulesError>,
        /// What iptables said.
        iptables: Box<RulesError>,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

impl RulesError {
    /// The program is not installed.
    fn is_missing(&self) -> bool {
        matches!(self, Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The wish: packets from `pods` to anywhere but `pods` and `keep` leave with the host's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// The pod CIDRs.
    pub pods: Vec<IpNet>,
    /// Further destinations that shall see the pods' own addresses.
    pub keep: Vec<IpNet>,
}

impl Masquerade {
    fn pods_of(&self, family: Family) -> Vec<IpNet> {
        of_family(&self.pods, family)
    }

    /// Destinations that are reached with the pod's own address. Multicast is among them: its source must stay true.
    fn kept_of(&self, family: Family) -> Vec<IpNet> {
        let multicast = match family {
            Family::V4 => IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(224, 0, 0, 0), 4)),
            Family::V6 => {
                IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8))
            }
        };
        let mut all = self.pods.clone();
        all.extend(&self.keep);
        all.push(multicast);
        of_family(&all, family)
    }

    /// Makes the rules in `host` say this, whatever they said before. Blocks while the programs run: on a runtime, call it
    /// where blocking is allowed.
    pub fn apply(&self, host: &Netns) -> Result<Backend, RulesError> {
        host.run(|| {
            let nftables = match nft::apply(self) {
                Ok(()) => {
                    // Rules of an earlier start without nft would only do the same work twice.
                    let _ = iptables::remove();
                    return self.let_through().map(|()| Backend::Nftables);
                }
                Err(error) => error,
            };
            match iptables::apply(self) {
                Ok(()) => self.let_through().map(|()| Backend::Iptables),
                Err(iptables) if iptables.is_missing() && nftables.is_missing() => Err(RulesError::NoProgram),
                Err(iptables) if iptables.is_missing() => Err(nftables),
                Err(iptables) if nftables.is_missing() => Err(iptables),
                Err(iptables) => {
                    Err(RulesError::Both { nftables: Box::new(nftables), iptables: Box::new(iptables) })
                }
            }
        })?
    }

    /// Lets pods through an iptables firewall that drops. Without iptables there is none.
    fn let_through(&self) -> Result<(), RulesError> {
        match iptables::let_through(self) {
            Err(error) if error.is_missing() => Ok(()),
            done => done,
        }
    }

    /// Whether the rules are there as [`Masquerade::apply`] by `backend` made them: reloading a firewall takes them away, and
    /// starting Docker shuts pods out. Blocks as that does.
    pub fn is_in_place(&self, backend: Backend, host: &Netns) -> Result<bool, RulesError> {
        host.run(|| {
            let masquerades = match backend {
                Backend::Nftables => nft::is_in_place(self),
                Backend::Iptables => iptables::is_in_place(self),
            };
            match iptables::is_open(self) {
                Err(error) if error.is_missing() => masquerades,
                passes => Ok(masquerades? && passes?),
            }
        })?
    }

    /// As [`Masquerade::apply`], by one program only. Rules that the other holds stay.
    pub fn apply_by(&self, backend: Backend, host: &Netns) -> Result<(), RulesError> {
        host.run(|| match backend {
            Backend::Nftables => nft::apply(self),
            Backend::Iptables => iptables::apply(self),
        })?
    }

    /// Removes all rules of ours from `host`. That there are none, or no program to ask, is success.
    pub fn remove(host: &Netns) -> Result<(), RulesError> {
        host.run(|| {
            let outcomes = [nft::remove(), iptables::remove()];
            outcomes
                .into_iter()
                .filter(|outcome| !matches!(outcome, Err(error) if error.is_missing()))
                .collect()
        })?
    }
}

/// The wish for one docker network: packets from its subnet to elsewhere leave with the host's address, except for the host agents'
/// address and for this machine's own (what the reference sets with each network, spec/network-containers.md §16 F3; there it is
/// about packets from anywhere).
///
/// By iptables only: a machine with docker has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkMasquerade {
    /// The network.
    pub network: NetworkName,
    /// Where its containers' addresses are from.
    pub subnet: IpNet,
}

impl NetworkMasquerade {
    /// Makes the rule in `host` say this, whatever it said before; `false` if it did already. Blocks while the programs run.
    pub fn apply(&self, host: &Netns) -> Result<bool, RulesError> {
        host.run(|| iptables::masquerade_network(&self.network, self.subnet))?
    }

    /// Removes the network's rule. That there is none is success. Blocks as [`NetworkMasquerade::apply`] does.
    pub fn remove(network: &NetworkName, host: &Netns) -> Result<(), RulesError> {
        host.run(|| iptables::forget_network(network))?
    }
}

fn of_family(nets: &[IpNet], family: Family) -> Vec<IpNet> {
    let all = nets.iter().filter(|net| Family::of(net.addr()) == family).map(IpNet::trunc).collect();
    // Overlapping elements are an error in an interval set.
    IpNet::aggregate(&all)
}

/// Runs a program with `input` on its standard input and gives its standard output.
fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<String, RulesError> {
    let start = |source| RulesError::Start { program, source };
    let mut child = Command::new(found(program))
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early says why on stderr; the broken pipe adds nothing.
        match stdin.write_all(input.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(start(error)),
            _ => {}
        }
    }
    let output = child.wait_with_output().map_err(start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(RulesError::Refused { program, status: output.status, stderr })
}

/// The program by its full path where services usually lack it in `PATH`.
fn found(program: &str) -> std::path::PathBuf {
    ["/usr/sbin", "/sbin"]
        .into_iter()
        .map(|directory| std::path::Path::new(directory).join(program))
        .find(|path| path.exists())
        .unwrap_or_else(|| program.into())
}
