//! What `onramp exec` and the programs that it runs tell each other, in a folder: an [`Order`] says
//! which qdiscs a program's datagrams pass, and each process counts them in a [`Tally`] of its own.
//!
//! A tally is a file in memory that both sides see. So its numbers are right however the process
//! ends, also after `kill -9`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use onramp_queue::DropReason;

use crate::sys::SharedWords;

/// The environment variable that names the folder.
pub const VARIABLE: &str = "ONRAMP_EXEC";

/// Most flows that a process counts apart. The datagrams of all further flows, and of those for
/// which there is no room, are counted together, as those of one flow without addresses.
pub const FLOWS_MAX: usize = 4_096;

/// The file with the order, and what the name of a tally begins with.
const ORDER: &str = "order";
const TALLY: &str = "tally-";
/// The first word of an order. A library and a program of different versions do not work together.
/// The last number grows whenever they tell each other something else.
const ORDER_MAGIC: &str = concat!("onramp-exec-", env!("CARGO_PKG_VERSION"), ".3");
/// The first number of a tally.
const TALLY_MAGIC: u64 = 0x6f6e_7261_6d70_0001;

/// Room for the counters of a process or of a flow, and for its drop reasons: numbers.
const COUNTS: usize = 16;
const REASONS: usize = 48;
const PART: usize = COUNTS + REASONS;
/// A tally consists of the part of the process, that of the rest, which stands for all flows
/// without a part of their own, and those of the flows, from the first one on.
const REST: usize = 1;
const FIRST: usize = 2;
/// Numbers of a whole tally.
const WORDS: usize = PART * (FIRST + FLOWS_MAX);

const _: () = assert!(DropReason::ALL.len() <= REASONS, "each drop reason has a number");

/// Which qdiscs the datagrams of a program pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The tree, as lines of `tc`.
    pub lines: Vec<String>,
    /// Seed of everything random in the qdiscs.
    pub seed: u64,
    /// How long a process that ends waits for its datagrams to leave.
    pub drain: Duration,
}

impl Order {
    /// Writes the order into the folder.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let mut text = format!("{ORDER_MAGIC} {} {}\n", self.seed, self.drain.as_millis());
        self.lines.iter().for_each(|line| text.extend([line, "\n"]));
        fs::write(folder.join(ORDER), text)
    }

    /// Reads the order in the folder.
    ///
    /// # Errors
    ///
    /// The error of the file system, or `InvalidData` if another version of Onramp has written the
    /// order.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(folder.join(ORDER))?;
        let mut lines = text.lines();
        let mut head = lines.next().unwrap_or_default().split(' ');
        let right = head.next() == Some(ORDER_MAGIC);
        let mut number = || head.next().and_then(|word| word.parse().ok());
        match (right, number(), number()) {
            (true, Some(seed), Some(drain)) => Ok(Self {
                lines: lines.map(str::to_owned).collect(),
                seed,
                drain: Duration::from_millis(drain),
            }),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it is not of {ORDER_MAGIC}: build program and library from one version"),
            )),
        }
    }
}

/// A counter of a process or of a flow. [`Counts`] says what each counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// [`Counts::datagrams`].
    Datagrams = 1,
    /// [`Counts::made`].
    Made = 2,
    /// [`Counts::sent`].
    Sent = 3,
    /// [`Counts::sent_bytes`].
    SentBytes = 4,
    /// [`Process::around`].
    Around = 5,
    /// [`Counts::marked`].
    Marked = 14,
}

/// Where the other numbers of a process or of a flow stand. The magic number is that of a process,
/// the addresses are those of a flow.
const MAGIC: usize = 0;
const PID: usize = 6;
const NAME: usize = 7;
const FLOWS: usize = 9;
const LOCAL: usize = 8;
const REMOTE: usize = 11;

/// The counters of this process, which [`Process::read_all`] finds in the folder. They take room
/// for the flows that there are: few flows cost a page of memory or a block of a disk, or two.
#[derive(Clone, Copy, Debug)]
pub struct Tally(SharedWords);

impl Tally {
    /// Makes the tally of this process. It stays in memory until the process ends.
    ///
    /// # Errors
    ///
    /// The error of the kernel: there is no folder, or no room in it.
    pub fn create(folder: &Path) -> io::Result<Self> {
        let pid = std::process::id();
        // Before the file is opened: there may be one descriptor left for both.
        let name = fs::read("/proc/self/comm").unwrap_or_default();
        // A process that executes another program keeps its number.
        let file = (0..u32::MAX).find_map(|again| {
            let path = folder.join(format!("{TALLY}{pid}-{again}"));
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
            match file {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                made => Some(made),
            }
        });
        let file = file.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
        let tally = Self(SharedWords::new(&file, WORDS, PART * FIRST)?);
        tally.set(PID, pid.into());
        let mut letters = [0; 8];
        letters.iter_mut().zip(name.trim_ascii_end()).for_each(|(to, from)| *to = *from);
        tally.set(NAME, u64::from_le_bytes(letters));
        let mut rest = [0; 8];
        rest.iter_mut()
            .zip(name.trim_ascii_end().iter().skip(8))
            .for_each(|(to, from)| *to = *from);
        tally.set(NAME + 1, u64::from_le_bytes(rest));
        tally.set(MAGIC, TALLY_MAGIC);
        Ok(tally)
    }

    /// Returns the number of a new flow between two addresses, or of the one that stands for all
    /// without a part of their own: there are [`FLOWS_MAX`] flows, or there is no room for a
    /// further one. One thread at a time may call it.
    #[must_use]
    pub fn flow(&self, local: Option<SocketAddr>, remote: Option<SocketAddr>) -> usize {
        let count = usize::try_from(self.get(FLOWS)).unwrap_or(FLOWS_MAX);
        let number = FIRST + count;
        let base = PART * number;
        if count >= FLOWS_MAX || self.0.make_room(base..base + PART).is_err() {
            return REST;
        }
        for (place, address) in [(LOCAL, local), (REMOTE, remote)] {
            let words = address.map_or([0; 3], words_of);
            for (at, word) in (base + place..).zip(words) {
                self.set(at, word);
            }
        }
        self.set(FLOWS, count as u64 + 1);
        number
    }

    /// Adds to a counter of the process and to that of the flow, whose number [`flow`](Self::flow)
    /// has returned. One thread at a time may call it.
    pub fn add(&self, flow: usize, count: Count, by: u64) {
        self.add_at(flow, count as usize, by);
    }

    /// Counts a dropped datagram of the flow, as [`add`](Self::add) does.
    pub fn dropped(&self, flow: usize, reason: DropReason) {
        self.add_at(flow, COUNTS + reason as usize, 1);
    }

    /// Counts a datagram that passes around the qdiscs. Any thread may call it.
    pub fn around(&self) {
        // Relaxed: a count, which no other memory depends on.
        self.0.words()[Count::Around as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of datagrams that are neither sent nor dropped.
    #[must_use]
    pub fn held(&self) -> u64 {
        let counts = Counts::read(&|at| self.get(at));
        counts.held()
    }

    fn add_at(&self, flow: usize, at: usize, by: u64) {
        for at in [at, PART * flow + at] {
            self.set(at, self.get(at) + by);
        }
    }

    fn get(&self, at: usize) -> u64 {
        // Acquire: with the Release of `set`, a thread that sees a count sees those before it.
        self.0.words()[at].load(Acquire)
    }

    fn set(&self, at: usize, word: u64) {
        self.0.words()[at].store(word, Release); // Release: see `get`.
    }
}

/// What became of the datagrams of a process or of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of datagrams that the program sent, each part of a segmented message (`UDP_SEGMENT`)
    /// for itself.
    pub datagrams: u64,
    /// Number of datagrams that qdiscs made: the duplicates of `netem`.
    pub made: u64,
    /// Number of datagrams that the kernel took.
    pub sent: u64,
    /// Their bytes as the qdiscs count them: headers of Ethernet, IP and UDP included.
    pub sent_bytes: u64,
    /// Number of datagrams that the kernel took with another ECN code point (RFC 3168) than the
    /// program had chosen: qdiscs have marked them with "congestion experienced".
    pub marked: u64,
    /// Number of datagrams that were dropped, for each reason with any.
    pub drops: Vec<(DropReason, u64)>,
}

impl Counts {
    fn read(word: &impl Fn(usize) -> u64) -> Self {
        let of = |count: Count| word(count as usize);
        let drops = DropReason::ALL.iter().map(|reason| (*reason, word(COUNTS + *reason as usize)));
        Self {
            datagrams: of(Count::Datagrams),
            made: of(Count::Made),
            sent: of(Count::Sent),
            sent_bytes: of(Count::SentBytes),
            marked: of(Count::Marked),
            drops: drops.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// Returns the number of datagrams that were dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().map(|(_, count)| count).sum()
    }

    /// Returns the number of datagrams that are neither sent nor dropped: after the end of a
    /// process, those that ended with it.
    #[must_use]
    pub fn held(&self) -> u64 {
        (self.datagrams + self.made).saturating_sub(self.sent + self.dropped())
    }

    /// Adds the counts of another process or flow.
    pub fn add(&mut self, other: &Self) {
        self.datagrams += other.datagrams;
        self.made += other.made;
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.marked += other.marked;
        for (reason, count) in &other.drops {
            match self.drops.iter_mut().find(|(own, _)| own == reason) {
                Some((_, own)) => *own += count,
                None => self.drops.push((*reason, *count)),
            }
        }
        self.drops.sort_unstable_by_key(|(reason, _)| *reason);
    }
}

/// A flow of a process: the datagrams of a socket to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The address of the socket; `None` for the flow that stands for several.
    pub local: Option<SocketAddr>,
    /// The address to which the datagrams go.
    pub remote: Option<SocketAddr>,
    /// What became of the datagrams.
    pub counts: Counts,
}

/// What a process has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The number of the process.
    pub pid: u32,
    /// The name of the program, at most 15 bytes long.
    pub name: String,
    /// What became of all its datagrams that the qdiscs met.
    pub counts: Counts,
    /// Number of messages that passed around the qdiscs, because Onramp cannot hold them back
    /// (`MSG_MORE`, `UDP_CORK`, `MSG_ZEROCOPY`, `SCM_TXTIME`).
    pub around: u64,
    /// The flows, in the order in which they began. The last one may be that which stands for all
    /// that are not counted apart.
    pub flows: Vec<Flow>,
}

impl Process {
    /// Reads the tallies of all processes in the folder, in the order of their numbers.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn read_all(folder: &Path) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(TALLY) {
                all.extend(
                    Self::read(&path)?.map(|process| (name.len(), name.to_owned(), process)),
                );
            }
        }
        all.sort_unstable_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        Ok(all.into_iter().map(|(.., process)| process).collect())
    }

    /// Reads a tally. Returns `None` if its process has not finished making it.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut file = File::open(path)?;
        if file.metadata()?.len() < (WORDS * size_of::<u64>()) as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; 8 * PART];
        file.read_exact(&mut bytes)?;
        let count = usize::try_from(word_in(&bytes, FLOWS)).unwrap_or(FLOWS_MAX).min(FLOWS_MAX);
        // What comes behind the flows that there are was never written.
        bytes.resize(8 * PART * (FIRST + count), 0);
        file.read_exact(&mut bytes[8 * PART..])?;
        let word = |at| word_in(&bytes, at);
        if word(MAGIC) != TALLY_MAGIC {
            return Ok(None);
        }
        let flow = |number| {
            let base = PART * number;
            let address = |place| address_of([0, 1, 2].map(|at| word(base + place + at)));
            let counts = Counts::read(&|at| word(base + at));
            Flow { local: address(LOCAL), remote: address(REMOTE), counts }
        };
        let rest = Some(flow(REST)).filter(|rest| rest.counts != Counts::default());
        let name = [word(NAME), word(NAME + 1)].map(u64::to_le_bytes).concat();
        Ok(Some(Self {
            pid: u32::try_from(word(PID)).unwrap_or_default(),
            name: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
            counts: Counts::read(&word),
            around: word(Count::Around as usize),
            flows: (FIRST..FIRST + count).map(flow).chain(rest).collect(),
        }))
    }
}

/// Returns a number of a tally that was read; 0 if it is behind what was read.
fn word_in(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at * 8..at * 8 + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

/// Returns an address as numbers: family and port, and then the bits.
fn words_of(address: SocketAddr) -> [u64; 3] {
    let (family, bits) = match address.ip() {
        IpAddr::V4(ip) => (4, u128::from(ip.to_bits())),
        IpAddr::V6(ip) => (6, ip.to_bits()),
    };
    let [high, low] = [bits >> 64, bits & u128::from(u64::MAX)];
    let word = |half: u128| u64::try_from(half).unwrap_or_default();
    [family << 16 | u64::from(address.port()), word(high), word(low)]
}

fn address_of([head, high, low]: [u64; 3]) -> Option<SocketAddr> {
    let bits = u128::from(high) << 64 | u128::from(low);
    let ip = match head >> 16 {
        4 => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(low).ok()?)),
        6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::try_from(head & 0xffff).ok()?))
}

#[cfg(test)]
mod tests;
