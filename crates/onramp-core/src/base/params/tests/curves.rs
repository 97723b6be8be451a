//! Tests of service curves.

use super::*;

/// A service curve is given by its slopes, or by a burst (`umax`) and the time (`dmax`) within
/// which the burst must pass, as in `tc-hfsc(7)`.
#[test]
fn curves_are_read_as_their_manual_says() {
    let curve = opt(Unit::Curve).within(0, 4_294_967_295_000);
    let (ms, us) = (1_000_000, 1_000);
    for (typed, means, text) in [
        ("m1 8kbit d 5ms m2 16kbit", [1_000, 5 * ms, 2_000], "m1 8kbit d 5ms m2 16kbit"),
        ("d 5ms m1 8kbit m2 16kbit", [1_000, 5 * ms, 2_000], "m1 8kbit d 5ms m2 16kbit"),
        ("m2 16kbit", [0, 0, 2_000], "m1 0bps d 0us m2 16kbit"),
        ("rate 16kbit", [0, 0, 2_000], "m1 0bps d 0us m2 16kbit"),
        // 1,500 bytes in 10 ms are 150,000 bytes per second, which is more than the rate, so the
        // first slope is steeper than the second.
        ("umax 1500 dmax 10ms rate 1mbit", [150_000, 10 * ms, 125_000], ""),
        // 1,000 bytes in 3 ms are 333,333.3 bytes per second, which `tc` rounds up.
        ("umax 1000 dmax 3ms rate 8bit", [333_334, 3 * ms, 1], ""),
        // 125 bytes in 1 ms are exactly the rate, so the first slope need not be steeper than the
        // second.
        ("umax 125 dmax 1ms rate 1mbit", [0, 0, 125_000], ""),
        // 126 bytes in 1 ms are one byte more than the rate allows, so the first slope is steeper
        // than the second.
        ("umax 126 dmax 1ms rate 1mbit", [126_000, ms, 125_000], ""),
        // At the rate of 125,000 bytes per second, 1,500 bytes take 12 ms, so nothing has to be
        // sent in the first 88 of the 100 ms.
        ("umax 1500 dmax 100ms rate 1mbit", [0, 88 * ms, 125_000], ""),
        // In 32 bits, 5,000 times a million overflows to 705,032,704; divided by the rate of
        // 125,000 bytes per second, that gives 5,640 us.
        ("umax 5000 dmax 100ms rate 1mbit", [0, 94_360 * us, 125_000], ""),
        ("dmax 10ms rate 8kbit", [0, 10 * ms, 1_000], ""),
        ("umax 0 dmax 10ms rate 8kbit", [0, 10 * ms, 1_000], ""),
        ("umax 1 dmax 1us rate 8kbit", [1_000_000, us, 1_000], ""),
    ] {
        let read = value(&curve, &format!("opt {typed}"));
        assert_eq!(read, list(&means), "{typed}");
        if !text.is_empty() {
            assert_eq!(exact(&curve, &read), format!("opt {text}"));
        }
        let again = exact(&curve, &read);
        assert_eq!(value(&curve, &again), read, "{again}");
    }
    assert_eq!(exact(&curve, &list(&[1_000, 5 * ms, 2_000])), "opt m1 8kbit d 5ms m2 16kbit");
    assert_eq!(
        shown(&curve, &list(&[1_000, 5 * ms, 2_000]), false),
        "opt m1 8Kbit d 5ms m2 16Kbit "
    );
    // After the last word of a service curve, another option may follow.
    let found = read(&curve, "opt m2 8kbit m1 16kbit");
    assert_eq!(found, Ok((list(&[0, 0, 1_000]), "m1 16kbit".into())));
    let found = read(&curve, "opt rate 8kbit umax 1");
    assert_eq!(found, Ok((list(&[0, 0, 1_000]), "umax 1".into())));
}

#[test]
fn curves_that_are_none_are_refused() {
    let curve = opt(Unit::Curve).within(0, 4_294_967_295_000);
    let expected = format!("expected {}", curve.expected());
    let burst = "expected `dmax TIME` after it, at least one microsecond";
    for (typed, word, why) in [
        ("", "", expected.as_str()),
        ("next 5", "next", &expected),
        ("m1 8kbit d 5ms", "", &expected),
        ("m1 8kbit rate 8kbit", "", &expected),
        ("umax 5 m2 8kbit", "", &expected),
        ("rate 0", "", &expected),
        ("umax 5 rate 8kbit", "umax", burst),
        ("umax 5 dmax 0 rate 8kbit", "umax", burst),
        ("umax 5 dmax 999ns rate 8kbit", "umax", burst),
        ("m1 x", "x", "expected m1 RATE, at most 4294967295000"),
        ("m1", "", "expected m1 RATE, at most 4294967295000"),
        ("d 5h m2 1", "5h", "expected d TIME, at most 4294967295000"),
        ("umax 5q", "5q", "expected umax SIZE, at most 4294967295000"),
        ("m2 4294967295001bps", "4294967295001bps", "expected m2 RATE, at most 4294967295000"),
    ] {
        let error = read(&curve, &format!("opt {typed}")).expect_err(typed);
        assert_eq!(error, ConfigError::new(HERE, "opt", word, why), "{typed}");
    }
}
