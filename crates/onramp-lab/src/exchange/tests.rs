//! Tests of `talk` with paths that lose a packet or send one twice.

use std::sync::atomic::AtomicBool;

use onramp_core::Device;
use onramp_dev::Loopback;
use onramp_queue::{Packet, PacketList};

use super::*;

/// A path on which one thread, in its first call, submits one packet more or one packet less than
/// asked.
struct Crooked {
    network: Network,
    thread: usize,
    change: isize,
    /// Whether the thread has already submitted a wrong number of packets.
    done: AtomicBool,
}

struct CrookedEnd<'a> {
    path: &'a Crooked,
    queue: Loopback,
    thread: usize,
}

impl Path for Crooked {
    type End<'a> = CrookedEnd<'a>;
    type Counts = ();

    fn name(&self) -> String {
        "crooked".to_owned()
    }

    fn end(&self, thread: usize, _burst: usize) -> CrookedEnd<'_> {
        CrookedEnd { path: self, queue: self.network.queue(), thread }
    }

    fn counts(&self) {}
}

impl End for CrookedEnd<'_> {
    fn submit(&mut self, place: usize, count: usize) {
        let Crooked { thread, change, ref done, .. } = *self.path;
        // Relaxed: during the run, only the thread `thread` reads and writes `done`.
        let bends = self.thread == thread && !done.swap(true, Ordering::Relaxed);
        let change = if bends { change } else { 0 };
        let mut list = PacketList::new();
        for _ in 0..count.saturating_add_signed(change) {
            let mut pkt = Packet::new(60);
            pkt.flow = place as u64;
            list.push_back(pkt);
        }
        while !list.is_empty() {
            let _ = self.queue.transmit(&mut list, &mut PacketList::new(), Instant(0));
        }
    }
}

/// Lets two clients (threads 2 and 3) send bursts of five requests to two servers (threads 0 and
/// 1). In its first call, `thread` submits `change` packets more than asked (fewer if negative).
/// Repeats the run until `thread` has made that call.
fn talk_through(thread: usize, change: isize) -> Result<Talked<()>, Error> {
    loop {
        let mut what = Talk::new(2, 5, Duration::from_millis(50));
        if change < 0 {
            what.patience = Duration::from_millis(200);
        }
        let network = Network::new(4, 100);
        let done = AtomicBool::new(false);
        let path = Crooked { network: network.clone(), thread, change, done };
        let talked = talk(&path, &network, what);
        if path.done.into_inner() {
            return talked;
        }
    }
}

#[test]
fn all_are_answered() {
    let talked = talk_through(2, 0).expect("it is straight");
    assert_eq!(talked.requests % 5, 0);
    assert!(talked.requests > 0 && talked.transactions <= talked.requests / 5, "{talked:?}");
    assert_eq!(talked.latency.samples(), talked.transactions);
}

#[test]
fn a_packet_too_many_or_too_few_fails() {
    for (thread, change) in [(2, -1), (2, 1), (1, -1), (1, 1)] {
        let error = talk_through(thread, change).expect_err("it does not add up").to_string();
        assert!(error.contains("crooked") && error.contains("requests"), "{error}");
    }
}

#[test]
fn what_began_and_ended_in_the_window_counts_for_as_long_as_it_took() {
    let (warm_up, measure, stop) = (Phase::WarmUp, Phase::Measure, Phase::Stop);
    let mut done = Done::default();
    for phases in [(warm_up, warm_up), (warm_up, measure), (measure, stop), (warm_up, stop)] {
        done.note(phases, (Instant(5), Instant(9)));
    }
    assert_eq!((done.transactions, done.latency.samples()), (0, 0));
    done.note((measure, measure), (Instant(1_000), Instant(1_100)));
    assert_eq!(done.transactions, 1);
    assert_eq!(done.latency.percentiles().map(|ns| ns.max), Some(100));
}

#[test]
fn what_threads_did_adds_up() {
    let mut done = [(10, 2), (20, 3), (0, 0)].map(|(requests, transactions)| Done {
        requests,
        transactions,
        ..Done::default()
    });
    done[0].latency.record(100);
    done[1].latency.record(50);
    let talked = conclude(done.into(), Window { ns: 7, ..Window::default() }, ((), ()));
    assert_eq!((talked.requests, talked.transactions, talked.window.ns), (30, 5, 7));
    assert_eq!(talked.latency.percentiles().map(|ns| (ns.samples, ns.max)), Some((2, 100)));
}
