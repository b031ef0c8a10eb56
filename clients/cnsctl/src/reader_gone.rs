//! Notices that nobody reads our output any more, also while there is nothing to write.

use std::{io, os::fd::AsFd};

use tokio::{io::Interest, net::unix::pipe::Sender};

/// Resolves when the reader of a pipe that stdout is has closed it; never for a terminal or a file.
///
/// `cnsctl watch | head -1` would else stay until the next change on the node.
pub(crate) async fn reader_gone() {
    // Unchecked: the checking constructor makes the pipe non-blocking, for our own writes and for everybody who shares
    // it. What is no pipe either can be watched as well or refuses (a file: EPERM), and needs no watching then.
    let watched = io::stdout().as_fd().try_clone_to_owned().and_then(Sender::from_owned_fd_unchecked);
    if let Ok(watched) = watched
        && watched.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
