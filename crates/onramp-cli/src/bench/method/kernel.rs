//! Methods that send without Onramp: connected sockets, and the kernel's own ways of batching.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{MsgFlags, MultiHeaders, sendmmsg, setsockopt, sockopt};

use super::{BATCH, Closing, Kind, Session, Taken, ThreadCx, ThreadRecord, Worker, drive};
use crate::bench::plan::{Plan, payload_max};

/// How long a call may wait for room in the socket's buffer. This time is limited so that a round
/// can end.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Opens one connected socket for each target.
pub(super) fn open(kind: Kind, plan: &Plan, targets: &[SocketAddr]) -> Result<Box<dyn Session>> {
    let sockets: Result<Vec<_>> =
        targets.iter().map(|target| connected(kind, plan.size, *target)).collect();
    Ok(Box::new(Sockets { kind, sockets: sockets? }))
}

fn connected(kind: Kind, size: usize, target: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = if target.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        if kind == Kind::Gso {
            let segment = i32::try_from(size).unwrap_or(i32::MAX);
            setsockopt(&socket, sockopt::UdpGsoSegment, &segment)?;
        }
        Ok(socket)
    };
    open().with_context(|| format!("cannot open a UDP socket to {target}"))
}

/// The sockets of all flows.
#[derive(Debug)]
struct Sockets {
    kind: Kind,
    sockets: Vec<UdpSocket>,
}

impl Session for Sockets {
    fn run(&self, cx: &ThreadCx<'_>) -> ThreadRecord {
        let sockets = &self.sockets[cx.first_flow..cx.first_flow + cx.submitted.len()];
        match self.kind {
            Kind::Sendmmsg => {
                drive(&mut Many { sockets, headers: MultiHeaders::preallocate(BATCH, None) }, cx)
            }
            Kind::Gso => drive(&mut One { sockets, batch: segments(cx.plan.size) }, cx),
            _ => drive(&mut One { sockets, batch: 1 }, cx),
        }
    }

    fn segmented(&self) -> bool {
        self.kind == Kind::Gso
    }

    fn finish(self: Box<Self>, _patience: Duration) -> Closing {
        Closing::default()
    }
}

/// Returns the number of datagrams of this size that fit into one message as segments, at most
/// [`BATCH`].
fn segments(size: usize) -> usize {
    (payload_max(SocketAddr::from(([0; 4], 0)).ip()) / size).clamp(1, BATCH)
}

/// A worker that sends one message in each call.
#[derive(Debug)]
struct One<'a> {
    sockets: &'a [UdpSocket],
    batch: usize,
}

impl Worker for One<'_> {
    fn batch(&self) -> usize {
        self.batch
    }

    fn send(&mut self, flow: usize, payload: &[u8], _size: usize) -> Taken {
        match self.sockets[flow].send(payload) {
            Ok(_) => Taken::Datagrams(self.batch),
            Err(error) => failed(error, self.batch),
        }
    }

    /// Returns at once, because the call of `send` has already waited for room.
    fn wait(&mut self, _flow: usize, _size: usize) {}
}

/// A worker that sends many messages in each call.
#[derive(Debug)]
struct Many<'a> {
    sockets: &'a [UdpSocket],
    headers: MultiHeaders<()>,
}

impl Worker for Many<'_> {
    fn batch(&self) -> usize {
        BATCH
    }

    fn send(&mut self, flow: usize, payload: &[u8], size: usize) -> Taken {
        let mut slices = [[IoSlice::new(&[])]; BATCH];
        for (slice, datagram) in slices.iter_mut().zip(payload.chunks_exact(size)) {
            *slice = [IoSlice::new(datagram)];
        }
        let fd = self.sockets[flow].as_raw_fd();
        // The sockets are connected, so the messages need no address.
        let to = [None::<()>; BATCH];
        match sendmmsg(fd, &mut self.headers, &slices, to, [], MsgFlags::empty()) {
            Ok(sent) => Taken::Datagrams(sent.count()),
            Err(errno) => failed(errno.into(), 1),
        }
    }

    /// Returns at once, because the call of `sendmmsg` has already waited for room.
    fn wait(&mut self, _flow: usize, _size: usize) {}
}

fn failed(error: io::Error, lost: usize) -> Taken {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Taken::Full,
        _ => Taken::Lost(lost, error),
    }
}
