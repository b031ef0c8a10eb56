//! `cns-cni`: a CNI main plugin (CNI spec 1.1) over the cns daemon. It asks the daemon for addresses, wires the sandbox
//! in transparent mode with [`cns::nic`], and tells the daemon what it wired.
//!
//! A runtime executes it for every pod, so it starts fast: one thread, and nothing is done before the command is known.

mod add;
mod check;
mod daemon;
mod del;
mod environment;
mod error;
mod gc;
mod intent;
mod netconf;
mod queue;
mod result;
mod status;
mod version;

use std::{
    io::{self, Read, Write},
    process::ExitCode,
};

use crate::{
    environment::{Command, Environment},
    error::{CniError, Code},
    netconf::NetConf,
    version::CniVersion,
};

/// No network configuration is larger. What is larger is refused rather than read into memory.
const LARGEST_INPUT: u64 = 4 << 20;

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|argument| argument == "-v" || argument == "--version") {
        // Four words: the reference's node service runs its plugins like this and reads the fourth
        // (spec/cni-plugin.md §1).
        println!("Azure CNI Version v{}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    if std::env::var_os("CNI_COMMAND").is_none() {
        eprintln!(
            "cns-cni v{}: a CNI plugin for container runtimes; CNI_COMMAND is not set. Supported CNI versions: {}",
            env!("CARGO_PKG_VERSION"),
            version::SUPPORTED.map(CniVersion::as_str).join(", ")
        );
        return ExitCode::SUCCESS;
    }
    report_panics();
    let mut config_version = None;
    match execute(&mut config_version) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(answer)) => match print(&answer) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("cns-cni: cannot write the answer to standard output: {error}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            // Nobody is left to tell it if this fails.
            let _ = print(&error.to_json(config_version));
            ExitCode::FAILURE
        }
    }
}

/// Does what `CNI_COMMAND` says. Notes the configuration's version as soon as it is known, for the error's sake.
fn execute(config_version: &mut Option<CniVersion>) -> Result<Option<serde_json::Value>, CniError> {
    let command = Command::from_environment()?;
    let input = read_input()?;
    if command == Command::Version {
        return Ok(Some(version::answer(&input)));
    }
    let environment = Environment::read(command)?;
    let netconf = NetConf::parse(&input, config_version)?;
    command.needs(netconf.cni_version)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CniError::new(Code::Io, format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        match command {
            Command::Add => add::run(&environment, &netconf).await.map(Some),
            Command::Del => del::run(&environment, &netconf).await.map(|()| None),
            Command::Check => check::run(&environment, &netconf).await.map(|()| None),
            Command::Gc => gc::run(&environment, &netconf).await.map(|()| None),
            Command::Status => status::run(&netconf).await.map(|()| None),
            Command::Version => Ok(None),
        }
    })
}

fn read_input() -> Result<Vec<u8>, CniError> {
    let mut input = Vec::new();
    io::stdin().take(LARGEST_INPUT + 1).read_to_end(&mut input).map_err(|error| {
        CniError::new(Code::Io, format!("cannot read the network configuration from standard input: {error}"))
    })?;
    if input.len() as u64 > LARGEST_INPUT {
        return Err(CniError::new(
            Code::Decode,
            format!("the network configuration is larger than {LARGEST_INPUT} bytes"),
        ));
    }
    Ok(input)
}

fn print(answer: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{answer}")?;
    out.flush()
}

/// A runtime reads standard output: also a fault of ours is told there, in its format.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("cns-cni: {panic}");
        let error = CniError::new(Code::Generic, format!("a fault in cns-cni: {panic}; please report it"));
        let _ = print(&error.to_json(None));
        std::process::exit(1);
    }));
}
