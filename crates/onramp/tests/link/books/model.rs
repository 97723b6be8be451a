//! A model that says, according to the documentation, where packets are and what the counters are.

use std::collections::{BTreeMap, BTreeSet};

use onramp::{Completion, DropReason};

/// Numbers of the two links: one sends into a mailbox, and the device of the other blocks its
/// caller now and then.
pub(super) const MAIL: usize = 0;
pub(super) const TRAP: usize = 1;

/// The number of the link to which each sender belongs.
pub(super) const LINKS: [usize; 3] = [MAIL, MAIL, TRAP];

/// The place of a packet that is not home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The test holds the packet: it made the packet, got it back, or received it.
    Hand,
    /// A cork holds the packet back.
    Cork,
    /// The packet is in the link whose device blocks its caller, and has not left.
    Held,
    /// The packet was sent and has not been received yet.
    Mailbox,
}

/// What the model knows about a packet.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    /// The sender that made the packet. `None`: the packet was allocated on the heap, or the sender
    /// that made it was dropped.
    pub(super) maker: Option<usize>,
    pub(super) place: Place,
    cookie: u64,
    /// Whether a link has accepted the packet. Only then is its completion reported.
    pub(super) accepted: bool,
    /// Whether the sender that made the packet has submitted it, and the packet has not come home
    /// since.
    submitted_by_maker: bool,
    /// The other senders that submitted the packet.
    guest_of: BTreeSet<usize>,
}

/// The counters that a link should show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) submitted: u64,
    pub(super) refused: u64,
    pub(super) sent: u64,
    pub(super) dropped: BTreeMap<DropReason, u64>,
    pub(super) held: u64,
}

#[derive(Debug)]
pub(super) struct Model {
    /// All packets that are not home, by packet number.
    pub(super) packets: BTreeMap<u64, Fact>,
    made: u64,
    pub(super) credits: usize,
    pub(super) cap: u64,
    pub(super) sums: [Sums; 2],
    /// Whether the mailbox has a receiver.
    pub(super) receives: bool,
    /// Whether the device of the second link blocks its caller.
    pub(super) shut: bool,
    /// The packets that the cork of each sender holds back, in order. `None`: the sender is not
    /// corked.
    pub(super) corks: [Option<Vec<u64>>; 3],
    /// The completions that have to be reported to each sender.
    pub(super) due: [Vec<Fate>; 3],
}

/// The completion of a packet: its cookie, and its drop reason.
pub(super) type Fate = (u64, Option<DropReason>);

/// Converts a reported completion to the form in which the model holds the expected ones.
pub(super) fn told(completion: Completion) -> Fate {
    (completion.cookie, completion.drop_reason)
}

impl Model {
    pub(super) fn new(credits: usize, cap: u64) -> Self {
        Self {
            packets: BTreeMap::new(),
            made: 0,
            credits,
            cap,
            sums: Default::default(),
            receives: true,
            shut: false,
            corks: Default::default(),
            due: Default::default(),
        }
    }

    /// Returns the number of the next packet that will be made.
    pub(super) fn next(&self) -> u64 {
        self.made + 1
    }

    /// Records that a packet is made by a sender or, with `None`, allocated on the heap. Returns
    /// its number.
    pub(super) fn make(&mut self, maker: Option<usize>, has_cookie: bool) -> u64 {
        self.made += 1;
        let fact = Fact {
            maker,
            place: Place::Hand,
            cookie: if has_cookie { self.made } else { 0 },
            accepted: false,
            submitted_by_maker: false,
            guest_of: BTreeSet::new(),
        };
        self.packets.insert(self.made, fact);
        self.made
    }

    pub(super) fn at(&self, place: Place) -> Vec<u64> {
        let there = self.packets.iter().filter(|(_, fact)| fact.place == place);
        there.map(|(id, _)| *id).collect()
    }

    /// Returns the number of packets that use the credits of a sender: all packets that it made and
    /// that are not home.
    pub(super) fn in_flight(&self, sender: usize) -> usize {
        self.packets.values().filter(|fact| fact.maker == Some(sender)).count()
    }

    pub(super) fn has_credit(&self, sender: usize) -> usize {
        self.credits - self.in_flight(sender)
    }

    /// Whether a flush of the sender has to wait: whether packets that it submitted are not home. A
    /// packet that a device handed to a receiver counts until the receiver drops it. If other
    /// senders submit it again, it counts for each of these senders.
    pub(super) fn owes(&self, sender: usize) -> bool {
        self.packets.values().any(|fact| {
            fact.submitted_by_maker && fact.maker == Some(sender) || fact.guest_of.contains(&sender)
        })
    }

    /// Returns the number of packets that the sender's link can accept at present.
    pub(super) fn room(&self, sender: usize) -> u64 {
        let kept = LINKS[sender] == TRAP && self.shut;
        if kept { self.cap - self.at(Place::Held).len() as u64 } else { u64::MAX }
    }

    /// Records that a sender submits a packet. Returns false if the packet is given back.
    pub(super) fn submit(&mut self, sender: usize, id: u64) -> bool {
        if let Some(cork) = &mut self.corks[sender] {
            cork.push(id);
            self.fact(id).place = Place::Cork;
            return true;
        }
        let has_room = self.room(sender) > 0;
        if has_room {
            self.accept(sender, id);
        } else {
            self.sums[LINKS[sender]].refused += 1;
        }
        has_room
    }

    fn accept(&mut self, sender: usize, id: u64) {
        let (link, shut, receives) = (LINKS[sender], self.shut, self.receives);
        let fact = self.fact(id);
        fact.accepted = true;
        if fact.maker == Some(sender) {
            fact.submitted_by_maker = true;
        } else {
            fact.guest_of.insert(sender);
        }
        self.sums[link].submitted += 1;
        if link == TRAP && shut {
            self.fact(id).place = Place::Held;
            self.sums[link].held += 1;
        } else if link == MAIL && !receives {
            *self.sums[link].dropped.entry(DropReason::Refused).or_default() += 1;
            self.home(id, Some(DropReason::Refused));
        } else {
            self.sums[link].sent += 1;
            if link == MAIL {
                self.fact(id).place = Place::Mailbox;
            } else {
                self.home(id, None);
            }
        }
    }

    /// Records that a packet comes home: it was dropped, or its device or receiver is done with it.
    pub(super) fn home(&mut self, id: u64, reason: Option<DropReason>) {
        let fact = self.packets.remove(&id).expect("it was somewhere");
        if fact.accepted
            && let Some(maker) = fact.maker
        {
            self.due[maker].push((fact.cookie, reason));
        }
    }

    fn fact(&mut self, id: u64) -> &mut Fact {
        self.packets.get_mut(&id).expect("it is somewhere")
    }

    pub(super) fn received(&mut self, id: u64) {
        let fact = self.fact(id);
        assert_eq!(fact.place, Place::Mailbox, "packet {id}");
        fact.place = Place::Hand;
    }

    /// Records that a sender ends its cork. Returns false if some packets do not fit and stay held
    /// back.
    pub(super) fn uncork(&mut self, sender: usize) -> bool {
        let mut cork = self.corks[sender].take().unwrap_or_default();
        let fits = usize::try_from(self.room(sender)).unwrap_or(usize::MAX).min(cork.len());
        let left = cork.split_off(fits);
        for id in cork {
            self.accept(sender, id);
        }
        let all = left.is_empty();
        self.corks[sender] = (!all).then_some(left);
        all
    }

    /// Records that the device blocks the runner, which gave the device a packet of a sender that
    /// is not in the model.
    pub(super) fn shut(&mut self) {
        self.shut = true;
        self.sums[TRAP].submitted += 1;
    }

    pub(super) fn open(&mut self) {
        self.shut = false;
        for id in self.at(Place::Held) {
            self.home(id, None);
        }
        let sums = &mut self.sums[TRAP];
        sums.sent += 1 + std::mem::take(&mut sums.held);
    }

    /// Records that the receiver is dropped. Packets that it has not received count as sent, and
    /// come home.
    pub(super) fn leave(&mut self) {
        self.receives = false;
        for id in self.at(Place::Mailbox) {
            self.home(id, None);
        }
    }

    /// Records that a sender is replaced by a new one, after its corked packets were submitted.
    pub(super) fn replace(&mut self, sender: usize) {
        assert!(self.uncork(sender), "there is room");
        for fact in self.packets.values_mut() {
            if fact.maker == Some(sender) {
                (fact.maker, fact.submitted_by_maker) = (None, false);
            }
            fact.guest_of.remove(&sender);
        }
        self.due[sender].clear();
    }
}
