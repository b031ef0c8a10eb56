//! The connection to the daemon's unix socket.

use std::{io, path::Path};

use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// How our clients introduce themselves. It also marks our binaries: `cnsctl cni install` looks for it before it
/// replaces a file called like the plugin.
pub const USER_AGENT: &str = concat!("cns-client/", env!("CARGO_PKG_VERSION"));

/// A channel that connects with its first call, and again after the daemon went away.
///
/// Needs a running tokio runtime. Fails only if no connection to `socket` can ever be made.
pub(crate) fn lazy(socket: &Path) -> Result<Channel, Error> {
    let unusable = |source: Box<dyn std::error::Error + Send + Sync>| Error::Unreachable {
        socket: socket.to_owned(),
        source,
    };
    let text = socket.to_str().ok_or_else(|| {
        unusable(Box::new(io::Error::new(io::ErrorKind::InvalidInput, "the path of a socket must be UTF-8")))
    })?;
    // With both slashes, so that a path that itself begins with two loses none.
    let endpoint = Endpoint::from_shared(format!("unix://{text}"))
        .and_then(|endpoint| {
            // Opaque to the optimiser, which could else dissolve so short a text into instructions: it is a mark, too.
            endpoint.user_agent(std::hint::black_box(USER_AGENT))
        })
        .map_err(|error| unusable(Box::new(error)))?;
    Ok(endpoint.connect_lazy())
}
