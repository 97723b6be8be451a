//! The two behaviours of 2001, over the same intake, qdisc and device.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};

use onramp_core::qdisc::{Cx, Dequeue, Qdisc, Spec};
use onramp_core::{Device, QUOTA};
use onramp_dev::{Loopback, Network, ThreadWaker};
use onramp_queue::{Armed, Credits, Full, Intake, Owner, Packet, PacketList, Pool, Pushed};

use super::{Counts, NAP, PACKETS_MAX, PAYLOAD, Path, PathEnd, QDISC, address, now};
/// Quotas in a row before the rest is left to the helper (`MAX_SOFTIRQ_RESTART`).
const RESTARTS: u32 = 10;
/// More than may ever wait, so that no push becomes owner of a busy intake.
const NEVER: u16 = u16::MAX;

/// The queue, and its helper thread.
#[derive(Debug)]
pub(super) struct Softirq {
    intake: Intake<Root>,
    always: bool,
    places: usize,
    helper: OnceLock<Thread>,
    /// The helper has work.
    pending: AtomicBool,
    wakeups: AtomicU64,
    undone: AtomicU64,
    restarts: AtomicU64,
}

/// Behind the intake.
#[derive(Debug)]
struct Root {
    qdisc: Box<dyn Qdisc>,
    device: Loopback,
    burst: PacketList,
}

impl Softirq {
    /// `always`: submissions wake the helper, and do nothing else.
    pub(super) fn new(network: &Network, places: usize, always: bool) -> Self {
        let device = network.queue();
        let spec: Spec = QDISC.parse().expect("a qdisc that exists");
        let qdisc = spec.build(device.info().mtu);
        let root = Root { qdisc, device, burst: PacketList::new() };
        let cap = u16::try_from(PACKETS_MAX).unwrap_or(NEVER - 1);
        let intake = Intake::new(root, cap, NEVER);
        if always && let Some(owner) = intake.own() {
            // From now on pushes only stage; the helper is bound to take them.
            owner.leave_busy();
        }
        Self {
            intake,
            always,
            places,
            helper: OnceLock::new(),
            pending: AtomicBool::new(false),
            wakeups: AtomicU64::new(0),
            undone: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
        }
    }

    /// Wakes the helper, which finds all that was pushed before.
    fn wake(&self) {
        count(&self.wakeups);
        // Release: what was pushed; pairs with the swap in `help`. Acquire: the helper's thread, if
        // it looked before.
        self.pending.swap(true, Ordering::AcqRel);
        if let Some(helper) = self.helper.get() {
            helper.unpark();
        }
    }

    /// Works as owner in place. What is left after so many quotas is for the helper.
    fn in_place(&self, mut owner: Owner<'_, Root>, mut fresh: PacketList) {
        for _ in 0..=RESTARTS {
            fresh.append(&mut owner.take());
            if !owner.pass(&mut fresh) {
                match owner.leave_idle() {
                    Ok(()) => return count(&self.undone),
                    Err(still) => owner = still,
                }
            }
            count(&self.restarts);
        }
        owner.leave_busy();
        self.wake();
    }

    /// The helper's turn.
    fn turn(&self) {
        // Nobody else does: the intake was left busy for us.
        let Some(mut owner) = self.intake.own() else { return };
        let mut came = owner.take();
        let more = owner.pass(&mut came);
        if self.always {
            owner.leave_busy();
            if more {
                self.wake();
                thread::yield_now();
            }
        } else {
            self.in_place(owner, PacketList::new());
        }
    }
}

impl Root {
    /// Takes `came` in, and sends up to a quota. True: there is more.
    fn pass(&mut self, came: &mut PacketList) -> bool {
        let (mut drops, now) = (PacketList::new(), now());
        let mut cx = Cx { now, drops: &mut drops };
        for pkt in came {
            // The limit is never reached; if it were, an answer would be missing in the end.
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
    const HELPED: bool = true;

    fn name(&self) -> &'static str {
        if self.always { "wake-always" } else { "in-place" }
    }

    fn end(&self, number: usize, burst: usize) -> End<'_> {
        let packets = u32::try_from(burst).unwrap_or(u32::MAX);
        let pool = Pool::new(Credits { packets, bytes: 1 << 24 });
        End { softirq: self, pool, waker: ThreadWaker::default(), flow: number as u64 }
    }

    fn help(&self, over: &dyn Fn() -> bool) {
        let _ = self.helper.set(thread::current());
        while !over() {
            // Acquire: what was pushed; pairs with the swap in `wake`. Release: our thread, to who
            // comes after.
            if self.pending.swap(false, Ordering::AcqRel) {
                self.turn();
            } else {
                thread::park();
            }
        }
    }

    fn end_help(&self) {
        if let Some(helper) = self.helper.get() {
            helper.unpark();
        }
    }

    fn counts(&self) -> Counts {
        // Relaxed: numbers for people.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            wakeups: read(&self.wakeups),
            undone: Some(read(&self.undone)),
            restarts: read(&self.restarts),
        }
    }
}

/// A thread's packets.
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

impl PathEnd for End<'_> {
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
        match pushed {
            Pushed::Owner { owner, fresh } => self.softirq.in_place(owner, fresh),
            Pushed::Staged { .. } if self.softirq.always => self.softirq.wake(),
            Pushed::Staged { .. } => {}
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed); // Relaxed: a number for people.
}
