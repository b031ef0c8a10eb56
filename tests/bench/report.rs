//! What was found: a table of figures, and a table of ratios with their aims.

use std::{fmt, time::Duration};

/// All that a run found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    facts: Vec<(String, String)>,
    loads: Vec<Load>,
    ratios: Vec<Ratio>,
    skipped: Vec<(String, String)>,
}

/// One cell of the load table.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) addresses: usize,
    pub(crate) endpoints: usize,
    pub(crate) clients: usize,
    pub(crate) per_second: f64,
    /// Of request + release.
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

#[derive(Debug)]
struct Ratio {
    what: String,
    found: f64,
    aim: Aim,
    detail: String,
}

/// What a ratio or a size should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
    /// Told, for the reader; nobody promised anything.
    None,
}

impl Aim {
    fn verdict(self, found: f64) -> &'static str {
        match self {
            Self::AtMost(aim) if found <= aim => "met",
            Self::AtLeast(aim) if found >= aim => "met",
            Self::None => "",
            _ => "MISSED",
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(aim) => write!(f, "<= {aim}"),
            Self::AtLeast(aim) => write!(f, ">= {aim}"),
            Self::None => Ok(()),
        }
    }
}

impl Report {
    pub(crate) fn fact(&mut self, what: impl Into<String>, found: impl Into<String>) {
        self.facts.push((what.into(), found.into()));
    }

    pub(crate) fn load(&mut self, load: Load) {
        self.loads.push(load);
    }

    pub(crate) fn ratio(&mut self, what: impl Into<String>, found: f64, aim: Aim, detail: impl Into<String>) {
        self.ratios.push(Ratio { what: what.into(), found, aim, detail: detail.into() });
    }

    pub(crate) fn skipped(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.skipped.push((what.into(), why.into()));
    }

    pub(crate) fn missed(&self) -> usize {
        self.ratios.iter().filter(|ratio| ratio.aim.verdict(ratio.found) == "MISSED").count()
    }
}

/// Microseconds, as people read them.
pub(crate) fn micros(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 10_000.0 { format!("{micros:.0} us") } else { format!("{:.1} ms", micros / 1e3) }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nfigures")?;
        for (what, found) in &self.facts {
            writeln!(f, "  {what:<52} {found}")?;
        }
        if !self.loads.is_empty() {
            writeln!(
                f,
                "\n  {:>9} {:>9} {:>7} {:>12} {:>10} {:>10}   request + release",
                "addresses", "endpoints", "clients", "per second", "p50", "p99"
            )?;
        }
        for load in &self.loads {
            let Load { addresses, endpoints, clients, per_second, .. } = load;
            let (p50, p99) = (micros(load.p50), micros(load.p99));
            writeln!(
                f,
                "  {addresses:>9} {endpoints:>9} {clients:>7} {per_second:>12.0} {p50:>10} {p99:>10}"
            )?;
        }
        writeln!(f, "\nratios")?;
        writeln!(f, "  {:<66} {:>8} {:>8}  {:<6}  of", "what", "found", "aim", "")?;
        for Ratio { what, found, aim, detail } in &self.ratios {
            let verdict = aim.verdict(*found);
            writeln!(f, "  {what:<66} {found:>8.2} {:>8}  {verdict:<6}  {detail}", aim.to_string())?;
        }
        for (what, why) in &self.skipped {
            writeln!(f, "  {what:<66} skipped: {why}")?;
        }
        Ok(())
    }
}

/// Measured times, to be sorted and asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that this share of all took at most.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(at).copied().unwrap_or_default()
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }
}

/// How many times `b` fits into `a`.
pub(crate) fn times(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64().max(1e-9)
}
