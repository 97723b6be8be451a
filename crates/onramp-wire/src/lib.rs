//! A wire: two private network namespaces, joined by a link that delays, shapes, drops and reorders
//! packets as its qdiscs say. Real programs run at both ends, and nobody needs to be root.
//!
//! ```no_run
//! use std::process::Command;
//!
//! use onramp_wire::{Options, Wire, enter, series};
//!
//! // Before the program has other threads: become root in a namespace of its own.
//! enter()?;
//! let link = series(&["netem delay 20ms rate 10mbit"])?;
//! let options = Options { up: link.clone(), down: link, ..Options::default() };
//! let wire = Wire::lay(options)?;
//! let mut ping = Command::new("ping");
//! ping.args(["-c1", "192.0.2.2"]);
//! let status = wire.client().spawn(ping)?.wait()?;
//! println!("{status}, {} frames came back", wire.cut().down.carried());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each end of the wire is a TAP in a namespace of its own, or one side of a veth pair where
//! `/dev/net/tun` is missing or closed ([`Ends`]). One thread carries frames from each end through
//! a [`Tree`] to the other. The client's end is called `wire0` and has the addresses [`CLIENT`] and
//! [`CLIENT6`]; the server's end is called `wire0`, too, in its namespace, and has [`SERVER`] and
//! [`SERVER6`]. Nothing has to be cleaned up: the kernel removes a namespace with its last thread
//! and process, and kills the programs that [`Space::spawn`] has started when this program ends,
//! also after `kill -9`.
#![forbid(unsafe_code)]

mod alone;
mod bridge;
mod change;
mod edit;
mod ends;
mod gate;
mod lane;
mod line;
mod profile;
mod relay;
mod schedule;
mod space;
mod steps;
mod trace_error;
mod veth;
mod way;

use std::net::{Ipv4Addr, Ipv6Addr};

use onramp_core::{Setup, Tree};

pub use self::alone::alone;
pub use self::bridge::Bridge;
pub use self::change::Change;
pub use self::edit::{Edit, EditError, PLAIN};
pub use self::ends::Ends;
use self::ends::{How, Place};
pub use self::profile::{PROFILES, Profile, StageError, series};
pub use self::relay::{Counts, Entry, Relay, RelayError};
pub use self::schedule::Schedule;
pub use self::space::{Space, SpaceError, enter};
pub use self::steps::{Steps, Trace, Which};
pub use self::trace_error::TraceError;
pub use self::way::{Direction, Watch, Way};

/// Address of the client's end, of the block for documentation (RFC 5737).
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address of the server's end.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// IPv6 address of the client's end, of the block for documentation (RFC 3849).
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// IPv6 address of the server's end.
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// Length of an Ethernet header, bytes.
const ETHERNET: u32 = 14;

/// How a wire behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The qdiscs for frames from the client to the server.
    pub up: Setup,
    /// The qdiscs for frames from the server to the client.
    pub down: Setup,
    /// What changes over time for frames from the client: see [`Wire::begin`].
    pub up_trace: Option<Trace>,
    /// What changes over time for frames to the client.
    pub down_trace: Option<Trace>,
    /// Largest packet in bytes, Ethernet header not included.
    pub mtu: u32,
    /// Whether the two ends leave segmentation and checksums to the wire, as with a network card:
    /// faster, and the qdiscs see super-frames, which they cut where they have to.
    pub offload: bool,
    /// What the two ends are.
    pub ends: Ends,
    /// Seed of everything random in the qdiscs: equal seeds give equal losses for equal packets.
    pub seed: u64,
}

impl Default for Options {
    /// A first-in, first-out queue of 1,000 packets in each direction, no traces, an MTU of 1,500
    /// bytes, offload, TAPs where possible, and a random seed.
    fn default() -> Self {
        let fifo = series(&[PLAIN]).expect("a qdisc");
        Self {
            up: fifo.clone(),
            down: fifo,
            up_trace: None,
            down_trace: None,
            mtu: 1_500,
            offload: true,
            ends: Ends::Any,
            seed: fastrand::u64(..),
        }
    }
}

/// A wire with its two ends, which exists until it is [cut](Self::cut) or dropped.
#[derive(Debug)]
pub struct Wire {
    client: Space,
    server: Space,
    bridge: Bridge,
    fallback: Option<String>,
}

/// What a wire has carried and dropped, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// From the client to the server.
    pub up: Direction,
    /// From the server to the client.
    pub down: Direction,
}

impl Wire {
    /// Makes two network namespaces and the wire between them. The calling thread stays where it
    /// is.
    ///
    /// # Errors
    ///
    /// [`SpaceError`] if a namespace, its interface or an address cannot be made (see [`enter`]),
    /// if the tree of a direction has no root, or if it cannot follow its trace.
    pub fn lay(options: Options) -> Result<Self, SpaceError> {
        let Options { up, down, up_trace, down_trace, mtu, offload, ends, seed } = options;
        let seeds = [seed, seed.wrapping_add(1)];
        let tree = |setup: &Setup, trace: Option<&Trace>, seed: u64| {
            let mtu = mtu.saturating_add(ETHERNET);
            trace.map_or(Ok(()), |trace| trace.check(setup, mtu)).map_err(SpaceError::tree)?;
            Tree::of(setup, mtu, seed).ok_or_else(SpaceError::no_root)
        };
        let trees =
            [tree(&up, up_trace.as_ref(), seeds[0])?, tree(&down, down_trace.as_ref(), seeds[1])?];
        let (client, server) = (Space::new()?, Space::new()?);
        let places = [
            Place { space: &client, v4: CLIENT, v6: CLIENT6 },
            Place { space: &server, v4: SERVER, v6: SERVER6 },
        ];
        let ([near, far], fallback) = ends::make(places, How { mtu, offload, seed }, ends)?;
        let way = |from, tree: Tree, trace: Option<Trace>, seed: u64, to| {
            let way = Way::new(from, tree, to);
            match trace {
                Some(trace) => way.follow(trace, seed).map_err(SpaceError::tree),
                None => Ok(way),
            }
        };
        let [up, down] = trees;
        let ways = [
            way(near.from, up, up_trace, seeds[0], far.to)?,
            way(far.from, down, down_trace, seeds[1], near.to)?,
        ];
        let bridge = Bridge::start(ways).map_err(SpaceError::thread)?;
        Ok(Self { client, server, bridge, fallback })
    }

    /// Returns the client's end.
    #[must_use]
    pub const fn client(&self) -> &Space {
        &self.client
    }

    /// Returns the server's end.
    #[must_use]
    pub const fn server(&self) -> &Space {
        &self.server
    }

    /// Returns why the ends are veth pairs although TAPs were to be preferred ([`Ends::Any`]), such
    /// as `cannot open /dev/net/tun: ...`; `None` if the ends are what the options name first.
    #[must_use]
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Begins the clocks of the traces, or begins them anew. Before, steps are not made, and
    /// nothing passes a schedule. Call it when the first program starts.
    pub fn begin(&self) {
        self.bridge.begin();
    }

    /// Changes the wire while frames pass: first what goes to the server, then what comes from it.
    /// The changes of one direction are made at the same instant, between two frames; [`Change`]
    /// says what becomes of the frames that wait. Returns when all are made.
    ///
    /// ```no_run
    /// use onramp_wire::{Change, Options, Wire};
    ///
    /// let wire = Wire::lay(Options::default())?;
    /// let slower = Change::read(&["rate", "1mbit", "delay", "50ms"])?;
    /// wire.change(slower.clone(), slower)?;
    /// wire.change(vec![Change::Link(false)], Vec::new())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`EditError`] if a change cannot be made. Then none of its direction is made, and if it is
    /// one of `up`, none at all.
    pub fn change(&self, up: Vec<Change>, down: Vec<Change>) -> Result<(), EditError> {
        self.bridge.change_both([up, down])
    }

    /// Tells `up` of all frames from the client, from now on, and `down` of those to it. They are
    /// dropped when the wire has been [cut](Self::cut).
    pub fn watch(&self, up: Box<dyn Watch>, down: Box<dyn Watch>) {
        self.bridge.watch([up, down]);
    }

    /// Returns the lines of `tc` that describe the qdiscs at present: first those of frames from
    /// the client, then those of frames to it.
    ///
    /// # Errors
    ///
    /// [`EditError`] if the wire has [broken](Self::error).
    pub fn lines(&self) -> Result<[Vec<String>; 2], EditError> {
        self.bridge.lines().map(both)
    }

    /// Returns the error that ended the wire before it was cut, if there was one: for example
    /// because a program has deleted the interface.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        self.bridge.error()
    }

    /// Ends the wire. Frames that wait are dropped.
    #[must_use]
    pub fn cut(self) -> Carried {
        let [up, down] = both(self.bridge.stop());
        Carried { up, down }
    }
}

/// Returns what a bridge says of the two directions of a wire.
fn both<T>(of: Vec<T>) -> [T; 2] {
    of.try_into().ok().expect("a wire has two directions")
}
