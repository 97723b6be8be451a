//! How much a qdisc or class wants to send, from what it has counted.

use onramp_core::Instant;
use onramp_core::view::Counted;

use crate::ledger::TICK_US;

/// What a qdisc or class sends and wants to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// The rate at which it sent in the last tick, in bytes per second.
    pub used: u64,
    /// The rate at which it wants to send, in bytes per second.
    pub demand: u64,
}

/// Finds out from counters, read at each tick, how much a qdisc or class wants to send.
///
/// The demand is the rate at which packets come (those that left, those that were dropped and those
/// that wait), and a quarter of what waits, so that a queue is gone after about four ticks. One
/// packet that waits is no queue.
///
/// A change of the rate at which packets come is followed at once if it is a rise, and in the
/// second tick if it is a fall, so that a burst every tick or two is one demand. A difference of at
/// most a quarter, or of at most two packets in a tick, is none: then the mean since the last
/// change counts, over about eight ticks at most. Whatever a host claimed beyond its need, others
/// could not use, so hosts do not claim the largest of what they have just seen.
///
/// A sender such as TCP sends no faster than the qdisc lets it, so its demand does not show. If it
/// has had all that was claimed for three ticks (for twelve, if only one packet waits), and still
/// hardly fewer packets wait and none was dropped, then either the share keeps them, or something
/// else does. If the share is used up, the meter tries whether the sender would send more: the
/// demand is an eighth more than the rate at which packets come, and once more of them have come, a
/// quarter more. If no more come for three ticks in which they could, the sender has what it wants.
/// Then, and if the share was not used up, nothing is claimed for the queue and no trial begins for
/// ten ticks. If packets wait for a whole tick and none leaves, up to two packets in a tick are
/// wanted.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<(Instant, Counted)>,
    /// The rates at which packets came in the last tick and in the one before.
    arrived: [u64; 2],
    /// The mean of such rates while they differ little, and for how many ticks they have.
    mean: u64,
    ticks: u32,
    /// For how many ticks the sender has been held back although it had what was claimed for it.
    held: u32,
    /// The length of packets, as far as known.
    packet: Option<u64>,
    trial: Trial,
    found: Traffic,
}

/// What happened between two readings. Amounts are in bytes per second.
#[derive(Clone, Copy)]
struct Tick {
    /// What came, and what left.
    arrived: u64,
    sent: u64,
    /// What waited all the time, beyond one packet.
    queue: u64,
    /// The length of a packet.
    packet: u64,
    /// What waited all the time, at most two packets, if none left.
    stuck: u64,
    /// Whether packets waited all the time, at the end hardly fewer than before, and none was
    /// dropped. (A queue that is claimed becomes shorter by a quarter.)
    is_full: bool,
}

/// How far the meter is in finding out whether a sender would send more.
#[derive(Clone, Copy, Debug)]
enum Trial {
    /// There is none, nor will there be one for so many ticks.
    None(u32),
    /// Packets have come at little more than `base` bytes per second for so many `ticks`, and
    /// whether the sender has sent more since the trial began.
    Runs { base: u64, ticks: u32, answered: bool },
}

impl Default for Trial {
    fn default() -> Self {
        Self::None(0)
    }
}

/// For how many ticks a trial waits for an answer, and for how many there is none after it.
const PATIENCE: u32 = 3;
const REST: u32 = 10;
/// For how many ticks a sender has to be held back before a trial begins.
const HELD: u32 = 3;
/// In how many ticks a queue is to leave.
const LEAVES: u64 = 4;
/// The largest number of ticks of which a mean is made.
const MEAN: u64 = 8;
const HALF_A_TICK_NS: u64 = TICK_US * 1_000 / 2;

impl Meter {
    /// Makes a meter that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what was counted up to `now` under the share `share` (bytes per second), and returns
    /// what is sent and wanted: nothing at the first call.
    pub fn read(&mut self, now: Instant, counted: Counted, share: u64) -> Traffic {
        let Some((before, was)) = self.last else {
            self.last = Some((now, counted));
            return Traffic::default();
        };
        let span = now.since(before);
        // After a tick that came late, the next one may come at once, and would find one packet to
        // be a high rate.
        if span < HALF_A_TICK_NS {
            return self.found;
        }
        self.last = Some((now, counted));
        let tick = Tick::between(span, was, counted, &mut self.packet);
        let came = self.demand(tick);
        let has_all = share >= self.found.demand - self.found.demand / 16;
        self.held = if tick.is_full && has_all { self.held.saturating_add(1) } else { 0 };
        self.go_on(came, tick, share);
        let claim = match self.trial {
            Trial::None(0) => came.saturating_add(tick.queue / LEAVES),
            Trial::None(_) => came,
            Trial::Runs { answered: false, .. } => came.saturating_add(came / 8),
            Trial::Runs { answered: true, .. } => came.saturating_add(came / 4),
        };
        self.arrived = [tick.arrived, self.arrived[0]];
        self.found = Traffic { used: tick.sent, demand: claim.max(tick.stuck) };
        self.found
    }

    /// Goes on with the trial, begins one, or ends it.
    const fn go_on(&mut self, came: u64, tick: Tick, share: u64) {
        // Only whole packets leave.
        let is_used = tick.sent.saturating_add(tick.packet) >= share - share / 16;
        // One packet often waits by chance.
        let least = if tick.queue > 0 { HELD } else { 4 * HELD };
        self.trial = match self.trial {
            Trial::None(0) if self.held < least => Trial::None(0),
            Trial::None(0) if is_used => Trial::Runs { base: came, ticks: 0, answered: false },
            // It is not the share that keeps the queue.
            Trial::None(0) => Trial::None(REST),
            Trial::None(rest) => Trial::None(rest - 1),
            Trial::Runs { base, .. } if came > base.saturating_add(base / 16) => {
                Trial::Runs { base: came, ticks: 0, answered: true }
            }
            Trial::Runs { ticks: PATIENCE.., .. } => Trial::None(REST),
            // Others may leave nothing for the trial, but a sender that is held back goes on
            // trying.
            Trial::Runs { base, answered, .. }
                if tick.is_full && is_used && share < base.saturating_add(base / 16) =>
            {
                Trial::Runs { base, ticks: 0, answered }
            }
            Trial::Runs { base, ticks, answered } => {
                Trial::Runs { base, ticks: ticks + 1, answered }
            }
        };
    }

    /// Returns the rate at which packets come.
    fn demand(&mut self, tick: Tick) -> u64 {
        let [last, earlier] = self.arrived;
        let falls_again = tick.arrived < last && last < earlier;
        let half = if falls_again { 0 } else { tick.arrived / 2 + last / 2 };
        let recent = tick.arrived.max(half);
        let little = (self.mean / 4).max(tick.packet.saturating_mul(2));
        let is_same = self.mean > 0 && recent.abs_diff(self.mean) <= little;
        self.ticks = if is_same { self.ticks.saturating_add(1) } else { 0 };
        self.mean = match self.ticks {
            // A demand often changes within a tick, so the first tick has seen a part of it.
            0 | 1 => recent,
            _ if matches!(self.trial, Trial::Runs { answered: true, .. }) => {
                self.mean.max(tick.arrived)
            }
            ticks => {
                // A mean of eight ticks would hear an answer to a trial only when it has ended.
                let most = if matches!(self.trial, Trial::Runs { .. }) { 2 } else { MEAN };
                let ticks = u64::from(ticks).min(most);
                self.mean - self.mean / ticks + tick.arrived / ticks
            }
        };
        self.mean
    }
}

impl Tick {
    /// Compares what was counted at its end with what had been counted at its beginning, `span`
    /// nanoseconds before. `known` is the length of the packets before.
    fn between(span: u64, was: Counted, counted: Counted, known: &mut Option<u64>) -> Self {
        // Counters that went back are those of a new qdisc.
        let sent = counted.sent_bytes.saturating_sub(was.sent_bytes);
        let packets = counted.sent_packets.saturating_sub(was.sent_packets);
        let drops = counted.dropped_packets.saturating_sub(was.dropped_packets);
        // Counters of drops are in packets; a dropped packet counts as long as one that left.
        *known = sent.checked_div(packets).or(*known);
        let packet = known.unwrap_or(PACKET);
        let held = counted.backlog_bytes.saturating_sub(was.backlog_bytes);
        let drained = was.backlog_bytes.saturating_sub(counted.backlog_bytes);
        let came = sent.saturating_add(drops.saturating_mul(packet)).saturating_add(held);
        let waited = was.backlog_bytes.min(counted.backlog_bytes);
        let queue = waited.saturating_sub(packet);
        let rate = |bytes: u64| {
            u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(span)).unwrap_or(u64::MAX)
        };
        Self {
            arrived: rate(came.saturating_sub(drained)),
            sent: rate(sent),
            queue: rate(queue),
            packet: rate(packet),
            // Under a rate at which no packet leaves in a tick, no more come from a sender that
            // waits until they have left. So what waits is wanted.
            stuck: if sent == 0 { rate(waited.min(packet.saturating_mul(2))) } else { 0 },
            is_full: waited > 0
                && drops == 0
                && counted.backlog_bytes >= was.backlog_bytes - was.backlog_bytes / 8,
        }
    }
}

/// The assumed length of a dropped packet, in bytes, while no packet has left.
const PACKET: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads at the end of each tick of 100 ms.
    fn demands(counted: &[(u64, u64, u64)]) -> Vec<u64> {
        under(50_000, counted)
    }

    fn under(share: u64, counted: &[(u64, u64, u64)]) -> Vec<u64> {
        let mut meter = Meter::new();
        let mut sum = Counted::default();
        meter.read(Instant(0), sum, share);
        let read = |(tick, (sent, drops, backlog)): (u64, &(u64, u64, u64))| {
            sum.sent_bytes += sent;
            sum.sent_packets += sent / 500;
            sum.dropped_packets += drops;
            sum.backlog_bytes = *backlog;
            meter.read(Instant((tick + 1) * 100_000_000), sum, share).demand
        };
        (0..).zip(counted).map(read).collect()
    }

    #[test]
    fn a_demand_rises_at_once_and_falls_over_two_ticks() {
        let read = demands(&[(1_000, 0, 0), (5_000, 0, 0), (1_000, 0, 0), (1_000, 0, 0)]);
        assert_eq!(read, [10_000, 50_000, 30_000, 10_000]);
    }

    /// Six and seven packets in turn are one demand, between both; so are rates that differ by less
    /// than a quarter. Larger differences are other demands.
    #[test]
    fn a_demand_that_differs_little_is_its_mean() {
        let turns = |a: u64, b: u64| {
            let ticks: Vec<_> = (0..40).map(|at| ([a, b][at % 2], 0, 0)).collect();
            demands(&ticks)[20..].to_vec()
        };
        for (a, b) in [(3_000, 3_500), (300_000, 250_000)] {
            let (low, high) = (4 * a + 6 * b, 6 * a + 4 * b);
            let is_mean = |demand: &u64| (low.min(high)..=low.max(high)).contains(demand);
            assert!(turns(a, b).iter().all(is_mean), "{:?}", turns(a, b));
        }
        let burst_every_other_tick = turns(0, 300_000);
        assert!(burst_every_other_tick.iter().all(|demand| *demand >= 1_500_000));
        // A change of a third is followed at once.
        let mut ticks = vec![(30_000, 0, 0); 10];
        ticks.extend([(40_000, 0, 0), (20_000, 0, 0), (20_000, 0, 0)]);
        assert_eq!(demands(&ticks)[9..], [300_000, 400_000, 300_000, 200_000]);
        // A fall that goes on is followed at once.
        let falls = [(100_000, 0, 0), (60_000, 0, 0), (20_000, 0, 0)];
        assert_eq!(demands(&falls), [1_000_000, 800_000, 200_000]);
    }

    #[test]
    fn dropped_and_waiting_packets_count() {
        // 5,000 bytes leave; 20 packets of 500 bytes are dropped.
        assert_eq!(demands(&[(5_000, 20, 0)]), [150_000]);
        assert_eq!(demands(&[(5_000, 0, 3_000)]), [80_000]);
        // What waited and now leaves came before.
        assert_eq!(demands(&[(0, 0, 3_000), (3_000, 0, 0)]), [30_000, 15_000]);
        assert_eq!(demands(&[(0, 3, 0)]), [30_000], "nothing has left");
    }

    #[test]
    fn what_waits_without_leaving_is_wanted() {
        let read = under(1, &[(0, 0, 3_000); 20]);
        assert_eq!(read[0], 30_000, "it has just come");
        assert!(read[1..].iter().all(|demand| (20_000..=30_000).contains(demand)), "{read:?}");
        let read = under(1, &[(0, 0, 600); 20]);
        assert_eq!(read[10..], [6_000; 10], "no more than what waits");
    }

    #[test]
    fn a_sender_that_is_held_back_may_want_more() {
        // The last reading is the third of those whose share was at least what was claimed.
        let held_back = |share, drops| *under(share, &[(5_000, drops, 900); 6]).last().unwrap();
        let came = 50_900;
        assert_eq!(held_back(52_000, 0), came + came / 8);
        assert_eq!(held_back(60_000, 0), came, "it leaves a part of its share unused");
        let queue = 1_000;
        assert_eq!(held_back(45_000, 0), came + queue, "others leave it nothing more");
        assert_eq!(held_back(52_000, 1), came + queue + 5_000, "more than enough came");
    }

    /// What waits beyond one packet is to leave within four ticks.
    #[test]
    fn a_queue_is_wanted() {
        let read = demands(&[(5_000, 0, 4_500), (5_000, 0, 4_000), (5_000, 0, 3_500)]);
        assert_eq!(read[2] - 45_000, (3_500 - 500) * 10 / 4);
        let read = demands(&[(5_000, 0, 500), (5_000, 0, 500), (5_000, 0, 500)]);
        assert_eq!(read[2], 51_250, "one packet is no queue");
    }

    /// Reads ticks of a sender whose share is what it claimed in the tick before. `sends` returns
    /// what a sender with this share sends and has waiting. Returns the claims.
    fn claims(mut sends: impl FnMut(u64) -> (u64, u64), ticks: usize) -> Vec<u64> {
        let mut meter = Meter::new();
        let (mut sum, mut share) = (Counted::default(), 20_000);
        meter.read(Instant(0), sum, share);
        let mut claims = Vec::new();
        for tick in 1..=ticks as u64 {
            let (sent, backlog) = sends(share / 10);
            sum.sent_bytes += sent;
            sum.sent_packets += sent / 500;
            sum.backlog_bytes = backlog;
            share = meter.read(Instant(tick * 100_000_000), sum, share).demand;
            claims.push(share);
        }
        claims
    }

    /// A sender that always uses its share doubles it within five ticks.
    #[test]
    fn a_trial_goes_on_while_the_sender_answers() {
        let grows = claims(|share| (share, 3_000), 40);
        // It begins when the sender has been held back for three ticks.
        assert!(grows[6..].windows(6).all(|six| six[5] >= 2 * six[0]), "{grows:?}");
    }

    /// A sender that has what it wants, and a backlog that does not go, claims more in at most 6 of
    /// 16 ticks.
    #[test]
    fn a_trial_without_an_answer_ends() {
        let stays = claims(|_| (2_000, 3_000), 60);
        let more = |ticks: &[u64]| ticks.iter().filter(|claim| **claim > 20_500).count();
        assert!(stays[12..].windows(16).all(|ticks| (1..=6).contains(&more(ticks))), "{stays:?}");
    }

    /// The former share still counts for a fifth of the tick, and the mean is old when the sender
    /// begins to want more.
    #[test]
    fn a_trial_on_an_old_mean_is_answered() {
        let (mut before, mut tick) = (20_000, 0);
        let grows = claims(
            |share| {
                tick += 1;
                let could = (before + 4 * share) / 5;
                before = share;
                (if tick <= 40 { could.min(2_000) } else { could }, 3_000)
            },
            80,
        );
        assert!(grows[79] >= 4 * grows[38], "{grows:?}");
    }

    #[test]
    fn a_sender_with_one_packet_may_want_more() {
        let grows = claims(|share| (share, 500), 60);
        assert!(grows[59] >= 2 * grows[10], "{grows:?}");
    }

    /// Three and a quarter packets may leave in a tick: three of them use the share up.
    #[test]
    fn a_share_is_used_up_by_whole_packets() {
        let mut meter = Meter::new();
        let (mut sum, mut begins) = (Counted { backlog_bytes: 1_000, ..Counted::default() }, None);
        meter.read(Instant(0), sum, 17_200);
        for tick in 1..40 {
            let packets = if tick % 4 == 3 { 4 } else { 3 };
            sum.sent_packets += packets;
            sum.sent_bytes += packets * 500;
            meter.read(Instant(tick * 100_000_000), sum, 17_200);
            if matches!(meter.trial, Trial::Runs { .. }) {
                begins.get_or_insert(tick);
            }
        }
        assert!(begins.is_some_and(|tick| tick <= 12), "{begins:?}");
    }

    /// The queue of a `netem` varies by a packet.
    #[test]
    fn a_queue_that_stays_about_the_same_is_not_claimed() {
        let ticks: Vec<_> = (0..60).map(|at| (125_000, 0, 300_000 - at % 2 * 500)).collect();
        let read = under(25_000_000, &ticks);
        let more = read[10..].iter().filter(|demand| **demand > 1_400_000).count();
        assert!(more <= 20, "{read:?}");
    }

    #[test]
    fn the_largest_numbers_are_no_error() {
        let mut meter = Meter::new();
        meter.read(Instant(0), Counted::default(), u64::MAX);
        let counted = Counted { sent_bytes: u64::MAX, sent_packets: 1, ..Counted::default() };
        let read = meter.read(Instant(100_000_000), counted, u64::MAX);
        assert_eq!(read.demand, u64::MAX);
    }

    #[test]
    fn a_new_qdisc_begins_at_zero() {
        let mut meter = Meter::new();
        let counted = Counted { sent_bytes: 9_000, sent_packets: 9, ..Counted::default() };
        meter.read(Instant(0), counted, 1);
        let nothing = Traffic::default();
        assert_eq!(meter.read(Instant(100_000_000), Counted::default(), 1), nothing);
        assert_eq!(meter.read(Instant(100_000_000), counted, 1), nothing, "no time has passed");
    }

    #[test]
    fn what_left_is_used() {
        let mut meter = Meter::new();
        meter.read(Instant(0), Counted::default(), 1);
        let (sent_bytes, sent_packets, backlog_bytes) = (4_000, 8, 500);
        let counted = Counted { sent_bytes, sent_packets, backlog_bytes, ..Counted::default() };
        let read = meter.read(Instant(200_000_000), counted, 90_000);
        assert_eq!(read, Traffic { used: 20_000, demand: 22_500 });
    }
}
