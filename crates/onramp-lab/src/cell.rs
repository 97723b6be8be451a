//! The only module of this crate with `unsafe` code. It contains a value that a lock protects, a
//! list that many threads push packets to, and alternatives to the intake of `onramp-queue`.
#![allow(unsafe_code)]

pub(crate) mod shards;
pub(crate) mod words;

#[cfg(sim)]
use std::cell::Cell;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr;

use onramp_queue::{Packet, PacketList};

use crate::lock::Lock;
use crate::lockstat::LockNotes;
use crate::measure::PhaseCell;
use crate::sync::atomic::{AtomicPtr, Ordering};
#[cfg(sim)]
use crate::sync::changes;

/// A value on cache lines of its own: two lines, because x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// A value that only the holder of a lock can reach; the lock is stored beside the value.
///
/// Each `Lock` of this crate promises that only one thread holds it at a time; all locks pass the
/// same test (see the tests of `lock.rs`).
#[derive(Default)]
pub(crate) struct LockCell<L, T> {
    lock: Padded<L>,
    value: Padded<UnsafeCell<T>>,
}

// SAFETY: only the holder of the lock has a reference to the value, and the lock hands the value
// over, so `T: Sync` is not needed.
unsafe impl<L: Lock, T: Send> Sync for LockCell<L, T> {}

/// Access to the value while the lock is held. Dropping the guard releases the lock.
pub(crate) struct Guard<'a, L: Lock + 'a, T> {
    cell: &'a LockCell<L, T>,
    _held: L::Held<'a>,
    /// Time at which the lock was taken. `None` if the duration of this hold is not measured.
    since: Option<u64>,
    /// Whether the simulated machine was told that the value moves to this processor.
    #[cfg(sim)]
    charged: Cell<bool>,
    /// A guard acts like `&mut T`: threads may share the guard only if they may share `T`.
    value: PhantomData<&'a mut T>,
}

impl<L: Lock, T> LockCell<L, T> {
    pub(crate) fn new(value: T) -> Self {
        Self { lock: Padded(L::default()), value: Padded(UnsafeCell::new(value)) }
    }

    /// Takes the lock, waiting if necessary. Returns `None` if the experiment was stopped (its
    /// phase became `Stop`) before the lock was free.
    #[inline]
    pub(crate) fn lock(&self, phase: &PhaseCell, notes: &mut LockNotes) -> Option<Guard<'_, L, T>> {
        self.lock_with(notes, || self.lock.0.acquire(phase))
    }

    /// Takes the lock like [`lock`](Self::lock), for the thread that dequeues packets. Some designs
    /// let that thread have the lock before all other waiting threads.
    #[inline]
    pub(crate) fn lock_as_owner(
        &self,
        phase: &PhaseCell,
        notes: &mut LockNotes,
    ) -> Option<Guard<'_, L, T>> {
        self.lock_with(notes, || self.lock.0.acquire_as_owner(phase))
    }

    #[inline]
    fn lock_with<'a>(
        &'a self,
        notes: &mut LockNotes,
        slowly: impl FnOnce() -> Option<L::Held<'a>>,
    ) -> Option<Guard<'a, L, T>> {
        if let Some(held) = self.lock.0.try_acquire() {
            return Some(self.guard(held, notes));
        }
        let from = notes.wait_begins();
        let held = slowly();
        notes.wait_ends(from);
        Some(self.guard(held?, notes))
    }

    /// Takes the lock if it is free; otherwise returns `None` at once.
    #[inline]
    pub(crate) fn try_lock(&self, notes: &mut LockNotes) -> Option<Guard<'_, L, T>> {
        let held = self.lock.0.try_acquire()?;
        Some(self.guard(held, notes))
    }

    #[inline]
    fn guard<'a>(&'a self, held: L::Held<'a>, notes: &mut LockNotes) -> Guard<'a, L, T> {
        Guard {
            cell: self,
            _held: held,
            since: notes.taken(),
            #[cfg(sim)]
            charged: Cell::new(false),
            value: PhantomData,
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.0.get_mut()
    }
}

impl<L: Lock, T> Guard<'_, L, T> {
    /// Releases the lock, and records how long the lock was held.
    #[inline]
    pub(crate) fn unlock(self, notes: &mut LockNotes) {
        let since = self.since;
        drop(self);
        notes.let_go(since);
    }

    /// Charges, on the simulated machine, the first access to the value under this guard: the value
    /// moves to this processor from the one that had the lock before.
    #[inline]
    #[cfg_attr(sim, track_caller)]
    #[cfg_attr(not(sim), expect(clippy::unused_self, reason = "used on the simulated machine"))]
    fn charge(&self) {
        #[cfg(sim)]
        if !self.charged.replace(true) {
            changes(self.cell.value.0.get());
        }
    }
}

impl<L: Lock, T> Deref for Guard<'_, L, T> {
    type Target = T;
    #[inline]
    #[cfg_attr(sim, track_caller)]
    fn deref(&self) -> &T {
        self.charge();
        // SAFETY: this thread holds the lock, and `lock_with` makes one guard each time the lock is
        // taken.
        unsafe { &*self.cell.value.0.get() }
    }
}

impl<L: Lock, T> DerefMut for Guard<'_, L, T> {
    #[inline]
    #[cfg_attr(sim, track_caller)]
    fn deref_mut(&mut self) -> &mut T {
        self.charge();
        // SAFETY: this thread holds the lock, and `&mut self` is the only way to reach the value.
        unsafe { &mut *self.cell.value.0.get() }
    }
}

impl<L, T> fmt::Debug for LockCell<L, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockCell").finish_non_exhaustive()
    }
}

/// A list of packets, newest first. Any thread can push a packet; `take` takes all packets at once.
///
/// Each packet's `cookie` (a field of the packet's header) stores the pointer to the next older
/// packet. The cookie lies on the same cache line as the pointer that Onramp's own lists use.
///
/// Source: Treiber: Systems programming: coping with parallelism, 1986.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    newest: Padded<AtomicPtr<()>>,
}

const _: () = assert!(size_of::<Packet>() == size_of::<*mut ()>());

impl Stack {
    /// Whether the stack is empty. The answer is only a hint, because other threads may push.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: the value is only a hint.
        self.newest.0.load(Ordering::Relaxed).is_null()
    }

    /// Prefetches the cache line that the next push onto the stack writes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        onramp_queue::prefetch_write(&self.newest.0);
    }

    /// Pushes `pkt` onto the stack. Returns true if the stack was empty.
    #[inline]
    pub(crate) fn push(&self, mut pkt: Packet) -> bool {
        // SAFETY: a `Packet` is one non-null pointer (`repr(transparent)`). When the exchange below
        // succeeds, the stack owns the packet through the pointer `node`, and `pkt` is forgotten.
        let node: *mut () = unsafe { mem::transmute_copy(&pkt) };
        // Relaxed: the value is only a guess, which the exchange checks.
        let mut newest = self.newest.0.load(Ordering::Relaxed);
        loop {
            pkt.cookie = newest.expose_provenance() as u64;
            // Release: publishes the packet; pairs with the acquire in `take`.
            let (order, failed) = (Ordering::Release, Ordering::Relaxed);
            match self.newest.0.compare_exchange_weak(newest, node, order, failed) {
                Ok(_) => {
                    mem::forget(pkt);
                    return newest.is_null();
                }
                Err(seen) => newest = seen,
            }
        }
    }

    /// Takes all packets off the stack and returns them, oldest first.
    #[expect(clippy::disallowed_methods, reason = "a cookie is a number; `push` exposed the link")]
    pub(crate) fn take(&self) -> PacketList {
        // Acquire: makes the packets' contents visible; pairs with the release in `push`.
        let mut node = self.newest.0.swap(ptr::null_mut(), Ordering::Acquire);
        let mut list = PacketList::new();
        while !node.is_null() {
            // SAFETY: `push` stored the pointer of a packet here and gave up the packet; the swap
            // made this thread the owner of the chain.
            let pkt: Packet = unsafe { mem::transmute(node) };
            let older = usize::try_from(pkt.cookie).expect("an address");
            node = ptr::with_exposed_provenance_mut(older);
            prefetch(node);
            list.push_front(pkt);
        }
        list
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Prefetches the cache line at `at`. Any address is allowed, even null.
#[inline]
fn prefetch(at: *const ()) {
    #[cfg(sim)]
    onramp_machine::hook::prefetch(at);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and faults on no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_gives_the_oldest_first() {
        let stack = Stack::default();
        assert!(stack.is_empty());
        let packet = |len| Packet::new(len);
        assert!(stack.push(packet(1)), "it was empty");
        assert!(!stack.push(packet(2)));
        assert!(!stack.push(packet(3)));
        let taken: Vec<_> = stack.take().map(|pkt| pkt.len).collect();
        assert_eq!(taken, [1, 2, 3]);
        assert!(stack.push(packet(4)), "empty again");
    }

    #[test]
    fn nothing_is_lost_between_threads_that_push_and_one_that_takes() {
        const EACH: u32 = if cfg!(miri) { 40 } else { 2_000 };
        let stack = Stack::default();
        let taken = std::thread::scope(|scope| {
            for thread in 0..4 {
                let stack = &stack;
                scope.spawn(move || {
                    (0..EACH).for_each(|n| {
                        let mut pkt = Packet::new(n);
                        pkt.flow = thread;
                        stack.push(pkt);
                    });
                });
            }
            let mut taken = vec![Vec::new(); 4];
            while taken.iter().map(Vec::len).sum::<usize>() < 4 * EACH as usize {
                for pkt in stack.take() {
                    taken[usize::try_from(pkt.flow).expect("small")].push(pkt.len);
                }
                std::thread::yield_now();
            }
            taken
        });
        for flow in taken {
            assert!(flow.iter().copied().eq(0..EACH), "each thread's own order");
        }
    }
}
