//! Fibers: the stacks of simulated threads. This is the only module of the crate with `unsafe`
//! code.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Size of a fiber's stack in bytes, as of a thread of std. The system gives memory only to the
/// pages that are used.
const STACK: usize = 2 * 1024 * 1024;

thread_local! {
    /// The means by which the fiber that runs at present suspends itself; null outside fibers.
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A function with a stack of its own, which can be suspended and resumed.
pub(crate) struct Fiber(Coroutine<(), (), ()>);

impl Fiber {
    /// Makes a fiber that will run `main`.
    ///
    /// # Errors
    ///
    /// The error of the system if there is no memory for a stack.
    pub(crate) fn new(main: impl FnOnce() + 'static) -> io::Result<Self> {
        let stack = DefaultStack::new(STACK)?;
        Ok(Self(Coroutine::with_stack(stack, move |yielder, ()| {
            YIELDER.set(yielder);
            main();
        })))
    }

    /// Runs the fiber until it suspends itself or ends. Returns whether it has ended.
    ///
    /// # Panics
    ///
    /// Panics as the fiber's function does.
    pub(crate) fn resume(&mut self) -> bool {
        let ended = matches!(self.0.resume(()), CoroutineResult::Return(()));
        YIELDER.set(ptr::null());
        ended
    }
}

/// Suspends the fiber that calls this function, until it is resumed.
///
/// # Panics
///
/// Panics outside a fiber.
pub(crate) fn suspend() {
    let yielder = YIELDER.get();
    assert!(!yielder.is_null(), "only a simulated thread can be suspended");
    // SAFETY: the fiber that runs now has stored the pointer, below or when it began. The
    // pointed-to value lies on the fiber's own stack until the fiber ends.
    unsafe { &*yielder }.suspend(());
    YIELDER.set(yielder); // Other fibers have run meanwhile.
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn fibers_take_turns() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let fiber = |name: &'static str| {
            let log = log.clone();
            Fiber::new(move || {
                for step in 0..2 {
                    log.borrow_mut().push((name, step));
                    suspend();
                }
            })
        };
        let (mut first, mut second) = (fiber("first").unwrap(), fiber("second").unwrap());
        for ended in [false, false, true] {
            assert_eq!((first.resume(), second.resume()), (ended, ended));
        }
        let expected = [("first", 0), ("second", 0), ("first", 1), ("second", 1)];
        assert_eq!(*log.borrow(), expected);
    }

    #[test]
    #[should_panic(expected = "only a simulated thread")]
    fn a_real_thread_cannot_be_suspended() {
        suspend();
    }

    #[test]
    #[should_panic(expected = "from inside")]
    fn a_panic_leaves_the_fiber() {
        let mut fiber = Fiber::new(|| panic!("from inside")).unwrap();
        fiber.resume();
    }
}
