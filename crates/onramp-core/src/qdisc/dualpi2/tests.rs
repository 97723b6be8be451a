use super::law::Given;
use super::*;
use crate::tc::{Setup, Spec};

const MTU: u32 = 1514;
const NOW: Instant = Instant(20_000_000_000);

fn qdisc(options: &str) -> DualPi2 {
    let spec: Spec = format!("dualpi2 {options}").parse().expect("a correct line");
    let mut values = spec.values(MTU);
    values.site.handle = Handle::new(1, 0);
    DualPi2::new(&values)
}

fn packet(len: u32, ecn: u8) -> Packet {
    let mut pkt = Packet::new(len);
    pkt.ecn = ecn;
    pkt
}

#[derive(Clone, Copy, Debug, Default)]
struct Fates {
    marked: f64,
    dropped: f64,
}

/// Passes 20,000 packets from `make` through the qdisc, while the AQM's base probability stays at
/// `probability`. Returns which fractions of the packets are marked and dropped.
fn fates(options: &str, probability: f64, make: impl Fn() -> Packet) -> Fates {
    const MANY: u32 = 20_000;
    let mut qdisc = qdisc(&format!("{options} tupdate 4s"));
    let mut drops = PacketList::new();
    let mut cx = Cx::new(NOW, &mut drops);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 1")]
    let base = (probability * f64::from(u32::MAX)) as u32;
    qdisc.law.probability = base.min(qdisc.law.most);
    let mut marked = 0;
    for number in 0..MANY {
        let _ = qdisc.enqueue(make(), &mut cx);
        // Keep at least 99 packets in the queue, because the AQM never drops or marks a packet
        // while the qdisc holds fewer bytes than two packets of the largest size.
        if number >= 100
            && qdisc.backlog().packets > 99
            && let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx)
        {
            marked += u32::from(pkt.ecn == 3);
        }
    }
    let part = |count: u32| f64::from(count) / f64::from(MANY);
    Fates { marked: part(marked), dropped: part(drops.len()) }
}

fn near(fates: Fates, marked: f64, dropped: f64) -> bool {
    (fates.marked - marked).abs() < 0.015 && (fates.dropped - dropped).abs() < 0.015
}

/// RFC 9332: the L-queue marks with probability `p_CL = k p'`, the classic queue drops with `p_C =
/// p'^2`, where `p'` is the base probability and `k` the coupling factor.
#[test]
fn marks_go_with_the_probability_and_drops_with_its_square() {
    let classid = |minor: u32| {
        move || {
            let mut pkt = packet(MTU, 0);
            pkt.priority = 0x1_0000 + minor;
            pkt
        }
    };
    for early in ["drop_enqueue", "drop_dequeue"] {
        assert!(near(fates(early, 0.25, || packet(MTU, 1)), 0.5, 0.0), "L");
        assert!(near(fates(early, 0.25, || packet(MTU, 2)), 0.0625, 0.0), "C, ECT(0)");
        assert!(near(fates(early, 0.25, || packet(MTU, 0)), 0.0, 0.0625), "C, not ECT");
        assert!(near(fates(early, 0.25, classid(1)), 0.0, 0.5), "L by class, not ECT");
        assert!(near(fates(early, 0.25, classid(2)), 0.0, 0.0), "spared");
        assert!(near(fates(early, 0.25, classid(3)), 0.0, 0.0625), "no such class");
    }
    let options = "coupling_factor 3";
    assert!(near(fates(options, 0.25, || packet(MTU, 1)), 0.75, 0.0), "k");
    assert!(near(fates("any_ect", 0.25, || packet(MTU, 2)), 0.5, 0.0), "any_ect");
}

#[test]
fn an_overload_drops_in_both_queues_or_in_none() {
    let all = |options, ecn| fates(options, 0.8, || packet(MTU, ecn));
    // Under overload, the L-queue marks all packets that it does not drop.
    assert!(near(all("drop_on_overload", 1), 0.36, 0.64));
    assert!(near(all("drop_on_overload", 2), 0.0, 0.64));
    assert!(near(all("drop_on_overload", 0), 0.0, 0.64));
    // With `overflow`, the base probability is at most 1/k, where k is the coupling factor.
    assert!(near(all("overflow", 1), 1.0, 0.0));
    assert!(near(all("overflow", 2), 0.25, 0.0));
    assert!(near(all("overflow", 0), 0.0, 0.25));
}

#[test]
fn few_bytes_are_left_alone() {
    let mut qdisc = qdisc("");
    let mut drops = PacketList::new();
    let mut cx = Cx::new(NOW, &mut drops);
    qdisc.law.probability = u32::MAX;
    // Besides the packet that is about to be dropped or sent, the qdisc holds two packets of 1,513
    // bytes. These are fewer bytes than two packets of the MTU (1,514), so nothing is dropped.
    for _ in 0..3 {
        let _ = qdisc.enqueue(packet(MTU - 1, 0), &mut cx);
    }
    for _ in 0..3 {
        assert!(matches!(qdisc.dequeue(&mut cx), Dequeue::Ready(_)));
    }
    assert!(cx.drops.is_empty());
    // Besides the packet that is about to be dropped or sent, the qdisc holds two packets of 1,514
    // bytes. These are as many bytes as two packets of the MTU, so a packet is dropped.
    for _ in 0..3 {
        let _ = qdisc.enqueue(packet(MTU, 0), &mut cx);
    }
    assert!(matches!(qdisc.dequeue(&mut cx), Dequeue::Ready(_)));
    assert_eq!((qdisc.backlog().packets, drops.len()), (1, 1));
}

/// The classic queue sends its configured share of the bytes, give or take a packet.
#[test]
fn the_classic_queue_gets_its_part() {
    for (weight, l_len, c_len) in
        [(10, 1514, 1514), (10, 100, 1500), (50, 1500, 60), (90, 700, 800)]
    {
        let mut qdisc = qdisc(&format!("classic_protection {weight}% step_thresh 4294967us"));
        let mut drops = PacketList::new();
        let mut cx = Cx::new(NOW, &mut drops);
        for _ in 0..3000 {
            let _ = qdisc.enqueue(packet(l_len, 1), &mut cx);
            let _ = qdisc.enqueue(packet(c_len, 0), &mut cx);
        }
        let mut sent = [0_u64; 2];
        for _ in 0..1000 {
            let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx) else { panic!("6,000 are held") };
            sent[usize::from(pkt.ecn)] += u64::from(pkt.len);
            // If each queue sent exactly its share, then the bytes that one queue sent, times the
            // share of the other queue, would be the same for both queues.
            let off = sent[0] * (100 - weight) / 100;
            let off = off.abs_diff(sent[1] * weight / 100);
            assert!(off <= 2 * u64::from(MTU), "{weight}: {sent:?}");
        }
    }
    // With a share of 0 %, the L-queue is served first; with a share of 100 %, the classic queue.
    for (weight, first) in [(0, 1), (100, 0)] {
        let mut qdisc = qdisc(&format!("classic_protection {weight}"));
        let mut drops = PacketList::new();
        let mut cx = Cx::new(NOW, &mut drops);
        for ecn in [0, 1, 0, 1] {
            let _ = qdisc.enqueue(packet(MTU, ecn), &mut cx);
        }
        let mut ecns = Vec::new();
        while let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx) {
            ecns.push(pkt.ecn);
        }
        assert_eq!(ecns, [first, first, 1 - first, 1 - first]);
    }
}

/// Enqueues `count` packets and dequeues them after `wait_ns` nanoseconds. Returns, for each packet
/// that leaves, whether it is marked; and the dropped packets.
fn stepped(options: &str, count: u32, ecn: u8, wait_ns: u64) -> (Vec<bool>, PacketList) {
    let mut qdisc = qdisc(options);
    let mut drops = PacketList::new();
    let mut cx = Cx::new(NOW, &mut drops);
    for _ in 0..count {
        let mut pkt = packet(100, ecn);
        pkt.priority = 0x1_0001;
        let _ = qdisc.enqueue(pkt, &mut cx);
    }
    cx.now = NOW.after(wait_ns);
    let mut marks = Vec::new();
    while let Dequeue::Ready(pkt) = qdisc.dequeue(&mut cx) {
        marks.push(pkt.ecn == 3);
    }
    (marks, drops)
}

#[test]
fn what_waited_too_long_is_marked() {
    assert_eq!(stepped("", 3, 1, 1_000_000).0, [false; 3]);
    assert_eq!(stepped("", 3, 1, 1_000_001).0, [true; 3]);
    // With a step threshold of two packets, a packet is marked if more than two packets are behind
    // it in the queue.
    assert_eq!(stepped("step_thresh 2p", 5, 1, 0).0, [true, true, false, false, false]);
    // With `min_qlen_step 2`, a packet that waited for too long is marked only if at least two
    // packets were in the queue when it came.
    assert_eq!(stepped("min_qlen_step 2", 4, 1, 9_000_000).0, [false, false, true, true]);
    let (marks, drops) = stepped("", 3, 0, 1_000_001);
    assert!(marks.is_empty());
    let reasons: Vec<_> = drops.metas().map(|meta| meta.drop_reason).collect();
    assert_eq!(reasons, [Some(DropReason::L4sStepNonEcn); 3]);
}

#[test]
fn limits_hold_for_both_queues_together() {
    let mut qdisc = qdisc("limit 3");
    let mut drops = PacketList::new();
    let mut cx = Cx::new(NOW, &mut drops);
    let verdicts: Vec<_> =
        [0, 1, 0, 1].iter().map(|ecn| qdisc.enqueue(packet(100, *ecn), &mut cx)).collect();
    assert_eq!(verdicts[2..], [Verdict::Queued, Verdict::Dropped]);
    // If a change makes the limit smaller, classic packets are dropped first.
    let spec: Spec = "dualpi2 limit 1".parse().expect("a correct line");
    assert!(qdisc.change(&spec.values(MTU), &mut cx));
    assert_eq!((qdisc.classic.len(), qdisc.l_queue.len(), cx.drops.len()), (0, 1, 3));
    // A datagram of 1,000 bytes counts as 2,304 bytes of memory (its `truesize` in Linux), so the
    // limit of 7,000 bytes leaves room for three datagrams.
    let mut qdisc = self::qdisc("memlimit 7000");
    let mut drops = PacketList::new();
    let mut cx = Cx::new(NOW, &mut drops);
    for _ in 0..5 {
        let _ = qdisc.enqueue(packet(1000, 2), &mut cx);
    }
    assert_eq!((qdisc.memory, drops.len()), (6_912, 2));
}

/// Returns the description of the qdisc after an addition with the first options, and changes with
/// the others.
fn changed(options: &[&str]) -> Spec {
    let mut setup = Setup::default();
    for (at, options) in options.iter().enumerate() {
        let verb = if at == 0 { "add" } else { "change" };
        setup
            .apply(&format!("qdisc {verb} dev e root handle 1: dualpi2 {options}"))
            .expect(options);
    }
    setup.spec(1).expect("a root").clone()
}

/// `tc` passes to Linux only the parameters that follow from round-trip times, so each change
/// applies to what it names. What a program saves can be read again.
#[test]
fn round_trip_times_and_what_follows_from_them_replace_each_other() {
    let given = |options: &[&str]| {
        let spec = changed(options);
        assert_eq!(spec.to_string().parse::<Spec>().as_ref(), Ok(&spec), "{options:?}");
        Given::of(&spec.values(MTU))
    };
    let long = given(&["max_rtt 100ms"]);
    assert_ne!(long, given(&[""]));
    assert_eq!(given(&["max_rtt 100ms", "target 5ms"]), Given { target: 5_000_000, ..long });
    assert_eq!(given(&["max_rtt 100ms", "beta 1"]), Given { beta: 256, ..long });
    assert_eq!(given(&["max_rtt 100ms", "limit 20"]), long);
    assert_eq!(given(&["target 5ms beta 1", "max_rtt 100ms"]), long);
    assert_eq!(given(&["typical_rtt 10ms", "max_rtt 5ms"]), given(&["max_rtt 5ms"]));
    assert_eq!(given(&["max_rtt 5ms", "typical_rtt 10ms"]), given(&["typical_rtt 10ms"]));
}

#[test]
fn a_new_limit_brings_its_memory_limit() {
    let limit = |options: &[&str]| Config::new(&changed(options).values(MTU)).memory_limit;
    assert_eq!(limit(&["memlimit 7000", "target 5ms"]), 7_000);
    assert_eq!(limit(&["memlimit 7000", "limit 10000"]), 10_000 * 2 * u64::from(MTU));
    assert_eq!(limit(&["memlimit 7000", "limit 10000 memlimit 8000"]), 8_000);
}

/// A change sets the credit of the classic queue back only if it names `classic_protection`.
#[test]
fn the_credit_outlives_changes_of_other_options() {
    let spec: Spec = "dualpi2 limit 9000 classic_protection 20%".parse().expect("a correct line");
    for names_it in [false, true] {
        let mut qdisc = qdisc("classic_protection 20%");
        let mut drops = PacketList::new();
        let mut cx = Cx::new(NOW, &mut drops);
        for ecn in [0, 1, 0, 1, 0, 1] {
            let _ = qdisc.enqueue(packet(1000, ecn), &mut cx);
        }
        assert!(matches!(qdisc.dequeue(&mut cx), Dequeue::Ready(_)));
        let (before, first) = (qdisc.credit, qdisc.config.first_credit());
        assert_ne!(before, first);
        let mut values = spec.values(MTU);
        values.site.said = if names_it { values.said() } else { 0 };
        assert!(qdisc.change(&values, &mut cx));
        assert_eq!(qdisc.credit, if names_it { first } else { before });
    }
}

#[test]
fn large_packets_are_taken_apart_unless_told_not_to() {
    for (options, held) in [("", 3), ("no_split_gso", 1)] {
        let mut qdisc = qdisc(options);
        let mut drops = PacketList::new();
        let mut cx = Cx::new(NOW, &mut drops);
        let mut pkt = Packet::with_payload(&[0; 2500]);
        (pkt.gso_size, pkt.len, pkt.ecn) = (1000, 2500 + 3 * 42, 1);
        assert_eq!(qdisc.enqueue(pkt, &mut cx), Verdict::Queued);
        assert_eq!((qdisc.l_queue.len(), cx.made), (held, held - 1));
        assert_eq!(qdisc.backlog().bytes, 2626);
    }
}

/// The law of RFC 9332, appendix A, in floating point: `p' += alpha (q - target) + beta (q -
/// q_before)`.
struct Reference {
    p: f64,
    before: f64,
    gains: (f64, f64),
    target: f64,
}

impl Reference {
    fn update(&mut self, delay: f64) {
        let (alpha, beta) = self.gains;
        let step = alpha * (delay - self.target) + beta * (delay - self.before);
        (self.p, self.before) = ((self.p + step).clamp(0.0, 1.0), delay);
    }
}

#[test]
fn the_probability_is_that_of_the_rfc() {
    let spec: Spec = "dualpi2 target 15ms tupdate 16ms alpha 0.16015625 beta 3.19921875"
        .parse()
        .expect("a correct line");
    let mut law = Law::new(&spec.values(MTU), true);
    let gains = (41.0 / 256.0, 819.0 / 256.0);
    let mut reference = Reference { p: 0.0, before: 0.0, gains, target: 0.015 };
    law.update(None, NOW);
    let mut rng = crate::base::rng::Rng::new(5);
    let mut now = NOW;
    for round in 0..500 {
        now = now.after(16_000_000);
        // The oldest packet has waited for up to 100 ms. In 10 of every 50 rounds, no packet is
        // held, so the delay is 0.
        let delay = if round % 50 < 10 { 0 } else { u64::from(rng.below(100_000_000)) };
        law.update((delay > 0).then(|| now.0 - delay), now);
        #[expect(clippy::cast_precision_loss, reason = "a tenth of a second")]
        reference.update(delay as f64 / 1e9);
        let p = f64::from(law.probability) / f64::from(u32::MAX);
        // `Law` rounds the gains down to whole units (alpha from 44.02 to 44, beta from 879.4 to
        // 879), so its probability differs a little from that of the reference.
        assert!((p - reference.p).abs() < 0.01, "{round}: {p}, {}", reference.p);
    }
}

/// One update of the law after a pause of 3 s gives the same probability as updates every 100 us
/// during the pause.
#[test]
fn a_long_pause_is_all_its_periods() {
    let options = ["", "overflow", "target 1ms tupdate 300us alpha 0.00390625 beta 0.00390625"];
    for options in options {
        for (start, since) in
            [(0, Some(0)), (1 << 31, Some(7_000_000)), (u32::MAX, None), (9, None)]
        {
            let build = || {
                let spec: Spec = format!("dualpi2 {options}").parse().expect("a correct line");
                let mut law = Law::new(&spec.values(MTU), !options.contains("overflow"));
                law.update(None, NOW);
                law.probability = start.min(law.most);
                law
            };
            let oldest = since.map(|ns| NOW.0 + ns);
            let (mut once, mut often) = (build(), build());
            let end = NOW.after(3_000_000_000);
            once.update(oldest, end);
            let mut now = NOW;
            while now < end {
                now = now.after(100_000);
                often.update(oldest, now);
            }
            let state = |law: &Law| (law.probability, law.known());
            assert_eq!(state(&once), state(&often), "{options}: {start}, {since:?}");
        }
    }
    // An update that comes a billion intervals late, or at the time `Instant::MAX` (never), must
    // return without computing each interval.
    let spec: Spec = "dualpi2 tupdate 1us".parse().expect("a correct line");
    let mut law = Law::new(&spec.values(MTU), true);
    law.update(None, NOW);
    law.update(None, NOW.after(1_000_000_000_000_000));
    law.update(Some(NOW.0), Instant::MAX);
    law.update(Some(NOW.0), Instant::MAX);
}

#[test]
fn round_trips_stand_for_four_options() {
    let law = |options: &str| {
        let spec: Spec = format!("dualpi2 {options}").parse().expect("a correct line");
        Law::new(&spec.values(MTU), true).numbers()
    };
    let given = "target 16666us tupdate 16666us alpha 0.1640625 beta 3";
    assert_eq!(law("max_rtt 100ms"), law(given));
    let given = "target 5ms tupdate 5ms alpha 0.5546875 beta 10";
    assert_eq!(law("max_rtt 30ms typical_rtt 5ms"), law(given));
    assert_eq!(law("typical_rtt 5ms"), law("max_rtt 30ms typical_rtt 5ms"));
    // The interval between updates is at most a third of the longest round-trip time.
    let given = "target 10ms tupdate 4ms alpha 2.77734375 beta 25";
    assert_eq!(law("max_rtt 12ms typical_rtt 10ms"), law(given));
    for (options, why) in [
        ("max_rtt 10ms target 5ms", "it follows from `max_rtt`"),
        ("max_rtt 10ms typical_rtt 20ms", "expected `max_rtt` or less"),
        ("max_rtt 60s", "too long"),
    ] {
        let error = format!("dualpi2 {options}").parse::<Spec>().expect_err(options).to_string();
        assert!(error.contains(why), "{error}");
    }
}
