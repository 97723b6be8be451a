//! How long packets wait in a link whose sender has credits in time (`Sender::set_credit_time`),
//! and which rate they reach. A thread sends packets of 1,250 bytes, headers included, as fast as
//! the link accepts them. The lines are those of the table in
//! `docs/decisions/0035-credits-in-time.md`.
//!
//! ```text
//! cargo run --release -p onramp --example credit_time [SECONDS]
//! ```
//!
//! `SECONDS` (default 1) is the time for each entry of the table.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onramp::dev::Null;
use onramp::{Completion, Credits, Device, Link};

const QDISCS: [&str; 3] = [
    "fq maxrate 20mbit",
    "tbf rate 20mbit burst 3000 limit 1mb",
    "tbf rate 20mbit burst 32000 limit 1mb",
];
/// A packet has 42 bytes of headers besides.
const PAYLOAD: [u8; 1_208] = [0; 1_208];

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(1.0), |text| text.parse())?;
    let time = Duration::try_from_secs_f64(seconds)?;
    println!("| credit time | `{}` |", QDISCS.join("` | `"));
    for ms in [None, Some(8), Some(4), Some(2), Some(1)] {
        let name = ms.map_or_else(|| "none".to_owned(), |ms| format!("{ms} ms"));
        let cells = QDISCS.map(|qdisc| measure(qdisc, ms.map(Duration::from_millis), time));
        let cells: Result<Vec<_>, _> = cells.into_iter().collect();
        println!("| {name} | {} |", cells?.join(" | "));
    }
    Ok(())
}

/// Sends for `time`. Returns the mean time from push to departure, and the rate, both after a tenth
/// of the time.
fn measure(
    qdisc: &str,
    credit_time: Option<Duration>,
    time: Duration,
) -> Result<String, Box<dyn Error>> {
    let device = Box::new(Null::default()) as Box<dyn Device>;
    let credits = Credits { packets: 96, bytes: 1 << 20 };
    let link = Link::devices([device]).qdisc(qdisc).credits(credits).build()?;
    let mut sender = link.sender();
    sender.set_credit_time(credit_time);
    let left = Arc::new(Mutex::new((0_u64, 0_u64)));
    let sums = Arc::clone(&left);
    let begin = link.now() + time / 10;
    sender.on_complete(move |told: Completion| {
        if let Some(left_ns) = told.left_ns.filter(|at| *at >= begin.0) {
            let mut sums = sums.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            sums.0 += 1;
            sums.1 += left_ns - told.pushed_ns;
        }
    });
    let (flow, end) = (sender.flow(None), begin + time);
    while link.now() < end {
        sender.send(&flow, &PAYLOAD)?;
    }
    sender.reclaim();
    let (packets, waited_ns) = *left.lock().map_err(|_| "a callback panicked")?;
    #[expect(clippy::cast_precision_loss, reason = "figures to read")]
    let (packets, waited_ns) = (packets as f64, waited_ns as f64);
    let mbit = packets * 1_250.0 * 8.0 / time.as_secs_f64() / 1e6;
    Ok(format!("{:.1} ms, {mbit:.1}", waited_ns / packets.max(1.0) / 1e6))
}
