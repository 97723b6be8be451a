//! The scenarios: which flows send, and when.

use std::num::NonZeroU64;

use onramp_core::{Instant, Rate};
use onramp_queue::Packet;

use super::{Plan, WIRE_NS};
use crate::chance::Chance;
use crate::source::{Cbr, Records, Traffic, Window};
use crate::{BEGIN, SEC, Sim};

/// The round trip of a flow when no queue delays its packets, in milliseconds, in all scenarios
/// except [`Scenario::RttMix`].
pub const TRIP_MS: u64 = 100;
/// Up to this time, in milliseconds, is added to each flow's round trip at random. Without the
/// addition, flows with the same round trip would grow and shrink their windows in step.
const TRIP_MORE_MS: u64 = 10;
/// Round trips of the flows of [`Scenario::RttMix`], in milliseconds.
pub const TRIPS_MS: [u64; 4] = [20, 50, 100, 200];
/// Number of bulk flows (which send without end) in scenarios of mild congestion. The numbers for
/// mild and heavy congestion are those of the paper on PIE (Pan et al., 2013).
pub const BULK_MILD: usize = 5;
/// Number of bulk flows in the scenario of heavy congestion; see [`BULK_MILD`].
pub const BULK_HEAVY: usize = 50;

const MS: u64 = 1_000_000;
/// Number of packets that a short flow transfers. The first 10 of them fit into its initial window.
const WEB_PACKETS: NonZeroU64 = NonZeroU64::new(30).expect("not zero");
/// Mean time between the beginnings of short flows, in nanoseconds.
const WEB_EVERY_NS: u64 = 500 * MS;
/// Number of packets in each frame of the video, and the time between frames in nanoseconds.
const FRAME_PACKETS: u64 = 8;
const FRAME_EVERY_NS: u64 = 40 * MS;
/// Size in bytes of each packet of the voice call, and the call's rate in bytes per second: 50
/// packets per second.
const VOICE_BYTES: u32 = 200;
const VOICE_RATE: Rate = Rate::bytes_per_second(10_000);
/// Each bulk flow begins at a random time within this time, in nanoseconds, so that the flows do
/// not grow and shrink their windows in step.
const BEGIN_WITHIN_NS: u64 = SEC;

/// A scenario: which flows share the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// A few flows that send without end: as many as [`BULK_MILD`] says.
    Mild,
    /// Many flows that send without end: as many as [`BULK_HEAVY`] says.
    Heavy,
    /// The flows of [`Scenario::Mild`] beside a flow that always sends one and a half times the
    /// link's rate, whatever happens.
    Unresponsive,
    /// A bulk flow beside short flows, a video that sends frames, and a voice call.
    Bursts,
    /// Bulk flows whose round trips differ.
    RttMix,
    /// The flows of [`Scenario::Mild`], but the flows and the qdiscs use ECN marks instead of
    /// drops.
    Ecn,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 6] =
        [Self::Mild, Self::Heavy, Self::Unresponsive, Self::Bursts, Self::RttMix, Self::Ecn];

    /// Returns the name of the scenario.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mild => "mild",
            Self::Heavy => "heavy",
            Self::Unresponsive => "unresponsive",
            Self::Bursts => "bursts",
            Self::RttMix => "rtt-mix",
            Self::Ecn => "ecn",
        }
    }

    /// Returns a short description of the scenario.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Mild => "5 bulk flows, round trips of 100 to 110 ms",
            Self::Heavy => "50 bulk flows, round trips of 100 to 110 ms",
            Self::Unresponsive => {
                "5 bulk flows beside one of 1.5 times the rate that never answers"
            }
            Self::Bursts => "a bulk flow, 2 short flows a second, a video of 2.4 Mbit/s, a call",
            Self::RttMix => "4 bulk flows, round trips of 20, 50, 100 and 200 ms",
            Self::Ecn => "5 bulk flows, round trips of 100 to 110 ms, marks instead of drops",
        }
    }

    /// Whether the flows and the qdiscs of the scenario use ECN marks.
    #[must_use]
    pub fn marks(self) -> bool {
        self == Self::Ecn
    }
}

/// The role of a flow in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The flow sends without end. Its congestion window limits its rate.
    Bulk,
    /// The flow transfers a small number of packets. Its congestion window limits its rate.
    Web,
    /// The flow sends more than the link can carry, at a constant rate.
    Flood,
    /// The flow sends video frames, each frame in one burst.
    Video,
    /// The flow sends small packets at a low rate, as a voice call does.
    Voice,
}

impl Role {
    /// Whether a flow with this role reacts to congestion.
    #[must_use]
    pub fn is_responsive(self) -> bool {
        matches!(self, Self::Bulk | Self::Web)
    }
}

/// A flow of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) role: Role,
    pub(super) trip_ns: u64,
    pub(super) traffic: Traffic,
}

impl Member {
    /// Returns the number of packets after which the flow is done; `None` if the flow sends without
    /// end.
    pub(super) fn packets(&self) -> Option<u64> {
        (self.role == Role::Web).then_some(WEB_PACKETS.get())
    }

    /// Adds the source of this flow to `sim`.
    pub(super) fn join(&self, sim: &mut Sim<'_>, plan: &Plan) {
        let traffic = self.traffic.clone();
        let back_ns = self.trip_ns.saturating_sub(WIRE_NS);
        match self.role {
            Role::Bulk => sim.add(Window::new(traffic, back_ns)),
            Role::Web => sim.add(Window::new(traffic, back_ns).packets(WEB_PACKETS.get())),
            Role::Flood => sim.add(Cbr::new(
                traffic,
                Rate::bytes_per_second(plan.rate.as_bytes_per_second() * 3 / 2),
            )),
            Role::Video => sim.add(Records::new(frames(&traffic, plan.whole_ns()))),
            Role::Voice => sim.add(Cbr::new(traffic, VOICE_RATE)),
        };
    }
}

/// Returns the packets of the video, each with its time. All packets of a video frame have the same
/// time.
fn frames(traffic: &Traffic, end_ns: u64) -> impl Iterator<Item = (Instant, Packet)> + use<> {
    let traffic = traffic.clone();
    let first_ns = traffic.from.since(BEGIN);
    (0..).map_while(move |number| {
        let at_ns = first_ns + number / FRAME_PACKETS * FRAME_EVERY_NS;
        let mut pkt = Packet::new(traffic.size);
        pkt.flow = traffic.flow;
        (at_ns < end_ns).then(|| (BEGIN.after(at_ns), pkt))
    })
}

/// Returns the flows of `scenario`; their flow keys count from 1.
pub(super) fn members(plan: &Plan, scenario: Scenario) -> Vec<Member> {
    let mut crowd = Crowd { chance: Chance::new(plan.seed), marks: scenario.marks(), all: vec![] };
    let bulk = |crowd: &mut Crowd, count| {
        for _ in 0..count {
            crowd.bulk(TRIP_MS, TRIP_MORE_MS);
        }
    };
    match scenario {
        Scenario::Mild | Scenario::Ecn => bulk(&mut crowd, BULK_MILD),
        Scenario::Heavy => bulk(&mut crowd, BULK_HEAVY),
        Scenario::Unresponsive => {
            bulk(&mut crowd, BULK_MILD);
            crowd.add(Role::Flood, 0, 0);
        }
        Scenario::Bursts => {
            bulk(&mut crowd, 1);
            crowd.add(Role::Video, 0, 0);
            crowd.add(Role::Voice, 0, 0);
            crowd.web(plan.whole_ns());
        }
        Scenario::RttMix => TRIPS_MS.iter().for_each(|trip_ms| crowd.bulk(*trip_ms, 0)),
    }
    crowd.all
}

struct Crowd {
    chance: Chance,
    marks: bool,
    all: Vec<Member>,
}

impl Crowd {
    fn add(&mut self, role: Role, trip_ns: u64, from_ns: u64) {
        let traffic = Traffic::of(self.all.len() as u64 + 1).between(from_ns, u64::MAX);
        let traffic = if role == Role::Voice { traffic.size(VOICE_BYTES) } else { traffic };
        let traffic = if self.marks { traffic.ect() } else { traffic };
        self.all.push(Member { role, trip_ns, traffic });
    }

    /// Adds a bulk flow whose round trip is `trip_ms` milliseconds plus a random time of less than
    /// `more_ms` milliseconds.
    fn bulk(&mut self, trip_ms: u64, more_ms: u64) {
        let trip_ns = trip_ms * MS + self.chance.below(more_ms * MS);
        let from_ns = self.chance.below(BEGIN_WITHIN_NS);
        self.add(Role::Bulk, trip_ns, from_ns);
    }

    /// Adds short flows that begin at random times before `end_ns`. Several of them may run at the
    /// same time.
    fn web(&mut self, end_ns: u64) {
        let mut from_ns = self.chance.exponential(WEB_EVERY_NS);
        while from_ns < end_ns {
            self.add(Role::Web, TRIP_MS * MS, from_ns);
            from_ns += self.chance.exponential(WEB_EVERY_NS);
        }
    }
}

#[cfg(test)]
mod tests;
