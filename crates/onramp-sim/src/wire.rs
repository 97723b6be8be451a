//! A wire that sends one packet at a time, and the tree of qdiscs in front of the wire.

use std::collections::{HashMap, VecDeque};

use onramp_core::qdisc::{Backlog, Dequeue};
use onramp_core::{Instant, Rate, Tree};
use onramp_queue::Packet;

use crate::fate::Fate;

/// Number of times in a row that the tree may answer "not before" (it has packets, but none may
/// leave yet) although no packet comes or leaves. After that, the wire takes the tree to be stuck
/// and asks it no more.
const PATIENCE: u32 = 1_000_000;

/// A link that sends one packet at a time: when a packet has been sent, the wire takes the next one
/// from the tree of qdiscs.
#[derive(Debug)]
pub struct Wire {
    tree: Tree,
    /// The rate in bytes per second; `None` means infinitely fast.
    rate: Option<Rate>,
    delay_ns: u64,
    /// The time at which the packet on the wire will have been sent completely.
    free_at: Instant,
    /// The time at which the wire asks the tree for a packet again; `None` if the wire waits for a
    /// packet to come.
    wake: Option<Instant>,
    /// Number of times that the tree has answered "not before" since a packet last came to the tree
    /// or left it.
    idle: u32,
    /// What the wire has noted about each packet in the tree when it came, by cookie.
    inside: HashMap<u64, Inside>,
}

/// What the wire notes about a packet that comes to the tree.
#[derive(Clone, Copy, Debug)]
struct Inside {
    came: Instant,
    met: Backlog,
    ecn: u8,
    flow: u64,
    len: u32,
}

impl Wire {
    /// Creates a wire with rate `rate` (`None` means infinitely fast) behind `tree`. Each packet
    /// takes `delay_ns` nanoseconds to travel over the wire.
    #[must_use]
    pub fn new(tree: Tree, rate: Option<Rate>, delay_ns: u64) -> Self {
        Self {
            tree,
            rate: rate.filter(|rate| rate.as_bytes_per_second() > 0),
            delay_ns,
            free_at: Instant(0),
            wake: None,
            idle: 0,
            inside: HashMap::new(),
        }
    }

    /// Returns the tree of qdiscs in front of the wire.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the tree of qdiscs in front of the wire, with the packets that it still holds. Use
    /// it to look at the tree, or to go on with it, after a simulation.
    #[must_use]
    pub fn into_tree(self) -> Tree {
        self.tree
    }

    /// Calls `note` with the flow, the length in bytes and the time of arrival of each packet that
    /// the tree still holds, in the order in which they came. It is not called for copies that a
    /// qdisc made.
    pub fn held(&self, note: &mut dyn FnMut(u64, u32, Instant)) {
        let mut held: Vec<_> = self.inside.iter().collect();
        held.sort_by_key(|(cookie, inside)| (inside.came, **cookie));
        held.into_iter().for_each(|(_, inside)| note(inside.flow, inside.len, inside.came));
    }

    /// Returns the time at which the wire wants to act next; `None` if it waits for a packet to
    /// come.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.wake
    }

    /// Returns how long the wire takes to send `bytes` bytes, in nanoseconds.
    fn sending_ns(&self, bytes: u32) -> u64 {
        self.rate.map_or(0, |rate| {
            (u64::from(bytes) * 1_000_000_000).div_ceil(rate.as_bytes_per_second())
        })
    }

    /// Takes the packet `pkt` from a source and gives it to the tree, or sends it if it may bypass
    /// the tree. The packet's cookie must differ from the cookies of all packets in the tree.
    pub(crate) fn take(&mut self, now: Instant, mut pkt: Packet, fates: &mut VecDeque<Fate>) {
        self.idle = 0;
        pkt.enqueued_ns = now.0;
        let met = self.tree.backlog();
        let inside = Inside { came: now, met, ecn: pkt.ecn, flow: pkt.flow, len: pkt.len };
        self.inside.insert(pkt.cookie, inside);
        if self.free_at > now {
            let _ = self.tree.keep_or_enqueue(now, pkt);
            return self.lose(now, fates);
        }
        match self.tree.pass_or_enqueue(now, pkt) {
            Ok(pkt) => {
                self.send(now, pkt, fates);
                self.wake = (self.free_at > now).then_some(self.free_at);
            }
            // The tree reports the packets that it drops through `drops`, so the error needs no
            // further treatment.
            Err(_) => self.run(now, fates),
        }
    }

    /// Sends all packets that may be sent at time `now`.
    pub(crate) fn run(&mut self, now: Instant, fates: &mut VecDeque<Fate>) {
        self.wake = None;
        while self.free_at <= now {
            let answer = self.tree.dequeue(now);
            self.lose(now, fates);
            match answer {
                Dequeue::Ready(pkt) => self.send(now, pkt, fates),
                Dequeue::NotBefore(then) => {
                    self.idle += 1;
                    self.wake = (self.idle < PATIENCE).then_some(then.max(now.after(1)));
                    return;
                }
                Dequeue::Empty => return,
            }
        }
        self.wake = Some(self.free_at);
    }

    fn send(&mut self, now: Instant, pkt: Packet, fates: &mut VecDeque<Fate>) {
        self.free_at = now.after(self.sending_ns(pkt.len));
        let arrives = self.free_at.after(self.delay_ns);
        fates.push_back(self.fate(now, Some(arrives), pkt));
    }

    fn lose(&mut self, now: Instant, fates: &mut VecDeque<Fate>) {
        for pkt in self.tree.drops() {
            fates.push_back(self.fate(now, None, pkt));
        }
    }

    fn fate(&mut self, at: Instant, arrives: Option<Instant>, packet: Packet) -> Fate {
        self.idle = 0;
        let inside = self.inside.remove(&packet.cookie);
        let copy = inside.is_none();
        let Inside { came, met, ecn, .. } = inside.unwrap_or_else(|| Inside {
            came: Instant(packet.enqueued_ns),
            met: Backlog::default(),
            ecn: packet.ecn,
            flow: packet.flow,
            len: packet.len,
        });
        let marked = packet.ecn == 3 && ecn != 3;
        Fate { packet, source: 0, came, met, at, arrives, ecn, marked, copy }
    }
}
