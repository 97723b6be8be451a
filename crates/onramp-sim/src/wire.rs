//! A wire that takes one packet at a time, and the tree in front of it.

use std::collections::{HashMap, VecDeque};

use onramp_core::qdisc::{Backlog, Dequeue};
use onramp_core::{Instant, Rate, Tree};
use onramp_queue::Packet;

use crate::sim::Fate;

/// How often a tree may be asked, and give nothing, before it counts as stuck.
const PATIENCE: u32 = 1_000_000;

/// A link: packets leave the tree one after the other, each when the one before has been sent.
#[derive(Debug)]
pub struct Wire {
    tree: Tree,
    /// Bytes per second; none = infinitely fast.
    rate: Option<Rate>,
    delay_ns: u64,
    /// When the packet on it has been sent.
    free_at: Instant,
    /// When to ask the tree again.
    wake: Option<Instant>,
    /// How often the tree gave nothing, since it last gave or got something.
    idle: u32,
    /// What came, and is in the tree, by cookie.
    inside: HashMap<u64, Inside>,
}

/// What is remembered of a packet in the tree.
#[derive(Clone, Copy, Debug)]
struct Inside {
    came: Instant,
    met: Backlog,
    ecn: u8,
}

impl Wire {
    /// A wire of this `rate` (none = infinitely fast) behind `tree`, which packets take
    /// `delay_ns` to pass.
    #[must_use]
    pub fn new(tree: Tree, rate: Option<Rate>, delay_ns: u64) -> Self {
        Self {
            tree,
            rate: rate.filter(|rate| rate.0 > 0),
            delay_ns,
            free_at: Instant(0),
            wake: None,
            idle: 0,
            inside: HashMap::new(),
        }
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// When something is to be done.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.wake
    }

    /// How long `bytes` take to be sent.
    fn sending_ns(&self, bytes: u32) -> u64 {
        self.rate.map_or(0, |rate| (u64::from(bytes) * 1_000_000_000).div_ceil(rate.0))
    }

    /// Takes `pkt`, whose cookie no other packet in the tree has.
    pub(crate) fn take(&mut self, now: Instant, mut pkt: Packet, fates: &mut VecDeque<Fate>) {
        self.idle = 0;
        pkt.enqueued_ns = now.0;
        let inside = Inside { came: now, met: self.tree.backlog(), ecn: pkt.ecn };
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
            // What is dropped is told by `drops`.
            Err(_) => self.run(now, fates),
        }
    }

    /// Sends what may be sent now.
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
        let Inside { came, met, ecn } = inside.unwrap_or_else(|| Inside {
            came: Instant(packet.enqueued_ns),
            met: Backlog::default(),
            ecn: packet.ecn,
        });
        let marked = packet.ecn == 3 && ecn != 3;
        Fate { packet, source: 0, came, met, at, arrives, ecn, marked, copy }
    }
}
