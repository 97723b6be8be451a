//! The error that setting up a device can return.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// The reason why a device could not be set up.
///
/// A device that has been set up reports no more errors of this type; from then on, single packets
/// fail, each with a [drop reason](onramp_queue::DropReason).
#[derive(Debug)]
pub struct DeviceError {
    /// The operation that failed, such as `bind a UDP socket`.
    pub operation: &'static str,
    /// The address that the operation concerned, if it concerned one.
    pub addr: Option<SocketAddr>,
    /// The error that the operating system returned.
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

    /// Returns advice on how to avoid the error; `None` if this type knows no advice for it.
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

// `Error::source` is not overridden, because the text of `Display` already includes the system's
// error.
impl std::error::Error for DeviceError {}
