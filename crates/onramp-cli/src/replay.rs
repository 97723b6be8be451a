//! The work of `onramp replay`: plays a capture through a tree of qdiscs in virtual time.

#[cfg(test)]
mod any;
mod frame;
mod player;
mod rows;
mod timeline;
mod write;

use std::cell::RefCell;

use anyhow::Result;
use onramp_core::qdisc::Backlog;
use onramp_core::{Rate, Tree};
use onramp_queue::Packet;
use onramp_sim::source::Source;
use onramp_sim::{BEGIN, Fate, Sim, Sink, Wire};

pub(crate) use self::frame::Flow;
pub(crate) use self::player::{Player, Read};
use self::rows::Rows;
pub(crate) use self::timeline::Timeline;
use self::write::Writer;
use crate::output::Stream;

/// Size in bytes of the largest packet that the link of a replay takes: 1,500 bytes and an Ethernet
/// header of 14 bytes.
pub(crate) const MTU: u32 = 1514;
/// Largest number of flows that the results count separately.
pub(crate) const FLOWS_MAX: usize = 1 << 16;
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
pub(crate) struct Streams {
    pub(crate) capture: Option<Stream>,
    pub(crate) rows: Option<Stream>,
}

/// Plays the capture to its end, or up to the place where it cannot be read any further; in that
/// case the results contain the error. Calls `watch` from time to time with the number of bytes
/// read so far. If `watch` returns an error, the run ends.
pub(crate) fn run(
    plan: Plan,
    tree: Tree,
    player: Player<'_>,
    streams: Streams,
    watch: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(Results, Result<()>)> {
    let player = RefCell::new(player);
    let mut sim = Sim::new(Wire::new(tree, plan.rate, 0));
    sim.add(Playing(&player));
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
    drop(sim);
    let (read, failed) = player.into_inner().into_read();
    let error = failed.as_ref().err().map(|error| format!("{error:#}"));
    Ok((Results { plan, read, sink, timeline, held, stats, error }, failed))
}

/// The player (which reads the capture) as the source of packets for the simulation. The simulation
/// takes packets from the player, and between them the replay asks the player about the packets
/// that it has read. So both borrow the player from a `RefCell`.
struct Playing<'p, 'i>(&'p RefCell<Player<'i>>);

impl Source for Playing<'_, '_> {
    fn due(&mut self) -> Option<onramp_core::Instant> {
        self.0.borrow_mut().due()
    }

    fn packet(&mut self, _now: onramp_core::Instant) -> Option<Packet> {
        self.0.borrow_mut().packet()
    }
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
