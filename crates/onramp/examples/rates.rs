//! How exactly links keep their rates: eight links at once, each shaped to 20 Mbit/s by another
//! means, each with a sender that always has packets. The rates are those that the devices count,
//! which cost nothing: no socket takes part. Busy loops may compete for the processors.
//! With the word `check`, the example fails if a link is off its rate by more than 2 %.
//! Run: `cargo run --release -p onramp --example rates [BUSY LOOPS] [SECONDS] [CATCH-UP IN MS]
//! [check]`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use onramp::{Device, Link, LinkStats, Rate, Setup};
use onramp_dev::{Null, NullStats};

/// A name, and the lines of `tc` that describe the tree.
const LINKS: [(&str, &[&str]); 7] = [
    (
        "htb, default burst",
        &[
            "qdisc add dev any root handle 1: htb default 1",
            "class add dev any parent 1: classid 1:1 htb rate 20mbit",
        ],
    ),
    ("tbf burst 3kb", &["qdisc add dev any root tbf rate 20mbit burst 3kb latency 100ms"]),
    ("fq maxrate 20mbit", &["qdisc add dev any root fq maxrate 20mbit"]),
    (
        "the same, quantum 1514",
        &["qdisc add dev any root fq maxrate 20mbit quantum 1514 initial_quantum 1514"],
    ),
    ("cake", &["qdisc add dev any root cake bandwidth 20mbit"]),
    (
        "hfsc ul",
        &[
            "qdisc add dev any root handle 1: hfsc default 1",
            "class add dev any parent 1: classid 1:1 hfsc ls rate 20mbit ul rate 20mbit",
        ],
    ),
    ("netem rate 20mbit", &["qdisc add dev any root netem rate 20mbit"]),
];

/// The rate that each link should have, Mbit/s.
const RATE: f64 = 20.0;
/// By how much a link may be off its rate, if asked to check.
const TOLERANCE: f64 = 0.02;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (checks, numbers): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word == "check");
    let numbers: Vec<u64> = numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    if let Some(number) = numbers.get(3) {
        return Err(format!("{number}: nothing is expected here").into());
    }
    let number = |place: usize, usual| numbers.get(place).copied().unwrap_or(usual);
    let (busy, seconds, catch_up_ms) = (number(0, 0), number(1, 4), number(2, 5));

    let builder = || {
        let device = Null::new(1_514);
        let taken = device.stats();
        let devices = [Box::new(device) as Box<dyn Device>];
        (Link::devices(devices).catch_up(Duration::from_millis(catch_up_ms)), taken)
    };
    let mut links = Vec::new();
    for (name, lines) in LINKS {
        let mut tree = Setup::default();
        lines.iter().try_for_each(|line| tree.apply(&format!("tc {line}")).map(drop))?;
        let (builder, taken) = builder();
        links.push((name, builder.tree(&tree).build()?, taken));
    }
    let rate: Rate = "20mbit".parse()?;
    let (builder, taken) = builder();
    links.push(("the link's rate", builder.qdisc("pfifo").rate(rate).build()?, taken));

    let mut off = Vec::new();
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
        for (_, link, _) in &links {
            let mut sender = link.sender();
            scope.spawn(move || {
                let flow = sender.flow(None);
                while sender.send(&flow, &[0; 1_208]).is_ok() {}
            });
        }
        thread::sleep(Duration::from_secs(1));
        let read = |link: &Link, taken: &NullStats| (link.now(), taken.bytes.get(), link.stats());
        let begin: Vec<_> = links.iter().map(|(_, link, taken)| read(link, taken)).collect();
        thread::sleep(Duration::from_secs(seconds));
        println!("{busy} busy loops, {seconds} s, catch-up {catch_up_ms} ms");
        println!("{:22} {:>8} {:>14} {:>12}", "", "Mbit/s", "late, p50/p99", "time lost");
        for ((name, link, taken), (from, bytes, before)) in links.iter().zip(begin) {
            let (now, bytes_now, after) = read(link, taken);
            let took_ns = now.since(from);
            let mbits = (bytes_now - bytes) as f64 * 8e3 / took_ns as f64;
            row(name, mbits, &before, &after, took_ns);
            if (mbits / RATE - 1.0).abs() > TOLERANCE {
                off.push(format!("{name}: {mbits:.2} Mbit/s"));
            }
        }
        // Relaxed: as above, the flag stands for itself.
        stop.store(true, Ordering::Relaxed);
        for (_, link, _) in &links {
            let _ = link.close(Duration::ZERO);
        }
    });
    match &*off {
        [_, ..] if !checks.is_empty() => {
            Err(format!("off by more than {} %: {}", TOLERANCE * 100.0, off.join(", ")).into())
        }
        _ => Ok(()),
    }
}

/// Prints the rate of a link, and how late its runner was between two readings of its counters,
/// `took_ns` nanoseconds apart.
fn row(name: &str, mbits: f64, before: &LinkStats, after: &LinkStats, took_ns: u64) {
    let lost_ns = after.ports[0].lost_ns - before.ports[0].lost_ns;
    let late: Vec<u64> = (after.ports[0].late_ns.iter())
        .zip(&before.ports[0].late_ns)
        .map(|(after, before)| after - before)
        .collect();
    let percentile = |share: f64| {
        let all: u64 = late.iter().sum();
        let mut below = 0;
        let place = late.iter().position(|count| {
            below += count;
            below as f64 >= share * all as f64
        });
        place.map_or(0, |place| (1_u64 << place) / 1_000)
    };
    println!(
        "{name:22} {mbits:8.2} {:>8}/{} us {:11.2} %",
        percentile(0.5),
        percentile(0.99),
        lost_ns as f64 * 100.0 / took_ns as f64,
    );
}
