//! The way out to Application Insights: a bounded queue that takes without waiting, and the one task that empties it.
//!
//! Whoever reports goes on at once; what does not fit is counted and gone. Items go in batches; a batch that the service does not take is
//! tried again, and given up after a while, so that an outage costs the oldest items and bounded memory and nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    envelope::Origin,
    item::{Dated, Item},
    metrics::Metrics,
};
use crate::{
    host::{
        http::{Limits, varied},
        imds::{Compute, Imds},
        insights::{Destination, Insights},
    },
    ledger::Ledger,
    model::Now,
};

/// Items that wait at most, and the bytes that they hold together.
const QUEUE: usize = 4096;
const QUEUE_BYTES: usize = 1 << 20;
/// How often a batch is sent before it is given up, and how long the first pause is; each further one is twice as long. Together about
/// half a minute.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);
/// How long a stop waits for what is left to be sent.
const FAREWELL: Duration = Duration::from_secs(2);
/// The longest pause between two questions for the machine's metadata.
const METADATA_PAUSE: Duration = Duration::from_mins(15);
/// The cloud that a key without an endpoint belongs to.
const PUBLIC_CLOUD: &str = "AzurePublicCloud";

/// Takes items. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Outlet {
    queue: mpsc::Sender<Dated>,
    held: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl Outlet {
    /// Takes an item, or counts it as dropped. Never waits.
    pub fn put(&self, item: Item) {
        let (kind, size) = (item.kind(), item.size());
        let fits = self.held.fetch_add(size, Ordering::Relaxed) + size <= QUEUE_BYTES;
        let dated = Dated { at: Now::read().wall, item };
        if !fits || self.queue.try_send(dated).is_err() {
            self.held.fetch_sub(size, Ordering::Relaxed);
            self.metrics.reported(kind, "dropped");
        }
    }
}

/// How items are sent.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A batch is sent when it has so many bytes,
    pub bytes: usize,
    /// or when its first item is so old.
    pub interval: Duration,
}

/// The queue's other end.
#[derive(Debug)]
pub struct Sender {
    inbox: mpsc::Receiver<Dated>,
    held: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    insights: Insights,
    destination: Destination,
    pace: Pace,
    ledger: Ledger,
    machine: watch::Receiver<Machine>,
    hostname: String,
    /// What is taken and not sent.
    batch: Batch,
}

/// Lines of one batch, and of which kind each is.
#[derive(Debug, Default)]
struct Batch {
    lines: Vec<(&'static str, String)>,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, kind: &'static str, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push((kind, line));
    }
}

impl Outlet {
    /// The two ends. `machine` is what IMDS says, once it is known.
    pub fn new(
        insights: Insights,
        destination: Destination,
        pace: Pace,
        ledger: Ledger,
        metrics: Arc<Metrics>,
        machine: watch::Receiver<Machine>,
    ) -> (Self, Sender) {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let held = Arc::<AtomicUsize>::default();
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let hostname = hostname.unwrap_or_default();
        let outlet = Self { queue, held: held.clone(), metrics: metrics.clone() };
        let batch = Batch::default();
        let sender =
            Sender { inbox, held, metrics, insights, destination, pace, ledger, machine, hostname, batch };
        (outlet, sender)
    }
}

impl Sender {
    /// Sends what is put in until told to stop, and then what is left, within 2 s.
    pub async fn run(mut self, stop: CancellationToken) {
        if self.may_send(&stop).await {
            while stop.run_until_cancelled(self.collect()).await.is_some() {
                let batch = std::mem::take(&mut self.batch);
                self.deliver(batch, &stop).await;
            }
            self.farewell().await;
        }
        self.inbox.close();
        while let Ok(dated) = self.inbox.try_recv() {
            self.metrics.reported(dated.item.kind(), "dropped");
        }
        // A part that ends is taken for a fault.
        stop.cancelled().await;
    }

    /// A key alone is good for the public cloud only, so the cloud must be known first. `false` if nothing is to be sent.
    async fn may_send(&mut self, stop: &CancellationToken) -> bool {
        if !self.destination.only_in_public_cloud {
            return true;
        }
        let cloud = {
            let known = stop.run_until_cancelled(self.machine.wait_for(Option::is_some)).await;
            let Some(Ok(known)) = known else { return false };
            known.as_ref().map(|machine| machine.az_environment.clone()).unwrap_or_default()
        };
        if cloud == PUBLIC_CLOUD {
            return true;
        }
        tracing::warn!(
            cloud,
            "AppInsightsInstrumentationKey alone is good for {PUBLIC_CLOUD}, so nothing is sent; set AppInsightsConnectionString"
        );
        false
    }

    /// Fills the batch until it is large or old enough. What it has taken stays in it when this is cancelled.
    async fn collect(&mut self) {
        let mut until = None;
        while self.batch.bytes < self.pace.bytes {
            let received = match until {
                None => self.inbox.recv().await,
                Some(until) => match timeout_at(until, self.inbox.recv()).await {
                    Ok(received) => received,
                    Err(_) => return,
                },
            };
            match received {
                Some(dated) => self.take(&dated),
                // Nobody is left who could put anything in.
                None if self.batch.lines.is_empty() => std::future::pending().await,
                None => return,
            }
            until.get_or_insert_with(|| Instant::now() + self.pace.interval);
        }
    }

    fn take(&mut self, dated: &Dated) {
        self.held.fetch_sub(dated.item.size(), Ordering::Relaxed);
        let orchestrator = self.ledger.view().orchestrator().clone();
        let machine = self.machine.borrow().clone();
        let origin = Origin {
            key: self.destination.key.reveal(),
            hostname: &self.hostname,
            machine: machine.as_deref(),
            orchestrator: &orchestrator,
        };
        self.batch.push(dated.item.kind(), origin.envelope(dated));
    }

    /// Sends a batch, several times if need be.
    async fn deliver(&self, mut batch: Batch, stop: &CancellationToken) {
        for attempt in 1..=ATTEMPTS {
            batch = self.attempt(batch, Limits::default().total).await;
            if batch.lines.is_empty() {
                return;
            }
            let pause = varied(PAUSE * 2_u32.pow(attempt - 1));
            if attempt < ATTEMPTS && stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                batch = self.attempt(batch, FAREWELL).await;
                break;
            }
        }
        self.dropped(batch);
    }

    /// Sends what is there, in batches as ever, once.
    async fn farewell(&mut self) {
        let until = Instant::now() + FAREWELL;
        loop {
            while self.batch.bytes < self.pace.bytes {
                let Ok(dated) = self.inbox.try_recv() else { break };
                self.take(&dated);
            }
            let batch = std::mem::take(&mut self.batch);
            if batch.lines.is_empty() {
                return;
            }
            let left = self.attempt(batch, until.saturating_duration_since(Instant::now())).await;
            if !left.lines.is_empty() {
                self.dropped(left);
                return;
            }
        }
    }

    /// Sends a batch once. What is left is worth another attempt.
    async fn attempt(&self, batch: Batch, within: Duration) -> Batch {
        let mut body = String::with_capacity(batch.bytes);
        for (_, line) in &batch.lines {
            body.push_str(line);
            body.push('\n');
        }
        let tracked = match self.insights.within(within).track(body.into(), batch.lines.len()).await {
            Ok(tracked) => tracked,
            Err(error) if error.fault.may_pass() => return batch,
            // It will not have this batch, now or later. The client has told why.
            Err(_) => {
                batch.lines.iter().for_each(|(kind, _)| self.metrics.reported(kind, "refused"));
                return Batch::default();
            }
        };
        if let Some((_, why)) = tracked.refused.first() {
            tracing::warn!(why, items = tracked.refused.len(), "Application Insights refused some items");
        }
        let mut left = Batch::default();
        for (index, (kind, line)) in batch.lines.into_iter().enumerate() {
            if tracked.again.contains(&index) {
                left.push(kind, line);
            } else if tracked.refused.iter().any(|(refused, _)| *refused == index) {
                self.metrics.reported(kind, "refused");
            } else {
                self.metrics.reported(kind, "sent");
            }
        }
        left
    }

    fn dropped(&self, batch: Batch) {
        batch.lines.iter().for_each(|(kind, _)| self.metrics.reported(kind, "dropped"));
    }
}

/// What IMDS says of the machine; nothing until it is known.
pub type Machine = Option<Arc<Compute>>;

/// Asks IMDS what this machine is.
#[derive(Debug)]
pub struct MachineSearch {
    /// Whom to ask.
    pub imds: Imds,
    /// The first pause; each further one is twice as long, up to a quarter of an hour: not every machine has an IMDS.
    pub every: Duration,
    /// Whom to tell.
    pub told: watch::Sender<Machine>,
}

impl MachineSearch {
    /// Asks until the machine is known or the daemon stops.
    pub async fn run(self, stop: CancellationToken) {
        let mut pause = self.every;
        loop {
            match stop.run_until_cancelled(self.imds.compute()).await {
                None => return,
                Some(Ok(machine)) => {
                    self.told.send_replace(Some(Arc::new(machine)));
                    // A part that ends is taken for a fault.
                    stop.cancelled().await;
                    return;
                }
                Some(Err(_)) => {}
            }
            if stop.run_until_cancelled(tokio::time::sleep(varied(pause))).await.is_none() {
                return;
            }
            pause = (pause * 2).min(METADATA_PAUSE.max(self.every));
        }
    }
}

#[cfg(test)]
impl Outlet {
    /// One whose items a test takes.
    pub(super) fn tapped(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<Dated>) {
        let (queue, inbox) = mpsc::channel(QUEUE);
        (Self { queue, held: Arc::default(), metrics }, inbox)
    }
}

#[cfg(test)]
mod tests;
