//! What the watch rpcs share. A watcher follows the ledger's durable commands; the writer never waits for it. One that is too
//! slow is told so and ends: it must not go on believing that it knows everything.

use std::{future::ready, pin::Pin, sync::Arc};

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tonic::{Code, Status};

use super::{Context, status::Failure};
use crate::{ledger::Committed, model::ReturnCode};

/// Watches that are open at once. Each may make the daemon keep thousands of commands that it has not read yet.
pub(super) const WATCHERS: usize = 256;

/// Responses of a stream.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A watcher's place and its subscription, taken before the first look at the state, so that nothing falls between.
pub(super) struct Watch {
    context: Context,
    events: broadcast::Receiver<Arc<Committed>>,
    place: OwnedSemaphorePermit,
    /// The first sequence that was not there yet.
    pub(super) since: u64,
}

impl Context {
    /// A place among those that watch or fetch a bundle.
    pub(super) fn stream_place(&self) -> Result<OwnedSemaphorePermit, Status> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{WATCHERS} watches are open already");
            Failure::new(Code::ResourceExhausted, ReturnCode::UnexpectedError, message)
                .detail("TOO_MANY_WATCHES")
                .put("limit", WATCHERS)
                .remedy("end watches that are no longer needed, then watch again")
                .into()
        })
    }

    /// Begins a watch.
    pub(super) fn watch(&self) -> Result<Watch, Status> {
        let place = self.stream_place()?;
        // Read first: what comes in between is told.
        let since = self.ledger.view().seq();
        Ok(Watch { context: self.clone(), events: self.ledger.events(), place, since })
    }
}

impl Watch {
    /// First `initial`, then what `told` makes of each command whose sequence is at least `from`. Ends without an error when
    /// the daemon stops. `remedy` is for a watcher that was too slow, given the sequence that it would have been told next.
    pub(super) fn stream<T: Send + 'static>(
        self,
        initial: impl Iterator<Item = T> + Send + 'static,
        from: u64,
        mut told: impl FnMut(&Committed) -> Vec<T> + Send + 'static,
        remedy: fn(u64) -> String,
    ) -> Responses<T> {
        let Self { context, events, place, since: _ } = self;
        let mut next = from;
        let changes = BroadcastStream::new(events).flat_map(move |event| {
            let batch = match event {
                // The initial state has it already.
                Ok(committed) if committed.entry.seq < next => Vec::new(),
                Ok(committed) => {
                    next = committed.entry.seq + 1;
                    told(&committed).into_iter().map(Ok).collect()
                }
                Err(BroadcastStreamRecvError::Lagged(missed)) => vec![Err(too_slow(missed, next, remedy))],
            };
            stream::iter(batch)
        });
        let all = stream::iter(initial.map(Ok)).chain(changes);
        // The place is free again when the stream is dropped. A failure is the last that is told.
        let bounded = all.scan((false, place), |(failed, _place), item| {
            ready(if std::mem::replace(failed, item.is_err()) { None } else { Some(item) })
        });
        Box::pin(context.until_stopped(bounded))
    }
}

fn too_slow(missed: u64, next: u64, remedy: fn(u64) -> String) -> Status {
    let message =
        format!("this watcher was too slow: {missed} changes were dropped, from sequence {next} on");
    Failure::new(Code::DataLoss, ReturnCode::UnexpectedError, message)
        .detail("WATCHER_TOO_SLOW")
        .put("missed", missed)
        .put("next_sequence", next)
        .remedy(remedy(next))
        .into()
}

/// The remedy where the present state can be asked for.
pub(super) fn begin_anew(_: u64) -> String {
    "watch again with the initial state, and read faster".into()
}
