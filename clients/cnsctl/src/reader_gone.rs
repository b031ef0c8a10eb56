//! Notices that nobody reads our output any more, also while there is nothing to write.

use std::os::fd::{AsFd, OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Resolves when the reader of a pipe or socket that stdout is has closed it; never for a terminal or a file.
///
/// `cnsctl watch | head -1` would else stay until the next change on the node.
pub(crate) async fn reader_gone() {
    let watched = std::io::stdout()
        .as_fd()
        .try_clone_to_owned()
        // A file cannot be watched (EPERM), and needs not be.
        .and_then(|fd: OwnedFd| AsyncFd::with_interest(fd, Interest::ERROR));
    if let Ok(watched) = watched
        && watched.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
