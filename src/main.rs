//! The daemon: flags → configuration → [`App`] → exit code.

use std::process::ExitCode;

use clap::Parser as _;
use cns::{
    app::{App, AppError, remove_masquerade},
    config::{Args, Config},
    telemetry::log,
};
use tokio::signal::unix::{SignalKind, signal};

/// A start that was told something wrong.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    let config = match Config::from_args(&args) {
        Ok(config) => config,
        Err(error) => return failure(USAGE, &error),
    };
    if args.check_config {
        println!("{}", config.to_json());
        return ExitCode::SUCCESS;
    }
    log::install(&config.log_level, config.log_format);
    // The process's default, before anything asks for it; nobody installed another.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure(1, &error),
    };
    if args.remove_masquerade {
        return match remove_masquerade() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure(1, &error),
        };
    }
    match runtime.block_on(serve(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(1, &error),
    }
}

async fn serve(config: Config) -> Result<(), AppError> {
    // Before anything is opened or announced: whoever reads READY may send SIGTERM in the same moment, and a signal without a
    // handler ends the process as it stands.
    let handlers = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (mut terminate, mut interrupt) = match handlers {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(source), _) | (_, Err(source)) => return Err(AppError::Signals(source)),
    };
    let app = App::build(config).await?;
    app.run(async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
    .await
}

/// One line: what failed, with which value, what to do.
fn failure(code: u8, error: &impl std::fmt::Display) -> ExitCode {
    eprintln!("cns: {error}");
    ExitCode::from(code)
}
