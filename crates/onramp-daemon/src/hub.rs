//! The host that all tasks of the daemon share, and the order in which they use it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use onramp_host::Host;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::board::Board;

/// A host that many tasks share: one task uses it at a time, in the order in which they ask. A
/// `Hub` is cheap to clone.
///
/// Each task's work on the host runs on a blocking thread, so that a long listing does not stop the
/// daemon from reading other requests.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    host: Arc<Mutex<Host>>,
    turn: Arc<Turn<()>>,
    board: Board,
}

/// Error: a command or other work on the host panicked, which is a bug. The host can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

impl fmt::Display for Died {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("internal error: the command panicked; the daemon's log has the message")
    }
}

impl std::error::Error for Died {}

impl Hub {
    /// Makes a hub that serves `host`.
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self { host: Arc::new(Mutex::new(host)), turn: Arc::default(), board: Board::default() }
    }

    /// Returns what the daemon knows of its shares of a fleet's limits.
    pub(crate) const fn board(&self) -> &Board {
        &self.board
    }

    /// Returns the host behind its mutex, for callers that do not wait for a turn. Locking the
    /// mutex may block the thread until another task has finished its work on the host.
    #[must_use]
    pub const fn host(&self) -> &Arc<Mutex<Host>> {
        &self.host
    }

    /// Waits until it is the caller's turn to use the host. The turn ends when the returned guard
    /// is dropped.
    pub(crate) fn turn(&self) -> impl Future<Output = OwnedMutexGuard<()>> + Send + use<> {
        self.turn.clone().lock_owned()
    }

    /// Waits for the caller's turn, then runs `act` on the host and returns its result.
    ///
    /// # Errors
    ///
    /// [`Died`] if `act` panicked.
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
    // `AssertUnwindSafe` is right here: if `act` panics, this function does not use the host any
    // more, and only releases the lock.
    catch_unwind(AssertUnwindSafe(|| act(&mut host))).map_err(|_| Died)
}
