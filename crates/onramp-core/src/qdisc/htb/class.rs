//! A class of `htb`: two token buckets, and below them either a qdisc (in a leaf) or children that
//! borrow.

use std::array;

use super::turns::ActiveClasses;
use crate::base::params::{Site, Values};
use crate::base::{Counters, Instant};
use crate::filter::Filters;
use crate::law::bucket::Bucket;
use crate::law::cost::{Cost, Framing, shown_bytes, ticked_ns};
use crate::qdisc::pfifo_child;
use crate::sched::Child;

/// Number of levels in the tree of classes. Leaves stand on level 0; inner classes directly below
/// the qdisc stand on the last level.
pub(super) const LEVELS: usize = 8;
/// Number of priorities; priority 0 is served first.
pub(super) const PRIORITIES: usize = 8;
/// The last priority. As in Linux, greater numbers count as the last priority.
const LAST: u8 = 7;
const _: () = assert!(LAST as usize + 1 == PRIORITIES);
/// The value of a class's parent that means that the class stands directly below the qdisc.
pub(super) const ROOT: usize = usize::MAX;
/// The longest time for which an idle class earns tokens, and the greatest debt of tokens, in
/// nanoseconds.
const MEMORY_NS: i64 = 60_000_000_000;
/// The least and the greatest quantum that is computed if the user gives none, in bytes.
const QUANTUM: (u64, u64) = (1_000, 200_000);

/// What the tokens of a class allow it to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The class may send at its own rate.
    CanSend,
    /// The class may send with tokens that its parent lends: its own tokens for `rate` are spent,
    /// those for `ceil` are not.
    MayBorrow,
    /// The class may not send, because its tokens for `ceil` are spent.
    CannotSend,
}

#[derive(Debug)]
pub(super) enum Below {
    /// Below a leaf: the leaf's qdisc.
    Leaf(Child),
    /// Below an inner class: for each priority, the children that may borrow and have packets.
    Inner(Box<[ActiveClasses; PRIORITIES]>),
}

impl Below {
    pub(super) fn leaf(site: Site) -> Self {
        Self::Leaf(pfifo_child(site))
    }

    pub(super) fn inner() -> Self {
        Self::Inner(Box::new(array::from_fn(|_| ActiveClasses::default())))
    }
}

/// The counters that `tc -s class show` prints.
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
    /// The priority of the class, if it is a leaf.
    priority: u8,
    pub(super) level: u8,
    pub(super) mode: Mode,
    /// A bit for each priority, which is set if the class itself, or a class that borrows from it,
    /// has packets of that priority.
    pub(super) active: u8,
    pub(super) parent: usize,
    pub(super) children: u32,
    pub(super) quantum: i32,
    /// For each level from which the class may take tokens: number of bytes that the class may
    /// still send before the turn passes to the next class.
    pub(super) deficit: [i32; LEVELS],
    rate: Bucket,
    ceil: Bucket,
    /// The time up to which the tokens in the buckets have been counted.
    looked_at: Instant,
    /// Number of the class's valid entry among the waiting classes of its level; 0 if the class
    /// does not wait.
    pub(super) waits: u64,
    pub(super) below: Below,
    pub(super) filters: Filters,
    pub(super) stats: Stats,
}

impl Class {
    pub(super) fn new(
        minor: u16,
        parent: usize,
        config: &Config,
        site: Site,
        now: Instant,
    ) -> Self {
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
            below: Below::leaf(site),
            filters: Filters::default(),
            stats: Stats::default(),
        };
        class.fill(now);
        class
    }

    /// Sets new parameters of the class; keeps the tokens in its buckets, as the nanoseconds that
    /// they are, or with `keeps_bytes` as the bytes that they are worth.
    pub(super) fn change(&mut self, config: &Config, keeps_bytes: bool, now: Instant) {
        // As in Linux, a class with child classes keeps the priority and the quantum that it had as
        // a leaf.
        if self.is_leaf() {
            (self.priority, self.quantum) = (config.priority, config.quantum);
        }
        if keeps_bytes {
            let elapsed_ns = self.elapsed_ns(now);
            for (bucket, new) in [(&mut self.rate, config.rate), (&mut self.ceil, config.ceil)] {
                let kept = new.with_bytes_of(bucket, elapsed_ns);
                *bucket = Bucket { tokens_ns: kept.tokens_ns.max(1 - MEMORY_NS), ..kept };
            }
            self.looked_at = now;
            return;
        }
        for (bucket, new) in [(&mut self.rate, config.rate), (&mut self.ceil, config.ceil)] {
            *bucket = Bucket { tokens_ns: bucket.tokens_ns, ..new };
        }
    }

    /// Fills both token buckets.
    pub(super) fn fill(&mut self, now: Instant) {
        for bucket in [&mut self.rate, &mut self.ceil] {
            bucket.tokens_ns = bucket.depth_ns;
        }
        self.looked_at = now;
    }

    /// Makes an inner class a leaf again, with a new qdisc, because its last child was removed.
    pub(super) fn become_leaf(&mut self, site: Site, now: Instant) {
        self.level = 0;
        self.below = Below::leaf(site);
        self.deficit = [0; LEVELS];
        self.fill(now);
    }

    /// Returns the bit of the class's priority.
    #[inline]
    pub(super) fn priority_bit(&self) -> u8 {
        1 << self.priority
    }

    #[inline]
    pub(super) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Returns the number of packets that a leaf holds; 0 for an inner class.
    #[inline]
    pub(super) fn packets(&self) -> u32 {
        match &self.below {
            Below::Leaf(child) => child.held().packets,
            Below::Inner(_) => 0,
        }
    }

    /// Returns the nanoseconds since the tokens were last counted, at most `MEMORY_NS`.
    #[inline]
    pub(super) fn elapsed_ns(&self, now: Instant) -> i64 {
        now.since(self.looked_at).min(MEMORY_NS.cast_unsigned()).cast_signed()
    }

    /// Pays for a packet of `len` bytes for which a class on `level` lends the tokens; this class
    /// is the leaf that sends, or one of the classes above it. A class on that level or above it
    /// pays with its tokens for `rate`; every class pays with its tokens for `ceil`.
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

    /// Returns the mode that the tokens allow `elapsed_ns` nanoseconds after they were last
    /// counted, and for how many nanoseconds that mode holds.
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
            // In the counter `giants`, Linux used to count packets larger than its rate table.
            // There is no such table here, so the counter is always zero.
            ("giants", 0),
        ] {
            out(name, count.cast_signed());
        }
        // `tc` shows tokens in units of 64 ns.
        for (name, bucket) in [("tokens", &self.rate), ("ctokens", &self.ceil)] {
            out(name, (bucket.tokens_ns >> 6).clamp(i32::MIN.into(), i32::MAX.into()));
        }
        out("level", self.level.into());
        out("quantum", self.quantum.into());
    }
}

/// The parameters of a class, converted to the form in which the class uses them.
#[derive(Debug)]
pub(super) struct Config {
    rate: Bucket,
    ceil: Bucket,
    /// The parameters `rate` and `ceil`, in bytes per second.
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
            // If no burst is given, use the one that `tc` computes for exact timers: a packet, plus
            // what the rate sends in a nanosecond.
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

    /// Returns `rate` and `ceil`, in bytes per second.
    pub(super) fn rates(&self) -> (u64, u64) {
        self.rates
    }

    /// Returns the bursts of the buckets for `rate` and for `ceil`, in bytes, as `tc` shows them.
    pub(super) fn bursts(&self) -> [u64; 2] {
        let (rate, ceil) = self.rates;
        [shown_bytes(rate, self.rate.depth_ns), shown_bytes(ceil, self.ceil.depth_ns)]
    }
}
