//! Chaos: worlds in which everything happens at once, by a seed: hundreds of threads send and wait
//! in all the ways there are, devices block and die, receivers do not read, ports and qdiscs come
//! and go, callbacks and wakers panic, links are closed in the middle, processes fork.
//!
//! A watchdog knows what each thread does and how long that may take. It names the first that waits
//! for longer, that burns a processor while it waits, or whose task wakes itself without end. At
//! the end of each world all is brought to rest, and every packet is accounted for.
//!
//! `cargo xtask chaos --minutes 10 [--seed N]`; ends with 1 when something is wrong, and says what.
//! `--worlds N`: so many worlds and no more. `--self-test`: whether faults made on purpose are
//! found. `--tsan`: everything takes longer, and nothing forks.

mod actor;
mod counts;
mod device;
mod fork;
mod ledger;
mod meddle;
mod plan;
mod rest;
mod self_test;
mod wakers;
mod watch;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use onramp::Clock;
use onramp::dev::MonotonicClock;

use counts::Met;
use plan::Plan;
use watch::Watch;

/// How often it says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// How many times slower everything is under a sanitizer.
const TSAN: u64 = 4;

fn arg<T: std::str::FromStr>(name: &str) -> Option<T> {
    let mut args = std::env::args().skip_while(|arg| arg != name);
    args.next()?;
    let value = args.next().and_then(|value| value.parse().ok());
    Some(value.unwrap_or_else(|| {
        eprintln!("chaos: {name} needs a number");
        std::process::exit(2)
    }))
}

fn has(name: &str) -> bool {
    std::env::args().any(|arg| arg == name)
}

/// Panics that are meant are counted; any other ends the process.
fn expect_panics(watch: &Arc<Watch>) {
    let (watch, hook) = (watch.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        let count = match info.payload_as_str() {
            Some(device::DEAD) => Met::Deaths,
            Some(ledger::CALLBACK) => Met::Callbacks,
            Some(wakers::WAKER) => Met::Wakers,
            // The parent hears of it by the child's status.
            _ if fork::IN_CHILD.load(SeqCst) => return,
            _ => {
                hook(info);
                return watch.failed(&format!("a PANIC: {info}"));
            }
        };
        count.note();
    }));
}

/// Lives one world, in a thread of its own: that may be kept on one processor.
fn live(plan: &Plan, watch: &Arc<Watch>) -> u64 {
    counts::note_world(plan);
    thread::scope(|scope| {
        let world = scope.spawn(|| world::live(plan, watch));
        world.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run(watch: &Arc<Watch>, slower: u64) -> ExitCode {
    let minutes: f64 = arg("--minutes").unwrap_or(1.0);
    let worlds: u64 = arg("--worlds").unwrap_or(u64::MAX);
    let clock = MonotonicClock;
    let mut seed = arg("--seed").unwrap_or_else(|| clock.now().0);
    let forks = slower == 1;
    let without = if forks { "" } else { ", no forks: the sanitizer cannot follow them" };
    println!("chaos: {minutes} minutes, seed {seed}{without}");
    let end = clock.now() + Duration::from_secs_f64(minutes * 60.0);
    let (mut lives, mut packets, mut next) = (0_u64, 0, clock.now() + PROGRESS);
    while clock.now() < end && lives < worlds {
        let plan = Plan::new(seed, slower, forks);
        if has("--verbose") {
            println!("{plan:?}");
        }
        packets += live(&plan, watch);
        seed = seed.wrapping_add(1);
        lives += 1;
        if clock.now() > next {
            println!("chaos: {lives} worlds, {packets} packets, next seed {seed}");
            next = clock.now() + PROGRESS;
        }
    }
    let missing = counts::missing(lives, forks);
    println!("chaos: {lives} worlds, {packets} packets: nobody hung, books exact");
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("chaos: FAILED: none in {lives} worlds: {}", missing.join(", "));
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    if has("--self-test") {
        return self_test::run();
    }
    let slower = if has("--tsan") { TSAN } else { 1 };
    let watch = Watch::new(slower, true);
    expect_panics(&watch);
    thread::scope(|scope| {
        scope.spawn(|| watch.guard());
        let code = run(&watch, slower);
        watch.end();
        code
    })
}
