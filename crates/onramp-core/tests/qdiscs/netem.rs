//! Compares the delays and rates of `netem` with direct arithmetic, and the shares of lost,
//! duplicated and changed packets with the probabilities in its options.

use onramp_core::qdisc::{Dequeue, Verdict};
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::{DropReason, Packet};
use proptest::prelude::*;

const MTU: u32 = 1514;
const START_NS: u64 = 20_000_000_000;

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev eth0 root netem {options}")).expect("a correct line");
    Tree::of(&setup, MTU, 1).expect("there is a root")
}

/// Dequeues all packets that may leave from `from_ns` to `end_ns`. Returns their departure times
/// and cookies.
fn drain(tree: &mut Tree, from_ns: u64, end_ns: u64) -> Vec<(u64, u64)> {
    let (mut now, mut out) = (Instant(from_ns), Vec::new());
    loop {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => out.push((now.0, pkt.cookie)),
            Dequeue::NotBefore(then) if then.0 <= end_ns => now = then,
            _ => return out,
        }
    }
}

/// Enqueues packets of 1,000 bytes, one each microsecond. Returns the departure time and cookie of
/// each packet that left.
fn fates(options: &str, packets: u64) -> (Tree, Vec<(u64, u64)>) {
    let (mut tree, mut out) = (tree(options), Vec::new());
    for cookie in 0..packets {
        let now_ns = START_NS + cookie * 1_000;
        let mut pkt = Packet::new(1_000);
        pkt.cookie = cookie;
        pkt.ecn = u8::from(cookie % 2 == 1);
        let _ = tree.enqueue(Instant(now_ns), pkt);
        out.extend(drain(&mut tree, now_ns, now_ns + 999));
    }
    out.extend(drain(&mut tree, START_NS + packets * 1_000, u64::MAX));
    (tree, out)
}

/// Checks that `count` is near the share `part` of 20,000 packets. The tolerance is five standard
/// deviations, times `width` if the events come in bursts.
fn assert_near(count: usize, part: f64, width: f64) {
    let (mean, count) = (20_000.0 * part, f64::from(u32::try_from(count).expect("few")));
    let off = 5.0 * width * (mean * (1.0 - part)).sqrt();
    assert!((count - mean).abs() <= off, "{count} of 20000, expected {mean} +- {off}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Without jitter, a packet leaves `delay` after its arrival. With `rate`, it leaves when the
    /// link has also sent the packets before it and the packet itself. Packets above the limit are
    /// dropped.
    #[test]
    fn delay_and_rate_are_plain_arithmetic(
        arrivals in prop::collection::vec((0_u64..2_000_000, 60_u32..1515), 1..120),
        delay_us in 0_u64..20_000,
        rate in prop_oneof![Just(0_u64), 100_000_u64..100_000_000],
        limit in 1_usize..40,
    ) {
        let mut tree = tree(&format!("limit {limit} delay {delay_us}us rate {rate}bps"));
        let delay_ns = delay_us * 1_000 / 64 * 64;
        let (mut now_ns, mut free_ns) = (START_NS, 0);
        let (mut left, mut expected) = (Vec::new(), Vec::<(u64, u64)>::new());
        for (cookie, (gap_ns, len)) in (0_u64..).zip(arrivals) {
            left.extend(drain(&mut tree, now_ns, now_ns + gap_ns));
            now_ns += gap_ns;
            let held = expected.iter().filter(|(at_ns, _)| *at_ns > now_ns).count();
            let mut pkt = Packet::new(len);
            pkt.cookie = cookie;
            let verdict = tree.enqueue(Instant(now_ns), pkt);
            prop_assert_eq!(verdict == Verdict::Dropped, held >= limit);
            if held >= limit {
                continue;
            }
            let mut at_ns = now_ns + delay_ns;
            if let Some(wire_ns) = (u64::from(len) * 1_000_000_000).checked_div(rate) {
                at_ns = at_ns.max(if held > 0 { free_ns } else { 0 }) + wire_ns;
            }
            free_ns = at_ns;
            expected.push((at_ns, cookie));
            // A packet without delay may leave at the time of its arrival.
            left.extend(drain(&mut tree, now_ns, now_ns));
        }
        left.extend(drain(&mut tree, now_ns, u64::MAX));
        prop_assert_eq!(left, expected);
    }
}

#[test]
fn cells_take_their_time() {
    // With these options, `netem` subtracts 14 bytes from the packet's 1,000 bytes. The rest fills
    // 21 cells of 48 bytes, each of which is sent as 53 bytes.
    let (_, out) = fates("rate 1mbps -14 48 5", 1);
    assert_eq!(out, [(START_NS + 21 * 53 * 1_000, 0)]);
}

#[test]
fn losses_are_as_likely_as_told() {
    let (p, r, bad, good) = (0.02, 0.2, 0.7, 0.01);
    let gilbert = (p * bad + r * good) / (p + r);
    // The share of time that the Markov chain without isolated losses spends in the burst state.
    let burst = 0.05 / (0.05 + 0.4);
    for (options, part) in
        [("random 5%", 0.05), ("gemodel 2% 20% 70% 1%", gilbert), ("state 5% 40%", burst)]
    {
        let (tree, out) = fates(&format!("limit 20000 seed 3 loss {options}"), 20_000);
        let lost = usize::try_from(tree.totals().dropped(DropReason::Impaired)).expect("few");
        assert_eq!(out.len() + lost, 20_000);
        assert_near(lost, part, if options.starts_with("random") { 1.0 } else { 3.0 });
    }
}

#[test]
fn duplicates_follow_their_packets_and_are_counted() {
    let (tree, out) = fates("limit 40000 delay 1ms duplicate 10%", 20_000);
    let made = tree.totals().made_packets;
    assert_near(usize::try_from(made).expect("few"), 0.1, 1.0);
    assert_eq!(tree.totals().enqueued_packets, 20_000 + made);
    assert_eq!(out.len() as u64, 20_000 + made);
    assert!(out.is_sorted(), "without jitter, order stays");
}

#[test]
fn a_damaged_packet_differs_in_one_bit_and_its_duplicate_does_not() {
    let mut tree = tree("corrupt 100% duplicate 100% seed 1");
    let payload = [0_u8; 200];
    let mut pkt = Packet::with_payload(&payload);
    (pkt.flow, pkt.cookie, pkt.mark) = (3, 9, 4);
    let _ = tree.enqueue(Instant(START_NS), pkt);
    let mut bits = Vec::new();
    while let Dequeue::Ready(pkt) = tree.dequeue(Instant(START_NS)) {
        bits.push(pkt.payload().iter().map(|byte| byte.count_ones()).sum::<u32>());
        assert_eq!((pkt.len, pkt.flow, pkt.cookie, pkt.mark), (200, 3, 9, 4));
    }
    // `netem` duplicates a packet before it damages the packet. The duplicate is then damaged
    // separately.
    assert_eq!(bits, [1, 1]);
}

#[test]
fn marks_spare_those_that_know_ecn() {
    let mut tree = tree("loss 100% ecn");
    for ecn in [0, 1, 2, 3] {
        let mut pkt = Packet::new(100);
        pkt.ecn = ecn;
        let _ = tree.enqueue(Instant(START_NS), pkt);
    }
    assert_eq!(tree.drops().len(), 1);
    for _ in 0..3 {
        let Dequeue::Ready(pkt) = tree.dequeue(Instant(START_NS)) else { panic!("it is held") };
        assert_eq!(pkt.ecn, 3);
    }
}

#[test]
fn every_fifth_packet_overtakes() {
    let (_, out) = fates("delay 10ms reorder 100% gap 5", 15);
    let order: Vec<u64> = out.iter().map(|(_, cookie)| *cookie).collect();
    assert_eq!(order, [4, 9, 14, 0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13]);
}

#[test]
fn slots_let_so_many_out_at_once() {
    let (_, out) = fates("slot 5ms packets 4", 10);
    let at = |slot: u64| START_NS + slot * 5_000_000;
    let times: Vec<u64> = out.iter().map(|(at_ns, _)| *at_ns).collect();
    // The first dequeue that finds a packet plans a slot, which begins 5 ms later. When four
    // packets have left in a slot, `netem` plans the next slot, again 5 ms later.
    assert_eq!(
        times,
        [[at(1); 4], [at(2); 4]].concat().into_iter().chain([at(3); 2]).collect::<Vec<_>>()
    );
}

/// The seed of the tree determines all departures if the option `seed` is not given.
#[test]
fn a_seed_settles_everything() {
    let options = "limit 9999 delay 2ms 1ms 25% loss 5% 10% duplicate 3% reorder 10% gap 3";
    assert_eq!(fates(options, 500).1, fates(options, 500).1);
    let other = format!("{options} seed 77");
    assert_eq!(fates(&other, 500).1, fates(&other, 500).1);
    assert_ne!(fates(options, 500).1, fates(&other, 500).1);
}

/// The delay that `netem` adds does not count for the qdisc below it: that qdisc sees a sojourn
/// time only from the end of the delay until the next dequeue.
#[test]
fn a_queue_below_does_not_count_the_delay() {
    const MS: u64 = 1_000_000;
    for below in
        ["codel ecn", "fq_codel ce_threshold 1ms", "pie ecn", "fq_pie ecn", "cake", "dualpi2"]
    {
        let mut setup = Setup::default();
        for line in [
            "qdisc add dev eth0 root handle 1: netem delay 300ms",
            &format!("qdisc add dev eth0 parent 1:1 handle 2: {below}"),
        ] {
            setup.apply(line).expect("a correct line");
        }
        let mut tree = Tree::of(&setup, MTU, 1).expect("there is a root");
        let (mut left, mut now_ns) = (0, START_NS);
        while now_ns < START_NS + 2_000 * MS {
            let mut pkt = Packet::new(1_000);
            (pkt.enqueued_ns, pkt.ecn, pkt.flow) = (now_ns, 1, 7);
            assert_eq!(tree.enqueue(Instant(now_ns), pkt), Verdict::Queued);
            while let Dequeue::Ready(pkt) = tree.dequeue(Instant(now_ns)) {
                assert_eq!(pkt.ecn, 1, "{below}: marked");
                left += 1;
            }
            now_ns += MS;
        }
        assert_eq!((left, tree.totals().dropped_packets()), (1_700, 0), "{below}");
    }
}
