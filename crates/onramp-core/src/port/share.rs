//! A rate that several ports have in common, divided between them without a lock.
//!
//! Each port that shares the rate is a *member*. A member announces whether it has packets to send.
//! Every [`RECOUNT_NS`] nanoseconds, a member counts the active members. A member is active while
//! it has packets to send, then for as long as its last packet takes at its part of the rate, and
//! then for [`RECOUNT_NS`] nanoseconds more. The member then sends at the shared rate divided by
//! that count. So all members together send at the shared rate, except for a short time after a
//! member became active or inactive.
//!
//! Theorem: as long as the same members have packets to send, in any time `t` all members together
//! send at most `rate · (t + SLACK_NS)` plus one packet per member. They send at least `rate · t`
//! minus one packet per member, provided that no timer is later than `SLACK_NS`. A member that
//! becomes active counts the others at once. The other members count the new one within
//! `RECOUNT_NS`, if their ports have an owner that often; until then the members together may
//! exceed the rate. When a member becomes inactive, its part of the rate is unused until the other
//! members count again. A member that waits for its next packet's time counts again after at most
//! `WAIT_MAX_NS`.
//!
//! Source: the idea is that of `cake_mq` (Linux 7.2, `net/sched/sch_cake.c`; J. Köppeler et al.,
//! 2025).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::sync::ShareWord;
use crate::base::{Instant, Rate};

/// After this time, in nanoseconds, a member counts the active members again.
const RECOUNT_NS: u64 = 200_000;
/// If an active member has sent less than its part of the rate allows, it may make up for at most
/// the bytes of this time, in nanoseconds. So a timer may wake the member late by this time without
/// loss.
const SLACK_NS: u64 = 1_000_000;
/// If a member shares the rate with other active members, it waits for at most this long, in
/// nanoseconds, before it counts them again. Without this limit, a slow member would wait long for
/// members that are no longer active.
const WAIT_MAX_NS: u64 = 5_000_000;
/// The value that a [`Member`] contains while the member has packets to send.
const ACTIVE: u64 = u64::MAX;

/// A rate that several ports (members) have in common. Make one [`Share`] for each member.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<Shared>);

struct Shared {
    /// The rate in bytes per second; 0 means no limit.
    rate: ShareWord,
    members: Box<[Member]>,
}

/// The time until which the member counts as active, in nanoseconds, or [`ACTIVE`] while the member
/// has packets to send. Each `Member` has cache lines of its own, because each is written by a
/// different thread.
#[derive(Default)]
#[repr(align(128))]
struct Member(ShareWord);

/// One member's part of a [`SharedRate`]. Only the member uses it, through `&mut self`.
#[derive(Debug)]
pub struct Share {
    of: SharedRate,
    member: usize,
    active: bool,
    /// Number of active members, this member included, when this member last counted them.
    siblings: u32,
    counted_at: Instant,
    /// Bytes that the member has sent, up to the time `at`, beyond what its part of the rate
    /// allows. A negative number means that the member has sent less than that, and may make up for
    /// it.
    debt: f64,
    at: Instant,
}

impl SharedRate {
    /// Creates a rate that at most `members` members have in common.
    #[must_use]
    pub fn new(rate: Rate, members: usize) -> Self {
        let members = (0..members).map(|_| Member::default()).collect();
        Self(Arc::new(Shared { rate: ShareWord::new(rate.as_bytes_per_second()), members }))
    }

    /// Returns the part of the member with the number `member`, counted from 0. Call `share` only
    /// once for each member: two parts with the same number would overwrite each other's state.
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

    /// Changes the rate of all members together, for all packets from now on.
    pub fn set(&self, rate: Rate) {
        // Relaxed: no other data depends on this number.
        self.0.rate.store(rate.as_bytes_per_second(), Ordering::Relaxed);
    }

    /// Returns the rate of all members together.
    #[must_use]
    pub fn get(&self) -> Rate {
        // Relaxed: no other data depends on this number.
        Rate::bytes_per_second(self.0.rate.load(Ordering::Relaxed))
    }

    /// Returns the number of active members: those that have packets to send, and those whose
    /// [`Member`] contains a time after `since`.
    fn active(&self, since: Instant) -> u32 {
        // Relaxed: if a member's change is not visible yet, the next count sees it.
        let until = |member: &Member| member.0.load(Ordering::Relaxed);
        let active = self.0.members.iter().filter(|member| until(member) > since.0).count();
        u32::try_from(active).unwrap_or(u32::MAX)
    }
}

impl Share {
    /// Announces whether the member has packets to send, and counts the active members if the last
    /// count is too old.
    #[inline]
    pub fn update_active(&mut self, now: Instant, has_packets: bool) {
        if self.active != has_packets {
            self.pay(now);
            self.active = has_packets;
            // A member that has no more packets counts as active until the time for its last packet
            // has passed, because that packet is part of the shared rate too.
            let until = if has_packets { ACTIVE } else { now.after(self.wait()).0 };
            // Relaxed: no other data depends on this number, and only this member writes it.
            self.of.0.members[self.member].0.store(until, Ordering::Relaxed);
            if has_packets {
                // A member cannot make up for a time in which it had no packets to send.
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

    /// Returns this member's part of the rate in bytes per nanosecond, or infinity if there is no
    /// limit.
    fn speed(&self) -> f64 {
        match self.of.get().as_bytes_per_second() {
            0 => f64::INFINITY,
            rate => float(rate) / 1e9 / f64::from(self.siblings),
        }
    }

    /// Reduces `debt` by the bytes that the member's part of the rate allows from the time `at` to
    /// `now`, and sets `at` to `now`.
    fn pay(&mut self, now: Instant) {
        let (speed, passed) = (self.speed(), float(now.since(self.at)));
        self.at = self.at.max(now);
        self.debt = if speed.is_infinite() {
            0.0
        } else {
            (self.debt - passed * speed).max(-float(SLACK_NS) * speed)
        };
    }

    /// Returns `None` if the member may send a packet now. Otherwise returns the time at which to
    /// call `not_before` again.
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

    /// Returns in how many nanoseconds `debt` will be zero at the member's present part of the
    /// rate. The result is at least 1 if there is a debt.
    fn wait(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and a cast of a float stays in range"
        )]
        let wait = (self.debt.max(0.0) / self.speed()).ceil() as u64;
        wait
    }

    /// Adds a packet of `bytes` bytes on the wire, which the member sends, to `debt`.
    #[inline]
    pub fn charge(&mut self, bytes: u32) {
        self.debt += f64::from(bytes);
    }
}

/// Converts a number to a float, exactly up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "said above")]
const fn float(n: u64) -> f64 {
    n as f64
}

impl Drop for Share {
    fn drop(&mut self) {
        // Relaxed: no other data depends on this number.
        self.of.0.members[self.member].0.store(0, Ordering::Relaxed);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRate")
            // Relaxed: no other data depends on this number.
            .field("rate", &Rate::bytes_per_second(self.rate.load(Ordering::Relaxed)))
            .field("members", &self.members.len())
            .finish()
    }
}
