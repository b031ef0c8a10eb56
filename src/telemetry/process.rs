//! What Prometheus' clients tell of their own process, under the names that every dashboard knows (spec/metrics.md §4, inherited).

use std::{fs, time::SystemTime};

use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Reads `/proc/self` when asked.
#[derive(Debug)]
pub(super) struct Process {
    /// Seconds since 1970.
    started: f64,
}

impl Process {
    pub(super) fn new() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { started: since_epoch.as_secs_f64() }
    }
}

/// Of `proc(5)`'s stat.
struct Stat {
    cpu_seconds: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

fn positive(variable: SysconfVar) -> Option<u64> {
    sysconf(variable).ok().flatten().and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
}

fn stat() -> Option<Stat> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name stands in brackets and may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    // Numbers as in proc(5), less the three before: 14 utime, 15 stime, 23 vsize, 24 rss.
    let number = |at: usize| fields.get(at - 3)?.parse::<u64>().ok();
    #[allow(clippy::cast_precision_loss, reason = "hundredths of seconds")]
    let cpu_seconds = number(14)?.saturating_add(number(15)?) as f64 / positive(SysconfVar::CLK_TCK)? as f64;
    Some(Stat {
        cpu_seconds,
        virtual_bytes: number(23)?,
        resident_bytes: number(24)?.saturating_mul(positive(SysconfVar::PAGE_SIZE)?),
    })
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut tell = |name: &str, help: &str, metric: &dyn Told| metric.tell(&mut encoder, name, help);
        tell(
            "process_start_time_seconds",
            "Start of the process, since 1970",
            &ConstGauge::new(self.started),
        )?;
        // A container without /proc has less to tell.
        if let Some(stat) = stat() {
            tell("process_cpu_seconds", "Processor time used", &ConstCounter::new(stat.cpu_seconds))?;
            tell(
                "process_virtual_memory_bytes",
                "Virtual memory",
                &ConstGauge::new(signed(stat.virtual_bytes)),
            )?;
            tell(
                "process_resident_memory_bytes",
                "Resident memory",
                &ConstGauge::new(signed(stat.resident_bytes)),
            )?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // Less the one that is being read.
            let open = open.count().saturating_sub(1);
            tell(
                "process_open_fds",
                "Open files",
                &ConstGauge::new(i64::try_from(open).unwrap_or(i64::MAX)),
            )?;
        }
        if let Ok((soft, _)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
            tell("process_max_fds", "Files that may be open", &ConstGauge::new(signed(soft)))?;
        }
        Ok(())
    }
}

pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A metric whatever its kind.
pub(super) trait Told {
    fn tell(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
    ) -> Result<(), std::fmt::Error>;
}

impl<M: EncodeMetric> Told for M {
    fn tell(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
    ) -> Result<(), std::fmt::Error> {
        self.encode(encoder.encode_descriptor(name, help, None, self.metric_type())?)
    }
}
