//! The rules as an iptables chain of our own, for hosts without `nft`.
//!
//! `iptables-restore --noflush` commits one table as a whole. A chain that it declares is emptied first, so the chain
//! needs no comparison; the jumps to it stand in a chain of others, so those that are there are read and taken out in
//! the same commit.

use std::fmt::Write as _;

use super::{COMMENT, Masquerade, RulesError, run};
use crate::model::Family;

const CHAIN: &str = "CNS-MASQUERADE";

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
    }
    Ok(())
}

fn remove_family(save: &'static str, restore: &'static str) -> Result<(), RulesError> {
    let present = run(save, &["-t", "nat"], "")?;
    // Without the chain there can be no jump to it.
    if present.lines().any(|line| line.starts_with(&format!(":{CHAIN} "))) {
        commit(restore, &format!("*nat\n{}-F {CHAIN}\n-X {CHAIN}\nCOMMIT\n", without_jumps(&present)))?;
    }
    Ok(())
}

fn commit(restore: &'static str, text: &str) -> Result<(), RulesError> {
    run(restore, &["--noflush", "--wait", "60"], text).map(drop)
}

fn transaction(wish: &Masquerade, family: Family, present: &str) -> String {
    let mut text = format!("*nat\n:{CHAIN} - [0:0]\n{}", without_jumps(present));
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

/// Deletions of the jumps that a saved table shows. What `save` writes, `restore` understands.
fn without_jumps(present: &str) -> String {
    let jump = format!("-j {CHAIN}");
    let jumps = present.lines().filter_map(|line| {
        line.strip_prefix("-A POSTROUTING ").filter(|rule| rule.trim_end().ends_with(&jump))
    });
    jumps.fold(String::new(), |mut text, rule| {
        let _ = writeln!(text, "-D POSTROUTING {rule}");
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
