//! COBALT: CoDel for flows that respond to congestion, and BLUE for flows that do not.
//!
//! When a queue is short again, CoDel here does not reset its drop count but decrements the count,
//! once for each time at which it would have dropped a packet. BLUE drops with a probability that
//! grows each time memory runs out, and shrinks each time the queue runs empty.
//!
//! Source: Høiland-Jørgensen, Täht, Morton, "Piece of CAKE", 2018; Feng et al., "The BLUE Active
//! Queue Management Algorithms", 2002.

use onramp_queue::{DropReason, Packet};

use crate::base::ecn;
use crate::base::rng::Rng;

/// How much BLUE's drop probability grows when memory has run out: 1/256.
const STEP_UP: u32 = 1 << 24;
/// How much BLUE's drop probability shrinks when the queue is empty: 1/4,096.
const STEP_DOWN: u32 = 1 << 20;

/// Number of counts for which the inverse square root is in a table.
const KNOWN: usize = 16;

/// 1 / sqrt(count), in units of 2^-32. For greater counts, one step of Newton's method refines the
/// last value.
const INVERSE_ROOTS: [u32; KNOWN] = [
    u32::MAX,
    u32::MAX,
    3_037_000_500,
    2_479_700_525,
    2_147_483_647,
    1_920_767_767,
    1_753_413_056,
    1_623_345_051,
    1_518_500_250,
    1_431_655_765,
    1_358_187_914,
    1_294_981_364,
    1_239_850_263,
    1_191_209_601,
    1_147_878_294,
    1_108_955_788,
];

/// Returns the next approximation by Newton's method: x becomes x (3 - count x^2) / 2. Far from the
/// root the step overflows, as in Linux; the next steps correct that.
fn newton(root: u32, count: u32) -> u32 {
    let x = u64::from(root);
    let square = (x * x) >> 32;
    let rest = (3_u64 << 32).wrapping_sub(u64::from(count).wrapping_mul(square));
    ((rest >> 2).wrapping_mul(x) >> 31) as u32
}

/// Returns the nanoseconds from `then` to `now`, negative if `then` is later.
#[inline]
pub(super) fn since(now: u64, then: u64) -> i64 {
    now.wrapping_sub(then).cast_signed()
}

/// Targets that all flows of a tin share, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) target: u64,
    pub(super) interval: u64,
    /// How long a packet of the largest size takes at the tin's rate.
    pub(super) mtu_time: u64,
}

/// The state of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cobalt {
    /// When to drop next. While `count` is 0: until when to remember the flow. In nanoseconds.
    drop_next: u64,
    /// When BLUE's probability last changed, in nanoseconds.
    blue_at: u64,
    /// Number of drops that sets CoDel's drop interval.
    count: u32,
    inverse_root: u32,
    /// BLUE's drop probability, in units of 2^-32.
    chance: u32,
    dropping: bool,
}

impl Cobalt {
    /// Whether an empty flow has no state worth remembering.
    #[inline]
    pub(super) fn is_at_rest(&self, now: u64) -> bool {
        self.chance == 0 && self.count == 0 && since(now, self.drop_next) >= 0
    }

    /// Notes that memory ran out while this flow had the longest queue. Returns true if the flow
    /// counts as unresponsive from now on and did not before.
    pub(super) fn full(&mut self, aim: &Aim, now: u64) -> bool {
        let mut begins = false;
        if since(now, self.blue_at) > aim.target.cast_signed() {
            begins = self.chance == 0;
            self.chance = self.chance.saturating_add(STEP_UP);
            self.blue_at = now;
        }
        self.dropping = true;
        self.drop_next = now;
        self.count = self.count.max(1);
        begins
    }

    /// Notes that the flow is empty. Returns true if the flow no longer counts as unresponsive.
    #[inline]
    pub(super) fn empty(&mut self, aim: &Aim, now: u64) -> bool {
        let mut ends = false;
        if self.chance > 0 && since(now, self.blue_at) > aim.target.cast_signed() {
            self.chance = self.chance.saturating_sub(STEP_DOWN);
            self.blue_at = now;
            ends = self.chance == 0;
        }
        self.dropping = false;
        if self.count > 0 && since(now, self.drop_next) >= 0 {
            self.slow_down(aim);
        }
        ends
    }

    /// Judges the packet that would leave next: returns whether it was marked, and why it is to be
    /// dropped (`None` = it is not). A delay up to the target is fine, and so is the time that two
    /// packets of the largest size from each of `ingress_flows` flows (at least two flows) take on
    /// the wire.
    #[inline]
    pub(super) fn judge(
        &mut self,
        aim: &Aim,
        now: u64,
        pkt: &mut Packet,
        ingress_flows: u32,
        rng: &mut Rng,
    ) -> (bool, Option<DropReason>) {
        let waited = since(now, pkt.enqueued_ns);
        let late_by = since(now, self.drop_next);
        let mut left = late_by;
        let least =
            aim.target.max(aim.mtu_time.saturating_mul(u64::from(ingress_flows.max(2)) * 2));
        let bad = waited > least.cast_signed();
        let due = self.count > 0 && late_by >= 0;
        if bad && !self.dropping {
            self.drop_next = self.after(now, aim);
        }
        self.dropping = bad;
        if bad {
            self.count = self.count.max(1);
        }
        let (mut marked, mut reason) = (false, None);
        if due && bad {
            marked = ecn::mark(pkt);
            reason = (!marked).then_some(DropReason::Congested);
            self.count = self.count.saturating_add(1);
            self.improve();
            self.drop_next = self.after(self.drop_next, aim);
            left = since(now, self.drop_next);
        } else if due {
            while self.count > 0 && left >= 0 {
                self.slow_down(aim);
                left = since(now, self.drop_next);
            }
        }
        if self.chance > 0 && reason.is_none() && rng.next_u32() < self.chance {
            reason = Some(DropReason::FloodProtection);
        }
        if self.count == 0 {
            self.drop_next = now.wrapping_add(aim.interval);
        } else if left > 0 && reason.is_none() {
            self.drop_next = now;
        }
        (marked, reason)
    }

    /// Returns what `tc -s class show` shows of a flow; the time to the next drop may lie in the
    /// past.
    pub(super) fn of_flow(&self, deficit: i32, now: u64) -> [(&'static str, i64); 6] {
        [
            ("deficit", deficit.into()),
            ("count", self.count.into()),
            ("dropping", self.dropping.into()),
            ("drop_next_ns", since(now, self.drop_next)),
            ("blue_prob", self.chance.into()),
            ("blue_timer_ns", since(now, self.blue_at)),
        ]
    }

    /// Decrements the drop count and moves the next drop to a later time.
    fn slow_down(&mut self, aim: &Aim) {
        self.count -= 1;
        self.improve();
        self.drop_next = self.after(self.drop_next, aim);
    }

    fn improve(&mut self) {
        let known = INVERSE_ROOTS.get(self.count as usize);
        self.inverse_root = known.copied().unwrap_or_else(|| newton(self.inverse_root, self.count));
    }

    /// Returns the time `interval / sqrt(count)` after `then`, in nanoseconds. As in Linux, only
    /// the lower 32 bits of the interval count, which makes a difference for intervals from 4.3 s
    /// on.
    #[inline]
    fn after(&self, then: u64, aim: &Aim) -> u64 {
        let interval = aim.interval & u64::from(u32::MAX);
        then.wrapping_add((interval * u64::from(self.inverse_root)) >> 32)
    }
}
