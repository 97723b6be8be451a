//! Tests the PIE law step by step and at its limits. The limits are those of RFC 8033, section 4
//! and appendix A, in the units of Linux.

use super::*;
use crate::tc::Spec;

/// Creates a law with a target of 1,000 units of 64 ns, for packets of at most 1,000 bytes. Its
/// updates do not change the probability.
fn law() -> Law {
    Law {
        target: 1_000,
        timer: Timer::new(FIRST, 1, 15_000_000),
        alpha: 0,
        beta: 0,
        ecn: false,
        bytemode: false,
        estimator: false,
        mtu: 1_000,
        rng: Rng::new(1),
    }
}

/// Creates the state of a queue whose delay equals the target and whose burst allowance is used up.
fn busy(probability: u64, sum: u64) -> Pie {
    Pie { probability, sum, delay: 1_000, burst: 0, ..Pie::default() }
}

/// Whether a law with the seed 1 has drawn a random number.
fn has_drawn(law: &Law) -> bool {
    law.rng.clone().next_u64() != Rng::new(1).next_u64()
}

/// Returns the first random number that a law with the seed 1 draws.
fn first_draw() -> u64 {
    Rng::new(1).next_u64() >> 8
}

/// The sum of probabilities (8.5) from which on a packet is dropped without a random choice.
const SURE: u64 = ONE / 2 * 17;

#[test]
fn a_queue_is_at_rest_first() {
    let Pie { probability, sum, delay, delay_before, burst, since, measured, rate } =
        Pie::default();
    assert_eq!([probability, sum, delay, delay_before, rate], [0; 5]);
    // A new queue has a burst allowance of 150 ms, in units of 64 ns.
    assert_eq!((burst, since, measured), (150_000_000 / 64, None, None));
}

/// No packet is dropped during a burst allowance, in a short queue, or while both the delay and the
/// probability are small.
#[test]
fn some_packets_are_spared() {
    let drops = |burst, delay, probability, backlog| {
        let mut pie = Pie { burst, delay, ..busy(probability, SURE) };
        pie.drops(&mut law(), &Packet::new(100), backlog)
    };
    let much = ONE / 2;
    assert_eq!([0, 1].map(|burst| drops(burst, 1_000, much, 2_000)), [true, false]);
    assert_eq!([1_999, 2_000].map(|backlog| drops(0, 1_000, much, backlog)), [false, true]);
    for (delay, probability, drop) in [
        (499, ONE / 5 - 1, false),
        (500, ONE / 5 - 1, true),
        (499, ONE / 5, true),
        (0, ONE / 5, true),
        (0, 1, false),
    ] {
        assert_eq!(drops(0, delay, probability, 9_000), drop, "{delay}, {probability}");
    }
}

/// From a sum of probabilities of 0.85 on, a random number decides about a drop; from 8.5 on, the
/// drop is certain.
#[test]
fn drops_come_neither_too_early_nor_too_late() {
    let chance = ONE / 100 * 85;
    for (sum, drop, draws, left) in [
        (5, false, false, 6),
        (chance - 2, false, false, chance - 1),
        (chance - 1, false, true, chance),
        (SURE - 2, false, true, SURE - 1),
        (SURE - 1, true, false, SURE),
        (SURE, true, false, SURE + 1),
    ] {
        let (mut law, mut pie) = (law(), busy(1, sum));
        assert_eq!(pie.drops(&mut law, &Packet::new(100), 9_000), drop, "{sum}");
        assert_eq!((has_drawn(&law), pie.sum), (draws, left), "{sum}");
    }
    // A random drop sets the sum of probabilities back to zero.
    let draw = first_draw();
    for (probability, drop, left) in [(draw, false, ONE + draw), (draw + 1, true, 0)] {
        let mut pie = busy(probability, ONE);
        assert_eq!(pie.drops(&mut law(), &Packet::new(100), 9_000), drop);
        assert_eq!(pie.sum, left);
    }
    // A drop for any other reason also sets the sum back to zero, and so does a probability of
    // zero.
    let mut pie = busy(1, 77);
    pie.dropped();
    assert_eq!(pie.sum, 0);
    let mut pie = busy(0, SURE);
    assert!(!pie.drops(&mut law(), &Packet::new(100), 9_000));
    assert_eq!(pie.sum, 0);
}

/// With `bytemode`, a packet shorter than the largest packet adds only a part of the probability to
/// the sum, in proportion to its length. A longer packet adds the whole probability.
#[test]
fn small_packets_count_for_less() {
    let sum = |bytemode, mtu, len, probability| {
        let mut pie = busy(probability, 5);
        let mut law = Law { bytemode, mtu, ..law() };
        assert!(!pie.drops(&mut law, &Packet::new(len), 9_000));
        pie.sum
    };
    // The largest packet has 1,000 bytes, so a packet of one byte adds a thousandth of the
    // probability 1,000,999, rounded down.
    for (len, added) in [(1, 1_000), (999, 999_000), (1_000, 1_000_000), (1_001, 1_000_999)] {
        assert_eq!(sum(true, 1_000, len, 1_000_999), 5 + added, "{len}");
        assert_eq!(sum(false, 1_000, len, 1_000_999), 5 + 1_000_999, "{len}");
    }
    // If the size of the largest packet is zero (unknown), a packet of one byte adds the whole
    // probability.
    assert_eq!(sum(true, 0, 0, 1_000), 0);
    assert_eq!(sum(true, 0, 1, 1_000), 5 + 1_000);
}

/// The delay is measured when packets leave, and the burst allowance shrinks as time passes.
#[test]
fn it_learns_from_what_leaves() {
    let (law, mut pie) = (law(), Pie { burst: 1_000, ..Pie::default() });
    let mut leaves = |came_tick: u64, tick: u64, backlog| {
        let mut pkt = Packet::new(100);
        pkt.enqueued_ns = came_tick * 64 + 63;
        pie.learn(&law, &pkt, backlog, Instant(tick * 64 + 1));
        (pie.delay, pie.burst)
    };
    assert_eq!(leaves(500, 800, 1), (300, 1_000), "nothing left before");
    assert_eq!(leaves(700, 801, 1), (101, 999));
    assert_eq!(leaves(700, 901, 0), (0, 899), "an empty queue has no delay");
    assert_eq!(leaves(700, 901, 9), (201, 899));
    assert_eq!(leaves(3_000, 2_900, 9), (0, 0), "long enough");
}

/// The estimator measures a rate over 16,384 bytes at a time, while at least that many bytes are
/// queued.
#[test]
fn rates_are_measured_over_many_bytes() {
    let law = Law { estimator: true, ..law() };
    let mut pie = Pie { burst: 1_000, ..Pie::default() };
    let mut leaves = |len, backlog, tick: u64| {
        pie.learn(&law, &Packet::new(len), backlog, Instant(tick * 64));
        (pie.measured, pie.since, pie.rate, pie.burst)
    };
    assert_eq!(leaves(9_000, 16_383, 90), (None, None, 0, 1_000), "too few are left");
    assert_eq!(leaves(16_383, 16_384, 100), (Some(16_383), Some(100), 0, 1_000));
    // 16,384 bytes in 64 units of 64 ns are a rate of 65,536 (in 1/256 byte per 64 ns). The next
    // measurement begins.
    assert_eq!(leaves(1, 16_384, 164), (Some(0), Some(164), 65_536, 936));
    assert_eq!(leaves(16_383, 5, 170), (Some(16_383), Some(164), 65_536, 936));
    // The new measurement is twice the old rate, and has the weight 1/8 in the new average. Now too
    // few bytes are queued for another measurement.
    assert_eq!(leaves(1, 16_383, 196), (None, Some(164), 65_536 / 8 * 7 + 131_072 / 8, 904));
    // A measurement gives no rate if it took less than 64 ns; a measurement of 64 ns gives a rate.
    assert_eq!(leaves(20_000, 16_384, 300), (Some(20_000), Some(300), 73_728, 904));
    let rate = 73_728 - 9_216 + (20_100 * 256) / 8;
    assert_eq!(leaves(100, 16_384, 301), (Some(0), Some(301), rate, 903));
}

/// Returns the state of a queue after one update of the probability.
fn updated(law: &Law, pie: Pie, backlog: u64) -> Pie {
    let mut pie = pie;
    pie.update(law, backlog, 1);
    pie
}

/// An update changes the probability by `alpha` times the distance of the delay from its target,
/// plus `beta` times the growth of the delay.
#[test]
fn the_probability_follows_the_delay() {
    let half = ONE / 2;
    for (alpha, beta, delay, before, probability) in [
        (3, 5, 1_100, 1_050, half + 3 * 100 + 5 * 50),
        (3, 5, 900, 1_000, half - 3 * 100 - 5 * 100),
        (3, 5, 1_000, 1_000, half),
        (1, 0, 1_001, 0, half + 1),
        (1, 0, 999, 0, half - 1),
        (0, 1, 1_000, 999, half + 1),
        // If the probability would be less than zero, it becomes zero.
        (ONE, 0, 999, 0, 0),
    ] {
        let law = Law { alpha, beta, ..law() };
        let pie = Pie { delay, delay_before: before, ..busy(half, 7) };
        let expected = Pie { probability, delay_before: delay, ..pie };
        assert_eq!(updated(&law, pie, 9_000), expected, "{alpha} {beta} {delay} {before}");
    }
    // If the probability overflows, it becomes 1.
    for (probability, step) in [(u64::MAX, 1), (u64::MAX - 4, 5)] {
        let pie = Pie { delay: 1_000 + step, ..busy(probability, 7) };
        assert_eq!(updated(&Law { alpha: 1, ..law() }, pie, 9_000).probability, ONE);
    }
}

/// If the delay is longer than 250 ms, each update adds 2 % to the probability.
#[test]
fn long_delays_are_pressed_down() {
    for (delay, more) in [(3_906_250, 0), (3_906_251, ONE / 50)] {
        let pie = Pie { delay, ..busy(ONE / 2, 7) };
        assert_eq!(updated(&law(), pie, 9_000).probability, ONE / 2 + more, "{delay}");
    }
}

/// In an idle queue, each update reduces the probability by a 64th. If the delay is unknown (zero,
/// but packets are queued), the probability does not decay.
#[test]
fn the_probability_decays() {
    for (delay, before, backlog, left) in
        [(0, 0, 0, 6_300), (0, 0, 1, 6_400), (1, 0, 0, 6_400), (0, 1, 0, 6_400)]
    {
        let pie = Pie { delay, delay_before: before, ..busy(6_400, 7) };
        assert_eq!(updated(&law(), pie, backlog).probability, left, "{delay} {before} {backlog}");
    }
    let mut pie = Pie { delay: 0, ..busy(6_400, 7) };
    pie.update(&law(), 0, 3);
    assert_eq!(pie.probability, 6_400 - 100 - 98 - 96);
    // An update that changes nothing is not repeated, so even 2^64 - 1 updates are fast.
    pie.update(&Law { alpha: 0, ..law() }, 0, u64::MAX);
    assert!(pie.probability < 64);
}

/// A queue comes to rest when its delay was less than half of the target at two updates in a row
/// and the probability is zero. Then its state is that of a new queue, with a new burst allowance.
#[test]
fn a_queue_comes_to_rest() {
    for (delay, before, probability, rests) in [
        (499, 499, 0, true),
        (0, 499, 0, true),
        (500, 499, 0, false),
        (499, 500, 0, false),
        (600, 600, 0, false),
        (499, 499, 1, false),
    ] {
        let pie =
            Pie { delay, delay_before: before, burst: 3, since: Some(9), ..busy(probability, 7) };
        let rest = Pie { delay, ..Pie::default() };
        let expected = if rests { rest } else { pie };
        let expected = Pie { delay_before: delay, ..expected };
        assert_eq!(updated(&law(), pie, 9_000), expected, "{delay}, {before}, {probability}");
    }
}

/// With the estimator, the delay is the backlog divided by the measured rate. While no rate has
/// been measured, the queue does not come to rest.
#[test]
fn the_estimator_computes_the_delay() {
    let law = Law { estimator: true, ..law() };
    for (backlog, rate, delay) in
        [(9_000, 256, 9_000), (9_000, 1_024, 2_250), (1_000, 3, 85_333), (9_000, 0, 0)]
    {
        let pie = Pie { rate, ..busy(ONE / 2, 7) };
        // The estimator does not use `delay_before`, but the law without an estimator needs it if a
        // change of the parameters removes the estimator.
        let expected = Pie { delay, delay_before: 1_000, ..pie };
        assert_eq!(updated(&law, pie, backlog), expected, "{backlog} at {rate}");
    }
    for (rate, rests) in [(0, false), (1, true), (256, true)] {
        let pie = Pie { delay: 400, burst: 3, rate, ..busy(0, 7) };
        let expected = if rests {
            Pie { delay: 0, delay_before: 400, ..Pie::default() }
        } else {
            Pie { delay: 0, delay_before: 400, ..pie }
        };
        assert_eq!(updated(&law, pie, 0), expected, "{rate}");
    }
}

/// The smaller the probability, the more the weights `alpha` and `beta` are reduced, as in RFC
/// 8033, section 4.2.
#[test]
fn steps_are_small_while_the_probability_is() {
    let law = Law { alpha: 7 * 2_048, beta: 5 * 2_048, ..law() };
    for (share, below, from) in [
        (10, 2, 1),
        (100, 8, 2),
        (1_000, 32, 8),
        (10_000, 128, 32),
        (100_000, 512, 128),
        (1_000_000, 2_048, 512),
        (10_000_000, 2_048, 2_048),
    ] {
        for (probability, divided) in [(ONE / share - 1, below), (ONE / share, from)] {
            let expected = (7 * 3 + 5) * 2_048 / divided;
            assert_eq!(step(&law, probability, 1_003, 1_002), expected, "1 / {share}");
            let down = step(&law, probability, 997, 998);
            assert_eq!(down, -expected, "1 / {share}");
        }
    }
}

/// From a probability of a tenth on, an update adds at most a fiftieth (2 %).
#[test]
fn steps_are_bounded_once_the_probability_is_large() {
    let most = ONE / 100 * 2;
    let by = |probability, alpha| step(&Law { alpha, ..law() }, probability, 1_001, 0);
    for (alpha, up) in [(ONE / 51 + 1, ONE / 51 + 1), (most, most), (most + 1, most), (ONE, most)] {
        for probability in [ONE / 10, ONE / 2] {
            assert_eq!(by(probability, alpha), up.cast_signed(), "{alpha}");
        }
        assert_eq!(by(ONE / 10 - 1, alpha), (alpha / 2).cast_signed(), "{alpha}");
    }
}

/// After a change of the parameters, the wait for the next update that has begun ends as before,
/// and the sequence of random numbers continues.
#[test]
fn a_change_keeps_what_is_waited_for() {
    let tick = |n: u64| Instant(n * TICK_NS);
    let timed = |wait_ns| Law { timer: Timer::new(FIRST, 3, wait_ns), ..law() };
    let (mut ours, mut rounds) = (timed(20_000_000), Rounds::default());
    let _ = (ours.rng.next_u64(), rounds.count(&ours.timer, tick(50)));
    assert_eq!(rounds.count(&ours.timer, tick(51)), 1);
    let drawn = ours.rng.clone().next_u64();
    // One update of all queues takes three jiffies, one for each third of the queues. An update
    // began in jiffy 51, and the parameters change in jiffy 52.
    let new = Law { alpha: 9, target: 7, rng: Rng::new(99), ..timed(300_000_000) };
    ours.change(new, &mut rounds, tick(52));
    assert_eq!((ours.alpha, ours.target, ours.rng.next_u64()), (9, 7, drawn));
    let mut counts = |n| rounds.count(&ours.timer, tick(n));
    assert_eq!([counts(83), counts(84)], [1, 2], "33 ticks after that one began");
}

#[test]
fn what_is_told_of_the_state() {
    let pie = Pie { rate: 512, delay: 5, ..busy(ONE / 4, 0) };
    let told = |law: &Law| {
        let mut told = Vec::new();
        pie.stats(law, &mut |name, value| told.push((name, value)));
        told
    };
    let common = [("prob_ppm", 250_000), ("prob", ONE / 4), ("delay_ns", 320)];
    assert_eq!(told(&law()), common);
    let estimator = Law { estimator: true, ..law() };
    assert_eq!(told(&estimator)[..3], common);
    // The rate is two bytes per 64 ns; a second has 15,625,000 times 64 ns.
    assert_eq!(told(&estimator)[3..], [("avg_dq_rate", 31_250_000)]);
}

/// If a change of the parameters removes the estimator, the next update computes the growth of the
/// delay from `delay_before`. So with the estimator, each update stores in `delay_before` the delay
/// that the update before it computed.
#[test]
fn the_delay_before_an_estimate_is_kept() {
    let spec: Spec = "pie dq_rate_estimator".parse().expect("a line");
    let law = Law::new(&spec.values(1514), 1);
    // The measured rate is one byte per 64 ns.
    let mut pie = Pie { rate: 1 << RATE_BITS, delay_before: 7, ..Pie::default() };
    for (backlog, before) in [(1_000_000, 0), (2_000_000, 1_000_000), (3_000_000, 2_000_000)] {
        pie.update(&law, backlog, 1);
        assert_eq!((pie.delay, pie.delay_before), (backlog, before));
    }
}
