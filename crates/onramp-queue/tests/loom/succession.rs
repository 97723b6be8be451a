//! Models of a port that is removed and of the port that takes over its flows (its successor): the
//! packets of a flow keep their order.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::Relaxed;
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::thread::yield_now;
use onramp_queue::{Gate, Intake, NEVER, Owner, Packet, PacketList, Pushed, Succession};

use crate::{check, join, spawn};

/// The flow key of all packets in these models.
const KEY: u64 = 7;

/// Two ports, of which the first is removed and the second is its successor.
struct Ports {
    gate: Gate,
    ports: [Intake<()>; 2],
    successions: [Succession; 2],
    /// Twice the number of the last packet that was sent, or one less while that packet is being
    /// sent.
    sent: AtomicU32,
    /// Whether the first port is not removed after all, because it held packets both times when
    /// `remove` looked.
    stays: AtomicBool,
}

impl Ports {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            gate: Gate::default(),
            ports: [Intake::new((), 8, 8), Intake::new((), 8, 8)],
            successions: [Succession::default(), Succession::default()],
            sent: AtomicU32::new(0),
            stays: AtomicBool::new(false),
        })
    }

    /// Models `Port::run`: as owner, sends all packets that have arrived. The count of sent packets
    /// uses relaxed loads and stores, so a thread sees what another thread sent only if the intake
    /// or the succession orders their accesses. (Each packet needs two stores: once a thread has
    /// yielded, loom no longer shows it values from before the yield, so an outdated value must
    /// come from the first store.)
    fn run(&self, mut owner: Owner<'_, ()>, mut fresh: PacketList) {
        loop {
            fresh.append(&mut owner.take());
            while let Some(packet) = fresh.pop_front() {
                let number = u32::try_from(packet.cookie).unwrap();
                assert_eq!(self.sent.load(Relaxed), 2 * (number - 1), "in order");
                self.sent.store(2 * number - 1, Relaxed);
                self.sent.store(2 * number, Relaxed);
            }
            match owner.leave_idle() {
                Ok(()) => return,
                Err(still) => owner = still,
            }
        }
    }

    fn help(&self, port: usize) {
        if let Some(owner) = self.ports[port].own() {
            self.run(owner, PacketList::new());
        }
    }

    /// Models `Shared::is_leaving`: whether senders must wait with packets for this port. In this
    /// model the time for which they wait has no limit.
    fn is_leaving(&self, port: usize) -> bool {
        let succession = &self.successions[port];
        let waits = |patience| !self.ports[port].is_quiet() && patience > 0;
        succession.is_leaving() || succession.is_gone() && waits(succession.patience())
    }

    /// Models `Shared::successor`: returns the port that takes over the flow from `port`.
    fn successor(&self, mut port: usize) -> usize {
        loop {
            match self.successions[port].successor(KEY) {
                Some(successor) if !self.is_leaving(port) => port = successor,
                _ => return port,
            }
        }
    }

    /// Models `Sender::push`: returns the port that takes the flow's packet now, or `None` if no
    /// port does.
    fn place(&self) -> Option<usize> {
        if self.gate.is_open() || self.successions[0].is_open() {
            return Some(0);
        }
        Some(self.successor(0)).filter(|successor| self.successions[*successor].is_open())
    }

    /// Sends packet `number`. Waits while the flow's port is being removed. Returns false if the
    /// removal was given up, so that no port takes the packet.
    fn send(&self, number: u64) -> bool {
        let mut packet = Packet::new(1);
        (packet.cookie, packet.flow) = (number, KEY);
        let port = loop {
            match self.place() {
                Some(port) => break port,
                None if self.stays.load(Relaxed) => return false,
                None => yield_now(),
            }
        };
        match self.ports[port].push([packet].into_iter().collect()) {
            Ok(Pushed::Staged { .. }) => {}
            Ok(Pushed::Owner { owner, fresh }) => self.run(owner, fresh),
            Err(_) => panic!("the model stays below the cap"),
        }
        true
    }

    /// Models `Link::remove_port`, which waits until the port holds no packets. The model gives up
    /// after two attempts.
    fn remove(&self) {
        self.successions[0].leave();
        self.gate.note_change();
        for _ in 0..2 {
            self.help(0);
            if self.ports[0].is_quiet() {
                return self.successions[0].go(&[1], NEVER);
            }
            yield_now();
        }
        self.stays.store(true, Relaxed);
    }
}

/// A sender sends two packets of a flow while their port is removed and another thread works as
/// owner of the port. The second packet stays behind the first, whichever port takes each of them.
///
/// Must fail with each of these mutants: succession-state-acquire, succession-go-release,
/// intake-quiet-acquire.
#[test]
fn a_flow_keeps_its_order() {
    check(2, || {
        let ports = Ports::new();
        let (theirs, others) = (ports.clone(), ports.clone());
        let remover = spawn(move || theirs.remove());
        let helper = spawn(move || others.help(0));
        let sent = u32::from(ports.send(1)) + u32::from(ports.send(2));
        join([remover, helper]);
        assert_eq!(ports.sent.load(Relaxed), 2 * sent, "none is lost");
    });
}

/// A port that is added after another port has gone may become its successor. A thread that reads
/// its number finds it.
///
/// Must fail with each of these mutants: succession-successor-acquire, succession-skip-release.
#[test]
fn a_successor_that_is_new_is_found() {
    check(2, || {
        let first = Arc::new(Succession::default());
        first.leave();
        first.go(&[1], 0);
        let added = Arc::new(AtomicBool::new(false));
        let (theirs, adds) = (first.clone(), added.clone());
        let remover = spawn(move || {
            // Models `Slots::add` of the port 2.
            adds.store(true, Relaxed);
            let second = Succession::default();
            second.leave();
            second.go(&[2], 0);
            second.settle();
            theirs.skip(1, &second);
        });
        let reader = spawn(move || {
            assert!(first.successor(KEY) != Some(2) || added.load(Relaxed), "it is there");
        });
        join([remover, reader]);
    });
}
