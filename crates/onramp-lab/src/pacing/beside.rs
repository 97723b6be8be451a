//! The comparison with the kernel: the same datagrams at the same rate to the same receiver, once
//! through a shaper of the kernel and once through a link with the same shaper.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use onramp::dev::MonotonicClock;
use onramp::{Clock, Credits, Link, LinkStats, Setup};
use onramp_core::CATCH_UP_NS;

use super::ours::{PATIENCE, SenderTimes, credits, payload, slack};
use super::schedule::{Schedule, kernel_limit_ns};
use super::wire::{HEADERS, Wire, interrupts_ns};
use super::{Cell, Outcome, PACKET, Round};
use crate::Error;
use crate::measure::{Finally, Phase, PhaseCell, Usage, pause};

/// What the kernel charges to a socket for a packet of [`PACKET`] bytes until it has left the
/// shaper, bytes: a block of memory of 2,048 bytes, and 256 that describe it.
const CHARGE: usize = 2_048 + 256;

/// Measures a shaper of the kernel.
pub(super) fn kernel(wire: &Wire, cell: Cell, window: Duration) -> Result<Outcome, Error> {
    wire.set(Some((cell.shaper, cell.rate))).map_err(Error::Kernel)?;
    let (socket, packets) = (wire.socket()?, credits(cell));
    hold(&socket, packets).map_err(|error| {
        Error::Kernel(format!("cannot set the size of a socket's send buffer: {error}"))
    })?;
    wire.begin(Schedule::new(cell.rate, kernel_limit_ns(cell.shaper, cell.rate)));
    let (sent, measured) =
        window_of(wire, window, |phase, times| flood(&socket, phase, times), || ())?;
    let until = MonotonicClock.now() + patience(cell, packets);
    let mut held = wire.held(cell.shaper)?;
    while held.packets > 0 && MonotonicClock.now() < until {
        pause(Duration::from_millis(5))?;
        held = wire.held(cell.shaper)?;
    }
    let (sent, gone) = (sent?, held.drops + held.packets);
    let seen = wire.settled(sent.saturating_sub(gone), PATIENCE);
    let arrived = seen.arrived();
    if sent != arrived + gone {
        return Err(Error::Conservation(format!(
            "{cell}: {arrived} arrived ({} without room in the receiver's buffer), {} dropped and \
             {} held by the shaper, which are not those that were sent",
            seen.overflowed, held.drops, held.packets
        )));
    }
    let round = measured.round(None);
    let (overflowed, dropped) = (seen.overflowed, held.drops);
    Ok(Outcome { round, error: seen.error, packets: arrived, dropped, overflowed })
}

/// Lets `socket` hold about `packets` packets, as many as a link beside it. Only root may exceed
/// the limit `net.core.wmem_max`; another user gets as much as it allows.
fn hold(socket: &impl AsFd, packets: u32) -> nix::Result<()> {
    // The kernel doubles the size that it is given.
    let bytes = usize::try_from(packets).unwrap_or(usize::MAX).saturating_mul(CHARGE) / 2;
    setsockopt(socket, sockopt::SndBufForce, &bytes)
        .or_else(|_| setsockopt(socket, sockopt::SndBuf, &bytes))
}

/// Returns how long to wait until `packets` packets have left.
fn patience(cell: Cell, packets: u32) -> Duration {
    PATIENCE + Duration::from_secs(u64::from(packets) / cell.rate)
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

/// Measures a link with the same shaper.
pub(super) fn ours(wire: &Wire, cell: Cell, window: Duration) -> Result<Outcome, Error> {
    wire.set(None).map_err(Error::Kernel)?;
    let mut setup = Setup::default();
    for line in cell.shaper.lines("lab", cell.rate) {
        setup.apply(&line).map_err(|error| Error::Setup(line.clone(), error.to_string()))?;
    }
    let packets = credits(cell);
    let slack = slack(cell);
    let link = Link::sockets([wire.socket()?])
        .tree(&setup)
        .credits(Credits { packets, bytes: u32::MAX })
        .spin(cell.spin.unwrap_or_default());
    let link = slack.of(link).build().map_err(Error::Link)?;
    let slack_ns = u64::try_from(slack.longest().as_nanos()).unwrap_or(u64::MAX);
    wire.begin(Schedule::new(cell.rate, CATCH_UP_NS.saturating_add(slack_ns)));
    let patience = patience(cell, packets);
    let work = |phase: &PhaseCell, times: &SenderTimes| {
        let mut sender = link.sender();
        let flow = sender.flow(wire.receiver());
        let payload = vec![0; payload(&mut sender, &flow)];
        let mut was = Phase::WarmUp;
        while sender.send(&flow, &payload).is_ok() && times.goes_on(phase, &mut was) {}
        sender.flush(patience);
    };
    let ((), measured) = window_of(wire, window, work, || link.stats())?;
    let stats = link.stats();
    let seen = wire.settled(stats.sent, PATIENCE);
    let dropped: u64 = stats.dropped.values().sum();
    let arrived = seen.arrived();
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
    let overflowed = seen.overflowed;
    Ok(Outcome { round, error: seen.error, packets: arrived, dropped, overflowed })
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
    /// Time in interrupts of an idle time of the same length, nanoseconds.
    idle_interrupts_ns: f64,
    before: T,
    after: T,
}

/// Measures how much time the processors spend in interrupts while nothing is sent, for half of the
/// time `window`. Then runs `work` in a thread of its own, and measures for the time `window` after
/// a warm-up of one fifth of it. Returns the result of `work`.
fn window_of<R: Send, T>(
    wire: &Wire,
    window: Duration,
    work: impl FnOnce(&PhaseCell, &SenderTimes) -> R + Send,
    look: impl Fn() -> T,
) -> Result<(R, Measured<T>), Error> {
    let (phase, times) = (PhaseCell::default(), SenderTimes::default());
    let idle = idle_interrupts(window / 2)?;
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
            packets: last.left() - first.left(),
            lost_ns: last.lost_ns().saturating_sub(first.lost_ns()),
            process_ns: usage.process_ns,
            receiver_ns: last.cpu_ns - first.cpu_ns,
            sender_ns: times.spent_ns(),
            interrupts_ns: irqs,
            idle_interrupts_ns: idle * took_ns as f64,
            before,
            after,
        };
        Ok((done, measured))
    })
}

/// Returns the share of one processor that interrupts take, over the time `time`.
fn idle_interrupts(time: Duration) -> Result<f64, Error> {
    let (began, before) = (MonotonicClock.now(), interrupts_ns()?);
    pause(time)?;
    let took_ns = MonotonicClock.now().since(began).max(1);
    Ok(interrupts_ns()?.saturating_sub(before) as f64 / took_ns as f64)
}

impl<T> Measured<T> {
    /// Returns the figures of the window, in which a runner woke `woke` times, if there is one.
    fn round(&self, woke: Option<u64>) -> Round {
        let share = |total: f64| (self.packets > 0).then(|| total / self.packets as f64);
        let each = |total: u64| share(total as f64);
        let process_ns = self.process_ns.saturating_sub(self.receiver_ns);
        let above_idle_ns = (self.interrupts_ns as f64 - self.idle_interrupts_ns).max(0.0);
        Round {
            packets_per_second: self.packets as f64 * 1e9 / self.took_ns as f64,
            cpu_ns_per_packet: each(process_ns),
            sender_cpu_ns_per_packet: each(self.sender_ns),
            interrupt_ns_per_packet: each(self.interrupts_ns),
            idle_interrupt_ns_per_packet: share(self.idle_interrupts_ns),
            total_ns_per_packet: share(process_ns as f64 + above_idle_ns),
            wakeups_per_packet: woke.and_then(each),
            lost_share: self.lost_ns as f64 / self.took_ns as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The total has the process's time without the receiver's, and of the time in interrupts only
    /// what an idle machine does not have.
    #[test]
    fn a_total_has_what_interrupts_take_above_idle() {
        let measured = |interrupts_ns| Measured {
            took_ns: 1_000_000,
            packets: 100,
            lost_ns: 0,
            process_ns: 50_000,
            receiver_ns: 20_000,
            sender_ns: 10_000,
            interrupts_ns,
            idle_interrupts_ns: 4_000.0,
            before: (),
            after: (),
        };
        let total = |interrupts_ns| measured(interrupts_ns).round(None).total_ns_per_packet;
        assert_eq!(total(9_000), Some(350.0));
        assert_eq!(total(3_000), Some(300.0), "less than idle is no gain");
        let round = measured(9_000).round(Some(50));
        assert_eq!(round.idle_interrupt_ns_per_packet, Some(40.0));
        assert_eq!((round.cpu_ns_per_packet, round.wakeups_per_packet), (Some(300.0), Some(0.5)));
        let none = Measured { packets: 0, ..measured(9_000) };
        assert_eq!(none.round(None).total_ns_per_packet, None);
    }

    /// A socket's buffer holds as many packets as a link beside it may have in flight.
    #[test]
    fn a_socket_holds_as_many_packets_as_a_link() {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
        hold(&socket, 16).expect("a buffer");
        let bytes = nix::sys::socket::getsockopt(&socket, sockopt::SndBuf).expect("its size");
        assert_eq!(bytes, 16 * CHARGE);
    }
}
