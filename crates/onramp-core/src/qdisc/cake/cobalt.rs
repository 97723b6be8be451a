//! COBALT, the active queue management of each flow of `cake`: CoDel for flows that respond to
//! congestion, and BLUE for flows that do not.
//!
//! When a queue has become short again, the CoDel of this file does not reset its drop count: it
//! decrements the count, once for each time at which it would have dropped a packet. BLUE drops
//! packets with a probability that grows each time memory runs out, and shrinks each time the queue
//! runs empty.
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

const KNOWN: usize = 16;

/// The values of 1 / sqrt(count) for drop counts from 0 on, in units of 2^-32. For a count beyond
/// this table, one step of Newton's method computes the value from the value for the count before.
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

/// Returns the next approximation x of 1 / sqrt(count) by Newton's method: x becomes x (3 - count
/// x^2) / 2. Far from the exact value the step overflows, as in Linux; the next steps correct that.
fn newton(root: u32, count: u32) -> u32 {
    let x = u64::from(root);
    let square = (x * x) >> 32;
    let rest = (3_u64 << 32).wrapping_sub(u64::from(count).wrapping_mul(square));
    ((rest >> 2).wrapping_mul(x) >> 31) as u32
}

/// Returns the nanoseconds from `then` to `now`; negative if `then` is later than `now`.
#[inline]
pub(super) fn since(now: u64, then: u64) -> i64 {
    now.wrapping_sub(then).cast_signed()
}

/// The delays at which COBALT aims, in nanoseconds. All flows of a tin have the same `Aim`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aim {
    pub(super) target: u64,
    pub(super) interval: u64,
    /// How long a packet of the largest size takes at the tin's rate, in nanoseconds.
    pub(super) mtu_time: u64,
}

/// The COBALT state of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cobalt {
    /// The time at which CoDel drops next, in nanoseconds. While `count` is 0: the time until which
    /// an empty flow is remembered.
    drop_next: u64,
    /// When BLUE's probability last changed, in nanoseconds.
    blue_at: u64,
    /// Number of drops from which CoDel computes the time to its next drop.
    count: u32,
    inverse_root: u32,
    /// BLUE's drop probability, in units of 2^-32.
    chance: u32,
    dropping: bool,
}

impl Cobalt {
    /// Whether the state of this flow, which holds no packets, equals the state of a new flow, so
    /// that the flow may be forgotten.
    #[inline]
    pub(super) fn is_at_rest(&self, now: u64) -> bool {
        self.chance == 0 && self.count == 0 && since(now, self.drop_next) >= 0
    }

    /// Notes that this flow had the longest queue when memory ran out. Returns true if BLUE now
    /// begins to drop packets of this flow (the flow becomes unresponsive).
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

    /// Notes that the flow is empty. Returns true if the flow stops being unresponsive (BLUE no
    /// longer drops its packets).
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

    /// Decides about the packet that would leave next. Returns whether the packet was marked, and
    /// the reason to drop the packet (`None`: do not drop it). A packet has waited for too long if
    /// it waited for longer than the target, and for longer than the tin's rate takes to send 2 *
    /// `ingress_flows` packets of the largest size (4 packets if there are fewer than 2 such
    /// flows).
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

    /// Returns what `tc -s class show` shows of a flow. `drop_next_ns` is the time since the next
    /// drop was due; it is negative while that drop lies in the future.
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

    /// Decrements the drop count and moves the time of the next drop further into the future.
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
