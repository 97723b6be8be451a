//! Limiters with the real clock: descriptors, threads, updates.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use onramp_core::{Clock as _, Instant};
use onramp_dev::MonotonicClock;
use onramp_limiter::{BucketUpdate, Group, RateLimiter, Request, TokenBucket, TokenType};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

/// How long a test waits for an event that must come, in seconds. Only a failure takes so long.
const PATIENCE: i64 = 60;

fn bucket(size: u64, refill: Duration) -> Option<TokenBucket> {
    Some(TokenBucket::new(size, 0, refill).expect("good settings"))
}

/// Returns whether the descriptor becomes readable within some seconds.
fn readable(limiter: &RateLimiter, seconds: i64) -> bool {
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(limiter, PollFlags::IN)], Some(&timeout));
    ready.expect("poll works") == 1
}

/// Takes the tokens, after as many events as it needs.
fn consume(limiter: &mut RateLimiter, bytes: u64) {
    while !limiter.consume(bytes, TokenType::Bytes) {
        assert!(readable(limiter, PATIENCE), "the event has not come");
        limiter.event_handler().expect("there is an event");
    }
}

#[test]
fn a_blocked_request_gets_an_event_and_then_passes() {
    let mut limiter = RateLimiter::new(bucket(1_000, Duration::from_millis(10)), None).unwrap();
    let before = MonotonicClock.now();
    assert!(limiter.consume(1_000, TokenType::Bytes));
    assert!(!limiter.consume(50, TokenType::Bytes), "0.5 ms are missing");
    assert!(limiter.is_blocked());
    assert!(!limiter.consume(1, TokenType::Ops), "a blocked limiter blocks all");
    assert!(readable(&limiter, PATIENCE));
    assert!(MonotonicClock.now().since(before) >= 500_000, "not before the tokens are there");
    assert!(limiter.is_blocked(), "until the event is handled");
    assert!(!limiter.consume(50, TokenType::Bytes));
    limiter.event_handler().unwrap();
    assert!(!limiter.is_blocked());
    assert!(limiter.consume(50, TokenType::Bytes));
    assert!(!readable(&limiter, 0), "the event is over");
    assert_eq!(limiter.as_fd().as_raw_fd(), limiter.as_raw_fd());
}

#[test]
fn an_event_that_has_not_come_is_an_error() {
    let mut limiter = RateLimiter::new(bucket(1, Duration::from_secs(10_000)), None).unwrap();
    let error = limiter.event_handler().expect_err("nothing was blocked");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    consume(&mut limiter, 1);
    assert!(!limiter.consume(1, TokenType::Bytes));
    assert!(!readable(&limiter, 0));
    assert!(limiter.event_handler().is_err());
    assert!(limiter.is_blocked());
    limiter.abandon();
    assert!(!limiter.is_blocked());
    assert!(limiter.consume(1, TokenType::Ops));
}

#[test]
fn an_abandoned_request_leaves_no_event_behind() {
    let mut limiter = RateLimiter::new(bucket(1_000, Duration::from_millis(1)), None).unwrap();
    consume(&mut limiter, 5_000);
    assert!(!limiter.consume(1, TokenType::Bytes));
    assert!(readable(&limiter, PATIENCE));
    limiter.abandon();
    assert!(!limiter.is_blocked());
    assert!(!readable(&limiter, 0));
}

#[test]
fn an_update_wakes_a_request_that_waits() {
    let mut limiter = RateLimiter::new(bucket(1, Duration::from_secs(1_000_000)), None).unwrap();
    consume(&mut limiter, 1);
    assert!(!limiter.consume(1, TokenType::Bytes));
    let faster = bucket(1_000, Duration::from_millis(1)).map(BucketUpdate::Update).unwrap();
    limiter.update_buckets(faster, BucketUpdate::None);
    assert!(readable(&limiter, PATIENCE));
    limiter.event_handler().unwrap();
    consume(&mut limiter, 1);
    limiter.update_buckets(BucketUpdate::Disabled, BucketUpdate::None);
    assert!(limiter.consume(u64::MAX, TokenType::Bytes));
    assert_eq!(limiter.group().bucket(TokenType::Bytes), None);
}

#[test]
fn a_dropped_limiter_gives_back_what_was_kept() {
    let group = Group::new(bucket(100, Duration::from_secs(1_000_000)), None);
    let (mut gone, mut other) = (group.limiter().unwrap(), group.limiter().unwrap());
    consume(&mut other, 60);
    assert!(!gone.consume(80, TokenType::Bytes));
    assert_eq!(group.available(TokenType::Bytes), Some(-40));
    drop(gone);
    assert_eq!(group.available(TokenType::Bytes), Some(40));
    assert!(other.consume(40, TokenType::Bytes));
}

/// Two limiters of a group in one epoll instance, with turns of a fifth of a millisecond.
#[test]
fn limiters_of_a_group_take_turns_in_one_loop() {
    let group = Group::new(bucket(1_000, Duration::from_millis(1)), None);
    let mut limiters = [group.limiter().unwrap(), group.limiter().unwrap()];
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (number, limiter) in (0..).zip(&limiters) {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&poller, limiter, data, epoll::EventFlags::IN).unwrap();
    }
    let (began, mut done) = (MonotonicClock.now(), [0_u64; 2]);
    while done.iter().any(|count| *count < 100) {
        for (limiter, done) in limiters.iter_mut().zip(&mut done) {
            while *done < 100 && !limiter.is_blocked() && limiter.consume(200, TokenType::Bytes) {
                *done += 1;
            }
        }
        let waiting = limiters.iter().any(RateLimiter::is_blocked);
        assert!(waiting || done == [100, 100]);
        if !waiting {
            break;
        }
        let mut events = Vec::with_capacity(2);
        let timeout = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        assert!(epoll::wait(&poller, buffer, Some(&timeout)).unwrap() > 0, "no event came");
        for event in events {
            let number = usize::try_from(event.data.u64()).unwrap();
            limiters[number].event_handler().unwrap();
        }
    }
    // 200 requests of 200 bytes, 1,000 of which were there, at a byte each microsecond.
    assert!(MonotonicClock.now().since(began) >= 39_000_000);
}

/// All tokens go to exactly one thread.
#[test]
fn threads_that_share_a_group_take_every_token_once() {
    const TOKENS: u64 = 20_000;
    let group = Group::new(bucket(TOKENS, Duration::from_secs(5_000_000)), None);
    let taken: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mut limiter = group.limiter().unwrap();
                scope.spawn(move || {
                    (0..).take_while(|_| limiter.consume(1, TokenType::Bytes)).count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // In the time of the test, at most some tokens come, one in 250 s.
    assert!((TOKENS..TOKENS + 3).contains(&taken), "{taken} of {TOKENS}");
}

#[test]
fn no_thread_starves_and_the_rate_holds() {
    const EACH: u64 = 100;
    let ops = bucket(10, Duration::from_micros(500));
    let group = Group::new(bucket(10_000, Duration::from_millis(1)), ops);
    let began: Instant = MonotonicClock.now();
    thread::scope(|scope| {
        for thread in 0..4 {
            let mut limiter = group.limiter().unwrap();
            scope.spawn(move || {
                let request = Request { bytes: 500 + 100 * thread, ops: 1 };
                for _ in 0..EACH {
                    while !limiter.consume_all(request) {
                        assert!(readable(&limiter, PATIENCE), "thread {thread} starves");
                        limiter.event_handler().unwrap();
                    }
                }
            });
        }
    });
    // 260,000 bytes, 10,000 of which were there, at 10 bytes each microsecond.
    assert!(MonotonicClock.now().since(began) >= 25_000_000);
    // Nothing is kept any longer, so the bucket fills.
    let later = began.after(MonotonicClock.now().since(began) + 1_000_000);
    while MonotonicClock.now() < later {
        thread::yield_now();
    }
    assert_eq!(group.available(TokenType::Bytes), Some(10_000));
    assert_eq!(group.available(TokenType::Ops), Some(10));
}
