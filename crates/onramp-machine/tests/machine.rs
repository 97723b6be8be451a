//! The simulated machine: what threads, locks and memory do and cost on it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use onramp_machine::sync::Mutex;
use onramp_machine::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use onramp_machine::sync::mpsc;
use onramp_machine::testing::SMALL;
use onramp_machine::{Caches, Failed, Machine, Report, Setup, hook, simulate, thread};

/// The small machine with caches in which what a test touches has room.
const MACHINE: Machine =
    Machine { caches: Caches { l1_lines: 512, l2_lines: 16_384, ..SMALL.caches }, ..SMALL };

/// Simulates `main`, and returns its result, and what happened in the first 100 ms.
fn measured<R: 'static>(main: impl FnOnce() -> R + 'static) -> (R, Report) {
    simulate(&setup(1_000_000_000), main).expect("it ends")
}

/// Simulates `main`, and returns its result.
fn simulated<R: 'static>(main: impl FnOnce() -> R + 'static) -> R {
    measured(main).0
}

fn setup(limit_ns: u64) -> Setup {
    Setup { machine: MACHINE, limit_ns, measure_ns: 0..100_000_000 }
}

fn now_ns() -> u64 {
    hook::time_ps().expect("inside a simulation") / 1_000
}

/// Runs `f` in threads on these processors until all have ended. Returns the results.
fn on<R: Send + 'static>(
    processors: &[u16],
    f: impl Fn(u16) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let f = Arc::new(f);
    let start = |processor: &u16| {
        let (f, processor) = (f.clone(), *processor);
        let builder = thread::Builder::new().name(format!("on {processor}")).on(processor);
        builder.spawn(move || f(processor)).expect("a thread")
    };
    let handles: Vec<_> = processors.iter().map(start).collect();
    handles.into_iter().map(|handle| handle.join().expect("it ends")).collect()
}

#[test]
fn outside_a_simulation_nothing_is_charged() {
    assert_eq!((hook::clock(), hook::time_ps(), hook::processor()), (None, None, None));
    let number = AtomicU32::new(1);
    hook::work(1_000);
    assert_eq!(number.fetch_add(1, SeqCst), 1);
    assert_eq!(number.load(SeqCst), 2);
    let shared = Arc::new(Mutex::new(0));
    let add = || {
        let shared = shared.clone();
        thread::spawn(move || *shared.lock().unwrap() += 1)
    };
    let handles = [add(), add()];
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert_eq!(*shared.lock().unwrap(), 2);
}

#[test]
fn work_takes_time_and_a_busy_sibling_makes_it_slower() {
    let took = |processors: &'static [u16]| {
        simulated(move || {
            on(processors, |_| {
                hook::work(10_000); // Until the sibling has begun, too.
                while hook::time_ps() < Some(50_000_000) {
                    hook::work(100);
                }
                let from = now_ns();
                (0..100).for_each(|_| hook::work(100));
                now_ns() - from
            })
        })
    };
    assert_eq!(took(&[0]), [10_000]);
    assert_eq!(took(&[0, 1]), [10_000; 2], "cores do not slow each other");
    let shared = took(&[0, 8]);
    assert!(shared.iter().all(|ns| (14_900..=15_000).contains(ns)), "one core: {shared:?}");
}

/// Hands a ball to and fro between two processors. Returns the time of one way, nanoseconds.
fn one_way(first: u16, second: u16) -> u64 {
    const ROUNDS: u32 = 1_000;
    simulated(move || {
        let ball = AtomicU32::new(0);
        on(&[first, second], move |processor| {
            let from = now_ns();
            for round in 0..ROUNDS {
                let mine = 2 * round + u32::from(processor == second);
                while ball.load(Acquire) != mine {
                    hook::spin_loop();
                }
                ball.store(mine + 1, Release);
            }
            (now_ns() - from) / u64::from(2 * ROUNDS)
        })
        .into_iter()
        .max()
        .expect("two")
    })
}

#[test]
fn a_ball_between_two_cores_costs_by_their_distance() {
    let (near, far, remote) = (one_way(0, 1), one_way(0, 2), one_way(0, 4));
    assert!(near < far && far < remote, "{near} {far} {remote}");
    // Each way is a load of the line that the other core has written, which gives the right to
    // write it, too, and at most one hint that is still executed.
    for (way, transfer) in [(near, 30), (far, 60), (remote, 100)] {
        assert!((transfer..transfer + 45).contains(&way), "{way} for {transfer}");
    }
}

/// Counts on one line from many processors, with work of `work` nanoseconds between two additions.
/// Returns nanoseconds for each addition.
fn counting(processors: &'static [u16], work: u64) -> u64 {
    const EACH: u64 = 20_000;
    simulated(move || {
        let counter = Arc::new(AtomicU64::new(0));
        let shared = counter.clone();
        let from = now_ns();
        on(processors, move |_| {
            (0..EACH).for_each(|_| {
                shared.fetch_add(1, Relaxed);
                hook::work(work);
            });
        });
        let count = counter.load(Relaxed);
        assert_eq!(count, EACH * processors.len() as u64);
        (now_ns() - from) / count
    })
}

#[test]
fn a_contended_line_is_handed_from_core_to_core() {
    let alone = counting(&[0], 100);
    assert!((106..110).contains(&alone), "{alone}: 100, and 6 for a hit and the lock");
    let near = counting(&[0, 1], 100);
    assert!((66..72).contains(&near), "{near}: half of 100 and one transfer");
    let all = counting(&[0, 1, 2, 3, 4, 5, 6, 7], 100);
    assert!((55..65).contains(&all), "{all}: half of them near, a quarter far, a quarter remote");
    let at_once = counting(&[0, 1], 0);
    assert!((13..20).contains(&at_once), "{at_once}: some additions before the line goes on");
}

#[test]
fn the_same_program_gives_the_same_result() {
    fn run() -> (u64, String) {
        let (now, report) = measured(|| {
            let shared = Arc::new(Mutex::new(0_u64));
            let handles: Vec<_> = (0..40)
                .map(|n| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        for _ in 0..20 {
                            *shared.lock().unwrap() += n;
                            hook::work(700);
                            thread::yield_now();
                        }
                    })
                })
                .collect();
            handles.into_iter().for_each(|handle| handle.join().unwrap());
            thread::sleep(Duration::from_millis(100)); // Until the measurement has ended.
            now_ns()
        });
        let Report { times, switches, migrations, wakeups, sites, .. } = report;
        let sites: Vec<_> =
            sites.iter().map(|site| (site.location.line(), site.transfers)).collect();
        (now, format!("{times:?} {switches} {migrations} {wakeups} {sites:?}"))
    }
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    assert!(first.0 > 20 * 40 * 700 / 16, "{first:?}");
}

#[test]
fn sleeps_that_the_time_ends_are_counted() {
    let ((), report) = measured(|| {
        let sleeper = thread::spawn(thread::park);
        for _ in 0..3 {
            thread::sleep(Duration::from_micros(10));
        }
        sleeper.thread().unpark();
        sleeper.join().unwrap();
        thread::park_timeout(Duration::from_micros(10));
        thread::sleep(Duration::from_millis(100)); // Until the measurement has ended.
    });
    let Report { timers, wakeups, .. } = report;
    assert_eq!(timers, 4, "three sleeps, and a park that nobody ended");
    assert_eq!(wakeups, 2, "the unparked thread, and the one that waited for its end");
}

#[test]
fn threads_that_wait_for_ever_are_found() {
    let setup = setup(1_000_000);
    let stuck = simulate(&setup, || {
        thread::Builder::new().name("lonely".into()).spawn(thread::park).unwrap();
    });
    assert_eq!(stuck.unwrap_err().to_string(), "threads wait for ever: lonely");
    let late = simulate(&setup, || {
        loop {
            hook::work(100);
            thread::yield_now();
            hook::spin_loop();
        }
    });
    let text = late.unwrap_err().to_string();
    assert_eq!(text, "threads still run at the limit of the simulated time: main");
    let mut machine = MACHINE;
    machine.topology.sockets = 100;
    let large = simulate(&Setup { machine, ..setup.clone() }, || {});
    assert!(matches!(large, Err(Failed::TooManyCores(400))));
    simulate(&setup, || {}).expect("an earlier failure does no harm");
}

#[test]
#[should_panic(expected = "in a simulated thread")]
fn a_panic_ends_the_simulation() {
    let setup = setup(1_000_000);
    let _ = simulate(&setup, || {
        thread::spawn(|| panic!("in a simulated thread"));
        thread::park();
    });
}

#[test]
fn parked_threads_are_told_to_go_on() {
    simulated(|| {
        let from = now_ns();
        thread::park_timeout(Duration::from_micros(100));
        let slept = now_ns() - from;
        assert!((100_000..105_000).contains(&slept), "the time, a wake-up and a switch: {slept}");

        let me = thread::current();
        me.unpark();
        me.unpark();
        let from = now_ns();
        thread::park();
        assert_eq!(now_ns(), from, "told before");
        let other = thread::Builder::new().on(3).spawn(move || me.unpark()).unwrap();
        thread::park();
        assert!(now_ns() > from, "the two calls before counted once");
        other.join().unwrap();
    });
}

#[test]
fn a_lock_hides_no_call_to_go_on() {
    simulated(|| {
        let lock = Arc::new(Mutex::new(()));
        let held = lock.lock().unwrap();
        let theirs = lock.clone();
        let waits = thread::Builder::new().on(1);
        let waits = waits.spawn(move || {
            drop(theirs.lock().unwrap());
            thread::park(); // Told while it waited for the lock.
        });
        let waits = waits.unwrap();
        thread::sleep(Duration::from_micros(50));
        assert!(matches!(lock.try_lock(), Err(std::sync::TryLockError::WouldBlock)));
        waits.thread().unpark();
        drop(held);
        waits.join().unwrap();
        assert!(lock.try_lock().is_ok());
    });
}

#[test]
fn a_failed_attempt_leaves_the_lock_taken() {
    simulated(|| {
        let lock = Arc::new(Mutex::new(0));
        let held = lock.lock().unwrap();
        assert!(lock.try_lock().is_err() && lock.try_lock().is_err());
        let theirs = lock.clone();
        let waits = thread::spawn(move || *theirs.lock().unwrap() += 1);
        thread::sleep(Duration::from_micros(50));
        assert_eq!(*held, 0, "the other thread waits");
        drop(held);
        waits.join().unwrap();
        assert_eq!(*lock.lock().unwrap(), 1);
    });
}

/// The parts of a word are changed as if each were a variable of its own.
#[test]
fn parts_of_a_word_are_stored_and_exchanged() {
    simulated(|| {
        let word = AtomicU32::new(0x0003_0001);
        word.flip_by_store(1, Release);
        assert_eq!(word.swap_part(0xffff_0000, 0x0005_ffff, SeqCst), 0x0003_0000);
        assert_eq!(word.load(Acquire), 0x0005_0000);
        let topology = MACHINE.topology;
        let clusters = (0..topology.processors()).filter_map(hook::cluster);
        assert_eq!(clusters.max(), Some(3));
        assert_eq!(hook::cluster(topology.processors()), None);
    });
    assert_eq!(hook::cluster(0), None, "outside");
}

#[test]
fn messages_arrive_and_ends_are_noticed() {
    simulated(|| {
        let (sender, receiver) = mpsc::channel();
        let (bounded, bounded_receiver) = mpsc::sync_channel(1);
        let sends = thread::spawn(move || {
            for n in 0..3 {
                thread::sleep(Duration::from_micros(20));
                sender.send(n).unwrap();
                bounded.send(n).unwrap();
            }
        });
        let timeout = receiver.recv_timeout(Duration::from_micros(5));
        assert_eq!(timeout, Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!([receiver.recv(), receiver.recv()], [Ok(0), Ok(1)]);
        let bounded: Vec<_> = std::iter::from_fn(|| bounded_receiver.recv().ok()).collect();
        assert_eq!(bounded, [0, 1, 2]);
        assert_eq!((receiver.recv(), receiver.recv()), (Ok(2), Err(mpsc::RecvError)));
        sends.join().unwrap();
    });
}

#[test]
fn threads_share_a_processor_in_slices() {
    let ended = simulated(|| {
        let from = now_ns();
        let ended = on(&[2, 2], |_| {
            while hook::time_ps() < Some(20_000_000_000) {
                hook::work(1_000);
                hook::spin_loop();
            }
            now_ns()
        });
        ended.into_iter().map(|at| at - from).collect::<Vec<_>>()
    });
    assert!(ended.iter().all(|at| (19_990_000..20_020_000).contains(at)), "{ended:?}");

    let ((), report) = measured(|| {
        on(&[2, 2], |_| {
            (0..10_000).for_each(|_| {
                hook::work(1_000);
                hook::spin_loop(); // A place at which the slice may end.
            });
        });
    });
    assert!((8..14).contains(&report.switches), "20 ms in slices of 3 ms: {}", report.switches);
    assert_eq!(report.migrations, 0, "they are pinned");
}

/// A thread waits for its processor only while the other one has it.
#[test]
fn a_displaced_thread_knows_how_long_it_waited() {
    let waited = |processors: &[u16]| {
        let processors = processors.to_vec();
        simulated(move || {
            on(&processors, |_| {
                let (from, before) = (now_ns(), hook::displaced_ps());
                assert_eq!(before, Some(0));
                // Three slices of 3 ms.
                (0..9_000).for_each(|_| {
                    hook::work(1_000);
                    hook::spin_loop(); // A place at which the slice may end.
                });
                // Sleep is no such time.
                thread::sleep(Duration::from_millis(1));
                (now_ns() - from, hook::displaced_ps().expect("inside a simulation") / 1_000)
            })
        })
    };
    for (took, displaced) in waited(&[2, 2]) {
        assert!((5_900_000..9_500_000).contains(&displaced), "{displaced}");
        let worked = took - displaced;
        assert!((9_900_000..13_500_000).contains(&worked), "{worked}");
    }
    assert!(waited(&[2, 3]).iter().all(|(_, displaced)| *displaced == 0));
}

#[test]
fn threads_that_may_move_use_all_processors() {
    let ms = simulated(|| {
        let work = || {
            (0..1_000).for_each(|_| {
                hook::work(1_000);
                thread::yield_now();
            });
        };
        let from = now_ns();
        let handles: Vec<_> = (0..8).map(|_| thread::spawn(work)).collect();
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        (now_ns() - from) / 1_000_000
    });
    assert!((1..2).contains(&ms), "8 cores at the same time: {ms} ms");
}

onramp_machine::thread_local! {
    static MINE: std::cell::Cell<u32> = const { std::cell::Cell::new(7) };
}

#[test]
fn each_thread_has_values_of_its_own() {
    MINE.set(1);
    simulated(|| {
        assert_eq!(MINE.get(), 7, "not that of the real thread");
        MINE.set(8);
        let seen = on(&[1, 1, 2], |_| {
            let before = MINE.replace(9);
            thread::yield_now();
            (before, MINE.get())
        });
        assert_eq!(seen, [(7, 9); 3]);
        assert_eq!(MINE.get(), 8);
    });
    assert_eq!(MINE.get(), 1);
}

#[test]
fn stores_wait_in_the_background_until_an_atomic_operation() {
    simulated(|| {
        let lines = Arc::new([const { Line(AtomicU64::new(0)) }; 8]);
        let theirs = lines.clone();
        on(&[4], move |_| theirs.iter().for_each(|line| line.0.store(1, Relaxed)));
        let took = on(&[0], move |_| {
            thread::sleep(Duration::from_micros(10));
            let from = now_ns();
            lines.iter().for_each(|line| line.0.store(2, Relaxed));
            let stored = now_ns() - from;
            let flag = AtomicBool::new(false);
            flag.swap(true, Relaxed);
            (stored, now_ns() - from)
        });
        let (stored, done) = took[0];
        assert!(stored <= 10, "{stored}");
        assert!((100..250).contains(&done), "the way from the other socket, and memory: {done}");
    });
}

#[repr(align(64))]
struct Line(AtomicU64);
