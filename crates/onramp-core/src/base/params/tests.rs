//! Tests which words each unit of options reads and refuses, and what it writes.

mod curves;
mod described;

use super::*;
use crate::base::show::{Out, Style};

const HERE: &str = "here";

/// Creates an option with the name `opt`.
const fn opt(unit: Unit) -> Param {
    Param::new("opt", unit, Default::Off, "what it does")
}

/// Parses `typed`, an option's name and its value. Returns the value and the remaining words.
fn read(param: &Param, typed: &str) -> Result<(Value, String), ConfigError> {
    let mut words = typed.split_ascii_whitespace();
    let name = words.next().expect("a name");
    let value = param.parse(HERE, name, &mut words)?;
    Ok((value, words.collect::<Vec<_>>().join(" ")))
}

fn value(param: &Param, typed: &str) -> Value {
    match read(param, typed) {
        Ok((value, left)) if left.is_empty() => value,
        other => panic!("{typed}: {other:?}"),
    }
}

fn n(number: u64) -> Value {
    Value::Number(number)
}

fn list(numbers: &[u64]) -> Value {
    Value::List(numbers.to_vec())
}

fn exact(param: &Param, value: &Value) -> String {
    let mut line = String::new();
    param.write_exact(&mut line, value);
    line.strip_prefix(' ').expect("a space before it").to_owned()
}

fn shown(param: &Param, value: &Value, json: bool) -> String {
    let mut out = Out::new(Style { json, ..Style::default() });
    out.open(None);
    param.show(value, &mut out);
    out.close();
    let text = out.finish();
    match json {
        false => text,
        true => {
            let object = text.strip_prefix("[{").and_then(|text| text.strip_suffix("}]\n"));
            object.expect("an object in an array").to_owned()
        }
    }
}

const WORDS: Unit = Unit::Words(&["no", "yes", "ask"]);
const NAMES: Unit = Unit::Choice(&["slow", "fast", "TAI"]);
const WHENS: Unit = Unit::Named(&[("lan", 1_000_000), ("satellite", 1_000_000_000)]);
const RATES: Unit = Unit::RateOr("unlimited");
const ROW: Unit = Unit::Row(1, &[Unit::Usecs, Unit::Percent, Unit::Count]);
const FORMS: Unit = Unit::Forms(&[
    Form { word: "", must: 1, units: &[Unit::Usecs, Unit::Rate] },
    Form { word: "state", must: 2, units: &[Unit::Percent, Unit::Count, Unit::Count] },
]);
const NAMED_FORMS: Unit = Unit::Forms(&[
    Form { word: "random", must: 1, units: &[Unit::Percent] },
    Form { word: "model", must: 1, units: &[Unit::Count, Unit::Count] },
]);

/// Returns the stored value of a probability given in millionths: `of_a_million` / 1,000,000 times
/// 2^32 - 1, rounded to the nearest.
fn part(of_a_million: u64) -> u64 {
    (of_a_million * U32_MAX + 500_000) / 1_000_000
}

/// One case: the unit; the words that are typed; the value that these words mean; the value written
/// by `write_exact`; the value in the text of a listing; the value in the JSON of a listing.
type Case = (Unit, &'static str, Value, &'static str, &'static str, &'static str);

fn cases() -> Vec<Case> {
    let us = 1_000;
    vec![
        (Unit::Count, "0x1f", n(31), "31", "31", "31"),
        (Unit::Packets, "017", n(15), "15", "15p", "15"),
        (Unit::ScaledPackets, "1k", n(1_024), "1024", "1024p", "1024"),
        (Unit::Bytes, "15360", n(15_360), "15360", "15Kb", "15360"),
        (Unit::Size, "15k", n(15_360), "15kb", "15Kb", "15360"),
        (Unit::Size, "0", n(0), "0b", "0b", "0"),
        (Unit::Size, "1", n(1), "1b", "1b", "1"),
        (Unit::Size, "3m", n(3 << 20), "3mb", "3Mb", "3145728"),
        (Unit::Burst, "15k/8", n(15_360), "15kb", "15Kb", "15360"),
        (Unit::Burst, "15k", n(15_360), "15kb", "15Kb", "15360"),
        (Unit::Burst, "1600/2147483648", n(1_600), "1600b", "1600b", "1600"),
        (Unit::Rate, "8mbit", n(1_000_000), "8mbit", "8Mbit", "1000000"),
        (Unit::Rate, "0", n(0), "0bps", "0bit", "0"),
        (Unit::Rate, "8kbit", n(1_000), "8kbit", "8Kbit", "1000"),
        (Unit::Rate, "16gbit", n(2_000_000_000), "16gbit", "16Gbit", "2000000000"),
        (Unit::Rate, "8001", n(1_000), "8kbit", "8Kbit", "1000"),
        (Unit::Rate, "123bps", n(123), "123bps", "984bit", "123"),
        (RATES, "8mbit", n(1_000_000), "8mbit", "8Mbit", "1000000"),
        (Unit::Usecs, "40", n(40 * us), "40us", "40us", "40"),
        (Unit::Usecs, "0", n(0), "0us", "0us", "0"),
        (Unit::Usecs, "1500ns", n(1_500), "1500ns", "1.5us", "1"),
        (Unit::Usecs, "3s", n(3_000_000 * us), "3s", "3s", "3000000"),
        (Unit::Usecs, "7ms", n(7_000 * us), "7ms", "7ms", "7000"),
        (Unit::Nsecs, "40", n(40), "40ns", "40ns", "40"),
        (Unit::Nsecs, "0", n(0), "0us", "0ns", "0"),
        (Unit::Nsecs, "5us", n(5 * us), "5us", "5us", "5000"),
        (WHENS, "2ms", n(2_000 * us), "2ms", "2ms", "2000"),
        (Unit::List(3), "1 02 0x3", list(&[1, 2, 3]), "1 2 3", "1 2 3", "[1,2,3]"),
        (Unit::Many(3), "7", list(&[7]), "7", "7", "[7]"),
        (Unit::Many(3), "7 8 9", list(&[7, 8, 9]), "7 8 9", "7 8 9", "[7,8,9]"),
        (ROW, "5", list(&[5 * us]), "5us", "5us", "[5000]"),
        (
            ROW,
            "5ms 5% 6",
            list(&[5_000 * us, part(50_000), 6]),
            "5ms 5% 6",
            "5ms 5% 6",
            "[5000000,214748365,6]",
        ),
    ]
}

/// Cases of further units: minor numbers, fractions, names, and units of several values.
fn other_cases() -> Vec<Case> {
    let us = 1_000;
    vec![
        (Unit::Minor, "20", n(0x20), "20", "0x20", "32"),
        (Unit::Minor, ":1f", n(0x1f), "1f", "0x1f", "31"),
        (Unit::Masked, "0x1/0x3", n(0x301), "0x1/0x3", "0x1/0x3", "769"),
        (Unit::Masked, "255/16", n(0x10FF), "0xff/0x10", "0xff/0x10", "4351"),
        (Unit::Fraction, "0.02", n(85_899_345), "0.02", "0.02", "85899345"),
        (Unit::Fraction, "1", n(U32_MAX), "1", "1", "4294967295"),
        (Unit::Percent, "5%", n(part(50_000)), "5%", "5%", "214748365"),
        (Unit::Percent, "12.5", n(part(125_000)), "12.5%", "12.5%", "536870912"),
        (Unit::Percent, "100%", n(U32_MAX), "100%", "100%", "4294967295"),
        (Unit::Percent, "0", n(0), "0%", "0%", "0"),
        (NAMES, "slow", n(0), "slow", "slow", "\"slow\""),
        (NAMES, "fast", n(1), "fast", "fast", "\"fast\""),
        (NAMES, "tAi", n(2), "TAI", "TAI", "\"TAI\""),
        (Unit::Signed, "-7", n((1 << 32) - 7), "-7", "-7", "-7"),
        (Unit::Signed, "+7", n(7), "7", "7", "7"),
        (Unit::Signed, "-2147483648", n(1 << 31), "-2147483648", "-2147483648", "-2147483648"),
        (Unit::Signed, "2147483647", n((1 << 31) - 1), "2147483647", "2147483647", "2147483647"),
        (Unit::Signed, "-0x10", n((1 << 32) - 16), "-16", "-16", "-16"),
        (FORMS, "5us 8kbit", list(&[0, 5 * us, 1_000]), "5us 8kbit", "5us 8Kbit", "[0,5000,1000]"),
        (FORMS, "5", list(&[0, 5 * us]), "5us", "5us", "[0,5000]"),
        (
            FORMS,
            "state 100% 2",
            list(&[1, U32_MAX, 2]),
            "state 100% 2",
            "state 100% 2",
            "[1,4294967295,2]",
        ),
        (NAMED_FORMS, "0%", list(&[0, 0]), "0%", "0%", "[0,0]"),
        (NAMED_FORMS, "random 0%", list(&[0, 0]), "0%", "0%", "[0,0]"),
        (NAMED_FORMS, "model 1 2", list(&[1, 1, 2]), "model 1 2", "model 1 2", "[1,1,2]"),
        (Unit::Ranges(2), "2@1", list(&[(2 << 16) + 1]), "2@1", "2@1", "[131073]"),
        (
            Unit::Ranges(2),
            "65535@65535 0@0",
            list(&[U32_MAX, 0]),
            "65535@65535 0@0",
            "65535@65535 0@0",
            "[4294967295,0]",
        ),
        // `Unit::Gain` counts 256ths: 0.16 times 256 is 40.96, rounded down to 40.
        (Unit::Gain, "0.16", n(40), "0.15625", "0.15625", "40"),
        (Unit::Gain, "1", n(256), "1", "1", "256"),
        (Unit::TimeOrPackets, "1ms", n(2_000_000), "1ms", "1ms", "2000000"),
        (Unit::TimeOrPackets, "1", n(2_000), "1us", "1us", "2000"),
        (Unit::TimeOrPackets, "1500ns", n(3_000), "1500ns", "1.5us", "3000"),
        (Unit::TimeOrPackets, "4294967000ns", n(8_589_934_000), "4294967us", "4.29s", "8589934000"),
        (Unit::TimeOrPackets, "1p", n(3), "1p", "1p", "3"),
        (Unit::TimeOrPackets, "5packets", n(11), "5p", "5p", "11"),
        (Unit::TimeOrPackets, "5pkt", n(11), "5p", "5p", "11"),
        (
            Unit::TimeOrPackets,
            "4294967295p",
            n(8_589_934_591),
            "4294967295p",
            "4294967295p",
            "8589934591",
        ),
    ]
}

#[test]
fn each_unit_reads_what_tc_reads_and_writes_what_it_writes() {
    for (unit, typed, means, again, text, json) in cases().into_iter().chain(other_cases()) {
        let param = match unit {
            // A value of this unit has 33 bits: 32 for the nanoseconds or packets, and one that
            // says which of the two it is.
            Unit::TimeOrPackets => opt(unit).within(0, u64::MAX),
            _ => opt(unit),
        };
        assert_eq!(value(&param, &format!("opt {typed}")), means, "{unit:?} {typed}");
        assert_eq!(exact(&param, &means), format!("opt {again}"), "{unit:?} {typed}");
        assert_eq!(value(&param, &format!("opt {again}")), means, "{unit:?} {again}");
        assert_eq!(shown(&param, &means, false), format!("opt {text} "), "{unit:?} {typed}");
        assert_eq!(shown(&param, &means, true), format!("\"opt\":{json}"), "{unit:?} {typed}");
    }
}

/// An option may consist of one of several words and take no value; and some words stand for an
/// option together with its value.
/// `tc` reads some options as decimal numbers whatever they begin with, and others as C does.
#[test]
fn some_numbers_are_decimal_whatever_they_begin_with() {
    let read = |unit, word| {
        let param = Param::new("x", unit, Default::Off, "");
        let number = |param: &Param| read(param, &format!("x {word}")).ok().map(|(value, _)| value);
        (number(&param), number(&param.decimal()))
    };
    assert_eq!(read(Unit::Count, "010"), (Some(n(8)), Some(n(10))));
    assert_eq!(read(Unit::Count, "0"), (Some(n(0)), Some(n(0))));
    assert_eq!(read(Unit::Count, "000"), (Some(n(0)), Some(n(0))));
    assert_eq!(read(Unit::Count, "09"), (None, Some(n(9))));
    assert_eq!(read(Unit::Count, "0x10"), (Some(n(16)), None));
    assert_eq!(read(Unit::Signed, "-010"), (Some(n((1 << 32) - 8)), Some(n((1 << 32) - 10))));
}

#[test]
fn words_take_no_value() {
    for (place, word) in [(0, "no"), (1, "yes"), (2, "ask")] {
        let param = opt(WORDS);
        assert_eq!(read(&param, &format!("{word} 5")), Ok((n(place), "5".into())));
        assert_eq!(exact(&param, &n(place)), word);
        assert_eq!(shown(&param, &n(place), false), format!("{word} "));
        assert_eq!(shown(&param, &n(place), true), "\"opt\":true");
        assert_eq!(param.word(&n(place)), word);
        assert!(param.is_named(word) && !param.is_named("opt"));
    }
    assert_eq!(read(&opt(WHENS), "lan 5"), Ok((n(1_000_000), "5".into())));
    assert_eq!(read(&opt(WHENS), "satellite"), Ok((n(1_000_000_000), String::new())));
    assert_eq!(read(&opt(RATES), "unlimited 5"), Ok((n(0), "5".into())));
    assert_eq!(opt(NAMES).word(&n(1)), "fast");
    assert_eq!(opt(NAMES).word(&n(3)), "opt", "there is no fourth");
    assert_eq!(opt(Unit::Count).word(&n(1)), "opt");
}

/// Wrong input in place of a value, and which program refuses it: the unit, the words typed, the
/// word that is wrong (`-` if a word is missing), and the fault.
const REFUSED: &[(Unit, &str, &str, Fault)] = &[
    (Unit::Count, "", "-", Fault::Argument),
    (Unit::Count, "x", "x", Fault::Usage),
    (Unit::Count, "1k", "1k", Fault::Usage),
    (Unit::Count, "4294967296", "4294967296", Fault::Usage),
    (Unit::Packets, "5p", "5p", Fault::Usage),
    (Unit::ScaledPackets, "-1", "-1", Fault::Usage),
    (Unit::Size, "4g", "4g", Fault::Usage),
    (Unit::Burst, "15k/7", "15k/7", Fault::Usage),
    (Unit::Burst, "15k/0", "15k/0", Fault::Usage),
    (Unit::Burst, "15k/4294967296", "15k/4294967296", Fault::Usage),
    (Unit::Burst, "x/8", "x/8", Fault::Usage),
    (Unit::Rate, "7bit", "7bit", Fault::Usage),
    (Unit::Rate, "8000000000000001bps", "8000000000000001bps", KERNEL),
    (RATES, "1000000000000001bps", "1000000000000001bps", KERNEL),
    (Unit::Usecs, "5h", "5h", Fault::Usage),
    (Unit::Usecs, "4294967296us", "4294967296us", KERNEL),
    (Unit::Nsecs, "4294967296", "4294967296", KERNEL),
    (Unit::List(3), "1 2", "-", Fault::Argument),
    (Unit::List(3), "1 2 x", "x", Fault::Usage),
    (Unit::Many(3), "", "-", Fault::Argument),
    (Unit::Many(3), "@", "@", Fault::Usage),
    (Unit::Many(3), "1 2x", "2x", Fault::Usage),
    (Unit::Many(3), "1 2 3 4", "4", Fault::Usage),
    (ROW, "", "-", Fault::Argument),
    (ROW, "x", "x", Fault::Usage),
    (Unit::Minor, "1:1", "1:1", Fault::Usage),
    (Unit::Minor, "10000", "10000", Fault::Usage),
    (Unit::Masked, "1", "1", Fault::Usage),
    (Unit::Masked, "1/256", "1/256", Fault::Usage),
    (Unit::Masked, "0x100/1", "0x100/1", Fault::Usage),
    (Unit::Fraction, "1.1", "1.1", Fault::Usage),
    (Unit::Fraction, "-0.1", "-0.1", Fault::Usage),
    (Unit::Percent, "101%", "101%", Fault::Usage),
    (Unit::Percent, "5%%", "5%%", Fault::Usage),
    (NAMES, "Slow", "Slow", Fault::Usage),
    (NAMES, "opt", "opt", Fault::Usage),
    (Unit::Signed, "-+7", "-+7", Fault::Usage),
    (Unit::Signed, "--7", "--7", Fault::Usage),
    (Unit::Signed, "-", "-", Fault::Usage),
    (Unit::Signed, "2147483648", "2147483648", Fault::Usage),
    (Unit::Signed, "-2147483649", "-2147483649", Fault::Usage),
    (FORMS, "", "-", Fault::Argument),
    (FORMS, "other", "other", Fault::Usage),
    (FORMS, "state", "-", Fault::Argument),
    (FORMS, "state 5% x", "x", Fault::Usage),
    (NAMED_FORMS, "random", "-", Fault::Argument),
    (Unit::Ranges(2), "", "-", Fault::Argument),
    (Unit::Ranges(2), "5", "5", Fault::Argument),
    (Unit::Ranges(2), "1@0 x@1", "x@1", Fault::Usage),
    (Unit::Ranges(2), "65536@0", "65536@0", Fault::Usage),
    (Unit::Ranges(2), "+1@0", "+1@0", Fault::Usage),
    (Unit::Ranges(2), "1@0 1@1 1@2", "-", Fault::Usage),
    (Unit::Gain, "x", "x", Fault::Usage),
    (Unit::Gain, "1k", "1k", Fault::Usage),
    (Unit::TimeOrPackets, "0", "0", Fault::Usage),
    (Unit::TimeOrPackets, "999ns", "999ns", Fault::Usage),
    (Unit::TimeOrPackets, "4294967001ns", "4294967001ns", Fault::Usage),
    (Unit::TimeOrPackets, "0p", "0p", Fault::Usage),
    (Unit::TimeOrPackets, "4294967296p", "4294967296p", Fault::Usage),
    (Unit::TimeOrPackets, "+5p", "+5p", Fault::Usage),
];

const KERNEL: Fault = Fault::Kernel(Errno::Invalid, None);

/// Whether the error for an option of this unit without a value says that the value is missing.
fn says_that_it_is_missing(unit: Unit) -> bool {
    !matches!(unit, Unit::Ranges(_))
}

#[test]
fn each_unit_refuses_what_tc_refuses() {
    for (unit, typed, word, fault) in REFUSED {
        let param = match unit {
            // Values of this unit have 33 bits, so the default range of 32 bits is too small.
            Unit::TimeOrPackets => opt(*unit).within(0, u64::MAX),
            _ => opt(*unit),
        };
        let error = read(&param, &format!("opt {typed}")).expect_err(typed);
        assert_eq!((error.at.as_str(), error.key.as_str()), (HERE, "opt"));
        let missing = *word == "-" && *typed != "-";
        assert_eq!(error.value, if missing { "" } else { word }, "{unit:?} {typed}");
        let before =
            if missing && says_that_it_is_missing(*unit) { "the value is missing: " } else { "" };
        let why = format!("{before}expected {}", param.expected());
        assert_eq!((error.why, error.fault), (why, *fault), "{unit:?} {typed}");
    }
}

/// An option that takes a varying number of values ends at the first word that is no such value.
#[test]
fn values_end_where_other_words_begin() {
    for (unit, typed, means, left) in [
        (Unit::Many(3), "1 2 next 3", list(&[1, 2]), "next 3"),
        (Unit::Many(3), "1 2 3 next", list(&[1, 2, 3]), "next"),
        (Unit::Many(3), "1 -2", list(&[1]), "-2"),
        (ROW, "5 next 6", list(&[5_000]), "next 6"),
        (ROW, "5 50% next", list(&[5_000, part(500_000)]), "next"),
        (ROW, "5 50% 7 8", list(&[5_000, part(500_000), 7]), "8"),
        (FORMS, "5 next", list(&[0, 5_000]), "next"),
        (FORMS, "state 0% 1 next", list(&[1, 0, 1]), "next"),
        (Unit::Ranges(2), "1@0 next", list(&[1 << 16]), "next"),
        (Unit::List(2), "1 2 3", list(&[1, 2]), "3"),
    ] {
        let found = read(&opt(unit), &format!("opt {typed}"));
        assert_eq!(found, Ok((means, left.to_owned())), "{unit:?} {typed}");
    }
}

/// A list whose numbers all have a default may be given without numbers. A word after the option's
/// name then begins the next option.
#[test]
fn a_list_with_a_default_may_be_bare() {
    let param = Param::new("opt", Unit::Many(3), Default::List(&[4, 5]), "");
    assert_eq!(read(&param, "opt"), Ok((list(&[]), String::new())));
    assert_eq!(read(&param, "opt next"), Ok((list(&[]), "next".into())));
    assert_eq!(read(&param, "opt 6"), Ok((list(&[6]), String::new())));
    assert_eq!(read(&param, "opt @").expect_err("no number").value, "@");
    let none = read(&opt(Unit::Many(3)), "opt next").expect_err("no default");
    assert_eq!(none.value, "next");
    let other = Param::new("opt", Unit::List(2), Default::List(&[4, 5]), "");
    assert_eq!(read(&other, "opt next").expect_err("it is of two").value, "next");
}

#[test]
fn bounds_are_those_of_the_table() {
    let within = opt(Unit::Count).within(10, 20).refused(Fault::Kernel(Errno::Range, Some("no")));
    for (word, fits) in [("9", false), ("10", true), ("20", true), ("21", false), ("0", false)] {
        let error = read(&within, &format!("opt {word}")).err().map(|error| error.fault);
        assert_eq!(error, (!fits).then_some(within.bounds), "{word}");
    }
    // If `tc` reads a unit into 32 bits, `tc` itself refuses a number that does not fit; the kernel
    // refuses other numbers that are out of range.
    let fault =
        |param: &Param, word: &str| read(param, &format!("opt {word}")).expect_err(word).fault;
    for unit in [Unit::Count, Unit::Packets, Unit::Bytes, Unit::ScaledPackets, Unit::Size] {
        let param = opt(unit).within(10, 20);
        assert_eq!(fault(&param, "4294967295"), KERNEL, "{unit:?}");
        assert_eq!(fault(&param, "4294967296"), Fault::Usage, "{unit:?}");
        assert_eq!(fault(&param, "8589934591"), Fault::Usage, "{unit:?}");
        assert_eq!(fault(&param, "x"), Fault::Usage, "{unit:?}");
    }
    for unit in [Unit::Nsecs, Unit::Usecs, Unit::Rate] {
        assert_eq!(fault(&opt(unit).within(10, 20), "99999999999"), KERNEL, "{unit:?}");
    }
    assert_eq!(fault(&opt(Unit::Minor).within(1, 2), "3"), KERNEL);
    let least = opt(Unit::Count).at_least(3);
    assert_eq!((least.min, least.max), (3, U32_MAX));
    assert_eq!(fault(&least, "2"), KERNEL);
    assert_eq!(value(&least, "opt 3"), n(3));
}

#[test]
fn what_is_out_of_range_may_be_brought_within() {
    let clamped = opt(Unit::Count).clamped(256, 1_024);
    for (word, number) in [("0", 256), ("255", 256), ("256", 256), ("1024", 1_024), ("1025", 1_024)]
    {
        assert_eq!(value(&clamped, &format!("opt {word}")), n(number), "{word}");
    }
    // For an option where zero means "not given", zero is not raised to the lower limit.
    let unsaid = clamped.zero_is_unsaid();
    for (word, number) in [("0", 0), ("1", 256), ("1025", 1_024)] {
        assert_eq!(value(&unsaid, &format!("opt {word}")), n(number), "{word}");
    }
    assert!(unsaid.is_unsaid(&n(0)) && !unsaid.is_unsaid(&n(1)));
    assert!(!opt(Unit::Count).is_unsaid(&n(0)));
    let least = opt(Unit::Count).at_least(10).zero_is_unsaid();
    assert_eq!(value(&least, "opt 0"), n(0));
    for word in ["1", "9"] {
        read(&least, &format!("opt {word}")).expect_err(word);
    }
    assert_eq!(value(&least, "opt 10"), n(10));
}

#[test]
fn options_are_known_by_their_names() {
    let param = opt(Unit::Count).or(&["other"]);
    for (word, long, short, all) in [
        ("opt", true, true, true),
        ("other", true, true, true),
        ("o", false, true, true),
        ("oth", false, false, true),
    ] {
        assert_eq!(param.is_named(word), long, "{word}");
        let param = opt(Unit::Count).or(&["other"]).short();
        assert_eq!(param.is_named(word), short, "{word}");
        let param = param.all_short();
        assert_eq!(param.is_named(word), all, "{word}");
        assert!(!param.is_named("opts") && !param.is_named("p"));
    }
    assert_eq!(param.names(), ["opt"]);
    assert_eq!(opt(WORDS).names(), ["no", "yes", "ask"]);
}

/// `check_units` refuses a number without a unit if `tc` would assume a unit for it.
#[test]
fn numbers_without_a_unit_are_found() {
    for (unit, guessed) in [
        (Unit::Rate, true),
        (RATES, true),
        (Unit::Usecs, true),
        (Unit::Nsecs, true),
        (WHENS, true),
        (ROW, true),
        (FORMS, true),
        (NAMED_FORMS, false),
        (Unit::Row(1, &[Unit::Count, Unit::Usecs]), false),
        (Unit::Count, false),
        (Unit::Size, false),
        (Unit::Percent, false),
        (Unit::Gain, false),
    ] {
        let param = opt(unit);
        let told = |words: &str| {
            let checked = param.check_units(HERE, "name", words.split(' '));
            checked.err().map(|error| error.to_string())
        };
        let why = format!(
            "here: illegal \"name\" \"1.5\": the unit is missing: expected {}",
            param.expected()
        );
        assert_eq!(told("1.5"), guessed.then_some(why), "{unit:?}");
        for word in ["0", "0.0", "5ms", "8mbit", "next"] {
            assert_eq!(told(word), None, "{unit:?} {word}");
        }
    }
    // In a row, each value needs its unit. Words behind the row do not.
    let row = opt(Unit::Row(1, &[Unit::Usecs, Unit::Usecs, Unit::Percent]));
    for (words, wrong) in [
        ("5ms 20", Some("20")),
        ("5ms 2.5 30", Some("2.5")),
        ("5 20ms", Some("5")),
        ("5ms 20ms 30", None),
        ("5ms 0 30", None),
        ("5ms next 20", None),
        ("5ms 20ms 30% 20", None),
    ] {
        let told = row.check_units(HERE, "name", words.split(' ')).err();
        let starts = |wrong| format!("here: illegal \"name\" \"{wrong}\": the unit is missing");
        match wrong {
            None => assert_eq!(told, None, "{words}"),
            Some(wrong) => {
                let told = told.expect(words).to_string();
                assert!(told.starts_with(&starts(wrong)), "{told}");
            }
        }
    }
}

#[test]
fn largest_values_are_those_of_the_unit() {
    for (unit, max) in [
        (Unit::Count, 4_294_967_295),
        (Unit::Usecs, 4_294_967_295_000),
        (Unit::Nsecs, 4_294_967_295),
        (Unit::Rate, 1_000_000_000_000_000),
        (RATES, 1_000_000_000_000_000),
        (ROW, 1_000_000_000_000_000),
        (FORMS, 1_000_000_000_000_000),
        (Unit::Minor, 65_535),
        (Unit::Masked, 65_535),
    ] {
        assert_eq!((opt(unit).min, opt(unit).max), (0, max), "{unit:?}");
    }
}

#[test]
fn some_options_are_not_always_shown() {
    use super::look::{as_number, flag, never, nonzero, null, unusual};
    let both =
        |param: &Param, value: &Value| [shown(param, value, false), shown(param, value, true)];
    let none = [String::new(), String::new()];
    let five = ["opt 5 ".to_owned(), "\"opt\":5".to_owned()];
    let count = |look| Param::new("opt", Unit::Count, Default::Number(7), "").shown(look);
    assert_eq!(both(&count(never), &n(5)), none);
    assert_eq!(both(&count(unusual), &n(5)), five);
    assert_eq!(both(&count(unusual), &n(7)), none);
    assert_eq!(both(&count(nonzero), &n(5)), five);
    assert_eq!(both(&count(nonzero), &n(0)), none);
    // The option's default is 5 times the size of the device's largest packet. `unusual` prints an
    // option unless its value is the default. It does not know that size and takes 0 for it, so it
    // must not print the value 0.
    let mtus = Param::new("opt", Unit::Count, Default::Mtus(5), "").shown(unusual);
    assert_eq!(both(&mtus, &n(5)), five);
    assert_eq!(both(&mtus, &n(0)), none);
    let other = count(|param, _, out| as_number(param, 5, out));
    assert_eq!(both(&other, &n(1)), five);
    let words = Unit::Words(&["off", "opt"]);
    let param = opt(words).shown(flag);
    assert_eq!(both(&param, &n(0)), none);
    assert_eq!(both(&param, &n(1)), ["opt ".to_owned(), "\"opt\":true".to_owned()]);
    let param = opt(words).shown(null);
    assert_eq!(both(&param, &n(0)), ["off ".to_owned(), "\"off\":null".to_owned()]);
}

/// A change keeps the options that it does not give, except options that `tc` always sends; these
/// go back to their default. An option that can only be given when the qdisc is added cannot be
/// given again.
#[test]
fn a_change_keeps_resets_or_refuses() {
    let fault = Fault::Kernel(Errno::NotSupported, Some("chosen"));
    let params = [
        opt(Unit::Count),
        Param::new("reset", Unit::Count, Default::Off, "").reset(),
        Param::new("once", Unit::Count, Default::Off, "").once(fault),
    ];
    let given = |numbers: [u64; 3]| numbers.map(|it| Some(n(it)).filter(|_| it > 0)).to_vec();
    let before = given([1, 2, 3]);
    let after = |then: [u64; 3]| merged(HERE, &params, Some(&before), given(then));
    assert_eq!(after([0, 0, 0]), Ok(given([1, 0, 3])));
    assert_eq!(after([4, 5, 0]), Ok(given([4, 5, 3])));
    let error = after([4, 0, 3]).expect_err("it is chosen once");
    let why = "it is fixed when the qdisc is added; add a new qdisc instead";
    assert_eq!(error, ConfigError { fault, ..ConfigError::new(HERE, "once", "", why) });
    assert_eq!(merged(HERE, &params, None, given([4, 0, 6])), Ok(given([4, 0, 6])));
}

#[test]
fn a_shorter_row_leaves_what_stood_behind() {
    let over = |new: &[u64], old: &[u64], unit| list(new).over(Some(list(old)), unit);
    assert_eq!(over(&[9], &[1, 2, 3], ROW), list(&[9, 2, 3]));
    assert_eq!(over(&[9, 8, 7], &[1, 2], ROW), list(&[9, 8, 7]));
    assert_eq!(over(&[9], &[1, 2, 3], Unit::Many(3)), list(&[9]));
    assert_eq!(list(&[9]).over(None, ROW), list(&[9]));
    assert_eq!(n(9).over(Some(n(1)), Unit::Count), n(9));
}

#[test]
fn a_table_names_all_its_options() {
    let params = [opt(Unit::Count), opt(WORDS)];
    assert_eq!(options("kind", &params), "kind takes opt, no, yes, ask");
    assert_eq!(options("kind", &[]), "kind takes no options");
}
