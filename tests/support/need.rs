//! What a test needs of the machine. A skip is said aloud, and `CNS_TESTS_NO_SKIP=1` makes it a failure.

/// Whether `test` may make network namespaces: it runs as root with CAP_SYS_ADMIN. Says so if not.
pub fn need_root(test: &str) -> bool {
    let able = std::thread::spawn(|| nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok());
    if able.join().unwrap_or(false) {
        return true;
    }
    skip(test, "needs root: no network namespace can be made");
    false
}

/// Says that `test` does not run.
pub fn skip(test: &str, reason: &str) {
    let text = format!("SKIP {test}: {reason}");
    assert!(std::env::var_os("CNS_TESTS_NO_SKIP").is_none_or(|value| value != "1"), "{text}");
    // Not `eprintln!`: the test harness would keep it to itself.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("{text}\n").as_bytes());
}

/// Whether `program` (a path, or a name to be found in `PATH`) is installed. Says so if not.
pub fn need_program(test: &str, program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::path::Path::new(program).exists()
        || std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        skip(test, &format!("{program} is not installed; `tests/run` as root installs it"));
    }
    found
}
