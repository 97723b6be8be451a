//! The two designs of 2001, with the same intake, qdisc and device. In one design, a helper thread
//! (like Linux's `ksoftirqd`) sends all queued packets. In the other, the thread that pushes
//! packets sends queued packets itself (in place), and the helper thread sends only what is left.

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

/// Number of further quotas that a thread sends in a row, after its first, before it leaves the
/// remaining packets to the helper thread (Linux's `MAX_SOFTIRQ_RESTART`).
const RESTARTS: u32 = 10;
/// Length of the intake's list at which a push into a busy intake makes its thread the owner. The
/// intake never holds so many packets, so this never happens.
const NEVER: u16 = u16::MAX;
/// How long a thread without packets sleeps before it looks again for returned packets.
const NAP: Duration = Duration::from_millis(10);

/// State of the helper thread while it sleeps or is about to sleep.
const ASLEEP: u8 = 0;
/// State of the helper thread while it looks for packets to send, or sends them.
const AWAKE: u8 = 1;
/// State of the helper thread if another thread has called it since it last looked for packets to
/// send, so that it must look again before it sleeps.
const CALLED: u8 = 2;

/// The queue that requests and answers pass, with the helper thread that sends queued packets.
#[derive(Debug)]
pub(super) struct Softirq {
    intake: Intake<Root>,
    design: Design,
    places: usize,
    helper: OnceLock<Thread>,
    /// The state of the helper thread: `ASLEEP`, `AWAKE`, or `CALLED` (another thread has called it
    /// since it last looked for packets to send).
    state: AtomicU8,
    calls: AtomicU64,
    notifies: AtomicU64,
    wakeups: AtomicU64,
    idle: AtomicU64,
    restarts: AtomicU64,
}

/// The data that the owner of the intake works on: the qdisc and the device.
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
            // In the design in which the helper thread sends all packets, leave the intake busy
            // from now on: pushes only stage packets, and the helper thread takes the packets.
            owner.leave_busy();
        }
        let counter = || AtomicU64::new(0);
        Self {
            intake,
            design,
            places,
            helper: OnceLock::new(),
            // The helper thread begins in the state `AWAKE`, because it looks for packets before it
            // sleeps.
            state: AtomicU8::new(AWAKE),
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

    /// Calls the helper thread, which then looks for packets and finds all that were pushed before
    /// this call. If it sleeps, wakes it. (In Linux: `wakeup_softirqd`.)
    fn wake(&self) {
        // Release: publishes the pushed packets; pairs with the swap in `help`.
        // Acquire: makes the helper thread's handle visible, if the helper thread has looked for
        // packets before; pairs with the swap and the exchange in `help`.
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

    /// Sends packets in place, as the owner. Returns false if the thread has used up its quotas, so
    /// that the remaining packets are left to the helper thread.
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

    /// Sends packets as the helper thread: one quota, or, in the design that works in place,
    /// several quotas. Returns true if packets are left to send.
    fn turn(&self) -> bool {
        // The helper thread always becomes the owner here: whenever it is called, the intake is
        // busy, so no other thread owns the intake or can become its owner.
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
    /// Enqueues the packets in `came` and sends up to a quota of packets. Returns true if packets
    /// are left to send.
    fn pass(&mut self, came: &mut PacketList) -> bool {
        let (mut drops, now) = (PacketList::new(), now());
        let mut cx = Cx::new(now, &mut drops);
        for pkt in came {
            // Ignore the qdisc's verdict on the packet: the qdisc never reaches its limit. If it
            // did, an answer would be missing at the end, and the experiment would fail.
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
            // Acquire: makes the pushed packets visible; pairs with the swap in `wake`.
            // Release: publishes the handle of this thread, the helper thread, for threads that
            // call it later.
            if self.state.swap(AWAKE, Ordering::AcqRel) == CALLED {
                slept = false;
                while self.turn() {
                    tally(&self.restarts);
                    thread::yield_now(); // Linux's `ksoftirqd` yields, too.
                }
                continue;
            }
            if slept {
                tally(&self.idle);
                slept = false;
            }
            // Release: publishes the handle of this thread, the helper thread, for the thread that
            // wakes it.
            // Relaxed: if the exchange fails, a thread has called this helper thread; the swap in
            // the next round of the loop acquires what that thread has published.
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
        // Relaxed: the counters are only reported; no thread acts on them.
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

/// One client's or server's end of the path, with the packets that it sends.
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
        // In the design that works in place, a packet that was staged while another thread owns the
        // intake needs no call of the helper thread, because that owner takes the packet.
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
    counter.fetch_add(1, Ordering::Relaxed); // Relaxed: the counter is only reported.
}
