//! Credits in time: a sender may have as many bytes in flight as leave within a given time, at the
//! rate at which its packets have left lately.
//!
//! Source: Linux `net/ipv4/tcp_output.c` (`tcp_small_queue_check`): the larger of two packets and
//! of what leaves in about a millisecond at the socket's pacing rate. Linux knows that rate; a
//! sender measures it in its completions.

use std::mem;
use std::time::Duration;

use onramp_queue::{Completion, Packet, Pool};

use super::Sender;

/// The credits of a sender in time, and the rate of its packets.
#[derive(Debug)]
pub(super) struct CreditTime {
    time_ns: u64,
    /// What the credits of the sender allow in any case, bytes of payload.
    most: u32,
    /// When a packet of the sender last left its port.
    last_left_ns: u64,
    /// The present window: what has left since it began.
    window: Left,
    /// How much may be in flight, by the window before the present one.
    pub(super) limit: u32,
    /// Whether the next packet may exceed the limit: when the sender last looked for room, it had
    /// nothing in flight, so nothing would come home for which it could wait.
    excused: bool,
}

/// What packets have left in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Bytes of payload that were sent.
    bytes: u64,
    /// How long packets of the sender have waited meanwhile, nanoseconds.
    busy_ns: u64,
}

/// What came home together, in no particular order.
#[derive(Debug)]
struct Batch {
    bytes: u64,
    first_pushed_ns: u64,
    last_left_ns: u64,
}

impl CreditTime {
    fn new(time: Duration, most: u32) -> Self {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self { time_ns, most, last_left_ns: 0, window: Left::default(), limit: 0, excused: false }
    }

    /// Takes in the packets that came home, as [`Pool::reclaim_tagged`] does, and measures.
    pub(super) fn reclaim(
        &mut self,
        pool: &mut Pool,
        mut report: impl FnMut(Completion, u16),
    ) -> u32 {
        let mut batch = Batch { bytes: 0, first_pushed_ns: u64::MAX, last_left_ns: 0 };
        let count = pool.reclaim_tagged(|completion, tag| {
            batch.add(&completion);
            report(completion, tag);
        });
        self.add(&batch);
        pool.allow_bytes(self.limit);
        count
    }

    /// Counts a batch. Time in which the sender had no packet in its port does not count: it says
    /// how fast the program is, not how fast the link is.
    fn add(&mut self, batch: &Batch) {
        let Self { time_ns, most, last_left_ns, window, limit, .. } = self;
        let began = batch.first_pushed_ns.max(*last_left_ns);
        window.bytes += batch.bytes;
        window.busy_ns += batch.last_left_ns.saturating_sub(began);
        *last_left_ns = batch.last_left_ns.max(*last_left_ns);
        // A window ends after the time for which it shall tell the rate. If the credits have left
        // before that, the rate is too high to bound anything.
        if window.busy_ns >= *time_ns || window.bytes >= u64::from(*most) {
            *limit = window.within(*time_ns).min(*most);
            *window = Left::default();
        }
    }

    /// Returns how many bytes may be in flight if the next packet has this payload: two such
    /// packets in any case.
    fn limit(&self, payload: u32) -> u32 {
        self.limit.max(payload.saturating_mul(2))
    }
}

impl Left {
    /// Returns how many bytes leave within this time, at most.
    fn within(self, time_ns: u64) -> u32 {
        let bytes = u128::from(self.bytes) * u128::from(time_ns);
        u32::try_from(bytes / u128::from(self.busy_ns.max(1))).unwrap_or(u32::MAX)
    }
}

impl Batch {
    fn add(&mut self, completion: &Completion) {
        let Some(left_ns) = completion.left_ns else { return };
        self.first_pushed_ns = self.first_pushed_ns.min(completion.pushed_ns);
        self.last_left_ns = self.last_left_ns.max(left_ns);
        if completion.drop_reason.is_none() {
            self.bytes += u64::from(completion.payload);
        }
    }
}

impl Sender {
    /// Sets the credits of this sender in time: it may have as many bytes in flight as leave within
    /// `time` at the rate at which its packets leave, but two packets in any case, and never more
    /// than its [credits](crate::Link::sender_with). Packets under a cork count as well, and so do
    /// packets that the caller has [made](Self::packet) and keeps, but a sender that has nothing
    /// else in flight need not wait for these. `None`: the credits alone bound it. Default: what
    /// [`LinkBuilder::credit_time`](crate::LinkBuilder::credit_time) says.
    ///
    /// Use it for a short queue below a flow whose rate is not known beforehand: a packet then
    /// waits for `time` at most, about, at any rate of a shaper, and what waits longer stays in the
    /// program, which can still change its mind. The rate is measured while packets wait, over
    /// `time` each; until then, two packets may be in flight.
    ///
    /// 1 to 10 ms are good values. A time in the range of a thread's wake-up (0.1 ms) or below the
    /// delay of a `netem` keeps the sender from its rate: it then waits for packets that have not
    /// had their time to leave.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use onramp::Link;
    ///
    /// let device = Box::new(onramp::dev::Null::default());
    /// let qdisc = "tbf rate 40mbit burst 3kb limit 1mb";
    /// let link = Link::devices([device as _]).qdisc(qdisc).build()?;
    /// let mut sender = link.sender();
    /// sender.set_credit_time(Some(Duration::from_millis(2)));
    /// let flow = sender.flow(None);
    /// for _ in 0..100 {
    ///     sender.send(&flow, &[0; 1_000])?;
    ///     // 10,000 bytes leave in 2 ms, headers included.
    ///     assert!(sender.in_flight() < 40, "the credits of the link are 96 packets");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_credit_time(&mut self, time: Option<Duration>) {
        let most = self.pool.credits().bytes;
        self.credit_time = time.map(|time| CreditTime::new(time, most));
        self.pool.allow_bytes(self.credit_time.as_ref().map_or(most, |bound| bound.limit));
    }

    /// Takes a packet from the pool if the sender's credits, also those in time, allow it.
    pub(super) fn take_in_time(&mut self, payload: usize) -> Option<Packet> {
        let bytes = u32::try_from(payload).unwrap_or(u32::MAX);
        let excused = self.credit_time.as_mut().is_some_and(|bound| mem::take(&mut bound.excused));
        self.in_time(bytes, excused, |pool| pool.take(payload))
    }

    /// Whether the sender's credits, also those in time, allow a packet now. The caller has no
    /// packets under a cork.
    pub(super) fn has_room(&mut self, payload: u32) -> bool {
        if self.in_time(payload, false, |pool| pool.has_room(payload)) {
            return true;
        }
        let is_idle = self.pool.below() == 0;
        let excused = is_idle && self.in_time(payload, true, |pool| pool.has_room(payload));
        if let Some(bound) = &mut self.credit_time {
            bound.excused = excused;
        }
        excused
    }

    /// Asks the pool for a packet of this payload. The pool knows only the bound by the rate, so
    /// that two small packets are not bounded by the two large ones that came before.
    fn in_time<R>(&mut self, payload: u32, excused: bool, ask: impl FnOnce(&mut Pool) -> R) -> R {
        let Self { pool, credit_time, .. } = self;
        let Some(bound) = credit_time else { return ask(pool) };
        pool.allow_bytes(if excused { u32::MAX } else { bound.limit(payload) });
        let answer = ask(pool);
        pool.allow_bytes(bound.limit);
        answer
    }
}

#[cfg(test)]
mod tests {
    use onramp_queue::DropReason;

    use super::*;

    const MS: u64 = 1_000_000;
    const SIZE: u32 = 1_250;

    /// Makes credits of 10 ms, and at most 100,000 bytes.
    fn ten_ms() -> CreditTime {
        CreditTime::new(Duration::from_millis(10), 100_000)
    }

    fn sent(pushed_ns: u64, left_ns: u64) -> Completion {
        let left_ns = Some(left_ns);
        let len = SIZE + 42;
        Completion { flow: 1, cookie: 0, drop_reason: None, len, payload: SIZE, pushed_ns, left_ns }
    }

    /// Reports these completions together.
    fn report(bound: &mut CreditTime, completions: impl IntoIterator<Item = Completion>) {
        let mut batch = Batch { bytes: 0, first_pushed_ns: u64::MAX, last_left_ns: 0 };
        completions.into_iter().for_each(|completion| batch.add(&completion));
        bound.add(&batch);
    }

    /// Sends packets that wait and leave one by one, each `gap` after the one before, from the time
    /// `from` on. They come home by fours, the latest first.
    fn paced(bound: &mut CreditTime, from: u64, gap: u64, count: u64) -> u64 {
        for first in (0..count).step_by(4) {
            let pushed_ns = from + first.saturating_sub(4) * gap;
            let latest_first = (first + 1..=first + 4).rev();
            report(bound, latest_first.map(|n| sent(pushed_ns, from + n * gap)));
        }
        from + count * gap
    }

    #[test]
    fn two_packets_may_be_in_flight_at_first() {
        let bound = ten_ms();
        assert_eq!((bound.limit(SIZE), bound.limit(9)), (2 * SIZE, 18));
        assert_eq!(bound.limit(u32::MAX), u32::MAX);
    }

    #[test]
    fn the_limit_follows_the_rate() {
        let mut bound = ten_ms();
        // 1,250 bytes in half a millisecond are 20 Mbit/s, and 25,000 bytes in 10 ms.
        let now = paced(&mut bound, MS, MS / 2, 20);
        assert_eq!(bound.limit(SIZE), 25_000);
        let now = paced(&mut bound, now, 5 * MS / 2, 4);
        assert_eq!(bound.limit(SIZE), 5_000, "a fifth of the rate, after one window");
        let now = paced(&mut bound, now, 100 * MS, 4);
        assert_eq!(bound.limit(SIZE), 2 * SIZE, "never less than two packets");
        paced(&mut bound, now, MS / 4, 40);
        assert_eq!(bound.limit(SIZE), 50_000);
    }

    #[test]
    fn a_pause_of_the_program_is_no_slowness_of_the_link() {
        let mut bound = ten_ms();
        let mut now = MS;
        for _ in 0..10 {
            now = paced(&mut bound, now, MS / 2, 8) + 1_000 * MS;
        }
        assert_eq!(bound.limit(SIZE), 25_000);
    }

    #[test]
    fn what_does_not_wait_has_no_limit() {
        let mut bound = ten_ms();
        for n in 0..80 {
            assert_eq!(bound.limit(SIZE), 2 * SIZE, "after {n} packets");
            report(&mut bound, [sent(n * MS, n * MS)]);
        }
        assert_eq!(bound.limit(SIZE), 100_000, "but the credits");
    }

    #[test]
    fn dropped_packets_are_no_rate() {
        let mut bound = ten_ms();
        let at = |n: u64| sent(MS, MS + n * MS / 2);
        let dropped = |n| Completion { drop_reason: Some(DropReason::Congested), ..at(n) };
        report(&mut bound, (1..=20).map(|n| if n % 2 == 0 { at(n) } else { dropped(n) }));
        assert_eq!(bound.limit(SIZE), 12_500);
        // Packets that were lost with their port say nothing.
        let lost = Completion { drop_reason: Some(DropReason::PortDead), left_ns: None, ..at(1) };
        report(&mut bound, [lost; 100]);
        report(&mut bound, []);
        assert_eq!((bound.limit, bound.window.busy_ns, bound.last_left_ns), (12_500, 0, 11 * MS));
    }

    #[test]
    fn no_time_is_too_long_or_too_short() {
        let mut bound = CreditTime::new(Duration::MAX, u32::MAX);
        report(&mut bound, [sent(0, u64::MAX)]);
        assert_eq!(bound.limit, SIZE);
        bound.window = Left { bytes: u64::MAX, busy_ns: 1 };
        assert_eq!(bound.window.within(u64::MAX), u32::MAX);
        let mut bound = CreditTime::new(Duration::ZERO, 100_000);
        report(&mut bound, [sent(0, MS)]);
        assert_eq!(bound.limit(SIZE), 2 * SIZE);
        report(&mut bound, [sent(MS, MS)]);
        assert_eq!(bound.limit(SIZE), 2 * SIZE);
    }
}
