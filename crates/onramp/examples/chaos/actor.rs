//! An actor of the chaos test: a thread that sends packets and waits in all possible ways.

mod waits;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use onramp::{Flow, Link, Mapping, Packet, Rate, SendError, Sender, TrySendError};

use crate::counts::Met;
use crate::device::{UNORDERED, ordered, stamp, while_not};
use crate::ledger::{CALLBACK, Ledger, Lent};
use crate::plan::Fault;
use crate::watch::{Doing, Slot, cpu, lock};
use crate::world::World;

thread_local! {
    /// The sender of a thread that ends while it has a sender: the end of the thread drops this
    /// thread-local value.
    static LAST: RefCell<Option<Sender>> = const { RefCell::new(None) };
}

/// Greatest length of a payload, bytes. It is larger than a stamp (the numbers at the beginning of
/// a payload that say where its packet comes from).
const PAYLOAD_MAX: usize = 1_200;
/// Greatest length of a payload that an idle port sends without a copy, bytes.
const LENT_MAX: usize = 9_000;

pub(crate) struct Actor<'w> {
    world: &'w World,
    slot: Arc<Slot>,
    rng: Rng,
    link: Option<Link>,
    sender: Option<Sender>,
    ledger: Arc<Ledger>,
    flows: Vec<Lane>,
    /// Packets that the actor made with its sender and keeps without submitting them.
    held: Vec<Packet>,
    /// Whether a call of the present action failed because its port is dead or the link is closed.
    refused: bool,
    /// Number of the actor among the actors of its world.
    index: usize,
}

/// A flow, as one sender uses it.
#[derive(Clone)]
struct Lane {
    flow: Flow,
    /// The number of the flow by which devices check that its packets keep their order.
    order: u64,
}

impl<'w> Actor<'w> {
    pub(crate) fn new(
        world: &'w World,
        link: Link,
        slot: Arc<Slot>,
        mut rng: Rng,
        index: usize,
    ) -> Self {
        let (sender, ledger) = world.open(&slot, &link, &mut rng);
        let (sender, link) = (Some(sender), Some(link));
        let (flows, held) = (Vec::new(), Vec::new());
        let refused = false;
        let mut new = Self { world, slot, rng, link, sender, ledger, flows, held, refused, index };
        new.renew_flows();
        new
    }

    /// Sends and waits until the world (the test run of one link) stops, then waits for the
    /// completion of all packets of the actor's sender.
    pub(crate) fn live(mut self) {
        while !self.world.stop.load(SeqCst) {
            let acted = catch_unwind(AssertUnwindSafe(|| self.act()));
            if let Err(panic) = acted {
                let planned = panic.downcast_ref::<String>().is_some_and(|said| said == CALLBACK)
                    || panic.downcast_ref::<&str>().is_some_and(|said| *said == CALLBACK);
                if !planned {
                    resume_unwind(panic);
                }
            }
            self.ledger.calm.store(false, SeqCst);
            if self.refused {
                // On a dead port or a closed link, no call waits any more. So sleep before the next
                // action, so that the actor does not use a processor all the time.
                thread::sleep(Duration::from_millis(1));
                self.refused = false;
                self.renew_flows();
            }
        }
        self.ledger.calm.store(true, SeqCst);
        self.let_go();
        self.world.arrived.fetch_add(1, SeqCst);
        while !self.world.settle.load(SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
        let link = self.link.take();
        self.slot.call(Doing::DropLink, self.world.plan.patience(), 0, || drop(link));
        if let Some(sender) = self.sender.take() {
            self.world.finish(&self.slot, sender, &self.ledger);
        }
    }

    /// Drops the packets that the actor keeps without submitting them, which frees their credits.
    fn let_go(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.slot.call(Doing::DropPacket, self.at_once(), 0, || drop(held));
    }

    fn at_once(&self) -> Duration {
        self.world.plan.at_once()
    }

    fn patience(&self) -> Duration {
        self.world.plan.patience()
    }

    fn sender(&mut self) -> &mut Sender {
        self.sender.as_mut().expect("an actor has a sender until it ends")
    }

    fn link(&self) -> &Link {
        self.link.as_ref().expect("an actor has a link until it ends")
    }

    fn renew_flows(&mut self) {
        let Some(sender) = &self.sender else { return };
        let (rng, ports) = (&mut self.rng, self.link.as_ref().map_or(1, Link::ports));
        let weather = &self.world.weather;
        let flow = |rng: &mut Rng| {
            let (mapping, slowest) = match rng.u32(0..5) {
                0 => (Mapping::Cpu, 500_000),
                // All senders together use the four flows that are mapped by hash, so these flows
                // need a higher pacing rate than a flow of one sender.
                1 => (Mapping::Hash(rng.u64(0..4)), 50_000_000),
                2 => (Mapping::Port(rng.usize(0..ports)), 500_000),
                _ => (Mapping::Turn, 500_000),
            };
            let rate = if rng.bool() { 0 } else { rng.u64(slowest..100_000_000) };
            let flow =
                sender.flow_with(None, mapping).with_pacing_rate(Rate::bytes_per_second(rate));
            // Qdiscs treat flows of equal hashes as one flow. Several senders send packets of such
            // a flow, so devices cannot check the order of its packets.
            let shared = matches!(mapping, Mapping::Hash(_));
            let order = if shared { UNORDERED } else { weather.new_order() };
            Lane { flow: flow.with_priority(rng.u32(0..8)), order }
        };
        let flows: Vec<_> = (0..4).map(|_| flow(rng)).collect();
        let watched: Vec<_> = flows.iter().filter(|_| rng.bool()).map(|lane| &lane.flow).collect();
        let old = std::mem::take(&mut self.flows);
        // These calls take back credits, and so report completions. A callback that panics would
        // end this thread, because not every caller of this function catches it.
        self.ledger.calm.store(true, SeqCst);
        if let Some(sender) = &mut self.sender {
            old.iter().for_each(|lane| drop(sender.unwatch(&lane.flow)));
            watched.iter().for_each(|flow| sender.watch(flow));
        }
        self.ledger.calm.store(false, SeqCst);
        self.flows = flows;
    }

    /// Cancels what the sender has in flight of one of its flows.
    fn cancel(&mut self) {
        let (flow, slot, at_once) = (self.flow(), self.slot.clone(), self.at_once());
        let (watches, unwatches) = (self.rng.bool(), self.rng.bool());
        let cancelled = slot.call(Doing::Cancel, at_once, flow.port() as u64, || {
            let sender = self.sender();
            if watches {
                sender.watch(&flow);
            }
            let cancelled = sender.cancel(&flow);
            if unwatches {
                drop(sender.unwatch(&flow));
            }
            cancelled
        });
        if cancelled.is_some_and(|packets| packets > 0) {
            Met::Revoked.note();
        }
    }

    /// Says for a device that it has room, whether it has or not.
    fn tell_room(&mut self) {
        let Some(waker) = self.world.weather.waker(&mut self.rng) else { return };
        self.slot.call(Doing::WakePort, self.at_once(), 0, || waker.wake());
        Met::RoomTold.note();
    }

    fn lane(&mut self) -> Lane {
        let index = self.rng.usize(0..self.flows.len());
        self.flows[index].clone()
    }

    fn flow(&mut self) -> Flow {
        self.lane().flow
    }

    /// Returns a payload that begins with a stamp: the number of the sender that submits the
    /// packet, the number of the packet, and the number of the flow.
    fn payload(&mut self, order: u64) -> Vec<u8> {
        let stamp = ordered(self.ledger.id, self.ledger.next(), order);
        let len = match self.rng.u32(0..20) {
            0..10 => 0,
            10 => self.rng.usize(PAYLOAD_MAX..LENT_MAX),
            _ => self.rng.usize(0..PAYLOAD_MAX),
        };
        let mut payload = vec![0; len.max(stamp.len())];
        payload[..stamp.len()].copy_from_slice(&stamp);
        payload
    }

    /// Records that the link accepted `count` packets that this actor submitted.
    fn accepted(&self, count: u64, cookies: u64) {
        self.ledger.accepted(count, cookies);
        self.world.accepted.fetch_add(count, SeqCst);
    }

    fn refused(&mut self, why: TrySendError) {
        assert!(why != TrySendError::TooLarge, "no packet is that large");
        self.refused |= why != TrySendError::Full;
    }

    fn act(&mut self) {
        if self.index == 0 && self.fault() {
            return;
        }
        match self.rng.u32(0..100) {
            0..=24 => self.send(),
            25..=39 => self.try_send(),
            40..=45 => self.try_send_batch(),
            46..=50 => self.send_batch(),
            51..=55 => self.submit(),
            56..=58 => self.submit_heap(),
            59..=62 => self.lend(),
            63..=66 => self.borrow(),
            67..=70 => self.cork(),
            71..=73 => self.wait_room_timeout(),
            74..=75 => self.wait_room(),
            76..=82 => self.poll(),
            83 => self.hold(),
            84..=86 => self.flush(),
            87 => self.cancel(),
            88 => self.tell_room(),
            89 => {
                let time = Duration::from_millis(self.rng.u64(0..20));
                let link = self.link().clone();
                self.slot.wait(Doing::LinkFlush, time, 0, || link.flush(time));
            }
            90 => {
                let (slot, at_once) = (self.slot.clone(), self.at_once());
                slot.call(Doing::Reclaim, at_once, 0, || self.sender().reclaim());
            }
            91 => {
                let stats = self.slot.call(Doing::Look, self.at_once(), 0, || self.link().stats());
                assert!(stats.sent + stats.dropped_total() <= stats.submitted + stats.made);
            }
            92 => self.renew(),
            93 => self.swap(),
            94 => self.thread_end(),
            95 => self.hoard(),
            96 => self.fork(),
            97 => thread::sleep(Duration::from_micros(self.rng.u64(0..3_000))),
            _ => self.renew_flows(),
        }
    }

    fn send(&mut self) {
        let Lane { flow, order } = self.lane();
        for _ in 0..self.rng.u32(1..60) {
            let (payload, slot, bound) = (self.payload(order), self.slot.clone(), self.patience());
            let port = flow.port() as u64;
            let sent = slot.wait(Doing::Send, bound, port, || self.sender().send(&flow, &payload));
            match sent {
                Ok(()) => self.accepted(1, 0),
                Err(why) => return self.refuses(why),
            }
        }
    }

    fn refuses(&mut self, why: SendError) {
        assert!(why != SendError::TooLarge, "no packet is that large");
        self.refused = true;
    }

    fn try_send(&mut self) {
        let Lane { flow, order } = self.lane();
        for _ in 0..self.rng.u32(1..100) {
            let (payload, slot, bound) = (self.payload(order), self.slot.clone(), self.at_once());
            let port = flow.port() as u64;
            let try_send = || self.sender().try_send(&flow, &payload);
            match slot.call(Doing::TrySend, bound, port, try_send) {
                Ok(()) => self.accepted(1, 0),
                Err(why) => return self.refused(why),
            }
        }
    }

    fn try_send_batch(&mut self) {
        // The sender's completion callback must not panic during this call: a panic would hide how
        // many packets the link accepted.
        self.ledger.calm.store(true, SeqCst);
        let (Lane { flow, order }, slot) = (self.lane(), self.slot.clone());
        let bound = self.at_once();
        let payloads: Vec<_> = (0..self.rng.u32(1..100)).map(|_| self.payload(order)).collect();
        let try_send = || self.sender().try_send_batch(&flow, &payloads);
        match slot.call(Doing::TrySendBatch, bound, flow.port() as u64, try_send) {
            Ok(count) => self.accepted(count as u64, 0),
            Err(why) => self.refused(why),
        }
    }

    fn send_batch(&mut self) {
        // The sender's completion callback must not panic during this call: a panic would hide how
        // many packets the link accepted.
        self.ledger.calm.store(true, SeqCst);
        let (Lane { flow, order }, slot) = (self.lane(), self.slot.clone());
        let bound = self.patience();
        let payloads: Vec<_> = (0..self.rng.u32(1..60)).map(|_| self.payload(order)).collect();
        let send = || self.sender().send_batch(&flow, &payloads);
        match slot.wait(Doing::SendBatch, bound, flow.port() as u64, send) {
            Ok(()) => self.accepted(payloads.len() as u64, 0),
            Err(why) => {
                // A `SendError` does not say how many packets of the batch were staged before the
                // call failed.
                self.ledger.unknown.fetch_add(payloads.len() as u64, SeqCst);
                self.world.unknown.fetch_add(payloads.len() as u64, SeqCst);
                self.refuses(why);
            }
        }
    }

    fn submit(&mut self) {
        // Use a separate flow, because packets with departure times may be sent in another order:
        // see `Sender::flow`.
        let flow = self.sender().flow_with(None, Mapping::Turn);
        for _ in 0..self.rng.u32(1..20) {
            let (payload, slot) = (self.payload(UNORDERED), self.slot.clone());
            let bound = self.at_once();
            let (cookie, txtime) = (self.rng.u64(1..1 << 40), self.rng.u64(0..3_000_000));
            let txtime = self.link().now().after(txtime).0;
            let submit = || {
                let sender = self.sender();
                let mut packet = sender.packet(&flow, &payload)?;
                (packet.cookie, packet.txtime_ns) = (cookie, txtime);
                sender.submit(&flow, packet).map_err(|back| back.why)
            };
            match slot.call(Doing::Submit, bound, flow.port() as u64, submit) {
                Ok(()) => self.accepted(1, cookie),
                Err(why) => return self.refused(why),
            }
        }
    }

    /// Submits packets that were allocated on the heap: they belong to no sender's pool, and their
    /// completions are reported to nobody.
    fn submit_heap(&mut self) {
        let flow = self.flow();
        for _ in 0..self.rng.u32(1..8) {
            let mut packet = Packet::with_payload(&self.payload(UNORDERED));
            packet.flow = flow.key();
            let (slot, bound) = (self.slot.clone(), self.at_once());
            let submit = || self.sender().submit(&flow, packet).map_err(|back| back.why);
            match slot.call(Doing::Submit, bound, flow.port() as u64, submit) {
                Ok(()) => self.world.accepted.fetch_add(1, SeqCst),
                Err(why) => return self.refused(why),
            };
        }
    }

    /// Whether the actor may keep or lend one more packet. The limit is one less than the credits
    /// that every sender always has: if the actor kept as many packets as it has credits, none
    /// could come home, and waiting for room would never end.
    fn spare(&self) -> bool {
        let most = u64::from(self.world.plan.credits.min(4)) - 1;
        (self.held.len() as u64) + self.ledger.away.load(SeqCst) < most
    }

    fn packet(&mut self) -> Option<Packet> {
        let (flow, slot, bound) = (self.flow(), self.slot.clone(), self.at_once());
        let payload = self.payload(UNORDERED);
        let packet = slot.call(Doing::Submit, bound, 1, || self.sender().packet(&flow, &payload));
        packet.map_err(|why| self.refused(why)).ok()
    }

    /// Makes packets that another sender is to submit, and puts them where other actors find them.
    fn lend(&mut self) {
        while self.spare() {
            let Some(mut packet) = self.packet() else { return };
            packet.cookie = Ledger::lent_cookie(&mut self.rng);
            self.ledger.away.fetch_add(1, SeqCst);
            let lent = Lent { packet: Some(packet), of: self.ledger.clone() };
            lock(&self.world.market).push(lent);
        }
    }

    /// Submits some packets that other actors' senders have made, and drops others.
    fn borrow(&mut self) {
        for _ in 0..self.rng.u32(1..5) {
            let Some(mut lent) = lock(&self.world.market).pop() else { return };
            let Some(mut packet) = lent.packet.take().filter(|_| self.rng.u32(0..5) > 0) else {
                continue;
            };
            packet.set_payload(&stamp(self.ledger.id, self.ledger.next()));
            let (flow, slot, bound) = (self.flow(), self.slot.clone(), self.at_once());
            let cookie = packet.cookie;
            let submit = || self.sender().submit(&flow, packet);
            match slot.call(Doing::Submit, bound, flow.port() as u64, submit) {
                Ok(()) => {
                    // The packet comes home to the pool of the sender that made it, so that
                    // sender's record counts the packet.
                    lent.of.lent(cookie);
                    self.world.accepted.fetch_add(1, SeqCst);
                }
                Err(back) => self.refused(back.why),
            }
        }
    }

    /// Makes packets and keeps them without submitting them, as many as the actor may. Before that,
    /// sometimes drops the packets that it has kept so far.
    fn hold(&mut self) {
        if self.rng.bool() {
            self.let_go();
        }
        while self.spare() {
            let Some(packet) = self.packet() else { return };
            self.held.push(packet);
        }
    }

    fn cork(&mut self) {
        self.sender().cork();
        let (Lane { flow, order }, slot) = (self.lane(), self.slot.clone());
        let bound = self.at_once();
        for _ in 0..self.rng.u32(1..40) {
            let payload = self.payload(order);
            let try_send = || self.sender().try_send(&flow, &payload);
            match slot.call(Doing::TrySend, bound, 1_000, try_send) {
                Ok(()) => self.accepted(1, 0),
                Err(why) => {
                    self.refused(why);
                    break;
                }
            }
        }
        // In one of four cases, do not uncork: the packets stay corked until a later call waits.
        if self.rng.u32(0..4) > 0 {
            let _ = slot.call(Doing::Uncork, bound, 0, || self.sender().uncork());
        }
    }

    /// Replaces the actor's sender by a new one. The old sender is dropped while it has packets in
    /// flight.
    fn renew(&mut self) {
        if self.rng.bool() {
            self.let_go();
        }
        self.held.clear();
        let old = self.sender.take();
        // Dropping the old sender submits its corked packets, and waits for room to do so.
        let (slot, bound) = (self.slot.clone(), self.patience());
        slot.call(Doing::DropSender, bound, 0, || drop(old));
        self.open();
    }

    fn open(&mut self) {
        let link = self.link().clone();
        let (sender, ledger) = self.world.open(&self.slot, &link, &mut self.rng);
        (self.sender, self.ledger) = (Some(sender), ledger);
        self.renew_flows();
    }

    /// Leaves the actor's sender to another actor, and takes a sender that another actor has left.
    fn swap(&mut self) {
        self.held.clear();
        let Some(mine) = self.sender.take() else { return };
        let mut attic = lock(&self.world.attic);
        let other = (!attic.is_empty()).then(|| attic.swap_remove(0));
        attic.push((mine, self.ledger.clone()));
        drop(attic);
        match other {
            Some((sender, ledger)) => {
                (self.sender, self.ledger) = (Some(sender), ledger);
                // Packets of a flow keep their order only if the same sender sends them, so the
                // flows get new numbers under which devices check their order.
                let weather = &self.world.weather;
                let renewed = self.flows.iter_mut().filter(|lane| lane.order != UNORDERED);
                renewed.for_each(|lane| lane.order = weather.new_order());
            }
            None => self.open(),
        }
    }

    /// Runs a thread that stores its sender in a thread-local variable, so that the end of the
    /// thread drops the sender.
    fn thread_end(&mut self) {
        let (slot, bound) = (self.slot.clone(), self.patience());
        let (mut rng, link, world) = (self.rng.fork(), self.link().clone(), self.world);
        let thread = move || {
            let (mut sender, ledger) = world.open_calm(&link);
            let flow = sender.flow(None);
            sender.cork();
            for _ in 0..rng.u32(1..20) {
                let payload = stamp(ledger.id, ledger.next());
                world.accepted.fetch_add(sender.try_send(&flow, &payload).is_ok().into(), SeqCst);
            }
            LAST.set(Some(sender));
        };
        // Join the thread explicitly: the end of a scope does not wait until thread-local values
        // are dropped.
        let ended = slot
            .wait(Doing::ThreadEnd, bound, 0, || thread::scope(|scope| scope.spawn(thread).join()));
        assert!(ended.is_ok(), "a thread that only sends ends well");
    }

    fn fork(&mut self) {
        let spare = |left: u32| left.checked_sub(1);
        if self.world.forks_left.fetch_update(SeqCst, SeqCst, spare).is_err() {
            return;
        }
        // A forked child prints nothing, so no callback may panic there.
        self.ledger.calm.store(true, SeqCst);
        let (flow, slot, closes) = (self.flow(), self.slot.clone(), self.rng.bool());
        let bound = self.patience() + self.world.plan.slack();
        let watch = slot.watch().clone();
        let bound_all = bound + Duration::from_secs(10);
        slot.call(Doing::Fork, bound_all, 0, || {
            crate::fork::fork(&watch, &mut self.link, &mut self.sender, &flow, closes, bound);
        });
    }

    /// If this world has a fault on purpose, commits the fault. Returns true if the watchdog has
    /// found the fault or the world stops.
    fn fault(&mut self) -> bool {
        let Some(fault) = self.world.plan.fault else { return false };
        let slot = self.slot.clone();
        // Look only for the report of this fault, not for other failures of the link.
        let found = || slot.watch().found(Some(fault));
        let give_up = Duration::from_secs(5);
        match fault {
            Fault::Sleeps => {
                slot.call(Doing::Send, self.patience(), 77, || {
                    while_not(found, give_up);
                });
            }
            Fault::Burns => {
                slot.wait(Doing::WaitRoom, give_up, 77, || {
                    let end = cpu() + 300_000_000;
                    while cpu() < end {
                        std::hint::spin_loop();
                    }
                });
            }
            Fault::Books | Fault::Forgets | Fault::Overtakes => {
                // Other code commits these three faults: the end of the world commits `Books`,
                // `World::finish` commits `Forgets`, and a device commits `Overtakes`.
                return false;
            }
            Fault::WakesItself => {
                let wakes_itself = std::future::poll_fn(|cx: &mut std::task::Context<'_>| {
                    cx.waker().wake_by_ref();
                    std::task::Poll::<()>::Pending
                });
                self.task(Duration::from_millis(400)).run(wakes_itself);
            }
        }
        self.world.stop.load(SeqCst) || found()
    }
}
