//! One rate for several ports, without a lock.
//!
//! Every member says whether it has something to send. Every [`RECOUNT_NS`] each of them counts
//! those that do, or did a moment ago, or have not paid for what they sent yet, and goes at that
//! part of the rate. So the sum is right but for the moments after a member came or went.
//!
//! Theorem: while the members that have something to send do not change, they let through at most
//! `rate · (t + SLACK_NS)` and a packet each in a time `t`, and no less than `rate · t` less a
//! packet each, if no timer is later than `SLACK_NS`. A member that comes counts at once; the
//! others learn of it within `RECOUNT_NS`, if they are looked at so often: until then the sum is
//! exceeded. One that goes is missed when those that wait look again, after at most `WAIT_MAX_NS`.
//!
//! Source: the idea is that of `cake_mq` (Linux 7.2, `net/sched/sch_cake.c`; J. Köppeler et al.,
//! 2025).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::{Instant, Rate};

/// How often a member counts the others, nanoseconds.
const RECOUNT_NS: u64 = 200_000;
/// How far a member that has something to send may be behind and catch up: what a timer is late.
const SLACK_NS: u64 = 1_000_000;
/// How long a member that has siblings waits at most before it counts them again: a slow one would
/// wait for long for those that went.
const WAIT_MAX_NS: u64 = 5_000_000;
/// It has something to send.
const ACTIVE: u64 = u64::MAX;

/// A rate that members have together. Make one [`Share`] for each.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<Shared>);

struct Shared {
    /// Bytes per second; 0 = no limit.
    rate: AtomicU64,
    members: Box<[Member]>,
}

/// Until when the member had something to send or to pay for, nanoseconds; [`ACTIVE`]: it has
/// something to send. Each on lines of its own, for each is written by another thread.
#[derive(Default)]
#[repr(align(128))]
struct Member(AtomicU64);

/// One member's part. `&mut self` is the member's own lock.
#[derive(Debug)]
pub struct Share {
    of: SharedRate,
    member: usize,
    active: bool,
    /// Members that were active when it last counted, itself included.
    siblings: u32,
    counted_at: Instant,
    /// Bytes sent and not yet paid for by time, at `at`; less than zero: it is late.
    debt: f64,
    at: Instant,
}

impl SharedRate {
    /// A rate for at most `members` members.
    #[must_use]
    pub fn new(rate: Rate, members: usize) -> Self {
        let members = (0..members).map(|_| Member::default()).collect();
        Self(Arc::new(Shared { rate: AtomicU64::new(rate.0), members }))
    }

    /// The part of `member`, counted from 0. Take each once: two would write the same cell.
    ///
    /// # Panics
    ///
    /// Panics when there are not so many members.
    #[must_use]
    pub fn share(&self, member: usize) -> Share {
        assert!(member < self.0.members.len(), "member {member} of {}", self.0.members.len());
        let (of, at) = (self.clone(), Instant(0));
        Share { of, member, active: false, siblings: 1, counted_at: at, debt: 0.0, at }
    }

    /// Changes the rate, for packets from now on.
    pub fn set(&self, rate: Rate) {
        self.0.rate.store(rate.0, Ordering::Relaxed); // Relaxed: a number that stands alone.
    }

    /// The rate.
    #[must_use]
    pub fn get(&self) -> Rate {
        Rate(self.0.rate.load(Ordering::Relaxed)) // Relaxed: as above.
    }

    /// Members that have something to send, or had after `since`.
    fn active(&self, since: Instant) -> u32 {
        // Relaxed: whoever came since is counted next time.
        let until = |member: &Member| member.0.load(Ordering::Relaxed);
        let active = self.0.members.iter().filter(|member| until(member) > since.0).count();
        u32::try_from(active).unwrap_or(u32::MAX)
    }
}

impl Share {
    /// Says whether the member has something to send, and counts the others when it is time.
    #[inline]
    pub fn update_active(&mut self, now: Instant, has_packets: bool) {
        if self.active != has_packets {
            self.pay(now);
            self.active = has_packets;
            // One that went counts until it has paid: its last packet is part of the sum, too.
            let until = if has_packets { ACTIVE } else { now.after(self.wait()).0 };
            // Relaxed: a number that stands alone, written by this member only.
            self.of.0.members[self.member].0.store(until, Ordering::Relaxed);
            if has_packets {
                // What it did not use while it had nothing to send is gone.
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

    /// Bytes per nanosecond; infinite without a limit.
    fn speed(&self) -> f64 {
        match self.of.get().0 {
            0 => f64::INFINITY,
            rate => float(rate) / 1e9 / f64::from(self.siblings),
        }
    }

    /// Lets the time until `now` pay.
    fn pay(&mut self, now: Instant) {
        let (speed, passed) = (self.speed(), float(now.since(self.at)));
        self.at = self.at.max(now);
        self.debt = if speed.is_infinite() {
            0.0
        } else {
            (self.debt - passed * speed).max(-float(SLACK_NS) * speed)
        };
    }

    /// When to ask again whether a packet may go, if it may not now.
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

    /// How long the debt takes to pay at the present part of the rate, nanoseconds: any debt takes
    /// one at least.
    fn wait(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and a cast of a float stays in range"
        )]
        let wait = (self.debt.max(0.0) / self.speed()).ceil() as u64;
        wait
    }

    /// Charges a packet of `bytes` on the wire.
    #[inline]
    pub fn charge(&mut self, bytes: u32) {
        self.debt += f64::from(bytes);
    }
}

/// As a float, which is exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "said above")]
const fn float(n: u64) -> f64 {
    n as f64
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.members[self.member].0.store(0, Ordering::Relaxed); // Relaxed: as in `look`.
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRate")
            .field("rate", &Rate(self.rate.load(Ordering::Relaxed))) // Relaxed: as in `get`.
            .field("members", &self.members.len())
            .finish()
    }
}
