//! Where the nodes of a pool come back to, whoever brings them. The table of `pool.rs` says what
//! its word means.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::task::Waker;

use crate::mutant;
use crate::packet::Node;
#[cfg(not(loom))]
use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, Life, Padded, UnsafeCell};
use crate::word::Word;

/// The sender waits: whoever brings the count to [`WAKE_AT`] wakes it.
pub(super) const WAITING: usize = 1;
/// Somebody is taking the waker out, and alone may touch it; the home stays until it has.
pub(super) const WAKING: usize = 2;
/// The pool is gone; the count is of nodes still out.
pub(super) const CLOSED: usize = 4;

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
            let mut wakes = false;
            let new = if word.has(CLOSED) {
                Word::with(ptr::null_mut(), word.count() - count, CLOSED)
            } else {
                // SAFETY: the chain is still ours.
                unsafe { Node::set_next(last, word.node()) };
                let total = word.count() + count;
                wakes = word.has(WAITING) && total >= WAKE_AT;
                let waking = if mutant::is("pool-put-without-waking") { 0 } else { WAKING };
                Word::with(first, total, if wakes { waking } else { word.flags() })
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
                    if new.count() == 0 {
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
    unsafe fn wake(home: *const Self) {
        // SAFETY: alive, by WAKING.
        let this = unsafe { &*home };
        this.life.used();
        // SAFETY: WAKING keeps everybody else from the waker.
        let waker = this.waker.with_mut(|slot| unsafe { (*slot).take() });
        // Relaxed: a guess, which the exchange checks.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            let new = word.with_flags(word.flags() & !WAKING);
            // Release: we are done with the waker and, after this, with the home; pairs with the
            // acquire in `arm` and `forget_waker`.
            let order = mutant::or("pool-wake-release", Release, Relaxed);
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => break,
                Err(seen) => word = Word(seen),
            }
        }
        if let Some(waker) = waker {
            // Anybody's code, in a thread that came by with a packet of another, and maybe in the
            // midst of a list or of unwinding. So a panic of its ends here, and its value, whose
            // drop may panic again, is left alone. The panic hook has printed it.
            let wakes = AssertUnwindSafe(|| waker.wake());
            catch_unwind(wakes).unwrap_or_else(std::mem::forget);
        }
    }
}
