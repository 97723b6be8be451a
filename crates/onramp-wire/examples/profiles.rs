//! Measures every profile of `onramp wire` with real programs and sockets: the round-trip time with
//! `ping`, the rate and the loss of each direction with UDP datagrams. Prints each figure beside
//! the one of the profile's table, and fails if each of six tries has a figure that is further away
//! than 3 % (a loss: four standard deviations), because other programs of the machine can spoil
//! one. Of twenty round-trip times without a jitter the shortest counts, because they are all the
//! same but for what the machine adds; their mean may be a millisecond longer. Both may also be
//! longer by the shortest one of a wire without a delay, because the programs take some time
//! themselves.
//!
//! Takes some minutes: `cargo run --release -p onramp-wire --example profiles [NAME...]`.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use onramp_core::Clock;
use onramp_dev::MonotonicClock;
use onramp_wire::{CLIENT, Options, PROFILES, Profile, SERVER, Space, Wire, enter, series};

type Error = Box<dyn std::error::Error + Send + Sync>;

const MTU: u32 = 1_500;
/// Number of bytes that headers add to a datagram: Ethernet, IPv4, UDP.
const HEADERS: usize = 42;
/// Number of profiles that are measured at a time.
const AT_ONCE: usize = 8;
/// Number of times that a profile with wrong figures is measured.
const TRIES: usize = 6;
/// Time for which a rate is measured, after the first seconds.
const RATE_TIME: Duration = Duration::from_secs(5);
/// Number of datagrams from which a loss is computed, and the longest time that they may take.
const LOSSES: f64 = 4_000.0;
const LOSS_TIME: f64 = 40.0;

fn main() -> Result<(), Error> {
    enter()?;
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(name) = names.iter().find(|name| Profile::find(name).is_none()) {
        return Err(format!("there is no profile {name}").into());
    }
    let wanted = |profile: &&Profile| names.is_empty() || names.iter().any(|n| n == profile.name);
    let profiles: Vec<_> = PROFILES.iter().filter(wanted).collect();
    println!("profile               figure         measured    of the table");
    let (next, bad) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // Relaxed: the numbers publish no other data.
                while let Some(profile) = profiles.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut wrong = 0;
                    for _ in 0..TRIES {
                        wrong = told(profile);
                        if wrong == 0 {
                            break;
                        }
                    }
                    bad.fetch_add(wrong, Ordering::Relaxed); // Relaxed: as above.
                }
            });
        }
    });
    match bad.into_inner() {
        0 => Ok(()),
        some => Err(format!("{some} figures are not those of the table").into()),
    }
}

/// Measures a profile, and prints its figures. Returns the number of figures that are wrong.
fn told(profile: &'static Profile) -> usize {
    match measure(profile) {
        Ok((text, wrong)) => {
            print!("{text}");
            wrong
        }
        Err(error) => {
            println!("{:20} {error}", profile.name);
            1
        }
    }
}

/// Measures a profile. Returns the lines about it, and the number of figures that are wrong.
fn measure(profile: &'static Profile) -> Result<(String, usize), Error> {
    let [up, down] = profile.stages(MTU);
    // Without offload, a datagram is a packet.
    let options = Options {
        up: series(&up)?,
        down: series(&down)?,
        offload: false,
        seed: 1,
        ..Options::default()
    };
    let wire = Wire::lay(options)?;
    let (mut text, mut wrong) = (String::new(), 0);
    let mut tell = |what: &str, measured: f64, table: f64, [below, above]: [f64; 2], unit: &str| {
        let is_wrong = !(table - below..=table + above).contains(&measured);
        wrong += usize::from(is_wrong);
        let mark = if is_wrong { "   WRONG" } else { "" };
        let name = profile.name;
        text += &format!("{name:20}  {what:9} {measured:12.2} {table:12.2} {unit}{mark}\n");
    };
    let (rate_down, rate_up) = profile.kbit.map_or((None, None), |(d, u)| (Some(d), Some(u)));
    // The bucket of the rate lets a single packet pass at once.
    let table = f64::from(profile.delay_ms.0 + profile.delay_ms.1);
    // With a jitter, the mean of twenty round trips varies by itself.
    let jitter = f64::from(profile.jitter_ms) * 2.0_f64.sqrt() / 20.0_f64.sqrt() * 2.5;
    let allowed = 0.03 * table + jitter;
    let [itself, _] = ping(&Wire::lay(Options::default())?, 0.0)?;
    // More would be a fault of the wire, which must not excuse itself.
    tell("no delay", itself, 0.0, [0.0, 1.0], "ms");
    let itself = itself.min(1.0);
    let [least, mean] = ping(&wire, table)?;
    if profile.jitter_ms <= 0.0 {
        tell("ping", least, table, [allowed, allowed + itself], "ms");
    }
    tell("ping mean", mean, table, [allowed, allowed + itself + 1.0], "ms");
    let (client, server) = (wire.client(), wire.server());
    for (what, kbit, [from, to], address) in
        [("up", rate_up, [client, server], SERVER), ("down", rate_down, [server, client], CLIENT)]
    {
        if let Some(kbit) = kbit {
            let measured = rate(from, to, address, kbit)?;
            // What passes the rate may still be lost.
            let table = f64::from(kbit) * (1.0 - f64::from(profile.loss) / 100.0);
            tell(what, measured, table, [0.03 * table; 2], "kbit/s");
        }
        if profile.loss > 0.0 {
            // At half of the rate, so that no queue overflows, in frames of 62 bytes.
            let each = kbit.map_or(0.001, |kbit| 2.0 * 62.0 * 8.0 / f64::from(kbit) / 1_000.0);
            let count = LOSSES.min(LOSS_TIME / each.max(0.001)).floor();
            let measured = 100.0 * loss(from, to, address, count, each.max(0.001))?;
            let share = f64::from(profile.loss) / 100.0;
            let deviation = 100.0 * (share * (1.0 - share) / count).sqrt();
            let what = format!("{what} loss");
            tell(&what, measured, profile.loss.into(), [4.0 * deviation; 2], "%");
        }
    }
    Ok((text, wrong))
}

/// Returns the shortest of twenty round-trip times, and their mean, milliseconds.
fn ping(wire: &Wire, expected_ms: f64) -> Result<[f64; 2], Error> {
    // So seldom that no packet waits for another one.
    let gap = format!("{:.2}", (expected_ms / 1_000.0).max(0.05));
    let pings = |count: &str| -> Result<String, Error> {
        let mut ping = Command::new("ping");
        ping.args(["-q", "-c", count, "-W", "5", "-i", &gap, &SERVER.to_string()]);
        ping.stdout(Stdio::piped());
        let output = wire.client().spawn(ping)?.wait_with_output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    // The first ones also wait until ARP has found the other end.
    pings("3")?;
    let text = pings("20")?;
    let times = text.split_once("min/avg/max/mdev = ").and_then(|(_, times)| {
        let mut times = times.split('/').map(|time| time.parse().ok());
        Some([times.next()??, times.next()??])
    });
    times.ok_or_else(|| format!("ping: {text}").into())
}

/// Opens a socket at one end that sends to the other end, and one that receives there.
fn sockets(from: &Space, to: &Space, address: Ipv4Addr) -> Result<[UdpSocket; 2], Error> {
    // A port of its own, because packets of an earlier measurement may still be on the way.
    let receives = to.run(move || UdpSocket::bind((address, 0)))?;
    let port = receives.local_addr()?.port();
    receives.set_read_timeout(Some(Duration::from_millis(100)))?;
    let sends = from.run(move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((address, port))?;
        std::io::Result::Ok(socket)
    })?;
    Ok([sends, receives])
}

/// Sends `bytes` every `gap` seconds until the function `done` says so. Returns the number.
fn send(socket: &UdpSocket, bytes: usize, gap: f64, done: impl Fn(u64) -> bool) -> u64 {
    let (began, payload, mut sent) = (MonotonicClock.now(), vec![0; bytes], 0);
    while !done(sent) {
        let due = began + Duration::from_secs_f64(sent as f64 * gap);
        thread::sleep(Duration::from_nanos(due.since(MonotonicClock.now())));
        // A full queue of the interface is a loss in front of the wire, and no matter.
        let _ = socket.send(&payload);
        sent += 1;
    }
    sent
}

/// Returns the rate that passes, with Ethernet headers, kbit/s, if a quarter more is sent.
fn rate(from: &Space, to: &Space, address: Ipv4Addr, kbit: u32) -> Result<f64, Error> {
    let [sends, receives] = sockets(from, to, address)?;
    // Small datagrams at low rates, so that a single one does not matter.
    let bytes = if kbit < 1_000 { 120 } else { 1_400 };
    let bits = (bytes + HEADERS) as f64 * 8.0;
    let gap = bits / (f64::from(kbit) * 1_000.0 * 1.25);
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        // Relaxed: the flag publishes no other data.
        scope.spawn(|| send(&sends, bytes, gap, |_| end.load(Ordering::Relaxed)));
        let mut buffer = [0; 2_048];
        let mut arrivals = Vec::new();
        let mut last = MonotonicClock.now();
        loop {
            match receives.recv(&mut buffer) {
                Ok(_) => {
                    last = MonotonicClock.now();
                    arrivals.push(last);
                }
                Err(error) if is_pause(error.kind()) => {}
                Err(error) => {
                    end.store(true, Ordering::Relaxed);
                    return Err(error.into());
                }
            }
            let since = |at| Duration::from_nanos(MonotonicClock.now().since(at));
            let over = arrivals.first().is_some_and(|first| since(*first) > 2 * RATE_TIME);
            let silent = since(last) > Duration::from_secs(10);
            if over || silent {
                break;
            }
        }
        end.store(true, Ordering::Relaxed);
        // The first half has the burst, and the time until the queue is full.
        let begin = *arrivals.first().ok_or("nothing arrived")? + RATE_TIME;
        let late: Vec<_> = arrivals.into_iter().filter(|at| *at >= begin).collect();
        let (Some(first), Some(last)) = (late.first(), late.last()) else {
            return Err("nothing arrived after the beginning".into());
        };
        let seconds = last.since(*first) as f64 / 1e9;
        Ok((late.len() - 1) as f64 * bits / seconds / 1_000.0)
    })
}

fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Returns the share of `count` datagrams, one every `gap` seconds, that do not arrive.
fn loss(from: &Space, to: &Space, address: Ipv4Addr, count: f64, gap: f64) -> Result<f64, Error> {
    let [sends, receives] = sockets(from, to, address)?;
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut buffer, mut received) = ([0; 2_048], 0_u64);
            // Relaxed: the flag publishes no other data.
            while !end.load(Ordering::Relaxed) {
                received += u64::from(receives.recv(&mut buffer).is_ok());
            }
            received
        });
        let sent = send(&sends, 20, gap, |sent| sent as f64 >= count);
        // Until the last ones have come: the longest delay of a profile is below a second.
        thread::sleep(Duration::from_secs(3));
        end.store(true, Ordering::Relaxed);
        let received = receiver.join().map_err(|_| "the receiver panicked")?;
        Ok(1.0 - received as f64 / sent as f64)
    })
}
