//! The two designs of 2001, with the same intake, qdisc and device.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use onramp_core::Spec;
use onramp_core::qdisc::{Cx, Dequeue, Qdisc};
use onramp_core::{Device, QUOTA};
use onramp_dev::{Loopback, Network, ThreadWaker};
use onramp_queue::{Armed, Credits, Full, Intake, Owner, Packet, PacketList, Pool, Pushed};

use super::{Counts, Design, PACKETS_MAX, PAYLOAD, QDISC, address, now};
use crate::exchange::{self, Path};

/// Number of further quotas in a row before the rest is left to the helper (`MAX_SOFTIRQ_RESTART`).
const RESTARTS: u32 = 10;
/// More packets than can ever wait, so that no push becomes the owner of a busy intake.
const NEVER: u16 = u16::MAX;
/// How long a thread without packets sleeps before it tries again.
const NAP: Duration = Duration::from_millis(10);

/// State of a helper that sleeps or is about to sleep.
const ASLEEP: u8 = 0;
/// State of a helper that looks for work or works.
const AWAKE: u8 = 1;
/// State of a helper that was called since it last looked for work.
const CALLED: u8 = 2;

/// The queue, with its helper thread.
#[derive(Debug)]
pub(super) struct Softirq {
    intake: Intake<Root>,
    design: Design,
    places: usize,
    helper: OnceLock<Thread>,
    /// The helper's state: `ASLEEP`, `AWAKE` or `CALLED`.
    state: AtomicU8,
    calls: AtomicU64,
    notifies: AtomicU64,
    wakeups: AtomicU64,
    idle: AtomicU64,
    restarts: AtomicU64,
}

/// The data behind the intake.
#[derive(Debug)]
struct Root {
    qdisc: Box<dyn Qdisc>,
    device: Loopback,
    burst: PacketList,
}

impl Softirq {
    pub(super) fn new(network: &Network, places: usize, design: Design) -> Self {
        let device = network.queue();
        let spec: Spec = QDISC.parse().expect("a qdisc that exists");
        let qdisc = spec.build(device.info().mtu);
        let root = Root { qdisc, device, burst: PacketList::new() };
        let cap = u16::try_from(PACKETS_MAX).unwrap_or(NEVER - 1);
        let intake = Intake::new(root, cap, NEVER);
        if design == Design::WakeAlways
            && let Some(owner) = intake.own()
        {
            // From now on pushes only stage packets, and the helper takes them.
            owner.leave_busy();
        }
        let counter = || AtomicU64::new(0);
        Self {
            intake,
            design,
            places,
            helper: OnceLock::new(),
            state: AtomicU8::new(AWAKE), // The helper looks for work before it sleeps.
            calls: counter(),
            notifies: counter(),
            wakeups: counter(),
            idle: counter(),
            restarts: counter(),
        }
    }

    fn wakes_always(&self) -> bool {
        self.design == Design::WakeAlways
    }

    /// Calls the helper, which will find all packets pushed before. A helper that is awake is not
    /// woken (`wakeup_softirqd`).
    fn wake(&self) {
        // Release: the pushed packets; pairs with the swap in `help`.
        // Acquire: the helper's thread handle, if the helper looked for work before.
        if self.state.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            tally(&self.notifies);
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(helper) = self.helper.get() {
            helper.unpark();
        }
    }

    /// Works in place as the owner. Returns false if the quotas were used up and the rest was left
    /// to the helper.
    fn in_place(&self, mut owner: Owner<'_, Root>, mut fresh: PacketList) -> bool {
        for _ in 0..=RESTARTS {
            fresh.append(&mut owner.take());
            if !owner.pass(&mut fresh) {
                match owner.leave_idle() {
                    Ok(()) => return true,
                    Err(still) => owner = still,
                }
            }
            tally(&self.restarts);
        }
        owner.leave_busy();
        false
    }

    /// Does one turn of the helper's work. Returns true if there is more to do.
    fn turn(&self) -> bool {
        // No other thread becomes the owner, because the intake was left busy for the helper.
        let Some(mut owner) = self.intake.own() else { return false };
        if !self.wakes_always() {
            return !self.in_place(owner, PacketList::new());
        }
        let mut came = owner.take();
        let more = owner.pass(&mut came);
        owner.leave_busy();
        more
    }
}

impl Root {
    /// Enqueues the packets in `came` and sends up to a quota. Returns true if there is more to
    /// send.
    fn pass(&mut self, came: &mut PacketList) -> bool {
        let (mut drops, now) = (PacketList::new(), now());
        let mut cx = Cx::new(now, &mut drops);
        for pkt in came {
            // The qdisc's limit is never reached. If it were, an answer would be missing at the
            // end.
            let _ = self.qdisc.enqueue(pkt, &mut cx);
        }
        while self.burst.len() < QUOTA {
            let Dequeue::Ready(pkt) = self.qdisc.dequeue(&mut cx) else { break };
            self.burst.push_back(pkt);
        }
        let _ = self.device.transmit(&mut self.burst, &mut PacketList::new(), now);
        !self.burst.is_empty() || self.qdisc.backlog().packets > 0
    }
}

impl Path for Softirq {
    type End<'a> = End<'a>;
    type Counts = Counts;
    const HELPED: bool = true;

    fn name(&self) -> String {
        format!("softirq, {}", self.design.name())
    }

    fn end(&self, number: usize, burst: usize) -> End<'_> {
        let packets = u32::try_from(burst).unwrap_or(u32::MAX);
        let pool = Pool::new(Credits { packets, bytes: 1 << 24 });
        End { softirq: self, pool, waker: ThreadWaker::default(), flow: number as u64 }
    }

    fn help(&self, over: &dyn Fn() -> bool) {
        let _ = self.helper.set(thread::current());
        let mut slept = false;
        while !over() {
            // Acquire: the pushed packets; pairs with the swap in `wake`.
            // Release: this thread's handle, for later callers.
            if self.state.swap(AWAKE, Ordering::AcqRel) == CALLED {
                slept = false;
                while self.turn() {
                    tally(&self.restarts);
                    thread::yield_now(); // `ksoftirqd` yields too.
                }
                continue;
            }
            if slept {
                tally(&self.idle);
                slept = false;
            }
            // Release: this thread's handle, for the thread that wakes it.
            // Relaxed: after a failure, the swap above looks again.
            let (order, failed) = (Ordering::Release, Ordering::Relaxed);
            if self.state.compare_exchange(AWAKE, ASLEEP, order, failed).is_ok() {
                thread::park();
                tally(&self.wakeups);
                slept = true;
            }
        }
    }

    fn end_help(&self) {
        self.unpark();
    }

    fn counts(&self) -> Counts {
        // Relaxed: only reported, no thread acts on them.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            calls: read(&self.calls),
            notifies: read(&self.notifies),
            wakeups: read(&self.wakeups),
            idle: read(&self.idle),
            restarts: read(&self.restarts),
        }
    }
}

/// One thread's end of the path, with the thread's packets.
#[derive(Debug)]
pub(super) struct End<'a> {
    softirq: &'a Softirq,
    pool: Pool,
    waker: ThreadWaker,
    flow: u64,
}

impl End<'_> {
    fn packet(&mut self) -> Packet {
        loop {
            if let Some(pkt) = self.pool.take(PAYLOAD) {
                return pkt;
            }
            if self.pool.reclaim(|_| {}) > 0 {
                continue;
            }
            match self.pool.arm(self.waker.get(), 1) {
                Armed::Ready => {}
                Armed::Busy => thread::yield_now(),
                Armed::Armed => thread::park_timeout(NAP),
            }
        }
    }
}

impl exchange::End for End<'_> {
    fn submit(&mut self, place: usize, count: usize) {
        let dest = address(self.softirq.places, place);
        let mut list = PacketList::new();
        for _ in 0..count {
            let mut pkt = self.packet();
            pkt.set_payload(&[0x5a; PAYLOAD]);
            pkt.set_dest(Some(dest));
            (pkt.flow, pkt.len) = (self.flow, 162);
            list.push_back(pkt);
        }
        let pushed = loop {
            match self.softirq.intake.push(list) {
                Ok(pushed) => break pushed,
                Err(Full(back)) => {
                    list = back;
                    thread::yield_now();
                }
            }
        };
        // A packet staged behind an owner needs no call, because the owner takes it.
        let done = match pushed {
            Pushed::Owner { owner, fresh } => self.softirq.in_place(owner, fresh),
            Pushed::Staged { .. } if self.softirq.wakes_always() => false,
            Pushed::Staged { .. } => return,
        };
        tally(&self.softirq.calls);
        if !done {
            self.softirq.wake();
        }
    }
}

fn tally(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed); // Relaxed: only reported.
}
