//! What can go wrong while a device is set up.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// A device could not be set up.
///
/// Once it is, it does not fail: packets do, each for a
/// [reason](onramp_queue::DropReason).
#[derive(Debug)]
pub struct DeviceError {
    /// What was tried, such as `bind a UDP socket`.
    pub operation: &'static str,
    /// The address it was tried on, where one was involved.
    pub addr: Option<SocketAddr>,
    /// What the system said.
    pub source: io::Error,
}

impl DeviceError {
    pub(crate) const fn new(
        operation: &'static str,
        addr: Option<SocketAddr>,
        source: io::Error,
    ) -> Self {
        Self { operation, addr, source }
    }

    /// What to do about it, where that is known.
    fn advice(&self) -> Option<&'static str> {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => Some("choose another port, or port 0 for any free one"),
            io::ErrorKind::AddrNotAvailable => Some("choose an address of this machine"),
            io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 need CAP_NET_BIND_SERVICE; broadcast needs SO_BROADCAST")
            }
            _ => None,
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.operation)?;
        if let Some(addr) = self.addr {
            write!(f, " {addr}")?;
        }
        write!(f, ": {}", self.source)?;
        self.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

// No `source`: the text says what the system said.
impl std::error::Error for DeviceError {}
