//! From the start of the process until it is ready and has answered a call: with 10 000 endpoints, and with none.

use std::path::Path;

use super::{
    Failure,
    daemon::{Daemon, ENDPOINTS, LARGE, Networks},
    report::{Aim, Report, Times, micros, times},
};

const STARTS: usize = 9;

pub(crate) async fn measure(at: &Path, report: &mut Report) -> Result<(), Failure> {
    eprintln!("start");
    // Room for the endpoints and little more; then as many addresses as are served at all.
    let cases = [
        ("16 381 addresses", "start-14", Networks(&["10.244.0.0/18"])),
        ("65 536 addresses", "start-16", LARGE),
    ];
    for (what, name, networks) in cases {
        let mut empty = Daemon::new(at, name, &networks)?;
        empty.start().await?;
        empty.stop().await?;
        let mut full = empty.copy(at, &format!("{name}-full"))?;
        full.start().await?;
        full.fill(ENDPOINTS).await?;
        full.stop().await?;
        let (mut without, mut with) = (Times::default(), Times::default());
        for _ in 0..STARTS {
            without.add(empty.start().await?);
            empty.stop().await?;
            with.add(full.start().await?);
            full.stop().await?;
        }
        report.ratio(
            format!("{what}: start with 10 000 endpoints / with none"),
            times(with.median(), without.median()),
            Aim::AtMost(3.0),
            format!("{} / {}", micros(with.median()), micros(without.median())),
        );
    }
    Ok(())
}
