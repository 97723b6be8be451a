//! Who sends.

use std::num::NonZeroU64;

use onramp_core::{Instant, Rate};
use onramp_queue::Packet;

use super::{Plan, WIRE_NS};
use crate::chance::Chance;
use crate::source::{Cbr, Records, Traffic, Window};
use crate::{BEGIN, SEC, Sim};

/// The round trip without any queue, milliseconds, but where trips differ.
pub const TRIP_MS: u64 = 100;
/// How much longer a trip may be, by chance: without it, flows that get the same move in step.
const TRIP_MORE_MS: u64 = 10;
/// Round trips of the flows of [`Scenario::RttMix`].
pub const TRIPS_MS: [u64; 4] = [20, 50, 100, 200];
/// Bulk flows of mild and of heavy congestion: those of the paper on PIE (Pan et al., 2013).
pub const BULK_MILD: usize = 5;
/// See [`BULK_MILD`].
pub const BULK_HEAVY: usize = 50;

const MS: u64 = 1_000_000;
/// Packets of a short flow: 10 of them are its first window.
const WEB_PACKETS: NonZeroU64 = NonZeroU64::new(30).expect("not zero");
/// Mean time between short flows.
const WEB_EVERY_NS: u64 = 500 * MS;
/// Packets of a frame of the video, and the time between frames.
const FRAME_PACKETS: u64 = 8;
const FRAME_EVERY_NS: u64 = 40 * MS;
/// Bytes of a packet of the call, of which there are 50 a second.
const VOICE_BYTES: u32 = 200;
const VOICE_RATE: Rate = Rate(10_000);
/// Flows begin within this time, so that they do not move in step.
const BEGIN_WITHIN_NS: u64 = SEC;

/// What traffic there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// A few bulk flows.
    Mild,
    /// Many bulk flows.
    Heavy,
    /// As mild, beside one that sends one and a half times the link's rate, whatever happens.
    Unresponsive,
    /// A bulk flow beside short flows, frames of a video, and a call.
    Bursts,
    /// Bulk flows whose round trips differ.
    RttMix,
    /// As mild, with flows and qdiscs that use marks instead of drops.
    Ecn,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Mild, Self::Heavy, Self::Unresponsive, Self::Bursts, Self::RttMix, Self::Ecn];

    /// What it is called.
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

    /// What it is, in a few words.
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

    /// Whether flows and qdiscs use marks.
    #[must_use]
    pub fn marks(self) -> bool {
        self == Self::Ecn
    }
}

/// What a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It sends without end, with a window.
    Bulk,
    /// It sends a little, with a window.
    Web,
    /// It sends more than the link takes, at a constant rate.
    Flood,
    /// It sends frames, each in one burst.
    Video,
    /// It sends small packets at a low rate.
    Voice,
}

impl Role {
    /// Whether it answers to congestion.
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
    /// Packets until it is done; none: it never is.
    pub(super) fn packets(&self) -> Option<u64> {
        (self.role == Role::Web).then_some(WEB_PACKETS.get())
    }

    /// Adds its source.
    pub(super) fn join(&self, sim: &mut Sim<'_>, plan: &Plan) {
        let traffic = self.traffic.clone();
        let back_ns = self.trip_ns.saturating_sub(WIRE_NS);
        match self.role {
            Role::Bulk => sim.add(Window::new(traffic, back_ns)),
            Role::Web => sim.add(Window::new(traffic, back_ns).packets(WEB_PACKETS.get())),
            Role::Flood => sim.add(Cbr::new(traffic, Rate(plan.rate.0 * 3 / 2))),
            Role::Video => sim.add(Records::new(frames(&traffic, plan.whole_ns()))),
            Role::Voice => sim.add(Cbr::new(traffic, VOICE_RATE)),
        };
    }
}

/// Packets of the video: those of a frame come at once.
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

/// The flows of `scenario`, numbered from 1 on.
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

    /// A bulk flow whose trip is up to `more_ms` longer.
    fn bulk(&mut self, trip_ms: u64, more_ms: u64) {
        let trip_ns = trip_ms * MS + self.chance.below(more_ms * MS);
        let from_ns = self.chance.below(BEGIN_WITHIN_NS);
        self.add(Role::Bulk, trip_ns, from_ns);
    }

    /// Short flows, one after the other or beside each other, until `end_ns`.
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
