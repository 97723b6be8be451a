//! A waker that unparks a thread.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::sync::thread::{self, Thread};

#[derive(Debug)]
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Provides a waker for the calling thread, and keeps it for later calls from the same thread.
#[derive(Debug, Default)]
pub struct ThreadWaker(Option<(Waker, Thread)>);

impl ThreadWaker {
    /// Returns the waker of the calling thread; waking it unparks that thread.
    pub fn get(&mut self) -> &Waker {
        let here = thread::current();
        match &self.0 {
            Some((_, thread)) if thread.id() == here.id() => {}
            _ => self.0 = None,
        }
        let (waker, _) =
            self.0.get_or_insert_with(|| (Waker::from(Arc::new(Unpark(here.clone()))), here));
        waker
    }
}
