//! A sender counts the packets that it has submitted until they are sent or dropped: those of its
//! own pool, and guests (packets that are not from its pool).

use onramp_queue::{Completion, DropReason, Packet, PacketList, Pool};

use super::pool;

#[test]
fn what_was_submitted_is_below_until_it_is_taken_in() {
    let mut pool = pool(3, 1_000);
    let mut list: PacketList = (0..2).map(|_| pool.take(8).expect("a credit")).collect();
    let other = pool.take(8).expect("a credit");
    assert_eq!((pool.out(), pool.below()), (3, 0));
    pool.submit(&mut list, 77);
    assert_eq!((pool.out(), pool.below(), pool.has_guests()), (3, 2, false));
    assert!(list.front().is_some_and(|pkt| pkt.enqueued_ns == 77));
    let mut sent = list.pop_front().expect("one of two");
    sent.drop_reason = None;
    drop((sent, list));
    assert_eq!(pool.below(), 2, "home, but not taken in");
    let mut fates = Vec::new();
    assert_eq!(pool.reclaim(|fate| fates.push(fate.drop_reason)), 2);
    fates.sort_unstable_by_key(Option::is_some);
    assert_eq!(fates, [None, Some(DropReason::PortDead)], "of one, nobody said what became of it");
    assert_eq!((pool.out(), pool.below()), (1, 0));
    pool.take_back(other);
    assert_eq!(pool.out(), 0);
}

#[test]
fn what_is_submitted_again_is_below_once() {
    let mut pool = pool(1, 1_000);
    let mut list: PacketList = pool.take(8).into_iter().collect();
    pool.submit(&mut list, 1);
    pool.submit(&mut list, 2);
    assert_eq!(pool.below(), 1);
    drop(list);
    assert_eq!((pool.reclaim(|_| {}), pool.below()), (1, 0));
}

#[test]
fn what_was_not_accepted_is_not_below() {
    let mut pool = pool(2, 1_000);
    let mut list: PacketList = (0..2).map(|_| pool.take(8).expect("a credit")).collect();
    list.push_back(Packet::new(1));
    pool.submit(&mut list, 5);
    assert_eq!((pool.below(), pool.has_guests()), (2, true));
    pool.revoke(&mut list);
    assert_eq!((pool.out(), pool.below(), pool.has_guests()), (2, 0, false));
    assert!(list.front().is_some_and(|pkt| pkt.drop_reason.is_none()));
    // A link refused two packets of this sender. The sender submits the first of them again, so the
    // first has a completion when it comes home. The sender takes the second back, so the second
    // has none.
    let mut one: PacketList = list.pop_front().into_iter().collect();
    pool.submit(&mut one, 6);
    pool.take_back(list.pop_front().expect("the other one"));
    assert_eq!((pool.out(), pool.below()), (1, 1));
    drop((one, list));
    let mut told = 0;
    assert_eq!((pool.reclaim(|_| told += 1), told), (1, 1));
    assert_eq!(pool.below(), 0);
}

#[test]
fn others_packets_are_guests_until_they_are_dropped() {
    let (mut ours, mut theirs) = (pool(1, 1_000), pool(2, 1_000));
    assert!(!ours.has_guests());
    let mut list: PacketList = theirs.take(8).into_iter().collect();
    list.push_back(Packet::new(1));
    ours.submit(&mut list, 5);
    assert!(ours.has_guests());
    assert_eq!((ours.out(), ours.below(), theirs.out(), theirs.below()), (0, 0, 1, 0));
    let their_own = list.pop_front().expect("one of two");
    drop(list);
    assert!(ours.has_guests(), "one is left");
    drop(their_own);
    assert!(!ours.has_guests());
    let mut told = 0;
    assert_eq!((theirs.reclaim(|_| told += 1), told), (1, 1), "its fate is its own sender's");
    assert_eq!((theirs.below(), ours.returned()), (0, 0));
}

/// A packet that no link accepted has no completion. If another link has accepted the packet
/// before, a refusal does not take away its completion.
#[test]
fn a_refusal_leaves_the_fate_as_it_was() {
    let (mut first, mut owner) = (pool(1, 8), pool(1, 8));
    let refused = |sender: &mut Pool, list: &mut PacketList| {
        sender.submit(list, 1);
        sender.revoke(list);
    };
    let told = |owner: &mut Pool, list: PacketList| {
        drop(list);
        let mut told = 0;
        assert_eq!(owner.reclaim(|_| told += 1), 1);
        told
    };
    // No link accepts the packet, whether its own sender (bit 0 of `asked`), another sender (bit 1)
    // or both submit it, and although each of them submits it twice. So it has no completion.
    for asked in [0b01, 0b10, 0b11] {
        let mut list: PacketList = owner.take(8).into_iter().collect();
        for _ in 0..2 {
            if asked & 0b01 != 0 {
                refused(&mut owner, &mut list);
            }
            if asked & 0b10 != 0 {
                refused(&mut first, &mut list);
            }
        }
        assert_eq!(told(&mut owner, list), 0, "asked {asked:b}");
    }
    // The link of the packet's own sender accepts the packet. Then another sender and its own
    // sender submit the packet again, and are refused.
    let mut list: PacketList = owner.take(8).into_iter().collect();
    owner.submit(&mut list, 1);
    refused(&mut first, &mut list);
    refused(&mut owner, &mut list);
    assert_eq!((owner.below(), first.has_guests()), (1, false));
    assert_eq!(told(&mut owner, list), 1);
    // The link of another sender accepted the packet, and the link of the packet's own sender
    // refused it.
    let mut list: PacketList = owner.take(8).into_iter().collect();
    first.submit(&mut list, 1);
    refused(&mut owner, &mut list);
    assert_eq!((owner.below(), first.has_guests()), (0, true));
    assert_eq!((told(&mut owner, list), first.has_guests()), (1, false));
}

/// A refusal gives a packet that had been submitted before its times back, so that its completion
/// says when it was pushed and when it left on its first way.
#[test]
fn a_refusal_gives_the_times_back() {
    let (mut owner, mut other) = (pool(3, 1_000), pool(3, 1_000));
    let mut received: PacketList = (0..3).map(|_| owner.take(8).expect("a credit")).collect();
    owner.submit(&mut received, 100);
    for (meta, at) in received.metas_mut().zip([130, 150, 70]) {
        meta.mark_sent(at);
    }
    // The port of the other sender accepts the last of the packets, and then refuses the others,
    // between packets of the sender's own.
    let mut list = PacketList::new();
    let mut one = || received.pop_front().expect("one of three");
    let fresh = |pool: &mut Pool| pool.take(8).expect("a credit");
    for packet in [fresh(&mut other), one(), fresh(&mut other), one(), fresh(&mut other)] {
        list.push_back(packet);
    }
    let mut accepted = PacketList::from_iter([one()]);
    other.submit(&mut accepted, 400);
    let times = |list: &mut PacketList| -> Vec<_> {
        list.metas_mut().map(|meta| (meta.enqueued_ns, meta.txtime_ns)).collect()
    };
    assert_eq!(times(&mut accepted), [(400, 0)], "the time of the first way does not hold");
    for turn in 0..3 {
        let asks = if turn == 1 { &mut owner } else { &mut other };
        asks.submit(&mut list, 500 + turn);
        let tried = (500 + turn, 0);
        assert_eq!(times(&mut list), [tried; 5], "turn {turn}");
        asks.revoke(&mut list);
        let before = [(0, 0), (100, 130), (0, 0), (100, 150), (0, 0)];
        assert_eq!(times(&mut list), before, "turn {turn}");
    }
    drop((list, accepted));
    let mut told = Vec::new();
    owner.reclaim(|Completion { pushed_ns, left_ns, .. }| told.push((pushed_ns, left_ns)));
    told.sort_unstable();
    assert_eq!(told, [(100, Some(130)), (100, Some(150)), (400, None)]);
}

/// Senders that submit the same packet in turn record it only once each. So a packet may circulate
/// among senders for ever without using more memory. (A chain of records, each freed by the one
/// before, would also overflow the stack.)
#[test]
fn a_guest_may_go_round_for_ever() {
    let turns = if cfg!(miri) { 20 } else { 50_000 };
    for senders in 1..=3 {
        let mut hosts: Vec<_> = (0..senders).map(|_| pool(1, 8)).collect();
        let mut list = PacketList::new();
        list.push_back(Packet::new(1));
        for turn in 0..turns {
            for host in &mut hosts {
                host.submit(&mut list, turn);
            }
        }
        assert!(hosts.iter_mut().all(Pool::has_guests), "{senders} senders: it counts for each");
        drop(list);
        assert!(!hosts.iter_mut().any(Pool::has_guests), "{senders} senders: for none");
    }
}

/// A packet counts for every sender that submits it. If a link refuses the packet, it no longer
/// counts for the sender that submitted it to that link, but it still counts for the earlier
/// senders.
#[test]
fn a_guest_is_of_all_that_submitted_it() {
    let (mut first, mut second, mut owner) = (pool(1, 8), pool(1, 8), pool(1, 8));
    let mut list: PacketList = owner.take(8).into_iter().collect();
    first.submit(&mut list, 1);
    second.submit(&mut list, 2);
    assert_eq!((first.has_guests(), second.has_guests()), (true, true));
    second.revoke(&mut list);
    assert_eq!((first.has_guests(), second.has_guests()), (true, false));
    // The packet circulates among the senders. Each sender counts it once, and a later refusal does
    // not change that.
    for turn in 3..50 {
        second.submit(&mut list, turn);
        first.submit(&mut list, turn);
    }
    second.revoke(&mut list);
    assert_eq!((first.has_guests(), second.has_guests()), (true, true));
    // A refusal undoes only the last submission by the sender whose pool owns the packet. The
    // packet still counts for this sender if the sender submitted it before, and was not refused.
    owner.submit(&mut list, 50);
    owner.revoke(&mut list);
    assert_eq!((owner.below(), first.has_guests()), (0, true));
    owner.submit(&mut list, 51);
    owner.submit(&mut list, 52);
    owner.revoke(&mut list);
    assert_eq!(owner.below(), 1, "it was below before the last attempt");
    // The sender whose pool owns the packet takes it back. Then no other sender counts it any more.
    owner.take_back(list.pop_front().expect("the only one"));
    assert_eq!((first.has_guests(), second.has_guests()), (false, false));
    assert_eq!((owner.out(), owner.below()), (0, 0));
    // If a sender that submitted the packet was dropped, the packet comes home as usual.
    let mut list: PacketList = owner.take(8).into_iter().collect();
    second.submit(&mut list, 3);
    drop(second);
    drop(list);
    assert_eq!(owner.reclaim(|_| {}), 1);
}

/// Very many senders submit the same packet, one after another. The packet needs little stack when
/// it is dropped, whether all senders still exist or each has gone before the next came.
#[test]
fn a_guest_may_pass_very_many_senders() {
    let senders = if cfg!(miri) { 50 } else { 20_000 };
    for stay in [true, false] {
        let drops = move || {
            let mut stayed = Vec::new();
            let mut list = PacketList::from_iter([Packet::new(1)]);
            for turn in 0..senders {
                let mut host = pool(1, 8);
                host.submit(&mut list, turn);
                assert!(host.has_guests());
                if stay {
                    stayed.push(host);
                }
            }
            drop(list);
            assert!(!stayed.iter_mut().any(Pool::has_guests), "it counts for nobody");
        };
        // A small stack shows an overflow early.
        let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(drops);
        thread.expect("a thread can be had").join().expect("it drops the packet");
    }
}

/// A refusal undoes the last of very many submissions, though the senders of earlier ones are gone.
#[test]
fn a_refusal_leaves_earlier_senders_that_exist() {
    let (mut first, mut last) = (pool(1, 8), pool(1, 8));
    let mut list = PacketList::from_iter([Packet::new(1)]);
    first.submit(&mut list, 0);
    for turn in 1..100 {
        pool(1, 8).submit(&mut list, turn);
        last.submit(&mut list, turn);
        assert_eq!((first.has_guests(), last.has_guests()), (true, true), "{turn}");
        last.revoke(&mut list);
        assert_eq!((first.has_guests(), last.has_guests()), (true, false), "{turn}");
    }
    drop(list);
    assert!(!first.has_guests());
}
