//! One direction of a wire without its devices: the qdiscs, what changes them, and the schedule
//! that may decide their rate. Every call takes the time.

use onramp_core::frame::SuperFrame;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Totals, Tree};
use onramp_queue::Packet;

use crate::change::Change;
use crate::edit::{self, EditError};
use crate::gate::Gate;
use crate::schedule::Chances;
use crate::series;
use crate::steps::{Running, Steps, Trace};

/// Behind a schedule without further qdiscs: what passes without a delay.
const THROUGH: &str = "pfifo limit 1000000";

/// The qdiscs of one direction.
#[derive(Debug)]
pub(crate) struct Line {
    /// The description of all qdiscs, those behind the gate included.
    whole: Setup,
    tree: Tree,
    gate: Option<Gate>,
    steps: Option<Steps>,
    /// The steps, since the clock began.
    running: Option<Running>,
    /// Whether frames that leave come to the other end, and the number of those that did not.
    up: bool,
    lost: u64,
    /// Whether the qdiscs want super-frames to be cut before they enter the tree; and a buffer for
    /// a segment.
    cuts: bool,
    segment: Vec<u8>,
}

impl Line {
    /// Makes the line of a tree.
    pub(crate) fn new(tree: Tree) -> Self {
        Self {
            whole: tree.setup().clone(),
            gate: None,
            steps: None,
            running: None,
            up: true,
            lost: 0,
            cuts: takes_chances(tree.setup()),
            tree,
            segment: Vec::new(),
        }
    }

    /// Lets the line follow `trace` from the time at which its clock begins. The tree must not have
    /// got a packet yet.
    pub(crate) fn follow(&mut self, trace: Trace, seed: u64) -> Result<(), EditError> {
        match trace {
            Trace::Steps(steps) => self.steps = Some(steps),
            Trace::Schedule(schedule) => {
                let (mtu, [front, behind]) = (self.tree.mtu(), parts(&self.whole)?);
                let tree = |setup: &Setup, seed: u64| {
                    let tree = Tree::of(setup, mtu, seed);
                    tree.ok_or_else(|| EditError("the tree has no root".to_owned()))
                };
                self.tree = tree(&front, seed)?;
                let behind = tree(&behind, seed.wrapping_add(2))?;
                self.gate = Some(Gate { schedule, chances: None, passing: None, behind });
            }
        }
        Ok(())
    }

    /// Begins the clock of the trace, or begins it anew.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.running = self.steps.clone().map(|steps| Running::new(steps, now));
        if let Some(gate) = &mut self.gate {
            gate.chances = Some(Chances::new(gate.schedule.clone(), now));
        }
    }

    /// Puts a frame into the line, a super-frame in segments if the qdiscs want single packets. A
    /// frame that a qdisc drops is counted by the qdisc.
    pub(crate) fn enqueue(&mut self, mut packet: Packet, now: Instant) {
        if let Some(gate) = &mut self.gate {
            // A packet must not find a chance that was there before it.
            gate.advance(&mut self.tree, now);
        }
        packet.enqueued_ns = now.0;
        let cuts = self.cuts || self.gate.is_some();
        let Some(whole) = SuperFrame::of(&packet).filter(|_| cuts) else {
            let _ = self.tree.enqueue(now, packet);
            return;
        };
        for index in 0..whole.count() {
            whole.write_segment(packet.payload(), index, &mut self.segment);
            let mut segment = packet.duplicate_with(&self.segment);
            segment.gso_size = 0;
            segment.len = u32::try_from(self.segment.len()).unwrap_or(u32::MAX);
            let _ = self.tree.enqueue(now, segment);
        }
    }

    /// Returns the next frame that comes to the other end by `now`, or when to ask again. Makes the
    /// changes that are due.
    pub(crate) fn dequeue(&mut self, now: Instant) -> Result<Dequeue, EditError> {
        while let Some(running) = &mut self.running {
            running.skip(now);
            let Some(at) = running.next().filter(|at| *at <= now) else { break };
            let (changes, line) = running.take();
            let changed = self.change(at, &changes);
            changed.map_err(|error| EditError(format!("line {line} of the trace: {error}")))?;
        }
        loop {
            let answer = match &mut self.gate {
                None => self.tree.dequeue(now),
                Some(gate) => {
                    gate.advance(&mut self.tree, now);
                    let waits = gate.passing.is_some() || self.tree.backlog().packets > 0;
                    let chance = gate.chances.as_ref().filter(|_| waits).map(Chances::next);
                    let chance = chance.map_or(Dequeue::Empty, Dequeue::NotBefore);
                    match gate.behind.dequeue(now) {
                        Dequeue::Ready(packet) => Dequeue::Ready(packet),
                        later => sooner(chance, later),
                    }
                }
            };
            match answer {
                Dequeue::Ready(_) if !self.up => self.lost += 1,
                Dequeue::Ready(packet) => return Ok(Dequeue::Ready(packet)),
                later => {
                    let step = self.next_step().map_or(Dequeue::Empty, Dequeue::NotBefore);
                    return Ok(sooner(step, later));
                }
            }
        }
    }

    fn next_step(&self) -> Option<Instant> {
        self.running.as_ref()?.next()
    }

    /// Makes all the changes, or none.
    pub(crate) fn change(&mut self, now: Instant, changes: &[Change]) -> Result<(), EditError> {
        let (mut whole, mut up) = (self.whole.clone(), self.up);
        for change in changes {
            match change {
                Change::Link(is_up) => up = *is_up,
                other => {
                    let changed = other.apply(&whole, self.tree.mtu(), self.gate.is_some())?;
                    whole = changed.unwrap_or(whole);
                }
            }
        }
        let set = |tree: &mut Tree, setup: &Setup| {
            tree.set(now, setup).map_err(|error| EditError(error.to_string()))
        };
        match &mut self.gate {
            None => set(&mut self.tree, &whole)?,
            Some(gate) => {
                gate.advance(&mut self.tree, now);
                let [front, behind] = parts(&whole)?;
                set(&mut self.tree, &front)?;
                set(&mut gate.behind, &behind)?;
            }
        }
        self.cuts = takes_chances(&whole);
        (self.whole, self.up) = (whole, up);
        Ok(())
    }

    /// Frees the packets that were dropped.
    pub(crate) fn forget_drops(&mut self) {
        drop(self.tree.drops());
        if let Some(gate) = &mut self.gate {
            drop(gate.behind.drops());
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let behind = self.gate.as_ref().map(|gate| gate.behind.totals());
        let own = self.tree.totals();
        behind.map_or(own, |behind| own.with_behind(&behind))
    }

    /// Returns the number of packets that wait.
    pub(crate) fn held(&self) -> u64 {
        let behind = self.gate.as_ref().map_or(0, |gate| {
            u64::from(gate.behind.backlog().packets) + u64::from(gate.passing.is_some())
        });
        behind + u64::from(self.tree.backlog().packets)
    }

    /// Returns the number of frames that came to the end of the line while it was down.
    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) const fn setup(&self) -> &Setup {
        &self.whole
    }
}

fn sooner(one: Dequeue, other: Dequeue) -> Dequeue {
    match (one, other) {
        (Dequeue::NotBefore(one), Dequeue::NotBefore(other)) => Dequeue::NotBefore(one.min(other)),
        (Dequeue::Empty, later) => later,
        (sooner, _) => sooner,
    }
}

/// Splits a description into what stands in front of a gate and what stands behind it: the first
/// stage of a series and the others. A tree with classes stands in front.
fn parts(whole: &Setup) -> Result<[Setup; 2], EditError> {
    let through = || series(&[THROUGH]);
    match edit::stages(whole) {
        Some(stages) if stages.len() > 1 => Ok([series(&stages[..1])?, series(&stages[1..])?]),
        _ => Ok([whole.clone(), through()?]),
    }
}

/// Whether a `netem` of the tree loses, duplicates, corrupts or reorders packets. A share of single
/// packets is meant then, and not of super-frames of up to 64 KiB.
fn takes_chances(setup: &Setup) -> bool {
    let keys = ["loss", "duplicate", "corrupt", "reorder"];
    setup.specs().filter(|spec| spec.kind().id == "netem").any(|spec| {
        let values = spec.values(0);
        keys.iter().any(|key| values.list(key).iter().any(|number| *number > 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ETHERNET, Which};

    const MS: u64 = 1_000_000;

    fn line(stages: &[&str], trace: &str) -> Line {
        let setup = series(stages).expect("qdiscs");
        let mut line = Line::new(Tree::of(&setup, 1_514, 1).expect("a root"));
        let [up, _] = Trace::read(trace, Which::Up).expect("a trace");
        let trace = up.expect("a trace for up");
        trace.check(&setup, 1_514).expect("it can be followed");
        line.follow(trace, 1).expect("it can be followed");
        line
    }

    /// A frame with this many bytes of IP.
    fn packet(cookie: u64, bytes: u32) -> Packet {
        let mut packet = Packet::new(bytes + ETHERNET);
        packet.cookie = cookie;
        packet
    }

    /// Takes frames until none is left, or until this time, in milliseconds. Returns the times, in
    /// milliseconds, and the cookies.
    fn drain_until(line: &mut Line, mut now: Instant, until_ms: u64) -> Vec<(u64, u64)> {
        let mut left = Vec::new();
        loop {
            match line.dequeue(now).expect("the changes can be made") {
                Dequeue::Ready(packet) => left.push((now.0 / MS, packet.cookie)),
                Dequeue::NotBefore(at) if at.0 < until_ms * MS => now = at,
                Dequeue::NotBefore(_) | Dequeue::Empty => return left,
            }
        }
    }

    fn drain(line: &mut Line, now: Instant) -> Vec<(u64, u64)> {
        drain_until(line, now, 3_600_000)
    }

    fn assert_conserved(line: &Line) {
        let totals = line.totals();
        let known = totals.sent_packets + totals.dropped_packets() + line.held();
        assert_eq!(totals.enqueued_packets, known, "{totals:?}");
    }

    #[test]
    fn a_chance_carries_1500_bytes_and_an_idle_one_is_lost() {
        let mut line = line(&["pfifo limit 1000"], "1\n2\n2\n5\n");
        line.enqueue(packet(0, 1_500), Instant(0));
        assert!(matches!(line.dequeue(Instant(3 * MS)), Ok(Dequeue::Empty)), "before it begins");
        line.begin(Instant(10 * MS));
        // 11 ms: one whole packet; 12: a packet that begins in one chance ends in the next.
        line.enqueue(packet(1, 2_000), Instant(10 * MS));
        line.enqueue(packet(2, 500), Instant(10 * MS));
        line.enqueue(packet(3, 1), Instant(10 * MS));
        for (cookie, bytes) in [(4, 500), (5, 500), (6, 499)] {
            line.enqueue(packet(cookie, bytes), Instant(10 * MS));
        }
        let expected = [(11, 0), (12, 1), (12, 2), (12, 3), (15, 4), (15, 5), (15, 6)];
        // The second chance of 12 ms has 500 bytes for 1, 500 for 2, 1 for 3, and 499 for 4.
        assert_eq!(drain(&mut line, Instant(10 * MS)), expected);
        assert_conserved(&line);
        // The chances at 16 and twice at 17 find nothing; the next is at 20.
        line.enqueue(packet(7, 1_500), Instant(18 * MS));
        assert_eq!(drain(&mut line, Instant(18 * MS)), [(20, 7)]);
        line.enqueue(packet(8, 1_500), Instant(20 * MS));
        line.enqueue(packet(9, 1_500), Instant(20 * MS));
        line.enqueue(packet(10, 1_500), Instant(20 * MS));
        assert_eq!(drain(&mut line, Instant(20 * MS)), [(21, 8), (22, 9), (22, 10)]);
        assert_conserved(&line);
    }

    /// 7 chances in 5 ms, for an hour: each packet leaves in its millisecond.
    #[test]
    fn a_schedule_is_followed_exactly_and_without_a_seam() {
        let times = [0, 1, 1, 1, 3, 5, 5];
        let text = times.map(|time| format!("{time}\n")).concat();
        let mut line = line(&["pfifo limit 10000000"], &text);
        line.begin(Instant(0));
        let (mut expected, mut lap) = (Vec::new(), 0);
        while expected.len() < 7_000 {
            expected.extend(times.map(|time| lap + time));
            lap += 5;
        }
        for cookie in 0..expected.len() as u64 {
            line.enqueue(packet(cookie, 1_500), Instant(0));
        }
        let left = drain(&mut line, Instant(0));
        let times: Vec<_> = left.iter().map(|(time, _)| *time).collect();
        // The chance at the time 0 was over when the first packet came.
        assert_eq!(times[..6_000], expected[1..6_001]);
        assert!(left.iter().map(|(_, cookie)| *cookie).eq(0..7_000));
        assert_conserved(&line);
    }

    #[test]
    fn what_stands_behind_a_schedule_delays_what_has_passed() {
        let mut line = line(&["pfifo limit 2", "netem delay 10ms"], "1\n");
        line.begin(Instant(0));
        for cookie in 0..3 {
            line.enqueue(packet(cookie, 1_500), Instant(0));
        }
        // A change of the delay is for what passes later; the rate is that of the schedule.
        let delay = Change::read(&["delay", "20ms"]).expect("a change");
        assert!(matches!(line.dequeue(Instant(MS)), Ok(Dequeue::NotBefore(_))));
        line.change(Instant(MS), &delay).expect("it can be made");
        let rate = Change::read(&["rate", "1mbit"]).expect("a change");
        line.change(Instant(MS), &rate).expect_err("the trace decides");
        assert_eq!(drain(&mut line, Instant(MS)), [(11, 0), (22, 1)]);
        assert_eq!(line.totals().dropped_packets(), 1);
        assert_conserved(&line);
    }

    /// Each step is made at its instant, also if nobody asks in between; packets that wait stay.
    #[test]
    fn steps_are_followed_at_their_instants() {
        let text = "0 rate 12mbit\n1 rate 1.2mbit\n2 link down\n2.5 link up\n4 repeat";
        let mut line = line(&["tbf rate 1gbit burst 1514 limit 1000000"], text);
        line.begin(Instant(0));
        // 1,514 bytes take 1.009 ms at 12 Mbit/s, and 10.09 ms at 1.2 Mbit/s.
        for cookie in 0..100 {
            line.enqueue(packet(cookie, 1_500), Instant(950 * MS));
        }
        let left = drain_until(&mut line, Instant(950 * MS), 6_100);
        let times: Vec<_> = left.iter().map(|(time, _)| *time).collect();
        let in_span = |from, to| times.iter().filter(|time| (from..to).contains(*time)).count();
        assert_eq!(in_span(950, 1_000), 50);
        assert!((9..=11).contains(&in_span(1_000, 1_100)), "{times:?}");
        assert_eq!((times.len() as u64 + line.lost(), line.lost()), (100, 0));
        for cookie in 0..3 {
            line.enqueue(packet(cookie, 1_500), Instant(6_100 * MS));
        }
        assert_eq!(drain_until(&mut line, Instant(6_100 * MS), 6_500), []);
        line.enqueue(packet(3, 1_500), Instant(6_500 * MS));
        assert_eq!(drain_until(&mut line, Instant(6_500 * MS), 7_000), [(6_500, 3)]);
        assert_eq!(line.lost(), 3);
        assert_conserved(&line);
    }

    #[test]
    fn packets_are_conserved_across_changes() {
        let mut line = line(&["netem delay 50ms loss 10% duplicate 20%"], "1 link up");
        let mut now = Instant(0);
        let changes = [
            "delay 5ms loss 0%",
            "rate 3mbit",
            "qdisc pfifo limit 3",
            "link down",
            "qdisc cake bandwidth 1mbit then netem delay 3ms loss 50%",
            "link up",
            "jitter 2ms",
            "qdisc fq_codel limit 7",
        ];
        for text in changes {
            for cookie in 0..40 {
                line.enqueue(packet(cookie, 1_000), now);
                let _ = line.dequeue(now).expect("no step is wrong");
                now = now.after(MS / 4);
            }
            let words: Vec<_> = text.split(' ').collect();
            line.change(now, &Change::read(&words).expect(text)).expect(text);
            assert_conserved(&line);
        }
        let left = drain(&mut line, now);
        assert!(!left.is_empty() && line.held() == 0);
        assert_conserved(&line);
        // Changes are all made, or none.
        let changes = Change::read(&["loss", "5%", "link", "down"]).expect("changes");
        let rootless = [&changes[..], &[Change::Qdiscs(Box::default())]].concat();
        let before = line.setup().lines();
        line.change(now, &rootless).expect_err("no root");
        assert_eq!((line.setup().lines(), line.up), (before, true));
    }
}
