//! The only file that names the primitives: std's, or those of a checker under `--cfg loom` or
//! `--cfg shuttle`.

#[cfg(loom)]
pub(crate) use loom::{
    alloc::{alloc, dealloc},
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::{
    alloc::{alloc, dealloc},
    sync::Arc,
};

/// loom's interface over std's cell. Without it loom sees no access, and finds no race.
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
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// The life of an object that many threads use and one frees; only the model checker looks at it.
///
/// It reports a use that does not come before the end, an end that nothing orders after a use,
/// and an object that nobody frees.
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
        // SAFETY: the cell checks that nobody writes meanwhile.
        let lives = self.0.with(|track| unsafe { (*track).is_some() });
        assert!(lives, "used after its end");
    }

    pub(crate) fn ends(&self) -> Dead {
        // SAFETY: the cell checks that nobody else reads or writes meanwhile.
        let track = self.0.with_mut(|track| unsafe { (*track).take() });
        assert!(track.is_some(), "freed twice");
        Dead
    }
}

/// What is left of a [`Life`].
pub(crate) struct Dead;

impl Dead {
    /// The model checker keeps the memory, so that a use after the end is seen and does no harm.
    pub(crate) const fn stays_allocated(self) -> bool {
        cfg!(loom)
    }
}

/// A value on cache lines of its own: two lines, since x86 fetches them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Bytes of the two lines.
#[cfg(not(loom))]
pub(crate) const LINES: usize = align_of::<Padded<()>>();

/// Asks the processor for the line at `at`; any address will do, also null.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing and faults on no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

/// As [`prefetch`], for a line that is about to be written. If another processor has written it,
/// it comes by one exchange instead of two: to read it, and then to be the only one that has it.
///
/// Written out, for the intrinsic becomes a `prefetcht0` where the compiler may not assume
/// `PREFETCHW`. All 64-bit processors take that instruction, those without it as one that does
/// nothing.
#[inline]
pub(crate) fn prefetch_write<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes nothing and faults on no address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}
