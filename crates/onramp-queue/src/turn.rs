//! Whose turn it is to make the rounds of a sleeping thread, if there is no such thread.

use crate::mutant;
use crate::sync::Ordering::{Acquire, Release, SeqCst};
use crate::sync::{AtomicBool, fence};

/// Lets one thread at a time make a round in place of a sleeping thread (a runner). No thread waits
/// for its turn.
///
/// A thread that was woken and finds the turn taken does nothing, and may not be woken again. So
/// the thread that has the turn looks at the [`Alarm`](crate::Alarm) once more after it has given
/// the turn back, and then sees what the other thread was woken for.
#[derive(Debug, Default)]
pub struct Turn(AtomicBool);

/// The turn. Dropping it gives the turn back.
#[derive(Debug)]
#[must_use = "dropped at once, it gives the turn back"]
pub struct HasTurn<'a>(&'a Turn);

impl Turn {
    /// Takes the turn, or returns `None` if another thread has it.
    pub fn take(&self) -> Option<HasTurn<'_>> {
        if !mutant::is("turn-take-unfenced") {
            // SeqCst: the alarm is set before the turn is looked at; pairs with the fence in
            // `drop`. Either this thread finds the turn free, or the thread that gives it back sees
            // the alarm.
            fence(SeqCst);
        }
        // Acquire: sees what the thread did that had the turn before; pairs with the release in
        // `drop`.
        (!self.0.swap(true, Acquire)).then_some(HasTurn(self))
    }
}

impl Drop for HasTurn<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Release); // Release: pairs with the acquire in `take`.
        if !mutant::is("turn-give-unfenced") {
            // SeqCst: the turn is given back before the alarm is looked at; pairs with the fence in
            // `take`.
            fence(SeqCst);
        }
    }
}
