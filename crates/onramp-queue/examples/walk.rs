//! Measures how long an owner walks over the list of an intake that another processor has pushed,
//! with and without the hints by which the walk prefetches a sender's earlier packets.
//!
//! ```text
//! cargo run --release -p onramp-queue --example walk [ROUNDS]
//! ```
//!
//! In each round a thread pushes 64 packets, of one or of four senders in turn, and another thread
//! takes them and puts them in order. Rounds with and without hints alternate; packets that are not
//! submitted have no hints. Needs two processors that have nothing else to do, because both threads
//! wait by spinning.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Release};
use std::thread;
use std::time::Instant;

use onramp_queue::{Credits, Intake, PacketList, Pool};

/// The packets of a round.
const PACKETS: usize = 64;

fn main() {
    let rounds = std::env::args().nth(1).map_or(Ok(20_000), |count| count.parse());
    let Some(rounds) = rounds.ok().filter(|rounds| *rounds >= 2) else {
        eprintln!("walk: expected a number of rounds, at least 2");
        std::process::exit(2);
    };
    if thread::available_parallelism().is_ok_and(|count| count.get() < 2) {
        eprintln!("walk: two processors are needed");
        std::process::exit(1);
    }
    for senders in [1, 4] {
        let [plain, hinted] = measure(senders, rounds);
        println!(
            "{senders} sender(s): {plain:.1} ns a packet without hints, {hinted:.1} with ({:.2})",
            hinted / plain
        );
    }
}

/// Returns the medians of the rounds without and with hints, nanoseconds a packet.
fn measure(senders: usize, rounds: usize) -> [f64; 2] {
    let intake = Intake::new((), 1_000, 1_000);
    // A busy intake only stages what is pushed.
    intake.own().expect("it is new").leave_busy();
    // Odd while the packets of a round wait, even while they are pushed.
    let phase = AtomicUsize::new(0);
    let wait_for = |wanted| {
        while phase.load(Acquire) != wanted {
            spin_loop();
        }
    };
    let mut times = [Vec::new(), Vec::new()];
    thread::scope(|scope| {
        scope.spawn(|| {
            let packets = Credits { packets: 64, bytes: 64 * 120 };
            let mut pools: Vec<_> = (0..senders).map(|_| Pool::new(packets)).collect();
            for round in 0..rounds {
                wait_for(2 * round);
                for number in 0..PACKETS {
                    let pool = &mut pools[number % senders];
                    let mut list: PacketList = pool.take(120).into_iter().collect();
                    if round % 2 == 1 {
                        pool.submit(&mut list, 0);
                    }
                    let _ = intake.push(list).expect("it has room");
                }
                phase.store(2 * round + 1, Release);
                wait_for(2 * round + 2);
                for pool in &mut pools {
                    pool.reclaim(|_| ());
                }
            }
        });
        for round in 0..rounds {
            wait_for(2 * round + 1);
            let mut owner = intake.own().expect("nobody else owns it");
            #[expect(clippy::disallowed_methods, reason = "the example measures")]
            let began = Instant::now();
            let taken = owner.take();
            let took = began.elapsed().as_secs_f64() * 1e9;
            assert_eq!(taken.len() as usize, PACKETS);
            times[round % 2].push(took / PACKETS as f64);
            owner.leave_busy();
            drop(taken);
            phase.store(2 * round + 2, Release);
        }
    });
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    })
}
