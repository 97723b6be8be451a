//! The comparison with the kernel: the same datagrams at the same rate to the same receiver, once
//! through a shaper of the kernel and once through a link with the same shaper.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock, Credits, Link, LinkStats, Setup};

use super::ours::{PATIENCE, SenderTimes, credits, payload};
use super::wire::{HEADERS, Wire, interrupts_ns};
use super::{BURST, Cell, Outcome, PACKET, Path, Round};
use crate::Error;
use crate::measure::{Finally, Phase, PhaseCell, Usage, pause};

/// How much lateness a link makes up for, besides its slack.
const CATCH_UP: Duration = Duration::from_millis(5);

/// Measures one cell of the comparison.
pub(super) fn measure(wire: &Wire, cell: Cell, window: Duration) -> Result<Outcome, Error> {
    match cell.path {
        Path::Kernel => kernel(wire, cell, window),
        Path::Onramp | Path::OnrampUdp => ours(wire, cell, window),
    }
}

fn kernel(wire: &Wire, cell: Cell, window: Duration) -> Result<Outcome, Error> {
    wire.set(Some((cell.shaper, cell.rate))).map_err(Error::Kernel)?;
    let socket = wire.socket()?;
    // A shaper of the kernel makes up for the tokens of its burst, less the packet that leaves.
    let packets = u64::from(BURST / PACKET - 1);
    wire.begin(cell.rate, Duration::from_nanos(packets * 1_000_000_000 / cell.rate));
    let (sent, measured) =
        window_of(wire, window, |phase, times| flood(&socket, phase, times), || ())?;
    let until = MonotonicClock.now() + PATIENCE;
    let mut held = wire.held(cell.shaper)?;
    while held.packets > 0 && MonotonicClock.now() < until {
        pause(Duration::from_millis(5))?;
        held = wire.held(cell.shaper)?;
    }
    let seen = wire.settled(PATIENCE);
    let arrived = seen.packets + seen.overflowed;
    if sent? != arrived + held.drops + held.packets {
        return Err(Error::Conservation(format!(
            "{cell}: {arrived} arrived ({} without room in the receiver's buffer), {} dropped and \
             {} held by the shaper, which are not those that were sent",
            seen.overflowed, held.drops, held.packets
        )));
    }
    let round = measured.round(None);
    Ok(Outcome { round, error: seen.error, packets: seen.packets, dropped: held.drops })
}

/// Sends datagrams, at least one, as fast as the socket takes them. Returns their number.
fn flood(socket: &UdpSocket, phase: &PhaseCell, times: &SenderTimes) -> Result<u64, Error> {
    let payload = vec![0; usize::try_from(PACKET - HEADERS).unwrap_or(0)];
    let (mut sent, mut was) = (0, Phase::WarmUp);
    loop {
        match socket.send(&payload) {
            // The kernel reports a drop of the shaper as success, or as a lack of buffers.
            Ok(_) => sent += 1,
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32) => {
                sent += 1;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Kernel(format!("cannot send a datagram: {error}"))),
        }
        if !times.goes_on(phase, &mut was) {
            return Ok(sent);
        }
    }
}

fn ours(wire: &Wire, cell: Cell, window: Duration) -> Result<Outcome, Error> {
    wire.set(None).map_err(Error::Kernel)?;
    let mut setup = Setup::default();
    for line in cell.shaper.lines("lab", cell.rate) {
        setup.apply(&line).map_err(|error| Error::Setup(line.clone(), error.to_string()))?;
    }
    let packets = credits(cell);
    let (slack, spin) = (cell.slack.unwrap_or_default(), cell.spin.unwrap_or_default());
    let link = Link::sockets([wire.socket()?])
        .tree(&setup)
        .credits(Credits { packets, bytes: u32::MAX })
        .slack(slack)
        .spin(spin)
        .build()
        .map_err(Error::Link)?;
    wire.begin(cell.rate, CATCH_UP + slack);
    let patience = PATIENCE + Duration::from_secs(u64::from(packets) / cell.rate);
    let work = |phase: &PhaseCell, times: &SenderTimes| {
        let mut sender = link.sender();
        let flow = sender.flow(wire.receiver());
        let payload = vec![0; payload(&mut sender, &flow)];
        let mut was = Phase::WarmUp;
        while sender.send(&flow, &payload).is_ok() && times.goes_on(phase, &mut was) {}
        sender.flush(patience);
    };
    let ((), measured) = window_of(wire, window, work, || link.stats())?;
    let (seen, stats) = (wire.settled(PATIENCE), link.stats());
    let dropped: u64 = stats.dropped.values().sum();
    let arrived = seen.packets + seen.overflowed;
    if stats.submitted != stats.sent + dropped || stats.held != 0 || stats.sent != arrived {
        return Err(Error::Conservation(format!(
            "{cell}: {} submitted, {} sent, {dropped} dropped, {} held, {arrived} arrived ({} \
             without room in the receiver's buffer)",
            stats.submitted, stats.sent, stats.held, seen.overflowed
        )));
    }
    let wakeups = |stats: &LinkStats| stats.runner_wakeups;
    let woke = wakeups(&measured.after) - wakeups(&measured.before);
    let round = measured.round(Some(woke));
    Ok(Outcome { round, error: seen.error, packets: seen.packets, dropped })
}

/// What was measured in a window, and what `look` saw at its beginning and at its end.
struct Measured<T> {
    took_ns: u64,
    packets: u64,
    lost_ns: u64,
    process_ns: u64,
    receiver_ns: u64,
    sender_ns: u64,
    interrupts_ns: u64,
    before: T,
    after: T,
}

/// Runs `work` in a thread of its own, and measures for the time `window` after a warm-up of one
/// fifth of it. Returns the result of `work`.
fn window_of<R: Send, T>(
    wire: &Wire,
    window: Duration,
    work: impl FnOnce(&PhaseCell, &SenderTimes) -> R + Send,
    look: impl Fn() -> T,
) -> Result<(R, Measured<T>), Error> {
    let (phase, times) = (PhaseCell::default(), SenderTimes::default());
    thread::scope(|scope| {
        let sender = scope.spawn(|| work(&phase, &times));
        let stops = Finally::new(|| phase.set(Phase::Stop));
        pause(window / 5)?;
        let (began, usage, irqs, before) =
            (MonotonicClock.now(), Usage::now()?, interrupts_ns()?, look());
        phase.set(Phase::Measure);
        let first = wire.measure(true);
        pause(window)?;
        let last = wire.measure(false);
        let took_ns = MonotonicClock.now().since(began);
        let (usage, irqs) = (Usage::now()?.since(usage), interrupts_ns()?.saturating_sub(irqs));
        let after = look();
        drop(stops);
        let done = sender.join().map_err(|_| Error::Panicked)?;
        let measured = Measured {
            took_ns,
            packets: last.packets - first.packets,
            lost_ns: last.lost_ns,
            process_ns: usage.process_ns,
            receiver_ns: last.cpu_ns - first.cpu_ns,
            sender_ns: times.spent_ns(),
            interrupts_ns: irqs,
            before,
            after,
        };
        Ok((done, measured))
    })
}

impl<T> Measured<T> {
    /// Returns the figures of the window, in which a runner woke `woke` times, if there is one.
    fn round(&self, woke: Option<u64>) -> Round {
        let each = |total: u64| (self.packets > 0).then(|| total as f64 / self.packets as f64);
        Round {
            packets_per_second: self.packets as f64 * 1e9 / self.took_ns as f64,
            cpu_ns_per_packet: each(self.process_ns.saturating_sub(self.receiver_ns)),
            sender_cpu_ns_per_packet: each(self.sender_ns),
            interrupt_ns_per_packet: each(self.interrupts_ns),
            wakeups_per_packet: woke.and_then(each),
            lost_share: self.lost_ns as f64 / self.took_ns as f64,
        }
    }
}
