//! The one writer: drains its queue, applies a batch, commits it in one durable transaction, then answers.
//!
//! Under load many requests share one disk flush; alone, a request pays one. If the disk does not take a batch, the batch is
//! undone in memory and every caller of it is told so, also those that were refused: what they were refused for may have
//! been undone with it.

use std::{
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{broadcast, mpsc, oneshot, watch},
};

use super::{
    Command, Committed, Granted, Imported, LedgerConfig, LegacyState, Loaded, Persist, Rejection, ReleaseIps,
    Released, Reply, RequestIps, UpdateEndpoint, UpsertNc, UpsertedNc, View, invariant,
    state::{Batch, State},
    transition::execute,
};
use crate::model::{Actor, ContainerId, Endpoint, NcId, Now, Sandbox, Timestamp};

/// Commands waiting for the writer. More than that many at once is an overload that the caller is told of.
const QUEUE: usize = 4096;
/// Commands that share one flush at most: bounds how long the first of them waits for the last.
const BATCH: usize = 512;
/// Commands that a slow watcher may lag behind before it loses some (and is told so).
const EVENTS: usize = 4096;
/// How often a disk that failed is tried again while nobody asks for anything.
const RETRY: Duration = Duration::from_millis(500);

/// Why a command has no reply.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LedgerError {
    /// The state forbids it.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The disk did not take it; nothing changed. The writer keeps trying.
    #[error("the state could not be made durable, nothing was changed: {why}")]
    Unavailable {
        /// The disk's error.
        why: String,
    },
    /// Too many commands wait already; nothing changed.
    #[error("{QUEUE} commands are waiting for the disk already; nothing was changed")]
    Overloaded,
    /// The daemon is stopping; nothing changed.
    #[error("the ledger is stopped")]
    Stopped,
}

/// Whether the ledger takes commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Serving,
    /// The disk does not take its batches; it is tried again and again.
    Failing {
        /// Since when.
        since: Timestamp,
        /// The disk's last error.
        error: String,
    },
}

/// Told of every batch, on the writer's thread: it must not block.
pub trait LedgerObserver: Send + Sync + 'static {
    /// A batch is durable and visible to readers.
    fn committed(&self, report: &BatchReport<'_>);
    /// The disk did not take a batch.
    fn failed(&self, error: &str);
}

impl LedgerObserver for () {
    fn committed(&self, _: &BatchReport<'_>) {}
    fn failed(&self, _: &str) {}
}

/// One durable batch.
#[derive(Debug)]
pub struct BatchReport<'a> {
    /// Its commands.
    pub committed: &'a [Arc<Committed>],
    /// How long the disk took.
    pub commit: Duration,
    /// Addresses by state after it, in the order of [`crate::model::IpStateKind::ALL`].
    pub totals: [u32; 4],
    /// Commands that wait already for the next one.
    pub queued: usize,
}

/// What a look at everything found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Broken invariants; differences between memory, readers' view and disk. Empty when all is well.
    pub violations: Vec<String>,
    /// Addresses looked at.
    pub addresses: usize,
    /// Endpoints looked at.
    pub endpoints: usize,
    /// Network containers looked at.
    pub ncs: usize,
}

#[allow(clippy::large_enum_variant, reason = "nearly every message is a command")]
enum Message {
    Command { actor: Actor, command: Command, reply: oneshot::Sender<Result<Reply, LedgerError>> },
    Inspect(oneshot::Sender<Inspection>),
    Stop,
}

/// A handle on the ledger; cheap to clone.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    queue: mpsc::Sender<Message>,
    view: Arc<RwLock<View>>,
    events: broadcast::Sender<Arc<Committed>>,
    health: watch::Receiver<Health>,
    config: LedgerConfig,
}

/// The writer's thread. Ends after [`Ledger::stop`]; if it ends without, that is a bug that the process must not outlive,
/// and [`Ledger::health`]'s channel closes.
#[derive(Debug)]
pub struct WriterThread(thread::JoinHandle<()>);

impl WriterThread {
    /// Waits for it; `false` if it panicked.
    pub fn join(self) -> bool {
        self.0.join().is_ok()
    }
}

impl Ledger {
    /// Builds the state from what was loaded, makes durable what the start itself changes (repairs; the end of an earlier
    /// boot's endpoints) and starts the writer. Also returns what was repaired, in words.
    ///
    /// Must be called within a tokio runtime.
    pub fn start(
        mut persist: Box<dyn Persist>,
        loaded: Loaded,
        config: LedgerConfig,
        observer: Arc<dyn LedgerObserver>,
    ) -> Result<(Self, WriterThread, Vec<String>), LedgerError> {
        let rebooted = loaded.rebooted;
        let (mut state, problems, repairs) = State::load(loaded, config.clone());
        let mut batch = Batch::of(repairs);
        if rebooted {
            execute(&mut state, &mut batch, Now::read(), Actor::internal("start"), Command::Reboot)?;
        }
        if !batch.changes.is_empty() {
            persist
                .commit(&batch.changes)
                .map_err(|error| LedgerError::Unavailable { why: error.to_string() })?;
        }
        let view = Arc::new(RwLock::new(View::of(state.as_changes(), state.journal)));
        let (queue, inbox) = mpsc::channel(QUEUE);
        let (events, _) = broadcast::channel(EVENTS);
        let (health_in, health) = watch::channel(Health::Serving);
        let writer = Writer {
            state,
            persist,
            inbox,
            view: view.clone(),
            events: events.clone(),
            health: health_in,
            observer,
            runtime: Handle::current(),
        };
        let thread =
            thread::Builder::new().name("ledger".into()).spawn(move || writer.run()).map_err(|error| {
                LedgerError::Unavailable { why: format!("no thread for the writer: {error}") }
            })?;
        let inner = Inner { queue, view, events, health, config };
        Ok((Self(Arc::new(inner)), WriterThread(thread), problems))
    }

    /// Sends a command and waits until its outcome is durable.
    ///
    /// A call that is dropped before the writer takes its command has no effect; after that the command completes.
    pub async fn submit(&self, actor: Actor, command: Command) -> Result<Reply, LedgerError> {
        let (reply, outcome) = oneshot::channel();
        self.0.queue.try_send(Message::Command { actor, command, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => LedgerError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => LedgerError::Stopped,
        })?;
        outcome.await.unwrap_or(Err(LedgerError::Stopped))
    }

    /// See [`Command::RequestIps`].
    pub async fn request_ips(&self, actor: Actor, request: RequestIps) -> Result<Granted, LedgerError> {
        match self.submit(actor, Command::RequestIps(request)).await? {
            Reply::Granted(granted) => Ok(granted),
            other => unexpected(&other),
        }
    }

    /// See [`Command::ReleaseIps`].
    pub async fn release_ips(&self, actor: Actor, release: ReleaseIps) -> Result<Released, LedgerError> {
        match self.submit(actor, Command::ReleaseIps(release)).await? {
            Reply::Released(released) => Ok(released),
            other => unexpected(&other),
        }
    }

    /// See [`Command::ReleaseDeadSandbox`].
    pub async fn release_dead_sandbox(
        &self,
        actor: Actor,
        container: ContainerId,
        sandbox: Sandbox,
        why: String,
    ) -> Result<Released, LedgerError> {
        match self.submit(actor, Command::ReleaseDeadSandbox { container, sandbox, why }).await? {
            Reply::Released(released) => Ok(released),
            other => unexpected(&other),
        }
    }

    /// See [`Command::UpsertNc`].
    pub async fn upsert_nc(&self, actor: Actor, upsert: UpsertNc) -> Result<UpsertedNc, LedgerError> {
        match self.submit(actor, Command::UpsertNc(Box::new(upsert))).await? {
            Reply::Nc(nc) => Ok(nc),
            other => unexpected(&other),
        }
    }

    /// See [`Command::DeleteNc`]: whether there was one, and what pods still hold.
    pub async fn delete_nc(
        &self,
        actor: Actor,
        id: NcId,
    ) -> Result<(bool, Vec<std::net::IpAddr>), LedgerError> {
        match self.submit(actor, Command::DeleteNc { id }).await? {
            Reply::NcDeleted { existed, kept } => Ok((existed, kept)),
            other => unexpected(&other),
        }
    }

    /// See [`Command::UpdateEndpoint`].
    pub async fn update_endpoint(
        &self,
        actor: Actor,
        update: UpdateEndpoint,
    ) -> Result<Arc<Endpoint>, LedgerError> {
        match self.submit(actor, Command::UpdateEndpoint(update)).await? {
            Reply::Endpoint(endpoint) => Ok(endpoint),
            other => unexpected(&other),
        }
    }

    /// See [`Command::ImportLegacy`].
    pub async fn import_legacy(&self, actor: Actor, legacy: LegacyState) -> Result<Imported, LedgerError> {
        match self.submit(actor, Command::ImportLegacy(Box::new(legacy))).await? {
            Reply::Imported(imported) => Ok(imported),
            other => unexpected(&other),
        }
    }

    /// Committed state. The guard is not `Send`: it cannot be held across an await.
    pub fn view(&self) -> RwLockReadGuard<'_, View> {
        self.0.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Durable commands from now on, in order. Whoever lags too far behind loses some and is told how many; the writer waits
    /// for nobody.
    pub fn events(&self) -> broadcast::Receiver<Arc<Committed>> {
        self.0.events.subscribe()
    }

    /// Whether the ledger takes commands. The channel closes when the writer ends.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.0.health.clone()
    }

    /// The settings in force.
    pub fn config(&self) -> &LedgerConfig {
        &self.0.config
    }

    /// Looks at everything: invariants, what readers see, what is on disk. Holds the writer up while it looks; for
    /// operators and tests.
    pub async fn inspect(&self) -> Result<Inspection, LedgerError> {
        let (reply, outcome) = oneshot::channel();
        self.0.queue.send(Message::Inspect(reply)).await.map_err(|_| LedgerError::Stopped)?;
        outcome.await.map_err(|_| LedgerError::Stopped)
    }

    /// Lets the writer finish what is queued before this, and end. Later commands are told that it is stopped.
    pub async fn stop(&self) {
        // It may have ended already.
        let _ = self.0.queue.send(Message::Stop).await;
        self.0.queue.closed().await;
    }
}

/// The transition of a command decides its reply's kind; another one is a bug here, and no reason to stop the daemon.
fn unexpected<T>(reply: &Reply) -> Result<T, LedgerError> {
    debug_assert!(false, "a reply of another kind: {reply:?}");
    Err(LedgerError::Unavailable { why: "internal error: a reply of another kind".into() })
}

type Waiting = Vec<(oneshot::Sender<Result<Reply, LedgerError>>, Result<Reply, LedgerError>)>;

struct Writer {
    state: State,
    persist: Box<dyn Persist>,
    inbox: mpsc::Receiver<Message>,
    view: Arc<RwLock<View>>,
    events: broadcast::Sender<Arc<Committed>>,
    health: watch::Sender<Health>,
    observer: Arc<dyn LedgerObserver>,
    runtime: Handle,
}

impl Writer {
    fn run(mut self) {
        while let Some(first) = self.next() {
            let mut next = Some(first);
            let (mut batch, mut waiting) = (Batch::default(), Waiting::new());
            let now = Now::read();
            while let Some(message) = next {
                match message {
                    Message::Command { actor, command, reply } => {
                        // The caller went away before the command was taken: it has no effect.
                        if !reply.is_closed() {
                            let outcome = execute(&mut self.state, &mut batch, now, actor, command);
                            waiting.push((reply, outcome.map_err(LedgerError::Rejected)));
                        }
                    }
                    Message::Inspect(reply) => {
                        self.finish(std::mem::take(&mut batch), std::mem::take(&mut waiting));
                        // Nobody may wait for it any more.
                        let _ = reply.send(self.inspect());
                    }
                    Message::Stop => {
                        self.finish(batch, waiting);
                        return;
                    }
                }
                next = if waiting.len() < BATCH { self.inbox.try_recv().ok() } else { None };
            }
            self.finish(batch, waiting);
        }
    }

    /// The next message. While the disk fails it is tried now and then, so that health recovers with nobody asking.
    fn next(&mut self) -> Option<Message> {
        loop {
            if *self.health.borrow() == Health::Serving {
                return self.inbox.blocking_recv();
            }
            let inbox = &mut self.inbox;
            match self.runtime.block_on(async { tokio::time::timeout(RETRY, inbox.recv()).await }) {
                Ok(message) => return message,
                Err(_elapsed) => match self.persist.probe() {
                    Ok(()) => self.recovered(),
                    Err(error) => self.failing(&error.to_string()),
                },
            }
        }
    }

    fn finish(&mut self, batch: Batch, waiting: Waiting) {
        if !batch.changes.is_empty() {
            let started = Instant::now();
            if let Err(error) = self.persist.commit(&batch.changes) {
                self.state.undo(batch);
                let why = error.to_string();
                self.failing(&why);
                self.observer.failed(&why);
                for (reply, _) in waiting {
                    let _ = reply.send(Err(LedgerError::Unavailable { why: why.clone() }));
                }
                return;
            }
            let commit = started.elapsed();
            self.recovered();
            self.publish(&batch, commit);
        }
        for (reply, outcome) in waiting {
            // A caller that went away meanwhile finds the outcome when it asks again.
            let _ = reply.send(outcome);
        }
    }

    fn publish(&mut self, batch: &Batch, commit: Duration) {
        let totals = {
            let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
            for change in &batch.changes {
                view.apply(change);
            }
            view.set_journal(self.state.journal);
            view.totals()
        };
        for committed in &batch.committed {
            // Nobody may be watching.
            let _ = self.events.send(committed.clone());
        }
        let report = BatchReport { committed: &batch.committed, commit, totals, queued: self.inbox.len() };
        self.observer.committed(&report);
    }

    fn recovered(&self) {
        self.health.send_if_modified(|health| {
            let changed = *health != Health::Serving;
            if changed {
                tracing::info!("the disk takes writes again");
                *health = Health::Serving;
            }
            changed
        });
    }

    fn failing(&self, error: &str) {
        self.health.send_if_modified(|health| match health {
            Health::Failing { error: known, .. } if known == error => false,
            Health::Failing { error: known, .. } => {
                error.clone_into(known);
                true
            }
            Health::Serving => {
                tracing::error!(error, "the state cannot be made durable; nothing is granted until it can");
                *health = Health::Failing { since: Now::read().wall, error: error.to_owned() };
                true
            }
        });
    }

    fn inspect(&mut self) -> Inspection {
        let mut violations = invariant::violations(&self.state);
        {
            let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
            violations.extend(invariant::view_differs(&self.state, &view));
        }
        match self.persist.reload() {
            Ok(disk) => violations.extend(invariant::disk_differs(&self.state, disk)),
            Err(error) => violations.push(format!("the state on disk cannot be read back: {error}")),
        }
        Inspection {
            violations,
            addresses: self.state.by_address.len(),
            endpoints: self.state.endpoints.len(),
            ncs: self.state.ncs.len(),
        }
    }
}
