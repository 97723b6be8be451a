//! Chaos test: worlds in which everything happens at once. A world is the test run of one link,
//! determined by a seed. Hundreds of threads send and wait in all possible ways; devices block and
//! die; receivers do not read; ports and qdiscs come and go; callbacks and wakers panic; links are
//! closed in the middle; processes fork.
//!
//! A watchdog knows what each thread does and how long that may take. It reports the first thread
//! that waits longer than allowed, that uses a processor while it waits, or whose task wakes itself
//! endlessly. At the end of each world, all traffic stops, and every packet is accounted for.
//!
//! `cargo xtask chaos --minutes 10 [--seed N]` ends with status 1 and a message when something is
//! wrong. `--help` lists the other options.

mod actor;
mod counts;
mod device;
mod fork;
mod ledger;
mod life;
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

use clap::Parser;
use onramp::Clock;
use onramp::dev::MonotonicClock;

use counts::Met;
use plan::Plan;
use watch::Watch;

/// Interval between progress messages.
const PROGRESS: Duration = Duration::from_secs(10);
/// Factor by which everything is expected to be slower under a sanitizer.
const TSAN: u64 = 4;

/// Runs all operations of a link at once, under faults; a watchdog names threads that hang
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask chaos")]
struct Options {
    /// Minutes to run: more than 0, at most 10000
    #[arg(long, value_name = "N", default_value = "1", value_parser = minutes,
          allow_negative_numbers = true)]
    minutes: Duration,
    /// Seed of the first world [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Stop after this number of worlds [default: only --minutes ends the run]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    worlds: Option<u64>,
    /// Run under ThreadSanitizer: allow calls more time, and fork no processes
    #[arg(long)]
    tsan: bool,
    /// Only check that the watchdog finds faults that are made on purpose
    #[arg(long)]
    self_test: bool,
    /// Print the plan of each world
    #[arg(long)]
    verbose: bool,
}

fn minutes(text: &str) -> Result<Duration, &'static str> {
    let minutes = text.parse().ok().filter(|minutes: &f64| *minutes > 0.0 && *minutes <= 10_000.0);
    let expected = "expected a number greater than 0, at most 10000";
    minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0)).ok_or(expected)
}

/// Installs a panic hook that counts the panics that the test causes on purpose. Any other panic is
/// reported as a failure, which ends the process.
fn expect_panics(watch: &Arc<Watch>) {
    let (watch, hook) = (watch.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        let count = match info.payload_as_str() {
            Some(device::DEAD) => Met::Deaths,
            Some(ledger::CALLBACK) => Met::Callbacks,
            Some(wakers::WAKER) => Met::Wakers,
            // A panic in a forked child is reported through the child's exit status, which the
            // parent reads.
            _ if fork::IN_CHILD.load(SeqCst) => return,
            _ => {
                hook(info);
                return watch.failed(&format!("a PANIC: {info}"));
            }
        };
        count.note();
    }));
}

/// Runs one world in a thread of its own, because the world may pin its thread to one processor.
fn live(plan: &Plan, watch: &Arc<Watch>) -> u64 {
    plan.note();
    thread::scope(|scope| {
        let world = scope.spawn(|| life::live(plan, watch));
        world.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run(watch: &Arc<Watch>, slower: u64, options: &Options) -> ExitCode {
    let worlds = options.worlds.unwrap_or(u64::MAX);
    let clock = MonotonicClock;
    let mut seed = options.seed.unwrap_or_else(|| clock.now().0);
    let forks = slower == 1;
    let without = if forks { "" } else { ", without forks, which the sanitizer cannot follow" };
    println!("chaos: {:?}, seed {seed}{without}", options.minutes);
    let end = clock.now() + options.minutes;
    let (mut lives, mut packets, mut next) = (0_u64, 0, clock.now() + PROGRESS);
    // Run at least one world, however short the time of the run is.
    while lives == 0 || (clock.now() < end && lives < worlds) {
        let plan = Plan::new(seed, slower, forks);
        if options.verbose {
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
    println!(
        "chaos: {lives} worlds, {packets} packets: no thread hung, and all packets are \
         accounted for"
    );
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("chaos: FAILED: these never happened in {lives} worlds: {}", missing.join(", "));
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.self_test {
        return self_test::run();
    }
    let slower = if options.tsan { TSAN } else { 1 };
    let watch = Watch::new(slower, true);
    expect_panics(&watch);
    run(&watch, slower, &options)
}
