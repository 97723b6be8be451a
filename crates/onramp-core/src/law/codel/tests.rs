//! Tests the CoDel law step by step: compares it with the pseudocode of RFC 8289, section 5, in the
//! arithmetic of Linux, and tries the limits of its parameters.

use std::collections::VecDeque;

use super::*;
use crate::tc::Spec;

const MS: u64 = 1_000_000;

/// Creates the law that a command line describes, for packets of at most 1,000 bytes.
fn law(line: &str, ecn: bool) -> Law {
    Law::new(&line.parse::<Spec>().expect(line).values(1_000), ecn)
}

#[test]
fn the_pace_is_the_inverse_root_of_the_count() {
    let mut state = Codel { count: 1, inv_sqrt: ONE, ..Codel::default() };
    for count in 2..10_000_u32 {
        state.count = count;
        state.improve();
        let exact = 65_536.0 / f64::from(count).sqrt();
        // One step of Newton's method for each count is inaccurate at first: for a count of 2, the
        // result is 0.5, but 1 / sqrt(2) is 0.707.
        let share = match count {
            2 => 0.3,
            3..20 => 0.03,
            _ => 0.002,
        };
        let off = (f64::from(state.inv_sqrt) - exact).abs();
        assert!(off < 2.0 + exact * share, "{count}: {off}");
    }
}

#[test]
fn newton_from_zero_stays_there() {
    let mut state = Codel { count: 3, ..Codel::default() };
    state.improve();
    assert_eq!(state.inv_sqrt, 0);
    assert_eq!(state.after(7, 97_656), 7);
}

#[test]
fn time_wraps_around() {
    assert!(is_after(1, u32::MAX) && !is_after(u32::MAX, 1) && !is_after(5, 5));
    assert_eq!(units(1023), 0);
    assert_eq!(units((1 << 42) + 1024), 1);
}

/// `is_after` is true for times up to half of the 32-bit range ahead, and false for all others.
#[test]
fn later_is_up_to_half_a_turn() {
    for base in [0, 5, u32::MAX - 7] {
        let after = |units: u32| is_after(base.wrapping_add(units), base);
        assert_eq!([0, 1, 2].map(after), [false, true, true]);
        assert_eq!([(1 << 31) - 1, 1 << 31, (1 << 31) + 1].map(after), [true, false, false]);
        assert!(!after(u32::MAX));
    }
}

/// A queue of packets, and the number of bytes in other queues that share its link.
#[derive(Default)]
struct Queue {
    packets: VecDeque<Packet>,
    elsewhere: u64,
    dropped: Vec<u64>,
}

impl Source for Queue {
    fn pop(&mut self) -> Option<Packet> {
        self.packets.pop_front()
    }

    fn bytes(&self) -> u64 {
        self.elsewhere + self.packets.iter().map(|pkt| u64::from(pkt.len)).sum::<u64>()
    }

    fn drop(&mut self, pkt: Packet) {
        self.dropped.push(pkt.cookie);
    }
}

fn packet(cookie: u64, at_ns: u64, len: u32, ecn: u8) -> Packet {
    let mut pkt = Packet::new(len);
    (pkt.cookie, pkt.enqueued_ns, pkt.ecn) = (cookie, at_ns, ecn);
    pkt
}

/// The pseudocode of RFC 8289 as a model. Its times are in units of 1,024 ns that do not wrap
/// around.
struct Model {
    target: u64,
    interval: u64,
    ecn: bool,
    count: u64,
    last_count: u64,
    first_above: Option<u64>,
    drop_next: u64,
    dropping: bool,
    /// 2^16 divided by the square root of `count`.
    root: u64,
    /// For each packet: its cookie, arrival time, size in bytes, and ECN bits.
    queue: VecDeque<(u64, u64, u64, u8)>,
    elsewhere: u64,
    dropped: Vec<u64>,
}

impl Model {
    fn ok_to_drop(&mut self, at: Option<u64>, now: u64) -> bool {
        let left: u64 = self.elsewhere + self.queue.iter().map(|pkt| pkt.2).sum::<u64>();
        match at {
            Some(at) if now - at >= self.target && left > 1_000 => {
                let above = self.first_above;
                self.first_above = above.or(Some(now + self.interval));
                above.is_some_and(|above| now > above)
            }
            _ => {
                self.first_above = None;
                false
            }
        }
    }

    /// Improves `root` by a step of Newton's method: x becomes x (3 - count x^2) / 2.
    fn newton(&mut self) {
        let x = u128::from(self.root) << 16;
        let rest = (3_u128 << 32) - u128::from(self.count) * ((x * x) >> 32);
        self.root = u64::try_from((rest / 4 * x) >> 31 >> 16).expect("less than one");
    }

    fn control_law(&self, then: u64) -> u64 {
        then + self.interval * self.root / 65_536
    }

    /// Takes a packet from the model's queue. Returns the cookie and the ECN bits of the packet
    /// that leaves.
    fn dequeue(&mut self, now: u64) -> Option<(u64, u8)> {
        let Some(mut pkt) = self.queue.pop_front() else {
            (self.dropping, self.first_above) = (false, None);
            return None;
        };
        let ok = self.ok_to_drop(Some(pkt.1), now);
        if self.dropping {
            self.dropping = ok;
            while self.dropping && now >= self.drop_next {
                self.count += 1;
                self.newton();
                if self.ecn && pkt.3 > 0 {
                    pkt.3 = 3;
                    self.drop_next = self.control_law(self.drop_next);
                    break;
                }
                self.dropped.push(pkt.0);
                let next = self.queue.pop_front();
                self.dropping = self.ok_to_drop(next.map(|next| next.1), now);
                if self.dropping {
                    self.drop_next = self.control_law(self.drop_next);
                }
                pkt = next?;
            }
        } else if ok {
            let mut next = Some(pkt);
            if self.ecn && pkt.3 > 0 {
                next = Some((pkt.0, pkt.1, pkt.2, 3));
            } else {
                self.dropped.push(pkt.0);
                next = self.queue.pop_front().filter(|_| next.is_some());
                self.ok_to_drop(next.map(|next| next.1), now);
            }
            self.dropping = true;
            let delta = self.count - self.last_count;
            if delta > 1 && now - self.drop_next < 16 * self.interval {
                self.count = delta;
                self.newton();
            } else {
                (self.count, self.root) = (1, 65_535);
            }
            self.last_count = self.count;
            self.drop_next = self.control_law(now);
            pkt = next?;
        }
        Some((pkt.0, pkt.3))
    }
}

/// The law makes the same drops and marks as the pseudocode for random packets over a second or
/// more, with long-lasting bursts and quiet times between them.
#[test]
fn it_does_what_the_pseudocode_says() {
    for (seed, ecn, target, interval) in [
        (1_u64, false, 5, 100),
        (2, true, 5, 100),
        (3, false, 1, 20),
        (4, true, 1, 10),
        (5, false, 20, 30),
    ] {
        let line = format!("codel target {target}ms interval {interval}ms");
        let (mut law, mut state, mut queue) = (law(&line, ecn), Codel::default(), Queue::default());
        let unit = |ns: u64| ns >> 10;
        let mut model = Model {
            target: unit(target * MS),
            interval: unit(interval * MS),
            ecn,
            count: 0,
            last_count: 0,
            first_above: None,
            drop_next: 0,
            dropping: false,
            root: 0,
            queue: VecDeque::new(),
            elsewhere: 0,
            dropped: Vec::new(),
        };
        let mut noise = seed;
        let mut random = |below: u64| {
            noise =
                noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
            (noise >> 33) % below
        };
        // Start at a time at which the 32-bit units have already wrapped around once.
        let (mut now, mut marked) = ((1 << 42) + 77_777, 0);
        for step in 0..20_000_u64 {
            now += random(2 * MS);
            if step % 2_000 == 0 {
                // From time to time, other queues of the link hold bytes.
                let elsewhere = random(2) * 5_000;
                (queue.elsewhere, model.elsewhere) = (elsewhere, elsewhere);
            }
            // The backlog grows for 400 steps, then shrinks for 600.
            for _ in 0..random(if step % 1_000 < 400 { 4 } else { 2 }) {
                let (len, bits) = (1 + random(1_000), u8::try_from(random(3)).expect("small"));
                let cookie = step * 10 + random(10);
                queue.packets.push_back(packet(cookie, now, u32::try_from(len).unwrap(), bits));
                model.queue.push_back((cookie, unit(now), len, bits));
            }
            let left = state.dequeue(&mut law, Instant(now), &mut queue);
            let left = left.map(|pkt| (pkt.cookie, pkt.ecn));
            assert_eq!(left, model.dequeue(unit(now)), "{line}, step {step}");
            marked += u64::from(left.is_some_and(|(_, bits)| bits == 3));
            assert_eq!(queue.dropped, model.dropped, "{line}, step {step}");
            let ours =
                (state.count.into(), state.last_count.into(), state.dropping, state.bad_at > 0);
            let above = model.first_above.is_some();
            assert_eq!(ours, (model.count, model.last_count, model.dropping, above), "{step}");
            assert_eq!((u64::from(state.inv_sqrt), law.ecn_mark), (model.root, marked), "{step}");
            if model.dropping {
                assert_eq!(state.drop_next, units(model.drop_next << 10), "{step}");
            }
        }
        assert!(queue.dropped.len() > 100 || ecn, "{}", queue.dropped.len());
        assert!(marked > 100 || !ecn, "{marked}");
    }
}

/// After its only packet was dropped, a queue is empty, and therefore not bad, even if other queues
/// of the link hold bytes. The next packet that waits too long starts a new interval.
#[test]
fn an_empty_queue_is_fine() {
    let (mut law, mut state) = (law("codel", false), Codel::default());
    let mut queue = Queue { elsewhere: 9_000, ..Queue::default() };
    let mut out = |ms: u64, cookie: u64, came_ms: u64| {
        queue.packets.push_back(packet(cookie, came_ms * MS, 1_000, 0));
        let left = state.dequeue(&mut law, Instant(ms * MS), &mut queue).map(|pkt| pkt.cookie);
        (left, state.dropping)
    };
    assert_eq!(out(1_000, 1, 900), (Some(1), false), "the interval begins");
    assert_eq!(out(1_101, 2, 900), (None, true), "it is over");
    for ms in [1_150, 1_190, 1_201, 1_245] {
        // A new interval began at 1,150 ms, so no drop is due before it has passed.
        assert_eq!(out(ms, ms, 900), (Some(ms), false), "{ms}");
    }
    assert_eq!(out(1_251, 3, 900), (None, true));
    // A drop would be due, but the queue was empty after the last drop, so the queue is not bad.
    assert_eq!(out(1_290, 4, 900), (Some(4), false));
}

/// A change of the law's parameters keeps its counters.
#[test]
fn counts_outlive_a_change() {
    let mut ours = law("codel target 5ms interval 100ms", true);
    assert_eq!((ours.max_packet, ours.ecn_mark, ours.ce_mark), (0, 0, 0));
    (ours.max_packet, ours.ecn_mark, ours.ce_mark) = (700, 3, 9);
    ours.change(law("codel target 9ms interval 50ms ce_threshold 2ms", false));
    assert_eq!((ours.max_packet, ours.ecn_mark, ours.ce_mark), (700, 3, 9));
    assert_eq!((ours.target, ours.interval), (units(9 * MS), units(50 * MS)));
    assert_eq!((ours.ce_threshold, ours.ecn), (Some(units(2 * MS)), false));
}

/// Without a mask, every packet that supports ECN is marked if it waits longer than `ce_threshold`.
/// With a mask, only packets whose ECN bits under the mask equal the selector are marked.
#[test]
fn late_packets_are_marked_by_their_bits() {
    let all = law("codel ce_threshold 1ms", false);
    let of = |selector| law("codel ce_threshold 1ms", false).select(selector);
    // The argument of `of` has the selector in its low byte and the mask in the byte above. The
    // array says what each of the four values of the ECN bits becomes.
    for (mut law, marked) in [
        (all, [0, 3, 3, 3]),
        (of(0x0100), [0, 1, 3, 3]),
        (of(0x0101), [0, 3, 2, 3]),
        (of(0x0301), [0, 3, 2, 3]),
        (of(0x0302), [0, 1, 3, 3]),
        (of(0x0001), [0, 3, 3, 3]),
        (of(0x0000), [0, 3, 3, 3]),
    ] {
        let late = |bits| {
            let mut pkt = packet(0, 0, 100, bits);
            law.mark_late(&mut pkt, units(MS) + 1);
            law.mark_late(&mut packet(0, 0, 100, bits), units(MS));
            pkt.ecn
        };
        assert_eq!([0, 1, 2, 3].map(late), marked);
    }
}

/// The state is listed with times in nanoseconds. If the time of the next drop has passed, a queue
/// lists 0 and a flow lists a negative time.
#[test]
fn what_is_told_of_the_state() {
    let (now, unit) = (Instant(1 << 40), 1_024);
    let state = |next: i64| Codel {
        count: 5,
        last_count: 3,
        waited: 40,
        drop_next: units(now.0).wrapping_add_signed(i32::try_from(next).expect("near")),
        dropping: true,
        ..Codel::default()
    };
    let told = |state: &Codel| {
        let mut told = Vec::new();
        state.stats(now, &mut |name, value| told.push((name, value)));
        told
    };
    for (next, left) in
        [(0, 0), (1, unit), (77, 77 * unit), (-1, 0), ((1 << 31) - 1, ((1 << 31) - 1) * unit)]
    {
        let left = u64::try_from(left).expect("not negative");
        let expected = [
            ("count", 5),
            ("lastcount", 3),
            ("ldelay_ns", 40_960),
            ("dropping", 1),
            ("drop_next_ns", left),
        ];
        assert_eq!(told(&state(next)), expected);
        let idle = Codel { dropping: false, ..state(next) };
        assert_eq!(told(&idle)[3..], [("dropping", 0), ("drop_next_ns", 0)]);
        let flow = [
            ("deficit", -9),
            ("count", 5),
            ("lastcount", 3),
            ("ldelay_ns", 40_960),
            ("dropping", 1),
            ("drop_next_ns", next * unit),
        ];
        assert_eq!(state(next).of_flow(-9, now), flow);
    }
    // If the next drop is exactly half of the 32-bit range ahead, its time counts as passed.
    let half = Codel { drop_next: units(now.0).wrapping_add(1 << 31), ..state(0) };
    assert_eq!(told(&half)[4], ("drop_next_ns", 0));
    // When a packet is taken from an empty queue, the law stops dropping.
    let mut state = state(5);
    assert!(state.dequeue(&mut law("codel", false), now, &mut Queue::default()).is_none());
    assert_eq!(told(&state)[3..], [("dropping", 0), ("drop_next_ns", 0)]);
}

/// The greatest `ce_threshold` means "no threshold", and `tc` does not show it.
#[test]
fn the_greatest_threshold_is_none() {
    let shown = |line: &str| {
        let spec = line.parse::<Spec>().expect(line);
        let mut out = Out::new(crate::base::show::Style::default());
        (spec.kind().shown.options)(&spec.values(1_000), &Extra::default(), &mut out);
        out.finish()
    };
    let none = shown("codel");
    assert!(!none.contains("ce_threshold"));
    assert_eq!(shown("codel ce_threshold 4294967295us"), none);
    assert!(shown("codel ce_threshold 4294967294us").contains("ce_threshold 4.29e+03s"));
}
