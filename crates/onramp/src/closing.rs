//! A close of a link that blocks no thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use onramp_core::{Clock, Instant};
use onramp_dev::MonotonicClock;
use onramp_queue::{Armed, Bell, Credits, Pool};

use crate::nap::Nap;
use crate::runner::ThreadGroup;
use crate::shared::{CloseReport, Handle, Lost, PATIENCE};

/// Future of [`Link::closing`](crate::Link::closing): closes a link, and is ready when the link is
/// closed.
///
/// The future belongs to no executor. It asks a runner of the link to wake its task, at growing
/// intervals of 20 ms at most, and its task then looks whether the link is empty.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Closing {
    handle: Arc<Handle>,
    timeout: Duration,
    /// Makes no packet: it only keeps the task's waker until its bell rings.
    pool: Pool,
    bell: Arc<Bell>,
    begun: Option<Begun>,
}

/// A close that has begun.
#[derive(Debug)]
struct Begun {
    before: Lost,
    flush_by: Instant,
    purging: Option<Purging>,
    nap: Nap,
}

/// The second part of a close: the packets that are left are purged.
#[derive(Clone, Copy, Debug)]
struct Purging {
    flushed: bool,
    give_up_at: Instant,
}

impl Closing {
    pub(crate) fn new(handle: Arc<Handle>, timeout: Duration) -> Self {
        let mut pool = Pool::new(Credits { packets: 1, bytes: 0 });
        let bell = pool.bell().unwrap_or_else(|| unreachable!("nobody else has the pool"));
        Self { handle, timeout, pool, bell: Arc::new(bell), begun: None }
    }

    fn begin(handle: &Handle, timeout: Duration) -> Begun {
        let shared = &handle.shared;
        let flush_by = shared.clock.now() + timeout;
        let before = shared.begin_close();
        if shared.slots.iter().any(|slot| slot.known.may_block) {
            // A device may block the only thread that could wake the task. The watch takes its
            // place then. If the system gives the link no further thread, the close still ends, but
            // only when the device returns.
            let _ = ThreadGroup::start_watch(shared, MonotonicClock);
        }
        Begun { before, flush_by, purging: None, nap: Nap::default() }
    }

    /// Goes on as far as it can without waiting. Returns the report when the link is closed;
    /// otherwise, the bell will ring.
    fn step(&mut self) -> Option<CloseReport> {
        let Self { handle, timeout, bell, begun, .. } = self;
        let shared = &*handle.shared;
        if shared.is_copy() {
            return Some(CloseReport::OF_COPY);
        }
        let begun = begun.get_or_insert_with(|| Self::begin(handle, *timeout));
        let now = shared.clock.now();
        let until = begun.purging.map_or(begun.flush_by, |purging| purging.give_up_at);
        let nap = begun.nap.next(until.since(now));
        let recalled = shared.recall_at(bell, now + nap);
        if begun.purging.is_none() {
            // Another close may have ended the wait for packets to leave. What that close loses is
            // in the report of this one, too.
            let flushed =
                shared.rig.gate.is_shut() || shared.slots.iter().all(|slot| slot.port.is_quiet());
            if !flushed && now < begun.flush_by {
                return None;
            }
            // From here on, a thread that owns a port purges the packets that it leaves there. The
            // runners still serve this task, so they are stopped last.
            shared.rig.gate.shut();
            begun.purging = Some(Purging { flushed, give_up_at: now + PATIENCE });
            begun.nap = Nap::default();
        }
        let Purging { flushed, give_up_at } = begun.purging?;
        let mut blocked = shared.sweep_all();
        match recalled {
            Ok(()) if blocked > 0 && now < give_up_at => return None,
            Ok(()) => {}
            // Another close has ended, and other threads may own ports only to see that.
            Err(most) => blocked = blocked.min(most),
        }
        shared.stop_threads();
        shared.ring_all();
        shared.end_recalls(blocked);
        // What a port that could not be closed still holds is not in the losses yet.
        Some(shared.lost().since(begun.before, flushed && blocked == 0, blocked))
    }
}

impl Future for Closing {
    type Output = CloseReport;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReport> {
        let this = self.get_mut();
        loop {
            if let Some(report) = this.step() {
                return Poll::Ready(report);
            }
            match this.pool.listen(cx.waker()) {
                Armed::Armed => return Poll::Pending,
                // The bell has rung since the step looked.
                Armed::Ready => {}
                // Another thread is just taking the task's previous waker out of the pool.
                Armed::Busy => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.handle.shared.forget_recall(&self.bell);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use onramp_core::Device;
    use onramp_dev::Null;

    use super::*;
    use crate::Link;

    #[test]
    fn a_dropped_future_leaves_no_request() {
        let device = Box::new(Null::default()) as Box<dyn Device>;
        let link = Link::devices([device]).qdisc("netem delay 100s").manual().build();
        let link = link.expect("a link");
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.try_send(&flow, b"x").expect("room");
        let mut cx = Context::from_waker(Waker::noop());
        let recalls = || link.handle.shared.recalls();
        {
            let mut closing = pin!(link.closing(Duration::from_secs(100)));
            for _ in 0..3 {
                assert!(closing.as_mut().poll(&mut cx).is_pending());
                assert_eq!(recalls(), 1, "one request for each future");
            }
        }
        assert_eq!(recalls(), 0);
    }
}
