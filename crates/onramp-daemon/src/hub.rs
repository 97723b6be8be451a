//! The host, and whose turn it is.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use onramp_host::Host;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// A host that many tasks use, one after another, in the order in which they came. Cheap to clone.
///
/// What they do to it runs on a thread of its own, so that a long listing keeps nobody from being
/// heard.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    host: Arc<Mutex<Host>>,
    turn: Arc<Turn<()>>,
}

/// What was to be done ended in a panic: a bug. The host lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

impl fmt::Display for Died {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("internal error: the command died; the daemon's log says of what")
    }
}

impl std::error::Error for Died {}

impl Hub {
    /// Serves this host.
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self { host: Arc::new(Mutex::new(host)), turn: Arc::default() }
    }

    /// The host itself, for threads that may wait.
    #[must_use]
    pub const fn host(&self) -> &Arc<Mutex<Host>> {
        &self.host
    }

    /// Waits for this one's turn, which ends with what this gives.
    pub(crate) fn turn(&self) -> impl Future<Output = OwnedMutexGuard<()>> + Send + use<> {
        self.turn.clone().lock_owned()
    }

    /// Does something when it is this one's turn.
    ///
    /// # Errors
    ///
    /// [`Died`]: `act` panicked.
    pub async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Host) -> T + Send + 'static,
    ) -> Result<T, Died> {
        let turn = self.turn().await;
        let host = self.host.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = act_on(&host, act);
            drop(turn);
            done
        });
        done.await.unwrap_or(Err(Died))
    }
}

fn act_on<T>(host: &Mutex<Host>, act: impl FnOnce(&mut Host) -> T) -> Result<T, Died> {
    let mut host = host.lock().unwrap_or_else(PoisonError::into_inner);
    // The host is behind its lock again before anybody looks.
    catch_unwind(AssertUnwindSafe(|| act(&mut host))).map_err(|_| Died)
}
