//! The parameters of `fq`.

use crate::base::params::{Default, Param, Unit, Value, Values, look};
use crate::qdisc::{PRIOMAP, PRIOMAP_NUMBERS};

use crate::base::params::U32_MAX;
use crate::base::show::Out;
use crate::base::{Errno, Fault};

use super::BANDS;
use super::flow::TICK_NS;

use Default::{List, Mtus, Number, Off};

pub(super) const PARAMS: &[Param] = &[
    Param::new("limit", Unit::Packets, Number(10_000), "packets held at most in each band"),
    Param::new("flow_limit", Unit::Packets, Number(100), "packets held at most of each flow"),
    Param::new("buckets", Unit::Count, Number(1024), "number of flows kept, including idle ones")
        .within(2, 1 << 18)
        .zero_is_unsaid()
        .shown(show_buckets),
    Param::new(
        "orphan_mask",
        Unit::Count,
        Number(1023),
        "without effect, because senders name their flows",
    ),
    Param::new("bands", Unit::Count, Number(3), "priority bands; always 3")
        .within(3, 3)
        .shown(look::unusual),
    Param::new("priomap", Unit::List(16), List(&PRIOMAP_NUMBERS), "each priority's band")
        .within(0, 2)
        .shown(look::unusual),
    Param::new(
        "weights",
        Unit::List(3),
        List(&[589_824, 196_608, 65_536]),
        "bytes each band may send in a round",
    )
    .within(1 << 14, i32::MAX as u64)
    .shown(look::unusual),
    Param::new("pacing", Unit::Words(&["pacing", "nopacing"]), Off, "whether flows are paced")
        .shown(show_pacing),
    Param::new("quantum", Unit::Bytes, Mtus(2), "bytes a flow may send in a round")
        .clamped(256, 1 << 20),
    Param::new("initial_quantum", Unit::Bytes, Mtus(10), "bytes a new flow may send at once")
        .within(0, 1 << 20)
        .refused(Fault::Kernel(Errno::Range, None)),
    Param::new("maxrate", Unit::Rate, Off, "highest rate of each flow").shown(show_limit),
    Param::new("defrate", Unit::Rate, Off, "without effect").shown(look::never),
    Param::new(
        "low_rate_threshold",
        Unit::Rate,
        Number(550_000 / 8),
        "flows with at most this rate pause after each packet, not after each quantum",
    )
    .shown(look::nonzero),
    Param::new(
        "refill_delay",
        Unit::Usecs,
        Number(40_000_000),
        "idle time after which a flow's credit is refilled",
    )
    .shown(show_refill),
    Param::new("ce_threshold", Unit::Usecs, Off, "waiting time above which packets are marked")
        .shown(show_limit),
    Param::new(
        "timer_slack",
        Unit::Nsecs,
        Number(10_000),
        "how late paced packets may leave, to save timers",
    )
    .refused(Fault::Usage),
    Param::new(
        "horizon",
        Unit::Usecs,
        Number(10_000_000_000),
        "how far ahead departure times may lie",
    ),
    Param::new(
        "horizon_drop",
        Unit::Words(&["horizon_drop", "horizon_cap"]),
        Number(0),
        "packets beyond the horizon are dropped, or leave at the horizon",
    )
    .shown(look::null),
    Param::new(
        "offload_horizon",
        Unit::Usecs,
        Off,
        "how early packets may leave to a device that holds them until their time",
    ),
];

/// Shows the number of buckets rounded up to a power of two, as Linux does.
fn show_buckets(param: &Param, value: &Value, out: &mut Out) {
    if let Value::Number(buckets) = value {
        look::as_number(param, buckets.next_power_of_two(), out);
    }
}

/// Shows the refill delay rounded up to whole jiffies of 10 ms, because the idle time of flows is
/// counted in jiffies.
fn show_refill(param: &Param, value: &Value, out: &mut Out) {
    if let Value::Number(ns) = value {
        look::as_number(param, ns.div_ceil(TICK_NS) * TICK_NS, out);
    }
}

fn show_pacing(param: &Param, value: &Value, out: &mut Out) {
    if param.word(value) != param.key {
        out.flag(param.key, false, format_args!("nopacing "));
    }
}

/// Shows a limit unless it has its greatest value (the greatest 32-bit number of bytes per second
/// or of microseconds), which stands for no limit.
fn show_limit(param: &Param, value: &Value, out: &mut Out) {
    let none = if param.unit == Unit::Rate { U32_MAX } else { U32_MAX * 1_000 };
    if *value != Value::Number(none) {
        look::plain(param, value, out);
    }
}

/// The configuration of a running `fq`, computed from its parameters. Only a change of the
/// parameters replaces the configuration.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) limit: u32,
    pub(super) flow_limit: usize,
    pub(super) buckets: usize,
    pub(super) priomap: [u8; 16],
    pub(super) weights: [i64; BANDS],
    pub(super) pacing: bool,
    pub(super) quantum: i32,
    pub(super) initial_quantum: i32,
    /// The greatest rate of each flow, in bytes per second; `u64::MAX` if there is no such limit.
    pub(super) maxrate: u64,
    pub(super) low_rate_threshold: u64,
    pub(super) refill_delay_ticks: u32,
    pub(super) ce_threshold_ns: u64,
    pub(super) timer_slack_ns: u64,
    pub(super) horizon_ns: u64,
    pub(super) horizon_drop: bool,
    pub(super) offload_horizon_ns: u64,
}

impl Config {
    pub(super) fn new(values: &Values<'_>) -> Self {
        let signed = |key| i32::try_from(values.number(key)).unwrap_or(i32::MAX);
        let or_never = |key| values.get(key).map_or(u64::MAX, |_| values.number(key));
        let mut priomap = PRIOMAP;
        for (band, given) in priomap.iter_mut().zip(values.list("priomap")) {
            *band = u8::try_from(given).expect("a band of three");
        }
        let mut weights = [0; BANDS];
        for (weight, given) in weights.iter_mut().zip(values.list("weights")) {
            *weight = i64::try_from(given).unwrap_or(i64::MAX);
        }
        let refill_delay_ticks = values.number("refill_delay").div_ceil(TICK_NS);
        Self {
            limit: values.number32("limit"),
            flow_limit: values.number32("flow_limit") as usize,
            buckets: values.number32("buckets") as usize,
            priomap,
            weights,
            pacing: values.number("pacing") == 0,
            quantum: signed("quantum"),
            initial_quantum: signed("initial_quantum"),
            maxrate: or_never("maxrate"),
            low_rate_threshold: values.number("low_rate_threshold"),
            refill_delay_ticks: u32::try_from(refill_delay_ticks).unwrap_or(u32::MAX),
            ce_threshold_ns: or_never("ce_threshold"),
            timer_slack_ns: values.number("timer_slack"),
            horizon_ns: values.number("horizon"),
            horizon_drop: values.number("horizon_drop") == 0,
            offload_horizon_ns: values.number("offload_horizon"),
        }
    }
}
