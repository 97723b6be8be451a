//! The foundation of the crate: time, numbers and their units, errors, parameters, listings.

pub(crate) mod counters;
pub mod dissect;
pub(crate) mod ecn;
pub(crate) mod error;
pub mod frame;
pub(crate) mod handle;
pub(crate) mod head_start;
pub mod params;
pub(crate) mod rate;
pub(crate) mod rng;
pub(crate) mod segments;
pub mod show;
pub(crate) mod shown;
pub mod stats;
pub(crate) mod sync;
pub(crate) mod time;
pub mod units;
pub(crate) mod wakes;

pub use self::counters::{Counters, Extra};
pub use self::error::{Clash, ConfigError, Errno, Fault};
pub use self::handle::Handle;
pub use self::head_start::HeadStart;
pub use self::rate::Rate;
pub use self::time::{Clock, Instant};
pub use self::wakes::{REST_MAX_NS, REST_NS, WakeCost, Wakes};
