//! Tests the conversion of words to numbers and of numbers to words: `tc(8)`, section "UNITS".

use super::*;
use crate::base::{Handle, Rate};

const KI: u64 = 1_024;

#[test]
fn sizes_are_bytes_and_powers_of_1024() {
    for (word, bytes) in [
        ("0", 0),
        ("1514", 1_514),
        ("1514b", 1_514),
        ("15k", 15 * KI),
        ("15kb", 15 * KI),
        ("15KB", 15 * KI),
        ("3m", 3 * KI * KI),
        ("3mb", 3 * KI * KI),
        ("3g", 3 * KI * KI * KI),
        ("3gb", 3 * KI * KI * KI),
        ("8kbit", KI),
        ("8mbit", KI * KI),
        ("8gbit", KI * KI * KI),
        ("9kbit", 9 * KI / 8),
        ("1.5k", 1_536),
        (".5k", 512),
        ("5.k", 5 * KI),
        ("+5k", 5 * KI),
        ("0.9", 0),
        ("1e3", 1_000),
        ("1E3", 1_000),
        ("1e+3", 1_000),
        ("1e3k", 1_000 * KI),
        ("15e-1k", 1_536),
        ("1.5e1", 15),
        ("12e10", 120_000_000_000),
        ("0x1f", 31),
        ("0X1Fk", 31 * KI),
        ("0x10m", 16 * KI * KI),
        // 2^64 - 2,048 is the largest number below 2^64 that a 64-bit float can store.
        ("18446744073709549568", u64::MAX - 2_047),
    ] {
        assert_eq!(parse_size(word), Some(bytes), "{word}");
        assert_eq!(word.parse(), Ok(Size(bytes)));
    }
}

#[test]
fn what_is_no_size_is_refused() {
    for word in [
        "",
        "k",
        "+",
        ".",
        ".k",
        "x",
        "-1",
        "--1",
        "++1",
        "1q",
        "1kk",
        "1 k",
        "1e",
        "1e+",
        "1e-",
        "1ek",
        "1e-k",
        "e3",
        "0x",
        "0xg",
        "0x100000000",
        "1.2.3",
        "inf",
        "nan",
        "18446744073709551616",
        "1e30",
    ] {
        assert_eq!(parse_size(word), None, "{word}");
        let error = word.parse::<Size>().expect_err(word).to_string();
        let why = "expected a size such as 1514 or 15kb";
        let told = if word.is_empty() {
            format!("size: the text is empty: {why}")
        } else {
            format!("size: illegal {word:?}: {why}")
        };
        assert_eq!(error, told);
    }
}

#[test]
fn times_are_nanoseconds() {
    for (word, ns) in [
        ("2s", 2_000_000_000),
        ("2sec", 2_000_000_000),
        ("2secs", 2_000_000_000),
        ("2ms", 2_000_000),
        ("2msec", 2_000_000),
        ("2msecs", 2_000_000),
        ("2us", 2_000),
        ("2usec", 2_000),
        ("2usecs", 2_000),
        ("2ns", 2),
        ("2nsec", 2),
        ("2NSECS", 2),
        ("1.5ms", 1_500_000),
        ("0.4ns", 0),
    ] {
        assert_eq!(parse_time(word, 1_000), Some(ns), "{word}");
        assert_eq!(word.parse(), Ok(Time(ns)));
    }
    // The second argument of `parse_time` is the unit, in nanoseconds, of a number without a
    // suffix.
    assert_eq!(parse_time("40", 1_000), Some(40_000));
    assert_eq!(parse_time("40", 1), Some(40));
    assert_eq!("40".parse(), Ok(Time(40_000)));
    for word in ["", "5h", "5m", "-5ms", "ms"] {
        assert_eq!(parse_time(word, 1_000), None, "{word}");
    }
    let error = "5h".parse::<Time>().expect_err("no unit").to_string();
    assert_eq!(error, "time: illegal \"5h\": expected a time such as 10ms or 40us");
}

#[test]
fn rates_are_bytes_per_second() {
    for (word, rate) in [
        ("8", 1),
        ("15", 1),
        ("16", 2),
        ("8bit", 1),
        ("8kbit", 1_000),
        ("8mbit", 1_000_000),
        ("8gbit", 1_000_000_000),
        ("8tbit", 1_000_000_000_000),
        ("8kibit", KI),
        ("8mibit", KI * KI),
        ("8gibit", KI * KI * KI),
        ("8tibit", KI * KI * KI * KI),
        ("3bps", 3),
        ("3kbps", 3_000),
        ("3mbps", 3_000_000),
        ("3gbps", 3_000_000_000),
        ("3tbps", 3_000_000_000_000),
        ("3kibps", 3 * KI),
        ("3mibps", 3 * KI * KI),
        ("3gibps", 3 * KI * KI * KI),
        ("3tibps", 3 * KI * KI * KI * KI),
        ("3TiBps", 3 * KI * KI * KI * KI),
        ("0", 0),
        ("0bit", 0),
        ("0.0mbit", 0),
        ("1.5bps", 1),
    ] {
        assert_eq!(word.parse(), Ok(Rate::bytes_per_second(rate)), "{word}");
    }
    // A rate between zero and one byte per second is an error, because zero often means "no limit".
    for word in ["7", "7bit", "0.9bps", "1e-9gbit", "x", "8q", "-8"] {
        let error = word.parse::<Rate>().expect_err(word);
        assert_eq!((error.at.as_str(), error.value.as_str()), ("rate", word));
        assert_eq!(error.why, "expected a rate such as 8mbit or 1mbps (bytes)");
    }
    assert_eq!(
        "".parse::<Rate>().expect_err("no rate").to_string(),
        "rate: the text is empty: expected a rate such as 8mbit or 1mbps (bytes)"
    );
    for (rate, word) in [
        (0, "0bps"),
        (1, "1bps"),
        (124, "124bps"),
        (125, "1kbit"),
        (126, "126bps"),
        (1_000, "8kbit"),
        (124_875, "999kbit"),
        (125_000, "1mbit"),
        (125_125, "1001kbit"),
        (125_000_000, "1gbit"),
        (125_125_000, "1001mbit"),
        (250_000_000, "2gbit"),
        (125_000_000_000, "1000gbit"),
        (u64::MAX, "18446744073709551615bps"),
    ] {
        assert_eq!(Rate::bytes_per_second(rate).exact(), word);
        if rate < u64::MAX {
            assert_eq!(word.parse(), Ok(Rate::bytes_per_second(rate)));
        }
    }
}

/// As in `tc`, a rate in bits per second is divided by 1,000 again and again, as long as the
/// quotient is a whole number of thousands or at least a million. Digits that this cuts off are
/// lost.
#[test]
fn rates_are_printed_as_tc_prints_them() {
    for (bytes, text) in [
        (0, "0bit"),
        (1, "8bit"),
        (124, "992bit"),
        (125, "1Kbit"),
        (126, "1008bit"),
        (124_999, "999992bit"),
        (125_000, "1Mbit"),
        (125_001, "1Mbit"),
        (125_125, "1001Kbit"),
        (154_321, "1234Kbit"),
        (125_000_000, "1Gbit"),
        (154_320_987, "1234Mbit"),
        (125_000_000_000, "1Tbit"),
        (125_000_000_000_000, "1000Tbit"),
        (u64::MAX, "147573952Tbit"),
    ] {
        assert_eq!(Rate::bytes_per_second(bytes).to_string(), text, "{bytes}");
    }
}

#[test]
fn counts_are_read_as_c_reads_them() {
    for (word, number) in [
        ("0", 0),
        ("9", 9),
        ("10", 10),
        ("+10", 10),
        ("010", 8),
        ("017", 15),
        ("00", 0),
        ("0x10", 16),
        ("0XfF", 255),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(parse_count(word), Some(number), "{word}");
    }
    for word in [
        "",
        "+",
        "-1",
        "++1",
        "+-1",
        "0+1",
        "0x+1",
        "08",
        "018",
        "0x",
        "0xg",
        "1k",
        "1.0",
        "18446744073709551616",
    ] {
        assert_eq!(parse_count(word), None, "{word}");
    }
}

#[test]
fn percentages_are_rounded_parts_of_32_bits() {
    let all = u64::from(u32::MAX);
    for (word, part) in [
        ("0", 0),
        // Half of 2^32 - 1 is 2,147,483,647.5, rounded to the nearest whole number.
        ("50", 2_147_483_648),
        ("10", 429_496_730),
        ("100", all),
    ] {
        assert_eq!(parse_percent(word), Some(part), "{word}");
        assert_eq!(exact_percent(part), word);
    }
    for word in ["100.1", "-0.001", "x", "", "nan"] {
        assert_eq!(parse_percent(word), None, "{word}");
    }
    assert_shortest(exact_percent, parse_percent);
}

/// The numbers are those that iproute2's `tc` sends to the kernel for `red` and `choke`, except for
/// the probability 1, for which it sends 0.
#[test]
fn probabilities_are_whole_parts_of_2_to_the_32() {
    let all = u64::from(u32::MAX);
    for (word, parts) in [
        ("0", 0),
        ("0.02", 85_899_345),
        ("0.1", 429_496_729),
        ("0.11", 472_446_402),
        ("0.5", 2_147_483_648),
        ("1", all),
    ] {
        assert_eq!(parse_probability(word), Some(parts), "{word}");
        assert_eq!(exact_probability(parts), word);
    }
    assert_eq!(parse_probability("0.9999999999"), Some(all));
    for word in ["1.001", "-0.001", "x", "", "nan"] {
        assert_eq!(parse_probability(word), None, "{word}");
    }
    assert_shortest(exact_probability, parse_probability);
}

/// Asserts that `exact` prints the shortest word that `parse` reads back as the same number.
fn assert_shortest(exact: fn(u64) -> String, parse: fn(&str) -> Option<u64>) {
    let all = u64::from(u32::MAX);
    for part in [1, 2, 12_345, all / 3, all - 1] {
        let word = exact(part);
        assert_eq!(parse(&word), Some(part), "{word}");
        let shorter = &word[..word.len() - 1];
        assert_ne!(parse(shorter), Some(part), "{shorter} would do");
    }
}

/// As in `print_size` of iproute2, a size from 2^20 bytes on is printed in megabytes if it differs
/// from a whole number of megabytes by less than 1,024 bytes. Otherwise, a size from 1,024 bytes on
/// is printed in kilobytes if it differs from a whole number of kilobytes by less than 16 bytes.
#[test]
fn sizes_are_printed_as_tc_prints_them() {
    let mi = KI * KI;
    for (bytes, text) in [
        (0, "0b"),
        (1_023, "1023b"),
        (1_024, "1Kb"),
        (1_039, "1Kb"),
        (1_040, "1040b"),
        (2_032, "2032b"),
        (2_033, "2Kb"),
        (2_063, "2Kb"),
        (2_064, "2064b"),
        (15_360, "15Kb"),
        (mi - 16, "1048560b"),
        (mi - 15, "1024Kb"),
        (mi - 1, "1024Kb"),
        (mi, "1Mb"),
        (mi + 1_023, "1Mb"),
        (mi + 1_024, "1025Kb"),
        (2 * mi - 1_024, "2047Kb"),
        (2 * mi - 1_023, "2Mb"),
        (mi + mi / 2, "1536Kb"),
        (mi + mi / 2 + 16, "1572880b"),
        (3 * mi, "3Mb"),
        // 2^64 - 1,025 bytes are more than a kilobyte short of a whole number of megabytes, so the
        // size is printed in kilobytes. 2^64 - 1 bytes are only one byte short, so megabytes are
        // printed.
        (u64::MAX - 1_024, "18014398509481983Kb"),
        (u64::MAX, "17592186044416Mb"),
    ] {
        assert_eq!(Size(bytes).to_string(), text);
    }
    for (bytes, word) in [
        (0, "0b"),
        (1, "1b"),
        (1_023, "1023b"),
        (1_024, "1kb"),
        (1_025, "1025b"),
        (1_536, "1536b"),
        (2_048, "2kb"),
        (mi - KI, "1023kb"),
        (mi, "1mb"),
        (mi + KI, "1025kb"),
        (3 * mi, "3mb"),
        (4 * mi, "4mb"),
    ] {
        assert_eq!(exact_size(bytes), word);
        assert_eq!(parse_size(word), Some(bytes));
    }
}

/// A time is printed as by C's `%.3g`, in the largest unit of which the time has at least one.
#[test]
fn times_are_printed_as_tc_prints_them() {
    let s = 1_000_000_000;
    for (ns, text) in [
        (0, "0ns"),
        (1, "1ns"),
        (999, "999ns"),
        (1_000, "1us"),
        (1_001, "1us"),
        (1_230, "1.23us"),
        (1_499, "1.5us"),
        (12_340, "12.3us"),
        (12_000, "12us"),
        (100_000, "100us"),
        (123_400, "123us"),
        (999_400, "999us"),
        (999_600, "1e+03us"),
        (999_999, "1e+03us"),
        (1_000_000, "1ms"),
        (1_050_000, "1.05ms"),
        (20_000_000, "20ms"),
        (999_999_999, "1e+03ms"),
        (s, "1s"),
        (10 * s, "10s"),
        (100 * s, "100s"),
        (1_000 * s, "1e+03s"),
        (1_234 * s, "1.23e+03s"),
        (12_000 * s, "1.2e+04s"),
        (u64::MAX, "1.84e+10s"),
    ] {
        assert_eq!(Time(ns).to_string(), text, "{ns}");
    }
    for (ns, word) in [
        (0, "0us"),
        (1, "1ns"),
        (999, "999ns"),
        (1_000, "1us"),
        (1_001, "1001ns"),
        (1_500_000, "1500us"),
        (1_000_000, "1ms"),
        (1_001_000_000, "1001ms"),
        (s, "1s"),
        (2 * s, "2s"),
        (3 * s, "3s"),
    ] {
        assert_eq!(exact_time(ns), word);
        assert_eq!(parse_time(word, 7), Some(ns));
    }
}

#[test]
fn handles_are_hexadecimal() {
    for (word, major, minor) in [
        ("1:", 1, 0),
        ("1:20", 1, 0x20),
        ("ffff:ffff", 0xffff, 0xffff),
        ("a:F", 10, 15),
        ("0:1", 0, 1),
        ("1:0", 1, 0),
    ] {
        assert_eq!(word.parse(), Ok(Handle::new(major, minor)), "{word}");
    }
    for word in ["1", ":", ":1", "1:2:3", "10000:", "1:10000", "g:", "1:g", "+1:", "1:+1", "0x1:"] {
        let error = word.parse::<Handle>().expect_err(word);
        let why = "expected a handle such as 1: or 1:20, hexadecimal, 1 to ffff";
        assert_eq!((error.at.as_str(), error.why.as_str()), ("handle", why));
    }
    let empty = "".parse::<Handle>().expect_err("no handle").to_string();
    assert!(empty.starts_with("handle: the text is empty: expected a handle "), "{empty}");
    for (word, minor) in [("20", 0x20), (":20", 0x20), ("0x20", 0x20), (":0xff", 0xff), ("0", 0)] {
        assert_eq!(Handle::parse_minor(word), Some(minor), "{word}");
    }
    for word in ["", "1:2", "::1", "10000", "+1", "g"] {
        assert_eq!(Handle::parse_minor(word), None, "{word}");
    }
    assert_eq!(Handle::new(0x1f, 0).to_string(), "1f:");
    assert_eq!(Handle::new(0x1f, 0x2e).to_string(), "1f:2e");
    assert_eq!(Handle::new(3, 4).qdisc(), Handle::new(3, 0));
    assert_eq!(Handle::from_priority(0x1234_5678), Handle::new(0x1234, 0x5678));
}
