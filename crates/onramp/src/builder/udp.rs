//! Links over UDP sockets.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use onramp_dev::{Udp, UdpOptions};

use super::{BuildError, LinkBuilder, Source};
use crate::Link;
use crate::shared::{BoxDevice, UdpSockets};

/// Where the sockets of a link come from, and how they send.
#[derive(Debug)]
pub(super) struct Sockets {
    from: From,
    options: UdpOptions,
}

#[derive(Debug)]
enum From {
    /// The link makes a socket for each of its ports and binds it to this address.
    Bind(io::Result<SocketAddr>),
    /// The caller has made these sockets.
    Caller(Vec<UdpSocket>),
}

impl Link {
    /// Returns the builder of a link over UDP sockets that the link binds itself to `local`, one
    /// socket for each port. Use it for a new program that sends UDP datagrams.
    ///
    /// With more than one port, `local` must leave the choice of the port number to the system
    /// (`0.0.0.0:0`).
    pub fn udp(local: impl ToSocketAddrs) -> LinkBuilder {
        let addr = local.to_socket_addrs().and_then(|mut addrs| {
            addrs.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address"))
        });
        LinkBuilder::over(From::Bind(addr))
    }

    /// Returns the builder of a link over given UDP sockets. Each socket becomes a port. Use it if
    /// the sockets need options, or are also used to receive.
    pub fn sockets(sockets: impl IntoIterator<Item = UdpSocket>) -> LinkBuilder {
        LinkBuilder::over(From::Caller(sockets.into_iter().collect()))
    }
}

impl LinkBuilder {
    fn over(from: From) -> Self {
        Self::new(Source::Udp(Sockets { from, options: UdpOptions::default() }))
    }

    /// Sets how UDP sockets send: the largest packet, whether the kernel segments packets, and
    /// whether packets carry transmit times. A link over other devices ignores these options.
    /// Default: [`UdpOptions::default`].
    ///
    /// Change these options if the kernel or network card handles segmentation badly, or if a qdisc
    /// of the kernel is to send packets at their transmit times.
    #[must_use]
    pub fn udp_options(mut self, options: UdpOptions) -> Self {
        if let Source::Udp(sockets) = &mut self.source {
            sockets.options = options;
        }
        self
    }
}

impl Sockets {
    /// Returns how many sockets the caller has made; `None` if the link makes its own.
    pub(super) fn given(&self) -> Option<usize> {
        match &self.from {
            From::Bind(_) => None,
            From::Caller(sockets) => Some(sockets.len()),
        }
    }

    /// Makes a device of each socket that the caller has made. If the caller has made none, binds
    /// `count` sockets and makes a device of each.
    pub(super) fn open(self, count: usize) -> Result<(Vec<BoxDevice>, UdpSockets), BuildError> {
        let options = self.options;
        let sockets: Vec<Udp> = match self.from {
            From::Bind(local) => {
                let local = local.map_err(BuildError::Resolve)?;
                (0..count).map(|_| Udp::bind_with(local, options)).collect::<Result<_, _>>()
            }
            From::Caller(sockets) => {
                sockets.into_iter().map(|socket| Udp::new(socket, options)).collect()
            }
        }
        .map_err(BuildError::Device)?;
        let udp = UdpSockets {
            stats: sockets.iter().map(Udp::stats).collect(),
            sockets: sockets.iter().map(|udp| Arc::clone(udp.socket())).collect(),
        };
        Ok((sockets.into_iter().map(|udp| Box::new(udp) as BoxDevice).collect(), udp))
    }
}
