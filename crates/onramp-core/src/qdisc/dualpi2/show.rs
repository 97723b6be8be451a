//! How `tc` shows a `dualpi2`.
//!
//! Source: behaviour of iproute2 6.17, which is the first version that knows this qdisc.

use super::Config;
use super::law::Given;
use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::{Extra, shown};
use crate::sched::Shown;

pub(super) const SHOWN: Shown = Shown { options, extra: statistics, ..Shown::TABLE };

fn options(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let config = Config::new(values);
    let given = Given::of(values);
    shown::packets(out, "limit", config.limit.into());
    let memory = config.memory_limit;
    out.uint("memory-limit", memory, format_args!("memlimit {memory}B "));
    shown::time(out, "target", given.target / 1_000);
    shown::time(out, "tupdate", given.tupdate / 1_000);
    gain(out, "alpha", given.alpha);
    gain(out, "beta", given.beta);
    if config.step_in_packets {
        let step = config.step;
        out.uint("step-thresh-pkts", step, format_args!("step_thresh {step}p "));
    } else {
        let us = config.step / 1_000;
        let text = shown::micros(us);
        out.uint("step-thresh-us", us, format_args!("step_thresh {text} "));
    }
    let least = config.min_qlen_step;
    out.uint("min-qlen-step", least.into(), format_args!("min_qlen_step {least}p "));
    let coupling = values.number("coupling_factor");
    out.uint("coupling", coupling, format_args!("coupling_factor {coupling} "));
    words(&config, out);
}

/// Shows the options whose value is one of two words, such as `drop_dequeue` or `drop_enqueue`, and
/// the share of the classic queue. JSON spells the words in another way than text does.
fn words(config: &Config, out: &mut Out) {
    let choose = |on, words: [(&'static str, &'static str); 2]| words[usize::from(on)];
    let (text, json) =
        choose(config.drop_overload, [("overflow", "overflow"), ("drop_on_overload", "drop")]);
    out.string("drop-overload", json, format_args!("{text} "));
    let (text, json) = choose(
        config.drop_early,
        [("drop_dequeue", "drop-dequeue"), ("drop_enqueue", "drop-enqueue")],
    );
    out.string("drop-early", json, format_args!("{text} "));
    let percent = config.weight.unsigned_abs();
    out.uint("c-protection", percent, format_args!("classic_protection {percent}% "));
    let l4s = config.ecn_mask == 1;
    let (text, json) = choose(l4s, [("any_ect", "any-ect"), ("l4s_ect", "l4s-ect")]);
    out.string("ecn-mask", json, format_args!("{text} "));
    if config.split_gso {
        out.null("split-gso", format_args!("split_gso "));
    } else {
        out.text(format_args!("no_split_gso "));
    }
}

/// Shows a gain, given in units of 1/256 Hertz, with six digits after the point.
#[expect(clippy::cast_precision_loss, reason = "a gain has 32 bits")]
fn gain(out: &mut Out, key: &str, gain: u64) {
    let hertz = gain as f64 / 256.0;
    out.float(key, hertz, format_args!("{key} {hertz:.6} "));
}

#[expect(clippy::cast_precision_loss, reason = "six digits of it are written")]
fn statistics(extra: &Extra, out: &mut Out) {
    let number = |key| extra.get(key).unsigned_abs();
    let prob = extra.get("prob") as f64 / f64::from(u32::MAX);
    out.float("prob", prob, format_args!("prob {prob:.6} "));
    for (key, name, end) in [("delay-c", "delay_c", " "), ("delay-l", "delay_l", "\n")] {
        let us = number(if end == " " { "delay_c_ns" } else { "delay_l_ns" }) / 1_000;
        out.uint(key, us, format_args!("{name} {us}us{end}"));
    }
    for (key, name, of, end) in [
        ("pkts-in-c", "pkts_in_c", "packets_in_c", " "),
        ("pkts-in-l", "pkts_in_l", "packets_in_l", " "),
        ("maxq", "maxq", "maxq", "\n"),
        ("ecn-mark", "ecn_mark", "ecn_mark", " "),
        ("step-mark", "step_mark", "step_marks", "\n"),
    ] {
        out.uint(key, number(of), format_args!("{name} {}{end}", number(of)));
    }
    let credit = extra.get("credit_c") - extra.get("credit_l");
    let queue = if credit > 0 { "C-queue" } else { "L-queue" };
    out.int("credit", credit, format_args!("credit {credit} ({queue})\n"));
    let (used, most) = (number("memory_used"), number("max_memory_used"));
    out.uint("memory-used", used, format_args!("memory_used {used} "));
    out.uint("max-memory-used", most, format_args!("(max {most}) "));
    let limit = number("memory_limit");
    out.uint("memory-limit", limit, format_args!("of memory limit {limit}\n"));
}
