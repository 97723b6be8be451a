//! The limiter in virtual time: rate, bursts, order and bounds, to the nanosecond and the token.

use std::time::Duration;

use onramp_core::Instant;
use onramp_limiter::{BucketUpdate, Limiter, Request, Ticket, TokenBucket, TokenType};
use proptest::prelude::*;

const START: Instant = Instant(7_000);

fn bucket(size: u64, burst: u64, refill_ns: u64) -> TokenBucket {
    TokenBucket::new(size, burst, Duration::from_nanos(refill_ns)).expect("good settings")
}

fn bytes(tokens: u64) -> Request {
    Request::of(tokens, TokenType::Bytes)
}

fn of_bytes(bucket: TokenBucket) -> Limiter {
    Limiter::new(Some(bucket), None, START)
}

/// The most tokens, times the refill time, that the bucket allows in `span` nanoseconds.
fn most(bucket: TokenBucket, span: u64) -> u128 {
    let full = u128::from(bucket.size()) + u128::from(bucket.one_time_burst());
    full * bucket.refill_time().as_nanos() + u128::from(bucket.size()) * u128::from(span)
}

fn scaled(bucket: TokenBucket, tokens: u64) -> u128 {
    u128::from(tokens) * bucket.refill_time().as_nanos()
}

/// Returns a part of a number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "both are positive")]
fn part_of(whole: u64, part: f64) -> u64 {
    (part * whole as f64) as u64
}

prop_compose! {
    fn buckets()(
        size in prop_oneof![1_u64..20, 1_u64..2_000_000],
        burst in prop_oneof![Just(0_u64), 0_u64..5_000],
        refill in prop_oneof![1_u64..50, 1_u64..2_000_000_000],
    ) -> TokenBucket {
        bucket(size, burst, refill)
    }
}

proptest! {
    /// A user that always has a request gets the exact rate: each request goes at the first
    /// nanosecond at which the tokens allow it, whatever the sizes.
    #[test]
    fn a_greedy_user_gets_the_exact_rate(
        bucket in buckets(),
        requests in prop::collection::vec(0.0..3.0_f64, 1..200),
    ) {
        let (mut limiter, mut ticket) = (of_bytes(bucket), Ticket::default());
        let (mut now, mut taken) = (START, 0_u64);
        for part in requests {
            let request = 1 + part_of(bucket.size(), part);
            if let Err(until) = limiter.take(now, &mut ticket, bytes(request)) {
                prop_assert!(until > now);
                // A nanosecond earlier, neither the tokens were there nor was the bucket full.
                let before = most(bucket, until.since(START) - 1);
                let burst = bucket.one_time_burst().saturating_sub(taken).min(request);
                let needed = burst + (request - burst).min(bucket.size());
                prop_assert!(scaled(bucket, taken + needed) > before);
                now = until;
                prop_assert_eq!(limiter.take(now, &mut ticket, bytes(request)), Ok(()));
            }
            let debt = request.saturating_sub(bucket.size());
            taken += request;
            prop_assert!(scaled(bucket, taken - debt) <= most(bucket, now.since(START)));
        }
    }

    /// Several users that come as soon as they may: never more than the bucket and the rate allow,
    /// between any two moments, and turns in the order of asking, within the bound.
    #[test]
    fn users_take_turns_within_the_bounds(
        bucket in buckets(),
        steps in prop::collection::vec((0_usize..5, 0.0..1.0_f64, 0.0..0.6_f64), 1..80),
    ) {
        let mut limiter = of_bytes(bucket);
        let mut tickets: Vec<Ticket> = (0..5).map(|_| Ticket::default()).collect();
        let mut waiting: Vec<(Instant, usize, u64)> = Vec::new();
        let (mut now, mut taken) = (START, Vec::new());
        let mut steps = steps.into_iter();
        loop {
            let next = steps.next();
            let target = next.map_or(Instant::MAX, |(_, _, pause)| {
                now + bucket.refill_time().mul_f64(pause)
            });
            while waiting.first().is_some_and(|(until, _, _)| *until <= target) {
                let (until, user, request) = waiting.remove(0);
                now = until;
                prop_assert_eq!(limiter.take(now, &mut tickets[user], bytes(request)), Ok(()));
                taken.push((now, request));
            }
            let Some((user, part, _)) = next else { break };
            now = target;
            if waiting.iter().any(|(_, other, _)| *other == user) {
                continue;
            }
            let request = 1 + part_of(bucket.size() - 1, part);
            let available = limiter.available(now, TokenType::Bytes).expect("limited");
            match limiter.take(now, &mut tickets[user], bytes(request)) {
                Ok(()) => taken.push((now, request)),
                Err(until) => {
                    // `available` is rounded down, so the bound has a token and a nanosecond more.
                    let ahead = i128::from(request) - available + 1;
                    let bound = u128::try_from(ahead).expect("it has to wait")
                        * bucket.refill_time().as_nanos()
                        / u128::from(bucket.size());
                    prop_assert!(u128::from(until.since(now)) <= bound + 1);
                    prop_assert!(waiting.last().is_none_or(|(last, _, _)| *last <= until));
                    waiting.push((until, user, request));
                }
            }
        }
        for (first, &(from, _)) in taken.iter().enumerate() {
            let mut sum = 0;
            for &(to, request) in &taken[first..] {
                sum += request;
                // Of the first nanosecond, the tokens count that have come in it.
                prop_assert!(scaled(bucket, sum) <= most(bucket, to.since(from) + 1));
            }
        }
    }

    /// Users that come late, give up and put back: the bound has what was kept for late ones on
    /// top, and nothing else.
    #[test]
    fn late_users_get_no_more_than_was_kept_for_them(
        size in 100_u64..10_000,
        steps in prop::collection::vec((0_usize..4, 1_u64..100, 0_u64..5_000, 0_u8..10), 1..150),
    ) {
        let bucket = bucket(size, 0, 100_000);
        let mut limiter = of_bytes(bucket);
        let mut tickets: Vec<Ticket> = (0..4).map(|_| Ticket::default()).collect();
        let (mut now, mut sum) = (START, 0_u64);
        for (user, request, pause, what) in steps {
            now = now.after(pause);
            match what {
                0 => limiter.abandon(now, &mut tickets[user]),
                1 if sum >= request => {
                    limiter.replenish(now, request, TokenType::Bytes);
                    sum -= request;
                }
                _ => sum += limiter
                    .take(now, &mut tickets[user], bytes(request))
                    .map_or(0, |()| request),
            }
            // Of each user, one request of at most 100 can be late.
            let late = scaled(bucket, 4 * 100);
            prop_assert!(scaled(bucket, sum) <= most(bucket, now.since(START)) + late);
        }
        // Afterwards the bucket fills up to its size, and not further.
        for ticket in &mut tickets {
            limiter.abandon(now, ticket);
        }
        let later = now.after(1_000_000_000);
        prop_assert_eq!(limiter.available(later, TokenType::Bytes), Some(size.into()));
    }
}

/// The case of a limiter that stalled for ever: a bucket of 4,095 bytes that fills in 1 ms, and a
/// request of 4,096.
#[test]
fn a_request_larger_than_the_bucket_goes_and_is_paid() {
    let (mut limiter, mut ticket) = (of_bytes(bucket(4_095, 0, 1_000_000)), Ticket::default());
    assert_eq!(limiter.take(START, &mut ticket, bytes(4_096)), Ok(()));
    assert_eq!(limiter.available(START, TokenType::Bytes), Some(-1));
    // The bucket owes one token, and must be full again for the next: 4,096 tokens' time.
    let until = START.after((4_096_u64 * 1_000_000).div_ceil(4_095));
    assert_eq!(limiter.take(START, &mut ticket, bytes(4_096)), Err(until));
    assert_eq!(limiter.take(until, &mut ticket, bytes(4_096)), Ok(()));
}

#[test]
fn a_wake_up_comes_when_the_request_fits_not_when_the_bucket_is_full() {
    // A token each nanosecond.
    let (mut limiter, mut ticket) = (of_bytes(bucket(1_000_000, 0, 1_000_000)), Ticket::default());
    assert_eq!(limiter.take(START, &mut ticket, bytes(1_000_000)), Ok(()));
    assert_eq!(limiter.take(START, &mut ticket, bytes(3)), Err(START.after(3)));
    // A smaller request of the same user does not overtake.
    assert_eq!(limiter.take(START.after(2), &mut ticket, bytes(1)), Err(START.after(3)));
    // A smaller request may take the turn; the rest is given back.
    assert_eq!(limiter.take(START.after(3), &mut ticket, bytes(1)), Ok(()));
    assert_eq!(limiter.available(START.after(3), TokenType::Bytes), Some(2));
}

#[test]
fn a_larger_request_takes_the_turn_and_waits_for_the_rest() {
    let (mut limiter, mut ticket) = (of_bytes(bucket(100, 0, 100)), Ticket::default());
    assert_eq!(limiter.take(START, &mut ticket, bytes(100)), Ok(()));
    assert_eq!(limiter.take(START, &mut ticket, bytes(10)), Err(START.after(10)));
    assert_eq!(limiter.take(START.after(10), &mut ticket, bytes(15)), Err(START.after(15)));
    assert_eq!(limiter.take(START.after(15), &mut ticket, bytes(15)), Ok(()));
    assert_eq!(limiter.available(START.after(15), TokenType::Bytes), Some(0));
}

#[test]
fn the_one_time_burst_is_used_first_and_does_not_come_back() {
    let (mut limiter, mut ticket) = (of_bytes(bucket(10, 50, 10)), Ticket::default());
    assert_eq!(limiter.take(START, &mut ticket, bytes(40)), Ok(()));
    assert_eq!(limiter.one_time_burst_left(TokenType::Bytes), Some(10));
    assert_eq!(limiter.available(START, TokenType::Bytes), Some(10));
    // Put back and taken again: exactly as before.
    limiter.replenish(START, 40, TokenType::Bytes);
    assert_eq!(limiter.one_time_burst_left(TokenType::Bytes), Some(50));
    assert_eq!(limiter.take(START, &mut ticket, bytes(60)), Ok(()));
    let later = START.after(1_000);
    assert_eq!(limiter.available(later, TokenType::Bytes), Some(10));
    assert_eq!(limiter.one_time_burst_left(TokenType::Bytes), Some(0));
    // Ordinary use does not fill the burst: what was taken from the bucket goes back into it.
    assert_eq!(limiter.take(later, &mut ticket, bytes(4)), Ok(()));
    limiter.replenish(later, 4, TokenType::Bytes);
    assert_eq!(limiter.one_time_burst_left(TokenType::Bytes), Some(0));
}

#[test]
fn a_user_that_never_comes_back_holds_nobody_up() {
    let mut limiter = of_bytes(bucket(1_000, 0, 1_000));
    let (mut gone, mut other) = (Ticket::default(), Ticket::default());
    assert_eq!(limiter.take(START, &mut gone, bytes(1_000)), Ok(()));
    assert!(limiter.take(START, &mut gone, bytes(1_000)).is_err());
    let (mut now, mut taken) = (START, 0);
    while taken < 1_000_000 {
        match limiter.take(now, &mut other, bytes(100)) {
            Ok(()) => taken += 100,
            Err(until) => now = until,
        }
    }
    // The rate for the other, after the turn of the one that is gone.
    assert_eq!(now.since(START), 1_000 + 1_000_000);
}

/// What is kept for a user that comes late is still in the bucket.
#[test]
fn a_late_user_leaves_less_room_for_bursts() {
    let mut limiter = of_bytes(bucket(100, 0, 100));
    let (mut late, mut other) = (Ticket::default(), Ticket::default());
    assert_eq!(limiter.take(START, &mut late, bytes(100)), Ok(()));
    assert_eq!(limiter.take(START, &mut late, bytes(40)), Err(START.after(40)));
    let later = START.after(1_000);
    assert_eq!(limiter.available(later, TokenType::Bytes), Some(60));
    assert_eq!(limiter.take(later, &mut other, bytes(60)), Ok(()));
    assert_eq!(limiter.take(later, &mut late, bytes(40)), Ok(()));
    assert_eq!(limiter.take(later, &mut other, bytes(1)), Err(later.after(1)));
}

#[test]
fn a_request_takes_both_types_or_none() {
    let ops = bucket(2, 0, 2_000);
    let mut limiter = Limiter::new(Some(bucket(1_000, 0, 1_000)), Some(ops), START);
    let mut ticket = Ticket::default();
    let request = Request { bytes: 100, ops: 1 };
    for _ in 0..2 {
        assert_eq!(limiter.take(START, &mut ticket, request), Ok(()));
    }
    assert_eq!(limiter.take(START, &mut ticket, request), Err(START.after(1_000)));
    limiter.abandon(START, &mut ticket);
    assert_eq!(limiter.available(START, TokenType::Bytes), Some(800));
    assert_eq!(limiter.available(START, TokenType::Ops), Some(0));
    assert_eq!(limiter.take(START, &mut ticket, Request::default()), Ok(()));
}

#[test]
fn an_update_keeps_tokens_and_debts_and_ends_waits() {
    let (mut limiter, mut ticket) = (of_bytes(bucket(10, 0, 1_000)), Ticket::default());
    assert_eq!(limiter.take(START, &mut ticket, bytes(25)), Ok(()));
    // In debt by 15: the next 5 would come after 20 tokens' time, which are 2,000 ns.
    assert_eq!(limiter.take(START, &mut ticket, bytes(5)), Err(START.after(2_000)));
    let faster = BucketUpdate::Update(bucket(100, 7, 100));
    limiter.update(START, faster, BucketUpdate::None);
    assert_eq!(limiter.available(START, TokenType::Bytes), Some(-15));
    // The new one-time burst pays for the 5; a larger request waits at the new rate.
    assert_eq!(limiter.take(START, &mut ticket, bytes(5)), Ok(()));
    assert_eq!(limiter.take(START, &mut ticket, bytes(5)), Err(START.after(18)));
    // A smaller bucket has no room for more than its size.
    let later = START.after(1_000);
    limiter.update(later, BucketUpdate::Update(bucket(3, 0, 10)), BucketUpdate::None);
    assert_eq!(limiter.available(later, TokenType::Bytes), Some(3));
    limiter.update(later, BucketUpdate::Disabled, BucketUpdate::Update(bucket(4, 0, 10)));
    assert_eq!(limiter.take(later, &mut ticket, Request { bytes: u64::MAX, ops: 4 }), Ok(()));
    assert_eq!(limiter.bucket(TokenType::Bytes), None);
    assert_eq!(limiter.bucket(TokenType::Ops), Some(bucket(4, 0, 10)));
}

/// An update of one bucket ends waits for the other too: its tokens are free again.
#[test]
fn an_update_frees_what_was_kept_in_the_other_bucket() {
    let (mut limiter, mut ticket) = (of_bytes(bucket(10, 0, 1_000)), Ticket::default());
    assert_eq!(limiter.take(START, &mut ticket, bytes(4)), Ok(()));
    assert!(limiter.take(START, &mut ticket, bytes(9)).is_err());
    assert_eq!(limiter.available(START, TokenType::Bytes), Some(-3));
    limiter.update(START, BucketUpdate::None, BucketUpdate::Update(bucket(1, 0, 1)));
    assert_eq!(limiter.available(START, TokenType::Bytes), Some(6));
    assert_eq!(limiter.take(START, &mut ticket, bytes(6)), Ok(()));
}

/// What a waiting request has of the one-time burst comes back to it, when an update of the other
/// bucket ends the wait.
#[test]
fn an_update_gives_the_one_time_burst_back() {
    let (of_bytes, of_ops) = (bucket(1_000, 500, 1_000), bucket(1, 0, 1_000));
    let mut limiter = Limiter::new(Some(of_bytes), Some(of_ops), START);
    let mut ticket = Ticket::default();
    assert_eq!(limiter.take(START, &mut ticket, Request { bytes: 0, ops: 1 }), Ok(()));
    assert!(limiter.take(START, &mut ticket, Request { bytes: 400, ops: 1 }).is_err());
    limiter.update(START, BucketUpdate::None, BucketUpdate::Update(bucket(1, 0, 1)));
    for tokens in [500, 1_000] {
        assert_eq!(limiter.take(START, &mut ticket, bytes(tokens)), Ok(()));
    }
}

#[test]
fn huge_numbers_do_not_overflow() {
    let longest = (1 << 53) - 1;
    let (mut limiter, mut ticket) = (of_bytes(bucket(u64::MAX, 0, longest)), Ticket::default());
    assert_eq!(limiter.take(START, &mut ticket, bytes(u64::MAX)), Ok(()));
    for _ in 0..1_000 {
        let mut other = Ticket::default();
        assert!(limiter.take(START, &mut other, bytes(u64::MAX)).is_err());
    }
    let available = limiter.available(START, TokenType::Bytes).expect("limited");
    assert_eq!(available, -1_000 * i128::from(u64::MAX));
    let _ = limiter.take(Instant::MAX, &mut ticket, bytes(1));
}

/// A thread may have read the clock before another thread that was faster to the lock.
#[test]
fn a_time_that_goes_back_adds_nothing() {
    let (mut limiter, mut ticket) = (of_bytes(bucket(10, 0, 10)), Ticket::default());
    assert_eq!(limiter.take(START.after(5), &mut ticket, bytes(10)), Ok(()));
    assert_eq!(limiter.take(START, &mut ticket, bytes(1)), Err(START.after(6)));
}
