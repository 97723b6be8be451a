//! Onramp's side of the comparison with the kernel: a link in front of a device that takes every
//! packet, and the floor, a loop that has neither link nor qdisc.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onramp_core::{Device, Mode, Setup};
use onramp_dev::Null;
use onramp_queue::PacketList;

use super::{PACKET, Trial};
use crate::Error;
use crate::contention::Manners;
use crate::measure::PhaseCell;
use crate::memory::Memory;
use crate::path::{Behind, Linked, Path, Seat, Sent, Worker, WorkerContext};
use crate::thread_group::{ThreadGroup, Watched};

/// Measures a link with this tree of qdiscs; one thread on each processor of `cpus` sends through
/// the link.
pub(super) fn trial(tree: &Setup, cpus: &[usize], span: Duration) -> Result<Trial, Error> {
    let null = Null::default();
    let counts = null.stats();
    let devices: Vec<Box<dyn Device>> = vec![Box::new(null)];
    let (memory, manners) = (Memory::Pool, Manners::Equal);
    let behind = Behind { tree, devices, credits: None, memory, manners, timed: false };
    let mut path = Linked::new(behind, Mode::Hybrid)?;
    let taken = || counts.packets.get();
    let Watched { given, window, seen } = senders(cpus, span, taken, |_, seat, payload| {
        let mut worker = path.worker(seat);
        send(&mut worker, seat.phase, payload)
    })?;
    let account = path.finish();
    let (taken, dropped) = (taken(), account.dropped.values().sum::<u64>());
    let submitted: u64 = given.iter().sum();
    if submitted != account.sent + dropped || account.held != 0 || taken != account.sent {
        return Err(Error::Conservation(format!(
            "{submitted} submitted, but {} sent ({taken} by the device's count), {dropped} \
             dropped, {} held",
            account.sent, account.held
        )));
    }
    Ok(Trial::of(window, seen, taken, dropped))
}

/// Measures the floor, a loop without link and qdisc: each thread passes its packets one by one to
/// its own device and gets them back at once.
pub(super) fn floor(cpus: &[usize], span: Duration) -> Result<Trial, Error> {
    let nulls = Null::default().queues(cpus.len());
    let counts: Vec<_> = nulls.iter().map(Null::stats).collect();
    let nulls: Vec<_> = nulls.into_iter().map(Mutex::new).collect();
    let taken = || counts.iter().map(|count| count.packets.get()).sum();
    let Watched { given, window, seen } = senders(cpus, span, taken, |number, seat, payload| {
        // Each thread locks only its own device, so it never waits. The devices need locks because
        // all threads share this closure, and so the vector `nulls`.
        let mut null = nulls[number].lock().unwrap_or_else(PoisonError::into_inner);
        let mut direct = Direct { context: WorkerContext::new(seat), null: &mut null };
        send(&mut direct, seat.phase, payload)
    })?;
    let (submitted, taken): (u64, u64) = (given.iter().sum(), taken());
    if submitted != taken {
        return Err(Error::Conservation(format!(
            "{submitted} handed to the device, which took {taken}"
        )));
    }
    Ok(Trial::of(window, seen, taken, 0))
}

/// Runs `work` on each processor of `cpus`. Returns the number of packets that each thread
/// submitted, and the results of `taken` at the beginning and at the end of the measured window.
fn senders(
    cpus: &[usize],
    span: Duration,
    taken: impl Fn() -> u64,
    work: impl Fn(usize, &Seat<'_>, &mut [u8; PACKET]) -> u64 + Sync,
) -> Result<Watched<u64, u64>, Error> {
    let group = ThreadGroup::default();
    let body = |number: usize| {
        let threads = cpus.len();
        let phase = &group.phase;
        let seat = Seat {
            thread: number,
            threads,
            queues: 1,
            timed: false,
            asked: None,
            manners: Manners::Equal,
            // Each thread has a processor of its own, so no thread needs to yield.
            gives_way: false,
            phase,
        };
        Ok(work(number, &seat, &mut [0; PACKET]))
    };
    group.run_bound(cpus, span, || Ok(taken()), body)
}

/// Sends packets until the run is stopped, at least one. Returns the number of packets that the
/// path took.
fn send(worker: &mut impl Worker, phase: &PhaseCell, payload: &mut [u8; PACKET]) -> u64 {
    let mut submitted = 0_u64;
    loop {
        payload[..8].copy_from_slice(&submitted.to_le_bytes());
        match worker.send(payload) {
            Sent::Full => worker.wait(),
            Sent::Stopped => return submitted,
            Sent::Staged | Sent::Congested | Sent::Dropped => {
                submitted += 1;
                worker.give_way();
            }
        }
        if phase.is_stop() {
            return submitted;
        }
    }
}

/// A thread that sends without link and qdisc, to its own device.
struct Direct<'a> {
    context: WorkerContext<'a>,
    null: &'a mut Null,
}

impl Worker for Direct<'_> {
    #[inline]
    fn send(&mut self, payload: &[u8]) -> Sent {
        let Some(pkt) = self.context.packet(payload) else { return Sent::Full };
        let (mut burst, mut done) = (PacketList::new(), PacketList::new());
        burst.push_back(pkt);
        // This `Null` device has no ring, so it takes all packets of a burst.
        let _ = self.null.transmit(&mut burst, &mut done, self.context.now);
        for pkt in done {
            self.context.take_back(pkt);
        }
        Sent::Staged
    }

    fn wait(&mut self) {
        self.context.reclaim();
    }

    fn flush(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pin;

    const SPAN: Duration = Duration::from_millis(20);
    /// How often a trial is repeated whose threads got no processor.
    const TRIES: u32 = 100;

    /// Makes a trial until something was sent in it.
    fn busy(trial: impl Fn() -> Result<Trial, Error>) -> Trial {
        let trials = (0..TRIES).map(|_| trial().expect("packets add up"));
        trials.into_iter().find(|trial| trial.taken > 0).expect("the threads get a processor")
    }

    #[test]
    fn both_add_up_on_all_processors() {
        let cpus = pin::allowed().expect("Linux tells");
        for cpus in [&cpus[..1], &cpus] {
            let spec = Setup::of("pfifo".parse().expect("a qdisc"));
            for trial in [busy(|| trial(&spec, cpus, SPAN)), busy(|| floor(cpus, SPAN))] {
                assert!(trial.counted <= trial.taken, "{trial:?}");
            }
        }
    }

    /// If a qdisc drops packets, the dropped packets still count as submitted.
    #[test]
    fn drops_are_part_of_the_account() {
        let cpus = pin::allowed().expect("Linux tells");
        let spec = Setup::of("pfifo limit 1".parse().expect("a qdisc"));
        busy(|| trial(&spec, &cpus, SPAN));
    }
}
