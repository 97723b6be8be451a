//! Tests how messages and references describe an option.

use super::*;

#[test]
fn messages_say_what_a_value_looks_like() {
    let time = "a time such as 10ms or 40us, 0us to 4294967295us";
    let rate = "a rate such as 8mbit or 1mbps (bytes)";
    for (param, expected) in [
        (opt(Unit::Count), "a whole number, 0 to 4294967295".to_owned()),
        (opt(Unit::Count).within(2, 7), "a whole number, 2 to 7".into()),
        (opt(Unit::Packets).within(2, 7), "a whole number, 2 to 7 packets".into()),
        (
            opt(Unit::ScaledPackets).within(2, 7),
            "a number such as 100 or 1k, 2 to 7 packets".into(),
        ),
        (opt(Unit::Bytes).within(2, 7), "a whole number, 2 to 7 bytes".into()),
        (opt(Unit::Size).within(2, 7), "a size such as 1514 or 15kb, 2 to 7 bytes".into()),
        (opt(Unit::Burst), "a size such as 1514 or 15kb, 0 to 4294967295 bytes".into()),
        (opt(Unit::Rate), format!("{rate}, 0bit, or 8bit to 8000Tbit")),
        (opt(RATES).at_least(5), format!("{rate}, 40bit to 8000Tbit")),
        (opt(Unit::Usecs), time.to_owned()),
        (opt(WHENS).within(0, 4_294_967_295_000), time.to_owned()),
        (opt(Unit::Nsecs), "a time such as 10us or 500ns, 0us to 4294967295ns".into()),
        (opt(Unit::List(3)).within(2, 7), "3 whole numbers, each 2 to 7".into()),
        (opt(Unit::Many(3)).within(2, 7), "whole numbers, at most 3, each 2 to 7".into()),
        (opt(ROW), "TIME [PERCENT] [NUMBER], times up to 1000000s".into()),
        (opt(Unit::Row(2, &[Unit::Count, Unit::Size, Unit::Minor])), "NUMBER SIZE [MINOR]".into()),
        (opt(FORMS), "TIME [RATE] | state PERCENT NUMBER [NUMBER]".into()),
        (opt(NAMED_FORMS), "[random] PERCENT | model NUMBER [NUMBER]".into()),
        (opt(Unit::Ranges(16)), "COUNT@FIRST such as 2@0, at most 16 of them".into()),
        (
            opt(Unit::Curve),
            "[m1 RATE d TIME] m2 RATE, rate RATE, or umax BYTES dmax TIME rate RATE".into(),
        ),
        (opt(Unit::Signed), "a whole number, -2147483648 to 2147483647".into()),
        (opt(Unit::Signed).within(0, 7), "a whole number, 0 to 7".into()),
        (opt(Unit::Signed).within(1, U32_MAX - 1), "a whole number, 1 to 4294967294".into()),
        (opt(Unit::Masked), "bits and their mask, such as 0x1/0x3, each 0 to 0xff".into()),
        (opt(Unit::Minor), "a minor number, hexadecimal, such as 20".into()),
        (opt(Unit::Fraction), "a probability such as 0.02, 0 to 1".into()),
        (opt(Unit::Percent), "a percentage such as 5%, 0% to 100%".into()),
        (opt(Unit::Gain).within(128, 8_192), "a number such as 0.16, 0.5 to 32".into()),
        (
            opt(Unit::TimeOrPackets),
            "a time such as 1ms, up to 4294967us, or packets such as 5p".into(),
        ),
        (opt(NAMES), "slow or fast or TAI".into()),
        (opt(NAMES).within(0, 1), "slow or fast".into()),
        (opt(WORDS), "no or yes or ask".into()),
    ] {
        assert_eq!(param.expected(), expected, "{:?}", param.unit);
    }
}

#[test]
fn a_reference_says_how_an_option_is_written() {
    for (unit, usage) in [
        (Unit::Count, "opt NUMBER"),
        (Unit::Packets, "opt PACKETS"),
        (Unit::ScaledPackets, "opt PACKETS"),
        (Unit::Bytes, "opt BYTES"),
        (Unit::Size, "opt SIZE"),
        (Unit::Burst, "opt SIZE"),
        (Unit::Rate, "opt RATE"),
        (Unit::Usecs, "opt TIME"),
        (Unit::Nsecs, "opt TIME"),
        (Unit::Minor, "opt MINOR"),
        (Unit::Masked, "opt VALUE/MASK"),
        (Unit::Fraction, "opt PROBABILITY"),
        (Unit::Percent, "opt PERCENT"),
        (Unit::Signed, "opt NUMBER"),
        (Unit::Curve, "opt CURVE"),
        (Unit::Gain, "opt NUMBER"),
        (Unit::TimeOrPackets, "opt TIME | PACKETS"),
        (WORDS, "no | yes | ask"),
        (NAMES, "opt slow | fast | TAI"),
        (Unit::List(16), "opt N1 .. N16"),
        (Unit::Many(16), "opt N1 N2 .."),
        (Unit::Ranges(16), "opt COUNT@FIRST .."),
        (FORMS, "opt TIME [RATE] | state PERCENT NUMBER [NUMBER]"),
        (Unit::Row(1, &[Unit::Count, Unit::Size]), "opt NUMBER [SIZE]"),
        (WHENS, "opt TIME | lan | satellite"),
        (RATES, "opt RATE | unlimited"),
    ] {
        assert_eq!(opt(unit).usage(), usage, "{unit:?}");
        assert_eq!(opt(unit).takes_value(), unit != WORDS, "{unit:?}");
        let words: &[&str] = match unit {
            NAMES => &["slow", "fast", "TAI"],
            FORMS => &["state"],
            Unit::Curve => &["m1", "m2", "d", "umax", "dmax", "rate"],
            _ => &[],
        };
        assert_eq!(opt(unit).words_behind(), words, "{unit:?}");
    }
    assert_eq!(opt(NAMED_FORMS).words_behind(), ["random", "model"]);
}

#[test]
fn a_reference_says_what_holds_without_an_option() {
    let param = |unit, default| Param::new("opt", unit, default, "what it does");
    for (param, without) in [
        (param(Unit::Count, Default::Needed), None),
        (param(WORDS, Default::Off), Some("no")),
        (param(Unit::Words(&["alone"]), Default::Off), Some("off")),
        (param(NAMES, Default::Off), Some("slow")),
        (param(Unit::Count, Default::Off), Some("off")),
        (param(Unit::Count, Default::Mtus(2)), Some("2 times the device's largest packet")),
        (param(Unit::Packets, Default::QueueLen), Some("the device's txqueuelen")),
        (
            param(Unit::Size, Default::QueueBytes),
            Some("txqueuelen times the device's largest packet"),
        ),
        (param(Unit::Packets, Default::Number(100)), Some("100p")),
        (param(Unit::Size, Default::Number(15_360)), Some("15Kb")),
        (param(WORDS, Default::Number(1)), Some("yes")),
        (param(NAMES, Default::Number(1)), Some("fast")),
        (param(Unit::Many(3), Default::List(&[1, 2])), Some("1 2")),
    ] {
        assert_eq!(param.without().as_deref(), without, "{:?}", param.unit);
    }
    let needed = param(Unit::Count, Default::Needed).help();
    assert_eq!(needed, "opt NUMBER                   what it does (needed)");
    let packets = param(Unit::Packets, Default::Number(100)).help();
    assert_eq!(packets, "opt PACKETS                  what it does (default: 100p)");
}

#[test]
fn defaults_depend_on_the_device_where_the_table_says_so() {
    let at = |mtu, txqueuelen| Site { mtu, txqueuelen, ..Site::default() };
    let param = |default| Param::new("opt", Unit::Count, default, "");
    assert_eq!(param(Default::Number(5)).default(at(7, 0)), Some(n(5)));
    assert_eq!(param(Default::List(&[5, 6])).default(at(7, 0)), Some(list(&[5, 6])));
    assert_eq!(param(Default::Off).default(at(7, 0)), None);
    assert_eq!(param(Default::Needed).default(at(7, 0)), None);
    let two = || param(Default::Mtus(2));
    assert_eq!(two().default(at(1_514, 0)), Some(n(3_028)));
    assert_eq!(two().within(5_000, 9_000).default(at(1_514, 0)), Some(n(5_000)));
    assert_eq!(two().within(5_000, 9_000).default(at(4_501, 0)), Some(n(9_000)));
    assert_eq!(two().clamped(1, 100).default(at(1_514, 0)), Some(n(100)));
    assert_eq!(two().clamped(1, 100).default(at(0, 0)), Some(n(1)));
    let packets = param(Default::QueueLen);
    assert_eq!([0, 50].map(|len| packets.default(at(0, len))), [Some(n(1_000)), Some(n(50))]);
    let bytes = param(Default::QueueBytes);
    assert_eq!([0, 50].map(|len| bytes.default(at(9, len))), [Some(n(9_000)), Some(n(450))]);
    assert_eq!(bytes.default(at(u32::MAX, 50)), Some(n(u32::MAX.into())));
    assert_eq!(bytes.device_default(at(9, 50)), Some(n(450)));
    assert_eq!(param(Default::Number(5)).device_default(at(9, 50)), None);
}
