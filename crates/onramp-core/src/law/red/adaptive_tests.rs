//! Tests adaptive RED step by step against its paper: Floyd, Gummadi and Shenker, "Adaptive RED",
//! 2001, figure 2. Every half second (in Linux, plus a jiffy of 10 ms), `max_p` is changed. If the
//! average is above the target and `max_p` is at most 0.5, `max_p` grows by min(0.01, max_p / 4).
//! If the average is below the target and `max_p` is at least 0.01, `max_p` is multiplied by 0.9.
//! The target range lies from 0.4 to 0.6 of the way from `min` to `max`.

use super::{Adaption, Average, Red, Shape};
use crate::base::Instant;

const NOW: Instant = Instant(20_000_000_000);
const TICK_NS: u64 = 510_000_000;

/// Creates a law with `min` 10,000 and `max` 30,000 bytes, so that the target is 18,000 to 22,000
/// bytes.
fn red(max_p: f64) -> Red {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1")]
    let probability = (max_p * 4_294_967_296.0) as u32;
    let (burst, average_packet) = (20, 1000);
    let shape = Shape { min: 10_000, max: 30_000, burst, probability, average_packet };
    Red::new(&shape, 3, 1)
}

fn average(bytes: u64) -> Average {
    Average { value: bytes << 3, ..Average::EMPTY }
}

/// Returns `max_p` after the law has adapted it `ticks` times, in a queue whose average length
/// stays `bytes` bytes.
fn adapted(max_p: f64, bytes: u64, ticks: u64) -> f64 {
    let (mut red, average, mut adaption) = (red(max_p), average(bytes), Adaption::default());
    adaption.run(&mut red, &average, NOW);
    adaption.run(&mut red, &average, NOW.after(ticks * TICK_NS));
    // Each change of `max_p` also sets the probability per byte (`slope`) to `max_p / (max - min)`,
    // up to rounding.
    let slope = f64::from(red.slope) * 20_000.0;
    assert!((slope - f64::from(red.max_p)).abs() <= 20_000.0, "{slope}, {}", red.max_p);
    f64::from(red.max_p) / 4_294_967_296.0
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6, "{found}, expected {expected}");
}

#[test]
fn it_moves_outside_of_its_target() {
    for (bytes, expected) in [
        (0, 0.18),
        (17_999, 0.18),
        (18_000, 0.2),
        (20_000, 0.2),
        (22_000, 0.2),
        (22_001, 0.21),
        (90_000, 0.21),
    ] {
        near(adapted(0.2, bytes, 1), expected);
    }
}

#[test]
fn it_grows_by_a_hundredth_or_a_quarter_of_itself() {
    for (max_p, expected) in
        [(0.004, 0.005), (0.02, 0.025), (0.04, 0.05), (0.1, 0.11), (0.4999, 0.5099), (0.501, 0.501)]
    {
        near(adapted(max_p, 25_000, 1), expected);
    }
}

#[test]
fn it_falls_by_a_tenth_down_to_a_hundredth() {
    for (max_p, expected) in [(0.5, 0.45), (0.02, 0.018), (0.0101, 0.00909), (0.0099, 0.0099)] {
        near(adapted(max_p, 15_000, 1), expected);
    }
}

#[test]
fn it_does_so_each_half_second() {
    for ticks in 0..20_u32 {
        let exact = 0.2 * 0.9_f64.powi(ticks.cast_signed());
        near(adapted(0.2, 1_000, ticks.into()), exact);
    }
    // `max_p` changes at times that depend only on the clock, not on when or how often `run` is
    // called.
    let (mut red, mut adaption) = (red(0.2), Adaption::default());
    let mut seen = Vec::new();
    let mut before = red.max_p;
    for ms in 0..1_600 {
        adaption.run(&mut red, &average(1_000), NOW.after(ms * 1_000_000));
        if red.max_p != before {
            seen.push(ms);
            before = red.max_p;
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen.windows(2).all(|two| two[1] - two[0] == 510), "{seen:?}");
    let mut late = Adaption::default();
    let (from, mut red) = (seen[0] + 100, self::red(0.2));
    late.run(&mut red, &average(1_000), NOW.after(from * 1_000_000));
    let before = red.max_p;
    late.run(&mut red, &average(1_000), NOW.after(seen[1] * 1_000_000 - 1_000_000));
    assert_eq!(red.max_p, before, "not before its time");
    late.run(&mut red, &average(1_000), NOW.after(seen[1] * 1_000_000));
    assert!(red.max_p < before, "and no later");
}

/// For an idle queue, a change compares the average after it has shrunk with the target, not the
/// average before the queue became idle.
#[test]
fn an_idle_queue_is_below_the_target() {
    let mut red = red(0.2);
    red.damp(1000, 1_250_000);
    let (mut average, mut adaption) = (average(25_000), Adaption::default());
    adaption.run(&mut red, &average, NOW);
    average.rest(NOW);
    // Half a second and a jiffy of 10 ms are 62 cells of 8,192 us in the table of idle times. In
    // this time, the average is halved five times: less than 1,000 of its 25,000 bytes are left.
    adaption.run(&mut red, &average, NOW.after(TICK_NS));
    near(f64::from(red.max_p) / 4_294_967_296.0, 0.18);
    // Here, the queue becomes idle only after the next change is due. So this change uses the
    // average that has not shrunk, 25,000 bytes, and `max_p` grows.
    let mut late = average;
    late.idle_since = Some(NOW.after(2 * TICK_NS + 1));
    adaption.run(&mut red, &late, NOW.after(2 * TICK_NS + 2));
    near(f64::from(red.max_p) / 4_294_967_296.0, 0.19);
}

/// For an idle queue, one late call of `run` has the same effect on `max_p` as one call at each
/// time at which a change is due. As long as the shrinking average is still above the target,
/// `max_p` grows; later it falls.
#[test]
fn a_long_rest_is_the_same_in_one_step() {
    for (rate, bytes) in
        [(16_000, 40_000), (125_000, 40_000), (1_250_000, 25_000), (125_000, 20_000)]
    {
        let tried = |steps: &[u64]| {
            let (min, max, average_packet) = (10_000, 30_000, 1000);
            let shape = Shape { min, max, burst: 200, probability: 85_899_345, average_packet };
            let (mut red, mut average) = (Red::new(&shape, 7, 1), Average::EMPTY);
            red.damp(1000, rate);
            average.value = bytes << 7;
            let mut adaption = Adaption::default();
            adaption.run(&mut red, &average, NOW);
            average.rest(NOW);
            steps
                .iter()
                .for_each(|step| adaption.run(&mut red, &average, NOW.after(step * TICK_NS)));
            red.max_p
        };
        for ticks in [1, 2, 40, 100, 255, 256, 257, 392, 512, 1_000, 5_000] {
            let each: Vec<u64> = (1..=ticks).collect();
            assert_eq!(tried(&[ticks]), tried(&each), "{rate} {bytes}: {ticks} ticks");
        }
        // Even if years have passed, `max_p` is at its minimum, and the call returns quickly.
        assert_eq!(tried(&[u64::MAX / TICK_NS / 2]), tried(&[1_000_000]), "{rate} {bytes}");
    }
}
