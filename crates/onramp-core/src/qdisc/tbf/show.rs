//! How `tc` shows a `tbf`.
//!
//! Source: behaviour of iproute2 6.1: the depth of a bucket is shown in bytes, computed from the
//! whole microseconds in which the bucket fills; the latency is shown instead of the limit, if the
//! queue can hold more bytes than the buckets; the JSON does not contain `peakrate`.

use super::limit;
use crate::base::Extra;
use crate::base::params::Values;
use crate::base::show::Out;
use crate::base::shown::micros;
use crate::base::units::Size;
use crate::law::cost::{Cost, Framing, show_linklayer, shown_bytes, shown_micros};

pub(super) fn options(values: &Values<'_>, _: &Extra, out: &mut Out) {
    let rate = values.number("rate");
    out.uint("rate", rate, format_args!("rate {} ", out.style.rate(rate)));
    bucket(values, "rate", "burst", ["burst", "burst"], out);
    if values.is_given("peakrate") {
        out.text(format_args!("peakrate {} ", out.style.rate(values.number("peakrate"))));
        bucket(values, "peakrate", "mtu", ["minburst", "mtu"], out);
    }
    let limit = limit(values);
    match longest_wait(values, limit) {
        Some(us) => out.uint("lat", us, format_args!("lat {} ", micros(us))),
        None => out.uint("limit", limit, format_args!("limit {} ", Size(limit))),
    }
    let overhead = values.number("overhead");
    if overhead > 0 {
        out.uint("overhead", overhead, format_args!("overhead {overhead} "));
    }
    show_linklayer(values, out);
}

/// Returns the depth of a bucket in nanoseconds.
fn depth_ns(values: &Values<'_>, rate: &str, burst: &str) -> i64 {
    Cost::new(values.number(rate), Framing::of(values)).ns(values.number32(burst))
}

/// Shows a bucket. `names` has two names for it: one for the output without details, and one for
/// the output with details.
fn bucket(values: &Values<'_>, rate: &str, burst: &str, names: [&str; 2], out: &mut Out) {
    let bytes = shown_bytes(values.number(rate), depth_ns(values, rate, burst));
    let [name, detailed] = names;
    if out.style.details {
        let text = format!("{}/1", Size(bytes));
        out.string(detailed, &text, format_args!("{detailed} {text} "));
        let mpu = values.number("mpu");
        out.uint("mpu", mpu, format_args!("mpu {} ", Size(mpu)));
    } else {
        out.uint(name, bytes, format_args!("{name} {} ", Size(bytes)));
    }
}

/// Returns how many microseconds the last packet of a full queue waits if the buckets were full
/// before the queue filled, or `None` if the buckets hold more bytes than the queue.
fn longest_wait(values: &Values<'_>, limit: u64) -> Option<u64> {
    let wait = |rate: &str, burst: &str| {
        let ticks = (depth_ns(values, rate, burst).cast_unsigned() / 64) & u64::from(u32::MAX);
        #[expect(clippy::cast_precision_loss, reason = "tc computes with floating point numbers")]
        let us =
            1e6 * (limit as f64 / values.number(rate).max(1) as f64) - shown_micros(ticks) as f64;
        us
    };
    let mut longest = wait("rate", "burst");
    if values.is_given("peakrate") {
        longest = longest.max(wait("peakrate", "mtu"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    (longest >= 0.0).then_some(longest as u64)
}
