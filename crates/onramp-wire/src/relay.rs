//! A wire without any namespace: a relay in front of a target.

mod counts;
mod engine;
mod entry;
mod half;
mod message;
mod stream;
mod tcp;
mod window;

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use onramp_core::{Setup, Tree};

pub use self::counts::Counts;
use self::engine::Engine;
use self::entry::Door;
pub use self::entry::{Entry, RelayError};
use crate::bridge::Bridge;
use crate::change::Change;
use crate::edit::EditError;
use crate::lane::Lane;
use crate::steps::Trace;
use crate::{Carried, ETHERNET, Options, both};

/// The sizes of packets that a relay may have, without the Ethernet header, in bytes: the smallest
/// is that of IPv6.
const MTUS: RangeInclusive<u32> = 1_280..=65_521;

/// A relay in front of one or more targets. What passes it has the delay, rate and loss of its
/// qdiscs, without a namespace and without root. Use it where the system makes no namespaces.
///
/// All connections and datagrams of all entries share one line in each direction, as one
/// bottleneck. UDP datagrams pass the line as they are. TCP connections end at the relay, which
/// carries their bytes through the line with a congestion control of its own (RFC 5681), and holds
/// at most 4 MiB of each direction of a connection.
///
/// A relay takes two file descriptors for each TCP connection and one for each UDP client. If there
/// are none left, connections wait, and datagrams of new clients are dropped and counted.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// use onramp_wire::{Options, Relay, series};
///
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let entry = format!("tcp:127.0.0.1:0={}", server.local_addr()?).parse()?;
/// let link = series(&["netem delay 5ms"])?;
/// let relay =
///     Relay::start(&[entry], Options { up: link.clone(), down: link, ..Options::default() })?;
/// let mut client = TcpStream::connect(relay.addresses()[0])?;
/// client.write_all(b"x")?;
/// let mut byte = [0];
/// server.accept()?.0.read_exact(&mut byte)?;
/// assert_eq!(byte, *b"x");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Relay {
    bridge: Bridge,
    addresses: Vec<SocketAddr>,
    counts: Arc<Mutex<Counts>>,
}

impl Relay {
    /// Looks the targets up, listens, and starts the thread that carries. Of the options, `offload`
    /// and `ends` do not matter. The clocks of the traces begin with [`begin`](Self::begin).
    ///
    /// # Errors
    ///
    /// [`RelayError`] if a target has no address or is the relay's own, if an address is taken, if
    /// the tree of a direction has no root or cannot follow its trace, or if the kernel has no
    /// descriptors or threads left.
    pub fn start(entries: &[Entry], options: Options) -> Result<Self, RelayError> {
        let Options { up, down, up_trace, down_trace, mtu, seed, .. } = options;
        if !MTUS.contains(&mtu) {
            let why = format!("an mtu of {mtu}: give {} to {}", MTUS.start(), MTUS.end());
            return Err(RelayError::start(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let lanes =
            [lane(&up, up_trace, mtu, seed)?, lane(&down, down_trace, mtu, seed.wrapping_add(1))?];
        let doors = entries.iter().map(Door::open).collect::<Result<Vec<_>, _>>()?;
        entry::refuse_loops(&doors, entries)?;
        let addresses = doors.iter().map(|door| door.address).collect();
        let counts = Arc::<Mutex<Counts>>::default();
        let engine = Engine::new(doors, lanes, mtu, counts.clone()).map_err(RelayError::start)?;
        let bridge = Bridge::of(engine, 2).map_err(RelayError::start)?;
        Ok(Self { bridge, addresses, counts })
    }

    /// Returns the addresses at which the relay listens, in the order of the entries.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Does what [`Wire::begin`](crate::Wire::begin) does.
    pub fn begin(&self) {
        self.bridge.begin();
    }

    /// Does what [`Wire::change`](crate::Wire::change) does.
    ///
    /// # Errors
    ///
    /// [`EditError`] if a change cannot be made. Then none of its direction is made, and if it is
    /// one of `up`, none at all.
    pub fn change(&self, up: Vec<Change>, down: Vec<Change>) -> Result<(), EditError> {
        self.bridge.change_both([up, down])
    }

    /// Returns the lines of `tc` that describe the qdiscs at present: first those to the targets,
    /// then those to the clients.
    ///
    /// # Errors
    ///
    /// [`EditError`] if the relay has [broken](Self::error).
    pub fn lines(&self) -> Result<[Vec<String>; 2], EditError> {
        self.bridge.lines().map(both)
    }

    /// Returns the error that ended the relay, if there was one.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.bridge.error()
    }

    /// Returns what has become of connections and clients up to now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the relay: its connections are closed, and packets that wait are dropped.
    #[must_use]
    pub fn stop(self) -> (Carried, Counts) {
        let [up, down] = both(self.bridge.stop());
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (Carried { up, down }, counts)
    }
}

/// Makes the line of a direction.
fn lane(setup: &Setup, trace: Option<Trace>, mtu: u32, seed: u64) -> Result<Lane, RelayError> {
    let mtu = mtu.saturating_add(ETHERNET);
    let tree = Tree::of(setup, mtu, seed).ok_or_else(|| RelayError::tree("it has no root"))?;
    let mut lane = Lane::new(tree);
    if let Some(trace) = trace {
        trace.check(setup, mtu).map_err(RelayError::tree)?;
        lane.line.follow(trace, seed).map_err(RelayError::tree)?;
    }
    Ok(lane)
}

#[cfg(test)]
mod tests;
