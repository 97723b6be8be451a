//! When a thread wakes for instants that are due.

use super::Instant;

/// How often a thread wakes for packets that are due, unless told otherwise: at most once in 90 µs.
pub const REST_NS: u64 = 90_000;

/// Chooses when a thread wakes for what is due at certain instants, such as packets that a qdisc
/// has held back.
///
/// A thread that woke for each packet would need more time for waking than for the packets. So it
/// may come late on purpose, in one of two ways. With a *slack*, it comes so long after each
/// instant. With a *rest*, it comes at the instant itself, unless that is too soon after the last
/// one for which it came; so instants that are far apart are kept exactly, and of those that are
/// close together several are served by one wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakes {
    slack_ns: u64,
    rest_ns: u64,
    /// The time for which the thread was asked last.
    asked: Instant,
    /// The rest is over at this time.
    rested: Instant,
}

impl Wakes {
    /// Makes the wake-ups of a thread that comes `slack_ns` nanoseconds after each instant, and for
    /// instants at most once in `rest_ns` nanoseconds.
    #[must_use]
    pub const fn new(slack_ns: u64, rest_ns: u64) -> Self {
        Self { slack_ns, rest_ns, asked: Instant(0), rested: Instant(0) }
    }

    /// Returns when to wake for what is due at `due`.
    #[inline]
    #[must_use]
    pub fn ask(&mut self, due: Instant) -> Instant {
        self.asked = due.after(self.slack_ns).max(self.rested);
        self.asked
    }

    /// Notes that a thread serves, at `present`, what was due at `due`. Returns by how much it
    /// comes after the time for which it was asked, nanoseconds.
    #[inline]
    pub fn serve(&mut self, due: Instant, present: Instant) -> u64 {
        // The thread may come for what nobody has asked it for.
        let asked = self.asked.max(due);
        // A late thread does not put off the next instant: lateness must not add up.
        self.rested = asked.min(present).after(self.rest_ns);
        present.since(asked)
    }

    /// Returns the longest time by which a thread may come late on purpose, nanoseconds.
    #[must_use]
    pub const fn longest_ns(&self) -> u64 {
        if self.slack_ns > self.rest_ns { self.slack_ns } else { self.rest_ns }
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
}
