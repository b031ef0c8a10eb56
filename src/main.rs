//! The daemon: flags → configuration → [`App`] → exit code.

use std::{io::Write as _, process::ExitCode};

use cns::{
    app::{App, AppError, remove_masquerade},
    config::{CommandLine, Config, Environment, Program},
    debug_command,
    telemetry::log::{self, Reported},
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

fn main() -> ExitCode {
    let command = match CommandLine::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(stop) => return ExitCode::from(stop.report()),
    };
    let environment = Environment::of_process();
    if let Some(debug) = command.legacy.text("debugcmd") {
        return ask(debug, command.legacy.text("debugarg").unwrap_or_default(), &environment);
    }
    let failed = |code, error: &dyn std::fmt::Display| failure(command.program, code, error);
    let config = match Config::load(&command, &environment) {
        Ok(config) => config,
        Err(error) => return failed(error.exit_code(), &error),
    };
    if command.args.check_config {
        println!("{}", config.to_json());
        return ExitCode::SUCCESS;
    }
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(1, &error),
    };
    // The process's default, before anything asks for it; nobody installed another.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let reported = {
        let _within = runtime.enter();
        log::install(&config)
    };
    let reported = match reported {
        Ok(reported) => reported,
        Err(error) => return failed(1, &error),
    };
    for note in &config.notes {
        tracing::warn!("{note}");
    }
    raise_descriptor_limit();
    if command.args.remove_masquerade {
        return match remove_masquerade() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(1, &error),
        };
    }
    let ended = runtime.block_on(serve(config, &reported));
    // The runtime carries its last words, so it comes before the runtime's end.
    if let Some(otlp) = reported.otlp {
        otlp.shutdown();
    }
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(1, &error),
    }
}

/// Lets the daemon open as many files as it may: each connection is one, and the usual soft limit is for programs that use
/// select(2).
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok((soft, hard))
    });
    match raised {
        Ok((soft, hard)) if soft < hard => tracing::info!(was = soft, now = hard, "limit of open files"),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of open files stays as it was"),
    }
}

async fn serve(config: Config, reported: &Reported) -> Result<(), AppError> {
    // Before anything is opened or announced: whoever reads READY may send SIGTERM in the same moment, and a signal without a
    // handler ends the process as it stands.
    let handlers = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (mut terminate, mut interrupt) = match handlers {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(source), _) | (_, Err(source)) => return Err(AppError::Signals(source)),
    };
    // A start may wait long for others; what it has done until then is as durable as if the machine had failed.
    let app = tokio::select! {
        app = App::build(config, reported) => app?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    app.run(async {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
    .await
}

/// Asks a running daemon. The reference prints its errors to standard output too, where scripts look for them.
fn ask(command: &str, argument: &str, environment: &Environment) -> ExitCode {
    let answer = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime
            .block_on(debug_command::run(command, argument, environment))
            .map_err(|error| format!("{error}\n")),
        Err(error) => Err(format!("{error}\n")),
    };
    let (text, code) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(text) => (text, ExitCode::FAILURE),
    };
    // Whoever reads may have read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

/// One line: what failed, with which value, what to do.
fn failure(program: Program, code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("{}: {error}", program.name());
    ExitCode::from(code)
}
