//! A member's share of a rate that several members divide, exact to the nanosecond: how long the
//! member waits after it has sent, when it counts the other members, and for how long the others
//! count it. At 1 GB/s, a byte takes one nanosecond times the number of members that have something
//! to send.

use onramp_core::{Instant, Rate, Share, SharedRate};

const START: Instant = Instant(1_000_000_000);
const RATE: Rate = Rate::bytes_per_second(1_000_000_000);
const MS: u64 = 1_000_000;
/// The time in nanoseconds after which a member counts the other members again.
const RECOUNT: u64 = 200_000;

/// Returns for how many nanoseconds the member must wait until it may send, or should ask again.
/// Returns 0 if it may send now.
fn wait(share: &mut Share, now: Instant) -> u64 {
    share.not_before(now).map_or(0, |then| then.since(now))
}

/// Returns the number of members, itself included, that member number `member` counts when it joins
/// at `now`.
fn members(rate: &SharedRate, member: usize, now: Instant) -> u64 {
    let mut share = rate.share(member);
    share.update_active(now, true);
    share.charge(1_000);
    wait(&mut share, now) / 1_000
}

/// A member that has just been made may send at once, at any time.
#[test]
fn a_new_member_owes_nothing() {
    let mut share = SharedRate::new(RATE, 2).share(0);
    assert_eq!(wait(&mut share, Instant(0)), 0);
    share.charge(100);
    assert_eq!(share.not_before(Instant(10)), Some(Instant(100)));
    assert_eq!(share.not_before(Instant(99)), Some(Instant(100)));
    assert_eq!(share.not_before(Instant(100)), None);
}

/// Each byte that a member sends must be paid for with the time that it takes at the rate, rounded
/// up to whole nanoseconds.
#[test]
fn each_byte_is_charged() {
    for (rate, bytes, ns) in [
        (RATE, 1, 1),
        (RATE, 1_514, 1_514),
        (Rate::bytes_per_second(2_000_000_000), 1, 1),
        (Rate::bytes_per_second(2_000_000_000), 3, 2),
        (Rate::bytes_per_second(500_000_000), 3, 6),
        // At a little less than a third of a byte per nanosecond, a byte takes a little more than 3
        // ns, rounded up to 4.
        (Rate::bytes_per_second(333_333_333), 1, 4),
    ] {
        let mut share = SharedRate::new(rate, 1).share(0);
        share.update_active(START, true);
        share.charge(bytes);
        assert_eq!(wait(&mut share, START), ns, "{bytes} bytes at {rate}");
        assert_eq!(wait(&mut share, START.after(ns)), 0);
    }
}

/// A member that is woken late may catch up by at most the bytes of a millisecond at its share of
/// the rate.
#[test]
fn late_by_a_millisecond_at_most() {
    for (rate, bytes_in_ms) in
        [(RATE, 1_000_000), (Rate::bytes_per_second(2_000_000_000), 2_000_000)]
    {
        for (late, part) in [(MS / 2, 2), (MS, 1), (MS + 1, 1), (50 * MS, 1)] {
            let mut share = SharedRate::new(rate, 1).share(0);
            share.update_active(START, true);
            let now = START.after(late);
            assert_eq!(wait(&mut share, now), 0);
            share.charge(bytes_in_ms / part);
            assert_eq!(wait(&mut share, now), 0, "{late} late");
            share.charge(4);
            assert_eq!(wait(&mut share, now), 4_000_000 / u64::from(bytes_in_ms), "{late} late");
        }
    }
}

/// When the clock goes back, a stretch of time passes twice. A member that waits because of what it
/// has sent counts that time only once.
#[test]
fn time_that_goes_back_does_not_pay() {
    let mut share = SharedRate::new(RATE, 1).share(0);
    share.update_active(START, true);
    share.charge(1_000);
    assert_eq!(wait(&mut share, START.after(400)), 600);
    assert_eq!(wait(&mut share, START.after(100)), 600);
    assert_eq!(wait(&mut share, START.after(400)), 600);
}

/// A member that is alone waits as long as all the bytes that it sent take at the rate. A member
/// among others asks again after at most 5 ms, because its share may have changed.
#[test]
fn who_has_siblings_asks_again_after_five_milliseconds() {
    for (bytes, alone, shared) in
        [(2_000_000, 2 * MS, 4 * MS), (2_500_000, 2_500_000, 5 * MS), (9_000_000, 9 * MS, 5 * MS)]
    {
        let rate = SharedRate::new(RATE, 2);
        let mut share = rate.share(0);
        share.update_active(START, true);
        share.charge(bytes);
        assert_eq!(wait(&mut share, START), alone);
        let mut other = rate.share(1);
        other.update_active(START, true);
        other.charge(bytes);
        assert_eq!(wait(&mut other, START), shared);
    }
}

/// A member counts the others when it joins, and then every 200 us while it has something to send.
/// Between two counts, it assumes the number of members of the last count.
#[test]
fn siblings_are_counted_every_two_hundred_microseconds() {
    let rate = SharedRate::new(RATE, 2);
    let (mut share, mut other) = (rate.share(0), rate.share(1));
    share.update_active(START, true);
    share.charge(1_000_000);
    other.update_active(START, true);
    other.charge(1_000_000);
    assert_eq!((wait(&mut share, START), wait(&mut other, START)), (MS, 2 * MS));
    for after in [1, RECOUNT / 2, RECOUNT - 1] {
        let now = START.after(after);
        share.update_active(now, true);
        assert_eq!(wait(&mut share, now), MS - after, "it knows of none");
    }
    // The time for the first 200,000 bytes has passed. From now on, the member counts two members,
    // so its remaining bytes take twice as long.
    let now = START.after(RECOUNT);
    share.update_active(now, true);
    assert_eq!(wait(&mut share, now), 2 * (MS - RECOUNT));
    // The `Share` of the other member is dropped. The first member notices that only when it counts
    // the next time.
    drop(other);
    let before = now.after(RECOUNT - 1);
    share.update_active(before, true);
    assert_eq!(wait(&mut share, before), 2 * (MS - RECOUNT) - (RECOUNT - 1));
    let now = now.after(RECOUNT);
    share.update_active(now, true);
    assert_eq!(wait(&mut share, now), MS - RECOUNT - RECOUNT / 2);
}

/// A member that has nothing to send does not count the others. It waits for the bytes that it has
/// sent according to the share that it had when it last counted.
#[test]
fn who_has_nothing_to_send_counts_nobody() {
    let rate = SharedRate::new(RATE, 2);
    let (mut share, mut other) = (rate.share(0), rate.share(1));
    share.update_active(START, true);
    share.charge(10_000_000);
    share.update_active(START, false);
    other.update_active(START, true);
    let now = START.after(RECOUNT);
    share.update_active(now, false);
    assert_eq!(wait(&mut share, now), 10 * MS - RECOUNT);
}

/// After a member has stopped sending, the others count it for as long as the bytes that it sent
/// take at its share, and for 200 us more.
#[test]
fn who_went_counts_for_a_while() {
    for debt in [0, 1_000, 700_000] {
        let rate = SharedRate::new(RATE, 2);
        let mut share = rate.share(0);
        share.update_active(START, true);
        share.charge(debt);
        share.update_active(START, false);
        let paid = START.after(debt.into());
        assert_eq!(members(&rate, 1, START), 2, "{debt}");
        assert_eq!(members(&rate, 1, paid.after(RECOUNT / 2)), 2, "{debt}");
        assert_eq!(members(&rate, 1, paid.after(RECOUNT - 1)), 2, "{debt}");
        assert_eq!(members(&rate, 1, paid.after(RECOUNT)), 1, "{debt}");
        assert_eq!(members(&rate, 1, paid.after(RECOUNT * 3 / 2)), 1, "{debt}");
    }
    // A member that still has something to send is counted at any later time.
    let rate = SharedRate::new(RATE, 2);
    let mut share = rate.share(0);
    share.update_active(START, true);
    assert_eq!(members(&rate, 1, START.after(1 << 50)), 2);
}

/// A member that never joined is not counted, whatever the time is. A member whose `Share` was
/// dropped is no longer counted.
#[test]
fn nobody_counts_who_is_not_there() {
    let rate = SharedRate::new(RATE, 5);
    for now in [Instant(0), Instant(100), Instant(RECOUNT), START] {
        assert_eq!(members(&rate, 0, now), 1, "{now:?}");
        let mut share = rate.share(1);
        share.update_active(now, true);
        assert_eq!(members(&rate, 0, now), 2, "{now:?}");
        drop(share);
        assert_eq!(members(&rate, 0, now), 1, "{now:?}");
    }
}

/// A member that had nothing to send for a while has not saved up bytes to send at once, and must
/// still wait for the bytes that it sent before.
#[test]
fn a_member_that_comes_back_has_its_debt_alone() {
    for (sent, waits) in [(0, 0), (5_000, 4_000)] {
        let mut share = SharedRate::new(RATE, 1).share(0);
        share.update_active(START, true);
        share.charge(sent);
        share.update_active(START, false);
        let back = START.after(1_000);
        share.update_active(back, true);
        assert_eq!(wait(&mut share, back), waits);
        share.charge(10);
        assert_eq!(wait(&mut share, back), waits + 10);
    }
}

/// Each member's `Share` should be made only once. If it is made twice, and one of the two is
/// dropped, the member that has the other one still obeys the rate.
#[test]
fn a_member_that_was_taken_twice_is_limited() {
    let rate = SharedRate::new(RATE, 2);
    let (mut share, twin) = (rate.share(0), rate.share(0));
    share.update_active(START, true);
    drop(twin);
    let now = START.after(RECOUNT);
    share.update_active(now, true);
    share.charge(1_000_000);
    assert_eq!(wait(&mut share, now), MS - RECOUNT);
}

/// While the rate has no limit, members never wait. When the rate gets a limit, a member need not
/// wait for what it sent before, and has not saved up bytes to send at once.
#[test]
fn no_limit_leaves_no_debt() {
    let rate = SharedRate::new(Rate::bytes_per_second(0), 1);
    let mut share = rate.share(0);
    share.update_active(START, true);
    share.charge(1_000_000);
    assert_eq!(wait(&mut share, START), 0);
    let now = START.after(50 * MS);
    assert_eq!(wait(&mut share, now), 0);
    rate.set(RATE);
    share.charge(1_000);
    assert_eq!(wait(&mut share, now), 1_000);
}
