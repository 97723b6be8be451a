//! Where the nodes of a pool come back to, whoever brings them. The table of `pool.rs` says what
//! its word means.

use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::task::Waker;

use crate::mutant;
use crate::packet::Node;
#[cfg(not(loom))]
use crate::sync::AtomicU64;
use crate::sync::Ordering::{self, AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, Life, Padded, UnsafeCell};
use crate::wakes::call;
use crate::word::Word;

/// The sender waits: whoever brings the count to [`WAKE_AT`] wakes it.
pub(super) const WAITING: usize = 1;
/// Somebody is taking the waker out, and alone may touch it; the home stays until it has.
pub(super) const WAKING: usize = 2;
/// The pool is gone; the count is of nodes still out.
pub(super) const CLOSED: usize = 4;
/// There is a [`Bell`], which keeps the home alive.
pub(super) const BELL: usize = 8;
/// The bell rang, and the pool has not looked since.
pub(super) const RUNG: usize = 16;

/// The count that wakes who is WAITING.
pub(super) const WAKE_AT: u16 = 0x8000;

/// Where the nodes of one pool come back to.
pub(crate) struct Home {
    pub(super) word: Padded<Door>,
    pub(super) waker: UnsafeCell<Option<Waker>>,
    pub(super) life: Life,
}

/// The word, and on its line what is written only by who has just lost a race for it.
pub(super) struct Door {
    word: AtomicPtr<Node>,
    /// Exchanges of `put_back` that failed. The model checker has enough to do without it.
    #[cfg(not(loom))]
    pub(super) repeated: AtomicU64,
}

impl Deref for Door {
    type Target = AtomicPtr<Node>;
    #[inline]
    fn deref(&self) -> &AtomicPtr<Node> {
        &self.word
    }
}

impl Door {
    fn new() -> Self {
        let word = AtomicPtr::new(ptr::null_mut());
        Self {
            word,
            #[cfg(not(loom))]
            repeated: AtomicU64::new(0),
        }
    }

    #[cold]
    fn repeats(&self) {
        // Relaxed: a number for people; it orders nothing.
        #[cfg(not(loom))]
        self.repeated.fetch_add(1, Relaxed);
    }
}

/// # Safety
///
/// Nobody else touches the slot.
pub(crate) unsafe fn store_waker(slot: *mut Option<Waker>, waker: &Waker) {
    // SAFETY: exclusive, by the caller's word.
    let slot = unsafe { &mut *slot };
    match slot {
        Some(old) if old.will_wake(waker) => {}
        _ => *slot = Some(waker.clone()),
    }
}

/// Frees all nodes of a chain.
///
/// # Safety
///
/// The chain is null-terminated, and the caller owns it.
pub(super) unsafe fn free_chain(mut node: *mut Node) {
    while !node.is_null() {
        // SAFETY: the caller owns the chain.
        let next = unsafe { Node::next(node) };
        // SAFETY: as above.
        unsafe { Node::free(node) };
        node = next;
    }
}

impl Home {
    pub(super) fn new() -> Self {
        Self { word: Padded(Door::new()), waker: UnsafeCell::new(None), life: Life::new() }
    }

    /// # Safety
    ///
    /// Nobody else has the home, or will.
    pub(super) unsafe fn free(home: *mut Self) {
        // SAFETY: alive until the next line.
        let dead = unsafe { &(*home).life }.ends();
        if !dead.stays_allocated() {
            // SAFETY: made by `Box`, and freed once.
            drop(unsafe { Box::from_raw(home) });
        }
    }

    /// Brings a chain of `count` nodes home; wakes their sender when that is enough for it.
    ///
    /// # Safety
    ///
    /// The caller owns the chain `first..=last` of `count` nodes, all of one home, and does not
    /// use it again.
    pub(crate) unsafe fn put_back(first: *mut Node, last: *mut Node, count: u16) {
        // SAFETY: the caller owns the chain.
        let home = unsafe { Node::home(first) };
        if home.is_null() {
            // SAFETY: as above; the chain ends at `last`.
            unsafe { Node::set_next(last, ptr::null_mut()) };
            // SAFETY: as above.
            unsafe { free_chain(first) };
            return;
        }
        // SAFETY: a home outlives its nodes, and `count` of them are ours until the exchange below.
        let this = unsafe { &*home };
        this.life.used();
        // Relaxed: a guess, which the exchange checks.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            // A pool that is gone does not wait.
            let wakes = word.has(WAITING) && word.count() + count >= WAKE_AT;
            let new = if word.has(CLOSED) {
                Word::with(ptr::null_mut(), word.count() - count, word.flags())
            } else {
                // SAFETY: the chain is still ours.
                unsafe { Node::set_next(last, word.node()) };
                let waking = if mutant::is("pool-put-without-waking") { 0 } else { WAKING };
                let flags = word.flags();
                let total = word.count() + count;
                Word::with(first, total, if wakes { flags & !WAITING | waking } else { flags })
            };
            // Release: the nodes, and what we did with the home; pairs with the acquire in
            // `reclaim`, `close`, and here. Acquire: if the word was WAITING, the waker, pairs with
            // the release in `arm`; if it was CLOSED, all that others did with the home.
            let order = mutant::or("pool-put-release", AcqRel, Acquire);
            let order = mutant::or("pool-put-acquire", order, Release);
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) if new.has(CLOSED) => {
                    // SAFETY: the pool is gone, so the chain is ours for good.
                    unsafe { Node::set_next(last, ptr::null_mut()) };
                    // SAFETY: as above.
                    unsafe { free_chain(first) };
                    if is_over(new) {
                        // SAFETY: ours were the last nodes out, so nobody else has the home.
                        unsafe { Self::free(home.cast_mut()) };
                    }
                    return;
                }
                Ok(_) if wakes => {
                    // SAFETY: we set WAKING.
                    unsafe { Self::wake(home) };
                    return;
                }
                Ok(_) => return,
                Err(seen) => {
                    this.word.0.repeats();
                    word = Word(seen);
                }
            }
        }
    }

    /// Wakes the sender. By then we have left the home, so that whatever the waker does, also
    /// dropping the pool, waits for nobody.
    ///
    /// # Safety
    ///
    /// The caller set WAKING, and nobody cleared it since: that keeps the home alive.
    pub(super) unsafe fn wake(home: *const Self) {
        // SAFETY: alive, by WAKING.
        let this = unsafe { &*home };
        this.life.used();
        // SAFETY: WAKING keeps everybody else from the waker.
        let waker = this.waker.with_mut(|slot| unsafe { (*slot).take() });
        // Release: we are done with the waker and, after this, with the home; pairs with the
        // acquire in `arm` and `forget_waker`. Acquire: if the pool is gone meanwhile, all that
        // others did with the home.
        let order = mutant::or("pool-wake-release", AcqRel, Acquire);
        let order = mutant::or("pool-wake-acquire", order, Release);
        // SAFETY: alive until the exchange, by WAKING, and not used after it.
        unsafe { Self::leave(home, WAKING, order) };
        if let Some(waker) = waker {
            call(waker);
        }
    }

    /// Takes a flag away that kept the home alive, and frees it if nothing else does.
    ///
    /// # Safety
    ///
    /// The flag is the caller's to take away, who does not use the home again.
    unsafe fn leave(home: *const Self, flag: usize, order: Ordering) {
        // SAFETY: alive, by the flag.
        let this = unsafe { &*home };
        // Relaxed: a guess, which the exchange checks.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            let new = word.with_flags(word.flags() & !flag);
            // In `order`: the caller says why. Relaxed: as above.
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) if is_over(new) => {
                    // SAFETY: no node is out, no flag is set but CLOSED: nobody else has the home.
                    return unsafe { Self::free(home.cast_mut()) };
                }
                Ok(_) => return,
                Err(seen) => word = Word(seen),
            }
        }
    }
}

/// Nobody has the home any more.
fn is_over(word: Word) -> bool {
    word.flags() == CLOSED && word.count() == 0
}

/// Wakes who waits for a pool, for an event that brings no packet home: see
/// [`Pool::bell`](crate::Pool::bell). May outlive the pool.
///
/// ```text
///                 |  ring  |  arm, listen, reclaim, drop of the pool
/// ring            |   -    |   -                      - needs no lock
/// ```
///
/// A ring cannot be lost: it finds WAITING and wakes, or leaves RUNG, which the next `arm` finds.
/// So who changes something first and rings then, and who looks after each wake-up and each
/// [`Armed::Ready`](crate::Armed::Ready), need no other order between them.
#[derive(Debug)]
pub struct Bell {
    home: NonNull<Home>,
}

// SAFETY: a bell exchanges the word, and touches the waker only while WAKING makes it its own.
unsafe impl Send for Bell {}
// SAFETY: as above.
unsafe impl Sync for Bell {}

impl Bell {
    /// The flag BELL was set for it.
    pub(super) fn new(home: NonNull<Home>) -> Self {
        Self { home }
    }

    /// Wakes who waits, or else has the next one that asks to be woken look first.
    pub fn ring(&self) {
        // SAFETY: alive, by BELL.
        let this = unsafe { self.home.as_ref() };
        this.life.used();
        // Relaxed: a guess, which the exchange checks.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            if word.has(CLOSED) {
                return;
            }
            let wakes = word.has(WAITING);
            let change = if wakes { WAITING | WAKING } else { 0 };
            let rung = if mutant::is("bell-ring-forgets") { 0 } else { RUNG };
            let new = word.with_flags((word.flags() ^ change) | rung);
            // An exchange, also if it rang before: release, what happened; pairs with the acquire
            // in `arm`. Acquire: if it was WAITING, the waker; pairs with the release in `arm`.
            let order = mutant::or("bell-ring-release", AcqRel, Acquire);
            let order = mutant::or("bell-ring-acquire", order, Release);
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) if wakes => {
                    // SAFETY: we set WAKING.
                    return unsafe { Home::wake(self.home.as_ptr()) };
                }
                Ok(_) => return,
                Err(seen) => word = Word(seen),
            }
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // Release: what we did with the home; pairs with the acquire of who frees it. Acquire: all
        // that others did with it, if we do.
        let order = mutant::or("bell-drop-release", AcqRel, Acquire);
        let order = mutant::or("bell-drop-acquire", order, Release);
        // SAFETY: BELL is ours, and the bell ends here.
        unsafe { Home::leave(self.home.as_ptr(), BELL, order) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Credits, Pool};

    #[test]
    fn what_was_tried_again_is_counted() {
        let pool = Pool::new(Credits { packets: 1, bytes: 1 });
        assert_eq!(pool.repeated(), 0);
        for count in 1..=3 {
            pool.home().word.0.repeats();
            assert_eq!(pool.repeated(), count);
        }
    }
}
