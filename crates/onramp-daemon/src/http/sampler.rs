//! Reads the state of the devices once for all clients that ask at about the same time.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Source;
use crate::snapshot::{RateMeter, Snapshot, Stats};

/// A client that asks within this time after another one asked for a snapshot gets the same
/// snapshot. The time is shorter than the shortest interval at which a client may ask for
/// statistics again and again, because a timer may be a little early or late.
const FRESH: Duration = Duration::from_millis(90);

/// The latest snapshot, and when it was asked for.
type Latest = Option<(Instant, Arc<Snapshot>)>;

/// Takes a snapshot of the devices (their present counters) when a client asks, and once per period
/// while at least one client listens.
pub struct Sampler {
    source: Arc<dyn Source>,
    began: Instant,
    period: Duration,
    latest: Arc<Turn<Latest>>,
    stats: watch::Sender<Option<Arc<Stats>>>,
    /// Whether a task is taking snapshots periodically for listeners. The lock is held only to
    /// check or change this flag, never while waiting.
    looking: Mutex<bool>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("period", &self.period).finish_non_exhaustive()
    }
}

impl Sampler {
    /// Makes a sampler of the devices of `source`. While clients listen, the sampler takes a
    /// snapshot every `period`.
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

    /// Returns the source of the devices.
    #[must_use]
    pub fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.source)
    }

    /// Returns the state of all devices, which another client asked for at most 90 ms ago.
    ///
    /// # Errors
    ///
    /// [`JoinError`] if reading the devices panicked.
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>, JoinError> {
        let latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some((at, snapshot)) = &*latest
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(snapshot));
        }
        self.look(latest).await
    }

    /// Takes a snapshot. `latest` stays locked until the snapshot is finished, even if the caller
    /// stops waiting for it, so that snapshots are taken one at a time.
    async fn look(&self, mut latest: OwnedMutexGuard<Latest>) -> Result<Arc<Snapshot>, JoinError> {
        let (source, began, asked) = (self.source(), self.began, Instant::now());
        let turn = source.turn().await;
        let look = move || {
            let devices = source.devices();
            drop(turn);
            let at_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let snapshot = Arc::new(Snapshot::of(devices, at_ns, unix_ms()));
            *latest = Some((asked, Arc::clone(&snapshot)));
            snapshot
        };
        spawn_blocking(look).await
    }

    /// Returns a channel that receives statistics once every period. The channel's value is `None`
    /// until the first snapshot has been taken.
    #[must_use]
    pub fn listen(self: &Arc<Self>) -> watch::Receiver<Option<Arc<Stats>>> {
        let mut looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *looking, true) {
            self.stats.send_replace(None);
            tokio::spawn(Arc::clone(self).keep_looking());
        }
        self.stats.subscribe()
    }

    /// Takes a snapshot every period, until no client listens any more.
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
            // If reading the devices panicked, the panic is already logged, and the next snapshot
            // may succeed.
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
