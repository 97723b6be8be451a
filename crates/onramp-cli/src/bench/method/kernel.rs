//! Methods that send without Onramp: sockets, and the kernel's own ways of batching.

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
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(any(target.is_ipv4()))?;
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

/// Returns the address of a socket that the kernel binds.
fn any(ipv4: bool) -> SocketAddr {
    if ipv4 { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() }
}

/// Opens one socket for each thread, connected to no target.
pub(super) fn open_unconnected(plan: &Plan, targets: &[SocketAddr]) -> Result<Box<dyn Session>> {
    let any = any(targets.first().is_none_or(SocketAddr::is_ipv4));
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(any)?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(socket)
    };
    let sockets: io::Result<Vec<_>> = (0..plan.threads).map(|_| open()).collect();
    let sockets = sockets.context("cannot open a UDP socket")?;
    Ok(Box::new(Unconnected { sockets, targets: targets.to_vec() }))
}

/// The sockets of all threads, and the targets of all flows.
#[derive(Debug)]
struct Unconnected {
    sockets: Vec<UdpSocket>,
    targets: Vec<SocketAddr>,
}

impl Session for Unconnected {
    fn run(&self, cx: &ThreadCx<'_>) -> ThreadRecord {
        let targets = &self.targets[cx.first_flow..][..cx.submitted.len()];
        drive(&mut To { socket: &self.sockets[cx.thread], targets }, cx)
    }

    fn finish(self: Box<Self>, _patience: Duration) -> Closing {
        Closing::default()
    }
}

/// A worker that sends one datagram in each call, and names its target.
#[derive(Debug)]
struct To<'a> {
    socket: &'a UdpSocket,
    targets: &'a [SocketAddr],
}

impl Worker for To<'_> {
    fn batch(&self) -> usize {
        1
    }

    fn send(&mut self, flow: usize, payload: &[u8], _size: usize) -> Taken {
        match self.socket.send_to(payload, self.targets[flow]) {
            Ok(_) => Taken::Datagrams(1),
            Err(error) => failed(error, 1),
        }
    }

    /// Returns at once, because the call of `sendto` has already waited for room.
    fn wait(&mut self, _flow: usize, _size: usize) {}
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
