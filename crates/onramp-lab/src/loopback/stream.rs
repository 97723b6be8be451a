//! The stream load: senders send as fast as their packets return, and receivers answer nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use onramp_core::Clock;
use onramp_dev::{MonotonicClock, Network, Receiver, ThreadWaker};
use onramp_queue::{Armed, Credits, PacketList, Pool};

use super::queue::{Queues, SendEnd};
use super::{CREDITS, Outcome, PAYLOAD};
use crate::Error;
use crate::lockstat::LockCounts;
use crate::measure::{Phase, PhaseCell};
use crate::thread_group::ThreadGroup;

/// Number of packets that a receiver's mailbox can hold. All packets of the receiver's sender fit.
const ROOM: u16 = 1_000;
/// How long a waiting thread sleeps before it checks whether the run is over.
const NAP: Duration = Duration::from_millis(10);
/// Longest time to wait for packets to return after the last one was sent, nanoseconds.
const PATIENCE_NS: u64 = 20_000_000_000;

/// Makes a network with one place (a receiver with a mailbox) for each receiver.
pub(super) fn network(pairs: usize) -> Network {
    Network::new(pairs, ROOM)
}

/// Results of one sender or receiver thread.
#[derive(Debug, Default)]
struct Done {
    /// Number of packets that the thread sent or received.
    packets: u64,
    /// Number of packets that the thread received in the measured window.
    counted: u64,
    /// For a sender, the number of packets that did not return. For a receiver, the number of
    /// packets that were damaged or arrived in the wrong order.
    lost: u64,
    lock: LockCounts,
}

/// Lets the senders of all pairs send and the receivers receive, and returns what was measured.
pub(super) fn run<Q: Queues>(
    queues: &Q,
    network: &Network,
    pairs: usize,
    span: Duration,
    noted: bool,
) -> Result<Outcome, Error> {
    let (group, sending) = (ThreadGroup::default(), AtomicUsize::new(pairs));
    // All receivers exist before the first packet is sent.
    let receivers: Vec<_> = (0..pairs).map(|place| Mutex::new(network.receiver(place))).collect();
    let work = |number: usize| match number.checked_sub(pairs) {
        None => {
            let done = send(queues.end(number, noted), number, &group.phase);
            // Release: publishes that this sender has sent all its packets; pairs with the acquire
            // in `receive`.
            sending.fetch_sub(1, Ordering::Release);
            done
        }
        Some(place) => {
            let receiver = receivers[place].lock().unwrap_or_else(PoisonError::into_inner).take();
            receiver.map_or_else(Done::default, |r| receive(r, &sending, &group.phase))
        }
    };
    let (done, window) = group.run(2 * pairs, span, work)?;
    let (senders, receivers) = done.split_at(pairs);
    for (pair, (sender, receiver)) in senders.iter().zip(receivers).enumerate() {
        if (sender.packets, sender.lost + receiver.lost) != (receiver.packets, 0) {
            return Err(Error::Conservation(format!(
                "loopback, {}, pair {pair} of {pairs}: {} sent, {} received, {} not home, {} out \
                 of order",
                Q::NAME,
                sender.packets,
                receiver.packets,
                sender.lost,
                receiver.lost
            )));
        }
    }
    let mut outcome = Outcome { window, kind: Q::KIND, ..Outcome::default() };
    for (sender, receiver) in senders.iter().zip(receivers) {
        outcome.sent += sender.packets;
        outcome.counted += receiver.counted;
        outcome.lock.merge(&sender.lock);
    }
    Ok(outcome)
}

/// Sends one packet after another until the run is stopped, and sleeps when the credits are used
/// up. Then waits until all packets have returned.
fn send(mut end: impl SendEnd, number: usize, phase: &PhaseCell) -> Done {
    let mut pool = Pool::new(Credits { packets: CREDITS, bytes: 1 << 20 });
    let (mut waker, mut done) = (ThreadWaker::default(), Done::default());
    let payload = [0x5a; PAYLOAD];
    let mut measures = false;
    while !phase.is_stop() {
        if !measures && phase.get() == Phase::Measure {
            measures = true;
            end.forget_notes();
        }
        let Some(mut pkt) = pool.take(PAYLOAD) else {
            wait(&mut pool, waker.get(), CREDITS / 2);
            continue;
        };
        pkt.set_payload(&payload);
        (pkt.flow, pkt.cookie, pkt.len) = (number as u64, done.packets, 162);
        let mut burst = PacketList::new();
        burst.push_back(pkt);
        end.send(&mut burst, phase);
        // If the run was stopped, the queue may have left the packet in `burst`. The packet then
        // returns to its pool when `burst` is dropped here.
        done.packets += 1 - u64::from(burst.len());
    }
    done.lock = end.notes();
    let until = MonotonicClock.now().after(PATIENCE_NS);
    while pool.out() > 0 && MonotonicClock.now() < until {
        wait(&mut pool, waker.get(), CREDITS);
    }
    done.lost = pool.out().into();
    done
}

/// Sleeps until `need` packets, or all packets in flight, have returned, or until another thread
/// wakes this one. Then takes the returned packets back into the pool.
pub(super) fn wait(pool: &mut Pool, waker: &std::task::Waker, need: u32) {
    match pool.arm(waker, need) {
        Armed::Ready => {}
        Armed::Busy => thread::yield_now(),
        Armed::Armed => thread::park_timeout(NAP),
    }
    pool.reclaim(|_| {});
}

impl Done {
    /// Counts the packets in `taken`, which arrived in the phase `phase`, and checks their order
    /// and size.
    fn receive(&mut self, taken: PacketList, phase: Phase) {
        if phase == Phase::Measure {
            self.counted += u64::from(taken.len());
        }
        for pkt in taken {
            self.lost += u64::from(pkt.cookie != self.packets || pkt.payload().len() != PAYLOAD);
            self.packets += 1;
        }
    }
}

/// Receives packets until all senders have ended and no packet is left.
fn receive(mut receiver: Receiver, sending: &AtomicUsize, phase: &PhaseCell) -> Done {
    let mut done = Done::default();
    loop {
        // Read the counter of active senders before receiving, so that the last call of `recv_all`
        // sees all packets sent before.
        // Acquire: pairs with the release of the senders.
        let over = sending.load(Ordering::Acquire) == 0;
        if !over {
            receiver.wait(NAP);
        }
        let taken = receiver.recv_all();
        if over && taken.is_empty() {
            return done;
        }
        done.receive(taken, phase.get());
    }
}

#[cfg(test)]
mod tests {
    use onramp_queue::Packet;

    use super::*;

    #[test]
    fn what_comes_in_the_window_counts_and_all_is_looked_at() {
        let mut done = Done::default();
        let list = |cookies: &[u64], bytes: usize| -> PacketList {
            let packet = |cookie: &u64| {
                let mut pkt = Packet::with_payload(&vec![0; bytes]);
                pkt.cookie = *cookie;
                pkt
            };
            cookies.iter().map(packet).collect()
        };
        done.receive(list(&[0, 1, 2], PAYLOAD), Phase::WarmUp);
        done.receive(list(&[3, 4], PAYLOAD), Phase::Measure);
        done.receive(list(&[5], PAYLOAD), Phase::Stop);
        assert_eq!((done.packets, done.counted, done.lost), (6, 2, 0));
        done.receive(list(&[6], PAYLOAD - 1), Phase::Measure);
        done.receive(list(&[6, 8], PAYLOAD), Phase::Measure);
        assert_eq!((done.packets, done.counted, done.lost), (9, 5, 2), "short, and again");
    }
}
