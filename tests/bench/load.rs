//! Request + release over the unix socket, every answer durable: one, eight and 64 clients at once, on states of several
//! sizes; beside them, in turns, a health check on the same socket and an `fdatasync` on the same disk.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use super::{
    Failure,
    daemon::{
        Daemon, ENDPOINTS, LARGE, MIDDLE, MIDDLE_BESIDE_ENDPOINTS, Networks, Pod, SMALL,
        SMALL_BESIDE_ENDPOINTS,
    },
    report::{Aim, Load, Report, Times, micros, times},
};

const CLIENTS: [usize; 3] = [1, 8, 64];
/// Pairs of one client in a round, and as many health checks and flushes.
const ALONE: usize = 100;
/// How long many clients work in a round.
const TOGETHER: Duration = Duration::from_millis(500);

/// What of all is measured.
#[derive(Debug)]
pub(crate) struct Selection {
    pub(crate) rounds: usize,
    /// Names of states; empty for all.
    pub(crate) states: Vec<String>,
    /// Of [`CLIENTS`]; empty for all.
    pub(crate) clients: Vec<usize>,
}

impl Default for Selection {
    fn default() -> Self {
        Self { rounds: 5, states: Vec::new(), clients: Vec::new() }
    }
}

impl Selection {
    fn takes(&self, clients: usize) -> bool {
        self.clients.is_empty() || self.clients.contains(&clients)
    }
}

struct Subject {
    daemon: Daemon,
    /// Free addresses; more clients than that wait for one another.
    free: usize,
    addresses: usize,
    endpoints: usize,
    health: Times,
    flush: Times,
    request: Times,
    release: Times,
    cells: [Cell; 3],
}

#[derive(Default)]
struct Cell {
    pairs: Times,
    /// Pairs in a second, by round.
    rounds: Vec<f64>,
}

impl Cell {
    fn round(&mut self, pairs: usize, spent: Duration) {
        #[allow(clippy::cast_precision_loss, reason = "thousands")]
        let pairs = pairs as f64;
        self.rounds.push(pairs / spent.as_secs_f64().max(1e-9));
    }

    /// Of the round in the middle: one that a neighbour disturbed says nothing.
    fn per_second(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }
}

impl Subject {
    async fn new(
        at: &Path,
        name: &str,
        networks: &Networks,
        addresses: usize,
        endpoints: usize,
    ) -> Result<Self, Failure> {
        let mut daemon = Daemon::new(at, name, networks)?;
        daemon.start().await?;
        daemon.fill(endpoints).await?;
        // The large network holds its endpoints itself; the others have a network of their own for them.
        let free = if addresses > ENDPOINTS { addresses - endpoints } else { addresses };
        Ok(Self {
            daemon,
            free,
            addresses,
            endpoints,
            health: Times::default(),
            flush: Times::default(),
            request: Times::default(),
            release: Times::default(),
            cells: Default::default(),
        })
    }

    /// One client and what it is compared with, in turns.
    async fn alone(&mut self, disk: &Disk) -> Result<(), Failure> {
        let client = self.daemon.client()?;
        client.health("").await?;
        let mut spent = Duration::ZERO;
        for turn in 0..ALONE {
            let begun = Instant::now();
            client.health("").await?;
            self.health.add(begun.elapsed());
            self.flush.add(disk.flush(turn)?);
            let pod = Pod::new();
            let begun = Instant::now();
            client.request_ip_configs(pod.request()).await?;
            let requested = begun.elapsed();
            client.release_ip_configs(pod.release()).await?;
            let both = begun.elapsed();
            self.request.add(requested);
            self.release.add(both.saturating_sub(requested));
            self.cells[0].pairs.add(both);
            spent += both;
        }
        self.cells[0].round(ALONE, spent);
        Ok(())
    }

    async fn together(&mut self, cell: usize) -> Result<(), Failure> {
        let clients = CLIENTS[cell];
        let places = Arc::new(Semaphore::new(self.free));
        let mut workers = tokio::task::JoinSet::new();
        let connected = Arc::new(tokio::sync::Barrier::new(clients));
        for _ in 0..clients {
            let (client, places, connected) = (self.daemon.client()?, places.clone(), connected.clone());
            workers.spawn(async move {
                client.health("").await?;
                connected.wait().await;
                let (mut pairs, started) = (Times::default(), Instant::now());
                while started.elapsed() < TOGETHER {
                    let _place = places.acquire().await?;
                    let pod = Pod::new();
                    let begun = Instant::now();
                    client.request_ip_configs(pod.request()).await?;
                    client.release_ip_configs(pod.release()).await?;
                    pairs.add(begun.elapsed());
                }
                Ok::<_, Failure>((pairs, started.elapsed()))
            });
        }
        let (mut all, mut longest) = (0, Duration::ZERO);
        while let Some(done) = workers.join_next().await {
            let (pairs, spent) = done??;
            self.cells[cell].pairs.extend(&pairs);
            all += pairs.len();
            longest = longest.max(spent);
        }
        self.cells[cell].round(all, longest);
        Ok(())
    }
}

/// The comparison's file: written in place, as cheap as a durable write can be.
struct Disk(File);

impl Disk {
    const BLOCK: usize = 4096;
    const BLOCKS: usize = 256;

    fn new(at: &Path) -> Result<Self, Failure> {
        let file = File::options().create(true).truncate(true).write(true).open(at.join("flush"))?;
        file.write_all_at(&vec![1; Self::BLOCK * Self::BLOCKS], 0)?;
        file.sync_all()?;
        Ok(Self(file))
    }

    fn flush(&self, turn: usize) -> Result<Duration, Failure> {
        let block = [u8::try_from(turn % 251)?; Self::BLOCK];
        self.0.write_all_at(&block, u64::try_from(turn % Self::BLOCKS * Self::BLOCK)?)?;
        let begun = Instant::now();
        self.0.sync_data()?;
        Ok(begun.elapsed())
    }
}

pub(crate) async fn measure(at: &Path, selection: &Selection, report: &mut Report) -> Result<(), Failure> {
    let states = [
        ("16-0", SMALL, 16, 0),
        ("16-10k", SMALL_BESIDE_ENDPOINTS, 16, ENDPOINTS),
        ("1k-0", MIDDLE, 1_024, 0),
        ("1k-10k", MIDDLE_BESIDE_ENDPOINTS, 1_024, ENDPOINTS),
        ("64k-0", LARGE, 65_536, 0),
        ("64k-10k", LARGE, 65_536, ENDPOINTS),
    ];
    let mut subjects = Vec::new();
    for (name, networks, addresses, endpoints) in states {
        if !selection.states.is_empty() && !selection.states.iter().any(|wanted| wanted == name) {
            continue;
        }
        eprintln!("load: {addresses} addresses, {endpoints} endpoints: preparing");
        subjects.push(Subject::new(at, name, &networks, addresses, endpoints).await?);
    }
    let disk = Disk::new(at)?;
    for round in 1..=selection.rounds {
        eprintln!("load: round {round} of {}", selection.rounds);
        for (cell, clients) in
            CLIENTS.into_iter().enumerate().filter(|(_, clients)| selection.takes(*clients))
        {
            for subject in &mut subjects {
                match clients {
                    1 => subject.alone(&disk).await?,
                    _ => subject.together(cell).await?,
                }
            }
        }
    }
    for subject in &subjects {
        for (cell, clients) in subject.cells.iter().zip(CLIENTS).filter(|(cell, _)| cell.pairs.len() > 0) {
            report.load(Load {
                addresses: subject.addresses,
                endpoints: subject.endpoints,
                clients,
                per_second: cell.per_second(),
                p50: cell.pairs.median(),
                p99: cell.pairs.percentile(99),
            });
        }
    }
    // A part of the table has no ratios.
    if selection.states.is_empty() && selection.clients.is_empty() {
        ratios(&subjects, report);
    }
    Ok(())
}

fn ratios(subjects: &[Subject], report: &mut Report) {
    let of_all = |pick: fn(&Subject) -> &Times| {
        let mut all = Times::default();
        for subject in subjects {
            all.extend(pick(subject));
        }
        all.median()
    };
    let (health, flush) = (of_all(|subject| &subject.health), of_all(|subject| &subject.flush));
    let sum = health + flush;
    report.fact("health check, p50", micros(health));
    report.fact("fdatasync after 4 KiB in place, p50", micros(flush));
    report.fact("request alone, p50 over all states", micros(of_all(|subject| &subject.request)));
    report.fact("release alone, p50 over all states", micros(of_all(|subject| &subject.release)));
    // A pair is two calls, and each is answered when it is durable: it is compared with two checks and two flushes.
    for subject in subjects {
        let twice = (subject.health.median() + subject.flush.median()) * 2;
        let pair = subject.cells[0].pairs.median();
        report.ratio(
            format!(
                "{} addresses, {} endpoints: request + release / 2 (health + flush)",
                subject.addresses, subject.endpoints
            ),
            times(pair, twice),
            Aim::AtMost(2.0),
            format!("{} / {}", micros(pair), micros(twice)),
        );
    }
    let (request, release) = (of_all(|subject| &subject.request), of_all(|subject| &subject.release));
    for (what, call) in [("request", request), ("release", release)] {
        report.ratio(
            format!("all states: {what} alone / (health + flush)"),
            times(call, sum),
            Aim::AtMost(2.0),
            format!("{} / {}", micros(call), micros(sum)),
        );
    }
    report.ratio(
        "all states: request + release / one (health + flush)",
        times(of_all(|subject| &subject.cells[0].pairs), sum),
        Aim::None,
        "2 would be two calls that cost nothing beyond a check and a flush",
    );
    for subject in subjects {
        let [one, _, many] = &subject.cells;
        let held = if subject.free < CLIENTS[2] { "; 16 at work at a time" } else { "" };
        report.ratio(
            format!(
                "{} addresses, {} endpoints: throughput, 64 clients / 1",
                subject.addresses, subject.endpoints
            ),
            many.per_second() / one.per_second(),
            Aim::AtLeast(5.0),
            format!("{:.0}/s / {:.0}/s{held}", many.per_second(), one.per_second()),
        );
    }
    let (Some(small), Some(large)) = (subjects.first(), subjects.last()) else { return };
    let (p50, base) = (large.cells[0].pairs.median(), small.cells[0].pairs.median());
    report.ratio(
        "65 536 / 10 000 : 16 / 0, p50 of one client",
        times(p50, base),
        Aim::AtMost(1.3),
        format!("{} / {}", micros(p50), micros(base)),
    );
    let (many, base) = (&large.cells[1], &small.cells[1]);
    report.ratio(
        "65 536 / 10 000 : 16 / 0, time per pair with 8 clients",
        base.per_second() / many.per_second(),
        Aim::AtMost(1.3),
        format!("{:.0}/s, {:.0}/s", many.per_second(), base.per_second()),
    );
}
