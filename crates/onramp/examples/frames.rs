//! How many frames a second one thread sends through AF_XDP and through a packet socket: bare, with
//! `fq` as a tree in the thread's own loop, and through a link with `fq` in each of the three
//! modes. Each way sends from one end of a veth pair,
//! in a network namespace of its own, to the other end, where the kernel discards the frames,
//! because they are for another station. Run as root: `cargo run --release -p onramp --example
//! frames [BYTES] [SECONDS] [ROUNDS] [CREDITS]`, where CREDITS is how many frames of the sender may
//! wait at a time.

use std::process::Command;

use onramp::dev::{MonotonicClock, PacketOptions, PacketSocket, Xdp, XdpOptions};
use onramp::{
    Clock as _, Credits, Device, Instant, Layer, Link, Mode, Packet, PacketList, Tree, TrySendError,
};
use rustix::time::{ClockId, clock_gettime};

type Error = Box<dyn std::error::Error>;

/// Packets that are handed over together, as many as the kernel sends in a call.
const BURST: u32 = 32;
const FLOWS: u64 = 16;
/// Size of the largest frame.
const MTU: u32 = 1_514;
/// Tells the process that it is in a namespace of its own.
const INSIDE: &str = "ONRAMP_FRAMES_INSIDE";

/// A way to send.
struct Way {
    name: &'static str,
    xdp: bool,
    before: Before,
}

/// What is between the sender and the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A tree with `fq`, which the thread that sends drives itself.
    Tree,
    /// A link with `fq`.
    Link(Mode),
}

const WAYS: [Way; 10] = [
    Way { name: "xdp", xdp: true, before: Before::Nothing },
    Way { name: "xdp, fq in a tree", xdp: true, before: Before::Tree },
    Way { name: "xdp, fq", xdp: true, before: Before::Link(Mode::Hybrid) },
    Way { name: "xdp, fq, inline", xdp: true, before: Before::Link(Mode::Inline) },
    Way { name: "xdp, fq, dedicated", xdp: true, before: Before::Link(Mode::Dedicated) },
    Way { name: "packet socket", xdp: false, before: Before::Nothing },
    Way { name: "packet socket, fq in a tree", xdp: false, before: Before::Tree },
    Way { name: "packet socket, fq", xdp: false, before: Before::Link(Mode::Hybrid) },
    Way { name: "packet socket, fq, inline", xdp: false, before: Before::Link(Mode::Inline) },
    Way { name: "packet socket, fq, dedicated", xdp: false, before: Before::Link(Mode::Dedicated) },
];

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os(INSIDE).is_none() {
        let this = std::env::current_exe()?;
        let mut inside = Command::new("unshare");
        let status = inside.arg("-n").arg(this).args(&words).env(INSIDE, "1").status()?;
        return if status.success() { Ok(()) } else { Err("it failed, see above".into()) };
    }
    let word = |place: usize, usual: &'static str| words.get(place).map_or(usual, String::as_str);
    let (bytes, seconds): (usize, f64) = (word(0, "60").parse()?, word(1, "0.5").parse()?);
    let rounds: usize = word(2, "7").parse()?;
    let credits = Credits { packets: word(3, "1024").parse()?, bytes: 4 << 20 };
    if !(1..=Credits::PACKETS_MAX).contains(&credits.packets) {
        return Err(
            format!("{} credits: give 1 to {}", credits.packets, Credits::PACKETS_MAX).into()
        );
    }
    if !(34..=MTU as usize).contains(&bytes) {
        return Err(format!("{bytes} bytes: a frame has 34 to {MTU}").into());
    }
    if !(0.01..=60.0).contains(&seconds) || rounds == 0 {
        return Err("give 0.01 to 60 seconds, and at least one round".into());
    }
    for line in ["link add x0 type veth peer name x1", "link set x0 up", "link set x1 up"] {
        let status = Command::new("ip").args(line.split(' ')).status()?;
        if !status.success() {
            return Err(format!("`ip {line}` failed: run this as root").into());
        }
    }
    let mut results: [Vec<(f64, f64)>; WAYS.len()] = Default::default();
    // The ways take turns, so that a slow time of the machine meets all of them.
    for _ in 0..rounds {
        for (way, results) in WAYS.iter().zip(&mut results) {
            results.push(measure(way, credits, bytes, seconds)?);
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("{bytes} bytes a frame, {rounds} rounds of {seconds} s, medians (extremes)");
    let mut bare: &[(f64, f64)] = &[];
    for (way, results) in WAYS.iter().zip(&results) {
        let mut rates: Vec<f64> = results.iter().map(|(rate, _)| rate / 1e6).collect();
        let mut times: Vec<f64> = results.iter().map(|(_, ns)| *ns).collect();
        let (rate, ns) = (median(&mut rates), median(&mut times));
        if way.before == Before::Nothing {
            bare = results;
        }
        // Within a round, because a machine's speed can change from round to round.
        let mut shares: Vec<f64> =
            results.iter().zip(bare).map(|(way, bare)| way.0 / bare.0).collect();
        let share = median(&mut shares);
        let spread = |sorted: &[f64]| (sorted[0], sorted[sorted.len() - 1]);
        let ((least, most), (low, high)) = (spread(&rates), spread(&shares));
        println!(
            "{:28} {rate:.3} Mpps ({least:.3}-{most:.3}), CPU {ns:.0} ns a frame, {share:.2} \
             ({low:.2}-{high:.2}) of bare",
            way.name,
        );
    }
    Ok(())
}

/// Opens the device of a way.
fn device(way: &Way) -> Result<Box<dyn Device>, Error> {
    if way.xdp {
        let options = XdpOptions { receive: false, ..XdpOptions::default() };
        return Ok(Box::new(Xdp::open("x0", 0, options)?));
    }
    // Past the interface's own qdisc, as with AF_XDP.
    let options = PacketOptions { offload: false, bypass: true, ..PacketOptions::default() };
    Ok(Box::new(PacketSocket::open("x0", options)?))
}

/// Returns the frames per second, and the processor time of a frame in nanoseconds.
fn measure(way: &Way, credits: Credits, bytes: usize, seconds: f64) -> Result<(f64, f64), Error> {
    let device = device(way)?;
    let mut frame = vec![0; bytes];
    // From a station of the documentation's address block to one that nobody is.
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0]);
    frame[14..34]
        .copy_from_slice(&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let mut clock = Stopwatch { warm_up_ns: seconds * 0.2e9, ns: seconds * 1e9, began: None };
    let sent = match way.before {
        Before::Nothing => alone(device, None, &frame, &mut clock),
        Before::Tree => alone(device, Some(Tree::new(&"fq".parse()?, MTU)), &frame, &mut clock),
        Before::Link(mode) => through(device, mode, credits, &frame, &mut clock)?,
    };
    Ok((sent.count as f64 * 1e9 / sent.ns, sent.cpu_ns / sent.count as f64))
}

/// The time of a measurement, after a warm-up.
struct Stopwatch {
    warm_up_ns: f64,
    ns: f64,
    began: Option<Moment>,
}

/// A time, the processor time that the process has used until then, and the frames that it has
/// sent.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    cpu_ns: f64,
    count: u64,
}

/// What was sent between two moments.
struct Sent {
    ns: f64,
    cpu_ns: f64,
    count: u64,
}

impl Stopwatch {
    /// Returns what was sent since the warm-up, when the time is over. `sent` is what was sent in
    /// all.
    fn look(&mut self, sent: impl FnOnce() -> u64, start: Instant) -> Option<Sent> {
        let at = MonotonicClock.now();
        let passed = |since: Instant| at.since(since) as f64;
        let cpu = || {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
        };
        let Some(began) = self.began else {
            if passed(start) >= self.warm_up_ns {
                self.began = Some(Moment { at, cpu_ns: cpu(), count: sent() });
            }
            return None;
        };
        if passed(began.at) < self.ns {
            return None;
        }
        let (cpu_ns, count) = (cpu() - began.cpu_ns, sent() - began.count);
        Some(Sent { ns: passed(began.at), cpu_ns, count })
    }
}

/// Offers bursts to the device, from a tree if there is one.
fn alone(
    mut device: Box<dyn Device>,
    mut tree: Option<Tree>,
    frame: &[u8],
    clock: &mut Stopwatch,
) -> Sent {
    let packet = |number: u64| {
        let mut packet = Packet::with_payload(frame);
        packet.set_layer(Layer::Ethernet);
        packet.flow = number % FLOWS;
        packet
    };
    let mut free = PacketList::from_iter((0..u64::from(BURST)).map(packet));
    let (start, mut ready, mut sent) = (MonotonicClock.now(), PacketList::new(), 0);
    loop {
        let now = MonotonicClock.now();
        match &mut tree {
            None => ready.append(&mut free),
            Some(tree) => {
                tree.enqueue_list(now, std::mem::take(&mut free));
                let _ = tree.dequeue_list(now, BURST, &mut ready);
            }
        }
        device.transmit(&mut ready, &mut free, now);
        sent += free.metas().filter(|meta| meta.drop_reason.is_none()).count() as u64;
        if let Some(sent) = clock.look(|| sent, start) {
            return sent;
        }
    }
}

/// Sends through a link.
fn through(
    device: Box<dyn Device>,
    mode: Mode,
    credits: Credits,
    frame: &[u8],
    clock: &mut Stopwatch,
) -> Result<Sent, Error> {
    let link = Link::devices([device]).qdisc("fq").mode(mode).credits(credits).build()?;
    let mut sender = link.sender();
    let flows: Vec<_> = (0..FLOWS).map(|_| sender.flow(None)).collect();
    let start = MonotonicClock.now();
    loop {
        sender.cork();
        for number in 0..BURST as usize {
            let flow = &flows[number % flows.len()];
            match sender.packet(flow, frame) {
                Ok(mut packet) => {
                    packet.set_layer(Layer::Ethernet);
                    drop(sender.submit(flow, packet));
                }
                Err(TrySendError::Full) => {
                    // What was submitted leaves first.
                    let _ = sender.uncork();
                    sender.wait_room(flow, frame.len());
                    sender.cork();
                }
                Err(other) => return Err(other.into()),
            }
        }
        let _ = sender.uncork();
        if let Some(sent) = clock.look(|| link.stats().sent, start) {
            return Ok(sent);
        }
    }
}
