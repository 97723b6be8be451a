//! Captures: as arrays, and as the packets of a replay.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use numpy::{IntoPyArray as _, PyArray1};
use onramp::dev::capture::{Advice, Blocks};
use onramp_sim::BEGIN;
use onramp_sim::capture::{Player, Read};
use pyo3::prelude::*;

use crate::errors;

/// Bits of a packet's cookie that hold the number of the interface. The bits above them are the
/// number of the packet.
const INTERFACE_BITS: u32 = 8;

/// Opens the capture in the file at `path`.
pub(crate) fn open(path: &Path) -> PyResult<RefCell<Player<'static>>> {
    let advice = Advice { compressed: "read the result", other: "" };
    let blocks = Blocks::open(path, advice).map_err(errors::input)?;
    Ok(RefCell::new(Player::new(blocks)))
}

/// Returns the number of the packet with this cookie, counted from 0.
pub(crate) fn place(cookie: u64) -> usize {
    usize::try_from(cookie >> INTERFACE_BITS).unwrap_or(usize::MAX)
}

/// Returns what was read, or the exception for the error that ended the reading.
pub(crate) fn finish(player: RefCell<Player<'_>>) -> PyResult<Read> {
    let (read, failed) = player.into_inner().into_read();
    failed.map_err(errors::input)?;
    Ok(read)
}

/// The packets of a capture: arrays with one element for each packet, in the order of the file.
#[pyclass(module = "onramp", frozen, get_all)]
pub(crate) struct Capture {
    /// When each packet comes, in nanoseconds since the first packet, in ascending order (int64).
    times_ns: Py<PyArray1<i64>>,
    /// Length of each packet on the wire in bytes (uint32).
    lengths: Py<PyArray1<u32>>,
    /// A hash of the addresses, protocol and ports of each packet (uint64).
    flows: Py<PyArray1<u64>>,
    /// ECN code point of each packet; 0 if it is not IP (uint8).
    ecn: Py<PyArray1<u8>>,
    /// Priority that Linux gives each packet by its type of service (uint32).
    priority: Py<PyArray1<u32>>,
    /// What each flow is, such as ``udp 192.0.2.1:1000 > 192.0.2.2:2000``, by its hash.
    flow_names: std::collections::HashMap<u64, String>,
    /// Number of packets whose time lies before that of an earlier packet; they come with it.
    out_of_order: u64,
    /// Number of packets that are not IP.
    not_ip: u64,
    /// When the first packet was captured, in nanoseconds since 1970; None for no packets.
    first_unix_ns: Option<u64>,
}

#[pymethods]
impl Capture {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.lengths.bind(py).as_any().len()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let flows = self.flow_names.len();
        Ok(format!("<Capture of {} packets of {flows} flows>", self.__len__(py)?))
    }
}

#[derive(Default)]
struct Columns {
    times_ns: Vec<i64>,
    lengths: Vec<u32>,
    flows: Vec<u64>,
    ecn: Vec<u8>,
    priority: Vec<u32>,
}

impl Columns {
    /// Reads the whole capture.
    fn read(player: &RefCell<Player<'_>>) -> PyResult<Self> {
        let mut columns = Self::default();
        loop {
            let mut player = player.borrow_mut();
            let (Some(due), Some(packet)) = (player.due(), player.packet()) else {
                return Ok(columns);
            };
            // The headers that a capture has in place of Ethernet's are of no use here.
            let _ = player.head(packet.cookie);
            columns.times_ns.push(i64::try_from(due.since(BEGIN)).unwrap_or(i64::MAX));
            columns.lengths.push(packet.len);
            columns.flows.push(packet.flow);
            columns.ecn.push(packet.ecn);
            columns.priority.push(packet.priority);
            if columns.lengths.len().is_multiple_of(crate::replay::WATCH) {
                Python::attach(|py| py.check_signals())?;
            }
        }
    }
}

/// Reads the packets of a capture (pcap or pcapng) into arrays, which ``Tree.replay`` takes.
///
/// The times are those that ``onramp replay`` uses: they begin at 0, and a packet that the capture
/// has out of order comes with the latest before it. Flow, priority and ECN code point come from
/// the packets' headers. Raises ``OSError`` if the file cannot be read, and ``ValueError`` if it is
/// no capture or damaged; the text says at which byte.
///
/// ``Tree.replay_pcap`` plays a capture without arrays, and with the packets' contents.
#[pyfunction]
pub(crate) fn read_pcap(py: Python<'_>, path: PathBuf) -> PyResult<Capture> {
    let (columns, read) = py.detach(|| {
        let player = open(&path)?;
        let columns = Columns::read(&player)?;
        PyResult::Ok((columns, finish(player)?))
    })?;
    let names = read.flows.iter().map(|flow| (flow.key(), flow.to_string())).collect();
    Ok(Capture {
        times_ns: columns.times_ns.into_pyarray(py).unbind(),
        lengths: columns.lengths.into_pyarray(py).unbind(),
        flows: columns.flows.into_pyarray(py).unbind(),
        ecn: columns.ecn.into_pyarray(py).unbind(),
        priority: columns.priority.into_pyarray(py).unbind(),
        flow_names: names,
        out_of_order: read.out_of_order,
        not_ip: read.not_ip,
        first_unix_ns: read.first_unix_ns,
    })
}
