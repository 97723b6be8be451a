//! Helpers of the tests: a device with a gate, time limits for waiting, and records of a sender's
//! completions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use onramp::dev::MonotonicClock;
use onramp::{
    Clock, Credits, Device, DeviceInfo, DropReason, Flow, Instant, Link, LinkBuilder, LinkStats,
    PacketList, Sender, Transmitted,
};

/// Time limit for waits. A wait that takes longer counts as endless.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// Time that a test gives a wrong result to show. If the tested code is correct, the test passes
/// with any value.
pub(crate) const SHORT: Duration = Duration::from_millis(20);

/// Runs `test` in a thread, and panics if the test does not end within five minutes.
#[track_caller]
pub(crate) fn in_time<R: Send + 'static>(test: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    let body = move || sender.send(test());
    let thread = thread::Builder::new().spawn(body).expect("a thread can be had");
    match receiver.recv_timeout(Duration::from_secs(300)) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("it sent nothing, so it panicked"),
        },
    }
}

/// Waits until `is` returns true, and panics if it does not within the time `LONG`.
#[track_caller]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = now() + LONG;
    while !is() {
        assert!(now() < deadline, "never: {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Counts how often it is called.
#[derive(Default)]
struct Calls(AtomicU64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls a sender that has no room until its waker is left with the link, and leaves `waker` there.
/// A poll that does some of a runner's work calls the waker before it returns, so that the task
/// polls again.
pub(crate) fn leave(waker: &Waker, sender: &mut Sender, flow: &Flow) {
    let calls = Arc::new(Calls::default());
    let mut poll = |waker: &Waker| {
        let polled = sender.poll_ready(&mut Context::from_waker(waker), flow, 1);
        assert_eq!(polled, Poll::Pending);
    };
    let first = Waker::from(calls.clone());
    loop {
        let before = calls.0.load(Ordering::SeqCst);
        poll(&first);
        if calls.0.load(Ordering::SeqCst) == before {
            break;
        }
    }
    poll(waker);
}

pub(crate) fn now() -> Instant {
    MonotonicClock.now()
}

/// A device that takes all packets while its gate is open, and takes none (as if full) while its
/// gate is shut.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Number of packets that the device still takes before it is full; `OPEN` means any number.
    room: AtomicU64,
    /// Cookies of the packets that the device took, burst by burst.
    bursts: Mutex<Vec<Vec<u64>>>,
    refusals: AtomicU64,
}

const OPEN: u64 = u64::MAX;

struct Gated {
    info: DeviceInfo,
    gate: Arc<Gate>,
}

impl Gate {
    pub(crate) fn new(open: bool) -> Arc<Self> {
        let room = if open { OPEN } else { 0 };
        Arc::new(Self { room: room.into(), ..Self::default() })
    }

    pub(crate) fn device(self: &Arc<Self>) -> Box<dyn Device> {
        let info = DeviceInfo::new("gate".to_owned(), 1_514);
        Box::new(Gated { info, gate: self.clone() })
    }

    pub(crate) fn open(&self) {
        self.room.store(OPEN, Ordering::SeqCst);
    }

    pub(crate) fn shut(&self) {
        self.room.store(0, Ordering::SeqCst);
    }

    /// Lets the device take `count` packets, although its gate is shut.
    pub(crate) fn open_for(&self, count: u64) {
        self.room.store(count, Ordering::SeqCst);
    }

    /// Lets `count` of the waiting packets through a gate that is shut, and waits until they are
    /// home. A runner frees packets that left before it offers further packets to the device, so
    /// once the device has refused further packets, these packets are home.
    #[track_caller]
    pub(crate) fn let_go(&self, count: u64) {
        self.open_for(count);
        until("they go", || self.room.load(Ordering::SeqCst) == 0);
        let refusals = self.refusals();
        until("the runner asks again", || self.refusals() > refusals);
    }

    pub(crate) fn taken(&self) -> Vec<u64> {
        self.bursts.lock().unwrap().concat()
    }

    pub(crate) fn bursts(&self) -> Vec<usize> {
        self.bursts.lock().unwrap().iter().map(Vec::len).collect()
    }

    /// Returns how often packets were offered to the device while its gate was shut.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::SeqCst)
    }
}

impl Device for Gated {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let retry_at = Some(now + Duration::from_micros(50));
        let room = self.gate.room.load(Ordering::SeqCst);
        if room == 0 {
            self.gate.refusals.fetch_add(1, Ordering::SeqCst);
            return Transmitted { calls: 1, messages: 0, retry_at };
        }
        let taken = usize::try_from(room).unwrap_or(usize::MAX).min(burst.len() as usize);
        let cookies = burst.metas().take(taken).map(|meta| meta.cookie).collect();
        self.gate.bursts.lock().unwrap().push(cookies);
        done.extend(burst.by_ref().take(taken));
        if room != OPEN {
            self.gate.room.fetch_sub(taken as u64, Ordering::SeqCst);
        }
        Transmitted { calls: 1, messages: 1, retry_at: retry_at.filter(|_| !burst.is_empty()) }
    }
}

/// Returns the builder of a link with one port, whose device has this gate.
pub(crate) fn gated(gate: &Arc<Gate>, qdisc: &str) -> LinkBuilder {
    Link::devices([gate.device()]).qdisc(qdisc)
}

pub(crate) const fn credits(packets: u32) -> Credits {
    Credits { packets, bytes: 1 << 30 }
}

/// Counts the completions of one sender's packets, by drop reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fates(Arc<Mutex<BTreeMap<Option<DropReason>, u64>>>);

impl Fates {
    pub(crate) fn of(sender: &mut Sender) -> Self {
        let fates = Self::default();
        let theirs = fates.clone();
        sender.on_complete(move |completion| {
            *theirs.0.lock().unwrap().entry(completion.drop_reason).or_default() += 1;
        });
        fates
    }

    pub(crate) fn get(&self, fate: Option<DropReason>) -> u64 {
        self.0.lock().unwrap().get(&fate).copied().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.lock().unwrap().values().sum()
    }
}

/// Checks that the counters of a link that holds no packets agree with each other.
#[track_caller]
pub(crate) fn balanced(stats: &LinkStats) {
    assert_eq!(stats.held, 0, "at rest: {stats:?}");
    assert_eq!(stats.submitted + stats.made, stats.sent + stats.dropped_total(), "{stats:?}");
    for port in &stats.ports {
        let bursts: u64 = port.burst_packets.iter().sum();
        assert_eq!(bursts, port.bursts, "one entry a burst");
        assert!(port.busy <= port.runs && port.helped <= port.runs);
    }
}
