//! A ticket lock that puts threads that want to enqueue packets at a disadvantage.
//!
//! The thread that dequeues keeps the device busy. If that thread has to queue for the lock behind
//! all threads that want to enqueue, the device is idle meanwhile. So the thread that dequeues
//! draws a ticket and is next in line. The threads that enqueue draw no ticket; they try again and
//! again, and get the lock only when no thread waits with a ticket.
//!
//! Source: the idea of Jarek Poplawski on netdev, March 2009; never merged.

use super::Lock;
use super::ticket::{Held, Ticket};
use crate::measure::PhaseCell;
use crate::sync::spin_loop;

#[derive(Debug, Default)]
pub(crate) struct Handicap(Ticket);

impl Lock for Handicap {
    const KIND: &'static str = "spinlock";
    type Held<'a> = Held<'a>;

    #[inline]
    fn try_acquire(&self) -> Option<Held<'_>> {
        self.0.try_acquire()
    }

    fn acquire(&self, phase: &PhaseCell) -> Option<Held<'_>> {
        loop {
            if let Some(held) = self.0.try_acquire() {
                return Some(held);
            }
            while self.0.is_locked() {
                if phase.is_stop() {
                    return None;
                }
                spin_loop();
            }
        }
    }

    fn acquire_as_owner(&self, phase: &PhaseCell) -> Option<Held<'_>> {
        self.0.acquire(phase)
    }
}
