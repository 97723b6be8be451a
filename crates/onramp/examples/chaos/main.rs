//! Chaos: worlds in which everything happens at once, by a seed: hundreds of threads send and wait
//! in all the ways there are, devices block and die, receivers do not read, ports and qdiscs come
//! and go, callbacks and wakers panic, links are closed in the middle, processes fork.
//!
//! A watchdog knows what each thread does and how long that may take. It names the first that waits
//! for longer, that burns a processor while it waits, or whose task wakes itself without end. At
//! the end of each world all is brought to rest, and every packet is accounted for.
//!
//! `cargo xtask chaos --minutes 10 [--seed N]`; ends with 1 when something is wrong, and says what.
//! `--help` tells the other options; it ends with 2 for one that it does not understand.

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

/// The longest that `--minutes` may ask for.
const MINUTES: f64 = 10_000.0;

const HELP: &str = "\
usage: cargo xtask chaos [OPTION...]

  --minutes N   how long: more than 0, at most 10000 (default 1)
  --seed N      the first world's seed (default: by the clock)
  --worlds N    so many worlds and no more: at least 1 (default: as many as there is time for)
  --tsan        under ThreadSanitizer: everything takes longer, and nothing forks
  --self-test   only see whether faults made on purpose are found
  --verbose     print the plan of each world
  --help        print this
";

/// What it is asked to do.
struct Options {
    minutes: f64,
    seed: Option<u64>,
    worlds: u64,
    tsan: bool,
    self_test: bool,
    verbose: bool,
    help: bool,
}

impl Options {
    /// `Err`: what is wrong, in a line.
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            minutes: 1.0,
            seed: None,
            worlds: u64::MAX,
            tsan: false,
            self_test: false,
            verbose: false,
            help: false,
        };
        while let Some(option) = args.next() {
            match option.as_str() {
                "--minutes" => {
                    let expected = "a number greater than 0, at most 10000";
                    let fit = |minutes: &f64| *minutes > 0.0 && *minutes <= MINUTES;
                    options.minutes = value(&option, args.next(), expected, fit)?;
                }
                "--seed" => {
                    let expected = "a whole number from 0 to 2^64 - 1";
                    options.seed = Some(value(&option, args.next(), expected, |_| true)?);
                }
                "--worlds" => {
                    let expected = "a whole number, at least 1";
                    options.worlds = value(&option, args.next(), expected, |n| *n >= 1)?;
                }
                "--tsan" => options.tsan = true,
                "--self-test" => options.self_test = true,
                "--verbose" => options.verbose = true,
                "--help" => options.help = true,
                _ => {
                    return Err(format!(
                        "{option:?} is no option; expected --minutes, --seed, --worlds, --tsan, \
                         --self-test, --verbose or --help"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// What follows `option`, if it is `fit`.
fn value<T: std::str::FromStr>(
    option: &str,
    given: Option<String>,
    expected: &str,
    fit: impl Fn(&T) -> bool,
) -> Result<T, String> {
    let value = given.as_ref().and_then(|given| given.parse().ok()).filter(fit);
    let given = given.map_or_else(|| "nothing".to_owned(), |given| format!("{given:?}"));
    value.ok_or_else(|| format!("{option}: given {given}; expected {expected}"))
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

fn run(watch: &Arc<Watch>, slower: u64, options: &Options) -> ExitCode {
    let (minutes, worlds) = (options.minutes, options.worlds);
    let clock = MonotonicClock;
    let mut seed = options.seed.unwrap_or_else(|| clock.now().0);
    let forks = slower == 1;
    let without = if forks { "" } else { ", no forks: the sanitizer cannot follow them" };
    println!("chaos: {minutes} minutes, seed {seed}{without}");
    let end = clock.now() + Duration::from_secs_f64(minutes * 60.0);
    let (mut lives, mut packets, mut next) = (0_u64, 0, clock.now() + PROGRESS);
    // One at least, however short the time.
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
    println!("chaos: {lives} worlds, {packets} packets: nobody hung, books exact");
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("chaos: FAILED: none in {lives} worlds: {}", missing.join(", "));
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(wrong) => {
            eprintln!("chaos: {wrong}");
            return ExitCode::from(2);
        }
    };
    if options.help {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if options.self_test {
        return self_test::run();
    }
    let slower = if options.tsan { TSAN } else { 1 };
    let watch = Watch::new(slower, true);
    expect_panics(&watch);
    thread::scope(|scope| {
        scope.spawn(|| watch.guard());
        let code = run(&watch, slower, &options);
        watch.end();
        code
    })
}
