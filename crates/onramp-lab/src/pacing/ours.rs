//! Onramp's side of the experiment: a link with one port, a thread that sends through it, and a
//! device that notes when it gets the packets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{Clock, Credits, Device, Flow, Link, LinkStats, Sender};

use super::timed::{Recorder, SharedNotes, TIMED, text};
use super::{Cell, Outcome, PACKET, Round, Slack};
use crate::Error;
use crate::measure::{Finally, Phase, PhaseCell, Usage, pause, thread_cpu_ns};

/// Fewest credits of the sender: so many packets wait in the qdisc, if the slack does not need
/// more.
const CREDITS: u32 = 64;
/// Greatest lateness of the runner for which the packets in the qdisc suffice, besides the slack.
const LATENESS: Duration = Duration::from_millis(5);
/// How long to wait, at the end of a run, until all packets have left, besides the time that the
/// rate needs for them.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// CPU time of the sending thread at the beginning and at the end of the window, nanoseconds.
#[derive(Debug, Default)]
pub(super) struct SenderTimes {
    began: AtomicU64,
    ended: AtomicU64,
}

impl SenderTimes {
    /// For the sending thread: whether it goes on. Notes its CPU time when the phase changes from
    /// `was`.
    pub(super) fn goes_on(&self, phase: &PhaseCell, was: &mut Phase) -> bool {
        let is = phase.get();
        if is != *was {
            let now_ns = thread_cpu_ns();
            // Relaxed: the thread that reads these values joins the sending thread first.
            if *was == Phase::WarmUp {
                self.began.store(now_ns, Ordering::Relaxed);
            }
            self.ended.store(now_ns, Ordering::Relaxed);
            *was = is;
        }
        is != Phase::Stop
    }

    /// Returns the CPU time that the sending thread has spent in the window, nanoseconds. Call it
    /// after the thread was joined.
    pub(super) fn spent_ns(&self) -> u64 {
        // Relaxed: the sending thread was joined before these loads.
        let ended = self.ended.load(Ordering::Relaxed);
        ended.saturating_sub(self.began.load(Ordering::Relaxed))
    }
}

pub(super) fn measure(cell: Cell, window: Duration) -> Result<Outcome, Error> {
    let (notes, phase) = (SharedNotes::default(), Arc::new(PhaseCell::default()));
    let device = Box::new(Recorder::new(notes.clone(), phase.clone())) as Box<dyn Device>;
    let packets = credits(cell);
    let link = Link::devices([device])
        .kind(&TIMED)
        .qdisc(&text(cell.shaper, cell.rate))
        .mtu(PACKET)
        .credits(Credits { packets, bytes: u32::MAX })
        .spin(cell.spin.unwrap_or_default());
    let link = slack(cell).of(link).build().map_err(Error::Link)?;
    let times = SenderTimes::default();
    let patience = PATIENCE + Duration::from_secs(u64::from(packets) / cell.rate);
    let (before, after, usage, took_ns) = thread::scope(|scope| {
        let sender = scope.spawn(|| send(&link, &phase, &times, patience));
        let stops = Finally::new(|| phase.set(Phase::Stop));
        pause(window / 5)?;
        let (began, usage, before) = (MonotonicClock.now(), Usage::now()?, link.stats());
        phase.set(Phase::Measure);
        pause(window)?;
        let (usage, after) = (Usage::now()?.since(usage), link.stats());
        let took_ns = MonotonicClock.now().since(began);
        drop(stops);
        sender.join().map_err(|_| Error::Panicked)?;
        Ok((before, after, usage, took_ns))
    })?;
    let stats = link.stats();
    let notes = notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let dropped = add_up(cell, &stats, notes.taken)?;
    if notes.early > 0 {
        let early = notes.early;
        return Err(Error::Early(format!("{cell}: {early} of {} packets", notes.taken)));
    }
    let left = after.sent - before.sent;
    let each = |total: u64| (left > 0).then(|| total as f64 / left as f64);
    let lost = |stats: &LinkStats| stats.ports.iter().map(|port| port.lost_ns).sum::<u64>();
    let round = Round {
        packets_per_second: left as f64 * 1e9 / took_ns as f64,
        cpu_ns_per_packet: each(usage.process_ns),
        sender_cpu_ns_per_packet: each(times.spent_ns()),
        interrupt_ns_per_packet: None,
        idle_interrupt_ns_per_packet: None,
        total_ns_per_packet: None,
        wakeups_per_packet: each(after.runner_wakeups - before.runner_wakeups),
        lost_share: (lost(&after) - lost(&before)) as f64 / took_ns as f64,
    };
    Ok(Outcome { round, error: notes.error, packets: stats.sent, dropped, overflowed: 0 })
}

pub(super) fn slack(cell: Cell) -> Slack {
    cell.slack.unwrap_or(Slack::Fixed(Duration::ZERO))
}

/// Returns how many packets the sender may have in flight: enough for the slack, for a late runner,
/// and for the time that the sender needs to fill the qdisc again.
pub(super) fn credits(cell: Cell) -> u32 {
    let ns = (2 * slack(cell).longest() + LATENESS).as_nanos();
    let packets = ns.saturating_mul(cell.rate.into()) / 1_000_000_000;
    u32::try_from(packets).unwrap_or(u32::MAX).saturating_add(CREDITS).min(Credits::PACKETS_MAX)
}

/// Sends at least one packet, until the phase is `Stop`, and waits until all packets have left.
fn send(link: &Link, phase: &PhaseCell, times: &SenderTimes, patience: Duration) {
    let mut sender = link.sender();
    let flow = sender.flow(None);
    let payload = vec![0; payload(&mut sender, &flow)];
    let mut was = Phase::WarmUp;
    while sender.send(&flow, &payload).is_ok() && times.goes_on(phase, &mut was) {}
    sender.flush(patience);
}

/// Returns the number of payload bytes with which a packet has [`PACKET`] bytes on the wire.
pub(super) fn payload(sender: &mut Sender, flow: &Flow) -> usize {
    let headers = sender.packet(flow, &[]).map_or(0, |packet| packet.len);
    usize::try_from(PACKET.saturating_sub(headers)).unwrap_or(0)
}

/// Checks that every packet was sent or dropped, and that the device got those that were sent.
/// Returns the number that was dropped.
fn add_up(cell: Cell, stats: &LinkStats, taken: u64) -> Result<u64, Error> {
    let dropped: u64 = stats.dropped.values().sum();
    if stats.submitted == stats.sent + dropped && stats.held == 0 && stats.sent == taken {
        return Ok(dropped);
    }
    Err(Error::Conservation(format!(
        "{cell}: {} submitted, but {} sent ({taken} by the device's count), {dropped} dropped, {} \
         held",
        stats.submitted, stats.sent, stats.held
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pacing::{Path, Shaper};

    /// Packets of every shaper add up, and none leaves before the instant of its release: a
    /// measurement in which that is not so fails.
    #[test]
    fn packets_add_up_and_none_is_early() {
        let window = Duration::from_millis(50);
        for shaper in Shaper::ALL {
            let slack = Some(Slack::Fixed(Duration::from_millis(2)));
            let cell = Cell { path: Path::Onramp, shaper, rate: 20_000, slack, spin: None };
            let outcome = measure(cell, window).expect("packets add up");
            assert!(outcome.packets > 0, "{outcome:?}");
        }
    }

    #[test]
    fn credits_suffice_for_the_slack() {
        let cell = |rate, slack| Cell {
            path: Path::Onramp,
            shaper: Shaper::Tbf,
            rate,
            slack: Some(Slack::Fixed(Duration::from_millis(slack))),
            spin: None,
        };
        assert_eq!(credits(cell(1_000, 0)), 64 + 5);
        assert_eq!(credits(cell(100_000, 1)), 64 + 700);
        assert_eq!(credits(cell(1_000_000, 1_000)), Credits::PACKETS_MAX);
    }
}
