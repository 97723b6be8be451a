//! A soak test: threads send through links whose devices fail, fill up, respond slowly and die,
//! whose ports and qdiscs change, and which are closed in the middle of sending. A seed determines
//! each run.
//!
//! About once a second, all traffic stops, and every packet has to be accounted for: by the link's
//! counters, by the completions of the senders, and by what the devices took. Memory must not grow.
//!
//! `cargo xtask soak --minutes 10 [--seed N]` ends with status 1 and a message when something is
//! wrong, and with status 2 for an option that it does not understand.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use clap::Parser;
use fastrand::Rng;
use onramp::dev::MonotonicClock;
use onramp::{
    Clock, Credits, Device, DeviceInfo, DropReason, Instant, Link, Mapping, Mode, PacketList, Rate,
    SendError, Sender, Transmitted, TrySendError,
};

const THREADS: u64 = 24;
/// Greatest number of ports that a link may have over its lifetime.
const PORTS: usize = 60;
const QDISCS: &[&str] = &[
    "fq",
    "fq maxrate 40mbit",
    "fq limit 60 flow_limit 9",
    "pfifo",
    "pfifo limit 20",
    "bfifo limit 20kb",
    "pfifo_fast",
];
const MODES: [Mode; 3] = [Mode::Hybrid, Mode::Inline, Mode::Dedicated];
/// Time limit for a flush; long enough for all packets that a link holds to leave at the slowest
/// rate used in this test.
const REST: Duration = Duration::from_secs(60);
const DEAD: &str = "the soak kills this device";

/// A device that behaves randomly: it may be full, slow, fail or die.
struct Moody {
    info: DeviceInfo,
    rng: Rng,
    full_until: Instant,
    taken: Arc<AtomicU64>,
    mortal: bool,
}

impl Moody {
    fn boxed(rng: &mut Rng, taken: &Arc<AtomicU64>, mortal: bool) -> Box<Self> {
        let info = DeviceInfo::new("moody".to_owned(), 1_514);
        let (rng, taken) = (rng.fork(), taken.clone());
        Box::new(Self { info, rng, full_until: Instant(0), taken, mortal })
    }
}

impl Device for Moody {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        if now < self.full_until {
            return Transmitted { calls: 0, messages: 0, retry_at: Some(self.full_until) };
        }
        match self.rng.u32(0..2_000) {
            0 if self.mortal && self.rng.u32(0..20) == 0 => panic!("{DEAD}"),
            0..=9 => {
                self.full_until = now.after(self.rng.u64(0..3_000_000));
                // If the device does not say when it will have room again, the port asks again
                // after one tick.
                let retry_at = self.rng.bool().then_some(self.full_until);
                return Transmitted { calls: 1, messages: 0, retry_at };
            }
            10..=14 => thread::sleep(Duration::from_micros(self.rng.u64(0..2_000))),
            15..=30 => {
                let few = self.rng.usize(0..=burst.len() as usize);
                let mut some: PacketList = burst.by_ref().take(few).collect();
                self.taken.fetch_add(some.len().into(), Ordering::Relaxed);
                done.append(&mut some);
                return Transmitted { calls: 1, messages: 1, retry_at: Some(now.after(20_000)) };
            }
            31..=60 => {
                for mut packet in burst.by_ref() {
                    if self.rng.bool() {
                        packet.drop_reason = Some(DropReason::Unreachable);
                    } else {
                        self.taken.fetch_add(1, Ordering::Relaxed);
                    }
                    done.push_back(packet);
                }
                return Transmitted::default();
            }
            _ => {}
        }
        self.taken.fetch_add(burst.len().into(), Ordering::Relaxed);
        done.append(burst);
        Transmitted::default()
    }
}

/// What the senders know about the fate of their packets: the sums over all senders.
#[derive(Debug, Default)]
struct Told {
    accepted: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
}

fn sender(link: &Link, told: &Arc<Told>) -> Sender {
    let mut sender = link.sender();
    let told = told.clone();
    sender.on_complete(move |fate| {
        let count = if fate.drop_reason.is_none() { &told.sent } else { &told.dropped };
        count.fetch_add(1, Ordering::Relaxed);
    });
    sender
}

/// Sends packets in all possible ways until `stop` is set, then waits until all packets of its
/// sender are completed.
fn live(link: &Link, told: &Arc<Told>, stop: &AtomicBool, mut rng: Rng) {
    let mut me = sender(link, told);
    while !stop.load(Ordering::Relaxed) {
        let mapping = match rng.u32(0..4) {
            0 => Mapping::Cpu,
            1 => Mapping::Hash(rng.u64(..)),
            _ => Mapping::Turn,
        };
        let flow = me.flow_with(None, mapping).with_priority(rng.u32(0..8));
        for _ in 0..rng.u32(1..400) {
            let payload = [0; 1_200];
            let payload = &payload[..rng.usize(0..1_200)];
            let accepted = match rng.u32(0..40) {
                0 => {
                    me.cork();
                    let n = (0..20).filter(|_| me.try_send(&flow, payload).is_ok()).count();
                    // Packets that a cork still holds back count as accepted, because the sender
                    // submits them before its next wait.
                    let _ = me.uncork();
                    n as u64
                }
                1..=3 => me.try_send_batch(&flow, [payload; 30]).map_or(0, |n| n as u64),
                4..=12 => u64::from(me.try_send(&flow, payload).is_ok()),
                13 => u64::from(me.packet(&flow, payload).is_ok_and(|mut packet| {
                    packet.txtime_ns = MonotonicClock.now().after(rng.u64(0..3_000_000)).0;
                    match me.submit(&flow, packet) {
                        Ok(()) => true,
                        Err(back) => {
                            assert_eq!(back.why, TrySendError::Full);
                            false
                        }
                    }
                })),
                14 => {
                    me.wait_room_timeout(&flow, 100, Duration::from_micros(rng.u64(0..500)));
                    0
                }
                _ => match me.send(&flow, payload) {
                    Ok(()) => 1,
                    Err(SendError::Closed) => return finish(me),
                    Err(_) => break, // The flow's port has died, so use another flow.
                },
            };
            told.accepted.fetch_add(accepted, Ordering::Relaxed);
        }
        if rng.u32(0..30) == 0 {
            finish(me);
            me = sender(link, told);
        }
    }
    finish(me);
}

/// Waits until all packets of the sender have come home, and drops the sender.
fn finish(mut sender: Sender) {
    assert!(sender.flush(REST), "a sender waits forever: {sender:?}");
}

/// Makes one random change: of the qdisc, the rate or the ports.
fn meddle(link: &Link, rng: &mut Rng, taken: &Arc<AtomicU64>) {
    match rng.u32(0..4) {
        0 => link.set_qdisc(QDISCS[rng.usize(0..QDISCS.len())]).expect("a qdisc"),
        1 => link
            .set_rate(Rate::bytes_per_second(rng.u64(1_000_000..200_000_000)))
            .expect("it has a rate"),
        2 => drop(link.add_port(*Moody::boxed(rng, taken, true))),
        _ => drop(link.remove_port(rng.usize(0..PORTS), Duration::from_millis(rng.u64(0..200)))),
    }
    let stats = link.stats();
    assert!(stats.sent + stats.dropped_total() <= stats.submitted, "{stats:?}");
}

/// Runs one link for about a second. Returns the number of packets that the link carried, or a
/// message that says what was wrong.
fn second(seed: u64) -> Result<u64, String> {
    let mut rng = Rng::with_seed(seed);
    let taken = Arc::new(AtomicU64::new(0));
    let devices = [
        Moody::boxed(&mut rng, &taken, false) as Box<dyn Device>,
        Moody::boxed(&mut rng, &taken, true),
    ];
    let link = Link::devices(devices)
        .qdisc(QDISCS[rng.usize(0..QDISCS.len())])
        .mode(MODES[rng.usize(0..MODES.len())])
        .runners(rng.usize(1..4))
        .burst(rng.u16(1..2_000))
        .credits(Credits { packets: rng.u32(1..200), bytes: 1 << 20 })
        .rate(Rate::bytes_per_second(100_000_000))
        .ports_max(PORTS)
        .build()
        .map_err(|error| error.to_string())?;
    let (told, stop) = (Arc::new(Told::default()), AtomicBool::new(false));
    let closes = rng.u32(0..4) == 0;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (rng, link, told, stop) = (rng.fork(), &link, &told, &stop);
            scope.spawn(move || live(link, told, stop, rng));
        }
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(rng.u64(1..70)));
            meddle(&link, &mut rng, &taken);
        }
        if closes {
            link.close(Duration::from_millis(rng.u64(0..50)));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = link.stats();
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (accepted, sent, dropped) = (of(&told.accepted), of(&told.sent), of(&told.dropped));
    let dead = stats.dropped.get(&DropReason::PortDead).copied().unwrap_or(0);
    let taken = of(&taken);
    let books = stats.submitted == stats.sent + stats.dropped_total() && stats.held == 0;
    let fates = (sent, dropped) == (stats.sent, stats.dropped_total());
    // The device took `taken` packets. A device that died may have taken some packets that the link
    // counts as dropped.
    let wire = stats.sent <= taken && taken <= stats.sent + dead;
    // If the link was closed early, some packets that a cork held back count as accepted here, but
    // were never submitted.
    let all = accepted == stats.submitted || closes;
    if books && fates && wire && all {
        Ok(stats.submitted)
    } else {
        Err(format!(
            "seed {seed}: accepted {accepted}, reported {sent} as sent and {dropped} as \
             dropped, devices took {taken}: {stats:?}"
        ))
    }
}

/// Returns the resident memory of the process, KiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Runs links under random faults, and checks that each packet is sent or dropped exactly once
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask soak")]
struct Options {
    /// Minutes to run: more than 0, at most 10000
    #[arg(long, value_name = "N", default_value = "10", value_parser = minutes,
          allow_negative_numbers = true)]
    minutes: Duration,
    /// Seed of the first link [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn minutes(text: &str) -> Result<Duration, &'static str> {
    let minutes = text.parse().ok().filter(|minutes: &f64| *minutes > 0.0 && *minutes <= 10_000.0);
    let expected = "expected a number greater than 0, at most 10000";
    minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0)).ok_or(expected)
}

fn main() -> Result<(), String> {
    let Options { minutes, seed } = Options::parse();
    let clock = MonotonicClock;
    let mut seed = seed.unwrap_or_else(|| clock.now().0);
    let panics: Arc<RwLock<u64>> = Arc::default();
    let counted = panics.clone();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Do not print panics that the soak causes on purpose.
        if info.payload_as_str() == Some(DEAD) {
            *counted.write().unwrap_or_else(PoisonError::into_inner) += 1;
        } else {
            hook(info);
        }
    }));
    println!("soak: {minutes:?}, seed {seed}");
    let end = clock.now() + minutes;
    let (mut lives, mut packets, mut warm) = (0_u64, 0, 0);
    // Run at least one link, however short the time is.
    while lives == 0 || clock.now() < end {
        packets += second(seed)?;
        seed = seed.wrapping_add(1);
        lives += 1;
        let now = resident();
        // Compare later memory with that after ten links: from then on, the amount of memory that
        // the allocator keeps for reuse hardly changes.
        if lives == 10 {
            warm = now;
        }
        if lives % 10 == 0 {
            println!("soak: {lives} links, {packets} packets, {now} KiB, next seed {seed}");
        }
        if lives > 10 && now > warm * 2 + 16_384 {
            return Err(format!(
                "memory grows: {warm} KiB after 10 links, {now} KiB after {lives} links"
            ));
        }
    }
    let deaths = *panics.read().unwrap_or_else(PoisonError::into_inner);
    println!(
        "soak: {lives} links, {packets} packets, {deaths} devices died: all packets accounted for"
    );
    Ok(())
}
