//! Sleeping until a word changes: by futexes of Linux, or on the simulated machine by its threads.

#[cfg(not(sim))]
pub(crate) use real::{wait, wake_one};
#[cfg(sim)]
pub(crate) use simulated::{wait, wake_one};

#[cfg(not(sim))]
mod real {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{self, Flags, Timespec};

    /// Sleeps until another thread wakes the threads that wait for `word`, but not longer than
    /// `longest`. Does not sleep if the word has another value than `value`.
    pub(crate) fn wait(word: &AtomicU32, value: u32, longest: Duration) {
        let span = Timespec {
            tv_sec: longest.as_secs().cast_signed(),
            tv_nsec: longest.subsec_nanos().into(),
        };
        // Ignore the result: the caller looks at the word again, whatever ended the sleep.
        let _ = futex::wait(word, Flags::PRIVATE, value, Some(&span));
    }

    /// Wakes one of the threads that wait for `word`.
    pub(crate) fn wake_one(word: &AtomicU32) {
        // Ignore the result: a wake-up fails only for an invalid address.
        let _ = futex::wake(word, Flags::PRIVATE, 1);
    }
}

#[cfg(sim)]
mod simulated {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::time::Duration;

    use onramp_machine::sync::atomic::{AtomicU32, Ordering};
    use onramp_machine::thread::{self, Thread};

    std::thread_local! {
        /// The simulated threads that sleep, each with the address of the word that it waits for.
        /// All threads of a simulated machine run in one real thread.
        static SLEEPERS: RefCell<VecDeque<(usize, Thread)>> =
            const { RefCell::new(VecDeque::new()) };
    }

    fn address(word: &AtomicU32) -> usize {
        std::ptr::from_ref(word).addr()
    }

    /// As on Linux.
    pub(crate) fn wait(word: &AtomicU32, value: u32, longest: Duration) {
        let (here, me) = (address(word), thread::current());
        let id = me.id();
        SLEEPERS.with_borrow_mut(|sleepers| sleepers.push_back((here, me)));
        // Relaxed: the value only decides whether to sleep. A thread that changes the word later
        // finds this thread in the list.
        if word.load(Ordering::Relaxed) == value {
            thread::park_timeout(longest);
        }
        SLEEPERS.with_borrow_mut(|sleepers| sleepers.retain(|(_, thread)| thread.id() != id));
    }

    /// As on Linux.
    pub(crate) fn wake_one(word: &AtomicU32) {
        let here = address(word);
        let woken = SLEEPERS.with_borrow_mut(|sleepers| {
            let place = sleepers.iter().position(|(address, _)| *address == here)?;
            sleepers.remove(place)
        });
        if let Some((_, thread)) = woken {
            thread.unpark();
        }
    }
}
