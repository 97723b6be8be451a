//! The work of `onramp replay`: plays a capture through a tree of qdiscs in virtual time.

mod rows;
mod timeline;
mod write;

use std::cell::RefCell;

use anyhow::{Error, Result};
use onramp_core::qdisc::Backlog;
use onramp_core::{Rate, Tree};
use onramp_sim::capture::FLOWS_MAX;
pub(crate) use onramp_sim::capture::{Flow, Player, Read};
use onramp_sim::{BEGIN, Fate, Sim, Sink, Wire};

use self::rows::Rows;
pub(crate) use self::timeline::{Cell, Timeline};
use self::write::Writer;
use crate::output::Stream;

/// Size in bytes of the largest packet that the link of a replay takes: 1,500 bytes and an Ethernet
/// header of 14 bytes.
pub(crate) const MTU: u32 = 1514;
/// Number of packets after which `watch`, the function that shows progress, is called again.
const WATCH: u64 = 4_096;

/// The settings of a replay.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The name of the capture.
    pub(crate) from: String,
    /// The lines of `tc` that describe the tree.
    pub(crate) tree: Vec<String>,
    /// The rate of the link; `None` means infinitely fast.
    pub(crate) rate: Option<Rate>,
    pub(crate) seed: u64,
}

/// The results of a replay.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) plan: Plan,
    pub(crate) read: Read,
    pub(crate) sink: Sink,
    pub(crate) timeline: Timeline,
    /// The packets that were still in the tree of qdiscs at the end.
    pub(crate) held: Backlog,
    /// The statistics that the root qdisc reports.
    pub(crate) stats: Vec<(&'static str, u64)>,
    /// The error that ended the replay early; `None` if the whole capture was played.
    pub(crate) error: Option<String>,
}

/// The files to which the replay writes every packet as soon as it leaves or is dropped.
#[derive(Default)]
pub(crate) struct Streams<'s> {
    pub(crate) capture: Option<Stream<'s>>,
    pub(crate) rows: Option<Stream<'s>>,
}

/// Plays the capture to its end, or up to the place where it cannot be read any further; in that
/// case the results contain the error. Calls `watch` from time to time with the number of bytes
/// read so far. If `watch` returns an error, the run ends.
pub(crate) fn run(
    plan: Plan,
    tree: Tree,
    player: Player<'_>,
    streams: Streams<'_>,
    watch: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(Results, Result<()>)> {
    let player = RefCell::new(player);
    let mut sim = Sim::new(Wire::new(tree, plan.rate, 0));
    sim.add(&player);
    let mut sink = Sink::with_flows(FLOWS_MAX);
    let mut timeline = Timeline::default();
    let mut writer = streams.capture.map(Writer::new).transpose()?;
    let mut rows = streams.rows.map(Rows::new).transpose()?;
    for (count, fate) in (1_u64..).zip(&mut sim) {
        if count.is_multiple_of(WATCH) {
            watch(player.borrow().consumed())?;
        }
        sink.note(&fate);
        timeline.note(&fate);
        let head = player.borrow_mut().head(fate.packet.cookie);
        let player = player.borrow();
        if let Some(rows) = &mut rows {
            rows.write(&fate, &player)?;
        }
        if let Some(writer) = &mut writer {
            writer.write(&fate, head, &player)?;
        }
    }
    watch(player.borrow().consumed())?;
    if let Some(rows) = rows {
        rows.finish()?;
    }
    if let Some(writer) = writer {
        writer.finish(&player.borrow())?;
    }
    let mut stats = Vec::new();
    let tree = sim.wire().tree();
    tree.stats(&mut |name, value| stats.push((name, value)));
    let held = tree.backlog();
    sim.wire().held(&mut |flow, bytes, came| sink.note_held(flow, bytes, came));
    drop(sim);
    let (read, failed) = player.into_inner().into_read();
    let failed = failed.map_err(Error::new);
    let error = failed.as_ref().err().map(|error| format!("{error:#}"));
    Ok((Results { plan, read, sink, timeline, held, stats, error }, failed))
}

/// Returns the number of a packet in the capture, counted from 1, and the number of the capture's
/// interface that it came from.
fn numbers(fate: &Fate) -> (u64, usize) {
    let cookie = fate.packet.cookie;
    ((cookie >> 8) + 1, usize::from(cookie.to_le_bytes()[0]))
}

/// Returns the time in nanoseconds from the first packet of the capture to `at`.
fn since_first(at: onramp_core::Instant) -> u64 {
    at.since(BEGIN)
}
