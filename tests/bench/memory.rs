//! Resident memory, a second after the start: with the default network, and with 65 536 addresses.

use std::{path::Path, time::Duration};

use super::{
    Failure,
    daemon::{Daemon, ENDPOINTS, LARGE, Networks},
    report::{Aim, Report},
};

async fn resident(daemon: &Daemon) -> Result<(f64, String), Failure> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let kib = |field| -> Result<f64, Failure> { Ok(f64::from(u32::try_from(daemon.status_kib(field)?)?)) };
    let (all, own) = (kib("VmRSS")?, kib("RssAnon")?);
    Ok((all / 1024.0, format!("MiB resident, {:.1} of it not from files", own / 1024.0)))
}

pub(crate) async fn measure(at: &Path, report: &mut Report) -> Result<(), Failure> {
    eprintln!("memory");
    let mut daemon = Daemon::new(at, "idle", &Networks(&["10.244.0.0/24"]))?;
    daemon.start().await?;
    let (found, detail) = resident(&daemon).await?;
    report.ratio("memory of the idle daemon, MiB", found, Aim::AtMost(20.0), detail);
    let mut daemon = Daemon::new(at, "large", &LARGE)?;
    daemon.start().await?;
    let (found, detail) = resident(&daemon).await?;
    report.ratio("memory with 65 536 addresses just made, MiB", found, Aim::AtMost(80.0), detail);
    daemon.stop().await?;
    daemon.start().await?;
    let (found, detail) = resident(&daemon).await?;
    report.ratio("memory with 65 536 addresses loaded, MiB", found, Aim::AtMost(80.0), detail);
    daemon.fill(ENDPOINTS).await?;
    let (found, detail) = resident(&daemon).await?;
    report.ratio("memory with 65 536 addresses, 10 000 endpoints just made, MiB", found, Aim::None, detail);
    daemon.stop().await?;
    daemon.start().await?;
    let (found, detail) = resident(&daemon).await?;
    report.ratio(
        "memory with 65 536 addresses, 10 000 endpoints loaded, MiB",
        found,
        Aim::AtMost(80.0),
        detail,
    );
    Ok(())
}
