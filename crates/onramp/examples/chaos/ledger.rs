//! What the senders know of their packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use fastrand::Rng;
use onramp::{Completion, Link, Packet, Sender};

use crate::watch::note_moved;

/// What the panic of a callback says first.
pub(crate) const CALLBACK: &str = "planned: a callback panics";
/// In the cookie of a packet that was lent.
const LENT: u64 = 1 << 63;

/// The packets of one sender.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// It differs between the senders of a world.
    pub(crate) id: u64,
    /// Packets of its own that it submitted, those that others did, and the sum of their cookies.
    mine: AtomicU64,
    lent: AtomicU64,
    sum: AtomicU64,
    /// Those of which it does not know whether they were accepted, at most.
    pub(crate) unknown: AtomicU64,
    /// The same, of those whose fate was told.
    told_mine: AtomicU64,
    told_lent: AtomicU64,
    told_sum: AtomicU64,
    /// Packets that others have just now.
    pub(crate) away: AtomicU64,
    /// The number of the packet that it made last.
    pub(crate) number: AtomicU64,
    /// The callback panics in no call whose result tells how much was accepted.
    pub(crate) calm: AtomicBool,
}

/// A packet that somebody else is to submit.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) packet: Option<Packet>,
    pub(crate) of: Arc<Ledger>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(self.packet.take());
        self.of.away.fetch_sub(1, SeqCst);
    }
}

impl Ledger {
    /// A sender whose fates are noted; its callback panics now and then if it `panics`.
    pub(crate) fn open(link: &Link, id: u64, panics: Option<Rng>) -> (Sender, Arc<Self>) {
        let ledger = Arc::new(Self { id, ..Self::default() });
        let (told, mut panics) = (ledger.clone(), panics);
        let mut sender = link.sender();
        sender.on_complete(move |fate| {
            told.tell(fate);
            note_moved(1);
            let panics = panics.as_mut().is_some_and(|rng| rng.u32(0..3_000) == 0);
            if panics && !told.calm.load(SeqCst) {
                panic!("{CALLBACK}");
            }
        });
        (sender, ledger)
    }

    fn tell(&self, fate: Completion) {
        let told = if fate.cookie & LENT == 0 { &self.told_mine } else { &self.told_lent };
        told.fetch_add(1, SeqCst);
        self.told_sum.fetch_add(fate.cookie, SeqCst);
    }

    /// Packets that it submitted were accepted.
    pub(crate) fn accepted(&self, count: u64, cookies: u64) {
        self.mine.fetch_add(count, SeqCst);
        self.sum.fetch_add(cookies, SeqCst);
    }

    /// A packet of its own was accepted that somebody else submitted.
    pub(crate) fn lent(&self, cookie: u64) {
        self.lent.fetch_add(1, SeqCst);
        self.sum.fetch_add(cookie, SeqCst);
    }

    /// A cookie for a packet that is lent.
    pub(crate) fn lent_cookie(rng: &mut Rng) -> u64 {
        rng.u64(..) | LENT
    }

    /// The next number of a packet.
    pub(crate) fn next(&self) -> u64 {
        self.number.fetch_add(1, SeqCst) + 1
    }

    /// It was told of every packet that it submitted itself.
    pub(crate) fn told_mine(&self) -> bool {
        let (mine, told) = (self.mine.load(SeqCst), self.told_mine.load(SeqCst));
        (mine..=mine + self.unknown.load(SeqCst)).contains(&told)
    }

    /// It was told of every packet, once.
    pub(crate) fn told_all(&self) -> bool {
        let (lent, told) = (self.lent.load(SeqCst), self.told_lent.load(SeqCst));
        // Packets of which it does not know whether they were accepted have no cookie.
        lent == told && self.sum.load(SeqCst) == self.told_sum.load(SeqCst) && self.told_mine()
    }
}
