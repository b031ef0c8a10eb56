//! The rules as an nftables table of our own.

use std::fmt::Write as _;

use ipnet::IpNet;

use super::{COMMENT, Masquerade, RulesError, run};
use crate::model::Family;

const PROGRAM: &str = "nft";
/// Nobody else's: it can be deleted without a look inside.
const TABLE: &str = "inet cns";

pub(super) fn apply(wish: &Masquerade) -> Result<(), RulesError> {
    run(PROGRAM, &["-f", "-"], &transaction(wish)).map(drop)
}

/// Whether a rule for each family of the wish is there.
pub(super) fn is_in_place(wish: &Masquerade) -> Result<bool, RulesError> {
    let wanted = Family::ALL.into_iter().filter(|family| !wish.pods_of(*family).is_empty()).count();
    match run(PROGRAM, &["list", "table", "inet", "cns"], "") {
        Ok(present) => Ok(present.matches(COMMENT).count() == wanted),
        // What it says of a table that is not there.
        Err(RulesError::Refused { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn remove() -> Result<(), RulesError> {
    run(PROGRAM, &["-f", "-"], &format!("add table {TABLE}\ndelete table {TABLE}\n")).map(drop)
}

/// Adding the table first makes deleting it succeed when there is none.
fn transaction(wish: &Masquerade) -> String {
    let mut text = format!("add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
    let mut rules = String::new();
    for (family, word, kind) in [(Family::V4, "ip", "ipv4_addr"), (Family::V6, "ip6", "ipv6_addr")] {
        let pods = wish.pods_of(family);
        if pods.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        for (name, nets) in [("pods", pods), ("kept", wish.kept_of(family))] {
            let _ = writeln!(
                text,
                "\tset {name}_{word} {{ type {kind}; flags interval; elements = {{ {} }} }}",
                list(&nets)
            );
        }
        let _ = writeln!(
            rules,
            "\t\t{word} saddr @pods_{word} {word} daddr != @kept_{word} counter masquerade comment \"{COMMENT}\""
        );
    }
    let _ = write!(
        text,
        "\tchain postrouting {{\n\t\ttype nat hook postrouting priority 100; policy accept;\n{rules}\t}}\n}}\n"
    );
    text
}

fn list(nets: &[IpNet]) -> String {
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_transaction_replaces_what_was_there() {
        let wish = Masquerade {
            pods: vec!["10.244.0.0/24".parse().unwrap(), "10.244.0.0/25".parse().unwrap()],
            keep: vec!["192.168.0.0/16".parse().unwrap()],
        };
        assert_eq!(
            transaction(&wish),
            "add table inet cns\n\
             delete table inet cns\n\
             table inet cns {\n\
             \tset pods_ip { type ipv4_addr; flags interval; elements = { 10.244.0.0/24 } }\n\
             \tset kept_ip { type ipv4_addr; flags interval; elements = { 10.244.0.0/24, 192.168.0.0/16, 224.0.0.0/4 } }\n\
             \tchain postrouting {\n\
             \t\ttype nat hook postrouting priority 100; policy accept;\n\
             \t\tip saddr @pods_ip ip daddr != @kept_ip counter masquerade comment \"cns: pods reach the world with the host's address\"\n\
             \t}\n\
             }\n"
        );
    }
}
