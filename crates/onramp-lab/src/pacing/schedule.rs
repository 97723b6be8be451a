//! The instants at which the packets of a shaper are due, where nobody knows when the shaper
//! released them.

use super::Shaper;

const SECOND_NS: u64 = 1_000_000_000;

/// The instants at which the packets of a shaper are due, computed from its rate and from the
/// arrivals: one packet after the other at even gaps. A packet that arrives before its instant
/// begins a new schedule, and so does one that is later than the sender can make up for.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedule {
    /// Packets per second.
    rate: u64,
    /// How much lateness the sending side can make up for, nanoseconds.
    limit_ns: u64,
    /// When the schedule began; `None` before the first packet.
    start_ns: Option<u64>,
    /// Number of packets since the schedule began.
    packets: u64,
    /// Time by which packets came later than the sender can make up for, less the time by which
    /// later packets came early, nanoseconds.
    lost_ns: u64,
}

impl Schedule {
    /// Returns a schedule of `rate` packets per second, of a sender that makes up for `limit_ns`
    /// nanoseconds of lateness.
    pub(super) fn new(rate: u64, limit_ns: u64) -> Self {
        Self { rate, limit_ns, ..Self::default() }
    }

    /// Notes `packets` packets that left in their turn and arrived at an unknown time.
    pub(super) const fn skip(&mut self, packets: u64) {
        self.packets += packets;
    }

    /// Notes a packet that arrived at `at_ns`. Returns how long after its instant it arrived,
    /// nanoseconds.
    pub(super) fn arrived(&mut self, at_ns: u64) -> u64 {
        let start_ns = self.start_ns.unwrap_or(at_ns);
        let due_ns = start_ns.saturating_add(times_gap(self.packets, self.rate));
        let (early_ns, late_ns) = (due_ns.saturating_sub(at_ns), at_ns.saturating_sub(due_ns));
        let begins = self.start_ns.is_none() || early_ns > 0;
        if begins {
            // A packet that comes early shows that the sender did make up for what seemed lost.
            self.lost_ns = self.lost_ns.saturating_sub(early_ns);
            (self.start_ns, self.packets) = (Some(at_ns), 0);
        } else {
            let lost_ns = late_ns.saturating_sub(self.limit_ns);
            self.lost_ns += lost_ns;
            self.start_ns = Some(start_ns + lost_ns);
        }
        self.packets += 1;
        if begins { 0 } else { late_ns }
    }

    /// Returns how much time the sender could not make up for until now, nanoseconds.
    pub(super) const fn lost_ns(&self) -> u64 {
        self.lost_ns
    }
}

/// Returns the time of `packets` packets at `rate` packets per second, nanoseconds, rounded down.
/// The rounding does not add up over the packets.
pub(super) fn times_gap(packets: u64, rate: u64) -> u64 {
    let ns = u128::from(packets) * u128::from(SECOND_NS) / u128::from(rate.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Returns how much lateness the kernel's `shaper` makes up for at `rate` packets per second,
/// nanoseconds, as its sources have it (`net/sched/sch_*.c`).
///
/// `tbf` releases a packet when it has the tokens of this packet, and gathers those of the burst.
/// `htb` releases one when it owes none, so it gathers a whole burst. `fq` shortens a gap by at
/// most its half. `cake` has no limit while packets wait; it gets the 5 ms that a link has, so
/// that both are measured in the same way.
pub(super) fn kernel_limit_ns(shaper: Shaper, rate: u64) -> u64 {
    let burst = u64::from(super::BURST / super::PACKET);
    match shaper {
        Shaper::Tbf => times_gap(burst - 1, rate),
        Shaper::Htb => times_gap(burst, rate),
        Shaper::Cake => onramp_core::CATCH_UP_NS,
        Shaper::Fq => times_gap(1, rate) / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10,000,000 packets per second: a gap of 100 ns.
    const RATE: u64 = 10_000_000;

    #[test]
    fn a_schedule_follows_the_earliest_packets_and_what_is_lost() {
        let mut schedule = Schedule::new(RATE, 150);
        let arrivals = [1_000, 1_000, 1_130, 1_200, 1_450, 1_450, 1_900];
        let found = arrivals.map(|at| (schedule.arrived(at), schedule.lost_ns()));
        // Due at 1,000; the second came early, so later ones are due at 1,100, 1,200, 1,300 and
        // 1,400. The last is due at 1,500 and loses what exceeds 150.
        let want = [(0, 0), (0, 0), (30, 0), (0, 0), (150, 0), (50, 0), (400, 250)];
        assert_eq!(found, want);
        // The next one is due at 1,850.
        assert_eq!((schedule.arrived(1_853), schedule.lost_ns()), (3, 250));
    }

    /// A shaper that catches up further than the limit has lost nothing, however late it was.
    #[test]
    fn what_is_made_up_for_after_all_is_not_lost() {
        let mut schedule = Schedule::new(RATE, 150);
        let found = [1_000, 2_000, 2_000, 2_000].map(|at| {
            schedule.arrived(at);
            schedule.lost_ns()
        });
        // The second is due at 1,100 and loses 750; the third is due at 1,950. The fourth is due
        // at 2,050, comes 50 early, and the rest follows with the next six.
        assert_eq!(found, [0, 750, 750, 700]);
        for _ in 0..7 {
            schedule.arrived(2_000);
        }
        assert_eq!(schedule.lost_ns(), 0);
        schedule.arrived(3_000);
        assert_eq!(schedule.lost_ns(), 750, "what was given back is no credit");
    }

    /// A gap of 3,333 and a third nanoseconds: after a second the schedule is still exact.
    #[test]
    fn the_rest_of_a_gap_adds_up() {
        let rate = 300_000;
        let mut schedule = Schedule::new(rate, 1_000_000_000);
        let late = (0..=rate).map(|n| schedule.arrived(7 + n * 10_000 / 3)).max();
        assert_eq!(late, Some(0));
    }

    /// Packets that were not seen keep their turns, so those behind them are not late.
    #[test]
    fn packets_without_an_arrival_keep_their_turns() {
        let mut schedule = Schedule::new(RATE, 150);
        assert_eq!(schedule.arrived(1_000), 0);
        schedule.skip(10);
        assert_eq!((schedule.arrived(2_103), schedule.lost_ns()), (3, 0));
    }

    #[test]
    fn each_shaper_of_the_kernel_has_its_own_limit() {
        let limits = Shaper::ALL.map(|shaper| kernel_limit_ns(shaper, 1_000));
        assert_eq!(limits, [1_000_000, 2_000_000, 5_000_000, 500_000]);
        let limits = Shaper::ALL.map(|shaper| kernel_limit_ns(shaper, 100_000));
        assert_eq!(limits, [10_000, 20_000, 5_000_000, 5_000]);
    }
}
