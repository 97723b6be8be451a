//! A tree of qdiscs in virtual time, as a Python class.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use onramp::qdisc::Dequeue;
use onramp::show::{Out, Style};
use onramp::view::{Listed, Query};
use onramp::{DropReason, Instant, Setup, Tree as Qdiscs};
use onramp_sim::{BEGIN, Sim, Wire};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyDict;

use crate::columns::{column, optional};
use crate::replay::{Arrivals, Fates, Replay, since_begin};
use crate::{args, capture, errors, lines};

/// A tree of qdiscs, classes and filters in virtual time: no clock, no socket, no thread.
///
/// ``tc_lines`` is one qdisc in the syntax of tc, such as ``"fq_codel target 2ms"``, or lines of
/// tc: a list of lines, or a text of several. The name of the device in them does not matter and
/// may be missing. ``mtu`` is the size of the largest packet in bytes, Ethernet header included.
/// The same ``seed`` gives the same random choices; ``onramp replay`` has the seed 1 by default.
///
/// A packet has a length, a flow, a priority, a mark and an ECN code point, but no contents: of
/// filters, those match that look at these (``matchall``, ``fw``, ``basic``), not those that look
/// into headers (``u32``, ``flower``).
///
/// All times are whole nanoseconds since the beginning, 0, and never go back.
///
/// A line that is wrong raises ``ValueError`` with the text that ``onramp tc`` would print. Two
/// threads cannot use a tree at the same time: the later one gets ``RuntimeError``.
///
/// >>> import onramp
/// >>> tree = onramp.Tree("pfifo limit 2")
/// >>> [tree.enqueue(0, 1514, cookie=n) for n in range(3)]
/// [True, True, False]
/// >>> tree.dequeue(10).cookie, tree.dequeue(20).cookie, tree.dequeue(30)
/// (0, 1, None)
/// >>> [(packet.cookie, packet.drop_reason) for packet in tree.drops()]
/// [(2, 'overlimit')]
#[pyclass(module = "onramp")]
pub(crate) struct Tree {
    /// The lock is never contended: it only makes the class `Sync`.
    qdiscs: Mutex<Qdiscs>,
    seed: u64,
    /// The latest time of a call.
    now: Instant,
    /// When the tree said that the next packet may leave, if it has said so since the last packet
    /// came.
    wake: Option<Instant>,
}

/// A packet that has left a tree, or that was dropped.
#[pyclass(module = "onramp", frozen, get_all)]
pub(crate) struct Packet {
    /// The number that the caller gave the packet.
    cookie: u64,
    /// The key of the packet's flow.
    flow: u64,
    /// Length on the wire in bytes.
    length: u32,
    /// Priority, as in ``SO_PRIORITY``.
    priority: u32,
    /// Mark, as in ``SO_MARK``.
    mark: u32,
    /// ECN code point: 3, CE, if a qdisc has marked the packet.
    ecn: u8,
    /// The name of the reason for which the packet was dropped; None if it was not.
    drop_reason: Option<&'static str>,
}

impl Packet {
    fn new(packet: &onramp::Packet, drop_reason: Option<DropReason>) -> Self {
        Self {
            cookie: packet.cookie,
            flow: packet.flow,
            length: packet.len,
            priority: packet.priority,
            mark: packet.mark,
            ecn: packet.ecn,
            drop_reason: drop_reason.map(DropReason::name),
        }
    }
}

#[pymethods]
impl Packet {
    fn __repr__(&self) -> String {
        let dropped = self.drop_reason.map_or_else(String::new, |why| format!(", dropped: {why}"));
        format!(
            "<Packet {} of flow {}, {} bytes, ecn {}{dropped}>",
            self.cookie, self.flow, self.length, self.ecn
        )
    }
}

fn build(setup: &Setup, mtu: u32, seed: u64) -> PyResult<Qdiscs> {
    setup.with_root().map_err(errors::config)?;
    Ok(Qdiscs::of(setup, mtu, seed).unwrap_or_else(|| unreachable!("it has a root")))
}

impl Tree {
    fn qdiscs(&mut self) -> &mut Qdiscs {
        self.qdiscs.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the time of the tree to `now_ns`.
    fn at(&mut self, now_ns: u64) -> PyResult<Instant> {
        let now = BEGIN.after(now_ns);
        if now < self.now {
            let last = self.now.since(BEGIN);
            return Err(errors::value(format!(
                "now is {now_ns}, before {last}, the time of an earlier call: time never goes back"
            )));
        }
        self.now = now;
        Ok(now)
    }

    fn fresh(&mut self) -> PyResult<Qdiscs> {
        let seed = self.seed;
        let qdiscs = self.qdiscs();
        build(qdiscs.setup(), qdiscs.mtu(), seed)
    }

    /// Goes on with the tree of a simulation that has ended at `now`.
    fn follow(&mut self, now: Instant, qdiscs: Qdiscs) {
        (self.now, self.qdiscs) = (now, Mutex::new(qdiscs));
        self.wake = None;
        // What the simulation dropped has been reported.
        drop(self.qdiscs().drops());
    }
}

#[pymethods]
impl Tree {
    #[new]
    #[pyo3(signature = (tc_lines, mtu = 1514, seed = 0))]
    fn new(
        tc_lines: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = args::mtu)] mtu: u32,
        #[pyo3(from_py_with = args::seed)] seed: u64,
    ) -> PyResult<Self> {
        if mtu == 0 {
            return Err(errors::value("mtu: 0: expected at least 1 byte"));
        }
        let qdiscs = build(&lines::setup(tc_lines, "tc_lines")?, mtu, seed)?;
        Ok(Self { qdiscs: Mutex::new(qdiscs), seed, now: BEGIN, wake: None })
    }

    /// Plays packets through a fresh copy of the tree, in front of a link of the rate ``rate``.
    ///
    /// The arguments are arrays of whole numbers of the same length, or sequences that numpy can
    /// make such arrays of: when each packet comes (``times_ns``, from 0 on and in ascending
    /// order), its length on the wire in bytes, and optionally its flow key, ECN code point (0, 1,
    /// 2: ECT(0), 3: CE), priority, mark, and the time before which it may not leave (-1: none), as
    /// ``fq`` and ``etf`` obey it. Without these, packets have 0. ``rate`` is a text with a unit,
    /// such as ``"10mbit"``; None: the link is infinitely fast.
    ///
    /// Arrays of the types int64 (times), uint32, uint64 (flows) and uint8 (ecn) are not copied.
    /// Other Python threads run meanwhile, and must not change these arrays. Ctrl-C ends a long
    /// replay and leaves the tree as it was.
    ///
    /// What the tree held before is forgotten: the copy begins empty, at time 0, with counters of
    /// 0, as with ``onramp replay``, so the same call always has the same result. Afterwards this
    /// tree is that copy, so that ``show`` and ``stats`` tell what it has counted.
    ///
    /// >>> import onramp
    /// >>> tree = onramp.Tree("pfifo limit 2")
    /// >>> replay = tree.replay([0, 0, 0, 0], [1250, 1250, 1250, 1250], rate="10mbit")
    /// >>> replay.departures.tolist()
    /// [0, 1000000, 2000000, -1]
    /// >>> [onramp.DROP_REASONS[reason] for reason in replay.drop_reasons]
    /// ['', '', '', 'overlimit']
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (
        times_ns, lengths, flows = None, ecn = None, priority = None, mark = None,
        txtime_ns = None, *, rate = None
    ))]
    fn replay(
        &mut self,
        py: Python<'_>,
        times_ns: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        flows: Option<&Bound<'_, PyAny>>,
        ecn: Option<&Bound<'_, PyAny>>,
        priority: Option<&Bound<'_, PyAny>>,
        mark: Option<&Bound<'_, PyAny>>,
        txtime_ns: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = args::rate)] rate: Option<PyBackedStr>,
    ) -> PyResult<Replay> {
        let times_ns = column::<i64>("times_ns", times_ns, None)?;
        let times_ns = times_ns.as_slice()?;
        let count = times_ns.len();
        let lengths = column::<u32>("lengths", lengths, Some(count))?;
        let flows = optional::<u64>("flows", flows, count)?;
        let ecn = optional::<u8>("ecn", ecn, count)?;
        let priority = optional::<u32>("priority", priority, count)?;
        let mark = optional::<u32>("mark", mark, count)?;
        let txtime_ns = optional::<i64>("txtime_ns", txtime_ns, count)?;
        let arrivals = Arrivals {
            times_ns,
            lengths: lengths.as_slice()?,
            flows: flows.as_ref().map(|column| column.as_slice()).transpose()?,
            ecn: ecn.as_ref().map(|column| column.as_slice()).transpose()?,
            priority: priority.as_ref().map(|column| column.as_slice()).transpose()?,
            mark: mark.as_ref().map(|column| column.as_slice()).transpose()?,
            txtime_ns: txtime_ns.as_ref().map(|column| column.as_slice()).transpose()?,
            next: 0,
        };
        arrivals.check()?;
        let wire = Wire::new(self.fresh()?, lines::optional_rate(rate.as_deref())?, 0);
        let fates = py.detach(|| {
            let mut sim = Sim::new(wire);
            sim.add(arrivals);
            let mut fates = Fates::of(count);
            fates.play(&mut sim, |cookie| usize::try_from(cookie).unwrap_or(usize::MAX))?;
            self.follow(sim.now(), sim.into_wire().into_tree());
            PyResult::Ok(fates)
        })?;
        Ok(fates.into_replay(py, count, self.qdiscs()))
    }

    /// Plays the packets of a capture (pcap or pcapng) through a fresh copy of the tree, in front
    /// of a link of the rate ``rate``, as ``replay`` does, and as ``onramp replay`` does.
    ///
    /// The packets have their contents here, so that all filters can read them, and qdiscs such as
    /// ``cake`` know hosts. The rows of the result are in the order of the file. Raises ``OSError``
    /// if the file cannot be read, and ``ValueError`` if it is no capture or damaged; the tree is
    /// then as it was.
    #[pyo3(signature = (path, *, rate = None))]
    fn replay_pcap(
        &mut self,
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = args::rate)] rate: Option<PyBackedStr>,
    ) -> PyResult<Replay> {
        let wire = Wire::new(self.fresh()?, lines::optional_rate(rate.as_deref())?, 0);
        let (fates, count) = py.detach(|| {
            let player = capture::open(&path)?;
            let mut sim = Sim::new(wire);
            sim.add(&player);
            let mut fates = Fates::of(0);
            fates.play(&mut sim, |cookie| {
                let _ = player.borrow_mut().head(cookie);
                capture::place(cookie)
            })?;
            // The tree of the simulation takes the place of this one only if the capture is whole.
            let (now, qdiscs) = (sim.now(), sim.into_wire().into_tree());
            let read = capture::finish(player)?;
            self.follow(now, qdiscs);
            let count = usize::try_from(read.packets).unwrap_or(usize::MAX);
            PyResult::Ok((fates, count))
        })?;
        Ok(fates.into_replay(py, count, self.qdiscs()))
    }

    /// Gives a packet of ``length`` bytes to the tree at the time ``now``.
    ///
    /// Returns False if this packet was dropped. ``drops`` returns the packets that were dropped,
    /// also those that had to make room for this one. ``cookie`` is a number of the caller's, by
    /// which it knows the packet again. ``txtime_ns`` is the time before which the packet may not
    /// leave.
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    #[pyo3(signature = (
        now, length, *, flow = 0, cookie = 0, priority = 0, mark = 0, ecn = 0, txtime_ns = None
    ))]
    fn enqueue(
        &mut self,
        #[pyo3(from_py_with = args::now)] now: u64,
        #[pyo3(from_py_with = args::length)] length: u32,
        #[pyo3(from_py_with = args::flow)] flow: u64,
        #[pyo3(from_py_with = args::cookie)] cookie: u64,
        #[pyo3(from_py_with = args::priority)] priority: u32,
        #[pyo3(from_py_with = args::mark)] mark: u32,
        #[pyo3(from_py_with = args::ecn)] ecn: u8,
        #[pyo3(from_py_with = args::txtime_ns_or_none)] txtime_ns: Option<u64>,
    ) -> PyResult<bool> {
        if length == 0 {
            return Err(errors::value("length: 0: a packet has at least one byte"));
        }
        if ecn > 3 {
            return Err(errors::value(format!("ecn: {ecn}: expected 0 to 3")));
        }
        let now = self.at(now)?;
        let mut packet = onramp::Packet::new(length);
        (packet.flow, packet.cookie, packet.ecn) = (flow, cookie, ecn);
        (packet.priority, packet.mark) = (priority, mark);
        packet.txtime_ns = txtime_ns.map_or(0, |time| BEGIN.after(time).0);
        packet.enqueued_ns = now.0;
        self.wake = None;
        Ok(self.qdiscs().enqueue(now, packet) != onramp::qdisc::Verdict::Dropped)
    }

    /// Returns the next packet that leaves at the time ``now``; None if none may leave now: see
    /// ``next``.
    fn dequeue(&mut self, #[pyo3(from_py_with = args::now)] now: u64) -> PyResult<Option<Packet>> {
        let now = self.at(now)?;
        let answer = self.qdiscs().dequeue(now);
        self.wake = match answer {
            Dequeue::NotBefore(then) => Some(then),
            _ => None,
        };
        match answer {
            Dequeue::Ready(packet) => Ok(Some(Packet::new(&packet, None))),
            _ => Ok(None),
        }
    }

    /// Returns the time at which to call ``dequeue``; None if the tree is empty, or if nothing
    /// leaves it until it is changed, as behind a closed ``plug``.
    ///
    /// This is ``now`` until ``dequeue`` has returned None, and then the time that the tree gave,
    /// or ``now`` again when another packet has come. A dequeue at the returned time may still find
    /// that no packet may leave; then ``next`` returns a later time.
    ///
    /// >>> import onramp
    /// >>> tree = onramp.Tree("tbf rate 8mbit burst 2kb limit 1mb")
    /// >>> _ = [tree.enqueue(0, 1000, cookie=n) for n in range(3)]
    /// >>> now = 0
    /// >>> while (now := tree.next(now)) is not None:
    /// ...     packet = tree.dequeue(now)
    /// ...     if packet:
    /// ...         print(now, packet.cookie)
    /// 0 0
    /// 0 1
    /// 952000 2
    fn next(&mut self, #[pyo3(from_py_with = args::now)] now: u64) -> Option<u64> {
        if self.wake == Some(Instant::MAX) {
            return None;
        }
        let wake = self.wake.map_or(now, |then| then.since(BEGIN).max(now));
        (self.qdiscs().backlog().packets > 0).then_some(wake)
    }

    /// Returns the packets that were dropped since the last call. The tree keeps them until then,
    /// so call it from time to time.
    fn drops(&mut self) -> Vec<Packet> {
        let dropped = self.qdiscs().drops();
        dropped.map(|packet| Packet::new(&packet, packet.drop_reason)).collect()
    }

    /// Changes the tree by a line of tc, such as ``"qdisc change root fq_codel target 2ms"``, at
    /// the time ``now`` (None: the time of the latest call).
    ///
    /// As in Linux, a qdisc that is replaced or deleted drops its packets (``purged``), and one
    /// that is changed keeps them. A line that is wrong raises ``ValueError`` and changes nothing.
    ///
    /// >>> import onramp
    /// >>> tree = onramp.Tree("fq_codel")
    /// >>> tree.tc("qdisc change root fq_codel target 2ms")
    /// >>> tree.tc("qdisc change root fq_codel targt 2ms")
    /// Traceback (most recent call last):
    /// ...
    /// ValueError: qdisc fq_codel: unexpected "targt": ...
    #[pyo3(signature = (line, now = None))]
    fn tc(
        &mut self,
        line: &str,
        #[pyo3(from_py_with = args::now_or_none)] now: Option<u64>,
    ) -> PyResult<()> {
        let mut tried = self.qdiscs().setup().clone();
        lines::apply(&mut tried, line).map_err(errors::value)?;
        let line = lines::whole(self.qdiscs().setup(), line);
        let now = now.map_or(Ok(self.now), |now| self.at(now))?;
        self.wake = None;
        self.qdiscs().apply(now, &line).map_err(errors::config)
    }

    /// Returns the listing of ``tc -s -d qdisc show`` as a text, or, with ``json=True``, that of
    /// ``tc -s -d -j qdisc show`` as Python values.
    ///
    /// >>> import onramp
    /// >>> tree = onramp.Tree("pfifo limit 9")
    /// >>> tree.show(json=True)[0]["options"]
    /// {'limit': 9}
    #[pyo3(signature = (*, json = false))]
    fn show<'py>(&mut self, py: Python<'py>, json: bool) -> PyResult<Bound<'py, PyAny>> {
        let qdiscs = self.qdiscs();
        let views = qdiscs.views();
        let setup = qdiscs.setup();
        let mut out = Out::new(Style { stats: true, details: true, json, ..Style::default() });
        let device = Some(setup.device().unwrap_or("link"));
        Listed::new(device, setup, qdiscs.mtu(), &views).qdiscs(Query::default(), &mut out);
        let text = out.finish();
        if json {
            return py.import("json")?.call_method1("loads", (text,));
        }
        Ok(text.into_pyobject(py)?.into_any())
    }

    /// Returns what the tree has counted since it was made or a replay began: ``enqueued`` (packets
    /// that came, and copies that qdiscs ``made``) = ``sent`` + ``dropped`` (by reason) + ``held``.
    ///
    /// >>> import onramp
    /// >>> tree = onramp.Tree("pfifo limit 1")
    /// >>> _ = tree.replay([0, 0, 0], [100, 100, 100], rate="1mbit")
    /// >>> stats = tree.stats()
    /// >>> stats["enqueued"], stats["sent"], stats["dropped"], stats["held"]
    /// (3, 2, {'overlimit': 1}, 0)
    fn stats<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let qdiscs = self.qdiscs();
        let (totals, held) = (qdiscs.totals(), qdiscs.backlog());
        let dropped = PyDict::new(py);
        for reason in DropReason::ALL {
            if totals.dropped(*reason) > 0 {
                dropped.set_item(reason.name(), totals.dropped(*reason))?;
            }
        }
        let stats = PyDict::new(py);
        stats.set_item("enqueued", totals.enqueued_packets)?;
        stats.set_item("made", totals.made_packets)?;
        stats.set_item("sent", totals.sent_packets)?;
        stats.set_item("sent_bytes", totals.sent_bytes)?;
        stats.set_item("dropped", dropped)?;
        stats.set_item("held", held.packets)?;
        stats.set_item("held_bytes", held.bytes)?;
        Ok(stats)
    }

    /// The lines of tc that describe the tree as it is now.
    #[getter]
    fn lines(&mut self) -> Vec<String> {
        self.qdiscs().setup().lines()
    }

    /// The time of the latest call, in nanoseconds since the beginning.
    #[getter]
    fn now(&self) -> i64 {
        since_begin(self.now)
    }

    /// Returns the number of packets that the tree holds.
    fn __len__(&mut self) -> usize {
        self.qdiscs().backlog().packets as usize
    }

    /// A tree is not a container: it is true even if it is empty.
    fn __bool__(&mut self) -> bool {
        true
    }

    fn __repr__(&mut self) -> String {
        let lines = self.lines();
        format!("<Tree {lines:?}, {} packets>", self.__len__())
    }
}
