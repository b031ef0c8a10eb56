use clap::CommandFactory as _;

use super::*;
use crate::config::Args;

fn translated(program: Program, args: &[&str]) -> Result<Translated, FlagError> {
    let argv = std::iter::once(program.name()).chain(args.iter().copied()).map(OsString::from);
    translate(argv, program, &Args::command())
}

fn legacy(args: &[&str]) -> LegacyFlags {
    let translated = translated(Program::AzureCns, args).unwrap();
    assert_eq!(translated.own.len(), 1, "{args:?}: {:?}", translated.own);
    translated.legacy
}

fn own(args: &[&str]) -> Vec<String> {
    let translated = translated(Program::Cns, args).unwrap();
    translated.own.into_iter().skip(1).map(|arg| arg.into_string().unwrap()).collect()
}

/// A value that the flag takes.
fn sample(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "Some=Thing",
        Kind::Choice(choices) => choices[choices.len() - 1],
        Kind::Integer => "7",
        Kind::Switch => "false",
    }
}

#[test]
fn every_flag_has_every_form() {
    for flag in GO_FLAGS.iter().filter(|flag| flag.long != "log-level") {
        let value = sample(flag.kind);
        for name in [flag.long, flag.short] {
            for dashes in ["-", "--"] {
                let joined = format!("{dashes}{name}={value}");
                assert_eq!(legacy(&[&joined]).0.get(flag.long).unwrap(), value, "{joined}");
                let bare = format!("{dashes}{name}");
                if flag.kind == Kind::Switch {
                    assert_eq!(legacy(&[&bare]).switch(flag.long), Some(true), "{bare}");
                } else {
                    assert_eq!(legacy(&[&bare, value]).0.get(flag.long).unwrap(), value, "{bare} {value}");
                    assert_eq!(
                        translated(Program::AzureCns, &[&bare]).unwrap_err(),
                        FlagError::NoValue(name.into())
                    );
                }
            }
        }
    }
}

#[test]
fn the_log_level_is_the_same_as_ours() {
    for args in [&["-l", "Debug"][..], &["-log-level=DEBUG"], &["--log-level", "debug"]] {
        let translated = translated(Program::AzureCns, args).unwrap();
        assert_eq!(translated.own[1..], ["--log-level=debug"], "{args:?}");
    }
    assert_eq!(own(&["--log-level", "info,cns::ledger=debug"]), ["--log-level=info,cns::ledger=debug"]);
    let error = translated(Program::AzureCns, &["--log-level", "loud"]).unwrap_err();
    assert!(error.to_string().starts_with("Invalid value 'loud' for argument 'log-level'."), "{error}");
}

#[test]
fn choices_are_compared_in_lower_case_and_a_bad_one_is_told_with_the_long_name() {
    assert_eq!(legacy(&["-t", "StdOut"]).text("log-target"), Some("stdout"));
    let error = translated(Program::Cns, &["-t", "Printer"]).unwrap_err();
    assert!(error.to_string().starts_with("Invalid value 'printer' for argument 'log-target'."), "{error}");
    assert!(error.to_string().contains("stdoutfile"), "{error}");
    assert_eq!(error.exit_code(), 1);
    // As the reference has it: its third word cannot be said.
    assert_eq!(translated(Program::AzureCns, &["-e", "fileIpam"]).unwrap_err().exit_code(), 1);
}

#[test]
fn numbers_and_switches_are_checked() {
    let error = translated(Program::AzureCns, &["-httpcontimeout", "soon"]).unwrap_err();
    assert!(error.to_string().starts_with("Invalid value 'soon' for argument 'http-connection-timeout'."));
    let error = translated(Program::AzureCns, &["-m=maybe"]).unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().contains("\"maybe\" for -m")), (2, true), "{error}");
    let error = translated(Program::AzureCns, &["-telemetry", "false"]).unwrap_err();
    assert!(error.to_string().contains("-telemetry=false"), "{error}");
    assert_eq!(legacy(&["-m=F"]).switch("managed"), Some(false));
}

#[test]
fn the_last_one_counts_and_an_empty_one_is_none() {
    assert_eq!(legacy(&["-p", "1", "--cns-port=2"]).text("cns-port"), Some("2"));
    assert_eq!(legacy(&["-c", ""]).text("cns-url"), None);
    assert_eq!(legacy(&["-c", "-t"]).text("cns-url"), Some("-t"), "Go takes whatever follows");
}

#[test]
fn ours_pass_with_one_dash_too() {
    assert_eq!(
        own(&["-standalone-cidr", "10.1.0.0/24", "-check-config", "--masquerade", "-masquerade=false"]),
        ["--standalone-cidr", "10.1.0.0/24", "--check-config", "--masquerade", "--masquerade=false"]
    );
    assert_eq!(own(&["-h", "-help", "-V", "--version"]), ["-h", "--help", "-V", "--version"]);
    assert_eq!(own(&["-nosuch", "operand", "-"]), ["--nosuch", "operand", "-"], "clap refuses them");
    // The value of one of ours is no flag, whatever it looks like.
    assert_eq!(own(&["--state-dir", "-c"]), ["--state-dir", "-c"]);
}

#[test]
fn the_version_is_the_reference_s_under_its_name_only() {
    assert_eq!(legacy(&["--version"]).switch("version"), Some(true));
    assert_eq!(legacy(&["-v=false"]).switch("version"), Some(false));
    let ours = translated(Program::Cns, &["-v"]).unwrap();
    assert_eq!(ours.legacy.switch("version"), Some(true));
}

#[test]
fn the_help_has_a_section_on_them() {
    let help = describe(Args::command()).render_long_help().to_string();
    assert!(help.contains("Legacy flags"), "{help}");
    for flag in GO_FLAGS.iter().filter(|flag| !["version", "log-level"].contains(&flag.long)) {
        assert!(help.contains(&format!("--{}", flag.long)), "{}", flag.long);
        assert!(help.contains(&format!("[-{}]", flag.short)), "{}", flag.short);
    }
}
