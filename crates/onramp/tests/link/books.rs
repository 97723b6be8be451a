//! Checks random sequences of operations on packets by senders and receivers against a model. After
//! each operation, every sender knows how many of its packets are in flight, the link's counters
//! are right, and each completion was reported exactly once.

mod model;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onramp::dev::{Network, Receiver};
use onramp::{Flow, Link, Mode, Packet, Sender, TrySendError};
use proptest::prelude::*;

use crate::common::{LONG, balanced, credits, in_time, until};
use crate::trap::Trap;

use model::{Fate, LINKS, MAIL, Model, Place, Sums, TRAP, told};

/// An operation of the random sequence. If a sender makes the operation, the first number selects
/// the sender. Any other number selects a packet that the test holds, or says how many packets are
/// sent or read.
#[derive(Clone, Debug)]
enum Op {
    Make(usize),
    Submit(usize, usize),
    Heap(usize),
    TrySend(usize),
    Batch(usize, usize),
    Cork(usize),
    Uncork(usize),
    Flush(usize),
    Read(usize),
    Drop(usize),
    /// `Shut`: from now on, the device blocks its caller. `Open`: the blocked call returns.
    Shut,
    Open,
    /// `Leave`: the receiver is dropped. `Come`: a new receiver is made.
    Leave,
    Come,
    /// The callback of this sender panics at the next completion.
    Panic(usize),
    /// A new sender takes the place of this sender.
    Replace(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let who = || 0..LINKS.len();
    prop_oneof![
        6 => who().prop_map(Op::Make),
        12 => (who(), any::<usize>()).prop_map(|(who, which)| Op::Submit(who, which)),
        3 => who().prop_map(Op::Heap),
        6 => who().prop_map(Op::TrySend),
        4 => (who(), 1_usize..7).prop_map(|(who, count)| Op::Batch(who, count)),
        2 => who().prop_map(Op::Cork),
        2 => who().prop_map(Op::Uncork),
        2 => who().prop_map(Op::Flush),
        8 => (1_usize..4).prop_map(Op::Read),
        5 => any::<usize>().prop_map(Op::Drop),
        4 => Just(Op::Shut),
        2 => Just(Op::Open),
        1 => Just(Op::Leave),
        2 => Just(Op::Come),
        2 => who().prop_map(Op::Panic),
        1 => who().prop_map(Op::Replace),
    ]
}

/// A sender, and the completions that were reported to its callback.
struct End {
    sender: Sender,
    flow: Flow,
    told: Arc<Mutex<Vec<Fate>>>,
    panics: Arc<AtomicBool>,
}

impl End {
    fn of(link: &Link) -> Self {
        let mut sender = link.sender();
        let flow = sender.flow(None);
        let (list, panics) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let (theirs, breaks) = (list.clone(), panics.clone());
        sender.on_complete(move |completion| {
            theirs.lock().unwrap_or_else(PoisonError::into_inner).push(told(completion));
            assert!(!breaks.swap(false, Ordering::SeqCst), "as asked for");
        });
        Self { sender, flow, told: list, panics }
    }

    /// Makes a call that may report completions. Returns `None` if the callback panicked.
    fn call<R>(&mut self, f: impl FnOnce(&mut Sender) -> R) -> Option<R> {
        let sender = &mut self.sender;
        catch_unwind(AssertUnwindSafe(|| f(sender))).ok()
    }
}

struct World {
    model: Model,
    links: [Link; 2],
    ends: [End; 3],
    /// Sends a packet to the second link when its device is shut, so that the device blocks the
    /// runner.
    bait: Sender,
    network: Network,
    receiver: Option<Receiver>,
    trap: Arc<Trap>,
    hand: BTreeMap<u64, Packet>,
}

impl World {
    fn new(count: u32, cap: u16, mode: Mode) -> Self {
        let (network, trap) = (Network::new(1, 10_000), Trap::new());
        let mail = Link::devices([Box::new(network.queue()) as Box<_>]).qdisc("pfifo").mode(mode);
        // In the mode `Dedicated`, senders only stage packets. So while the device blocks the
        // runner, the device has one packet, and all other packets are in the intake.
        let mode = Mode::Dedicated;
        let trapped = Link::devices([trap.device()]).qdisc("pfifo").mode(mode).burst(cap);
        let links = [mail, trapped].map(|link| link.credits(credits(count)).build().unwrap());
        let ends = LINKS.map(|link| End::of(&links[link]));
        Self {
            model: Model::new(count as usize, cap.into()),
            bait: links[TRAP].sender(),
            receiver: network.receiver(0),
            hand: BTreeMap::new(),
            links,
            ends,
            network,
            trap,
        }
    }

    /// Selects one of the packets that the test holds, by the random number `which`, and returns
    /// its packet number. Returns `None` if the test holds none.
    fn pick(&self, which: usize) -> Option<u64> {
        let count = self.hand.len().max(1);
        self.hand.keys().nth(which % count).copied()
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Make(who) => self.make(who),
            Op::Submit(who, which) => {
                if let Some(id) = self.pick(which) {
                    let packet = self.hand.remove(&id).unwrap();
                    let back = self.submit(who, id, packet);
                    self.hand.extend(back.map(|packet| (id, packet)));
                }
            }
            Op::Heap(who) => {
                let id = self.model.make(None, true);
                if self.submit(who, id, Packet::with_payload(&id.to_be_bytes())).is_some() {
                    self.model.home(id, None);
                }
            }
            Op::TrySend(who) => self.try_send(who),
            Op::Batch(who, count) if self.is_sure(who, count) => self.batch(who, count),
            Op::Cork(who) => {
                self.ends[who].sender.cork();
                self.model.corks[who].get_or_insert_default();
            }
            Op::Uncork(who) if self.is_sure(who, self.corked(who)) => {
                let all = self.model.uncork(who);
                let said = self.ends[who].sender.uncork();
                assert_eq!(said, if all { Ok(()) } else { Err(TrySendError::Full) });
            }
            Op::Flush(who) if self.is_sure(who, self.corked(who)) => {
                let done = self.model.uncork(who) && !self.model.owes(who);
                let said = self.ends[who].call(|sender| sender.flush(Duration::ZERO));
                // A packet may be coming home at this moment, so the flush may fail although all
                // packets are home according to the model.
                assert!(done || said != Some(true), "flushed, and something is below");
            }
            Op::Read(count) => (0..count).for_each(|_| self.read()),
            Op::Drop(which) => {
                if let Some(id) = self.pick(which) {
                    drop(self.hand.remove(&id));
                    self.model.home(id, None);
                }
            }
            Op::Shut if !self.model.shut => {
                self.trap.shut();
                let flow = self.bait.flow(None);
                self.bait.submit(&flow, Packet::with_payload(b"bait")).unwrap();
                until("the runner is inside", || self.trap.inside() == 1);
                self.model.shut();
            }
            Op::Open if self.model.shut => {
                self.trap.open();
                self.model.open();
            }
            Op::Leave if self.model.receives => {
                self.receiver = None;
                self.model.leave();
            }
            Op::Come if !self.model.receives => {
                self.receiver = self.network.receiver(0);
                self.model.receives = true;
            }
            Op::Panic(who) => self.ends[who].panics.store(true, Ordering::SeqCst),
            // If the sender's corked packets find no room, dropping the sender would wait forever
            // here, because the device blocks the runner.
            Op::Replace(who) if self.corked(who) as u64 <= self.model.room(who) => {
                self.model.replace(who);
                self.ends[who] = End::of(&self.links[LINKS[who]]);
            }
            // The operation changes nothing now (such as `Open` of an open device), or the model
            // cannot know its result (such as how many packets of a batch fit).
            _ => {}
        }
    }

    /// Returns the number of packets that a sender's cork holds back.
    fn corked(&self, who: usize) -> usize {
        self.model.corks[who].as_ref().map_or(0, Vec::len)
    }

    /// Whether the model knows how many packets of a list will be staged. It knows if all of them
    /// fit, or if the device blocks the runner, so that as many are staged as fit. Otherwise, the
    /// number depends on how many packets the runner takes out meanwhile.
    fn is_sure(&self, who: usize, count: usize) -> bool {
        LINKS[who] == MAIL || self.model.shut || count as u64 <= self.model.cap
    }

    fn make(&mut self, who: usize) {
        let has_credit = self.model.has_credit(who) > 0;
        let End { sender, flow, .. } = &mut self.ends[who];
        match sender.packet(flow, &self.model.next().to_be_bytes()) {
            Ok(mut packet) => {
                assert!(has_credit, "made without credit");
                let id = self.model.make(Some(who), true);
                packet.cookie = id;
                self.hand.insert(id, packet);
            }
            Err(why) => assert_eq!((why, has_credit), (TrySendError::Full, false)),
        }
    }

    /// Submits a packet by a sender. Returns the packet if the sender gave it back.
    fn submit(&mut self, who: usize, id: u64, packet: Packet) -> Option<Packet> {
        let End { sender, flow, .. } = &mut self.ends[who];
        let accepted = self.model.submit(who, id);
        match sender.submit(flow, packet) {
            Ok(()) => {
                assert!(accepted, "packet {id} was taken");
                None
            }
            Err(rejected) => {
                assert_eq!((rejected.why, accepted), (TrySendError::Full, false));
                assert_eq!(rejected.packet.payload(), id.to_be_bytes());
                Some(rejected.packet)
            }
        }
    }

    fn try_send(&mut self, who: usize) {
        let payload = self.model.next().to_be_bytes();
        let accepted = self.model.has_credit(who) > 0 && {
            let id = self.model.make(Some(who), false);
            let accepted = self.model.submit(who, id);
            if !accepted {
                self.model.home(id, None);
            }
            accepted
        };
        let End { sender, flow, .. } = &mut self.ends[who];
        let said = sender.try_send(flow, &payload);
        assert_eq!(said, if accepted { Ok(()) } else { Err(TrySendError::Full) });
    }

    fn batch(&mut self, who: usize, count: usize) {
        let first = self.model.next();
        let payloads: Vec<_> = (first..first + count as u64).map(u64::to_be_bytes).collect();
        let mut staged = 0;
        for _ in 0..count.min(self.model.has_credit(who)) {
            let id = self.model.make(Some(who), false);
            if self.model.submit(who, id) {
                staged += 1;
            } else {
                self.model.home(id, None);
            }
        }
        let End { sender, flow, .. } = &mut self.ends[who];
        let said = sender.try_send_batch(flow, &payloads);
        assert_eq!(said, if staged > 0 { Ok(staged) } else { Err(TrySendError::Full) });
    }

    fn read(&mut self) {
        let waits = !self.model.at(Place::Mailbox).is_empty();
        let Some(packet) = self.receiver.as_mut().and_then(Receiver::try_recv) else {
            return assert!(!waits, "a packet was sent and is not there");
        };
        let id = u64::from_be_bytes(packet.payload().try_into().unwrap());
        self.model.received(id);
        self.hand.insert(id, packet);
    }

    /// Waits until the links are in the state that the model predicts, and checks what each sender
    /// knows of its packets.
    fn check(&mut self) {
        for (link, want) in self.links.iter().zip(&self.model.sums) {
            let sums = || {
                let stats = link.stats();
                let (submitted, refused, sent) = (stats.submitted, stats.refused, stats.sent);
                Sums { submitted, refused, sent, dropped: stats.dropped, held: stats.held }
            };
            until(&format!("{want:?}"), || sums() == *want);
        }
        for (who, end) in self.ends.iter_mut().enumerate() {
            let want = self.model.in_flight(who);
            until(&format!("{want} of sender {who} in flight"), || {
                end.call(Sender::reclaim);
                let out = end.sender.in_flight() as usize;
                assert!(out >= want, "{out} of sender {who} in flight, and not {want}");
                out == want
            });
            // If a callback panicked, some completions were left over. This second `reclaim`
            // reports them.
            end.call(Sender::reclaim);
            let mut due = std::mem::take(&mut self.model.due[who]);
            let told =
                std::mem::take(&mut *end.told.lock().unwrap_or_else(PoisonError::into_inner));
            for fate in &told {
                let at = due.iter().position(|due| due == fate);
                due.swap_remove(at.unwrap_or_else(|| panic!("{who} was told {fate:?}: {due:?}")));
            }
            assert!(due.is_empty(), "{who} heard not {due:?}");
            if self.model.corks[who].is_some() {
                continue; // Skip the flush, because a flush would end the cork.
            }
            if self.model.owes(who) {
                let said = end.sender.flush(Duration::ZERO);
                assert!(!said, "sender {who} has something below: {:?}", self.model.packets);
            } else {
                until(&format!("sender {who} is flushed"), || end.sender.flush(Duration::ZERO));
            }
        }
    }

    /// Brings all packets home, and checks that nothing is left.
    fn end(mut self) {
        self.step(&Op::Open);
        self.step(&Op::Come);
        for (who, end) in self.ends.iter_mut().enumerate() {
            assert!(self.model.uncork(who));
            until("there is room for all", || end.sender.uncork().is_ok());
        }
        self.check();
        self.step(&Op::Leave);
        while !self.hand.is_empty() {
            self.step(&Op::Drop(0));
        }
        self.check();
        assert!(self.model.packets.is_empty() && (0..3).all(|who| !self.model.owes(who)));
        for link in &self.links {
            let report = link.close(LONG);
            assert_eq!((report.flushed, report.purged, report.blocked), (true, 0, 0));
            balanced(&link.stats());
        }
    }
}

fn run(count: u32, cap: u16, mode: Mode, ops: &[Op]) {
    let mut world = World::new(count, cap, mode);
    for op in ops {
        world.step(op);
        world.check();
    }
    world.end();
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![2 => Just(Mode::Hybrid), 1 => Just(Mode::Inline), 1 => Just(Mode::Dedicated)]
}

proptest! {
    // If a sequence of operations fails, proptest searches for at most 20 seconds for a shorter
    // sequence that fails, too.
    #![proptest_config(ProptestConfig {
        cases: 100,
        max_shrink_time: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn senders_know_what_is_below(
        ops in proptest::collection::vec(op(), 1..50),
        count in 1_u32..7,
        cap in 1_u16..5,
        mode in mode(),
    ) {
        in_time(move || run(count, cap, mode, &ops));
    }
}
