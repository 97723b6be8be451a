//! What `tc -s` shows of `fq`.
//!
//! Source: behaviour of iproute2 6.1. It does not know the fast path, and shows no
//! `next_packet_delay` here.

use crate::show::Out;
use crate::units::Time;
use crate::view::Extra;

pub(super) fn extra(extra: &Extra, out: &mut Out) {
    extra.show(out, "  ", "flows");
    let (inactive, waiting) = (extra.count("inactive"), extra.count("throttled_flows"));
    out.uint("inactive", inactive, format_args!(" (inactive {inactive}"));
    out.uint("throttled", waiting, format_args!(" throttled {waiting})\n"));
    extra.show(out, "  ", "gc");
    extra.show(out, " ", "highprio");
    extra.show(out, " ", "throttled");
    let latency = extra.count("latency_ns");
    if latency > 0 {
        out.uint("latency", latency, format_args!(" latency {}", Time(latency)));
    }
    extra.show_some(out, " ", "ce_mark");
    extra.show_some(out, " ", "flows_plimit");
    let mut before = "\n  ";
    if extra.show_some(out, "\n ", "pkts_too_long") {
        before = " ";
    }
    if extra.show_some(out, before, "horizon_drops") {
        before = " ";
    }
    extra.show_some(out, before, "horizon_caps");
    out.text(format_args!("\n"));
}
