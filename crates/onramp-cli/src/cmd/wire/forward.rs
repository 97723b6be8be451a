//! Ports of the machine's loopback that lead to the server's end of a wire (`--forward`).
//!
//! The listening sockets are in the machine's network, and the sockets behind them in that of the
//! client's end: a socket stays in the namespace of the thread that has made it. So everything that
//! comes in passes the wire, and nothing else of the two networks is joined.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_wire::{SERVER, Space};
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::flows::{Flows, MOST};
use crate::error::tell;

/// How long a connection to the server's end may take to be made.
const PATIENCE: Duration = Duration::from_secs(30);

/// A port to forward, as the user writes it: `[HOST-PORT:]PORT[/udp]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    host: u16,
    port: u16,
    is_udp: bool,
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ports, is_udp) = match text.split_once('/') {
            None | Some((_, "tcp")) => (text.split('/').next().unwrap_or_default(), false),
            Some((ports, "udp")) => (ports, true),
            Some((_, other)) => return Err(format!("`{other}`: expected tcp or udp")),
        };
        let port = |word: &str| {
            let digits = word.bytes().all(|byte| byte.is_ascii_digit());
            let number = word.parse().ok().filter(|number| digits && *number != 0_u16);
            number.ok_or_else(|| format!("`{word}`: expected a port, 1 to 65535"))
        };
        let (host, own) = ports.split_once(':').unwrap_or((ports, ports));
        Ok(Self { host: port(host)?, port: port(own)?, is_udp })
    }
}

/// The listening socket of a forwarded port.
pub(super) struct Door {
    forward: Forward,
    socket: Opened,
}

enum Opened {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Door {
    /// Opens the port of the machine's loopback.
    pub(super) fn open(forward: Forward) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, forward.host));
        let opened = || -> io::Result<Opened> {
            if forward.is_udp {
                let socket = UdpSocket::bind(address)?;
                socket.set_nonblocking(true)?;
                return Ok(Opened::Udp(socket));
            }
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(Opened::Tcp(listener))
        };
        let failed =
            |error| anyhow!("--forward: cannot listen at {address}: {error}; name another");
        Ok(Self { forward, socket: opened().map_err(failed)? })
    }

    /// Accepts connections and datagrams, and forwards them, until the other end of `stop` is
    /// closed. Connections go on until the program ends.
    pub(super) fn serve(&self, client: &Space, stop: &UnixStream) {
        let server = SocketAddrV4::new(SERVER, self.forward.port);
        match &self.socket {
            Opened::Tcp(listener) => accept(listener, server, client, stop),
            Opened::Udp(socket) => {
                let mut flows = Flows::new(socket, server, client);
                flows.serve(stop);
                let (port, lost, replaced) = (self.forward.host, flows.lost, flows.replaced);
                if lost > 0 {
                    tell(&format!("--forward: {lost} datagrams of port {port} were dropped"));
                }
                if replaced > 0 {
                    tell(&format!(
                        "--forward: {replaced} UDP flows of port {port} ended early, because it \
                         had more than {MOST} senders at a time"
                    ));
                }
            }
        }
    }
}

/// Accepts connections until the other end of `stop` is closed.
fn accept(listener: &TcpListener, server: SocketAddrV4, client: &Space, stop: &UnixStream) {
    // Each connection has a copy, and so the number of copies is that of connections.
    let count = Arc::new(());
    let mut has_told = false;
    let mut complain = |why: String| {
        if !std::mem::replace(&mut has_told, true) {
            tell(&format!("--forward: a connection to port {} failed: {why}", server.port()));
        }
    };
    loop {
        let mut both = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        let polled = poll(&mut both, None).map_err(io::Error::from);
        if !both[1].revents().is_empty() {
            return;
        }
        let near = match polled.and_then(|_| listener.accept()) {
            Ok((near, _)) => near,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                // The program has no descriptors left; they may come back.
                complain(error.to_string());
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if Arc::strong_count(&count) > MOST {
            complain(format!("there are {MOST} already"));
            continue;
        }
        let far = client.run(|| Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)));
        let counted = Arc::clone(&count);
        let body = move |far: Socket| {
            let _counted = counted;
            let done = near.set_nonblocking(false).and_then(|()| {
                far.connect_timeout(&server.into(), PATIENCE)?;
                join(&near, &far.into())
            });
            // The program at the near end sees that the connection is closed.
            drop(done);
        };
        let started = far.and_then(|far| {
            thread::Builder::new().name("forward".to_owned()).spawn(move || body(far)).map(drop)
        });
        if let Err(error) = started {
            complain(error.to_string());
        }
    }
}

/// Copies the bytes of both directions until both have ended.
fn join(near: &TcpStream, far: &TcpStream) -> io::Result<()> {
    thread::scope(|scope| {
        let back = thread::Builder::new().spawn_scoped(scope, || copy(far, near));
        match back {
            Ok(_) => drop(copy(near, far)),
            Err(error) => return Err(error),
        }
        Ok(())
    })
}

/// Copies until `from` ends, and says so to `to`. An error ends both directions.
fn copy(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (mut reader, mut writer) = (from, to);
    let copied = io::copy(&mut reader, &mut writer);
    if copied.is_ok() {
        return to.shutdown(Shutdown::Write);
    }
    // Either may be closed already.
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
    copied.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        for (text, host, port, is_udp) in [
            ("80", 80, 80, false),
            ("8080:80", 8080, 80, false),
            ("8080:80/tcp", 8080, 80, false),
            ("53/udp", 53, 53, true),
            ("5300:53/udp", 5300, 53, true),
        ] {
            assert_eq!(text.parse(), Ok(Forward { host, port, is_udp }), "{text}");
        }
        for text in ["", "0", "65536", "x", "80:", ":80", "1:2:3", "80/sctp", "80/udp/udp", "+80"] {
            text.parse::<Forward>().expect_err(text);
        }
    }

    /// A direction that has ended leaves the other as it is.
    #[test]
    fn each_direction_ends_by_itself() {
        use std::io::{Read as _, Write as _};

        let pair = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let one = TcpStream::connect(listener.local_addr().expect("an address"));
            (one.expect("it connects"), listener.accept().expect("it came").0)
        };
        let ((mut client, near), (far, mut server)) = (pair(), pair());
        thread::scope(|scope| {
            scope.spawn(|| join(&near, &far).expect("it is copied"));
            client.write_all(b"question").expect("it is sent");
            client.shutdown(Shutdown::Write).expect("it is open");
            let mut asked = String::new();
            server.read_to_string(&mut asked).expect("the question ends");
            server.write_all(b"answer").expect("the other direction is open");
            server.shutdown(Shutdown::Write).expect("it is open");
            let mut told = String::new();
            client.read_to_string(&mut told).expect("the answer ends");
            assert_eq!((&*asked, &*told), ("question", "answer"));
        });
    }
}
