//! An intake divided into shards (separate lists), in front of a value that one thread at a time
//! owns.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use onramp_queue::Packet;

use super::Padded;
use super::words::{Chain, OWNED, Pointer, Pushed, push_to};
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::changes;

/// Largest number of shards of an intake. The atomic word `port` of the intake has one bit for each
/// shard, and one bit that says whether a thread owns the value behind the intake.
pub(crate) const SHARDS_MAX: usize = 62;

/// Returns the bit that stands for `shard` in an intake's word `port`.
const fn bit(shard: usize) -> u64 {
    1 << (shard + 1)
}

/// An intake divided into shards. Each shard has a list. One word for the whole port says which
/// shards hold packets and whether a thread owns the value; only a push into an empty shard writes
/// that word.
///
/// A push into an empty shard takes two steps: it fills the shard, and then sets the shard's bit.
/// If the thread is preempted in between, other threads find the shard filled and only add their
/// packets, and no owner looks into the shard until the preempted thread runs again.
pub(crate) struct Sharded<T> {
    shards: Box<[Padded<AtomicU64>]>,
    port: Padded<AtomicU64>,
    value: Padded<UnsafeCell<T>>,
}

// SAFETY: only the owner has a reference to the value, and the port's word hands the value over, so
// `T: Sync` is not needed.
unsafe impl<T: Send> Sync for Sharded<T> {}

/// Ownership of the value behind an intake. It lasts until `leave` is called. If a `ShardsOwner` is
/// dropped without `leave`, the intake stays owned for ever.
pub(crate) struct ShardsOwner<'a, T> {
    intake: &'a Sharded<T>,
    value: PhantomData<&'a mut T>,
}

impl<T> Sharded<T> {
    /// Makes an intake with `shards` shards, at least one and at most [`SHARDS_MAX`].
    pub(crate) fn new(shards: usize, value: T) -> Self {
        let shards = shards.clamp(1, SHARDS_MAX);
        Self {
            shards: (0..shards).map(|_| Padded(AtomicU64::new(0))).collect(),
            port: Padded(AtomicU64::new(0)),
            value: Padded(UnsafeCell::new(value)),
        }
    }

    /// Returns the number of shards of this intake.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Pushes `pkt` into `shard`, a number below [`shards`](Self::shards). Returns the packet to
    /// the caller if the shard holds as many packets as its word can count.
    #[inline]
    pub(crate) fn push(
        &self,
        pkt: Packet,
        shard: usize,
    ) -> Result<Pushed<ShardsOwner<'_, T>>, Packet> {
        let list = &self.shards[shard].0;
        let owner = || {
            changes(self.value.0.get());
            ShardsOwner { intake: self, value: PhantomData }
        };
        // Acquire: pairs with the swap in `take`. If an owner has emptied the list, this thread
        // sees that owner's flag when it reads `port` next, so it finds `port` zero only after that
        // owner has left. So this packet cannot overtake the sender's previous packet.
        // Relaxed: the loaded `port` is only a guess, which the exchange checks.
        if list.load(Acquire) == 0 && self.port.0.load(Relaxed) == 0 {
            // Acquire: makes the previous owner's writes to the value visible; pairs with the
            // release in `leave`.
            if self.port.0.compare_exchange(0, OWNED, Acquire, Relaxed).is_ok() {
                return Ok(Pushed::Owner(owner(), Some(pkt)));
            }
        }
        if push_to(list, &Pointer, &mut (), pkt, 0)? != 0 {
            return Ok(Pushed::Staged);
        }
        // Release: publishes the shard's list; pairs with the acquire in `waiting`.
        // Acquire: if this thread becomes the owner, makes the previous owner's writes visible.
        let before = self.port.0.fetch_or(bit(shard) | OWNED, AcqRel);
        Ok(if before & OWNED == 0 { Pushed::Owner(owner(), None) } else { Pushed::Staged })
    }
}

impl<'a, T> ShardsOwner<'a, T> {
    /// Returns the bits of the shards that hold packets. The caller must take the packets of all
    /// these shards.
    #[inline]
    pub(crate) fn waiting(&mut self) -> impl Iterator<Item = usize> + use<T> {
        let port = &self.intake.port.0;
        // Relaxed: if this load misses a push, `leave` fails, and the owner calls `waiting` again.
        // Acquire: makes the shards' lists visible; pairs with `push`.
        let waits = port.load(Relaxed) != OWNED;
        let mut bits = if waits { port.swap(OWNED, Acquire) & !OWNED } else { 0 };
        std::iter::from_fn(move || {
            let lowest = (bits != 0).then(|| bits.trailing_zeros() as usize - 1)?;
            bits &= bits - 1;
            Some(lowest)
        })
    }

    /// Takes all packets that wait in `shard`.
    #[inline]
    pub(crate) fn take(&mut self, shard: usize) -> Chain<'a, Pointer> {
        // Acquire: makes the packets visible; pairs with the release in `push_to`.
        // Release: a sender that finds the list empty also sees that this thread became the owner;
        // pairs with the acquire at the start of `push`.
        let taken = self.intake.shards[shard].0.swap(0, AcqRel);
        // SAFETY: `push_to` made the list, and the swap gave the whole list to this thread.
        unsafe { Chain::new(&Pointer, taken, true) }
    }

    /// Gives up the ownership and leaves the intake idle. If packets wait in a shard, the caller
    /// stays the owner, and the ownership is returned as an error.
    #[inline]
    pub(crate) fn leave(self) -> Result<(), Self> {
        // Release: publishes the owner's writes to the value; pairs with the acquire of the next
        // owner.
        // Relaxed: a failure tells only that packets wait.
        match self.intake.port.0.compare_exchange(OWNED, 0, Release, Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(self),
        }
    }
}

impl<T> Deref for ShardsOwner<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one owner at a time, and the port's word hands the value over.
        unsafe { &*self.intake.value.0.get() }
    }
}

impl<T> DerefMut for ShardsOwner<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one owner at a time, and the owner reaches the value only through `&mut
        // self`.
        unsafe { &mut *self.intake.value.0.get() }
    }
}

impl<T> Drop for Sharded<T> {
    fn drop(&mut self) {
        for shard in &mut self.shards {
            // SAFETY: no other thread pushes or takes any more, and `push_to` made the list.
            drop(unsafe { Chain::new(&Pointer, *shard.0.get_mut(), false) });
        }
    }
}

impl<T> fmt::Debug for Sharded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded").field("shards", &self.shards()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::tests::{lens, owned};
    use super::*;

    #[test]
    fn shards_that_have_something_are_told_once() {
        let intake = Sharded::new(3, ());
        let (mut owner, fresh) = owned(intake.push(Packet::new(1), 2));
        assert!(fresh.is_some());
        for (len, shard) in [(2, 2), (3, 0), (4, 2)] {
            assert!(matches!(intake.push(Packet::new(len), shard), Ok(Pushed::Staged)));
        }
        assert_eq!(owner.waiting().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(owner.waiting().count(), 0);
        assert_eq!(lens(owner.take(2)), [4, 2]);
        // Push into shard 2, whose packets the owner has taken, before the owner takes those of
        // shard 0. Then `leave` must fail, and `waiting` must return shard 2 again.
        assert!(matches!(intake.push(Packet::new(5), 2), Ok(Pushed::Staged)));
        assert_eq!(lens(owner.take(0)), [3]);
        let Err(mut owner) = owner.leave() else { panic!("shard 2 has something") };
        assert_eq!(owner.waiting().collect::<Vec<_>>(), [2]);
        assert_eq!(lens(owner.take(2)), [5]);
        assert!(owner.leave().is_ok());
    }
}
