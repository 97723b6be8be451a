//! Plays packets from arrays through a tree of qdiscs, in virtual time.

use numpy::{IntoPyArray as _, PyArray1};
use onramp::{Instant, Packet, Tree};
use onramp_sim::source::Source;
use onramp_sim::{BEGIN, Fate, Sim};
use pyo3::prelude::*;

use crate::{errors, number};

/// Number of packets after which a replay looks whether the user has interrupted it.
pub(crate) const WATCH: usize = 65_536;
/// What arrays have in place of a time for a packet without one.
const NONE: i64 = -1;

/// The packets that come to the tree, as columns.
pub(crate) struct Arrivals<'a> {
    pub(crate) times_ns: &'a [i64],
    pub(crate) lengths: &'a [u32],
    pub(crate) flows: Option<&'a [u64]>,
    pub(crate) ecn: Option<&'a [u8]>,
    pub(crate) priority: Option<&'a [u32]>,
    pub(crate) mark: Option<&'a [u32]>,
    pub(crate) txtime_ns: Option<&'a [i64]>,
    /// Index of the next packet.
    pub(crate) next: usize,
}

impl Arrivals<'_> {
    /// Checks what the types of the columns do not already say.
    pub(crate) fn check(&self) -> PyResult<()> {
        let before = |at: usize| at.checked_sub(1).map_or(0, |before| self.times_ns[before]);
        if let Some(at) = (0..self.times_ns.len()).find(|at| self.times_ns[*at] < before(*at)) {
            let (time, before) = (self.times_ns[at], before(at));
            return Err(errors::value(format!(
                "times_ns[{at}] is {time}, before {before}: expected nanoseconds from 0 on, in \
                 ascending order"
            )));
        }
        if let Some(at) = self.lengths.iter().position(|length| *length == 0) {
            let text = format!("lengths[{at}] is 0: a packet has at least one byte");
            return Err(errors::value(text));
        }
        let ecn = self.ecn.unwrap_or_default();
        if let Some(at) = ecn.iter().position(|ecn| *ecn > 3) {
            let text = format!("ecn[{at}] is {}: expected 0, 1, 2 (ECT(0)) or 3 (CE)", ecn[at]);
            return Err(errors::value(text));
        }
        Ok(())
    }
}

impl Source for Arrivals<'_> {
    fn due(&mut self) -> Option<Instant> {
        self.times_ns.get(self.next).map(|time| BEGIN.after(time.unsigned_abs()))
    }

    fn packet(&mut self, _now: Instant) -> Option<Packet> {
        let at = self.next;
        let mut packet = Packet::new(*self.lengths.get(at)?);
        packet.cookie = at as u64;
        packet.flow = self.flows.map_or(0, |flows| flows[at]);
        packet.ecn = self.ecn.map_or(0, |ecn| ecn[at] & 3);
        packet.priority = self.priority.map_or(0, |priority| priority[at]);
        packet.mark = self.mark.map_or(0, |mark| mark[at]);
        let asked = self.txtime_ns.and_then(|times| u64::try_from(times[at]).ok());
        packet.txtime_ns = asked.map_or(0, |time| BEGIN.after(time).0);
        self.next += 1;
        Some(packet)
    }
}

/// What became of the packets, as columns with a row for each packet that came to the tree.
#[derive(Default)]
pub(crate) struct Fates {
    departures: Vec<i64>,
    sojourn_ns: Vec<i64>,
    drop_reasons: Vec<u8>,
    marks: Vec<bool>,
    queue_packets: Vec<u32>,
    queue_bytes: Vec<u64>,
    copies: Copies,
}

/// The copies that qdiscs made, in the order in which they left or were dropped.
#[derive(Default)]
struct Copies {
    of: Vec<i64>,
    departures: Vec<i64>,
    drop_reasons: Vec<u8>,
}

/// Returns the time since the beginning, for an array.
pub(crate) fn since_begin(at: Instant) -> i64 {
    i64::try_from(at.since(BEGIN)).unwrap_or(i64::MAX)
}

impl Fates {
    /// Creates rows for `count` packets. None of the packets has left yet.
    pub(crate) fn of(count: usize) -> Self {
        let mut fates = Self::default();
        fates.grow(count);
        fates
    }

    fn grow(&mut self, count: usize) {
        self.departures.resize(count, NONE);
        self.sojourn_ns.resize(count, NONE);
        self.drop_reasons.resize(count, 0);
        self.marks.resize(count, false);
        self.queue_packets.resize(count, 0);
        self.queue_bytes.resize(count, 0);
    }

    fn note(&mut self, at: usize, fate: &Fate) {
        let left = fate.arrives.map_or(NONE, |_| since_begin(fate.at));
        let reason = if fate.arrives.is_some() { 0 } else { number(fate.packet.drop_reason) };
        if fate.copy {
            self.copies.of.push(i64::try_from(at).unwrap_or(i64::MAX));
            self.copies.departures.push(left);
            self.copies.drop_reasons.push(reason);
            return;
        }
        if at >= self.departures.len() {
            self.grow((at + 1).next_power_of_two());
        }
        self.departures[at] = left;
        self.drop_reasons[at] = reason;
        self.sojourn_ns[at] = i64::try_from(fate.sojourn_ns()).unwrap_or(i64::MAX);
        self.marks[at] = fate.marked;
        self.queue_packets[at] = fate.met.packets;
        self.queue_bytes[at] = fate.met.bytes;
    }

    /// Plays the simulation to its end. `place` returns the row of the packet with a cookie, and
    /// hears of each packet. Ends early with an exception if the user interrupts it.
    pub(crate) fn play(&mut self, sim: &mut Sim<'_>, place: impl Fn(u64) -> usize) -> PyResult<()> {
        for (count, fate) in (1_usize..).zip(sim) {
            if count.is_multiple_of(WATCH) {
                Python::attach(|py| py.check_signals())?;
            }
            self.note(place(fate.packet.cookie), &fate);
        }
        Ok(())
    }

    /// Returns the results in Python's types, for `count` packets, of which `tree` still holds
    /// some.
    pub(crate) fn into_replay(mut self, py: Python<'_>, count: usize, tree: &Tree) -> Replay {
        self.grow(count);
        Replay {
            departures: self.departures.into_pyarray(py).unbind(),
            sojourn_ns: self.sojourn_ns.into_pyarray(py).unbind(),
            drop_reasons: self.drop_reasons.into_pyarray(py).unbind(),
            marks: self.marks.into_pyarray(py).unbind(),
            queue_packets: self.queue_packets.into_pyarray(py).unbind(),
            queue_bytes: self.queue_bytes.into_pyarray(py).unbind(),
            copy_of: self.copies.of.into_pyarray(py).unbind(),
            copy_departures: self.copies.departures.into_pyarray(py).unbind(),
            copy_drop_reasons: self.copies.drop_reasons.into_pyarray(py).unbind(),
            held: tree.backlog().packets,
        }
    }
}

/// What became of the packets of a replay: arrays with one element for each packet, in the order in
/// which the packets came.
///
/// Times are in nanoseconds since the beginning of the replay. A packet that the tree still held
/// at the end has -1 in ``departures`` and ``sojourn_ns``, and 0 in ``drop_reasons``.
#[pyclass(module = "onramp", frozen, get_all)]
pub(crate) struct Replay {
    /// When each packet left for the wire; -1 if it was dropped or is still in the tree (int64).
    departures: Py<PyArray1<i64>>,
    /// How long each packet was in the tree until it left or was dropped (int64, nanoseconds).
    sojourn_ns: Py<PyArray1<i64>>,
    /// Why each packet was dropped: an index into ``onramp.DROP_REASONS``; 0 if it was not (uint8).
    drop_reasons: Py<PyArray1<u8>>,
    /// Whether a qdisc marked the packet with CE, congestion experienced (bool).
    marks: Py<PyArray1<bool>>,
    /// How many packets the tree held just before this packet came (uint32).
    queue_packets: Py<PyArray1<u32>>,
    /// How many bytes the tree held just before this packet came (uint64).
    queue_bytes: Py<PyArray1<u64>>,
    /// Which packet each copy is a copy of: its index (int64). ``netem duplicate`` makes copies.
    copy_of: Py<PyArray1<i64>>,
    /// When each copy left for the wire; -1 if it was dropped (int64).
    copy_departures: Py<PyArray1<i64>>,
    /// Why each copy was dropped, as ``drop_reasons`` says it (uint8).
    copy_drop_reasons: Py<PyArray1<u8>>,
    /// How many packets, copies included, the tree still held at the end.
    held: u32,
}
