//! Compares a limiter in front of a queue with a tree in front of it, in virtual time: how long a
//! ping waits beside a download of 100 Mbit/s.
//! Run: `cargo run -p onramp-limiter --example tree`.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use onramp::qdisc::Dequeue;
use onramp::{Instant, Packet, Setup, Tree};
use onramp_limiter::{Limiter, Request, Ticket, TokenBucket, TokenType};

const DOWNLOAD: u64 = 1;
const PING: u64 = 2;
/// Packets of the download that wait for the device at any time.
const WINDOW: usize = 80;
/// A ping comes this often, in nanoseconds.
const EVERY: u64 = 10_000_000;
const PINGS: u64 = 100;

/// What stands between the guest and the device.
trait Shaper {
    fn push(&mut self, now: Instant, flow: u64, len: u32);
    fn pop(&mut self, now: Instant) -> Next;
    /// Number of packets of the download that were dropped since the last call.
    fn lost(&mut self) -> usize {
        0
    }
}

enum Next {
    Flow(u64),
    At(Instant),
    Empty,
}

/// A queue, and a bucket that holds back its head.
struct Queue {
    packets: VecDeque<(u64, u32)>,
    limiter: Limiter,
    ticket: Ticket,
}

impl Shaper for Queue {
    fn push(&mut self, _: Instant, flow: u64, len: u32) {
        self.packets.push_back((flow, len));
    }

    fn pop(&mut self, now: Instant) -> Next {
        let Some(&(flow, len)) = self.packets.front() else { return Next::Empty };
        let request = Request::of(len.into(), TokenType::Bytes);
        match self.limiter.take(now, &mut self.ticket, request) {
            Ok(()) => {
                self.packets.pop_front();
                Next::Flow(flow)
            }
            Err(then) => Next::At(then),
        }
    }
}

impl Shaper for Tree {
    fn push(&mut self, now: Instant, flow: u64, len: u32) {
        let mut packet = Packet::new(len);
        (packet.flow, packet.enqueued_ns) = (flow, now.0);
        // `lost` counts a packet that is dropped.
        let _ = self.enqueue(now, packet);
    }

    fn lost(&mut self) -> usize {
        self.drops().filter(|packet| packet.flow == DOWNLOAD).count()
    }

    fn pop(&mut self, now: Instant) -> Next {
        match self.dequeue(now) {
            Dequeue::Ready(packet) => Next::Flow(packet.flow),
            Dequeue::NotBefore(then) => Next::At(then),
            Dequeue::Empty => Next::Empty,
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // 100 Mbit/s are 12,500 bytes in a millisecond.
    let bucket = TokenBucket::new(12_500, 0, Duration::from_millis(1))?;
    let limiter = Limiter::new(Some(bucket), None, Instant(0));
    let queue = Queue { packets: VecDeque::new(), limiter, ticket: Ticket::default() };
    report("a limiter in front of a queue", queue);

    let mut setup = Setup::default();
    for line in [
        "qdisc add dev tap0 root handle 1: htb default 10",
        "class add dev tap0 parent 1: classid 1:10 htb rate 100mbit burst 12500b",
        "qdisc add dev tap0 parent 1:10 fq_codel",
    ] {
        setup.apply(line)?;
    }
    report("htb and fq_codel", Tree::of(&setup, 1_514, 0).ok_or("no root")?);
    Ok(())
}

/// Lets a download and pings pass, and prints how long the pings waited.
fn report(name: &str, mut shaper: impl Shaper) {
    let (mut now, mut bytes, mut waited) = (Instant(0), 0_u64, Vec::new());
    // When the pings came that have not left yet.
    let mut came = VecDeque::new();
    let mut pings = (0..PINGS).map(|n| Instant(n * EVERY + EVERY / 3)).peekable();
    for _ in 0..WINDOW {
        shaper.push(now, DOWNLOAD, 1_514);
    }
    while pings.peek().is_some() || !came.is_empty() {
        while let Some(at) = pings.next_if(|at| *at <= now) {
            shaper.push(now, PING, 98);
            came.push_back(at);
        }
        let ping = pings.peek().copied();
        let popped = shaper.pop(now);
        // The download sends again what was dropped, so that its window stays.
        for _ in 0..shaper.lost() {
            shaper.push(now, DOWNLOAD, 1_514);
        }
        match popped {
            Next::Flow(PING) => waited.extend(came.pop_front().map(|at| now.since(at))),
            Next::Flow(_) => {
                bytes += 1_514;
                shaper.push(now, DOWNLOAD, 1_514);
            }
            Next::At(then) => now = ping.map_or(then, |ping| ping.min(then)),
            Next::Empty => now = ping.expect("all others would be there"),
        }
    }
    waited.sort_unstable();
    let ms = |ns: u64| ns as f64 / 1e6;
    let mbit = bytes as f64 * 8e3 / now.0 as f64;
    println!(
        "{name}: a ping waits {:.2} ms (median), {:.2} ms (longest); download {mbit:.1} Mbit/s",
        ms(waited[waited.len() / 2]),
        ms(waited[waited.len() - 1]),
    );
}
