//! Messages to a service manager (`sd_notify`).

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// Message: the daemon is ready and serves clients.
pub(crate) const READY: &str = "READY=1";
/// Message: the daemon is ending.
pub(crate) const STOPPING: &str = "STOPPING=1";

/// Returns the message that the daemon has begun to read its configuration again. The daemon sends
/// [`READY`] when it has finished.
pub(crate) fn reloading() -> String {
    let now = clock_gettime(ClockId::Monotonic);
    let usec = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000);
    format!("RELOADING=1\nMONOTONIC_USEC={usec}")
}

/// Sends `what` to the service manager, if there is one. The environment variable `$NOTIFY_SOCKET`
/// holds its address: a path, or `@` and an abstract name.
pub(crate) fn tell(what: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return };
    let address = match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(what.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!("cannot tell {}: {error}", path.display());
    }
}
