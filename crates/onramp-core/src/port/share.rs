//! One rate for several ports, shared without a lock.
//!
//! Each port that shares the rate is a *member*. A member announces whether it has something to
//! send. Every [`RECOUNT_NS`] nanoseconds, a member counts the members that have something to send,
//! had something to send a moment ago, or have not yet paid with time for the bytes they sent. The
//! member then sends at the rate divided by that count. So the sum of all members is right, except
//! for a short time after a member became active or inactive.
//!
//! Theorem: as long as the same members have something to send, in any time `t` all members
//! together send at most `rate · (t + SLACK_NS)` plus one packet per member. They send at least
//! `rate · t` minus one packet per member, provided that no timer is later than `SLACK_NS`. A
//! member that becomes active counts the others at once. The others count the new member within
//! `RECOUNT_NS`, if they are served that often; until then the members together may exceed the
//! rate. When a member becomes inactive, its part is unused until the waiting members count again,
//! which takes at most `WAIT_MAX_NS`.
//!
//! Source: the idea is that of `cake_mq` (Linux 7.2, `net/sched/sch_cake.c`; J. Köppeler et al.,
//! 2025).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::{Instant, Rate};

/// Time between two counts of the active members, in nanoseconds.
const RECOUNT_NS: u64 = 200_000;
/// Most nanoseconds of unused rate that an active member may catch up on: the lateness of a timer.
const SLACK_NS: u64 = 1_000_000;
/// Longest wait, in nanoseconds, of a member that has siblings, before it counts them again.
/// Without this limit, a slow member would wait long for members that are no longer active.
const WAIT_MAX_NS: u64 = 5_000_000;
/// Value of a [`Member`] that has something to send.
const ACTIVE: u64 = u64::MAX;

/// A rate that several members have in common. Make one [`Share`] for each member.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<Shared>);

struct Shared {
    /// Bytes per second; 0 means no limit.
    rate: AtomicU64,
    members: Box<[Member]>,
}

/// Time in nanoseconds until which the member had something to send or to pay for, or [`ACTIVE`]
/// while the member has something to send. Each `Member` has cache lines of its own, because each
/// is written by a different thread.
#[derive(Default)]
#[repr(align(128))]
struct Member(AtomicU64);

/// One member's part of a [`SharedRate`]. A member has exclusive access to its part, through
/// `&mut self`.
#[derive(Debug)]
pub struct Share {
    of: SharedRate,
    member: usize,
    active: bool,
    /// Number of active members when this member last counted, including this member.
    siblings: u32,
    counted_at: Instant,
    /// Bytes that the member has sent and not yet paid for with time, at time `at`. A negative debt
    /// means that the member is behind its part of the rate and may catch up.
    debt: f64,
    at: Instant,
}

impl SharedRate {
    /// Creates a rate for at most `members` members.
    #[must_use]
    pub fn new(rate: Rate, members: usize) -> Self {
        let members = (0..members).map(|_| Member::default()).collect();
        Self(Arc::new(Shared { rate: AtomicU64::new(rate.as_bytes_per_second()), members }))
    }

    /// Returns the part of member number `member`, counted from 0. Call `share` only once for each
    /// member: two parts with the same number would overwrite each other's state.
    ///
    /// # Panics
    ///
    /// Panics if `member` is not less than the number of members.
    #[must_use]
    pub fn share(&self, member: usize) -> Share {
        assert!(member < self.0.members.len(), "member {member} of {}", self.0.members.len());
        let (of, at) = (self.clone(), Instant(0));
        Share { of, member, active: false, siblings: 1, counted_at: at, debt: 0.0, at }
    }

    /// Changes the rate for all packets from now on.
    pub fn set(&self, rate: Rate) {
        // Relaxed: no other data depends on this number.
        self.0.rate.store(rate.as_bytes_per_second(), Ordering::Relaxed);
    }

    /// Returns the rate.
    #[must_use]
    pub fn get(&self) -> Rate {
        Rate::bytes_per_second(self.0.rate.load(Ordering::Relaxed)) // Relaxed: as in `set`.
    }

    /// Returns the number of members that have something to send, or had after `since`.
    fn active(&self, since: Instant) -> u32 {
        // Relaxed: a member whose change is not yet visible is counted next time.
        let until = |member: &Member| member.0.load(Ordering::Relaxed);
        let active = self.0.members.iter().filter(|member| until(member) > since.0).count();
        u32::try_from(active).unwrap_or(u32::MAX)
    }
}

impl Share {
    /// Announces whether the member has something to send, and counts the active members if the
    /// last count is too old.
    #[inline]
    pub fn update_active(&mut self, now: Instant, has_packets: bool) {
        if self.active != has_packets {
            self.pay(now);
            self.active = has_packets;
            // A member that becomes inactive counts as active until it has paid for its last
            // packet, because that packet is part of the total rate too.
            let until = if has_packets { ACTIVE } else { now.after(self.wait()).0 };
            // Relaxed: no other data depends on this number, and only this member writes it.
            self.of.0.members[self.member].0.store(until, Ordering::Relaxed);
            if has_packets {
                // Rate that the member did not use while it had nothing to send is lost.
                self.debt = self.debt.max(0.0);
                self.count(now);
            }
        } else if has_packets && now.since(self.counted_at) >= RECOUNT_NS {
            self.pay(now);
            self.count(now);
        }
    }

    fn count(&mut self, now: Instant) {
        self.counted_at = now;
        self.siblings = self.of.active(Instant(now.0.saturating_sub(RECOUNT_NS))).max(1);
    }

    /// Returns this member's part of the rate in bytes per nanosecond; infinite if there is no
    /// limit.
    fn speed(&self) -> f64 {
        match self.of.get().as_bytes_per_second() {
            0 => f64::INFINITY,
            rate => float(rate) / 1e9 / f64::from(self.siblings),
        }
    }

    /// Reduces the debt by the time that has passed until `now`.
    fn pay(&mut self, now: Instant) {
        let (speed, passed) = (self.speed(), float(now.since(self.at)));
        self.at = self.at.max(now);
        self.debt = if speed.is_infinite() {
            0.0
        } else {
            (self.debt - passed * speed).max(-float(SLACK_NS) * speed)
        };
    }

    /// Returns `None` if the member may send a packet now, otherwise the time at which to ask
    /// again.
    #[must_use]
    #[inline]
    pub fn not_before(&mut self, now: Instant) -> Option<Instant> {
        self.pay(now);
        if self.debt <= 0.0 {
            return None;
        }
        let wait_max = if self.siblings > 1 { WAIT_MAX_NS } else { u64::MAX };
        Some(now.after(self.wait().min(wait_max)))
    }

    /// Returns the time that the debt takes to pay at the present part of the rate, in nanoseconds.
    /// Any positive debt takes at least 1 ns.
    fn wait(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and a cast of a float stays in range"
        )]
        let wait = (self.debt.max(0.0) / self.speed()).ceil() as u64;
        wait
    }

    /// Charges the member for a packet of `bytes` bytes on the wire.
    #[inline]
    pub fn charge(&mut self, bytes: u32) {
        self.debt += f64::from(bytes);
    }
}

/// Converts to a float, exactly up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "said above")]
const fn float(n: u64) -> f64 {
    n as f64
}

impl Drop for Share {
    fn drop(&mut self) {
        // Relaxed: as in `update_active`.
        self.of.0.members[self.member].0.store(0, Ordering::Relaxed);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRate")
            // Relaxed: as in `get`.
            .field("rate", &Rate::bytes_per_second(self.rate.load(Ordering::Relaxed)))
            .field("members", &self.members.len())
            .finish()
    }
}
