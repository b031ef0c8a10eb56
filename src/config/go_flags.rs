//! The reference's flags, in Go's syntax: `-x v`, `-x=v`, one dash or two, a switch is switched off by `=false`, the last
//! one counts. They are taken out of the command line before clap reads the rest; our own flags may have one dash too.

use std::{collections::BTreeMap, ffi::OsString};

use clap::{Arg, Command};

use super::program::Program;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// One of these; compared in lower case.
    Choice(&'static [&'static str]),
    /// A whole number.
    Integer,
    /// Nothing, or `=true` and `=false`.
    Switch,
}

/// One of the reference's flags.
#[derive(Clone, Copy, Debug)]
pub struct GoFlag {
    /// Its name.
    pub long: &'static str,
    /// Its other name.
    pub short: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What it means here.
    pub meaning: &'static str,
}

const fn flag(long: &'static str, short: &'static str, kind: Kind, meaning: &'static str) -> GoFlag {
    GoFlag { long, short, kind, meaning }
}

/// The targets of `-t`.
const TARGETS: &[&str] = &["syslog", "stderr", "logfile", "stdout", "stdoutfile"];

/// Every flag of the reference.
pub const GO_FLAGS: &[GoFlag] = &[
    flag(
        "cns-url",
        "c",
        Kind::Text,
        "Serve the REST API here: tcp://127.0.0.1:10090, tcp://:10090 or unix:///path",
    ),
    flag(
        "cns-port",
        "p",
        Kind::Text,
        "Serve the REST API on this port of the primary address and of 127.0.0.1; without effect beside -c",
    ),
    flag("config-path", "cp", Kind::Text, "Read this cns_config.json"),
    flag("log-level", "l", Kind::Choice(&["info", "debug"]), "What to log; the same as our --log-level"),
    flag(
        "log-target",
        "t",
        Kind::Choice(TARGETS),
        "Where to log: syslog, stderr, logfile, stdout, stdoutfile",
    ),
    flag(
        "log-location",
        "o",
        Kind::Text,
        "Directory of azure-cns.log, for logfile and stdoutfile [default: /var/log/]",
    ),
    flag(
        "store-file-path",
        "storefilepath",
        Kind::Text,
        "What precedes azure-cns.json, which is imported at the first start [default: /var/lib/azure-network/]",
    ),
    flag("net-plugin-path", "np", Kind::Text, "Directories of CNI plugins"),
    flag(
        "net-plugin-config-file",
        "npconfig",
        Kind::Text,
        "The CNI list whose first plugin is told when a network container of Azure Container Instances changes",
    ),
    flag("create-defaultextnetwork-type", "defaultextnetworktype", Kind::Text, "Windows only"),
    flag("http-connection-timeout", "httpcontimeout", Kind::Integer, "Seconds to connect to DNC"),
    flag(
        "http-response-header-timeout",
        "httprespheadertimeout",
        Kind::Integer,
        "Seconds to wait for DNC's answer",
    ),
    flag("private-endpoint", "pe", Kind::Text, "DNC's address, for -m"),
    flag("infra-vnet", "iv", Kind::Text, "Infrastructure network, for -m"),
    flag("node-id", "n", Kind::Text, "Node id, for -m"),
    flag("managed", "m", Kind::Switch, "ChannelMode Managed; with -pe, -iv and -n, or ManagedSettings"),
    flag("telemetry", "dt", Kind::Switch, "Deprecated and without effect"),
    flag("telemetry-service", "ts", Kind::Switch, "The CNI's telemetry socket; not acted on yet"),
    flag("debugcmd", "cmd", Kind::Text, "Ask a running daemon and exit: get, getPodContexts, getInMemory"),
    flag(
        "debugarg",
        "darg",
        Kind::Text,
        "For `get`: Available, Assigned, PendingProgramming, PendingRelease; else all",
    ),
    flag(
        "cni-conflist-filepath",
        "cniconflist",
        Kind::Text,
        "CNI list to write; see EnableCNIConflistGeneration",
    ),
    flag("cni-conflist-scenario", "cniconflistscenario", Kind::Text, "Its content"),
    flag("version", "v", Kind::Switch, "Print the version and exit"),
    flag("environment", "e", Kind::Choice(&["azure", "mas"]), "Without effect"),
    flag("api-url", "u", Kind::Text, "Without effect"),
    flag("ipam-query-url", "q", Kind::Text, "Without effect"),
    flag("ipam-query-interval", "i", Kind::Integer, "Without effect"),
];

/// What clap calls the section of them in the help.
const HEADING: &str = "Legacy flags (as azure-cns has them: -x v or -x=v, one dash or two)";

/// Why a command line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// The command line ends after a flag that takes a value.
    #[error("flag needs an argument: -{0}")]
    NoValue(String),
    /// A switch with a strange value.
    #[error("invalid boolean value \"{value}\" for -{name}: true and false are allowed")]
    NotABool {
        /// The flag as given.
        name: String,
        /// As given.
        value: String,
    },
    /// Go would take `false` for the end of the flags, and ignore everything after it.
    #[error("-{name} {value}: a switch takes its value after an equals sign, as in -{name}={value}")]
    SwitchWithSpace {
        /// The flag as given.
        name: String,
        /// As given.
        value: String,
    },
    /// Not one of those that there are.
    #[error("Invalid value '{value}' for argument '{name}'.\nAllowed: {allowed}.")]
    NotAChoice {
        /// The flag's long name.
        name: &'static str,
        /// As given, in lower case.
        value: String,
        /// What there is.
        allowed: String,
    },
    /// Bytes that are no text.
    #[error("-{0}: the value is not UTF-8")]
    NotText(String),
}

impl FlagError {
    /// Go's: a command line that cannot be parsed is 2, a value that is not allowed 1.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::NotAChoice { .. }) { 1 } else { 2 }
    }
}

/// The reference's flags that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegacyFlags(BTreeMap<&'static str, String>);

impl LegacyFlags {
    /// A flag's value, by its long name; an empty one is none.
    pub fn text(&self, long: &str) -> Option<&str> {
        debug_assert!(GO_FLAGS.iter().any(|flag| flag.long == long), "{long} is in the table");
        self.0.get(long).map(String::as_str).filter(|value| !value.trim().is_empty())
    }

    /// Whether a switch was given, and how.
    pub fn switch(&self, long: &str) -> Option<bool> {
        self.text(long).map(|value| value == "true")
    }

    /// The flags that were given, with their values.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(long, value)| (*long, value.as_str()))
    }
}

/// A command line, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    /// What is left for clap, the program's name first.
    pub own: Vec<OsString>,
    /// What was the reference's.
    pub legacy: LegacyFlags,
}

/// Adds the reference's flags to the help. They never reach clap otherwise.
pub(super) fn describe(command: Command) -> Command {
    let taken: Vec<String> =
        command.get_arguments().filter_map(Arg::get_long).map(ToOwned::to_owned).collect();
    let described =
        GO_FLAGS.iter().filter(|flag| flag.long != "version" && !taken.contains(&flag.long.into()));
    command.args(described.map(|flag| {
        let arg = Arg::new(flag.long)
            .long(flag.long)
            .help(format!("[-{}] {}", flag.short, flag.meaning))
            .help_heading(HEADING);
        match flag.kind {
            Kind::Switch => arg.num_args(0..=1).require_equals(true).value_name("BOOL"),
            Kind::Integer => arg.value_name("COUNT"),
            Kind::Text | Kind::Choice(_) => arg.value_name("VALUE"),
        }
    }))
}

/// Takes the reference's flags out of `argv`, and makes the rest clap's. `command` knows our own flags.
pub(super) fn translate(
    argv: impl IntoIterator<Item = OsString>,
    program: Program,
    command: &Command,
) -> Result<Translated, FlagError> {
    let mut argv = argv.into_iter().peekable();
    let mut translated = Translated { own: argv.next().into_iter().collect(), ..Translated::default() };
    while let Some(token) = argv.next() {
        let Some((name, value)) = token.to_str().and_then(split) else {
            // An operand: clap says that there are none.
            translated.own.push(token);
            continue;
        };
        if let Some(flag) = legacy_flag(name, program) {
            let value = match (flag.kind, value) {
                (Kind::Switch, None) => {
                    let next = argv.peek().and_then(|next| next.to_str());
                    if let Some(next) = next.filter(|next| parse_bool(next).is_some()) {
                        return Err(FlagError::SwitchWithSpace { name: name.into(), value: next.into() });
                    }
                    "true".to_owned()
                }
                (_, Some(value)) => value.to_owned(),
                (_, None) => {
                    let next = argv.next().ok_or_else(|| FlagError::NoValue(name.into()))?;
                    next.into_string().map_err(|_| FlagError::NotText(name.into()))?
                }
            };
            translated.legacy.0.insert(flag.long, check(flag, name, value, program)?);
            continue;
        }
        let own = command.get_arguments().find(|arg| arg.get_long() == Some(name));
        translated.own.push(match value {
            // clap's own.
            None if name == "h" || name == "V" => format!("-{name}").into(),
            None => format!("--{name}").into(),
            Some(value) => format!("--{name}={value}").into(),
        });
        let takes_next = own.is_some_and(|arg| {
            arg.get_action().takes_values() && !arg.is_require_equals_set() && value.is_none()
        });
        if takes_next && let Some(next) = argv.next() {
            translated.own.push(next);
        }
    }
    if let Some(level) = translated.legacy.0.remove("log-level") {
        translated.own.push(format!("--log-level={level}").into());
    }
    Ok(translated)
}

/// Name and value of a flag; `None` for what is none.
fn split(token: &str) -> Option<(&str, Option<&str>)> {
    let stripped = token.strip_prefix("--").or_else(|| token.strip_prefix('-'))?;
    let (name, value) =
        stripped.split_once('=').map_or((stripped, None), |(name, value)| (name, Some(value)));
    (!name.is_empty() && !name.starts_with('-')).then_some((name, value))
}

/// `version` is clap's under our own name.
fn legacy_flag(name: &str, program: Program) -> Option<&'static GoFlag> {
    let found = GO_FLAGS.iter().find(|flag| flag.long == name || flag.short == name);
    found.filter(|flag| flag.long != "version" || flag.short == name || program == Program::AzureCns)
}

/// As Go's `strconv.ParseBool`.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// The value in the form that is kept, if it is allowed.
fn check(flag: &GoFlag, given: &str, value: String, program: Program) -> Result<String, FlagError> {
    let not_allowed =
        |value: String, allowed: String| Err(FlagError::NotAChoice { name: flag.long, value, allowed });
    match flag.kind {
        Kind::Text => Ok(value),
        Kind::Switch => parse_bool(&value)
            .map(|value| value.to_string())
            .ok_or_else(|| FlagError::NotABool { name: given.into(), value }),
        // Go would make 0 of a word; a number that somebody mistyped is better told.
        Kind::Integer if value.is_empty() || value.parse::<u32>().is_ok() => Ok(value),
        Kind::Integer => not_allowed(value, "whole numbers from 0".into()),
        // Ours goes by the same name and takes more.
        Kind::Choice(_) if flag.long == "log-level" && is_ours(given, &value, program) => Ok(value),
        Kind::Choice(choices) => {
            let value = value.to_lowercase();
            if choices.contains(&value.as_str()) { Ok(value) } else { not_allowed(value, choices.join(", ")) }
        }
    }
}

/// Whether a log level is meant as our `--log-level`: always under our own name, and what the reference knows nothing of
/// under its name.
fn is_ours(given: &str, value: &str, program: Program) -> bool {
    let level = ["error", "warn", "trace", "off"].contains(&value);
    given == "log-level" && (program == Program::Cns || level || value.contains(['=', ',']))
}

#[cfg(test)]
#[path = "go_flags/tests.rs"]
mod tests;
