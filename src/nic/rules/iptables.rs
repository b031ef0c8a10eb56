//! The rules as an iptables chain of our own, for hosts without `nft`.
//!
//! `iptables-restore --noflush` commits one table as a whole. A chain that it declares is emptied first, so the chain
//! needs no comparison; the jumps to it stand in a chain of others, so those that are there are read and taken out in
//! the same commit.

use std::fmt::Write as _;

use ipnet::IpNet;

use super::{COMMENT, FORWARD_COMMENT, Masquerade, RulesError, run};
use crate::model::{Family, NetworkName};

const CHAIN: &str = "CNS-MASQUERADE";
/// In the table `filter`, where somebody else drops what is forwarded.
const FORWARD_CHAIN: &str = "CNS-FORWARD";

/// `save` and `restore` of a family.
const PROGRAMS: [(Family, &str, &str); 2] =
    [(Family::V4, "iptables-save", "iptables-restore"), (Family::V6, "ip6tables-save", "ip6tables-restore")];

pub(super) fn apply(wish: &Masquerade) -> Result<(), RulesError> {
    for (family, save, restore) in PROGRAMS {
        if wish.pods_of(family).is_empty() {
            remove_family(save, restore)?;
        } else {
            let present = run(save, &["-t", "nat"], "")?;
            commit(restore, &transaction(wish, family, &present))?;
        }
    }
    Ok(())
}

pub(super) fn remove() -> Result<(), RulesError> {
    for (_, save, restore) in PROGRAMS {
        remove_family(save, restore)?;
        shut_family(save, restore)?;
    }
    Ok(())
}

/// Whether the jumps and chains of the wish are there.
pub(super) fn is_in_place(wish: &Masquerade) -> Result<bool, RulesError> {
    for (family, save, _) in PROGRAMS {
        let present = run(save, &["-t", "nat"], "")?;
        let jumps = jumps(&present, "POSTROUTING", CHAIN).count();
        if jumps != wish.pods_of(family).len() || (jumps > 0 && !present.contains("-j MASQUERADE")) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lets pods through where the policy of `FORWARD` is to drop, as Docker makes it, and takes that back where it is not (any more).
/// A verdict of ours in another table could not: a packet has to be accepted in every one.
pub(super) fn let_through(wish: &Masquerade) -> Result<(), RulesError> {
    for (family, save, restore) in PROGRAMS {
        let pods = wish.pods_of(family);
        let present = run(save, &["-t", "filter"], "")?;
        if pods.is_empty() || !is_shut(&present) {
            shut_family(save, restore)?;
        } else {
            commit(restore, &passage(&pods, &present))?;
        }
    }
    Ok(())
}

/// Whether pods pass `FORWARD`, as far as its policy goes.
pub(super) fn is_open(wish: &Masquerade) -> Result<bool, RulesError> {
    for (family, save, _) in PROGRAMS {
        let present = run(save, &["-t", "filter"], "")?;
        if !wish.pods_of(family).is_empty()
            && is_shut(&present)
            && jumps(&present, "FORWARD", FORWARD_CHAIN).next().is_none()
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_shut(present: &str) -> bool {
    present.lines().any(|line| line.starts_with(":FORWARD DROP"))
}

fn passage(pods: &[IpNet], present: &str) -> String {
    let mut text =
        format!("*filter\n:{FORWARD_CHAIN} - [0:0]\n{}", without_jumps(present, "FORWARD", FORWARD_CHAIN));
    // Writing to a string cannot fail.
    for net in pods {
        for side in ["-s", "-d"] {
            let _ = writeln!(
                text,
                "-A {FORWARD_CHAIN} {side} {net} -m comment --comment \"{FORWARD_COMMENT}\" -j ACCEPT"
            );
        }
    }
    let _ = writeln!(text, "-I FORWARD -m comment --comment \"{FORWARD_COMMENT}\" -j {FORWARD_CHAIN}");
    text.push_str("COMMIT\n");
    text
}

fn shut_family(save: &'static str, restore: &'static str) -> Result<(), RulesError> {
    let present = run(save, &["-t", "filter"], "")?;
    remove_chain(restore, "filter", &present, "FORWARD", FORWARD_CHAIN)
}

fn remove_family(save: &'static str, restore: &'static str) -> Result<(), RulesError> {
    let present = run(save, &["-t", "nat"], "")?;
    remove_chain(restore, "nat", &present, "POSTROUTING", CHAIN)
}

fn remove_chain(
    restore: &'static str,
    table: &str,
    present: &str,
    from: &str,
    chain: &str,
) -> Result<(), RulesError> {
    // Without the chain there can be no jump to it.
    if !present.lines().any(|line| line.starts_with(&format!(":{chain} "))) {
        return Ok(());
    }
    let jumps = without_jumps(present, from, chain);
    commit(restore, &format!("*{table}\n{jumps}-F {chain}\n-X {chain}\nCOMMIT\n"))
}

pub(super) fn commit(restore: &'static str, text: &str) -> Result<(), RulesError> {
    run(restore, &["--noflush", "--wait", "60"], text).map(drop)
}

fn transaction(wish: &Masquerade, family: Family, present: &str) -> String {
    let mut text = format!("*nat\n:{CHAIN} - [0:0]\n{}", without_jumps(present, "POSTROUTING", CHAIN));
    // Writing to a string cannot fail.
    for net in wish.kept_of(family) {
        let _ = writeln!(text, "-A {CHAIN} -d {net} -m comment --comment \"{COMMENT}\" -j RETURN");
    }
    let _ = writeln!(text, "-A {CHAIN} -m comment --comment \"{COMMENT}\" -j MASQUERADE");
    for net in wish.pods_of(family) {
        let _ = writeln!(text, "-A POSTROUTING -s {net} -m comment --comment \"{COMMENT}\" -j {CHAIN}");
    }
    text.push_str("COMMIT\n");
    text
}

/// A rule for each docker network stands by itself and is known by its comment: the network's subnet may be another one by now.
pub(super) fn masquerade_network(network: &NetworkName, subnet: IpNet) -> Result<bool, RulesError> {
    let family = Family::of(subnet.addr());
    for (_, save, restore) in PROGRAMS.into_iter().filter(|(of, ..)| *of == family) {
        let present = run(save, &["-t", "nat"], "")?;
        let mut there = rules_of(network, &present);
        let source = format!("-s {subnet} ");
        if there.next().is_some_and(|rule| rule.contains(&source)) && there.next().is_none() {
            return Ok(false);
        }
        commit(restore, &network_transaction(network, subnet, &present))?;
    }
    Ok(true)
}

/// Takes the network's rule away, in whatever family it is.
pub(super) fn forget_network(network: &NetworkName) -> Result<(), RulesError> {
    for (_, save, restore) in PROGRAMS {
        let present = run(save, &["-t", "nat"], "")?;
        if rules_of(network, &present).next().is_some() {
            commit(restore, &format!("*nat\n{}COMMIT\n", without_rules_of(network, &present)))?;
        }
    }
    Ok(())
}

fn network_comment(network: &NetworkName) -> String {
    format!("--comment \"cns: docker network {network}\"")
}

fn network_transaction(network: &NetworkName, subnet: IpNet, present: &str) -> String {
    let mut text = format!("*nat\n{}", without_rules_of(network, present));
    // The host agents know this machine's containers by their own addresses.
    let agents = if subnet.addr().is_ipv4() { "-m iprange ! --dst-range 168.63.129.16 " } else { "" };
    let comment = network_comment(network);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "-A POSTROUTING -s {subnet} ! -d {subnet} {agents}-m addrtype ! --dst-type LOCAL -m comment {comment} -j MASQUERADE"
    );
    text.push_str("COMMIT\n");
    text
}

/// The rules of a network that a saved table shows, without their `-A POSTROUTING`.
fn rules_of<'a>(network: &NetworkName, present: &'a str) -> impl Iterator<Item = &'a str> {
    let comment = network_comment(network);
    present
        .lines()
        .filter_map(|line| line.strip_prefix("-A POSTROUTING "))
        .filter(move |rule| rule.contains(&comment))
}

fn without_rules_of(network: &NetworkName, present: &str) -> String {
    rules_of(network, present).fold(String::new(), |mut text, rule| {
        let _ = writeln!(text, "-D POSTROUTING {rule}");
        text
    })
}

/// The jumps from one chain to another that a saved table shows, without their `-A CHAIN`.
fn jumps<'a>(present: &'a str, from: &str, to: &str) -> impl Iterator<Item = &'a str> {
    let (rule, jump) = (format!("-A {from} "), format!("-j {to}"));
    present.lines().filter_map(move |line| {
        line.strip_prefix(rule.as_str()).filter(|rest| rest.trim_end().ends_with(jump.as_str()))
    })
}

/// Deletions of those jumps. What `save` writes, `restore` understands.
fn without_jumps(present: &str, from: &str, to: &str) -> String {
    jumps(present, from, to).fold(String::new(), |mut text, rule| {
        let _ = writeln!(text, "-D {from} {rule}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_before_are_replaced_in_the_same_commit() {
        let present = "*nat\n:POSTROUTING ACCEPT [0:0]\n:CNS-MASQUERADE - [0:0]\n\
                       -A POSTROUTING -s 10.1.0.0/16 -m comment --comment \"cns: x\" -j CNS-MASQUERADE\n\
                       -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\nCOMMIT\n";
        let wish = Masquerade { pods: vec!["fd00:10::/64".parse().unwrap()], keep: Vec::new() };
        let text = transaction(&wish, Family::V6, present);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "*nat",
                ":CNS-MASQUERADE - [0:0]",
                "-D POSTROUTING -s 10.1.0.0/16 -m comment --comment \"cns: x\" -j CNS-MASQUERADE",
                "-A CNS-MASQUERADE -d fd00:10::/64 -m comment --comment \"cns: pods reach the world with the host's address\" -j RETURN",
                "-A CNS-MASQUERADE -d ff00::/8 -m comment --comment \"cns: pods reach the world with the host's address\" -j RETURN",
                "-A CNS-MASQUERADE -m comment --comment \"cns: pods reach the world with the host's address\" -j MASQUERADE",
                "-A POSTROUTING -s fd00:10::/64 -m comment --comment \"cns: pods reach the world with the host's address\" -j CNS-MASQUERADE",
                "COMMIT",
            ]
        );
    }
}
