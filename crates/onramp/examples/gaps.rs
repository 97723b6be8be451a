//! How evenly a paced flow leaves: the gaps between packets of 240 bytes at 2 Mbit/s, which should
//! be 960 us, under a link's default qdisc and under `fq` with Linux's defaults. Busy loops may
//! compete for the processors; with the word `fifo`, the runner has a real-time priority over them.
//! With the word `check`, the example fails if the 50th or 99th percentile of the gaps under the
//! default qdisc is off by more than 20 %.
//! Run: `cargo run --release -p onramp --example gaps [BUSY LOOPS] [SECONDS] [RATE] [BYTES] [fifo]
//! [check]`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use onramp::dev::{MonotonicClock, Priority};
use onramp::{Clock as _, Device, DeviceInfo, Instant, Link, PacketList, Rate, Transmitted};

/// By how much the gaps may be off, if asked to check.
const TOLERANCE: f64 = 0.2;

/// A device that sends nothing, and notes when each packet came.
#[derive(Debug)]
struct Stopwatch {
    info: DeviceInfo,
    times: Arc<Mutex<Vec<u64>>>,
}

impl Device for Stopwatch {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        _: Instant,
    ) -> Transmitted {
        // Not the port's time, which is that at which its owner read the clock.
        let now = MonotonicClock.now();
        let mut times = self.times.lock().expect("nobody panics with it");
        times.extend((0..burst.len()).map(|_| now.0));
        done.append(burst);
        Transmitted::default()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (checks, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word == "check");
    let word = |place: usize, usual: &'static str| words.get(place).map_or(usual, String::as_str);
    let (busy, seconds): (u32, u64) = (word(0, "0").parse()?, word(1, "5").parse()?);
    let (rate, bytes): (Rate, usize) = (word(2, "2mbit").parse()?, word(3, "240").parse()?);

    let priority = match word(4, "") {
        "fifo" => Some(Priority::Fifo(10)),
        "" => None,
        other => return Err(format!("{other}: expected `fifo` or nothing").into()),
    };
    if let Some(word) = words.get(5) {
        return Err(format!("{word}: nothing is expected here").into());
    }

    let mut gaps = Vec::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| {
                // Relaxed: no other data depends on the flag.
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        println!("{busy} busy loops, {seconds} s, {bytes} bytes at {rate}");
        for qdisc in [None, Some("fq")] {
            let time = Duration::from_secs(seconds);
            gaps.push(measure(qdisc, priority, rate, bytes, time).expect("a correct link"));
        }
        stop.store(true, Ordering::Relaxed); // Relaxed: as above, the flag stands for itself.
    });
    // The gaps that the rate asks for, in microseconds.
    let gap = bytes as f64 * 1e6 / rate.as_bytes_per_second() as f64;
    let off = gaps[0].iter().any(|has| (has / gap - 1.0).abs() > TOLERANCE);
    if off && !checks.is_empty() {
        let [half, most] = gaps[0];
        let percent = TOLERANCE * 100.0;
        let had = format!("p50 {half:.0} us and p99 {most:.0} us");
        return Err(format!("{had} are not within {percent} % of {gap:.0} us").into());
    }
    Ok(())
}

/// Measures the gaps under a qdisc, and prints them. Returns their 50th and their 99th percentile
/// in microseconds.
fn measure(
    qdisc: Option<&str>,
    priority: Option<Priority>,
    rate: Rate,
    bytes: usize,
    time: Duration,
) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let times = Arc::new(Mutex::new(Vec::new()));
    let info = DeviceInfo::new("stopwatch".to_owned(), 1_514).never_blocks();
    let device = Stopwatch { info, times: Arc::clone(&times) };
    let builder = Link::devices([Box::new(device) as Box<dyn Device>]);
    let builder = qdisc.into_iter().fold(builder, onramp::LinkBuilder::qdisc);
    let link = priority.into_iter().fold(builder, onramp::LinkBuilder::runner_priority).build()?;
    let mut sender = link.sender();
    let flow = sender.flow(None).with_pacing_rate(rate);
    // The rate counts whole frames, so the payload is shorter by the headers of Ethernet, IPv4,
    // UDP.
    let payload = vec![0; bytes.saturating_sub(14 + 20 + 8)];
    let end = link.now() + time;
    while link.now() < end {
        sender.send(&flow, &payload)?;
    }
    let _ = link.close(Duration::from_secs(10));

    let times = times.lock().expect("nobody panics with it");
    let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let at = |permille: usize| gaps[(gaps.len() - 1) * permille / 1_000] as f64 / 1e3;
    let took_ns = times.last().zip(times.first()).map_or(1, |(last, first)| last - first);
    println!(
        "{:8} {:6} packets, {:5.3} Mbit/s, gaps p1 {:.0}, p50 {:.0}, p99 {:.0}, longest {:.0} us",
        qdisc.unwrap_or("default"),
        times.len(),
        (gaps.len() * bytes * 8) as f64 * 1e3 / took_ns as f64,
        at(10),
        at(500),
        at(990),
        at(1_000),
    );
    Ok([at(500), at(990)])
}
