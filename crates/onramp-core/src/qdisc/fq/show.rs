//! What `tc -s` shows of `fq`.
//!
//! Source: behaviour of iproute2 6.1, which does not show the counter of the fast path. The line
//! `next_packet_delay` of iproute2 is not shown here.

use crate::base::Extra;
use crate::base::show::Out;
use crate::base::units::Time;

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
    let names = ["pkts_too_long", "horizon_drops", "horizon_caps"];
    if names.iter().any(|name| extra.count(name) > 0) {
        out.text(format_args!("\n"));
    }
    for (name, before) in names.into_iter().zip([" ", " ", "  "]) {
        extra.show_some(out, before, name);
    }
    out.text(format_args!("\n"));
}
