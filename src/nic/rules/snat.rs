//! What Azure's own addresses see of pods: the host. Wireserver's DNS and IMDS answer the host's address only, so pods' packets to
//! them get it as their source (spec/network-containers.md §9).
//!
//! The chain's name, the matches, the targets and their order are the reference's, which dashboards and other tools look for.
//! Unlike there (§12 row 10) all NCs' rules stand side by side, one commit replaces them as a whole, and rules that nobody wants
//! any more go.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::{IpNet, Ipv4Net};

use super::{RulesError, iptables, run};
use crate::nic::Netns;

const CHAIN: &str = "SWIFT-POSTROUTING";
/// The chain that an old CNI made: ours must come first.
const OLD_CHAIN: &str = "SWIFT";

/// Destination, protocol and port of a rule, in the order of §9.
const DESTINATIONS: [(Ipv4Addr, &str, u16); 3] = [
    (Ipv4Addr::new(168, 63, 129, 16), "udp", 53),
    (Ipv4Addr::new(168, 63, 129, 16), "tcp", 53),
    (Ipv4Addr::new(169, 254, 169, 254), "tcp", 80),
];

/// The wish: pods of these networks, with the host's address each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snat {
    /// In ascending order, each once.
    sources: Vec<(Ipv4Net, Ipv4Addr)>,
}

impl Snat {
    /// From an address of each NC's pods, the NC's prefix length, and the host's address. An NC without an IPv4 host address or
    /// prefix has none (§12 row 16 and its neighbour: the reference would give `iptables` an empty target).
    pub fn new(ncs: impl IntoIterator<Item = (IpAddr, u8, Option<IpAddr>)>) -> Self {
        let source = |(pod, prefix, host)| match (pod, host) {
            (IpAddr::V4(pod), Some(IpAddr::V4(host))) if prefix > 0 && !host.is_unspecified() => {
                Some((Ipv4Net::new(pod, prefix).ok()?.trunc(), host))
            }
            _ => None,
        };
        let mut sources: Vec<_> = ncs.into_iter().filter_map(source).collect();
        sources.sort_unstable();
        sources.dedup();
        Self { sources }
    }

    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Makes the rules in `host` say this, whatever they said before; `false` if they did already. Blocks while the programs run.
    pub fn apply(&self, host: &Netns) -> Result<bool, RulesError> {
        host.run(|| {
            let present = match run("iptables-save", &["-t", "nat"], "") {
                // Without the program there are no rules of it.
                Err(error) if error.is_missing() && self.is_empty() => return Ok(false),
                present => present?,
            };
            let Some(text) = self.transaction(&present) else { return Ok(false) };
            // A jump that an earlier version made by the other kind of iptables would come first. Where there is none, fine. Where
            // there is one kind only, the jump is ours.
            if run("iptables", &["--version"], "").is_ok_and(|version| version.contains("nf_tables")) {
                let _ = run("iptables-legacy", &["-t", "nat", "-D", "POSTROUTING", "-j", CHAIN], "");
            }
            iptables::commit("iptables-restore", &text)?;
            Ok(true)
        })?
    }

    /// The rules as `iptables-save` shows them.
    fn rules(&self) -> Vec<String> {
        let rule = |(pods, host): &(Ipv4Net, Ipv4Addr), (to, protocol, port): &(Ipv4Addr, &str, u16)| {
            format!(
                "-A {CHAIN} -s {pods} -d {to}/32 -p {protocol} -m addrtype ! --dst-type LOCAL -m {protocol} \
                 --dport {port} -j SNAT --to-source {host}"
            )
        };
        self.sources.iter().flat_map(|source| DESTINATIONS.iter().map(move |to| rule(source, to))).collect()
    }

    /// What brings the table in line; nothing if it is.
    fn transaction(&self, present: &str) -> Option<String> {
        let jump = format!("-A POSTROUTING -j {CHAIN}");
        let old = format!("-A POSTROUTING -j {OLD_CHAIN}");
        let has_chain = present.lines().any(|line| line.starts_with(&format!(":{CHAIN} ")));
        let postrouting: Vec<&str> =
            present.lines().map(str::trim_end).filter(|line| line.starts_with("-A POSTROUTING ")).collect();
        let jumps = postrouting.iter().filter(|line| **line == jump).count();
        let place = |wanted: &str| postrouting.iter().position(|line| *line == wanted);
        let mut text = String::from("*nat\n");
        if self.is_empty() {
            if !has_chain {
                return None;
            }
            text.push_str(&format!("-D POSTROUTING -j {CHAIN}\n").repeat(jumps));
            // Writing to a string cannot fail.
            let _ = write!(text, "-F {CHAIN}\n-X {CHAIN}\nCOMMIT\n");
            return Some(text);
        }
        let rules = self.rules();
        let prefix = format!("-A {CHAIN} ");
        let present_rules: Vec<_> =
            present.lines().map(str::trim_end).filter(|line| line.starts_with(&prefix)).collect();
        let is_first = match (place(&jump), place(&old)) {
            (Some(jump), Some(old)) => jump < old,
            (jump, None) => jump.is_some(),
            (None, Some(_)) => false,
        };
        let is_placed = is_first && jumps == 1;
        if is_placed && present_rules == rules {
            return None;
        }
        // Declaring the chain empties it.
        let _ = writeln!(text, ":{CHAIN} - [0:0]");
        for rule in rules {
            let _ = writeln!(text, "{rule}");
        }
        if !is_placed {
            text.push_str(&format!("-D POSTROUTING -j {CHAIN}\n").repeat(jumps));
            let others = postrouting.iter().filter(|line| **line != jump);
            // Rule numbers begin at 1.
            let at = others.clone().position(|line| *line == old).unwrap_or(others.count()) + 1;
            let _ = writeln!(text, "-I POSTROUTING {at} -j {CHAIN}");
        }
        text.push_str("COMMIT\n");
        Some(text)
    }

    /// The networks, for the log.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.sources.iter().map(|(pods, _)| IpNet::V4(*pods))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(sources: &[(&str, u8, &str)]) -> Snat {
        Snat::new(
            sources.iter().map(|(pod, prefix, host)| (pod.parse().unwrap(), *prefix, host.parse().ok())),
        )
    }

    const RULES: &str = "-A SWIFT-POSTROUTING -s 10.240.0.0/24 -d 168.63.129.16/32 -p udp -m addrtype ! --dst-type LOCAL -m udp --dport 53 -j SNAT --to-source 10.224.0.4\n\
        -A SWIFT-POSTROUTING -s 10.240.0.0/24 -d 168.63.129.16/32 -p tcp -m addrtype ! --dst-type LOCAL -m tcp --dport 53 -j SNAT --to-source 10.224.0.4\n\
        -A SWIFT-POSTROUTING -s 10.240.0.0/24 -d 169.254.169.254/32 -p tcp -m addrtype ! --dst-type LOCAL -m tcp --dport 80 -j SNAT --to-source 10.224.0.4\n";

    #[test]
    fn the_chain_goes_before_that_of_an_old_cni_and_else_to_the_end() {
        let wish = wish(&[("10.240.0.17", 24, "10.224.0.4")]);
        let table = |postrouting: &str| {
            format!(
                "*nat\n:POSTROUTING ACCEPT [0:0]\n:SWIFT-POSTROUTING - [0:0]\n{postrouting}{RULES}COMMIT\n"
            )
        };
        let ours = "-A POSTROUTING -j SWIFT-POSTROUTING\n";
        let (old, other) = ("-A POSTROUTING -j SWIFT\n", "-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE\n");
        for (postrouting, change) in [
            ([other, ours].concat(), None),
            ([ours, other, old].concat(), None),
            ([other].concat(), Some("-I POSTROUTING 2 ")),
            ([other, old].concat(), Some("-I POSTROUTING 2 ")),
            ([old, other, ours].concat(), Some("-D POSTROUTING -j SWIFT-POSTROUTING\n-I POSTROUTING 1 ")),
            (
                [ours, other, ours].concat(),
                Some(
                    "-D POSTROUTING -j SWIFT-POSTROUTING\n-D POSTROUTING -j SWIFT-POSTROUTING\n-I POSTROUTING 2 ",
                ),
            ),
        ] {
            let text = wish.transaction(&table(&postrouting));
            match change {
                None => assert_eq!(text, None, "{postrouting}"),
                Some(change) => {
                    let text = text.unwrap();
                    assert!(text.contains(change) && text.contains(RULES), "{postrouting}: {text}");
                }
            }
        }
    }

    #[test]
    fn two_networks_stand_side_by_side_and_one_of_no_use_is_left_out() {
        let both = wish(&[
            ("10.241.0.9", 16, "10.224.0.5"),
            ("10.240.0.17", 24, "10.224.0.4"),
            ("10.240.0.99", 24, "10.224.0.4"),
            ("10.250.0.1", 24, ""),
            ("10.251.0.1", 0, "10.224.0.4"),
            ("fd00::1", 64, "10.224.0.4"),
        ]);
        assert_eq!(
            both.networks().map(|net| net.to_string()).collect::<Vec<_>>(),
            ["10.240.0.0/24", "10.241.0.0/16"]
        );
        assert_eq!(both.rules().len(), 6);
        assert!(both.transaction("*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n").unwrap().contains(RULES));
        assert_eq!(Snat::default().transaction("*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n"), None);
    }
}
