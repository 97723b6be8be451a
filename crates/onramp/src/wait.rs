//! A waker that unparks a thread.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

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

/// The waker of the thread that asks, made once per thread that a sender waits on.
#[derive(Debug, Default)]
pub(crate) struct ThreadWaker(Option<(Waker, Thread)>);

impl ThreadWaker {
    /// The waker for the calling thread.
    pub(crate) fn get(&mut self) -> &Waker {
        let here = thread::current();
        match &self.0 {
            Some((_, thread)) if thread.id() == here.id() => {}
            _ => self.0 = Some((Waker::from(Arc::new(Unpark(here.clone()))), here)),
        }
        let (waker, _) = self.0.as_ref().expect("just made");
        waker
    }
}
