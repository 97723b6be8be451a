//! When a thread wakes for instants that are due.

use super::Instant;

/// How often a thread wakes for packets that are due, unless told otherwise: at most once in 90 µs,
/// or more rarely while packets wait ([`Wakes::rest_up_to`]).
pub const REST_NS: u64 = 90_000;
/// The longest rest of a thread whose wake-ups cost much ([`WakeCost`]): 400 µs.
pub const REST_MAX_NS: u64 = 400_000;

/// Of the time that a thread rests, its wake-ups may cost one part in so many: 5 %.
const SHARE: u64 = 20;
/// After so many long gaps in a row, a rest is as short as at first.
const FAR: u8 = 4;
/// By how much a rest grows with each wake-up, nanoseconds: from the shortest to the longest in
/// some 75 ms. A rest that turns out too long is shortened at once, so the time that this loses is
/// a small part of the time that the rest takes to grow again.
const GROWS_NS: u64 = 1_000;

/// Chooses when a thread wakes for what is due at certain instants, such as packets that a qdisc
/// has held back.
///
/// A thread that woke for each packet would need more time for waking than for the packets. So it
/// may come late on purpose, in one of two ways. With a *slack*, it comes so long after each
/// instant. With a *rest*, it comes at the instant itself, unless that is too soon after the last
/// one for which it came; so instants that are far apart are kept exactly, and of those that are
/// close together several are served by one wake-up.
///
/// While packets wait, the rest grows, up to a [limit](Self::rest_up_to) that follows from what a
/// wake-up costs. It is as short as at first again when the [gaps](Self::gap) between instants are
/// longer than that, so that such instants are kept exactly, and when [no packet
/// waits](Self::ran_dry) any more: a long rest might keep a sender waiting that could send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakes {
    slack_ns: u64,
    /// The shortest rest, the longest, and the present one.
    rest_ns: u64,
    most_ns: u64,
    present_ns: u64,
    /// The time for which the thread was asked last.
    asked: Instant,
    /// The time from which the present rest counts.
    came: Instant,
    /// Number of long gaps in a row, and the instant that followed the last of them.
    far: u8,
    last_far: Instant,
}

impl Wakes {
    /// Makes the wake-ups of a thread that comes `slack_ns` nanoseconds after each instant, and for
    /// instants at most once in `rest_ns` nanoseconds.
    #[must_use]
    pub const fn new(slack_ns: u64, rest_ns: u64) -> Self {
        let (most_ns, present_ns, none) = (rest_ns, rest_ns, Instant(0));
        let (asked, came, far, last_far) = (none, none, 0, none);
        Self { slack_ns, rest_ns, most_ns, present_ns, asked, came, far, last_far }
    }

    /// Lets the rest grow up to `most_ns` nanoseconds, for example to
    /// [`WakeCost::rest_ns`]. A thread that does not rest at all never will.
    #[inline]
    pub fn rest_up_to(&mut self, most_ns: u64) {
        if self.rest_ns > 0 {
            self.most_ns = most_ns.max(self.rest_ns);
            self.present_ns = self.present_ns.min(self.most_ns);
        }
    }

    /// Returns when to wake for what is due at `due`.
    #[inline]
    #[must_use]
    pub fn ask(&mut self, due: Instant) -> Instant {
        self.asked = due.after(self.slack_ns).max(self.came.after(self.present_ns));
        self.asked
    }

    /// Notes that a thread serves, at `present`, what was due at `due`. Returns by how much it
    /// comes after the time for which it was asked, nanoseconds.
    #[inline]
    pub fn serve(&mut self, due: Instant, present: Instant) -> u64 {
        // The thread may come for what nobody has asked it for.
        let asked = self.asked.max(due);
        // A late thread does not put off the next instant: lateness must not add up.
        self.came = asked.min(present);
        // A thread that comes before the time was not woken for these instants.
        if present >= self.asked {
            self.present_ns = self.most_ns.min(self.present_ns.saturating_add(GROWS_NS));
        }
        present.since(asked)
    }

    /// Notes that the instant `due` follows the instant `last`, which was served. If the gap is
    /// longer than the shortest rest four times in a row, the rest becomes as short as at first.
    /// (Of many flows, some instants are far apart by chance.)
    #[inline]
    pub fn gap(&mut self, last: Instant, due: Instant) {
        if due.since(last) <= self.rest_ns {
            self.far = 0;
        } else if due != self.last_far {
            (self.far, self.last_far) = (self.far.saturating_add(1), due);
        }
        if self.far >= FAR {
            self.present_ns = self.rest_ns;
        }
    }

    /// Notes that no packet waits any more: the rest becomes as short as at first.
    #[inline]
    pub const fn ran_dry(&mut self) {
        self.present_ns = self.rest_ns;
    }

    /// Returns the longest time by which a thread may come late on purpose, nanoseconds.
    #[must_use]
    pub const fn longest_ns(&self) -> u64 {
        if self.slack_ns > self.most_ns { self.slack_ns } else { self.most_ns }
    }
}

/// Learns what a wake-up costs a thread, in processor time, to tell how long the thread should rest
/// between two of them: so long that they take 5 % of a processor, but not longer than
/// [`REST_MAX_NS`]. Each port that wakes the thread rests by itself. To end a sleep costs 2 µs on
/// one machine and 20 µs on another, for example where a hypervisor has to set the timer.
///
/// Use it with [`Wakes::rest_up_to`]. The runners of a link have one each, and measure one sleep in
/// sixteen.
///
/// ```
/// use onramp_core::{REST_MAX_NS, REST_NS, WakeCost};
///
/// let mut cost = WakeCost::default();
/// assert_eq!(cost.rest_ns(), REST_NS);
/// for _ in 0..100 {
///     cost.note(16_000);
/// }
/// assert!((300_000..340_000).contains(&cost.rest_ns()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeCost {
    /// The median of the costs, nanoseconds.
    ns: u64,
}

impl Default for WakeCost {
    /// A cost for which the rest is [`REST_NS`].
    fn default() -> Self {
        Self { ns: REST_NS / SHARE }
    }
}

impl WakeCost {
    /// Notes that a wake-up cost `cpu_ns` nanoseconds of processor time.
    pub fn note(&mut self, cpu_ns: u64) {
        // As many costs are above the median as below it, however far.
        let step = self.ns / 32;
        self.ns = if cpu_ns > self.ns {
            (self.ns + step).min(REST_MAX_NS / SHARE)
        } else {
            (self.ns - step).max(REST_NS / SHARE)
        };
    }

    /// Returns how long the thread should rest between two wake-ups, nanoseconds: at least
    /// [`REST_NS`].
    #[must_use]
    pub const fn rest_ns(&self) -> u64 {
        self.ns * SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves instants every `gap` nanoseconds by a thread that comes `late` after it was asked.
    /// Returns the wake-ups, and how long after its instant the latest was served.
    fn drive(mut wakes: Wakes, gap: u64, late: u64) -> (u32, u64) {
        let (mut count, mut worst, mut next) = (0, 0, 1_000_000);
        for _ in 0..1_000 {
            wakes.gap(Instant(next - gap), Instant(next));
            let at = wakes.ask(Instant(next)).after(late);
            assert_eq!(wakes.serve(Instant(next), at), late);
            count += 1;
            worst = worst.max(at.since(Instant(next)));
            // One wake-up serves all instants up to the present.
            while next <= at.0 {
                next += gap;
            }
        }
        let served = u32::try_from((next - 1_000_000) / gap).expect("some thousands");
        (served / count, worst)
    }

    #[test]
    fn instants_far_apart_are_kept_and_others_share_a_wake_up() {
        let rests = Wakes::new(0, 90_000);
        assert_eq!(drive(rests, 100_000, 0), (1, 0));
        // Lateness does not add up.
        assert_eq!(drive(rests, 100_000, 40_000), (1, 40_000));
        let (each, worst) = drive(rests, 10_000, 0);
        assert!(each >= 8 && worst <= 90_000, "{each} {worst}");
        let (each, worst) = drive(rests, 10_000, 5_000);
        assert!(each >= 8 && worst <= 95_000, "{each} {worst}");
        assert_eq!(drive(Wakes::new(0, 0), 10_000, 0), (1, 0));
    }

    #[test]
    fn a_slack_puts_off_each_instant() {
        let mut wakes = Wakes::new(30, 0);
        assert_eq!(wakes.ask(Instant(1_000)), Instant(1_030));
        assert_eq!(wakes.serve(Instant(1_000), Instant(1_010)), 0);
        assert_eq!(wakes.ask(Instant(2_000)), Instant(2_030));
        assert_eq!((wakes.serve(Instant(2_000), Instant(2_130)), wakes.longest_ns()), (100, 30));
        assert_eq!(wakes.serve(Instant(3_000), Instant(3_007)), 7, "it was not asked");
        assert_eq!(Wakes::new(30, 70).longest_ns(), 70);
    }

    /// Whoever asks again before the instant is served puts off nothing.
    #[test]
    fn asking_is_not_serving() {
        let mut wakes = Wakes::new(0, 90);
        assert_eq!(wakes.ask(Instant(1_000)), Instant(1_000));
        wakes.serve(Instant(1_000), Instant(1_000));
        assert_eq!([1_010, 1_010, 1_050].map(|due| wakes.ask(Instant(due)).0), [1_090; 3]);
        // A thread that comes by before the time, for example to push a packet, serves what is due.
        assert_eq!(wakes.serve(Instant(1_050), Instant(1_060)), 0);
        assert_eq!(wakes.ask(Instant(1_070)), Instant(1_150));
    }

    /// While packets wait, the rest grows to what it may be, and the instants are served by fewer
    /// wake-ups.
    #[test]
    fn a_rest_grows_while_packets_wait() {
        let mut rests = Wakes::new(0, 90_000);
        rests.rest_up_to(300_000);
        assert_eq!(rests.longest_ns(), 300_000, "how far a port has to look back");
        let (each, worst) = drive(rests, 10_000, 5_000);
        assert!(each >= 25, "{each}");
        assert!((250_000..=305_000).contains(&worst), "{worst}");
        // It puts nothing off where instants are further apart than the shortest rest.
        assert_eq!(drive(rests, 100_000, 0), (1, 0));
        // A thread that wakes for each instant, or after a slack, never rests.
        for mut wakes in [Wakes::new(0, 0), Wakes::new(30, 0)] {
            let before = wakes;
            wakes.rest_up_to(300_000);
            assert_eq!(wakes, before);
        }
    }

    /// When no packet waits any more, the rest is as short as at first, also the present one.
    #[test]
    fn a_rest_is_short_again_after_a_dry_spell() {
        let mut rests = Wakes::new(0, 90);
        rests.rest_up_to(5_000);
        for served in [10_000, 20_000, 30_000, 40_000] {
            rests.serve(Instant(served), Instant(served));
        }
        assert_eq!(rests.ask(Instant(40_080)), Instant(44_090));
        rests.ran_dry();
        assert_eq!(rests.ask(Instant(40_070)), Instant(40_090));
        assert_eq!(rests.ask(Instant(40_100)), Instant(40_100));
        // A limit that has fallen shortens the present rest.
        rests.serve(Instant(40_100), Instant(40_100));
        rests.rest_up_to(100);
        assert_eq!(rests.ask(Instant(40_101)), Instant(40_200));
        rests.rest_up_to(0);
        assert_eq!(rests.ask(Instant(40_101)), Instant(40_190), "not below the first");
    }

    /// A thread that comes before the time for which it was asked was not woken, so the rest does
    /// not grow.
    #[test]
    fn a_rest_grows_by_wake_ups_alone() {
        let mut rests = Wakes::new(0, 90);
        rests.rest_up_to(5_000);
        rests.serve(Instant(1_000), Instant(1_000));
        assert_eq!(rests.ask(Instant(1_010)), Instant(2_090));
        rests.serve(Instant(1_010), Instant(1_020));
        assert_eq!(rests.ask(Instant(1_030)), Instant(2_110));
        assert_eq!(Wakes::new(0, u64::MAX).serve(Instant(1), Instant(1)), 0);
    }

    /// A rest that has grown is short again when instants are far apart, also if the thread is
    /// late.
    #[test]
    fn instants_far_apart_end_a_long_rest() {
        for late in [0, 30_000] {
            let mut rests = Wakes::new(0, 90_000);
            rests.rest_up_to(300_000);
            let mut serve = |count: u32, gap: u64, start: u64| {
                let (mut next, mut worst) = (start, 0);
                for _ in 0..count {
                    rests.gap(Instant(next - gap), Instant(next));
                    let at = rests.ask(Instant(next)).after(late);
                    worst = at.since(Instant(next));
                    rests.serve(Instant(next), at);
                    while next <= at.0 {
                        next += gap;
                    }
                }
                (next, worst)
            };
            let (next, worst) = serve(1_000, 10_000, 1_000_000);
            assert!(worst > 280_000, "{worst}");
            assert_eq!(serve(1_000, 130_000, next).1, late);
        }
    }

    /// Of many flows, some instants are far apart by chance; the rest stays long.
    #[test]
    fn a_long_gap_now_and_then_ends_no_rest() {
        let mut rests = Wakes::new(0, 90);
        rests.rest_up_to(5_000);
        for served in [1_000, 2_000, 3_000, 4_000] {
            rests.serve(Instant(served), Instant(served));
        }
        for far in 1..4 {
            // Asking again for the same instant counts once.
            (0..9).for_each(|_| rests.gap(Instant(4_000), Instant(4_100 + far)));
            assert_eq!(rests.ask(Instant(4_100 + far)), Instant(8_090));
        }
        rests.gap(Instant(4_000), Instant(4_080));
        rests.gap(Instant(4_000), Instant(4_104));
        assert_eq!(rests.ask(Instant(4_104)), Instant(8_090), "the row was broken");
        (5..8).for_each(|far| rests.gap(Instant(4_000), Instant(4_100 + far)));
        assert_eq!(rests.ask(Instant(4_107)), Instant(4_107));
    }

    /// A sender whose packets last for less than the longest rest keeps its rate: the rest ends
    /// when no packet waits any more.
    #[test]
    fn a_sender_with_few_packets_keeps_its_rate() {
        const GAP: u64 = 10_000;
        const PACKETS: u64 = 20;
        let mut rests = Wakes::new(0, 90_000);
        rests.rest_up_to(400_000);
        let (mut due, mut sent) = (Instant(GAP), 0);
        while due.0 < 1_000_000_000 {
            let present = rests.ask(due);
            rests.serve(due, present);
            let ready = present.since(due) / GAP + 1;
            if ready >= PACKETS {
                rests.ran_dry();
                (sent, due) = (sent + PACKETS, present.after(GAP));
            } else {
                (sent, due) = (sent + ready, due.after(ready * GAP));
            }
        }
        assert!(sent * GAP >= 995_000_000, "{sent}");
    }

    /// A few wake-ups that cost very much, because another program took the processor, say little.
    #[test]
    fn the_rest_follows_the_median_cost() {
        let mut cost = WakeCost::default();
        let rests = |cost: &mut WakeCost, costs: [u64; 5]| {
            (0..100).for_each(|_| costs.iter().for_each(|ns| cost.note(*ns)));
            cost.rest_ns()
        };
        let twelve = rests(&mut cost, [12_000, 12_000, 12_000, 12_000, 9_000_000]);
        assert!((220_000..260_000).contains(&twelve), "{twelve}");
        assert_eq!(rests(&mut cost, [700; 5]), REST_NS);
        assert_eq!(rests(&mut cost, [70_000; 5]), REST_MAX_NS);
        assert!(rests(&mut cost, [6_000; 5]) < 130_000);
    }
}
