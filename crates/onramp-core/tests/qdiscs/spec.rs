//! The language in which qdiscs are described: which lines are read, how they are written, and the
//! messages for mistakes.

use onramp_core::ConfigError;
use onramp_core::Spec;
use onramp_core::params::{Param, Unit};
use onramp_core::qdisc::KINDS;
use proptest::prelude::*;

const MTU: u32 = 1514;

fn error(line: &str) -> ConfigError {
    line.parse::<Spec>().expect_err(line)
}

/// Lines as a user may type them, each followed by the error message that it gets.
const MISTAKES: &str = r#"
> 
qdisc: the kind is missing: expected one of KINDS
> fqq limit 1
qdisc: unexpected "fqq": expected a qdisc kind: KINDS
> pfifo 5
qdisc pfifo: unexpected "5": pfifo takes limit
> pfifo limit 5 and more
qdisc pfifo: unexpected "and": pfifo takes limit
> pfifo_fast limit 3
qdisc pfifo_fast: unexpected "limit": pfifo_fast takes txqueuelen
> fq limit
qdisc fq: "limit": the value is missing: expected a whole number, 0 to 4294967295 packets
> ets bands 2 bands 3
qdisc ets: "bands": given twice: the line already has bands 2
> fq limit 10p
qdisc fq: illegal "limit" "10p": expected a whole number, 0 to 4294967295 packets
> fq limit -1
qdisc fq: illegal "limit" "-1": expected a whole number, 0 to 4294967295 packets
> fq quantum 3k
qdisc fq: illegal "quantum" "3k": expected a whole number, 0 to 4294967295 bytes
> fq maxrate 8q
qdisc fq: illegal "maxrate" "8q": expected a rate such as 8mbit or 1mbps (bytes), 0bit, or \
8bit to 8000Tbit
> fq maxrate fast
qdisc fq: illegal "maxrate" "fast": expected a rate such as 8mbit or 1mbps (bytes), 0bit, or \
8bit to 8000Tbit
> cake bandwidth 7bit
qdisc cake: illegal "bandwidth" "7bit": expected a rate such as 8mbit or 1mbps (bytes), 0bit, or \
8bit to 8000Tbit
> fq horizon 5h
qdisc fq: illegal "horizon" "5h": expected a time such as 10ms or 40us, 0us to 4294967295us
> fq timer_slack 5s
qdisc fq: illegal "timer_slack" "5s": expected a time such as 10us or 500ns, 0us to 4294967295ns
> fq priomap 1 2 3
qdisc fq: illegal "priomap" "3": expected 16 whole numbers, each 0 to 2
> fq priomap 1 2
qdisc fq: "priomap": the value is missing: expected 16 whole numbers, each 0 to 2
> netem loss burst 5%
qdisc netem: illegal "loss" "burst": expected [random] PERCENT [PERCENT] | \
state PERCENT [PERCENT] [PERCENT] [PERCENT] [PERCENT] | \
gemodel PERCENT [PERCENT] [PERCENT] [PERCENT]
> netem loss state
qdisc netem: "loss": the value is missing: expected [random] PERCENT [PERCENT] | \
state PERCENT [PERCENT] [PERCENT] [PERCENT] [PERCENT] | \
gemodel PERCENT [PERCENT] [PERCENT] [PERCENT]
> netem loss 101%
qdisc netem: illegal "loss" "101%": expected [random] PERCENT [PERCENT] | \
state PERCENT [PERCENT] [PERCENT] [PERCENT] [PERCENT] | \
gemodel PERCENT [PERCENT] [PERCENT] [PERCENT]
> netem delay 10ms distribution normal
qdisc netem: "distribution": it needs a delay and its jitter
> netem delay 300s
qdisc netem: illegal "delay" "300s": expected TIME [TIME] [PERCENT], times up to 274877906880ns
> netem distribution cauchy
qdisc netem: illegal "distribution" "cauchy": expected uniform or normal or pareto or paretonormal
> netem slot 5ms 4ms
qdisc netem: "slot": the second time is less than the first
> netem reorder 5%
qdisc netem: "reorder": it needs a delay
> etf offload
qdisc etf: "offload": no device of Onramp can do it; leave it out
> etf clockid CLOCK_MONOTONIC
qdisc etf: illegal "clockid" "CLOCK_MONOTONIC": expected TAI or CLOCK_TAI
> etf delta 100us
qdisc etf: illegal "delta" "100us": expected a whole number, 0 to 2147483647
> bfifo limit 5g
qdisc bfifo: illegal "limit" "5g": expected a size such as 1514 or 15kb, 0 to 4294967295 bytes
"#;

#[test]
fn mistakes_name_the_word_and_what_is_allowed() {
    let kinds = KINDS.iter().map(|kind| kind.id).collect::<Vec<_>>().join(", ");
    let text = MISTAKES.replace("\\\n", "");
    let mut lines = text.trim().lines();
    while let (Some(typed), Some(answer)) = (lines.next(), lines.next()) {
        let typed = typed.strip_prefix('>').expect("typed lines are marked").trim();
        assert_eq!(error(typed).to_string(), answer.replace("KINDS", &kinds), "{typed}");
    }
    // The message for an unknown option lists all options of the kind, including those that take no
    // value.
    let text = error("fq foo 5").to_string();
    assert!(
        text.starts_with("qdisc fq: unexpected \"foo\": fq takes limit, flow_limit, "),
        "{text}"
    );
    assert!(text.contains(" pacing, nopacing, "), "{text}");
    assert_eq!(error("fq maxrate x").key, "maxrate");
}

/// Each entry has options that `tc qdisc add` accepts, and what `tc qdisc show` then writes.
#[test]
fn shows_as_tc_does() {
    let cases = [
        ("pfifo", "pfifo limit 1000p"),
        ("pfifo limit 1k", "pfifo limit 1024p"),
        ("pfifo limit 0.5", "pfifo limit 0p"),
        ("bfifo", "bfifo limit 1514000b"),
        ("bfifo limit 1.5k", "bfifo limit 1536b"),
        ("bfifo limit 1kbit", "bfifo limit 128b"),
        ("bfifo limit 15mb", "bfifo limit 15Mb"),
        ("fq quantum 10000", "quantum 10000b"),
        ("fq quantum 1048576", "quantum 1Mb"),
        ("fq limit 010", "limit 8p"),
        ("fq limit 0x10", "limit 16p"),
        ("fq limit +8", "limit 8p"),
        ("fq maxrate 9", "maxrate 8bit"),
        ("fq maxrate 0", "maxrate 0bit"),
        ("fq maxrate 1234567bit", "maxrate 1234Kbit"),
        ("fq maxrate 8mibit", "maxrate 8388Kbit"),
        ("fq maxrate 1Mbps", "maxrate 8Mbit"),
        ("fq maxrate 1MBPS", "maxrate 8Mbit"),
        ("fq maxrate 34gbit", "maxrate 34Gbit"),
        ("fq maxrate .5mbit", "maxrate 500Kbit"),
        ("fq maxrate 5.mbit", "maxrate 5Mbit"),
        ("fq maxrate +8mbit", "maxrate 8Mbit"),
        ("fq low_rate_threshold 100", "low_rate_threshold 96bit"),
        ("fq horizon 0", "horizon 0us"),
        ("fq horizon 100", "horizon 100us"),
        ("fq horizon 1e3", "horizon 1ms"),
        ("fq horizon 1500us", "horizon 1.5ms"),
        ("fq horizon 4294s", "horizon 4.29e+03s"),
        ("fq timer_slack 0", "timer_slack 0ns"),
        ("fq timer_slack 100", "timer_slack 100ns"),
        ("fq timer_slack 1.5us", "timer_slack 1.5us"),
        ("fq ce_threshold 0", "ce_threshold 0us"),
        ("fq ce_threshold 1ms", "ce_threshold 1ms"),
        ("fq nopacing", " nopacing "),
        ("etf", "etf clockid TAI delta 0"),
        (
            "etf clockid TAI delta 300 deadline_mode",
            "delta 300 offload off deadline_mode on skip_sock_check off",
        ),
        ("netem", "netem limit 1000"),
        ("netem latency 10ms 5ms 0.3", "delay 10ms  5ms 0.3%"),
        ("netem drop 5", "loss 5%"),
        ("netem loss random 5% 25 ecn", "loss 5% 25% ecn"),
        ("netem loss gemodel 1% 10%", "loss gemodel p 1% r 10% 1-h 100% 1-k 0%"),
        ("netem rate 8mbit -14 48 5", "rate 8Mbit packetoverhead -14 cellsize 48 celloverhead 5"),
        ("netem slot distribution normal 10ms 2ms", "slot distribution 10ms 2ms"),
        ("netem slot 800 packets 3", "slot 800ns 800ns packets 3"),
        ("fq horizon_cap", "horizon_cap"),
        ("fq", "quantum 3028b initial_quantum 15140b low_rate_threshold 550Kbit refill_delay 40ms"),
        ("fq", "refill_delay 40ms timer_slack 10us horizon 10s horizon_drop"),
    ];
    for (line, shown) in cases {
        let spec: Spec = line.parse().expect(line);
        assert!(spec.show(MTU).contains(shown), "{line}: {}", spec.show(MTU));
    }
}

#[test]
fn help_has_every_option_and_its_default() {
    for kind in KINDS {
        let help = kind.help();
        assert_eq!(help.lines().count(), 1 + kind.params.len());
        for (param, line) in kind.params.iter().zip(help.lines().skip(1)) {
            assert!(
                line.contains(param.key) && line.contains("(default: ")
                    || line.ends_with("(needed)"),
                "{line}"
            );
            assert!(line.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{line}");
        }
    }
}

#[test]
fn every_table_is_consistent() {
    for kind in KINDS {
        let plain = Spec::new(kind);
        assert_eq!(plain.to_string(), kind.id);
        for param in kind.params {
            assert!(param.min <= param.max, "{}", param.key);
            let same = kind.params.iter().filter(|other| other.key == param.key).count();
            assert_eq!(same, 1, "{} stands in the table of {} once", param.key, kind.id);
        }
        let _ = plain.build(0);
        let _ = plain.build(u32::MAX);
    }
}

/// Generates an option of a qdisc as a user could type it.
fn option(param: &'static Param) -> BoxedStrategy<String> {
    let key = param.key;
    let words = match param.unit {
        Unit::Words(names) => return prop::sample::select(names).prop_map(str::to_owned).boxed(),
        Unit::List(len) => prop::collection::vec(word(param, Unit::Count), len).boxed(),
        Unit::Many(most) => prop::collection::vec(word(param, Unit::Count), 1..=most).boxed(),
        Unit::Row(must, units) => (must..=units.len())
            .prop_flat_map(move |len| {
                units[..len].iter().map(|unit| word(param, *unit)).collect::<Vec<_>>()
            })
            .boxed(),
        Unit::Forms(forms) => prop::sample::select(forms)
            .prop_flat_map(move |form| {
                let row = (form.must..=form.units.len()).prop_flat_map(move |len| {
                    form.units[..len].iter().map(|unit| word(param, *unit)).collect::<Vec<_>>()
                });
                row.prop_map(move |row| [vec![form.word.to_owned()], row].concat())
            })
            .boxed(),
        Unit::Curve => curve().prop_map(|curve| vec![curve]).boxed(),
        Unit::Ranges(most) => {
            let range = (any::<u16>(), any::<u16>()).prop_map(|(n, first)| format!("{n}@{first}"));
            prop::collection::vec(range, 1..=most).boxed()
        }
        unit => word(param, unit).prop_map(|word| vec![word]).boxed(),
    };
    words.prop_map(move |words| format!("{key} {}", words.join(" "))).boxed()
}

/// Generates a service curve of `hfsc` as a user could type it.
fn curve() -> impl Strategy<Value = String> {
    let (rate, ns) = (1..=u64::from(u32::MAX), 1_000..=u64::from(u32::MAX) * 1_000);
    prop_oneof![
        (rate.clone(), ns.clone(), rate.clone())
            .prop_map(|(m1, d, m2)| format!("m1 {m1}bps d {d}ns m2 {m2}bps")),
        rate.clone().prop_map(|rate| format!("rate {rate}bps")),
        (1_u32..=65_535, ns, rate)
            .prop_map(|(umax, dmax, rate)| format!("umax {umax} dmax {dmax}ns rate {rate}bps")),
    ]
}

/// Generates a value of this unit, as text.
fn word(param: &'static Param, unit: Unit) -> BoxedStrategy<String> {
    let number = prop_oneof![Just(param.min), Just(param.max), param.min..=param.max];
    match unit {
        Unit::Rate | Unit::RateOr(_) => number.prop_map(|n| format!("{n}bps")).boxed(),
        Unit::Usecs | Unit::Nsecs | Unit::Named(_) => number.prop_map(|n| format!("{n}ns")).boxed(),
        Unit::Choice(names) => {
            let most = usize::try_from(param.max).map_or(usize::MAX, |max| max.saturating_add(1));
            let names = &names[..names.len().min(most)];
            prop::sample::select(names).prop_map(str::to_owned).boxed()
        }
        // Read the random bits as a number in two's complement, within the bounds.
        Unit::Signed => number
            .prop_map(|n| u32::try_from(n & 0xFFFF_FFFF).unwrap_or(0).cast_signed().to_string())
            .boxed(),
        Unit::Minor => number.prop_map(|n| format!("{n:x}")).boxed(),
        Unit::Masked => number.prop_map(|n| format!("{:#x}/{}", n & 0xFF, n >> 8)).boxed(),
        Unit::Fraction => (0_u32..=1000).prop_map(|n| format!("{}", f64::from(n) / 1e3)).boxed(),
        Unit::Gain => (1_u32..=1000).prop_map(|n| format!("{}", f64::from(n) / 64.0)).boxed(),
        Unit::TimeOrPackets => prop_oneof![
            (1_000_u64..=4_294_967_000).prop_map(|n| format!("{n}ns")),
            any::<u32>().prop_map(|n| format!("{}p", n.max(1))),
        ]
        .boxed(),
        Unit::Percent => (0_u32..=1000).prop_map(|n| format!("{}%", f64::from(n) / 1e1)).boxed(),
        _ => number.prop_map(|n| n.to_string()).boxed(),
    }
}

fn line() -> impl Strategy<Value = String> {
    (0..KINDS.len()).prop_flat_map(|place| {
        let kind = &KINDS[place];
        let options: Vec<_> =
            kind.params.iter().map(|param| prop::option::of(option(param))).collect();
        options.prop_map(move |options| {
            let words: Vec<String> = options.into_iter().flatten().collect();
            format!("{} {}", kind.id, words.join(" "))
        })
    })
}

/// A pattern for random lines that are only partly correct.
const ODD_LINE: &str = "((pfifo|bfifo|fq) )?\
    ([a-z_]{0,9} ?|limit |maxrate |weights |-?[0-9.e+]{0,9}(bit|kb|us|s)? ?){0,9}";

proptest! {
    #[test]
    fn what_is_written_reads_back(line in line(), mtu in any::<u32>()) {
        let spec: Spec = match line.parse() {
            Ok(spec) => spec,
            // Each option of the line is correct, but two options may contradict each other.
            Err(ConfigError { at, key, value, .. }) => {
                let kind = KINDS.iter().find(|kind| at == format!("qdisc {}", kind.id));
                let known = kind.is_some_and(|k| k.params.iter().any(|param| param.key == key));
                prop_assert!(known && value.is_empty(), "{line}: {at}: {key} {value}");
                return Ok(());
            }
        };
        let again: Spec = spec.to_string().parse().expect("its own line");
        prop_assert_eq!(&spec, &again);
        prop_assert_eq!(spec.show(mtu), again.show(mtu));
        let _ = spec.build(mtu);
    }

    #[test]
    fn no_line_is_too_odd(line in ODD_LINE) {
        if let Ok(spec) = line.parse::<Spec>() {
            prop_assert_eq!(spec.to_string().parse::<Spec>(), Ok(spec));
        }
    }
}

/// In files that people write, rates and times must have a unit, as far as they are not zero.
/// Counts and sizes need none.
#[test]
fn with_units_refuses_what_tc_would_guess() {
    for line in ["fq maxrate 8", "fq horizon 100", "fq ce_threshold 5", "fq timer_slack 1e3"] {
        assert!(line.parse::<Spec>().is_ok(), "{line}: tc takes it");
        let error = Spec::with_units(line).expect_err(line).to_string();
        assert!(error.contains("the unit is missing: expected a "), "{error}");
    }
    for (line, last) in [("fq limit 1 limit 2", "fq limit 2"), ("codel ecn noecn", "codel noecn")] {
        assert_eq!(line.parse::<Spec>(), last.parse(), "{line}");
        let error = Spec::with_units(line).expect_err(line).to_string();
        assert!(error.contains("given twice: "), "{error}");
    }
    for line in ["fq maxrate 8mbit", "fq timer_slack 0", "fq limit 100 quantum 3000", "pfifo"] {
        assert_eq!(Spec::with_units(line), line.parse::<Spec>(), "{line}");
    }
}
