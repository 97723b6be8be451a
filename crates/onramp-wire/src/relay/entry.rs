//! Where a relay listens, and where it leads.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs as _, UdpSocket};
use std::str::FromStr;

use socket2::{SockRef, Socket};

use super::tcp::UNREAD;

/// How often a free port is looked for that both TCP and UDP may have.
const TRIES: u32 = 32;
/// Bytes of kernel memory for datagrams that wait at a socket.
const ROOM: usize = 4 << 20;

/// An address of this machine that leads through a relay to a target:
/// `[udp:|tcp:]ADDRESS:PORT=HOST:PORT`.
///
/// ```
/// let entry: onramp_wire::Entry = "udp:127.0.0.1:0=localhost:53".parse()?;
/// assert_eq!(entry.to_string(), "udp:127.0.0.1:0=localhost:53");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the relay listens. With port 0, the kernel chooses one.
    pub listen: SocketAddr,
    /// The host and port to which the relay connects.
    pub target: String,
    /// Whether it takes TCP connections.
    pub tcp: bool,
    /// Whether it takes UDP datagrams.
    pub udp: bool,
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, tcp, udp) = match text.split_once(':') {
            Some(("tcp", rest)) => (rest, true, false),
            Some(("udp", rest)) => (rest, false, true),
            _ => (text, true, true),
        };
        let Some((listen, target)) = rest.split_once('=') else {
            return Err("expected [udp:|tcp:]ADDRESS:PORT=HOST:PORT".to_owned());
        };
        let listen = listen.parse().map_err(|_| {
            format!("`{listen}`: expected an address and a port, such as 127.0.0.1:8080 or [::1]:0")
        })?;
        let both = target.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let port = both.and_then(|(_, port)| port.parse::<u16>().ok());
        // The address of IPv6 without brackets might end before any of its colons.
        let is_host = |(host, _): (&str, &str)| {
            !host.contains('/') && (!host.contains(':') || host.starts_with('['))
        };
        if port.is_none_or(|port| port == 0) || !both.is_some_and(is_host) {
            return Err(format!(
                "`{target}`: expected a host and a port, such as 127.0.0.1:80 or [::1]:80"
            ));
        }
        Ok(Self { listen, target: target.to_owned(), tcp, udp })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = match (self.tcp, self.udp) {
            (true, false) => "tcp:",
            (false, true) => "udp:",
            _ => "",
        };
        write!(f, "{only}{}={}", self.listen, self.target)
    }
}

/// The sockets of an entry.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    /// The addresses of the target: first those of the family of `address`.
    pub(crate) targets: Vec<SocketAddr>,
    pub(crate) tcp: Option<TcpListener>,
    pub(crate) udp: Option<UdpSocket>,
    /// A socket for the next connection to the target, if there is one already.
    pub(crate) spare: Option<Socket>,
}

impl Door {
    /// Looks the target up and begins to listen.
    pub(crate) fn open(entry: &Entry) -> Result<Self, RelayError> {
        let failed = |what, source| RelayError { entry: entry.to_string(), what, source };
        let targets = entry.target.to_socket_addrs();
        let mut targets: Vec<_> = targets.map_err(|error| failed(What::Resolve, error))?.collect();
        targets.sort_by_key(|target| target.is_ipv4() != entry.listen.is_ipv4());
        if targets.is_empty() {
            return Err(failed(What::Resolve, io::Error::other("the name has no address")));
        }
        let own = || failed(What::Listen, io::Error::other("the target is the address itself"));
        if targets.iter().any(|target| is_same(entry.listen, *target)) {
            return Err(own());
        }
        let (tcp, udp) = sockets(entry).map_err(|error| failed(What::Listen, error))?;
        let address = match (&tcp, &udp) {
            (Some(tcp), _) => tcp.local_addr(),
            (None, Some(udp)) => udp.local_addr(),
            (None, None) => Err(io::Error::other("it is for neither TCP nor UDP")),
        };
        let address = address.map_err(|error| failed(What::Listen, error))?;
        // The kernel may have chosen the port of the target, at which nobody listens.
        if targets.iter().any(|target| is_same(address, *target)) {
            return Err(own());
        }
        Ok(Self { address, targets, tcp, udp, spare: None })
    }
}

/// Refuses doors that lead to each other: one packet would go round without end.
pub(crate) fn refuse_loops(doors: &[Door], entries: &[Entry]) -> Result<(), RelayError> {
    for (door, entry) in doors.iter().zip(entries) {
        let meets = |other: &Door| {
            door.tcp.is_some() && other.tcp.is_some() || door.udp.is_some() && other.udp.is_some()
        };
        let leads = |other: &&Door| {
            meets(other) && door.targets.iter().any(|it| is_same(other.address, *it))
        };
        if let Some(other) = doors.iter().find(leads) {
            let why = format!("the relay listens at its target {}", other.address);
            let (what, source) = (What::Listen, io::Error::other(why));
            return Err(RelayError { entry: entry.to_string(), what, source });
        }
    }
    Ok(())
}

/// Whether what is sent to `target` comes to a socket that is bound to `address`.
fn is_same(address: SocketAddr, target: SocketAddr) -> bool {
    // A connection to "any address" goes to this machine.
    let is_here = target.ip().is_loopback() || target.ip().is_unspecified();
    let is_any = address.ip().is_unspecified() && is_here;
    let is_own = target.ip().is_unspecified() && address.ip().is_loopback();
    address.port() == target.port() && (address.ip() == target.ip() || is_any || is_own)
}

/// Binds the sockets of an entry, to the same port.
fn sockets(entry: &Entry) -> io::Result<(Option<TcpListener>, Option<UdpSocket>)> {
    let mut tries = 0;
    loop {
        tries += 1;
        let tcp = entry.tcp.then(|| TcpListener::bind(entry.listen)).transpose()?;
        let mut address = entry.listen;
        if let Some(tcp) = &tcp {
            tcp.set_nonblocking(true)?;
            // Accepted sockets inherit it.
            SockRef::from(tcp).set_recv_buffer_size(UNREAD)?;
            address.set_port(tcp.local_addr()?.port());
        }
        let udp = match entry.udp.then(|| UdpSocket::bind(address)).transpose() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if tcp.is_some() && entry.listen.port() == 0 && tries < TRIES {
                    continue;
                }
                return Err(error);
            }
            other => other?,
        };
        if let Some(udp) = &udp {
            udp.set_nonblocking(true)?;
            enlarge(udp)?;
        }
        return Ok((tcp, udp));
    }
}

/// Asks for room for the datagrams that come while the relay does something else. A program without
/// `CAP_NET_ADMIN` gets less if the kernel has a lower limit (`net.core.rmem_max`).
pub(crate) fn enlarge(socket: &UdpSocket) -> io::Result<()> {
    onramp_dev::set_receive_buffer(socket, ROOM)
}

/// Returns the length of the IP header of packets to this address, bytes.
pub(crate) const fn ip_len(address: SocketAddr) -> u32 {
    match address.ip() {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    }
}

/// Error: a relay could not be made.
#[derive(Debug)]
pub struct RelayError {
    entry: String,
    what: What,
    source: io::Error,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Resolve,
    Listen,
    Start,
}

impl RelayError {
    pub(crate) fn tree(why: impl fmt::Display) -> Self {
        Self::start(io::Error::other(format!("the qdiscs: {why}")))
    }

    pub(crate) const fn start(source: io::Error) -> Self {
        Self { entry: String::new(), what: What::Start, source }
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, what, source } = self;
        match (what, source.kind()) {
            (What::Resolve, _) => {
                write!(f, "{entry}: cannot look the target up: {source}; name a host that exists")
            }
            (What::Listen, io::ErrorKind::AddrInUse) => {
                write!(f, "{entry}: cannot listen: {source}; name another port, or 0 for any")
            }
            (What::Listen, io::ErrorKind::PermissionDenied) => {
                write!(f, "{entry}: cannot listen: {source}; ports below 1024 need root")
            }
            (What::Listen, io::ErrorKind::AddrNotAvailable) => {
                write!(f, "{entry}: cannot listen: {source}; `ip addr` lists this machine's")
            }
            (What::Listen, _) => write!(f, "{entry}: cannot listen: {source}"),
            (What::Start, _) => write!(f, "cannot start the relay: {source}"),
        }
    }
}

// `Error::source` is not overridden, because the text of `Display` already includes it.
impl std::error::Error for RelayError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read() {
        let entry: Entry = "127.0.0.1:8080=localhost:80".parse().expect("an entry");
        assert!(entry.tcp && entry.udp && entry.target == "localhost:80");
        let entry: Entry = "udp:[::1]:0=[::1]:53".parse().expect("an entry");
        assert!(!entry.tcp && entry.udp && entry.target == "[::1]:53");
        let entry: Entry = "tcp:0.0.0.0:1=h:2".parse().expect("an entry");
        assert!(entry.tcp && !entry.udp && entry.to_string() == "tcp:0.0.0.0:1=h:2");
        for wrong in [
            "",
            "8080=80",
            "127.0.0.1:1",
            "localhost:1=h:2",
            "127.0.0.1:1=h",
            "127.0.0.1:1=h:0",
            "127.0.0.1:1=:80",
            "127.0.0.1:1=h:x",
            "127.0.0.1:1=::1",
            "127.0.0.1:1=2001:db8::7:53",
            "127.0.0.1:1=http://h:80",
            "sctp:127.0.0.1:1=h:1",
        ] {
            Entry::from_str(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn a_relay_to_itself_is_refused() {
        let same = |one: &str, other: &str| {
            is_same(one.parse().expect("an address"), other.parse().expect("an address"))
        };
        assert!(same("127.0.0.1:1", "127.0.0.1:1") && same("0.0.0.0:1", "127.0.0.1:1"));
        assert!(same("[::]:1", "[::1]:1") && same("127.0.0.1:1", "0.0.0.0:1"));
        assert!(!same("127.0.0.1:1", "127.0.0.1:2") && !same("0.0.0.0:1", "192.0.2.1:1"));
        let holder = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = holder.local_addr().expect("an address");
        for text in [format!("udp:{address}=127.0.0.1:9"), format!("{address}=127.0.0.1:9")] {
            let error = Door::open(&text.parse().expect("an entry")).expect_err("it is taken");
            assert!(error.to_string().contains("in use"), "{error}");
        }
        let entry: Entry = "127.0.0.1:0=no-such-name.invalid:9".parse().expect("an entry");
        let error = Door::open(&entry).expect_err("there is no such name");
        assert!(error.to_string().contains("cannot look the target up"), "{error}");
    }
}
