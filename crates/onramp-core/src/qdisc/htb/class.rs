//! A class: two buckets, and what stands below it.

use std::array;

use super::turns::ActiveClasses;
use crate::base::params::Values;
use crate::base::{Counters, Instant};
use crate::filter::Filters;
use crate::law::bucket::Bucket;
use crate::law::cost::{Cost, Framing, shown_bytes, ticked_ns};
use crate::qdisc::pfifo_child;
use crate::sched::Child;

/// Levels that classes can stand on; leaves stand on level 0, classes below the qdisc that are no
/// leaves on the last.
pub(super) const LEVELS: usize = 8;
/// Priorities, 0 is served first.
pub(super) const PRIORITIES: usize = 8;
/// As in Linux, those behind it are the last one, too.
const LAST: u8 = 7;
const _: () = assert!(LAST as usize + 1 == PRIORITIES);
/// Parent of a class that stands below the qdisc.
pub(super) const ROOT: usize = usize::MAX;
/// The longest time a class earns tokens for, and the longest debt.
const MEMORY_NS: i64 = 60_000_000_000;
/// The least and the most of a quantum that nobody chose.
const QUANTUM: (u64, u64) = (1_000, 200_000);

/// What its tokens allow a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// To send at its own rate.
    CanSend,
    /// To send what its parent lends: its own tokens are spent, those for `ceil` are not.
    MayBorrow,
    /// Nothing.
    CannotSend,
}

#[derive(Debug)]
pub(super) enum Below {
    /// Of a leaf: a qdisc.
    Leaf(Child),
    /// Else: the children that may borrow and have packets, by priority.
    Inner(Box<[ActiveClasses; PRIORITIES]>),
}

impl Below {
    pub(super) fn leaf() -> Self {
        Self::Leaf(pfifo_child())
    }

    pub(super) fn inner() -> Self {
        Self::Inner(Box::new(array::from_fn(|_| ActiveClasses::default())))
    }
}

/// What `tc -s class show` prints.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) drops: u64,
    pub(super) overlimits: u64,
    pub(super) lended: u64,
    pub(super) borrowed: u64,
}

impl Stats {
    pub(super) fn counters(&self) -> Counters {
        let Self { bytes, packets, drops, overlimits, .. } = *self;
        Counters { bytes, packets, drops, overlimits, requeues: 0 }
    }
}

#[derive(Debug)]
pub(super) struct Class {
    pub(super) minor: u16,
    /// Its priority, if it is a leaf.
    priority: u8,
    pub(super) level: u8,
    pub(super) mode: Mode,
    /// A bit for each priority in which it has packets, or lends to who has.
    pub(super) active: u8,
    pub(super) parent: usize,
    pub(super) children: u32,
    pub(super) quantum: i32,
    /// Bytes it may still send before the turn goes on, by the level that it borrows from.
    pub(super) deficit: [i32; LEVELS],
    rate: Bucket,
    ceil: Bucket,
    /// When the buckets were last looked at.
    looked_at: Instant,
    /// The place of the entry in the queue of its level that counts; 0: it does not wait.
    pub(super) waits: u64,
    pub(super) below: Below,
    pub(super) filters: Filters,
    pub(super) stats: Stats,
}

impl Class {
    pub(super) fn new(minor: u16, parent: usize, config: &Config, now: Instant) -> Self {
        let mut class = Self {
            minor,
            priority: config.priority,
            level: 0,
            mode: Mode::CanSend,
            active: 0,
            parent,
            children: 0,
            quantum: config.quantum,
            deficit: [0; LEVELS],
            rate: config.rate,
            ceil: config.ceil,
            looked_at: now,
            waits: 0,
            below: Below::leaf(),
            filters: Filters::default(),
            stats: Stats::default(),
        };
        class.fill(now);
        class
    }

    /// Takes other parameters; what the buckets hold stays.
    pub(super) fn change(&mut self, config: &Config) {
        self.priority = config.priority;
        self.quantum = config.quantum;
        for (bucket, new) in [(&mut self.rate, config.rate), (&mut self.ceil, config.ceil)] {
            *bucket = Bucket { tokens_ns: bucket.tokens_ns, ..new };
        }
    }

    /// Fills its buckets.
    pub(super) fn fill(&mut self, now: Instant) {
        for bucket in [&mut self.rate, &mut self.ceil] {
            bucket.tokens_ns = bucket.depth_ns;
        }
        self.looked_at = now;
    }

    /// Holds a qdisc again, as its last child is gone.
    pub(super) fn become_leaf(&mut self, now: Instant) {
        self.level = 0;
        self.below = Below::leaf();
        self.fill(now);
    }

    /// The bit of its priority.
    #[inline]
    pub(super) fn priority_bit(&self) -> u8 {
        1 << self.priority
    }

    #[inline]
    pub(super) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Packets that a leaf holds.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        match &self.below {
            Below::Leaf(child) => child.held().packets,
            Below::Inner(_) => 0,
        }
    }

    /// Nanoseconds since the buckets were looked at.
    #[inline]
    pub(super) fn elapsed_ns(&self, now: Instant) -> i64 {
        now.since(self.looked_at).min(MEMORY_NS.cast_unsigned()).cast_signed()
    }

    /// Pays for a packet that a class of `level` has lent the tokens for: with tokens of its own
    /// if it stands there or above, and with those for `ceil`.
    #[inline]
    pub(super) fn pay(&mut self, level: u8, len: u32, now: Instant) {
        let elapsed_ns = self.elapsed_ns(now);
        if self.level >= level {
            self.stats.lended += u64::from(self.level == level);
            self.rate.tokens_ns = self.rate.left_ns(elapsed_ns, len).max(1 - MEMORY_NS);
        } else {
            self.stats.borrowed += 1;
            self.rate.tokens_ns += elapsed_ns;
        }
        self.ceil.tokens_ns = self.ceil.left_ns(elapsed_ns, len).max(1 - MEMORY_NS);
        self.looked_at = now;
    }

    /// What its tokens allow so long after the last look, and for how many nanoseconds.
    #[inline]
    pub(super) fn mode_after(&self, elapsed_ns: i64) -> (Mode, i64) {
        let ceil_ns = self.ceil.tokens_ns + elapsed_ns;
        let rate_ns = self.rate.tokens_ns + elapsed_ns;
        if ceil_ns < 0 {
            (Mode::CannotSend, -ceil_ns)
        } else if rate_ns < 0 {
            (Mode::MayBorrow, -rate_ns)
        } else {
            (Mode::CanSend, 0)
        }
    }

    pub(super) fn show(&self, out: &mut dyn FnMut(&'static str, i64)) {
        let stats = &self.stats;
        for (name, count) in [
            ("sent_bytes", stats.bytes),
            ("sent_packets", stats.packets),
            ("dropped", stats.drops),
            ("overlimits", stats.overlimits),
            ("lended", stats.lended),
            ("borrowed", stats.borrowed),
            // Linux counted packets larger than its rate table, and has none any more.
            ("giants", 0),
        ] {
            out(name, count.cast_signed());
        }
        // In ticks.
        for (name, bucket) in [("tokens", &self.rate), ("ctokens", &self.ceil)] {
            out(name, (bucket.tokens_ns >> 6).clamp(i32::MIN.into(), i32::MAX.into()));
        }
        out("level", self.level.into());
        out("quantum", self.quantum.into());
    }
}

/// What the parameters of a class mean.
#[derive(Debug)]
pub(super) struct Config {
    rate: Bucket,
    ceil: Bucket,
    /// Of `rate` and `ceil`, bytes per second.
    rates: (u64, u64),
    pub(super) priority: u8,
    pub(super) quantum: i32,
}

impl Config {
    pub(super) fn new(values: &Values<'_>, rate_to_quantum: u64) -> Self {
        let framing = Framing::of(values);
        let rate = values.number("rate");
        let ceil = Some(values.number("ceil")).filter(|ceil| *ceil > 0).unwrap_or(rate);
        let bucket = |rate: u64, burst| {
            // What `tc` takes where timers are exact: a packet, and a nanosecond at that rate.
            let bytes = match values.number(burst) {
                0 => rate / 1_000_000_000 + values.number("mtu"),
                bytes => bytes,
            };
            Bucket::full(Cost::new(rate, framing), ticked_ns(rate, bytes))
        };
        let quantum = match values.number("quantum") {
            0 => (rate / rate_to_quantum.max(1)).clamp(QUANTUM.0, QUANTUM.1),
            bytes => bytes,
        };
        Self {
            rate: bucket(rate, "burst"),
            ceil: bucket(ceil, "cburst"),
            rates: (rate, ceil),
            priority: u8::try_from(values.number("prio")).unwrap_or(LAST).min(LAST),
            quantum: i32::try_from(quantum).unwrap_or(i32::MAX),
        }
    }

    /// `rate` and `ceil`, bytes per second.
    pub(super) fn rates(&self) -> (u64, u64) {
        self.rates
    }

    /// The bursts at either, in bytes, as `tc` shows them.
    pub(super) fn bursts(&self) -> [u64; 2] {
        let (rate, ceil) = self.rates;
        [shown_bytes(rate, self.rate.depth_ns), shown_bytes(ceil, self.ceil.depth_ns)]
    }
}
