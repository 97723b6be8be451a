//! What came of a scenario and a qdisc.

use onramp_core::{Instant, Rate};

use super::scenario::Member;
use super::{Plan, Role, Scenario, Subject};
use crate::sim::Fate;
use crate::sink::jain;
use crate::{BEGIN, Histogram, SEC};

/// Parts that the time is cut into, warm-up included.
pub const PARTS: usize = 120;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The traffic.
    pub scenario: Scenario,
    /// The qdisc.
    pub subject: Subject,
    /// It, with its parameters.
    pub line: String,
    rate: Rate,
    seconds: u64,
    from: Instant,
    part_ns: u64,
    flows: Vec<Flow>,
    delays: Histogram,
    voice: Histogram,
    completions: Histogram,
    parts: Vec<Part>,
}

/// What became of a flow's packets, while it counted.
#[derive(Clone, Debug)]
pub struct Flow {
    /// What it is.
    pub role: Role,
    /// Its round trip without any queue.
    pub trip_ns: u64,
    /// Packets that came.
    pub packets: u64,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets marked.
    pub marked: u64,
    began: Instant,
    /// Packets that are still to arrive until it is done.
    left: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Part {
    sum_ns: u128,
    count: u64,
}

impl Measurement {
    pub(super) fn new(
        plan: &Plan,
        scenario: Scenario,
        subject: &Subject,
        members: &[Member],
    ) -> Self {
        let flow = |member: &Member| Flow {
            role: member.role,
            trip_ns: member.trip_ns,
            packets: 0,
            sent_bytes: 0,
            dropped: 0,
            marked: 0,
            began: member.traffic.from,
            left: member.packets(),
        };
        Self {
            scenario,
            subject: subject.clone(),
            line: subject.line(scenario.marks(), plan.rate),
            rate: plan.rate,
            seconds: plan.seconds.get(),
            from: BEGIN.after(plan.warm_up_seconds() * SEC),
            part_ns: plan.whole_ns().div_ceil(PARTS as u64),
            flows: members.iter().map(flow).collect(),
            delays: Histogram::default(),
            voice: Histogram::default(),
            completions: Histogram::default(),
            parts: vec![Part::default(); PARTS],
        }
    }

    pub(super) fn note(&mut self, fate: &Fate) {
        // Sources are added in the order of the flows.
        let Some(flow) = self.flows.get_mut(fate.source) else { return };
        let counts = fate.at >= self.from;
        if let (Some(left), Some(arrives)) = (&mut flow.left, fate.arrives) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                flow.left = None;
                if flow.began >= self.from {
                    self.completions.note(arrives.since(flow.began));
                }
            }
        }
        if fate.arrives.is_some() && flow.role.is_responsive() {
            let part = usize::try_from(fate.at.since(BEGIN) / self.part_ns).unwrap_or(PARTS);
            if let Some(part) = self.parts.get_mut(part) {
                part.sum_ns += u128::from(fate.sojourn_ns());
                part.count += 1;
            }
        }
        if !counts {
            return;
        }
        flow.packets += 1;
        flow.marked += u64::from(fate.marked);
        if fate.arrives.is_none() {
            flow.dropped += 1;
            return;
        }
        flow.sent_bytes += u64::from(fate.packet.len);
        match flow.role {
            Role::Bulk | Role::Web => self.delays.note(fate.sojourn_ns()),
            Role::Voice => self.voice.note(fate.sojourn_ns()),
            Role::Flood | Role::Video => {}
        }
    }

    /// The flows, in order.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Queueing delays of packets of flows that answer to congestion, nanoseconds.
    #[must_use]
    pub fn delays(&self) -> &Histogram {
        &self.delays
    }

    /// Queueing delays of the call's packets; none, if there is no call.
    #[must_use]
    pub fn voice_delays(&self) -> Option<&Histogram> {
        (self.voice.count() > 0).then_some(&self.voice)
    }

    /// How long short flows took, from their beginning until the last bit arrived; none, if there
    /// are none.
    #[must_use]
    pub fn completions(&self) -> Option<&Histogram> {
        (self.completions.count() > 0).then_some(&self.completions)
    }

    /// The mean delay, nanoseconds, in each of [`PARTS`] parts of the time; warm-up included.
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn parts(&self) -> impl Iterator<Item = Option<f64>> {
        self.parts.iter().map(|p| (p.count > 0).then(|| p.sum_ns as f64 / p.count as f64))
    }

    /// Seconds that a part is long.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    pub fn part_seconds(&self) -> f64 {
        self.part_ns as f64 / 1e9
    }

    /// Bits a second that `flow` got through.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn bits_per_second(&self, flow: &Flow) -> f64 {
        flow.sent_bytes as f64 * 8.0 / self.seconds as f64
    }

    /// Of all flows that answer to congestion.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        self.of(Role::is_responsive).map(|flow| self.bits_per_second(flow)).sum()
    }

    /// The share of the link that was used.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn utilisation(&self) -> f64 {
        let sent: f64 = self.flows.iter().map(|flow| self.bits_per_second(flow)).sum();
        sent / (self.rate.0 as f64 * 8.0)
    }

    /// The share of packets that were dropped, of flows that answer to congestion.
    #[must_use]
    pub fn dropped_share(&self) -> f64 {
        share(self.of(Role::is_responsive), |flow| flow.dropped)
    }

    /// The share of packets that were marked, of flows that answer to congestion.
    #[must_use]
    pub fn marked_share(&self) -> f64 {
        share(self.of(Role::is_responsive), |flow| flow.marked)
    }

    /// The share of the video's packets that were dropped; none, if there is no video.
    #[must_use]
    pub fn video_dropped_share(&self) -> Option<f64> {
        let video = |role| role == Role::Video;
        self.of(video).next()?;
        Some(share(self.of(video), |flow| flow.dropped))
    }

    /// Jain's index of what the bulk flows got; none, if there is only one.
    #[must_use]
    pub fn jain(&self) -> Option<f64> {
        let bulk = || self.of(|role| role == Role::Bulk);
        jain(bulk().map(|flow| self.bits_per_second(flow))).filter(|_| bulk().count() > 1)
    }

    /// What the bulk flows got beside one that never answers, of what would be theirs if all had
    /// the same; none, if there is no such flow.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn share_of_fair(&self) -> Option<f64> {
        self.of(|role| role == Role::Flood).next()?;
        let bulk = self.of(|role| role == Role::Bulk).count() as f64;
        let fair = self.rate.0 as f64 * 8.0 * bulk / self.flows.len() as f64;
        Some(self.goodput() / fair)
    }

    fn of(&self, wanted: impl Fn(Role) -> bool) -> impl Iterator<Item = &Flow> {
        self.flows.iter().filter(move |flow| wanted(flow.role))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share<'f>(flows: impl Iterator<Item = &'f Flow>, count: impl Fn(&Flow) -> u64) -> f64 {
    let (some, all) = flows.fold((0, 0), |(some, all), f| (some + count(f), all + f.packets));
    if all == 0 { 0.0 } else { some as f64 / all as f64 }
}

#[cfg(test)]
mod tests;
