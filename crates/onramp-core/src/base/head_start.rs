//! How much earlier than it is needed a thread ends its sleep.

use super::Instant;

/// The most by which a sleep ends early, nanoseconds.
const MOST_NS: u64 = 50_000;
/// By how much the head start grows after a sleep that ended later than expected, and falls after
/// one that ended earlier, nanoseconds. So one sleep in four ends before the instant.
const GROWS_NS: u64 = 500;
const FALLS_NS: u64 = 3 * GROWS_NS;

/// Lets a thread come on time although its sleeps end late: the kernel needs 5 to 50 µs to end a
/// sleep, and nearly the same each time on one machine. A head start learns how much, and ends the
/// next sleep so much earlier. Where a sleep then ends too early, the thread has to wait for the
/// rest, usually some microseconds and at most 50 µs, without sleeping.
///
/// Use it in a loop that sleeps until the instant that
/// [`Tree::next_at`](crate::Tree::next_at) names. The runners of a link have one each.
///
/// ```
/// use onramp_core::{HeadStart, Instant};
///
/// let mut head_start = HeadStart::default();
/// for packet in 1..=1_000 {
///     let (now, due) = (Instant(packet * 100_000), Instant(packet * 100_000 + 90_000));
///     let asleep = head_start.sleep_ns(due, now);
///     // Each sleep ends 20 µs late.
///     head_start.woke(now.after(asleep + 20_000));
/// }
/// assert!((69_000..72_000).contains(&head_start.sleep_ns(Instant(90_000), Instant(0))));
/// ```
///
/// Source: the same is done for the timers of virtual machines, Linux `arch/x86/kvm/lapic.c`
/// (`lapic_timer_advance_ns`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadStart {
    /// By how much the next sleep ends early, nanoseconds.
    ns: u64,
    /// When the present sleep is to end, if the thread sleeps.
    ends: Option<Instant>,
    /// The instant for which the thread has waited without a sleep, if it has not slept since.
    awake_for: Option<Instant>,
}

impl HeadStart {
    /// Returns for how long to sleep at `now`, nanoseconds, to come at `due`. 0: it is too near for
    /// a sleep, so wait for it without one, or it is over.
    ///
    /// A thread does not wait for two instants without a sleep between them: before the second, it
    /// sleeps, and comes late. Otherwise it would never sleep, and learn nothing, if instants were
    /// closer together than the head start.
    #[inline]
    #[must_use]
    pub fn sleep_ns(&mut self, due: Instant, now: Instant) -> u64 {
        let wait = due.since(now);
        let may_wait = self.awake_for.is_none_or(|at| due <= at);
        let sleep = wait.saturating_sub(if wait > self.ns || may_wait { self.ns } else { 0 });
        self.ends = (sleep > 0).then(|| now.after(sleep));
        if sleep > 0 {
            self.awake_for = None;
        } else if wait > 0 {
            self.awake_for = Some(due);
        }
        sleep
    }

    /// Notes that the thread is awake at `now`. A sleep that ended before its end, because another
    /// thread ended it, teaches nothing.
    #[inline]
    pub fn woke(&mut self, now: Instant) {
        let Some(ends) = self.ends.take().filter(|ends| *ends <= now) else { return };
        self.ns = if now.since(ends) > self.ns {
            (self.ns + GROWS_NS).min(MOST_NS)
        } else {
            self.ns.saturating_sub(FALLS_NS)
        };
    }

    /// Returns by how much a sleep ends early at present, nanoseconds.
    #[inline]
    #[must_use]
    pub const fn ns(&self) -> u64 {
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps until each of `count` instants, each sleep as late as `late` says. Returns by how
    /// much the thread came after each instant; a negative number means before it.
    fn drive(head_start: &mut HeadStart, count: u64, late: impl Fn(u64) -> u64) -> Vec<i64> {
        let comes = |n: u64| {
            let (now, due) = (Instant(n * 1_000_000), Instant(n * 1_000_000 + 100_000));
            let asleep = head_start.sleep_ns(due, now);
            let woke = now.after(asleep + late(n));
            head_start.woke(woke);
            woke.0.cast_signed() - due.0.cast_signed()
        };
        (0..count).map(comes).collect()
    }

    #[test]
    fn what_is_the_same_each_time_is_made_up_for() {
        let mut head_start = HeadStart::default();
        let errors = drive(&mut head_start, 1_000, |_| 24_000);
        assert_eq!(errors[0], 24_000, "nothing is known yet");
        assert!(errors[100..].iter().all(|error| error.abs() < 2_000), "{errors:?}");
    }

    /// Of random latenesses, a quarter is below the head start.
    #[test]
    fn one_sleep_in_four_ends_early() {
        let mut head_start = HeadStart::default();
        let mut seed = 1_u64;
        let latenesses: Vec<u64> = (0..20_000)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                10_000 + (seed >> 33) % 20_000
            })
            .collect();
        let at = |n: u64| latenesses[usize::try_from(n).expect("a small number")];
        let errors = drive(&mut head_start, 20_000, at);
        let early = errors[1_000..].iter().filter(|error| **error < 0).count();
        assert!((19_000 / 5..19_000 * 3 / 10).contains(&early), "{early} of 19000");
        assert!((12_000..18_000).contains(&head_start.ns()), "{}", head_start.ns());
    }

    /// On a busy machine, sleeps end milliseconds late. The head start stays within its bound, and
    /// is small again soon after.
    #[test]
    fn long_delays_are_not_made_up_for() {
        let mut head_start = HeadStart::default();
        drive(&mut head_start, 10_000, |_| 5_000_000);
        assert_eq!(head_start.ns(), MOST_NS);
        drive(&mut head_start, 40, |_| 0);
        assert!(head_start.ns() < FALLS_NS, "{}", head_start.ns());
    }

    /// Of instants that are closer together than the head start, a thread still sleeps before many.
    #[test]
    fn instants_close_together_do_not_keep_a_thread_awake() {
        let mut head_start = HeadStart::default();
        drive(&mut head_start, 200, |_| 40_000);
        let (start, gap) = (1_000_000_000, 20_000);
        let (mut now, mut sleeps) = (Instant(start), 0);
        for due in (1..=1_000).map(|n| Instant(start + n * gap)) {
            if due <= now {
                continue; // It was served together with an earlier one.
            }
            now = match head_start.sleep_ns(due, now) {
                0 => due,
                asleep => {
                    let woke = now.after(asleep + 5_000);
                    head_start.woke(woke);
                    sleeps += 1;
                    woke
                }
            };
        }
        assert!(sleeps > 300, "{sleeps}");
        assert!(head_start.ns() < gap, "{}", head_start.ns());
    }

    #[test]
    fn a_sleep_that_is_cut_short_teaches_nothing() {
        let mut head_start = HeadStart::default();
        drive(&mut head_start, 10, |_| 20_000);
        let before = head_start.ns();
        assert_eq!(before, 10 * GROWS_NS);
        let asleep = head_start.sleep_ns(Instant(100_000), Instant(0));
        assert_eq!(asleep, 100_000 - before);
        head_start.woke(Instant(asleep - 1));
        head_start.woke(Instant(1_000_000));
        assert_eq!(head_start.ns(), before);
        assert_eq!(head_start.sleep_ns(Instant(before), Instant(0)), 0, "it is too near");
        head_start.woke(Instant(1_000_000));
        assert_eq!(head_start.sleep_ns(Instant(1), Instant(9)), 0, "it is over");
        assert_eq!(head_start.ns(), before);
    }
}
