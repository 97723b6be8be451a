//! The only file of this crate that names synchronisation primitives: those of std, those of a
//! model checker if `--cfg loom` or `--cfg shuttle` is set, or those of the simulated machine
//! (crate `onramp-machine`) if `--cfg sim` is set. On the simulated machine, each access to memory
//! that several threads use is charged what it costs there.

#[cfg(loom)]
pub(crate) use loom::{
    alloc::{alloc, dealloc},
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(sim)]
pub(crate) use onramp_machine::{
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicU64 as CounterWord, Ordering,
        fence,
    },
    thread_local,
};
#[cfg(not(any(loom, shuttle, sim)))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
};
#[cfg(not(sim))]
pub(crate) use std::{sync::atomic::AtomicU64 as CounterWord, thread_local};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::{
    alloc::{alloc, dealloc},
    sync::Arc,
};

/// The cell of std, with the interface of loom's cell. If code used std's own cell under loom, loom
/// would not see its accesses and would find no data races.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        reads(self.0.get(), size_of::<T>());
        f(self.0.get())
    }

    #[inline]
    #[cfg_attr(sim, track_caller)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        changes(self.0.get(), size_of::<T>());
        f(self.0.get())
    }
}

/// Lets the other threads run under miri. Code calls this function where another thread may free an
/// object that this thread has just used, so that miri sees each use of the object after its end.
#[inline]
pub(crate) fn others_run() {
    #[cfg(miri)]
    (0..8).for_each(|_| std::thread::yield_now());
}

/// Tracks the lifetime of an object that many threads use and one thread frees. Only the model
/// checker uses the tracking.
///
/// The model checker reports a use of the object after its end, an end that is not ordered after
/// every use, and an object that nobody frees.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Life;

#[cfg(not(loom))]
impl Life {
    pub(crate) const fn new() -> Self {
        Self
    }

    #[inline]
    pub(crate) const fn used(&self) {}

    #[inline]
    pub(crate) const fn ends(&self) -> Dead {
        Dead
    }
}

#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Life(UnsafeCell<Option<loom::alloc::Track<()>>>);

#[cfg(loom)]
impl Life {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(Some(loom::alloc::Track::new(()))))
    }

    pub(crate) fn used(&self) {
        // SAFETY: loom's cell checks that no other thread writes at the same time.
        let lives = self.0.with(|track| unsafe { (*track).is_some() });
        assert!(lives, "used after its end");
    }

    pub(crate) fn ends(&self) -> Dead {
        // SAFETY: loom's cell checks that no other thread reads or writes at the same time.
        let track = self.0.with_mut(|track| unsafe { (*track).take() });
        assert!(track.is_some(), "freed twice");
        Dead
    }
}

/// Proof that the lifetime of an object, tracked by a [`Life`], has ended.
pub(crate) struct Dead;

impl Dead {
    /// Whether the memory of the object must stay allocated. Under the model checker it must, so
    /// that a use after the end is detected and does no harm.
    pub(crate) const fn stays_allocated(self) -> bool {
        cfg!(loom)
    }
}

/// A value that has two cache lines of its own; two, because x86 processors fetch cache lines in
/// pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Size of the two cache lines of a [`Padded`] value, in bytes.
#[cfg(not(loom))]
pub(crate) const LINES: usize = align_of::<Padded<()>>();

/// Charges, on the simulated machine, that ordinary code reads `bytes` bytes.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn reads<T>(at: *const T, bytes: usize) {
    #[cfg(sim)]
    onramp_machine::hook::read(at, bytes);
    #[cfg(not(sim))]
    let _ = (at, bytes);
}

/// Charges, on the simulated machine, that ordinary code reads and writes `bytes` bytes.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn changes<T>(at: *const T, bytes: usize) {
    #[cfg(sim)]
    onramp_machine::hook::change(at, bytes);
    #[cfg(not(sim))]
    let _ = (at, bytes);
}

/// Charges, on the simulated machine, that ordinary code writes `bytes` bytes without reading them.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn writes<T>(at: *const T, bytes: usize) {
    #[cfg(sim)]
    onramp_machine::hook::write(at, bytes);
    #[cfg(not(sim))]
    let _ = (at, bytes);
}

/// Prefetches the cache line at `at` for reading. Any address is allowed, even null.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(sim)]
    onramp_machine::hook::prefetch(at);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing and faults on no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch reads nothing and faults on no address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

/// Like [`prefetch`], for a cache line that is about to be written. If another processor has
/// written the line, this prefetch fetches it in exclusive state, with one transfer; otherwise
/// there would be two, one to read the line and one to gain exclusive access.
///
/// This is inline assembly, because the compiler's intrinsic becomes the instruction `prefetcht0`
/// unless the compiler may assume that the processor has `PREFETCHW`. All 64-bit processors accept
/// `PREFETCHW`; those without it execute it as a no-op.
#[inline]
#[cfg_attr(sim, track_caller)]
pub(crate) fn prefetch_write<T>(at: *const T) {
    #[cfg(sim)]
    onramp_machine::hook::prefetch_write(at);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes no memory and faults on no address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch changes no memory and faults on no address.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}
