//! The record of each sender's packets, by which every packet can be accounted for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use fastrand::Rng;
use onramp::{Completion, Link, Packet, Sender};

use crate::watch::note_moved;

/// The message of a panic that a completion callback causes on purpose.
pub(crate) const CALLBACK: &str = "planned: a callback panics";
/// The bit that is set in the cookie of a packet that one sender made and another sender submits (a
/// lent packet).
const LENT: u64 = 1 << 63;

/// Counts the packets of one sender.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Number of the sender, unique in its world.
    pub(crate) id: u64,
    /// Three values for packets that the link accepted: number of the sender's own packets that it
    /// submitted itself, number of its packets that other senders submitted, and the sum of the
    /// cookies of all these packets.
    mine: AtomicU64,
    lent: AtomicU64,
    sum: AtomicU64,
    /// Number of further packets that the link may have accepted: the calls that submitted them
    /// failed without saying how many were accepted.
    pub(crate) unknown: AtomicU64,
    /// Three values for packets whose completion was reported: number of the sender's own packets
    /// that it submitted itself, number of its packets that other senders submitted, and the sum of
    /// the cookies of all these packets.
    told_mine: AtomicU64,
    told_lent: AtomicU64,
    told_sum: AtomicU64,
    /// Number of this sender's packets that other actors hold at present.
    pub(crate) away: AtomicU64,
    /// Number of the last packet that the sender made.
    pub(crate) number: AtomicU64,
    /// Whether the completion callback must not panic, because the present call returns how many
    /// packets were accepted, and a panic would hide that number.
    pub(crate) calm: AtomicBool,
}

/// A packet that one sender made and that another sender is to submit.
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
    /// Makes a sender, and a record that counts the completions of its packets. If `panics` is
    /// given, the sender's callback panics now and then.
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

    /// Records that the link accepted `count` packets that this sender submitted.
    pub(crate) fn accepted(&self, count: u64, cookies: u64) {
        self.mine.fetch_add(count, SeqCst);
        self.sum.fetch_add(cookies, SeqCst);
    }

    /// Records that the link accepted a packet of this sender that another sender submitted.
    pub(crate) fn lent(&self, cookie: u64) {
        self.lent.fetch_add(1, SeqCst);
        self.sum.fetch_add(cookie, SeqCst);
    }

    /// Returns a random cookie for a packet that another sender will submit.
    pub(crate) fn lent_cookie(rng: &mut Rng) -> u64 {
        rng.u64(..) | LENT
    }

    /// Gives the sender's next packet its number, and returns the number.
    pub(crate) fn next(&self) -> u64 {
        self.number.fetch_add(1, SeqCst) + 1
    }

    /// Whether a completion was reported for every packet that this sender submitted itself.
    pub(crate) fn told_mine(&self) -> bool {
        let (mine, told) = (self.mine.load(SeqCst), self.told_mine.load(SeqCst));
        (mine..=mine + self.unknown.load(SeqCst)).contains(&told)
    }

    /// Whether exactly one completion was reported for every packet of this sender, whoever
    /// submitted it.
    pub(crate) fn told_all(&self) -> bool {
        let (lent, told) = (self.lent.load(SeqCst), self.told_lent.load(SeqCst));
        // Packets in `unknown` (nobody knows whether the link accepted them) have cookie 0, so they
        // do not change the sums.
        lent == told && self.sum.load(SeqCst) == self.told_sum.load(SeqCst) && self.told_mine()
    }
}
