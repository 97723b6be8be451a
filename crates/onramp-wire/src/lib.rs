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
//! Each end of the wire is a TAP in a namespace of its own. One thread carries frames from each TAP
//! through a [`Tree`] to the other. The client's end is called `wire0` and has
//! the addresses [`CLIENT`] and [`CLIENT6`]; the server's end is called `wire0`, too, in its
//! namespace, and has [`SERVER`] and [`SERVER6`]. Nothing has to be cleaned up: the kernel removes
//! a namespace with its last thread and process, and kills the programs that [`Space::spawn`] has
//! started when this program ends, also after `kill -9`.
#![forbid(unsafe_code)]

mod bridge;
mod change;
mod edit;
mod gate;
mod line;
mod profile;
mod schedule;
mod space;
mod steps;
mod way;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use onramp_core::{Setup, Tree};
use onramp_dev::{Tap, TapOptions, TapReceiver};

pub use self::bridge::Bridge;
pub use self::change::Change;
pub use self::edit::{Edit, EditError, PLAIN};
pub use self::profile::{PROFILES, Profile, StageError, series};
pub use self::schedule::Schedule;
pub use self::space::{Space, SpaceError, enter};
pub use self::steps::{Steps, Trace, TraceError, Which};
pub use self::way::{Direction, Way};

/// Address of the client's end, of the block for documentation (RFC 5737).
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Address of the server's end.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// IPv6 address of the client's end, of the block for documentation (RFC 3849).
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// IPv6 address of the server's end.
pub const SERVER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

/// Lengths of the networks' prefixes.
const PREFIX: u8 = 24;
const PREFIX6: u8 = 64;
/// Length of an Ethernet header, bytes.
const ETHERNET: u32 = 14;
/// Name of the interface at each end.
const NAME: &str = "wire0";

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
    /// Seed of everything random in the qdiscs: equal seeds give equal losses for equal packets.
    pub seed: u64,
}

impl Default for Options {
    /// A first-in, first-out queue of 1,000 packets in each direction, no traces, an MTU of 1,500
    /// bytes, offload, and a random seed.
    fn default() -> Self {
        let fifo = series(&[PLAIN]).expect("a qdisc");
        Self {
            up: fifo.clone(),
            down: fifo,
            up_trace: None,
            down_trace: None,
            mtu: 1_500,
            offload: true,
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
    /// [`SpaceError`] if a namespace, its TAP or an address cannot be made (see [`enter`]), if the
    /// tree of a direction has no root, or if it cannot follow its trace.
    pub fn lay(options: Options) -> Result<Self, SpaceError> {
        let Options { up, down, up_trace, down_trace, mtu, offload, seed } = options;
        let seeds = [seed, seed.wrapping_add(1)];
        let tree = |setup: &Setup, trace: Option<&Trace>, seed: u64| {
            let mtu = mtu.saturating_add(ETHERNET);
            trace.map_or(Ok(()), |trace| trace.check(setup, mtu)).map_err(SpaceError::tree)?;
            Tree::of(setup, mtu, seed).ok_or_else(SpaceError::no_root)
        };
        let trees =
            [tree(&up, up_trace.as_ref(), seeds[0])?, tree(&down, down_trace.as_ref(), seeds[1])?];
        let end = |v4: Ipv4Addr, v6: Ipv6Addr| -> Result<(Space, Tap), SpaceError> {
            let space = Space::new()?;
            let options = TapOptions { offload, seed, ..TapOptions::default() };
            let tap = space.run(move || open(options, mtu, v4, v6));
            Ok((space, tap.map_err(SpaceError::tap)?))
        };
        let (client, near) = end(CLIENT, CLIENT6)?;
        let (server, far) = end(SERVER, SERVER6)?;
        let way = |from: TapReceiver, tree: Tree, trace: Option<Trace>, seed: u64, to: Tap| {
            let way = Way::new(Box::new(from), tree, false, Box::new(to));
            match trace {
                Some(trace) => way.follow(trace, seed).map_err(SpaceError::tree),
                None => Ok(way),
            }
        };
        let (from_near, from_far) = (near.receiver(), far.receiver());
        let [up, down] = trees;
        let ways = [
            way(from_near, up, up_trace, seeds[0], far)?,
            way(from_far, down, down_trace, seeds[1], near)?,
        ];
        let bridge = Bridge::start(ways).map_err(SpaceError::thread)?;
        Ok(Self { client, server, bridge })
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

    /// Begins the clocks of the traces, or begins them anew. Before, steps are not made, and nothing
    /// passes a schedule. Call it when the first program starts.
    pub fn begin(&self) {
        self.bridge.begin();
    }

    /// Changes the wire while frames pass: first what goes to the server, then what comes from it.
    /// The changes of one direction are made at the same instant, between two frames; [`Change`]
    /// says what becomes of the frames that wait. Returns when all are made.
    ///
    /// # Errors
    ///
    /// [`EditError`] if a change cannot be made. Then none of its direction is made, and if it is
    /// one of `up`, none at all.
    pub fn change(&self, up: Vec<Change>, down: Vec<Change>) -> Result<(), EditError> {
        for (way, changes) in [up, down].into_iter().enumerate() {
            if !changes.is_empty() {
                self.bridge.change(way, changes)?;
            }
        }
        Ok(())
    }

    /// Returns the lines of `tc` that describe the qdiscs at present: first those of frames from
    /// the client, then those of frames to it.
    ///
    /// # Errors
    ///
    /// [`EditError`] if the wire has [broken](Self::error).
    pub fn lines(&self) -> Result<[Vec<String>; 2], EditError> {
        self.bridge.lines()
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
        let [up, down] = self.bridge.stop();
        Carried { up, down }
    }
}

/// Opens the TAP of one end and gives it its addresses.
fn open(options: TapOptions, mtu: u32, v4: Ipv4Addr, v6: Ipv6Addr) -> io::Result<Tap> {
    let tap = Tap::open(NAME, options)?.with_mtu(mtu)?;
    // Without this, the kernel does not use an IPv6 address before it has looked for another owner
    // for a second. In a namespace without IPv6, the file does not exist.
    drop(std::fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/accept_dad"), "0"));
    tap.add_address(v4.into(), PREFIX)?;
    tap.set_up()?;
    match tap.add_address(v6.into(), PREFIX6) {
        // A kernel without IPv6, or one that has switched it off.
        Err(error) if without_v6(&error) => {}
        other => other?,
    }
    Ok(tap)
}

fn without_v6(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let none = [Errno::EAFNOSUPPORT, Errno::EACCES, Errno::EOPNOTSUPP];
    none.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
}
