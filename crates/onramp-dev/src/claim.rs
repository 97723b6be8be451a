//! Claims to interfaces, so that no two programs carry the same packets.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

/// What a program does with the packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It carries all frames that come in to another interface.
    Bridge,
    /// It leads packets aside that leave through the interface.
    #[cfg(feature = "detour")]
    Egress,
}

/// A claim to an interface, until the value is dropped or the process ends. The claim is a name
/// that only one socket of the network namespace can have. It keeps Onramp's own programs apart;
/// any program of the namespace can take such a name.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: UnixListener,
}

impl Claim {
    /// Claims the interface called `name`, which has this number. The error `ResourceBusy` says who
    /// has it.
    pub(crate) fn take(name: &str, interface: u32, what: Use) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(format!("onramp-{what:?}-{interface}"))?;
        match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Self { _socket: socket }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let does = match what {
                    Use::Bridge => "carries what comes in through",
                    #[cfg(feature = "detour")]
                    Use::Egress => "shapes what leaves through",
                };
                let why = format!(
                    "another Onramp {does} {name} already: end that `onramp shape`, or delete that \
                     daemon's device"
                );
                Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
            }
            Err(error) => Err(error),
        }
    }
}
