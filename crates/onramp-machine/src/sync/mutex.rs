//! A mutex whose waiting threads sleep in simulated time.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult};

use crate::fiber::suspend;
use crate::hook;
use crate::world::inside;

/// The mutex of std. Inside a simulation, threads that wait for it sleep in simulated time, and get
/// it in the order in which they came.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    turns: Turns,
    value: sync::Mutex<T>,
}

/// Which simulated thread has the mutex, and which wait for it. Simulated threads run in one thread
/// of the real machine, so they never wait for the lock inside.
#[derive(Default)]
struct Turns(sync::Mutex<Order>);

#[derive(Default)]
struct Order {
    is_taken: bool,
    waiting: VecDeque<usize>,
}

/// The right of a simulated thread to the mutex, which it gives up by dropping this.
struct Turn<'a>(&'a Turns);

impl Turns {
    const fn new() -> Self {
        Self(sync::Mutex::new(Order { is_taken: false, waiting: VecDeque::new() }))
    }

    fn order(&self) -> sync::MutexGuard<'_, Order> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is the turn of the calling simulated thread. Returns `None` outside a
    /// simulation.
    #[track_caller]
    fn wait(&self) -> Option<Turn<'_>> {
        hook::update(self);
        let waits = inside(|world| {
            let mut order = self.order();
            if order.is_taken {
                order.waiting.push_back(world.me());
                world.block(None);
                return true;
            }
            order.is_taken = true;
            false
        });
        if waits? {
            suspend(); // The thread that gives the mutex up hands it over.
        }
        Some(Turn(self))
    }

    /// Returns the turn if no thread has it: the outer `None` means outside a simulation.
    #[track_caller]
    fn take(&self) -> Option<Option<Turn<'_>>> {
        hook::update(self);
        let was_taken = inside(|_| std::mem::replace(&mut self.order().is_taken, true))?;
        // Only the thread that takes the mutex makes a turn: dropping one gives the mutex up.
        Some((!was_taken).then(|| Turn(self)))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        hook::store(self.0);
        let next = {
            let mut order = self.0.order();
            let next = order.waiting.pop_front();
            order.is_taken = next.is_some();
            next
        };
        if let Some(next) = next {
            let _ = inside(|world| world.release(next));
        }
    }
}

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    // Fields are dropped in this order.
    value: sync::MutexGuard<'a, T>,
    _turn: Option<Turn<'a>>,
}

impl<T> Mutex<T> {
    /// As in std.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { turns: Turns::new(), value: sync::Mutex::new(value) }
    }

    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn into_inner(self) -> LockResult<T> {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let _turn = self.turns.wait();
        match self.value.lock() {
            Ok(value) => Ok(MutexGuard { value, _turn }),
            Err(poisoned) => {
                Err(PoisonError::new(MutexGuard { value: poisoned.into_inner(), _turn }))
            }
        }
    }

    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let _turn = match self.turns.take() {
            Some(None) => return Err(TryLockError::WouldBlock),
            Some(turn) => turn,
            None => None,
        };
        match self.value.try_lock() {
            Ok(value) => Ok(MutexGuard { value, _turn }),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(poisoned)) => {
                let guard = MutexGuard { value: poisoned.into_inner(), _turn };
                Err(TryLockError::Poisoned(PoisonError::new(guard)))
            }
        }
    }

    /// As in std.
    ///
    /// # Errors
    ///
    /// As in std.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.value.get_mut()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
