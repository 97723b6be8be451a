//! Settings that are refused, and what the errors say.

use std::io;
use std::time::Duration;

use onramp_limiter::{RateLimiter, SettingError, TokenBucket, TokenType};

#[test]
fn impossible_buckets_are_refused() {
    let second = Duration::from_secs(1);
    assert_eq!(TokenBucket::new(0, 5, second), Err(SettingError::Size));
    assert_eq!(TokenBucket::new(5, 0, Duration::ZERO), Err(SettingError::RefillTime));
    assert_eq!(TokenBucket::new(5, 0, Duration::MAX), Err(SettingError::RefillTooLong));
    let longest = Duration::from_nanos(1 << 53);
    assert!(TokenBucket::new(u64::MAX, u64::MAX, longest).is_ok());
    let longer = longest + Duration::from_nanos(1);
    assert_eq!(TokenBucket::new(1, 0, longer), Err(SettingError::RefillTooLong));
}

#[test]
fn zeros_mean_no_limit_only_if_all_are_zero() {
    assert_eq!(TokenBucket::from_millis(0, 0, 0), Ok(None));
    assert_eq!(TokenBucket::from_millis(0, 0, 10), Err(SettingError::Size));
    assert_eq!(TokenBucket::from_millis(0, 10, 0), Err(SettingError::Size));
    assert_eq!(TokenBucket::from_millis(10, 0, 0), Err(SettingError::RefillTime));
    assert_eq!(TokenBucket::from_millis(1, 0, u64::MAX), Err(SettingError::RefillTooLong));
    let bucket = TokenBucket::from_millis(7, 8, 9).expect("good").expect("a limit");
    assert_eq!((bucket.size(), bucket.one_time_burst()), (7, 8));
    assert_eq!(bucket.refill_time(), Duration::from_millis(9));
}

#[test]
fn an_error_says_which_limit_is_wrong_and_what_to_do() {
    let error = RateLimiter::with_millis(1, 0, 1, 100, 0, 0).expect_err("no refill time");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        "limit of operations: the refill time is 0, which is no rate; give the time in which the \
         bucket fills, or all values as 0 for no limit"
    );
    let error = RateLimiter::with_millis(0, 0, 1, 0, 0, 0).expect_err("no size");
    assert!(error.to_string().starts_with("limit of bytes: the size of the bucket is 0"));
}

#[test]
fn a_limiter_without_limits_lets_all_pass() {
    let mut limiter = RateLimiter::new(None, None).expect("a descriptor");
    assert!(limiter.consume(u64::MAX, TokenType::Bytes));
    assert!(limiter.consume(u64::MAX, TokenType::Ops));
    assert!(!limiter.is_blocked());
    assert_eq!(limiter.group().available(TokenType::Bytes), None);
}
