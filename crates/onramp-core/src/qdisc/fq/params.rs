//! The parameters of `fq`.

use crate::params::{Default, Param, Unit, Values};
use crate::qdisc::PRIOMAP;

use super::BANDS;
use super::flow::TICK_NS;

const U32_MAX: u64 = u32::MAX as u64;
/// Linux keeps most times in 32 bits of microseconds.
const USECS_MAX: u64 = U32_MAX * 1_000;
/// Far beyond any device, and exact in a floating point number.
const RATE_MAX: u64 = 1_000_000_000_000_000;

const fn row(key: &'static str, unit: Unit, default: Default, help: &'static str) -> Param {
    let (min, max) = match unit {
        Unit::Usecs => (0, USECS_MAX),
        Unit::Rate => (0, RATE_MAX),
        _ => (0, U32_MAX),
    };
    Param { key, unit, default, min, max, help }
}

const fn within(mut param: Param, min: u64, max: u64) -> Param {
    (param.min, param.max) = (min, max);
    param
}

use Default::{List, Mtus, Number, Off};

pub(super) const PARAMS: &[Param] = &[
    row("limit", Unit::Packets, Number(10_000), "packets held at most in each band"),
    row("flow_limit", Unit::Packets, Number(100), "packets held at most of each flow"),
    within(
        row("buckets", Unit::Count, Number(1024), "flows kept before idle ones are collected"),
        2,
        1 << 18,
    ),
    within(row("bands", Unit::Count, Number(3), "priority bands; always 3"), 3, 3),
    within(
        row("priomap", Unit::List(16), List(&PRIOMAP_DEFAULT), "the band of each priority"),
        0,
        2,
    ),
    within(
        row(
            "weights",
            Unit::List(3),
            List(&[589_824, 196_608, 65_536]),
            "bytes each band may send in a round",
        ),
        1 << 14,
        i32::MAX as u64,
    ),
    row("pacing", Unit::Words(&["pacing", "nopacing"]), Off, "whether rates are kept"),
    within(
        row("quantum", Unit::Bytes, Mtus(2), "bytes a flow may send in a round"),
        256,
        1 << 20,
    ),
    within(
        row("initial_quantum", Unit::Bytes, Mtus(10), "bytes a new flow may send at once"),
        0,
        i32::MAX as u64,
    ),
    row("maxrate", Unit::Rate, Off, "rate of each flow at most"),
    row(
        "low_rate_threshold",
        Unit::Rate,
        Number(550_000 / 8),
        "flows this slow pause after each packet",
    ),
    row("refill_delay", Unit::Usecs, Number(40_000_000), "idle time after which credit is filled"),
    row("ce_threshold", Unit::Usecs, Off, "waiting time from which ECN marks are set"),
    row(
        "timer_slack",
        Unit::Nsecs,
        Number(10_000),
        "how late paced packets may leave, to save timers",
    ),
    row("horizon", Unit::Usecs, Number(10_000_000_000), "how far ahead departure times may lie"),
    row(
        "horizon_drop",
        Unit::Words(&["horizon_drop", "horizon_cap"]),
        Number(0),
        "packets beyond the horizon die, or leave at it",
    ),
    row(
        "offload_horizon",
        Unit::Usecs,
        Off,
        "how early packets may leave for a device that keeps their time",
    ),
];

const PRIOMAP_DEFAULT: [u64; 16] = {
    let mut wide = [0; 16];
    let mut i = 0;
    while i < 16 {
        wide[i] = PRIOMAP[i] as u64;
        i += 1;
    }
    wide
};

/// What `fq` reads while it runs, and nobody writes.
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
    /// Bytes per second; the greatest number if there is none.
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
            *band = u8::try_from(given).unwrap_or(0);
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
