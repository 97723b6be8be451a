//! How `tc` shows an `htb` and its classes.
//!
//! Source: behaviour of iproute2 6.1, which shows classes as text only. The JSON of classes is what
//! later versions of iproute2 would write.

use super::class::Config;
use crate::base::Extra;
use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::units::Size;
use crate::law::cost::show_linklayer;
use crate::sched::Shown;

pub(super) const SHOWN: Shown = Shown { options, extra: |_, _| {}, class, class_extra };

/// The version number that Linux reports for its `htb`.
const VERSION: &str = "3.17";

fn options(values: &Values<'_>, extra: &Extra, out: &mut Out) {
    let (r2q, default) = (values.number("r2q").max(1), values.number("default"));
    let default = if default == 0 { "0".to_owned() } else { format!("{default:#x}") };
    out.uint("r2q", r2q, format_args!("r2q {r2q}"));
    out.string("default", &default, format_args!(" default {default}"));
    extra.show(out, " ", "direct_packets_stat");
    if out.style.details {
        out.string("ver", VERSION, format_args!(" ver {VERSION}"));
    }
    let direct = values.number("direct_qlen");
    out.uint("direct_qlen", direct, format_args!(" direct_qlen {direct}"));
}

/// Shows the options of a class. An inner class has neither a priority nor a quantum. The quantum
/// comes from the running class, because it may depend on the qdisc's `r2q`.
fn class(values: &Values<'_>, extra: &Extra, out: &mut Out) {
    let config = Config::new(values, super::RATE_TO_QUANTUM);
    let level = extra.get("level");
    let details = out.style.details;
    if level == 0 {
        let prio = config.priority;
        out.uint("prio", prio.into(), format_args!("prio {prio} "));
        if details {
            let quantum = extra.find("quantum").unwrap_or_else(|| config.quantum.into());
            out.int("quantum", quantum, format_args!("quantum {quantum} "));
        }
    }
    let (rate, ceil) = config.rates();
    out.uint("rate", rate, format_args!("rate {} ", out.style.rate(rate)));
    let overhead = values.number("overhead");
    if overhead > 0 {
        out.uint("overhead", overhead, format_args!("overhead {overhead} "));
    }
    out.uint("ceil", ceil, format_args!("ceil {} ", out.style.rate(ceil)));
    show_linklayer(values, out);
    for (name, bytes) in ["burst", "cburst"].into_iter().zip(config.bursts()) {
        if details {
            let mpu = Size(values.number("mpu"));
            out.uint(name, bytes, format_args!("{name} {}/1 mpu {mpu} ", Size(bytes)));
        } else {
            out.uint(name, bytes, format_args!("{name} {} ", Size(bytes)));
        }
    }
    if details {
        out.uint("mpu", values.number("mpu"), format_args!(""));
        out.int("level", level, format_args!("level {level} "));
    }
}

fn class_extra(extra: &Extra, out: &mut Out) {
    for (name, before, after) in [
        ("lended", " ", ""),
        ("borrowed", " ", ""),
        ("giants", " ", "\n"),
        ("tokens", " ", ""),
        ("ctokens", " ", "\n"),
    ] {
        let count = extra.get(name);
        out.int(name, count, format_args!("{before}{name}: {count}{after}"));
    }
    // `tc` prints an empty line after each class.
    out.text(format_args!("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::params::Site;
    use crate::base::show::Style;
    use crate::qdisc::htb::CLASS;
    use crate::tc::spec::read_options;

    /// Each case: the options that a user types, what iproute2 6.1 then prints without details, and
    /// what it prints with details.
    const CASES: &[[&str; 3]] = &[
        [
            "rate 20kbit",
            "prio 0 rate 20Kbit ceil 20Kbit burst 1600b cburst 1600b ",
            "prio 0 quantum 1000 rate 20Kbit ceil 20Kbit linklayer ethernet burst 1600b/1 mpu 0b \
             cburst 1600b/1 mpu 0b level 0 ",
        ],
        [
            "rate 7mbit ceil 8mbit burst 14998 prio 2 quantum 3028",
            "prio 2 rate 7Mbit ceil 8Mbit burst 14996b cburst 1600b ",
            "prio 2 quantum 3028 rate 7Mbit ceil 8Mbit linklayer ethernet burst 14996b/1 mpu 0b \
             cburst 1600b/1 mpu 0b level 0 ",
        ],
        [
            "rate 20mbit ceil 30mbit burst 5k/8 cburst 6k prio 3 quant 3000 overhead 10 mpu 70 \
             linklayer atm",
            "prio 3 rate 20Mbit overhead 10 ceil 30Mbit linklayer atm burst 5Kb cburst 6Kb ",
            "prio 3 quantum 3000 rate 20Mbit overhead 10 ceil 30Mbit linklayer atm burst 5Kb/1 \
             mpu 70b cburst 6Kb/1 mpu 70b level 0 ",
        ],
        [
            "rate 1gbit ceil 0",
            "prio 0 rate 1Gbit ceil 1Gbit burst 1375b cburst 1375b ",
            "prio 0 quantum 200000 rate 1Gbit ceil 1Gbit linklayer ethernet burst 1375b/1 mpu 0b \
             cburst 1375b/1 mpu 0b level 0 ",
        ],
    ];

    fn shown(line: &str, extra: &Extra, style: Style) -> String {
        let words = &mut line.split_ascii_whitespace();
        let given = read_options("class", CLASS, words, false, false).expect(line);
        let mut out = Out::new(style);
        class(&Values { params: CLASS, given: &given, site: Site::default() }, extra, &mut out);
        out.finish()
    }

    #[test]
    fn classes_look_as_tc_writes_them() {
        for [line, plain, detailed] in CASES {
            for (details, text) in [(false, plain), (true, detailed)] {
                let style = Style { details, ..Style::default() };
                assert_eq!(shown(line, &Extra::default(), style), *text, "{line}");
            }
        }
    }

    #[test]
    fn the_last_priority_is_seven() {
        for (given, shown_as) in [("7", "prio 7 "), ("8", "prio 7 "), ("4294967295", "prio 7 ")] {
            let text = shown(&format!("rate 1mbit prio {given}"), &Extra::default(), PLAIN);
            assert!(text.starts_with(shown_as), "{text}");
        }
    }

    const PLAIN: Style =
        Style { stats: false, details: false, json: false, pretty: false, iec: false };

    #[test]
    fn a_class_that_lends_has_no_priority() {
        let extra = Extra(vec![("level", 7), ("quantum", 1000)]);
        let style = Style { details: true, ..Style::default() };
        let text = "rate 10Mbit ceil 10Mbit linklayer ethernet burst 15000b/1 mpu 0b \
                    cburst 15000b/1 mpu 0b level 7 ";
        assert_eq!(shown("rate 10mbit burst 15000 cburst 15000", &extra, style), text);
    }

    #[test]
    fn statistics_look_as_tc_writes_them() {
        let counts = [("lended", 1299), ("borrowed", 1767), ("tokens", -25419), ("ctokens", 5)];
        let mut out = Out::new(Style::default());
        class_extra(&Extra(counts.to_vec()), &mut out);
        let text = " lended: 1299 borrowed: 1767 giants: 0\n tokens: -25419 ctokens: 5\n\n";
        assert_eq!(out.finish(), text);
    }
}
