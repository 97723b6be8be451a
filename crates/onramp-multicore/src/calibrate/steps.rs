//! What single steps take: atomic operations, fences, hints, the clock, switches and wake-ups of
//! threads, and the influence of a core's other hardware thread.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc;
use std::thread;

use super::rounds::{Round, now, on, timed, together};

/// Number of steps in a round.
const STEPS: u32 = 10_000;
/// Number of throws of a ball between two threads that sleep meanwhile.
const THROWS: u32 = 200;
/// Number of wake-ups in a round.
const WAKE_UPS: usize = 12;
/// How long a thread sleeps before it is woken, nanoseconds: in every other round so short that its
/// processor is hardly idle yet, and in the others so long that it is.
const SLEEPS_NS: [u64; 2] = [30_000, 500_000];

/// A step of one thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// An addition to a number that the core owns.
    Atomic,
    Fence,
    Hint,
    Clock,
}

impl Step {
    /// Takes the step again and again on a processor.
    pub(super) fn round(self, cpu: usize) -> Round {
        let each = on(cpu, move || {
            let number = AtomicU64::new(0);
            let step = || match self {
                // Relaxed: the addition itself is what is measured.
                Self::Atomic => drop(number.fetch_add(1, Ordering::Relaxed)),
                Self::Fence => {
                    // SeqCst: the full fence is what is measured. The compiler would make one of
                    // several fences with nothing between.
                    fence(Ordering::SeqCst);
                    black_box(&number);
                }
                Self::Hint => spin_loop(),
                Self::Clock => drop(black_box(now())),
            };
            (0..STEPS / 10).for_each(|_| step());
            timed(STEPS, || (0..STEPS).for_each(|_| step()))
        })?;
        Ok(each.map(|each| vec![each]))
    }
}

/// Two threads on one processor wake each other in turn. Returns the time of one turn: a call that
/// wakes, and a switch.
pub(super) fn switch_round(cpu: usize) -> Round {
    let turn = AtomicU64::new(0);
    let (turn, (tells, told)) = (&turn, mpsc::channel());
    let (first_tells, first_told) = mpsc::channel();
    let player = |is_second: u64, tells: mpsc::Sender<thread::Thread>, told: mpsc::Receiver<_>| {
        move || {
            let _ = tells.send(thread::current());
            let other: thread::Thread = told.recv().map_err(std::io::Error::other)?;
            let mut from = now();
            for throw in 0..THROWS + THROWS / 10 {
                if throw == THROWS / 10 {
                    from = now();
                }
                // Acquire: pairs with the Release of the other thread's throw.
                while turn.load(Ordering::Acquire) % 2 != is_second {
                    thread::park();
                }
                // Release: pairs with the Acquire of the other thread's look.
                turn.fetch_add(1, Ordering::Release);
                other.unpark();
            }
            Ok(now() - from)
        }
    };
    let players = [player(0, tells, first_told), player(1, first_tells, told)];
    let took = together([cpu; 2], players)?;
    #[expect(clippy::cast_precision_loss, reason = "rounds are short")]
    let each = took[0] as f64 / f64::from(2 * THROWS);
    Ok(Some(vec![each]))
}

/// The thread on the first processor wakes the one on the second. Returns the middle time from the
/// call until the woken thread runs, and that of the call itself.
pub(super) fn wake_round(cpus: [usize; 2], round: usize) -> Round {
    let (tells, told) = mpsc::channel();
    let called = AtomicU64::new(0);
    let ran = AtomicU64::new(0);
    let (called, ran) = (&called, &ran);
    let sleeps = SLEEPS_NS[round % 2];
    let player = |tells: Option<mpsc::Sender<thread::Thread>>, told: Option<mpsc::Receiver<_>>| {
        move || {
            let mut wakes = Vec::new();
            if let Some(tells) = tells {
                let _ = tells.send(thread::current());
                for number in 1..=WAKE_UPS as u64 {
                    // Acquire: pairs with the Release of the call.
                    while called.load(Ordering::Acquire) < number {
                        thread::park();
                    }
                    // Release: pairs with the Acquire of the thread that called.
                    ran.store(now(), Ordering::Release);
                }
                return Ok(wakes);
            }
            let Some(told) = told else { return Ok(wakes) };
            let other: thread::Thread = told.recv().map_err(std::io::Error::other)?;
            for number in 1..=WAKE_UPS as u64 {
                let until = now() + sleeps;
                while now() < until {
                    spin_loop();
                }
                let from = now();
                // Release: pairs with the Acquire of the woken thread.
                called.store(number, Ordering::Release);
                other.unpark();
                let call = now() - from;
                // Acquire: pairs with the Release of the woken thread.
                let mut at = ran.load(Ordering::Acquire);
                while at < from {
                    spin_loop();
                    at = ran.load(Ordering::Acquire); // Acquire: as above.
                }
                wakes.push((at - from, call));
            }
            Ok(wakes)
        }
    };
    let wakes = together(cpus, [player(None, Some(told)), player(Some(tells), None)])?;
    let [wakes, _] = wakes;
    let middle = |of: fn(&(u64, u64)) -> u64| {
        let mut times: Vec<u64> = wakes.iter().map(of).collect();
        times.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "rounds are short")]
        let middle = times[times.len() / 2] as f64;
        middle
    };
    Ok(Some(vec![middle(|wake| wake.0), middle(|wake| wake.1)]))
}

/// What the other hardware thread of a core does during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Work,
    Hint,
}

/// Works on the first of two hardware threads of a core, alone and beside the other one. Returns
/// how many times longer it takes beside the other.
pub(super) fn smt_round(cpus: [usize; 2], beside: Beside) -> Round {
    let alone = on(cpus[0], || timed(STEPS, || work(STEPS)))?;
    let ended = AtomicBool::new(false);
    let begun = AtomicBool::new(false);
    let (ended, begun) = (&ended, &begun);
    let player = |measures: bool| {
        move || {
            if measures {
                // Acquire and Release: the flags order the measurement after the begin of the work
                // beside it, and before its end.
                while !begun.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                let took = timed(STEPS, || work(STEPS));
                ended.store(true, Ordering::Release); // Release: as above.
                return took;
            }
            begun.store(true, Ordering::Release); // Release: as above.
            while !ended.load(Ordering::Acquire) {
                // Acquire: as above.
                match beside {
                    Beside::Work => work(100),
                    Beside::Hint => spin_loop(),
                }
            }
            Ok(None)
        }
    };
    let [took, _] = together(cpus, [player(true), player(false)])?;
    Ok(alone.zip(took).map(|(alone, took)| vec![took / alone]))
}

/// Works with numbers and with memory in the first-level cache, as programs do.
fn work(steps: u32) {
    let mut table = [0_u64; 1_024];
    let (mut a, mut b) = (black_box(1_u64), black_box(2_u64));
    for step in 0..steps {
        for _ in 0..8 {
            a = a.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(step));
            b ^= b << 13;
            b ^= b >> 7;
            let place = (a >> 54) as usize;
            table[place] = table[place].wrapping_add(b);
        }
    }
    black_box(&table);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> usize {
        real_link::dev::current_cpu().expect("the kernel tells it")
    }

    #[test]
    fn every_step_is_taken() {
        for step in [Step::Atomic, Step::Fence, Step::Hint, Step::Clock] {
            let taken = step.round(here()).expect("it is measured");
            // A crowded machine may have taken the processor away.
            assert!(taken.is_none_or(|each| each.len() == 1 && each[0] > 0.0), "{step:?}");
        }
    }

    /// Both threads on one processor: the order of their steps is then the hardest.
    #[test]
    fn threads_wake_each_other_as_often_as_they_should() {
        let cpu = here();
        let each = switch_round(cpu).expect("it is measured").expect("every round counts");
        assert!(each[0] > 0.0);
        let each = wake_round([cpu; 2], 0).expect("it is measured").expect("every round counts");
        assert!(each.iter().all(|ns| *ns > 0.0));
        for beside in [Beside::Work, Beside::Hint] {
            let ratio = smt_round([cpu; 2], beside).expect("it is measured");
            assert!(ratio.is_none_or(|ratio| ratio[0] > 0.0));
        }
    }
}
