//! The home of a pool's nodes, to which any thread returns nodes. The table in `pool.rs` explains
//! the word of the home.

use std::any::Any;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::task::Waker;

use super::Node;
use super::word::Word;
use crate::cancel::Cancelled;
use crate::mutant;
#[cfg(not(loom))]
use crate::sync::AtomicU64;
use crate::sync::Ordering::{self, AcqRel, Acquire, Relaxed, Release};
use crate::sync::{AtomicPtr, Life, Padded, UnsafeCell, others_run};
use crate::wakes::call;

/// Flag in the word: the sender waits for packets to come home. The thread whose returned packets
/// make the count in the word reach [`WAKE_AT`] wakes the sender.
pub(crate) const WAITING: usize = 1;
/// Flag in the word: a thread is taking the sender's waker out, and only that thread may touch the
/// waker. The home stays alive until that thread has finished.
pub(crate) const WAKING: usize = 2;
/// Flag in the word: the pool was dropped; the count in the word is then the number of nodes that
/// are not home yet.
pub(crate) const CLOSED: usize = 4;
/// Flag in the word: there is a [`Bell`] (by which other threads wake the sender), which keeps the
/// home alive.
pub(crate) const BELL: usize = 8;
/// Flag in the word: the [`Bell`] rang, and the pool has not noticed it yet.
pub(crate) const RUNG: usize = 16;

/// The count in the word at which a sender is woken if WAITING is set (the sender waits).
pub(crate) const WAKE_AT: u16 = 0x8000;

/// The home of a pool: the place to which any thread returns the pool's nodes.
pub(crate) struct Home {
    pub(crate) word: Padded<Door>,
    pub(crate) waker: UnsafeCell<Option<Waker>>,
    /// The tags of the pool's packets that the sender has cancelled; empty until it first cancels.
    pub(crate) cancelled: OnceLock<Cancelled>,
    /// The memory in which the nodes lie, if they were not allocated one by one.
    memory: Option<Memory>,
    pub(crate) life: Life,
}

/// Memory in which nodes lie; it is freed when the last clone is dropped. (The `Arc` of std, also
/// under loom, whose own holds no `dyn Any`.)
pub(crate) type Memory = std::sync::Arc<dyn Any + Send + Sync>;

/// The word of a home. On the same cache line is a counter that is written only by threads that
/// have just lost a race for the word.
pub(crate) struct Door {
    word: AtomicPtr<Node>,
    /// Number of exchanges of the word that failed in `put_back`. Left out under loom, to keep the
    /// models small.
    #[cfg(not(loom))]
    pub(crate) repeated: AtomicU64,
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
    pub(crate) fn repeats(&self) {
        // Relaxed: the counter only informs people; it orders no other memory.
        #[cfg(not(loom))]
        self.repeated.fetch_add(1, Relaxed);
    }
}

/// # Safety
///
/// No other thread touches the slot, the place of a waker, during this call.
pub(crate) unsafe fn store_waker(slot: *mut Option<Waker>, waker: &Waker) {
    // SAFETY: the caller guarantees that no other thread touches the slot during this call.
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
/// The chain is null-terminated, and the caller owns all its nodes.
pub(crate) unsafe fn free_chain(mut node: *mut Node) {
    while !node.is_null() {
        // SAFETY: the caller owns all nodes of the chain.
        let next = unsafe { Node::next(node) };
        // SAFETY: the caller owns the node, and `next` was read before.
        unsafe { Node::free(node) };
        node = next;
    }
}

impl Home {
    /// Makes a home for nodes that are allocated one by one, or that lie in `memory`.
    pub(crate) fn new(memory: Option<Memory>) -> Self {
        let (waker, cancelled) = (UnsafeCell::new(None), OnceLock::new());
        Self { word: Padded(Door::new()), waker, cancelled, memory, life: Life::new() }
    }

    /// Replaces the word by `next(word)`, and returns the previous word. If `next` returns `None`,
    /// leaves the word unchanged and returns `None`.
    ///
    /// Takes a pointer and not `&self`: after an exchange that closes the home, another thread may
    /// free it, and a reference that is a parameter must stay valid until its function returns.
    ///
    /// # Safety
    ///
    /// The home is alive until the exchange.
    #[inline]
    pub(crate) unsafe fn update(
        home: *const Self,
        order: Ordering,
        next: impl Fn(Word) -> Option<Word>,
    ) -> Option<Word> {
        // SAFETY: the caller guarantees that the home is alive until the exchange, and this thread
        // does not use the reference afterwards.
        let this = unsafe { &*home };
        this.life.used();
        // Relaxed: the loaded value is a guess, which the exchange verifies.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            let new = next(word)?;
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) => {
                    others_run();
                    return Some(word);
                }
                Err(seen) => word = Word(seen),
            }
        }
    }

    /// Marks the word as CLOSED, because the pool is being dropped. `out` tells from the word how
    /// many of the pool's nodes are not home. Returns the nodes that came home, and whether the
    /// calling thread must free the home because nobody else refers to it. If the thread need not
    /// free the home, another thread may free it at any moment.
    ///
    /// # Safety
    ///
    /// The pool has not been closed yet, so the home is alive.
    pub(crate) unsafe fn close(home: *const Self, out: impl Fn(Word) -> u32) -> (*mut Node, bool) {
        // Acquire: if this thread frees the home, makes the nodes and all that other threads did
        // with the home visible; pairs with the release in `put_back`. Release: if another thread
        // frees the home, publishes all that this thread did with it.
        let order = mutant::or("pool-close-acquire", AcqRel, Release);
        let order = mutant::or("pool-close-release", order, Acquire);
        let next = |word: Word| {
            #[expect(clippy::cast_possible_truncation, reason = "at most PACKETS_MAX")]
            let out = out(word) as u16;
            // The flags WAKING and BELL stay, because each of them keeps the home alive. The flag
            // RUNG (the bell rang) is cleared, because nobody waits for the bell any more.
            let flags = word.flags() & (WAKING | BELL);
            Some(Word::with(ptr::null_mut(), out, CLOSED | flags))
        };
        // SAFETY: the caller guarantees that the home is alive until the exchange, which closes it.
        let last = unsafe { Self::update(home, order, next) }.unwrap_or(Word::ZERO);
        (last.node(), out(last) == 0 && !last.has(WAKING) && !last.has(BELL))
    }

    /// # Safety
    ///
    /// Nobody else refers to the home, now or later.
    pub(crate) unsafe fn free(home: *mut Self) {
        // SAFETY: the home is alive until it is freed below, and nobody else refers to it.
        let this = unsafe { &mut *home };
        this.memory = None;
        let dead = this.life.ends();
        if !dead.stays_allocated() {
            // SAFETY: `Box` allocated the home, and this is the only place that frees it.
            drop(unsafe { Box::from_raw(home) });
        }
    }

    /// Returns a chain of `count` nodes to their home. If the sender waits for packets and enough
    /// have now come home, wakes the sender.
    ///
    /// # Safety
    ///
    /// The caller owns the chain `first..=last` of `count` nodes, all of one home, and does not
    /// use it again.
    pub(crate) unsafe fn put_back(first: *mut Node, last: *mut Node, count: u16) {
        // SAFETY: the caller owns the chain.
        let home = unsafe { Node::home(first) };
        if home.is_null() {
            // SAFETY: the caller owns the chain, which ends at `last`.
            unsafe { Node::set_next(last, ptr::null_mut()) };
            // SAFETY: the caller owns the chain, which now ends at null.
            unsafe { free_chain(first) };
            return;
        }
        // SAFETY: a home outlives its nodes, and `count` of its nodes belong to this thread until
        // the exchange below.
        let this = unsafe { &*home };
        this.life.used();
        // Relaxed: the loaded value is a guess, which the exchange verifies.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            // If the pool was dropped, WAITING is not set, so nobody is woken.
            let wakes = word.has(WAITING) && word.count() + count >= WAKE_AT;
            // Read before the exchange: afterwards, another thread may free the home.
            let in_memory = word.has(CLOSED) && this.memory.is_some();
            let new = if word.has(CLOSED) {
                Word::with(ptr::null_mut(), word.count() - count, word.flags())
            } else {
                // SAFETY: the chain `first..=last` belongs to this thread until the exchange
                // succeeds.
                unsafe { Node::set_next(last, word.node()) };
                let waking = if mutant::is("pool-put-without-waking") { 0 } else { WAKING };
                let flags = word.flags();
                let total = word.count() + count;
                Word::with(first, total, if wakes { flags & !WAITING | waking } else { flags })
            };
            // Release: publishes the nodes, and what this thread did with the home; pairs with the
            // acquire in `reclaim`, in `close` and in this function. Acquire: if WAITING was set
            // (the sender waits), makes the waker visible; pairs with the release in `arm`. If
            // CLOSED was set (the pool was dropped), makes all that other threads did with the home
            // visible. Relaxed: after a failed exchange, the word is only a guess for the next
            // round.
            let order = mutant::or("pool-put-release", AcqRel, Acquire);
            let order = mutant::or("pool-put-acquire", order, Release);
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) if new.has(CLOSED) => {
                    // Nodes in a memory own nothing by themselves, and the memory may be gone.
                    if !in_memory {
                        // SAFETY: the pool was dropped, so no other thread takes the chain.
                        unsafe { Node::set_next(last, ptr::null_mut()) };
                        // SAFETY: this thread owns the chain, which now ends at null.
                        unsafe { free_chain(first) };
                    }
                    if is_over(new) {
                        // SAFETY: this thread returned the last nodes that were out, so nobody else
                        // refers to the home.
                        unsafe { Self::free(home.cast_mut()) };
                    }
                    return;
                }
                Ok(_) if wakes => {
                    // SAFETY: the exchange above set WAKING, so only this thread may touch the
                    // waker.
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

    /// Wakes the sender. The calling thread is finished with the home before it calls the waker. So
    /// nothing that the waker does has to wait for this thread, not even dropping the pool.
    ///
    /// # Safety
    ///
    /// The caller set the flag WAKING, and no thread has cleared it since; WAKING keeps the home
    /// alive.
    pub(crate) unsafe fn wake(home: *const Self) {
        // SAFETY: the flag WAKING keeps the home alive.
        let this = unsafe { &*home };
        this.life.used();
        // SAFETY: while WAKING is set, no other thread touches the waker.
        let waker = this.waker.with_mut(|slot| unsafe { (*slot).take() });
        // Release: this thread has finished with the waker and, after the exchange, with the home;
        // pairs with the acquire in `arm` and `forget_waker`. Acquire: if the pool was dropped in
        // the meantime, makes all that other threads did with the home visible.
        let order = mutant::or("pool-wake-release", AcqRel, Acquire);
        let order = mutant::or("pool-wake-acquire", order, Release);
        // SAFETY: the flag WAKING keeps the home alive until the exchange that clears it, and this
        // thread does not use the home afterwards.
        unsafe { Self::leave(home, WAKING, order) };
        if let Some(waker) = waker {
            call(waker);
        }
    }

    /// Clears a flag that has kept the home alive (WAKING or BELL), and frees the home if nothing
    /// else keeps it alive.
    ///
    /// # Safety
    ///
    /// The caller has the right to clear the flag `flag`, and does not use the home again.
    unsafe fn leave(home: *const Self, flag: usize, order: Ordering) {
        // SAFETY: the flag that is to be cleared still keeps the home alive.
        let this = unsafe { &*home };
        // Relaxed: the loaded value is a guess, which the exchange verifies.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            let new = word.with_flags(word.flags() & !flag);
            // On success, the exchange has the ordering `order`, which the caller explains.
            // Relaxed: on failure, the value is again only a guess.
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) if is_over(new) => {
                    // SAFETY: no node is out and CLOSED is the only flag, so nobody else refers to
                    // the home.
                    return unsafe { Self::free(home.cast_mut()) };
                }
                Ok(_) => return,
                Err(seen) => word = Word(seen),
            }
        }
    }
}

/// Whether nobody refers to the home any more: the pool was dropped, no node is out, and no flag
/// keeps the home alive.
fn is_over(word: Word) -> bool {
    word.flags() == CLOSED && word.count() == 0
}

/// Wakes the thread that waits for packets of a pool, when something happens that brings no packet
/// home; see [`Pool::bell`](crate::Pool::bell). A bell may outlive its pool.
///
/// ```text
///                 |  ring  |  arm, listen, reclaim, drop of the pool
/// ring            |   -    |   -                      -: may run at the same time
/// ```
///
/// A ring cannot be lost: it sets the flag RUNG, which the next `arm` finds, and if the flag
/// WAITING is set (the sender waits), it also wakes the sender. So one thread makes a change and
/// then rings; the waiting thread looks for changes after each wake-up and each
/// [`Armed::Ready`](crate::Armed::Ready). No further synchronisation is needed.
#[derive(Debug)]
pub struct Bell {
    home: NonNull<Home>,
}

// SAFETY: a bell exchanges the word, and touches the waker only after it has set WAKING, which
// excludes all other threads.
unsafe impl Send for Bell {}
// SAFETY: threads that share a bell exchange the word, and touch the waker only after they have set
// WAKING, which excludes all other threads.
unsafe impl Sync for Bell {}

impl Bell {
    /// Makes a bell for the home `home`. The caller has already set the flag BELL (there is a bell)
    /// in the home's word.
    pub(crate) fn new(home: NonNull<Home>) -> Self {
        Self { home }
    }

    /// Wakes the thread that waits for the pool, if there is one, and makes the next request for a
    /// wake-up return [`Armed::Ready`](crate::Armed::Ready).
    pub fn ring(&self) {
        // SAFETY: the flag BELL keeps the home alive.
        let this = unsafe { self.home.as_ref() };
        this.life.used();
        // Relaxed: the loaded value is a guess, which the exchange verifies.
        let mut word = Word(this.word.0.load(Relaxed));
        loop {
            if word.has(CLOSED) {
                return;
            }
            let wakes = word.has(WAITING);
            let change = if wakes { WAITING | WAKING } else { 0 };
            let rung = if mutant::is("bell-ring-forgets") { 0 } else { RUNG };
            let new = word.with_flags((word.flags() ^ change) | rung);
            // Exchange the word even if RUNG (the bell rang) is already set, because the next `arm`
            // must see what happened before this ring.
            // Release: publishes what happened before the ring; pairs with the acquire in `arm`.
            // Acquire: if WAITING was set (the sender waits), makes the waker visible; pairs with
            // the release in `arm`.
            let order = mutant::or("bell-ring-release", AcqRel, Acquire);
            let order = mutant::or("bell-ring-acquire", order, Release);
            match this.word.0.compare_exchange_weak(word.0, new.0, order, Relaxed) {
                Ok(_) if wakes => {
                    // SAFETY: the exchange above set WAKING, so only this thread may touch the
                    // waker.
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
        // Release: publishes what this thread did with the home; pairs with the acquire of the
        // thread that frees the home. Acquire: if this thread frees the home, makes all that other
        // threads did with it visible.
        let order = mutant::or("bell-drop-release", AcqRel, Acquire);
        let order = mutant::or("bell-drop-acquire", order, Release);
        // SAFETY: the flag BELL belongs to this bell, which does not use the home again.
        unsafe { Home::leave(self.home.as_ptr(), BELL, order) };
    }
}
