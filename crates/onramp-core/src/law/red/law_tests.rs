//! Tests the RED law at its limits, and the numbers that `tc` computes for the law.
//!
//! Source: `tc-red(8)`; behaviour of iproute2 6.1 `tc/tc_red.c`: `tc_red_eval_ewma`,
//! `tc_red_eval_P`, `tc_red_eval_idle_damping`.

use super::shape::weight;
use super::*;

const NOW: Instant = Instant(20_000_000_000);

fn shape(min: u32, max: u32, probability: u32) -> Shape {
    Shape { min, max, burst: 20, probability, average_packet: 1000 }
}

/// Creates a law with the weight 1/8, which stores averages in eighths of a byte.
fn red() -> Red {
    Red::new(&shape(10_000, 30_000, 1 << 30), 3, 1)
}

fn at(bytes: u64) -> Average {
    Average { value: bytes << 3, spared: 9, draw: 77, idle_since: None }
}

/// Below `min` all packets stay, from `max` on all packets are dropped, and in both cases, the
/// count of packets since the last drop begins anew. `is_beyond_min` and `is_beyond_max` are false
/// if the average equals `min` or `max`.
#[test]
fn bounds_are_reached_by_the_average_itself() {
    let eighths = |bytes: u64, more: i64| (bytes << 3).wrapping_add_signed(more);
    for (value, verdict, spared) in [
        (eighths(10_000, -1), Verdict::Spare, -1),
        (eighths(10_000, 0), Verdict::Spare, 10),
        (eighths(30_000, -1), Verdict::Early, 0),
        (eighths(30_000, 0), Verdict::Forced, -1),
    ] {
        let mut red = red();
        // Each packet finds a backlog equal to the average, so the average stays the same.
        let mut average = Average { value, ..at(0) };
        let backlog = value >> 3;
        assert_eq!(red.judge(&mut average, backlog, NOW), verdict, "{value}");
        assert_eq!((average.value, average.spared), (value, spared), "{value}");
    }
    for (more, beyond_min, beyond_max) in [(-1, false, false), (0, false, false), (1, true, true)] {
        let average = |bytes| Average { value: eighths(bytes, more), ..at(0) };
        assert_eq!(red().is_beyond_min(&average(10_000)), beyond_min, "{more}");
        assert_eq!(red().is_beyond_max(&average(30_000)), beyond_max, "{more}");
    }
}

/// The first packet that arrives while the average is between `min` and `max` draws a random
/// number. Of the packets after it, the law drops the n-th as soon as n times the bytes of the
/// average above `min` reach this number.
#[test]
fn a_draw_decides_on_the_next_drop() {
    let mut red = red();
    let mut average = Average { spared: -1, ..at(10_100) };
    assert!(!red.draws(&mut average));
    let first = Rng::new(1).next_u32() / red.slope;
    assert_eq!((average.spared, average.draw), (0, first));
    for (spared, draw, goes) in [(3, 400, true), (3, 401, false), (3, 399, true)] {
        let mut average = Average { spared, draw, ..at(10_100) };
        assert_eq!(red.draws(&mut average), goes, "{draw}");
        assert_eq!(average.spared, if goes { 0 } else { 4 });
        assert_eq!(average.draw == draw, !goes);
    }
    // If the drop probability per byte rounds to zero, the law uses the smallest probability,
    // 2^-32, so the random number is not divided.
    let mut flat = Red::new(&shape(0, 1 << 31, 1_000), 1, 1);
    let mut average = Average { spared: -1, ..Average::EMPTY };
    assert!(!flat.draws(&mut average));
    assert_eq!(average.draw, Rng::new(1).next_u32());
}

/// A change of the law's parameters keeps the sequence of random numbers.
#[test]
fn other_parameters_leave_chance() {
    let mut ours = red();
    let _ = ours.rng.next_u32();
    let next = ours.rng.clone().next_u32();
    ours.change(Red::new(&shape(1_000, 2_000, 1 << 31), 2, 99));
    assert_eq!((ours.weight, ours.min, ours.max), (2, 4_000, 8_000));
    assert_eq!((ours.span, ours.max_p, ours.rng.next_u32()), (1_000, 1 << 31, next));
}

/// After an idle time longer than the table of idle times covers, the law shifts the average right
/// by 31 bits. If a packet takes less than a microsecond to send, one microsecond of idle time is
/// already longer than that.
#[test]
fn idle_queues_forget_by_the_table() {
    let after = |average_packet, rate, us: u64| {
        let mut red = red();
        red.damp(average_packet, rate);
        red.damped(1 << 40, NOW, NOW.after(us * 1_000))
    };
    for (average_packet, rate) in [(1_000, 1_250_000), (100, 1_250_000_000)] {
        assert_eq!(after(average_packet, rate, 0), 1 << 40);
        assert_eq!(after(average_packet, rate, 1 << 40), 1 << 9, "the end of the table");
    }
    assert_eq!(after(100, 1_250_000_000, 1), 1 << 9);
    // A packet of 1,000 bytes takes 800 us, which is 12,500 units of 64 ns. As in `tc`, these units
    // count as microseconds. So in a cell of the table, 2^13 us, the average shrinks by -ln(7/8) /
    // 12,500 * 8,192 = 0.0875 bits. After the twelfth cell, that is 1.05 bits.
    let cell = 1 << 13;
    assert_eq!(after(1_000, 1_250_000, 12 * cell), 1 << 39);
    // In the first twelve cells of the table, which hold 0 bits, the average shrinks in proportion
    // to the idle time, but by at most half.
    assert_eq!(after(1_000, 1_250_000, cell / 4), (1 << 40) - (1 << 38));
    assert_eq!(after(1_000, 1_250_000, 11 * cell), 1 << 39);
}

/// How fast an idle average shrinks is computed from the time of a packet in whole units of 64 ns.
#[test]
fn how_fast_an_average_shrinks() {
    // At 1,000 bytes per second, a packet of 1,000 bytes takes a second, which is 15,625,000 units
    // of 64 ns.
    let (bits, _) = shrinking(1, 1_000, 1_000);
    assert_eq!(bits, -(0.5_f64.ln()) / 15_625_000.0);
    // A packet that takes 12 us, which is 187.5 units of 64 ns, counts as 187 units.
    let (bits, _) = shrinking(1, 12, 1_000_000);
    assert_eq!(bits, -(0.5_f64.ln()) / 187.0);
    // One cell of the table of idle times (Linux's `Scell_log`) covers at most 2^31 us.
    assert_eq!(shrinking(1, u32::MAX, 1).1, 31);
}

/// `weight` finds the smallest n with which a burst just reaches `min`, if a new value counts in
/// the average with the weight 1/2^n: `burst + 1 - min / avpkt` must be at most
/// `(1 - (1 - 1/2^n)^burst) * 2^n`.
#[test]
fn the_weight_follows_from_the_burst() {
    for (min, burst, average_packet, expected) in [
        (1_000, 1, 1_000, Some(1)),
        // If `min` is half an average packet, even a burst of one packet is too large: no weight
        // satisfies the condition.
        (500, 1, 1_000, None),
        (1_750, 2, 1_000, Some(1)),
        (1_250, 2, 1_000, Some(2)),
        // If `min` is more than one average packet, a burst of one packet does not reach `min`.
        (1_001, 1, 1_000, None),
        // An average packet of zero bytes counts as one byte.
        (10, 20, 0, Some(4)),
        // With average packets of 4 bytes, a burst of 65,536 packets needs the weight 2^-31 if
        // `min` is 9 bytes. If `min` is 7 bytes, it would need 2^-32, which is no valid weight.
        (9, 65_536, 4, Some(31)),
        (7, 65_536, 4, None),
    ] {
        assert_eq!(weight(min, burst, average_packet), expected, "{min} {burst} {average_packet}");
    }
}

/// A burst may be too small or too large. The error says which of the two it is: a burst below
/// `min / avpkt` packets is too small.
#[test]
fn a_burst_that_will_not_do_is_refused_with_the_reason() {
    let refused = |min, burst| {
        let shape = Shape { burst, ..shape(min, 100_000, 1 << 30) };
        shape.check().expect_err("it will not do")
    };
    let why = |min, burst| format!("{:?}", refused(min, burst));
    assert!(why(2_500, 1).contains("1 is too small: expected 3 or more packets"));
    assert!(why(2_500, 2).contains("2 is too small: expected 3 or more packets"));
    assert!(why(500, 1).contains("1 is too large: so slow an average would never reach min, 500"));
    assert_eq!(shape(2_500, 100_000, 1 << 30).check().ok(), weight(2_500, 20, 1_000));
}

/// The probability that each byte adds (probability divided by `max - min`) must be at least about
/// 2^-32.
#[test]
fn a_probability_may_be_too_small_for_the_range() {
    // `tc` doubles the probability per byte, up to 31 times, until it exceeds one. With a range of
    // 1,000 bytes, it is exactly one for 2,000 / 2^32 after 31 times.
    for (probability, fits) in [(2_001, true), (2_000, false)] {
        let shape = shape(10_000, 11_000, probability);
        assert_eq!(shape.check().is_ok(), fits, "{probability}");
    }
}

/// The probability 1 does not fit into the kernel's 32 bits. For 1, the kernel uses the probability
/// per byte that `tc` sends, which is a power of two, times the range `max - min`.
#[test]
fn certainty_is_a_power_of_two() {
    for (span, max_p) in [
        // `tc` doubles the probability per byte until it exceeds one. Here it is exactly one, so it
        // is doubled once more.
        (1, u32::MAX >> 1),
        (1_024, (u32::MAX >> 11) * 1_024),
        // Here the probability per byte, 1 / 1,000, exceeds one after it was doubled 10 times.
        (1_000, (u32::MAX >> 10) * 1_000),
        (0, u32::MAX),
    ] {
        assert_eq!(shape(10_000, 10_000 + span, u32::MAX).max_p(), max_p, "{span}");
    }
    assert_eq!(shape(10_000, 11_000, u32::MAX - 1).max_p(), u32::MAX - 1);
}

/// The first change of `max_p` is half a second and a jiffy of 10 ms after the start.
#[test]
fn adaption_begins_half_a_second_from_now() {
    let ticks = |n: u64| Instant(n * 10_000_000);
    assert_eq!(Adaption::from(ticks(2_000)).next, Some(ticks(2_051)));
}

/// However long `run` was not called, the result is the same as with regular calls.
#[test]
fn adaption_catches_up() {
    let looked = |late: u64, every: u64| {
        let (mut red, average, mut adaption) = (red(), at(0), Adaption::default());
        adaption.run(&mut red, &average, NOW);
        let first = adaption.next.expect("it has begun");
        for times in (0..=late).step_by(usize::try_from(every).expect("few")) {
            adaption.run(&mut red, &average, first.after(times * ADAPT_NS));
        }
        adaption.run(&mut red, &average, first.after(late * ADAPT_NS));
        (red.max_p, red.slope, adaption.next.map(|next| next.since(first)))
    };
    for late in [3, 255, 256, 257, 300, 511, 512, 700] {
        let at_once = looked(late, late + 1);
        assert_eq!(at_once, looked(late, 1), "{late}");
        assert_eq!(at_once.2, Some((late + 1) * ADAPT_NS));
    }
    // If `run` is called only after a hundred years, the result is the same, and the call returns
    // quickly.
    let late = 1 << 33;
    assert_eq!(looked(late, late + 1), {
        let (max_p, slope, _) = looked(700, 701);
        (max_p, slope, Some((late + 1) * ADAPT_NS))
    });
}

/// `max_p` grows only if it is at most 0.5, and shrinks only if it is at least 0.01. The
/// probability per byte is rounded to the nearest.
#[test]
fn adaption_has_bounds() {
    const SPAN: u32 = 20_000;
    let adapted = |max_p, bytes| {
        let mut red = Red { max_p, ..red() };
        red.adapt(&at(bytes), NOW);
        (red.max_p, red.slope)
    };
    let slope = |max_p: u32| (max_p + SPAN / 2) / SPAN;
    let unmoved = red().slope;
    for (before, bytes, after) in [
        (50 * PERCENT, 29_000, Some(51 * PERCENT)),
        (50 * PERCENT + 1, 29_000, None),
        (PERCENT, 0, Some(PERCENT / 10 * 9)),
        (PERCENT - 1, 0, None),
        (PERCENT, 20_000, None),
    ] {
        let expected = after.map_or((before, unmoved), |after| (after, slope(after)));
        assert_eq!(adapted(before, bytes), expected, "{before}");
    }
    // The new `max_p`, 9/10 of the old one, is 45,011,007. Divided by the range of 20,000 bytes,
    // this is 2,250.55, which rounds up.
    assert_eq!(adapted(50_012_230, 0), (45_011_007, 2_251));
    // The new `max_p`, 45,009,009, divided by the range is 2,250.45, which rounds down.
    assert_eq!(adapted(50_010_010, 0), (45_009_009, 2_250));
    // Here the range is so wide that the probability per byte rounds to zero. The law then uses 1,
    // the smallest value that is not zero.
    let mut wide = Red::new(&shape(0, 1 << 31, PERCENT), 1, 1);
    wide.adapt(&Average { value: 0, ..at(0) }, NOW);
    assert_eq!((wide.max_p, wide.slope), (PERCENT / 10 * 9, 1));
}
