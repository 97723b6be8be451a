//! Models of the mailbox: threads that post packets, a reader that sleeps, and readers that replace
//! each other.

use std::task::Waker;

use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread::yield_now;
use onramp_queue::{Armed, Mailbox, Packet, PacketList, Reader, Undelivered};

use crate::pool::Sleep;
use crate::{check, join, spawn};

fn packets(cookies: &[u64]) -> PacketList {
    let packet = |&cookie: &u64| {
        let mut pkt = Packet::new(64);
        pkt.cookie = cookie;
        pkt
    };
    cookies.iter().map(packet).collect()
}

fn cookies(list: PacketList) -> Vec<u64> {
    list.map(|pkt| pkt.cookie).collect()
}

fn open() -> (Arc<Mailbox>, Reader) {
    let mailbox = Mailbox::new(8);
    let reader = mailbox.open().expect("nobody reads it");
    (Arc::new(mailbox), reader)
}

/// Sleeps until there may be a packet in the mailbox.
fn wait(reader: &mut Reader, sleep: &Sleep, waker: &Waker) {
    match reader.arm(waker) {
        Armed::Ready => {}
        Armed::Armed => sleep.0.wait(),
        Armed::Busy => yield_now(),
    }
}

/// Reads `count` packets from the mailbox, and sleeps whenever it is empty.
fn read(reader: &mut Reader, count: usize) -> Vec<u64> {
    let (sleep, waker) = Sleep::new();
    let mut got = Vec::new();
    while got.len() < count {
        got.extend(cookies(reader.take()));
        if got.len() < count {
            wait(reader, &sleep, &waker);
        }
    }
    got
}

/// Two threads post packets to a reader that sleeps when the mailbox is empty. All packets arrive,
/// in order.
///
/// Must fail with each of these mutants: mailbox-post-release, mailbox-take-acquire,
/// mailbox-arm-unchecked, mailbox-arm-release, mailbox-post-acquire.
#[test]
fn a_sleeping_reader_is_woken() {
    check(3, || {
        let (mailbox, mut reader) = open();
        let posts = [&[10, 11][..], &[20]].map(|cookies| {
            let mailbox = mailbox.clone();
            spawn(move || mailbox.post(packets(cookies)).expect("there is room"))
        });
        let got = read(&mut reader, 3);
        join(posts);
        let of = |tens: u64| got.iter().filter(|&&cookie| cookie / 10 == tens).count();
        assert_eq!((got.len(), of(1), of(2)), (3, 2, 1));
        assert!(got.iter().position(|&c| c == 10) < got.iter().position(|&c| c == 11));
    });
}

/// A reader asks to be woken by another waker while its first waker is being called. The new waker
/// still wakes the reader.
///
/// Must fail with each of these mutants: mailbox-arm-acquire, mailbox-wake-release,
/// mailbox-arm-lent.
#[test]
fn the_waker_changes_hands() {
    check(3, || {
        let (mailbox, mut reader) = open();
        let (_, first) = Sleep::new();
        let (sleep, waker) = Sleep::new();
        assert_eq!(reader.arm(&first), Armed::Armed);
        let poster = spawn({
            let mailbox = mailbox.clone();
            move || mailbox.post(packets(&[1])).expect("there is room")
        });
        let mut got = cookies(reader.take());
        while got.is_empty() {
            wait(&mut reader, &sleep, &waker);
            got = cookies(reader.take());
        }
        while reader.arm(&waker) == Armed::Busy {
            yield_now();
        }
        poster.join().unwrap();
        mailbox.post(packets(&[2])).expect("there is room");
        sleep.0.wait();
        assert_eq!(cookies(reader.take()), [2]);
    });
}

/// A reader closes the mailbox while a thread posts, and a second reader opens the mailbox. Each
/// packet is read by one of the readers or given back to the posting thread, and the second reader
/// sees what the first reader did.
///
/// Must fail with each of these mutants: mailbox-open-acquire, mailbox-close-release,
/// mailbox-post-release.
#[test]
fn readers_come_and_go() {
    check(3, || {
        let (mailbox, mut reader) = open();
        let notes = Arc::new(AtomicUsize::new(0));
        let poster = spawn({
            let mailbox = mailbox.clone();
            move || match mailbox.post(packets(&[1, 2])) {
                Ok(()) => 0,
                Err(Undelivered::Closed(list)) => cookies(list).len(),
                Err(Undelivered::Full(_)) => panic!("there is room"),
            }
        });
        let first = spawn({
            let notes = notes.clone();
            move || {
                let (_, waker) = Sleep::new();
                let _ = reader.arm(&waker);
                notes.store(1, Relaxed);
                cookies(reader.close()).len()
            }
        });
        let mut second = loop {
            match mailbox.open() {
                Some(reader) => break reader,
                None => yield_now(),
            }
        };
        assert_eq!(notes.load(Relaxed), 1, "what the first one did is seen");
        let (back, left) = (poster.join().unwrap(), first.join().unwrap());
        let (_, waker) = Sleep::new();
        let asked = second.arm(&waker);
        let got = second.take().len() as usize;
        assert_eq!(asked == Armed::Ready, got > 0, "at rest no waker is lent");
        assert_eq!(back + left + got, 2);
    });
}

/// A mailbox is full, and two posters want room for one packet more. Each wish is told to the
/// reader once it has taken, or there is room at once; the reader sees who made the wish.
///
/// Must fail with each of these mutants: mailbox-want-release, mailbox-want-unchecked.
#[test]
fn a_wish_for_room_is_told() {
    check(3, || {
        let mailbox = Arc::new(Mailbox::new(1));
        let mut reader = mailbox.open().expect("nobody reads it");
        mailbox.post(packets(&[0])).expect("there is room");
        let (sleep, waker) = Sleep::new();
        let notes = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let wishes = [0, 1].map(|place| {
            let (mailbox, notes) = (mailbox.clone(), notes.clone());
            spawn(move || {
                notes[place].store(1, Relaxed);
                mailbox.want_room()
            })
        });
        wait(&mut reader, &sleep, &waker);
        assert_eq!(cookies(reader.take()), [0]);
        let told = reader.is_wanted();
        let seen = notes.iter().filter(|note| note.load(Relaxed) == 1).count();
        let wished = wishes.map(|wish| wish.join().unwrap()).iter().filter(|wish| **wish).count();
        assert_eq!(told, wished > 0, "a wish is told if and only if it was made");
        assert!(seen >= wished, "the reader sees who made the wishes");
        assert_eq!(reader.arm(&waker), Armed::Armed, "the mailbox is empty");
    });
}

/// The posting side of a mailbox is dropped. A sleeping reader is woken, and notices the end after
/// it has read all packets.
///
/// Must fail with each of these mutants: mailbox-end-acquire, mailbox-end-silent,
/// mailbox-arm-unchecked.
#[test]
fn the_end_is_told() {
    check(3, || {
        let (mailbox, mut reader) = open();
        let poster = spawn(move || {
            mailbox.post(packets(&[1])).expect("there is room");
            drop(mailbox);
        });
        let (sleep, waker) = Sleep::new();
        let mut got = Vec::new();
        while !reader.has_ended() {
            wait(&mut reader, &sleep, &waker);
            got.extend(cookies(reader.take()));
        }
        poster.join().unwrap();
        assert_eq!(got, [1]);
    });
}
