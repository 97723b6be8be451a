//! Tests of the mailbox's public interface: which packets a mailbox accepts or gives back, and what
//! it tells its reader.

/// The attribute `#[test]` that runs a test in a simulation.
#[cfg(sim)]
#[macro_use]
extern crate onramp_simulated_test;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::thread;

use onramp_queue::{Armed, Mailbox, Packet, PacketList, Reader, Undelivered};

#[derive(Debug, Default)]
struct Rings(AtomicU32);

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Rings {
    fn new() -> (Arc<Self>, Waker) {
        let rings = Arc::new(Self::default());
        (rings.clone(), Waker::from(rings))
    }

    fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

fn packets(cookies: std::ops::Range<u64>) -> PacketList {
    let packet = |cookie| {
        let mut pkt = Packet::new(64);
        pkt.cookie = cookie;
        pkt
    };
    cookies.map(packet).collect()
}

fn cookies(list: PacketList) -> Vec<u64> {
    list.map(|pkt| pkt.cookie).collect()
}

fn open(cap: u16) -> (Mailbox, Reader) {
    let mailbox = Mailbox::new(cap);
    let reader = mailbox.open().expect("nobody reads it");
    (mailbox, reader)
}

#[test]
fn takes_what_fits_in_order_and_gives_the_rest_back() {
    let (mailbox, mut reader) = open(5);
    assert_eq!(mailbox.room(), 5);
    mailbox.post(PacketList::new()).expect("nothing always fits");
    mailbox.post(packets(0..3)).expect("it fits");
    let Err(Undelivered::Full(back)) = mailbox.post(packets(3..6)) else { panic!("it is full") };
    assert_eq!((cookies(back), mailbox.room()), (vec![3, 4, 5], 2));
    mailbox.post(packets(3..5)).expect("it fits");
    assert_eq!(mailbox.room(), 0);
    let taken = reader.take();
    assert_eq!((taken.len(), taken.bytes()), (5, 320));
    assert_eq!((cookies(taken), mailbox.room()), (vec![0, 1, 2, 3, 4], 5));
    assert!(reader.take().is_empty());
}

#[test]
fn one_reads_at_a_time() {
    let mailbox = Mailbox::new(4);
    let Err(Undelivered::Closed(back)) = mailbox.post(packets(0..2)) else {
        panic!("nobody reads it")
    };
    assert_eq!((cookies(back), mailbox.room()), (vec![0, 1], 0));
    let mut first = mailbox.open().expect("nobody reads it");
    assert!(mailbox.open().is_none());
    mailbox.post(packets(2..4)).expect("it fits");
    assert_eq!(cookies(first.close()), [2, 3]);
    let mut second = mailbox.open().expect("the first one has left");
    mailbox.post(packets(4..5)).expect("it fits");
    // A reader that has closed the mailbox can no longer read from it or disturb the next reader.
    let (rings, waker) = Rings::new();
    assert!(first.take().is_empty() && first.close().is_empty() && first.has_ended());
    assert_eq!(first.arm(&waker), Armed::Ready);
    drop(first);
    assert_eq!((cookies(second.take()), rings.count()), (vec![4], 0));
    drop(second);
    assert!(matches!(mailbox.post(packets(5..6)), Err(Undelivered::Closed(_))));
}

/// The reader learns once that a poster wants room, and only of wishes made while the mailbox was
/// full.
#[test]
fn a_wish_for_room_is_told_once() {
    let (mailbox, mut reader) = open(3);
    assert!(!mailbox.want_room(), "it has room");
    mailbox.post(packets(0..2)).expect("it fits");
    assert!(!mailbox.want_room(), "it has room for one");
    assert_eq!(cookies(reader.take()), [0, 1]);
    assert!(!reader.is_wanted());
    mailbox.post(packets(2..5)).expect("it fits");
    assert!(mailbox.want_room() && mailbox.want_room());
    assert!(matches!(mailbox.post(packets(5..6)), Err(Undelivered::Full(_))));
    assert!(!reader.is_wanted(), "there is no room yet");
    assert_eq!(reader.arm(&Rings::new().1), Armed::Ready);
    assert_eq!((cookies(reader.take()), mailbox.room()), (vec![2, 3, 4], 3));
    assert_eq!([reader.is_wanted(), reader.is_wanted()], [true, false]);
    assert_eq!(reader.arm(&Rings::new().1), Armed::Armed);
    // Closing the mailbox makes room, too: packets that are posted then come back at once.
    mailbox.post(packets(5..8)).expect("it fits");
    assert!(mailbox.want_room());
    assert_eq!((cookies(reader.close()), reader.is_wanted()), (vec![5, 6, 7], true));
    assert!(!mailbox.want_room(), "nobody reads it");
}

#[test]
fn wakes_once_and_only_who_asked() {
    let (mailbox, mut reader) = open(9);
    let ((rings, waker), (others, other)) = (Rings::new(), Rings::new());
    mailbox.post(packets(0..1)).expect("it fits");
    assert_eq!(reader.arm(&waker), Armed::Ready);
    let _ = reader.take();
    assert_eq!(reader.arm(&other), Armed::Armed);
    assert_eq!(reader.arm(&waker), Armed::Armed);
    mailbox.post(packets(1..2)).expect("it fits");
    mailbox.post(packets(2..3)).expect("it fits");
    assert_eq!((rings.count(), others.count()), (1, 0));
    assert_eq!(reader.arm(&waker), Armed::Ready);
    assert_eq!(cookies(reader.take()), [1, 2]);
    // If a reader is dropped while it waits, its request to be woken ends too.
    assert_eq!(reader.arm(&waker), Armed::Armed);
    drop(reader);
    let mut next = mailbox.open().expect("nobody reads it");
    assert_eq!(next.arm(&other), Armed::Armed);
    mailbox.post(packets(3..4)).expect("it fits");
    assert_eq!((rings.count(), others.count()), (1, 1));
}

#[test]
fn the_end_is_told() {
    let (mailbox, mut reader) = open(9);
    let (rings, waker) = Rings::new();
    assert!(!reader.has_ended());
    assert_eq!(reader.arm(&waker), Armed::Armed);
    drop(mailbox);
    assert_eq!(rings.count(), 1);
    assert!(reader.has_ended());
    assert_eq!(reader.arm(&waker), Armed::Ready);
    let (mailbox, mut reader) = open(9);
    mailbox.post(packets(0..2)).expect("it fits");
    drop(mailbox);
    assert!(!reader.has_ended(), "two packets wait");
    assert_eq!(cookies(reader.take()), [0, 1]);
    assert!(reader.has_ended());
    assert_eq!(reader.arm(&waker), Armed::Ready);
    assert_eq!(rings.count(), 1);
}

struct Panics(Arc<Rings>);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
        panic!("a waker that panics");
    }
}

/// If the reader's waker panics, the posting thread goes on: its packets are delivered, and it can
/// post again.
#[test]
#[cfg_attr(miri, ignore = "what the panic says is left alone, which is a leak")]
fn a_waker_that_panics_leaves_who_posts_alone() {
    let (mailbox, mut reader) = open(9);
    let ((woken, _), (rings, waker)) = (Rings::new(), Rings::new());
    let bad = Waker::from(Arc::new(Panics(woken.clone())));
    assert_eq!(reader.arm(&bad), Armed::Armed);
    mailbox.post(packets(0..2)).expect("it fits");
    assert_eq!(woken.count(), 1);
    mailbox.post(packets(2..3)).expect("it fits");
    assert_eq!(cookies(reader.take()), [0, 1, 2]);
    // The waker panics a second time; after that, a waker that does not panic is called as usual.
    assert_eq!(reader.arm(&bad), Armed::Armed);
    mailbox.post(packets(3..4)).expect("it fits");
    assert_eq!((woken.count(), cookies(reader.take())), (2, vec![3]));
    assert_eq!(reader.arm(&waker), Armed::Armed);
    mailbox.post(packets(4..5)).expect("it fits");
    assert_eq!((rings.count(), cookies(reader.take())), (1, vec![4]));
    // A reader learns that the posting side was dropped, even if the reader's waker panics.
    assert_eq!(reader.arm(&bad), Armed::Armed);
    drop(mailbox);
    assert_eq!(woken.count(), 3);
    assert!(reader.has_ended());
}

#[test]
#[should_panic(expected = "holds at least one packet")]
fn none_for_nothing() {
    let _ = Mailbox::new(0);
}

/// Four threads post, and the reader sleeps when the mailbox is empty. All packets arrive, and
/// those of each thread arrive in order.
#[test]
fn nothing_is_lost_between_threads() {
    const THREADS: usize = 4;
    let packets_each: u64 = if cfg!(miri) { 40 } else { 20_000 };
    let (mailbox, mut reader) = open(16);
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut next = [0; THREADS];
    thread::scope(|scope| {
        let mailbox = Arc::new(mailbox);
        for thread in 0..THREADS as u64 {
            let mailbox = mailbox.clone();
            scope.spawn(move || {
                let mut at = 0;
                while at < packets_each {
                    let end = (at + 1 + at % 5).min(packets_each);
                    let tag = thread << 32;
                    match mailbox.post(packets(tag | at..tag | end)) {
                        Ok(()) => at = end,
                        Err(Undelivered::Full(_)) => thread::yield_now(),
                        Err(Undelivered::Closed(_)) => panic!("somebody reads"),
                    }
                }
            });
        }
        drop(mailbox);
        while !reader.has_ended() {
            for cookie in reader.take().map(|pkt| pkt.cookie) {
                let next = &mut next[usize::try_from(cookie >> 32).expect("a few")];
                assert_eq!(cookie & 0xffff_ffff, *next);
                *next += 1;
            }
            if reader.arm(&waker) == Armed::Armed {
                thread::park();
            }
        }
    });
    assert_eq!(next, [packets_each; THREADS]);
}
