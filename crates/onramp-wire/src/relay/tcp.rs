//! A TCP connection of a relay: a stream and its two sockets.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use onramp_core::Instant;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::stream::{End, Stream};

/// Room of a socket for bytes that the relay has not read, bytes. The kernel would let it grow to
/// several megabytes, and a sender would notice late that the line is full.
pub(crate) const UNREAD: usize = 128 << 10;

/// A socket, and whether a call may be worth trying.
#[derive(Debug)]
struct Side {
    socket: TcpStream,
    is_readable: bool,
    is_writable: bool,
    /// Whether the kernel was told that nothing more is written.
    is_shut: bool,
    /// Whether a write has failed. What the other side sent before may not have been read yet.
    is_failed: bool,
    /// Whether the socket has an error, which counts when what was read before has left.
    is_broken: bool,
}

impl Side {
    fn new(socket: TcpStream) -> Self {
        let (is_shut, is_failed, is_broken) = (false, false, false);
        Self { socket, is_readable: true, is_writable: true, is_shut, is_failed, is_broken }
    }

    /// Notes the socket's error, if there is one. Returns whether there is.
    fn breaks(&mut self) -> bool {
        let has_error = self.socket.take_error().is_ok_and(|error| error.is_some());
        self.is_broken |= self.is_failed || has_error;
        self.is_broken
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: Stream,
    /// Number of the door at which the client arrived.
    pub(crate) door: usize,
    sides: [Option<Side>; 2],
    /// A socket for the first address of the target, until it is used.
    spare: Option<Socket>,
    /// The socket that is being connected to the target, and the number of its address.
    connecting: Option<Socket>,
    attempt: usize,
    /// Whether the target has refused.
    pub(crate) is_refused: bool,
    /// When the connection has to be looked at, as was noted last.
    pub(crate) noted: Option<Instant>,
}

/// What became of the target.
#[derive(Debug)]
pub(crate) enum Reached {
    Waits,
    /// The program has no descriptors, or the system no memory, for a further socket.
    Lacks(io::Error),
    /// No address of the target took the connection; the last one, and its error.
    Refused(SocketAddr, io::Error),
}

/// Makes a socket for a connection to a target.
pub(crate) fn socket(target: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(target), Type::STREAM, Some(Protocol::TCP))
}

/// Whether an error says that something is lacking that may come back.
fn is_lack(error: &io::Error) -> bool {
    use nix::libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM};
    error.raw_os_error().is_some_and(|errno| [EMFILE, ENFILE, ENOBUFS, ENOMEM].contains(&errno))
}

/// Lets `epoll` tell of what happens at the socket of an end of the connection `id`.
fn register(epoll: &Epoll, id: u64, end: End, socket: impl std::os::fd::AsFd) -> io::Result<()> {
    let flags =
        EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
    Ok(epoll.add(socket, EpollEvent::new(flags, token(id, end)))?)
}

/// The number by which `epoll` names the socket of an end of the connection or client `id`.
pub(crate) const fn token(id: u64, end: End) -> u64 {
    2 * id + end as u64
}

impl Conn {
    /// Makes the connection of a client. `far` is a socket for the first address of the target.
    pub(crate) fn new(
        epoll: &Epoll,
        id: u64,
        door: usize,
        (client, far): (TcpStream, Socket),
        mss: u32,
        now: Instant,
    ) -> io::Result<Self> {
        let ready = || {
            client.set_nonblocking(true)?;
            client.set_nodelay(true)?;
            register(epoll, id, End::Near, &client)
        };
        ready().inspect_err(|_| reset(&client))?;
        let (sides, connecting) = ([Some(Side::new(client)), None], None);
        let stream = Stream::new(mss, now);
        let (spare, attempt, is_refused, noted) = (Some(far), 0, false, None);
        Ok(Self { stream, door, sides, spare, connecting, attempt, is_refused, noted })
    }

    /// Notes that something has happened at the socket of `end`.
    pub(crate) fn happened(&mut self, end: End) {
        if let Some(side) = &mut self.sides[end as usize] {
            (side.is_readable, side.is_writable) = (true, true);
        }
    }

    /// Connects the target if the client's first segment has come, and looks how far that is.
    pub(crate) fn reach(
        &mut self,
        epoll: &Epoll,
        id: u64,
        targets: &[SocketAddr],
        now: Instant,
    ) -> Reached {
        while self.stream.wants_target() {
            let tried = match self.connecting.take() {
                Some(socket) => self.look(socket),
                None => match self.spare.take().map_or_else(|| socket(targets[self.attempt]), Ok) {
                    Ok(socket) => self.connect(epoll, id, socket, targets[self.attempt]),
                    Err(error) if is_lack(&error) => return Reached::Lacks(error),
                    Err(error) => Err(error),
                },
            };
            match tried {
                Ok(true) => self.stream.connected(now),
                Ok(false) => return Reached::Waits,
                Err(error) => {
                    let target = targets[self.attempt];
                    self.attempt += 1;
                    if self.attempt == targets.len() {
                        self.is_refused = true;
                        self.stream.fail(End::Far, now);
                        return Reached::Refused(target, error);
                    }
                }
            }
        }
        Reached::Waits
    }

    /// Begins to connect the target. Returns whether it is connected.
    fn connect(
        &mut self,
        epoll: &Epoll,
        id: u64,
        socket: Socket,
        target: SocketAddr,
    ) -> io::Result<bool> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if target.ip().is_loopback() {
            socket.set_recv_buffer_size(UNREAD)?;
        } // The path to a target elsewhere needs a window of its own, which the kernel finds.
        register(epoll, id, End::Far, &socket)?;
        match socket.connect(&target.into()) {
            Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => Err(error),
            _ => self.look(socket),
        }
    }

    /// Looks whether the socket is connected.
    fn look(&mut self, socket: Socket) -> io::Result<bool> {
        let error = socket.take_error()?;
        // The target has taken the connection and reset it at once: it has not refused it.
        let is_broken = error.as_ref().is_some_and(|it| it.kind() == ErrorKind::ConnectionReset);
        if let Some(error) = error.filter(|_| !is_broken) {
            return Err(error);
        }
        if !is_broken && socket.peer_addr().is_err() {
            self.connecting = Some(socket);
            return Ok(false);
        }
        let far = Side { is_broken, ..Side::new(socket.into()) };
        self.sides[End::Far as usize] = Some(far);
        Ok(true)
    }

    /// Reads what the streams have room for.
    pub(crate) fn read(&mut self, buffer: &mut [u8], now: Instant) {
        for end in End::BOTH {
            let Some(side) = &mut self.sides[end as usize] else { continue };
            let mut has_read = false;
            while side.is_readable && !side.is_broken {
                let room = self.stream.room(end).min(buffer.len());
                if room == 0 {
                    // What a broken connection still holds finds no room any more.
                    side.breaks();
                    break;
                }
                match side.socket.read(&mut buffer[..room]) {
                    Ok(0) => {
                        side.is_readable = false;
                        if !side.breaks() {
                            self.stream.half_mut(end).finish();
                        }
                    }
                    Ok(count) => {
                        self.stream.half_mut(end).push(&buffer[..count]);
                        has_read = true;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        side.is_readable = false;
                        side.is_broken |= side.is_failed;
                    }
                    Err(_) => side.is_broken = true,
                }
            }
            // What was read just now leaves first, and the end fails in the next turn.
            if side.is_broken && !has_read {
                (side.is_readable, side.is_failed, side.is_broken) = (false, false, false);
                self.stream.fail(end, now);
            }
        }
    }

    /// Writes what has arrived. Closes the socket of an end that is broken.
    pub(crate) fn write(&mut self) {
        for end in End::BOTH {
            let Some(side) = &mut self.sides[end as usize] else { continue };
            if self.stream.broken() == Some(end) {
                reset(&side.socket);
                self.sides[end as usize] = None;
                continue;
            }
            while side.is_writable {
                let half = self.stream.half_mut(end.other());
                let bytes = half.readable();
                if bytes.is_empty() {
                    if half.has_ended() && !side.is_shut {
                        side.is_shut = true;
                        // An error would mean that the connection is broken, which a read will say.
                        drop(side.socket.shutdown(Shutdown::Write));
                    }
                    break;
                }
                match side.socket.write(bytes) {
                    Ok(count) => half.consume(count),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => side.is_writable = false,
                    // The end fails when what it sent before was read.
                    Err(_) => {
                        side.is_writable = false;
                        (side.is_failed, side.is_readable) = (true, true);
                    }
                }
            }
        }
    }

    /// Whether there is something to read and room for it.
    pub(crate) fn may_read(&self) -> bool {
        let mut sides = End::BOTH.into_iter().zip(&self.sides);
        sides.any(|(end, side)| {
            side.as_ref().is_some_and(|side| {
                let is_at_end = side.is_broken || side.is_failed;
                is_at_end || side.is_readable && self.stream.room(end) > 0
            })
        })
    }

    /// Closes the sockets that are left of a connection that is over: by a reset if it was broken.
    pub(crate) fn close(self) {
        if self.stream.broken().is_some() {
            self.cut();
        }
    }

    /// Closes the sockets by a reset.
    pub(crate) fn cut(self) {
        self.sides.iter().flatten().for_each(|side| reset(&side.socket));
    }
}

/// Lets the kernel send a reset when the socket is closed.
fn reset(socket: &TcpStream) {
    // An error would mean that the connection is gone, and then its peer knows.
    drop(SockRef::from(socket).set_linger(Some(Duration::ZERO)));
}
