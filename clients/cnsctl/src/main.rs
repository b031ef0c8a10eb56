//! The operator's command line for the cns daemon.

mod args;
mod bundle;
mod cni;
mod doctor;
mod endpoint;
mod events;
mod explain;
mod failure;
mod input;
mod ip;
mod migrate;
mod nc;
mod output;
mod reader_gone;
mod status;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use cns_client::{Client, Options, Retry};

use crate::{
    args::{Cli, Command},
    failure::{Exit, Failure},
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
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| Failure::new(Exit::Failed, format!("cannot start: {error}")))?;
            let options = Options { deadline: cli.timeout, retry: Retry::default() };
            runtime.block_on(async { ask(command, &Client::new(socket, options)?, &mut out).await })
        }
    }
}

/// The commands that need the daemon.
async fn ask(command: Command, client: &Client, out: &mut Out) -> Result<(), Failure> {
    match command {
        Command::Status => status::run(client, out).await,
        Command::Ip(command) => ip::run(command, client, out).await,
        Command::Nc(command) => nc::run(command, client, out).await,
        Command::Endpoint(command) => endpoint::run(command, client, out).await,
        Command::Explain { subject } => explain::run(&subject, client, out).await,
        Command::Watch { after } => events::watch(after, client, out).await,
        Command::Doctor => doctor::run(client, out).await,
        Command::Bundle { dir } => bundle::run(&dir, client, out).await,
        Command::Migrate(command) => migrate::run(command, client, out).await,
        Command::Cni(_) | Command::Completion { .. } => Ok(()),
    }
}
