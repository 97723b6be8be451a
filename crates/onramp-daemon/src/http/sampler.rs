//! One look at the devices for all who want to see them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Source;
use crate::snapshot::{RateMeter, Snapshot, Stats};

/// Whoever asks again that soon gets the same.
const FRESH: Duration = Duration::from_millis(100);

/// The latest look, and when it was taken.
type Latest = Option<(Instant, Arc<Snapshot>)>;

/// Looks at devices when somebody asks, and every second while somebody listens.
pub struct Sampler {
    source: Arc<dyn Source>,
    began: Instant,
    period: Duration,
    latest: Arc<Turn<Latest>>,
    stats: watch::Sender<Option<Arc<Stats>>>,
    /// Whether somebody looks every second. Held while that is found out, never while waiting.
    looking: Mutex<bool>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("period", &self.period).finish_non_exhaustive()
    }
}

impl Sampler {
    /// Looks at what `source` has; for those who listen, once every `period`.
    #[must_use]
    pub fn new(source: Arc<dyn Source>, period: Duration) -> Arc<Self> {
        Arc::new(Self {
            source,
            began: Instant::now(),
            period,
            latest: Arc::default(),
            stats: watch::Sender::new(None),
            looking: Mutex::new(false),
        })
    }

    /// What is looked at.
    #[must_use]
    pub fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.source)
    }

    /// All devices, as they are now or were a moment ago.
    ///
    /// # Errors
    ///
    /// Looking panicked.
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>, JoinError> {
        let latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some((at, snapshot)) = &*latest
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(snapshot));
        }
        self.look(latest).await
    }

    /// Looks, one at a time: the next one waits for this, even if nobody else does any more.
    async fn look(&self, mut latest: OwnedMutexGuard<Latest>) -> Result<Arc<Snapshot>, JoinError> {
        let (source, began) = (self.source(), self.began);
        let turn = source.turn().await;
        let look = move || {
            let devices = source.devices();
            drop(turn);
            let at_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let snapshot = Arc::new(Snapshot::of(devices, at_ns, unix_ms()));
            *latest = Some((Instant::now(), Arc::clone(&snapshot)));
            snapshot
        };
        spawn_blocking(look).await
    }

    /// What happens, every period from now on. `None` until the first look.
    #[must_use]
    pub fn listen(self: &Arc<Self>) -> watch::Receiver<Option<Arc<Stats>>> {
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *looking, true) {
            self.stats.send_replace(None);
            tokio::spawn(Arc::clone(self).keep_looking());
        }
        self.stats.subscribe()
    }

    /// Looks until nobody listens any more.
    async fn keep_looking(self: Arc<Self>) {
        let mut meter = RateMeter::default();
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            {
                let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
                if self.stats.receiver_count() == 0 {
                    *looking = false;
                    return;
                }
            }
            // A look that panicked has said so; the next one may go well.
            let latest = Arc::clone(&self.latest).lock_owned().await;
            let Ok(snapshot) = self.look(latest).await else { continue };
            self.stats.send_replace(Some(Arc::new(meter.update(&snapshot))));
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the wall clock, for reports only")]
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
