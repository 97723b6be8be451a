//! The measurements of one qdisc in one scenario.

use onramp_core::{Instant, Rate};

use super::scenario::Member;
use super::{Plan, Role, Scenario, Subject};
use crate::fate::Fate;
use crate::sink::jain;
use crate::{BEGIN, Histogram, SEC};

/// Number of parts of equal length into which the whole time of a run, warm-up included, is
/// divided.
pub const PARTS: usize = 120;

/// The measurements of one qdisc in one scenario.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The scenario, which says what traffic was sent.
    pub scenario: Scenario,
    /// The qdisc that was measured.
    pub subject: Subject,
    /// The qdisc with its parameters, as `tc` writes it.
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

/// A flow, with counts of its packets in the measured time (after the warm-up).
#[derive(Clone, Debug)]
pub struct Flow {
    /// The role of the flow in the scenario, such as bulk flow or voice call.
    pub role: Role,
    /// The round trip of the flow without any queue, in nanoseconds.
    pub trip_ns: u64,
    /// Number of packets of the flow that were sent or dropped.
    pub packets: u64,
    /// Number of bytes sent.
    pub sent_bytes: u64,
    /// Number of packets dropped.
    pub dropped: u64,
    /// Number of packets marked with CE.
    pub marked: u64,
    began: Instant,
    /// Number of packets that must still arrive until the flow has transferred all its packets;
    /// `None` if it has, or if it sends without end.
    left: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Part {
    sum_ns: u128,
    count: u64,
    bytes: u64,
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
        // The number of a packet's source is also the index of the packet's flow in `flows`,
        // because the sources were added to the simulation in the order of the flows.
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
                part.bytes += u64::from(fate.packet.len);
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

    /// Returns the flows, in the order in which they were added.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns the queueing delays, in nanoseconds, of the packets of all flows that react to
    /// congestion.
    #[must_use]
    pub fn delays(&self) -> &Histogram {
        &self.delays
    }

    /// Returns the queueing delays of the voice call's packets, in nanoseconds; `None` if the
    /// scenario has no voice call.
    #[must_use]
    pub fn voice_delays(&self) -> Option<&Histogram> {
        (self.voice.count() > 0).then_some(&self.voice)
    }

    /// Returns how long each completed short flow took, in nanoseconds, from its beginning until
    /// its last bit arrived; `None` if no short flow was completed.
    #[must_use]
    pub fn completions(&self) -> Option<&Histogram> {
        (self.completions.count() > 0).then_some(&self.completions)
    }

    /// Returns the mean queueing delay, in nanoseconds, in each of the [`PARTS`] parts of the whole
    /// time, warm-up included; `None` for a part in which no packet was sent.
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn parts(&self) -> impl Iterator<Item = Option<f64>> {
        self.parts.iter().map(|p| (p.count > 0).then(|| p.sum_ns as f64 / p.count as f64))
    }

    /// Returns the rate, in bits per second, at which the packets of all flows that react to
    /// congestion were sent in each of the [`PARTS`] parts of the whole time, warm-up included.
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn goodput_parts(&self) -> impl Iterator<Item = f64> {
        let seconds = self.part_seconds();
        self.parts.iter().map(move |part| part.bytes as f64 * 8.0 / seconds)
    }

    /// Returns the length of each of the [`PARTS`] parts in seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    pub fn part_seconds(&self) -> f64 {
        self.part_ns as f64 / 1e9
    }

    /// Returns the rate, in bits per second, at which the packets of `flow` were sent.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn bits_per_second(&self, flow: &Flow) -> f64 {
        flow.sent_bytes as f64 * 8.0 / self.seconds as f64
    }

    /// Returns the rate, in bits per second, at which the packets of all flows that react to
    /// congestion were sent.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        self.of(Role::is_responsive).map(|flow| self.bits_per_second(flow)).sum()
    }

    /// Returns how much of the link's rate was used, as a share from 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn utilisation(&self) -> f64 {
        let sent: f64 = self.flows.iter().map(|flow| self.bits_per_second(flow)).sum();
        sent / (self.rate.as_bytes_per_second() as f64 * 8.0)
    }

    /// Returns the share of packets that were dropped, of all packets of the flows that react to
    /// congestion.
    #[must_use]
    pub fn dropped_share(&self) -> f64 {
        share(self.of(Role::is_responsive), |flow| flow.dropped)
    }

    /// Returns the share of packets that were marked with CE, of all packets of the flows that
    /// react to congestion.
    #[must_use]
    pub fn marked_share(&self) -> f64 {
        share(self.of(Role::is_responsive), |flow| flow.marked)
    }

    /// Returns the share of the video's packets that were dropped; `None` if the scenario has no
    /// video.
    #[must_use]
    pub fn video_dropped_share(&self) -> Option<f64> {
        let video = |role| role == Role::Video;
        self.of(video).next()?;
        Some(share(self.of(video), |flow| flow.dropped))
    }

    /// Returns Jain's index of fairness of the bulk flows' rates; `None` if there are fewer than
    /// two bulk flows.
    #[must_use]
    pub fn jain(&self) -> Option<f64> {
        let bulk = || self.of(|role| role == Role::Bulk);
        jain(bulk().map(|flow| self.bits_per_second(flow))).filter(|_| bulk().count() > 1)
    }

    /// Returns how much of their fair share the bulk flows got beside a flow that ignores
    /// congestion: their rate, divided by the rate that they would have if all flows had the same
    /// rate. `None` if no flow ignores congestion.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn share_of_fair(&self) -> Option<f64> {
        self.of(|role| role == Role::Flood).next()?;
        let bulk = self.of(|role| role == Role::Bulk).count() as f64;
        let fair = self.rate.as_bytes_per_second() as f64 * 8.0 * bulk / self.flows.len() as f64;
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
