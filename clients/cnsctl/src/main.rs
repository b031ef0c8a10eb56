//! The operator's command line for the cns daemon.

mod args;
mod cni;
mod failure;
mod files;
mod output;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::{
    args::{Cli, Command},
    failure::Failure,
    output::Out,
};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let mut out = Out::stdout(cli.output);
    let socket = cli.socket();
    match cli.command {
        Command::Cni(command) => cni::run(command, &socket, &mut out),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "cnsctl", &mut script);
            out.write(&script)
        }
        _ => Ok(()),
    }
}
