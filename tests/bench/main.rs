//! Speed: what a call costs, in ratios measured in one run (`cargo bench -p cns --bench speed`).
//!
//! Absolute times say more about a machine than about the daemon. So whatever has an aim is compared with something that was
//! measured in the same minutes on the same machine: a call with a health check and an `fdatasync`, many clients with one, a
//! large state with a small one, the plugin with the reference plugins. What is compared is measured in turns, so that a
//! neighbour who is busy for a while slows both sides.
//!
//! Options, after `--`: `--dir DIR` (on a real disk; default: cargo's target directory), `--only load,memory,start,rest,agents,plugin`,
//! `--rounds N`, `--check`, with which a missed aim is a failure, and for who looks for a cost `--states 16-0,64k-10k` and
//! `--clients 1,8,64`.

mod agents;
mod daemon;
mod load;
mod memory;
mod plugin;
mod report;
mod rest;
mod start;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use report::Report;

/// Why something could not be measured.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "[--dir DIR] [--only load,memory,start,rest,agents,plugin] [--rounds N] [--states 16-0,64k-10k] \
                     [--clients 1,8,64] [--check]";

struct Options {
    directory: PathBuf,
    only: Vec<String>,
    load: load::Selection,
    check: bool,
}

impl Options {
    fn from_args() -> Result<Self, Failure> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned();
        let mut options =
            Self { directory: target, only: Vec::new(), load: load::Selection::default(), check: false };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; {USAGE}"));
            match arg.as_str() {
                // What cargo says to every benchmark.
                "--bench" => {}
                "--check" => options.check = true,
                "--dir" => options.directory = value()?.into(),
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--rounds" => options.load.rounds = value()?.parse()?,
                "--states" => options.load.states = value()?.split(',').map(str::to_owned).collect(),
                "--clients" => {
                    let clients = value()?.split(',').map(str::parse).collect::<Result<_, _>>();
                    options.load.clients = clients?;
                }
                _ => return Err(format!("unknown option {arg}; {USAGE}").into()),
            }
        }
        Ok(options)
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
}

fn measure(options: &Options, report: &mut Report) -> Result<(), Failure> {
    std::fs::create_dir_all(&options.directory)?;
    let kind = daemon::disk_of(&options.directory)?;
    let directory = tempfile::Builder::new().prefix("speed-").tempdir_in(&options.directory)?;
    let at = directory.path();
    report.fact("state directories below", format!("{} ({kind})", options.directory.display()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Small things first: they must not find a machine that is still writing back what the large ones wrote.
    if options.wants("memory") {
        runtime.block_on(memory::measure(at, report))?;
    }
    if options.wants("start") {
        runtime.block_on(start::measure(at, report))?;
    }
    if options.wants("load") {
        runtime.block_on(load::measure(at, &options.load, report))?;
    }
    if options.wants("rest") {
        runtime.block_on(rest::measure(at, options.load.rounds, report))?;
    }
    if options.wants("agents") {
        runtime.block_on(agents::measure(at, options.load.rounds, report))?;
    }
    if options.wants("plugin") {
        runtime.block_on(plugin::measure(at, report))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let options = match Options::from_args() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("speed: {error}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::default();
    let measured = measure(&options, &mut report);
    print!("{report}");
    if let Err(error) = measured {
        eprintln!("speed: {error}");
        return ExitCode::FAILURE;
    }
    if options.check && report.missed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
