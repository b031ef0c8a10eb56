//! Keeps what is known of the host's primary interface up to date, so that nobody who answers a pod has to ask the kernel.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    model::HostInterface,
    nic::{HostInterfaceWatch, KernelError},
};

/// The interface as it was last read, and what reads it again.
#[derive(Debug)]
pub(super) struct Keeper {
    told: watch::Sender<Option<HostInterface>>,
    watching: Option<HostInterfaceWatch>,
}

impl Keeper {
    /// Reads the interface for the first time. That the kernel cannot be asked is no reason not to serve: who needs the
    /// interface is told that there is none.
    pub(super) async fn start() -> Self {
        let (told, _) = watch::channel(None);
        let watching = match Self::open(&told).await {
            Ok(watching) => Some(watching),
            Err(error) => {
                tracing::error!(%error, "the host's primary interface cannot be read, and plugins are not told of it");
                None
            }
        };
        Self { told, watching }
    }

    async fn open(told: &watch::Sender<Option<HostInterface>>) -> Result<HostInterfaceWatch, KernelError> {
        let mut watching = HostInterfaceWatch::open()?;
        let interface = watching.read().await?;
        if interface.is_none() {
            tracing::warn!("the host has no default route; plugins are not told of its primary interface");
        }
        told.send_replace(interface);
        Ok(watching)
    }

    /// The interface, always as it was last read.
    pub(super) fn told(&self) -> watch::Receiver<Option<HostInterface>> {
        self.told.subscribe()
    }

    /// Reads it again after every change, until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let Self { told, watching } = self;
        let Some(mut watching) = watching else {
            stop.cancelled().await;
            return;
        };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = watching.changed() => {}
            }
            match watching.read().await {
                Ok(interface) => {
                    let differs = told.send_if_modified(|known| {
                        let differs = *known != interface;
                        *known = interface;
                        differs
                    });
                    if differs {
                        tracing::info!(?interface, "the host's primary interface has changed");
                    }
                }
                // What was known is better than nothing; it is tried again at the next change or in a while.
                Err(error) => tracing::warn!(%error, "the host's primary interface cannot be read"),
            }
        }
    }
}
