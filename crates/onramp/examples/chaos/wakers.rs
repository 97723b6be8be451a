//! Wakers that do more than waking: they panic, or use the link.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use onramp::Link;
use onramp::dev::Null;

use crate::counts::Met;
use crate::watch::lock;

/// The message of a panic that a waker causes on purpose.
pub(crate) const WAKER: &str = "planned: a waker panics";

/// What a waker does besides waking its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Plain,
    Panics,
    /// Drops a handle of the link, maybe the last one.
    DropsLink,
    /// Clones the handle of the link, makes a sender, and drops both.
    ClonesLink,
    /// Reads the link's counters, and changes qdiscs and ports.
    Controls,
}

/// A waker that unparks the thread that made it, and counts how often it was woken.
#[derive(Debug)]
pub(crate) struct Alarm {
    thread: Thread,
    mood: Mood,
    link: Mutex<Option<Link>>,
    woken: AtomicU64,
    /// Number of wake-ups that were caused by the thread that the waker unparks.
    self_woken: AtomicU64,
}

impl Alarm {
    pub(crate) fn new(mood: Mood, link: &Link) -> (Arc<Self>, Waker) {
        let link = matches!(mood, Mood::DropsLink | Mood::ClonesLink | Mood::Controls)
            .then(|| link.clone());
        let alarm = Arc::new(Self {
            thread: thread::current(),
            mood,
            link: Mutex::new(link),
            woken: AtomicU64::new(0),
            self_woken: AtomicU64::new(0),
        });
        (alarm.clone(), Waker::from(alarm))
    }

    pub(crate) fn woken(&self) -> u64 {
        self.woken.load(SeqCst)
    }

    /// Returns how often the waker was woken by the thread that it unparks.
    pub(crate) fn self_woken(&self) -> u64 {
        self.self_woken.load(SeqCst)
    }
}

/// Polls a future until it is ready, in the calling thread.
pub(crate) fn block_on<T>(link: &Link, future: impl Future<Output = T>) -> T {
    let (alarm, waker) = Alarm::new(Mood::Plain, link);
    let mut future = pin!(future);
    loop {
        let woken = alarm.woken();
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        while alarm.woken() == woken {
            thread::park();
        }
    }
}

fn control(link: &Link) {
    let stats = link.stats();
    let done = match stats.submitted % 16 {
        1..=4 => link.set_qdisc("fq").is_ok(),
        5..=7 => link.add_port(Null::default()).is_ok(),
        8 => link.remove_port(link.ports() - 1, Duration::ZERO).is_ok(),
        _ => stats.sent + stats.dropped_total() <= stats.submitted + stats.made,
    };
    if done {
        Met::WakerControls.note();
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.fetch_add(1, SeqCst);
        let itself = thread::current().id() == self.thread.id();
        self.self_woken.fetch_add(itself.into(), SeqCst);
        self.thread.unpark();
        match self.mood {
            Mood::Plain => {}
            Mood::Panics => {
                // The waker does not panic if the task wakes itself during its own poll, because
                // nothing would catch that panic.
                assert!(itself, "{WAKER}");
            }
            Mood::DropsLink => {
                let link = lock(&self.link).take();
                drop(link);
            }
            Mood::ClonesLink => {
                let link = lock(&self.link).clone();
                drop(link.map(|link| link.sender()));
            }
            Mood::Controls => {
                let link = lock(&self.link).clone();
                if let Some(link) = link {
                    // The thread that calls the waker may itself be changing the link at the
                    // moment. The change by the waker then returns an error.
                    control(&link);
                }
            }
        }
    }
}
