//! A sender cancels packets by their tag.

use onramp_queue::{Cancels, Packet, PacketList, Pool};

use super::pool;

/// Takes and submits `count` packets, and gives them the tag `tag`.
fn submit(pool: &mut Pool, count: u32, tag: u16) -> PacketList {
    let mut list: PacketList = (0..count).map(|_| pool.take(8).expect("a credit")).collect();
    pool.submit(&mut list, 1);
    pool.counted(&mut list).for_each(|(_, place)| *place = tag);
    list
}

fn cancelled(list: &mut PacketList) -> Vec<bool> {
    let packets: Vec<Packet> = list.collect();
    let are = packets.iter().map(Packet::is_cancelled).collect();
    list.extend(packets);
    are
}

#[test]
fn a_cancel_concerns_the_packets_of_its_tag() {
    let (mut pool, mut other, cancels) = (pool(9, 1_000), pool(9, 1_000), Cancels::default());
    let mut list = submit(&mut pool, 1, 63);
    list.append(&mut submit(&mut pool, 1, 64));
    list.append(&mut submit(&mut pool, 1, u16::MAX));
    list.append(&mut submit(&mut pool, 1, 0));
    list.append(&mut submit(&mut other, 1, 64));
    list.push_back(Packet::new(1));
    assert!(!cancels.stand());
    assert_eq!(cancelled(&mut list), [false; 6]);
    pool.cancel(64, &cancels);
    assert!(cancels.stand());
    assert_eq!(cancelled(&mut list), [false, true, false, false, false, false]);
    pool.cancel(u16::MAX, &cancels);
    pool.cancel(u16::MAX, &cancels);
    assert_eq!(cancelled(&mut list), [false, true, true, false, false, false]);
    pool.end_cancel(64);
    assert!(cancels.stand(), "the other one");
    assert_eq!(cancelled(&mut list), [false, false, true, false, false, false]);
    pool.end_cancel(u16::MAX);
    pool.end_cancel(u16::MAX);
    other.end_cancel(1);
    assert!(!cancels.stand());
    assert_eq!(cancelled(&mut list), [false; 6]);
}

#[test]
#[should_panic(expected = "tag 0")]
fn packets_without_a_tag_cannot_be_cancelled() {
    pool(1, 1).cancel(0, &Cancels::default());
}

/// A receiver, or the sender itself, submits a packet again that had left its port. The cancel
/// concerned its first way.
#[test]
fn what_is_submitted_again_is_not_cancelled() {
    let (mut pool, mut other, cancels) = (pool(3, 1_000), pool(3, 1_000), Cancels::default());
    let mut list = submit(&mut pool, 3, 7);
    let (mut own, mut lent) = (PacketList::new(), PacketList::new());
    own.extend(list.pop_front());
    lent.extend(list.pop_front());
    pool.submit(&mut own, 2);
    other.submit(&mut lent, 2);
    pool.cancel(7, &cancels);
    assert_eq!((cancelled(&mut own), cancelled(&mut lent)), (vec![false], vec![false]));
    assert_eq!(cancelled(&mut list), [true]);
    drop((own, lent, list));
    pool.reclaim(|_| {});
    let mut fresh = submit(&mut pool, 1, 7);
    assert_eq!(cancelled(&mut fresh), [true], "it stands");
    pool.end_cancel(7);
}

/// Nobody ends the cancels of a sender that is gone. They stand until its last packet is home.
#[test]
fn cancels_outlive_a_sender_as_long_as_its_packets() {
    let (mut pool, cancels) = (pool(9, 1_000), Cancels::default());
    let mut list = submit(&mut pool, 2, 1);
    let bell = pool.bell().expect("the first");
    (1..=100).for_each(|tag| pool.cancel(tag, &cancels));
    drop((pool, bell));
    assert_eq!((cancels.stand(), cancelled(&mut list)), (true, vec![true, true]));
    drop(list.pop_front());
    assert!(cancels.stand());
    drop(list);
    assert!(!cancels.stand());
}
