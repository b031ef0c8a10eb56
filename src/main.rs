//! The daemon: flags → configuration → [`App`] → exit code.

use std::process::ExitCode;

use clap::Parser as _;
use cns::{
    app::{App, AppError},
    config::{Args, Config},
    nic::rules,
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
        return match runtime.block_on(rules::remove_masquerade()) {
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
    let app = App::build(config).await?;
    app.run(async {
        let (terminate, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        match (terminate, interrupt) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            }
            // Without signals there is no orderly stop; the state is durable all the same.
            _ => std::future::pending().await,
        }
    })
    .await
}

/// One line: what failed, with which value, what to do.
fn failure(code: u8, error: &impl std::fmt::Display) -> ExitCode {
    eprintln!("cns: {error}");
    ExitCode::from(code)
}
