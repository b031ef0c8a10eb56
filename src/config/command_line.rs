//! The command line as a whole: the reference's flags, and ours behind them.

use std::{collections::BTreeMap, ffi::OsString};

use clap::{CommandFactory as _, FromArgMatches as _, parser::ValueSource};

use super::{
    Args,
    go_flags::{FlagError, LegacyFlags, describe, translate},
    program::Program,
};

/// What was said on the command line.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// Under which name the daemon was invoked.
    pub program: Program,
    /// Our options.
    pub args: Args,
    /// The reference's.
    pub legacy: LegacyFlags,
    /// Our options that the environment gave, by their id, and by which variable.
    from_environment: BTreeMap<String, String>,
}

/// Why there is nothing to start.
#[derive(Debug)]
pub enum Stop {
    /// The help or the version was asked for, or clap refuses an option.
    Clap(clap::Error),
    /// The reference's version was asked for.
    Version,
    /// A legacy flag is wrong.
    Flag {
        /// What is wrong.
        error: FlagError,
        /// How it is used.
        usage: String,
    },
}

impl CommandLine {
    /// Reads a command line, the program's name first.
    pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Self, Stop> {
        let argv: Vec<OsString> = argv.into_iter().collect();
        let program = Program::of(argv.first().map(OsString::as_os_str));
        let ours = Args::command().name(program.name()).bin_name(program.name());
        let mut command = describe(ours.clone());
        let translated = match translate(argv, program, &ours) {
            Ok(translated) => translated,
            Err(error) => {
                let usage = command.render_usage().to_string();
                return Err(Stop::Flag { error, usage });
            }
        };
        let legacy = translated.legacy;
        let mut own = translated.own;
        if legacy.switch("version") == Some(true) {
            match program {
                Program::AzureCns => {
                    // What else was said has to be right, as with Go's flags.
                    command.try_get_matches_from(own).map_err(Stop::Clap)?;
                    return Err(Stop::Version);
                }
                Program::Cns => own.push("--version".into()),
            }
        }
        let matches = command.try_get_matches_from(own).map_err(Stop::Clap)?;
        let args = Args::from_arg_matches(&matches).map_err(Stop::Clap)?;
        let given =
            |arg: &&clap::Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable);
        let variable = |arg: &clap::Arg| {
            let variable = arg.get_env()?.to_str()?;
            Some((arg.get_id().to_string(), variable.to_owned()))
        };
        let from_environment = ours.get_arguments().filter(given).filter_map(variable).collect();
        Ok(Self { program, args, legacy, from_environment })
    }

    /// What to call an option in an error: by where its value came from.
    pub(super) fn key<'a>(&'a self, id: &str, flag: &'a str) -> &'a str {
        self.from_environment.get(id).map_or(flag, String::as_str)
    }
}

impl Stop {
    /// Says it, and returns the exit code.
    pub fn report(&self) -> u8 {
        match self {
            Self::Clap(error) => {
                // A closed standard output is no reason to fail otherwise.
                let _ = error.print();
                u8::try_from(error.exit_code()).unwrap_or(2)
            }
            Self::Version => {
                println!("Azure Container Network Service\nVersion {}", env!("CARGO_PKG_VERSION"));
                0
            }
            Self::Flag { error, usage } => {
                eprintln!("{error}\n\n{usage}\n\nFor more information, try '--help'.");
                error.exit_code()
            }
        }
    }
}
