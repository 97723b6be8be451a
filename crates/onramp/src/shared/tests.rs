//! Tests of the state that the threads of a link share.

use std::collections::BTreeSet;
use std::time::Duration;

use std::task::Waker;

use onramp_core::{Facts, Mode, Ran};
use onramp_dev::Null;
use onramp_queue::{Armed, DropReason, NEVER, Pool};

use super::*;
use crate::Link;
use crate::stats::SenderCounters;
use crate::sync::atomic::AtomicU32;

/// A timeout longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(500);

fn boxed() -> BoxDevice {
    Box::new(Null::default())
}

fn link(ports: usize) -> Link {
    Link::devices((0..ports).map(|_| boxed())).build().expect("a link")
}

/// The seed of each port is the seed of the link plus the number of the port.
#[test]
fn ports_have_seeds_in_a_row() {
    for (seed, expected) in [(5, [5, 6, 7]), (u64::MAX - 1, [u64::MAX - 1, u64::MAX, 0])] {
        let link = Link::devices((0..3).map(|_| boxed())).seed(seed).build().expect("a link");
        let plan = link.handle.shared.plan().expect("no copy");
        assert_eq!([0, 1, 2].map(|port| plan.seed(port)), expected);
    }
}

#[test]
fn a_link_that_is_closed_is_shut() {
    let link = link(2);
    let shared = &link.handle.shared;
    assert!(!shared.is_closed() && !shared.rig.gate.is_shut());
    assert!(link.close(Duration::ZERO).flushed);
    assert!(shared.is_closed() && shared.rig.gate.is_shut());
}

/// A thread owned a port while the link closed, and was suspended for longer than a close waits for
/// owners. It purges the packets that it left in the port, though they wait for their time.
#[test]
fn an_owner_that_comes_back_after_the_close_purges_what_it_left() {
    let link = Link::devices([boxed()]).qdisc("netem delay 100s").manual().build();
    let link = link.expect("a link");
    let shared = &link.handle.shared;
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.try_send(&flow, b"late").expect("room");
    let slot = shared.slot(0);
    let ran = shared.help(slot).expect("nobody owns the port");
    assert!(!ran.again && slot.may_hold_packets(ran));
    shared.follow_up(slot, ran);
    assert_eq!(slot.port.stats().dropped.total(), 0, "the link is open");
    shared.rig.gate.shut();
    shared.follow_up(slot, ran);
    assert_eq!(slot.port.stats().dropped.get(DropReason::Purged), 1);
}

/// The same, if the port is busy when the thread leaves it, so that another thread has only staged
/// its packet.
#[test]
fn an_owner_that_comes_back_after_the_close_purges_what_is_staged() {
    let link = Link::devices([boxed()]).mode(Mode::Dedicated).manual().build().expect("a link");
    let shared = &link.handle.shared;
    let mut sender = link.sender();
    let flow = sender.flow(None);
    sender.try_send(&flow, b"staged").expect("room");
    let slot = shared.slot(0);
    shared.rig.gate.shut();
    shared.follow_up(slot, Ran { done: 0, again: false });
    assert_eq!(slot.port.stats().dropped.get(DropReason::Purged), 1);
}

#[test]
fn a_close_waits_for_owners_for_eight_hundred_milliseconds() {
    let link = link(1);
    let shared = &link.handle.shared;
    let before = shared.clock.now();
    let deadline = shared.owners_deadline();
    let after = shared.clock.now();
    assert!((before.after(800_000_000)..=after.after(800_000_000)).contains(&deadline));
}

/// Returns the facts about a host's device that has `queues` queues and whose default qdisc is
/// `fallback`.
fn facts(queues: u16, fallback: &str) -> Facts {
    let fallback = fallback.parse().ok();
    Facts { fallback, queues, mtu: 1_514, ports: true, ..Facts::default() }
}

/// On a device of a host, one root qdisc serves all queues together. On a link that no host has
/// described as a device, each queue has a root of its own.
#[test]
fn one_root_serves_all_queues_of_a_device() {
    for (ports, described, one) in
        [(1, true, false), (2, true, true), (4, true, true), (4, false, false)]
    {
        let link = link(ports);
        let shared = &link.handle.shared;
        link.change("qdisc replace dev link root handle 1: pfifo").expect("it can be done");
        assert!(!shared.rig.gate.is_one());
        if described {
            link.describe_device("link", facts(u16::try_from(ports).expect("few"), "noqueue"));
        }
        assert_eq!(shared.rig.gate.is_one(), one, "{ports} ports, described: {described}");
        let trees = if one { 1 } else { ports };
        assert_eq!(shared.fronts().len().min(ports), trees);
        // Each port whose tree of qdiscs serves flows lets 8,192 packets be in flight, and the
        // senders of the link divide this number equally. There is one sender, so it may have all
        // of them in flight. If one root serves all ports, only the tree of the first port serves
        // flows.
        let share = 8_192 * u32::try_from(trees).expect("few");
        let sender = link.sender();
        assert_eq!(shared.fair_credits(), share);
        if ports == 1 {
            continue; // A device with one queue cannot have mq.
        }
        link.change("qdisc replace dev link root handle 2: mq").expect("it can be done");
        assert!(!shared.rig.gate.is_one(), "each queue has a tree of its own");
        assert_eq!(shared.fair_credits(), 8_192 * u32::try_from(ports).expect("few"));
        link.change("qdisc replace dev link root handle 3: pfifo").expect("it can be done");
        assert_eq!(shared.rig.gate.is_one(), one);
        assert_eq!(shared.fair_credits(), share, "at once, not when the next sender comes");
        drop(sender);
    }
}

/// If one root for all ports (such as `pfifo`) replaces a root that gives each port a tree of its
/// own (such as `mq`), or the reverse, the trees of all ports are marked stale, so that they are
/// rebuilt.
#[test]
fn ports_hear_of_a_root_that_serves_all() {
    let link = link(3);
    let shared = &link.handle.shared;
    link.change("qdisc replace dev link root handle 9: mq").expect("it can be done");
    link.describe_device("link", facts(3, "noqueue"));
    let stale = || shared.plan().expect("it is no copy").stale.clone();
    let follow = |line: &str| {
        let mut plan = shared.open_plan().expect("it is open");
        Arc::make_mut(&mut plan.tree).change(line).expect("it can be done");
        shared.follow(&mut plan)
    };
    assert!(follow("qdisc replace dev link root handle 1: pfifo"));
    assert_eq!(stale(), BTreeSet::from([0, 1, 2]));
    shared.plan().expect("it is no copy").stale.clear();
    assert!(!follow("qdisc change dev link root pfifo limit 7"), "it is the same root");
    assert!(!follow("qdisc replace dev link root handle 2: fq"), "of the same sort");
    assert_eq!(stale(), BTreeSet::new());
    assert!(follow("qdisc replace dev link root handle 3: mq"));
    assert_eq!(stale(), BTreeSet::from([0, 1, 2]));
}

/// If one root qdisc serves all ports of a link, the root belongs to the first port. So one root
/// can serve all ports only if the first port is alive and was not removed.
#[test]
fn a_root_needs_the_first_port() {
    let link = link(3);
    let shared = &link.handle.shared;
    link.change("qdisc replace dev link root handle 9: mq").expect("it can be done");
    link.describe_device("link", facts(3, "noqueue"));
    assert!(link.remove_port(0, LONG).expect("others stay").flushed);
    link.change("qdisc replace dev link root handle 1: pfifo").expect("it can be done");
    assert!(!shared.rig.gate.is_one());
}

/// Removes each of `ports`, which hold no packets, one after another. Returns all removed ports,
/// and those of them that are not settled (packets that were being pushed at the removal may still
/// come).
fn removed(link: &Link, ports: Range<usize>, timeout: Duration) -> (Vec<usize>, Vec<usize>) {
    for port in ports {
        assert!(link.remove_port(port, timeout).expect("others stay").flushed);
    }
    let changing = link.handle.shared.changing().expect("it is open");
    (changing.gone.clone(), changing.unsettled.iter().copied().collect())
}

/// For a while after a port was removed, its flows wait for packets that were being pushed into it
/// at the removal. Flows wait in this way for at most the 16 ports that were removed last; for
/// older ones they no longer wait (these ports are settled).
#[test]
fn ports_that_went_are_unsettled_for_a_while() {
    for count in [1, 3, 15, 16, 17, 20] {
        let link = link(count + 2);
        let (gone, unsettled) = removed(&link, 0..count, LONG);
        assert_eq!(gone, (0..count).collect::<Vec<_>>());
        assert_eq!(unsettled, (count.saturating_sub(16)..count).collect::<Vec<_>>());
        let shared = &link.handle.shared;
        for port in 0..count {
            let known = &shared.slot(port).known.succession;
            assert!(known.is_gone());
            assert_eq!(known.patience() > 0, unsettled.contains(&port), "{port} of {count}");
            // A settled port (a removed port for which flows no longer wait) passes its flows
            // directly to a port that is not settled.
            let settled = count.saturating_sub(16);
            let successor = known.successor(7).expect("it went");
            assert!(
                port >= settled || successor >= settled,
                "{port} of {count} leads to {successor}"
            );
            assert!(shared.route(port, 7) >= count, "and all end at a port that is open");
        }
        // Settle all removed ports, as if their waiting time were over.
        let mut changing = shared.changing().expect("it is open");
        for port in &unsettled {
            shared.slot(*port).known.succession.settle();
        }
        shared.settle(&mut changing);
        assert!(changing.unsettled.is_empty());
        assert_eq!(changing.gone.len(), count, "a port's number is not used again");
    }
}

/// A port that is being removed accepts no packets. After its removal, its flows send through
/// another port. They do so only when the removed port holds no packet any more, or when the time
/// limit for this wait has passed.
#[test]
fn who_comes_to_a_port_that_went_waits_for_what_is_in_it() {
    for (holds, patience, waits) in
        [(true, u64::MAX, true), (true, 0, false), (true, 1, false), (false, u64::MAX, false)]
    {
        let link = Link::devices([boxed(), boxed()]).qdisc("netem delay 200s").build();
        let link = link.expect("a link");
        let shared = &link.handle.shared;
        if holds {
            let mut sender = link.sender();
            let flow = sender.flow_with(None, crate::Mapping::Port(0));
            sender.try_send(&flow, b"stays").expect("there is room");
        }
        let slot = shared.slot(0);
        assert!(!shared.is_leaving(slot) && !shared.is_full(0));
        slot.known.succession.leave();
        assert!(shared.is_leaving(slot) && shared.is_full(0));
        slot.known.succession.go(&[1], patience);
        assert_eq!(shared.is_leaving(slot), waits, "holds: {holds}, until {patience}");
        assert_eq!(shared.is_full(0), waits);
        shared.rig.gate.note_change();
        assert_eq!(shared.route(0, 3), if waits { 0 } else { 1 });
        shared.rig.gate.close();
        assert!(!shared.is_leaving(slot), "a link that closes sends nothing more that could wait");
    }
}

/// The number of packets that each sender may have in flight is 8,192 times the number of ports,
/// divided by the number of senders. This number changes at once when a port is removed or added.
#[test]
fn credits_are_shared_out_as_ports_come_and_go() {
    let builder = Link::devices((0..3).map(|_| boxed())).ports_max(5);
    let link = builder.build().expect("a link");
    let share = || link.handle.shared.fair_credits();
    let _senders = [link.sender(), link.sender()];
    assert_eq!(share(), 8_192 * 3 / 2);
    assert!(link.remove_port(1, LONG).expect("others stay").flushed);
    assert_eq!(share(), 8_192);
    link.add_port(Null::default()).expect("there is room");
    assert_eq!(share(), 8_192 * 3 / 2);
}

/// A recall wakes the tasks whose time to look has come, and no others, for which it notes another
/// recall.
#[test]
fn a_recall_wakes_those_whose_time_has_come() {
    let link = Link::devices([boxed()]).manual().build().expect("a link");
    let shared = &link.handle.shared;
    let mut senders = [5, 9, NEVER].map(|at| {
        let mut pool = Pool::new(Credits { packets: 1, bytes: 1 });
        let bell = Arc::new(pool.bell().expect("the first"));
        let (counters, lacks_with) = (SenderCounters::default(), AtomicU32::new(0));
        let looks_at = AtomicU64::new(NEVER);
        let end = Arc::new(SenderEnd { counters, bell, lacks_with, looks_at });
        shared.add_sender(end.clone());
        if at != NEVER {
            shared.look_at(&end, Instant(at));
        }
        (pool, end)
    });
    for (now, rung) in [(7, [true, false, false]), (8, [false; 3]), (9, [false, true, false])] {
        shared.recall_all(Instant(now));
        let woken = senders.each_mut().map(|(pool, _)| {
            let armed = pool.listen(Waker::noop());
            pool.disarm();
            armed == Armed::Ready
        });
        assert_eq!(woken, rung, "at {now}");
    }
    senders.iter().for_each(|(_, end)| shared.remove_sender(end));
}

/// A link is shut while a port holds packets, because a thread owned the port for longer than the
/// close waited, and has left it only now. The next thread that asks the port purges these packets.
#[test]
fn who_asks_a_port_of_a_shut_link_purges_its_packets() {
    type Ask = (&'static str, fn(&Link));
    let asks: [Ask; 3] = [
        ("views", |link| _ = link.views(0)),
        ("all views", |link| _ = link.all_views()),
        ("measure", |link| link.measure(true)),
    ];
    for (what, ask) in asks {
        let builder = Link::devices([boxed()]).qdisc("netem delay 200s");
        let link = builder.build().expect("a link");
        let shared = &link.handle.shared;
        let mut sender = link.sender();
        let flow = sender.flow(None);
        (0..3).for_each(|_| sender.send(&flow, b"x").expect("there is room"));
        shared.rig.gate.close();
        shared.rig.gate.shut();
        assert_eq!(link.stats().held, 3, "{what}: none leaves by itself");
        ask(&link);
        // A runner may own the port at that moment. Then it is not this thread that leaves it last.
        for _ in 0..2_000 {
            if link.stats().held > 0 {
                thread::sleep(Duration::from_millis(1));
                ask(&link);
            }
        }
        let stats = link.stats();
        let purged = stats.dropped.get(&DropReason::Purged);
        assert_eq!((stats.held, purged), (0, Some(&3)), "{what}");
    }
}
