#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bucket;
mod limiter;
mod rate_limiter;

pub use self::bucket::{SettingError, TokenBucket};
pub use self::limiter::{BucketUpdate, Limiter, Request, Ticket, TokenType};
pub use self::rate_limiter::{Group, RateLimiter};
