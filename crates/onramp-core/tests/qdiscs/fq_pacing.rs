//! `fq`'s pacing: a flow sends neither more nor less than its rate, whether the sender or an option
//! sets the rate, and even if the timer fires late by up to half a gap between packets.

use onramp_core::Spec;
use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Tree};
use onramp_queue::Packet;
use proptest::prelude::*;

const SEC: u64 = 1_000_000_000;
const INITIAL: u64 = 15_140;

struct Flow {
    tree: Tree,
    now: Instant,
    rate: u64,
    by_sender: bool,
    lens: Vec<u32>,
    sent: u64,
}

impl Flow {
    fn refill(&mut self) {
        while self.tree.backlog().packets < 50 {
            let mut pkt = Packet::new(self.lens[self.tree.backlog().packets as usize % 8]);
            pkt.flow = 1;
            pkt.pacing_rate = if self.by_sender { self.rate } else { 0 };
            let _ = self.tree.enqueue(self.now, pkt);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_flow_keeps_its_rate(
        rate in prop_oneof![20_000_u64..200_000, 200_000_u64..200_000_000],
        by_sender: bool,
        quantum in prop_oneof![Just(300_u64), Just(3028), 1_000_u64..20_000],
        lens in prop::collection::vec(60_u32..1515, 8),
        lateness in prop::collection::vec(0_u64..100, 16),
    ) {
        let maxrate = if by_sender { String::new() } else { format!("maxrate {rate}bps") };
        let line = format!(
            "fq {maxrate} quantum {quantum} initial_quantum {INITIAL} timer_slack 0 \
             low_rate_threshold 550kbit"
        );
        let spec: Spec = line.parse().expect("a correct line");
        let start = Instant(20 * SEC);
        let mut flow =
            Flow { tree: Tree::new(&spec, 1514), now: start, rate, by_sender, lens, sent: 0 };
        // After a quantum, a flow must wait as long as the quantum takes at the rate, or as long as
        // its last packet takes if that is longer. In the second case, the flow does not wait for
        // the packets that it sent before the last one out of the same quantum, which at most
        // doubles its rate. A flow with a low rate waits after each packet.
        let is_exact = quantum >= 1514 || rate <= 550_000 / 8;
        // The shortest gap, in nanoseconds, is the one after the shortest packet (60 bytes) of a
        // flow with a low rate.
        let gap_ns = 60 * SEC / rate;
        for step in 0..2_000 {
            flow.refill();
            match flow.tree.dequeue(flow.now) {
                Dequeue::Ready(pkt) => flow.sent += u64::from(pkt.len),
                Dequeue::NotBefore(then) => {
                    flow.now = then.after(gap_ns / 2 * lateness[step % 16] / 100);
                }
                Dequeue::Empty => unreachable!("it was filled"),
            }
            // `fq` rounds the wait between two packets down to whole nanoseconds, so each packet
            // may leave up to one nanosecond early.
            let planned_ns = flow.now.since(start) + step as u64;
            let paced = planned_ns * rate / SEC * if is_exact { 1 } else { 2 };
            let allowed = INITIAL + quantum + 2 * 1514 + paced;
            prop_assert!(flow.sent <= allowed, "{} bytes sent, {allowed} allowed", flow.sent);
        }
        let due = flow.now.since(start) * rate / SEC;
        prop_assert!(flow.sent + 2 * quantum.max(1514) >= due, "{} of {due} sent", flow.sent);
    }
}

/// A flow at 8 Mbit/s, dequeued exactly at the announced times, keeps its rate over 5 s to within a
/// thousandth.
#[test]
fn eight_megabits_are_eight_megabits() {
    let spec: Spec = "fq maxrate 8mbit".parse().expect("a correct line");
    let mut flow = Flow {
        tree: Tree::new(&spec, 1514),
        now: Instant(SEC),
        rate: 1_000_000,
        by_sender: false,
        lens: vec![1514; 8],
        sent: 0,
    };
    while flow.now.0 < 6 * SEC {
        flow.refill();
        match flow.tree.dequeue(flow.now) {
            Dequeue::Ready(pkt) => flow.sent += u64::from(pkt.len),
            Dequeue::NotBefore(then) => flow.now = then,
            Dequeue::Empty => unreachable!("it was filled"),
        }
    }
    let paced = flow.sent - INITIAL;
    assert!(paced.abs_diff(5_000_000) < 5_000, "{paced} bytes in 5 s");
}
