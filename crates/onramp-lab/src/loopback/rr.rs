//! The request-response load: each sender sends requests and waits for the answers of its receiver.

use std::thread;

use onramp_dev::{Network, ThreadWaker};
use onramp_queue::{Credits, PacketList, Pool};

use super::queue::{Queues, SendEnd};
use super::stream::wait;
use super::{Outcome, PAYLOAD};
use crate::Error;
use crate::exchange::{self, Path, Talk, Talked};
use crate::lockstat::LockCounts;
use crate::measure::PhaseCell;

/// Lets the pairs of `network` exchange requests and answers, and returns what was measured.
pub(super) fn run<Q: Queues>(
    queues: &Q,
    network: &Network,
    talk: Talk,
    noted: bool,
) -> Result<Outcome, Error> {
    let path = Talking { queues, pairs: talk.clients, noted, phase: PhaseCell::new() };
    Ok(conclude(exchange::talk(&path, network, talk)?, talk.burst, Q::KIND))
}

fn conclude(talked: Talked<()>, burst: usize, kind: Option<&'static str>) -> Outcome {
    let Talked { window, transactions, requests, latency, lock, .. } = talked;
    Outcome {
        window,
        // Each request and its answer are two packets.
        counted: 2 * transactions * burst as u64,
        transactions: Some(transactions),
        latency,
        sent: 2 * requests,
        lock,
        kind,
    }
}

/// The queues through which each pair of threads exchanges requests and replies.
struct Talking<'q, Q> {
    queues: &'q Q,
    pairs: usize,
    noted: bool,
    /// A phase that never becomes `Stop`. So a thread that waits for a lock always gets it, and
    /// every transaction (a burst and its answers) that has begun is completed.
    phase: PhaseCell,
}

/// A sender's end of the queues. It sends each packet by a separate call.
struct End<'a, E> {
    queue: E,
    pool: Pool,
    waker: ThreadWaker,
    phase: &'a PhaseCell,
    sent: u64,
}

impl<Q: Queues> Path for Talking<'_, Q> {
    type End<'a>
        = End<'a, Q::End<'a>>
    where
        Self: 'a;
    type Counts = ();

    fn name(&self) -> String {
        format!("loopback, {}, {} pairs", Q::NAME, self.pairs)
    }

    fn end(&self, number: usize, burst: usize) -> Self::End<'_> {
        let packets = u32::try_from(burst).unwrap_or(u32::MAX);
        End {
            queue: self.queues.end(number, self.noted),
            pool: Pool::new(Credits { packets, bytes: u32::MAX }),
            waker: ThreadWaker::default(),
            phase: &self.phase,
            sent: 0,
        }
    }

    fn counts(&self) {}
}

impl<E: SendEnd> exchange::End for End<'_, E> {
    fn submit(&mut self, place: usize, count: usize) {
        for _ in 0..count {
            let mut pkt = loop {
                match self.pool.take(PAYLOAD) {
                    Some(pkt) => break pkt,
                    None => wait(&mut self.pool, self.waker.get(), 1),
                }
            };
            pkt.set_payload(&[0x5a; PAYLOAD]);
            // The network delivers a packet to the receiver whose number is the packet's flow.
            (pkt.flow, pkt.cookie, pkt.len) = (place as u64, self.sent, 162);
            self.sent += 1;
            let mut burst = PacketList::new();
            burst.push_back(pkt);
            loop {
                self.queue.send(&mut burst, self.phase);
                if burst.is_empty() {
                    break;
                }
                // The receiver's mailbox has no room now; try again.
                thread::yield_now();
            }
        }
    }

    fn forget_notes(&mut self) {
        self.queue.forget_notes();
    }

    fn notes(&self) -> LockCounts {
        self.queue.notes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Latency;
    use crate::thread_group::Window;

    #[test]
    fn answers_are_packets_too() {
        let talked = Talked {
            window: Window::default(),
            transactions: 3,
            requests: 40,
            latency: Latency::default(),
            lock: LockCounts { acquired: 9, ..LockCounts::default() },
            counts: ((), ()),
        };
        let outcome = conclude(talked, 5, Some("mutex"));
        assert_eq!((outcome.counted, outcome.sent, outcome.transactions), (30, 80, Some(3)));
        assert_eq!((outcome.lock.acquired, outcome.kind), (9, Some("mutex")));
    }
}
