//! `cake`: which flows lose packets when its memory limit is exceeded.

use onramp_core::qdisc::Dequeue;
use onramp_core::{Instant, Setup, Tree};
use onramp_queue::Packet;

const NOW: Instant = Instant(20_000_000_000);
/// About how many bytes of memory a packet of 1,000 bytes takes. The function [`room`] measures how
/// many packets fit exactly.
const TAKES: u32 = 2_048;

fn tree(options: &str) -> Tree {
    let mut setup = Setup::default();
    setup.apply(&format!("qdisc add dev e root handle 1: cake {options}")).expect(options);
    Tree::of(&setup, 1_514, 7).expect("a root")
}

/// Enqueues `packets` packets of a flow. Returns the flows that lost a packet.
fn push(tree: &mut Tree, flow: u64, packets: u32, priority: u32) -> Vec<u64> {
    for _ in 0..packets {
        let mut pkt = Packet::new(1_000);
        (pkt.flow, pkt.enqueued_ns, pkt.priority) = (flow, NOW.0, priority);
        let _ = tree.enqueue(NOW, pkt);
    }
    tree.drops().map(|pkt| pkt.flow).collect()
}

/// Returns an option that limits memory to about `packets` packets.
fn memory_for(packets: u32) -> String {
    format!("memlimit {}", packets * TAKES)
}

/// Measures how many packets the memory limit in the options admits.
fn room(options: &str) -> u32 {
    let mut tree = tree(options);
    let mut room = 0;
    while push(&mut tree, 1, 1, 0).is_empty() {
        room += 1;
    }
    room
}

/// The flow with the longest queue loses packets until another flow's queue is as long. Then both
/// flows lose packets. As in Linux, the heap that finds the longest queue moves a queue that has
/// become shorter down by only one level. So an empty queue may stand above the other flow's queue
/// and keep `cake` from finding it. Thus the test demands the behaviour only of more than 10 of 40
/// pairs of flows.
#[test]
fn the_fattest_flow_pays_until_another_one_is() {
    let options = format!("besteffort flows {}", memory_for(30));
    let room = room(&options);
    // Half of all packets belong to the first flow, three packets less to a second flow, and the
    // rest to a third flow.
    let (fat, less) = (room / 2, room / 2 - 3);
    let pays_its_part = |other: u64| {
        let mut tree = tree(&options);
        assert!(
            push(&mut tree, 1, fat, 0).is_empty() && push(&mut tree, other, less, 0).is_empty()
        );
        assert!(push(&mut tree, 99, room - fat - less, 0).is_empty());
        let lost: Vec<_> = (100..108).flat_map(|flow| push(&mut tree, flow, 1, 0)).collect();
        // The first three losses are packets of the longest queue. After that, both long queues
        // lose packets in turn.
        assert_eq!((lost.len(), &lost[..3]), (8, &[1, 1, 1][..]), "{lost:?}");
        assert!(lost.iter().all(|flow| [1, other].contains(flow)), "{lost:?}");
        (2..=3).contains(&lost.iter().filter(|flow| **flow == other).count())
    };
    let pairs = (2..42).filter(|other| pays_its_part(*other)).count();
    assert!(pairs > 10, "{pairs} of 40");
}

/// If one of many small flows grows, that flow alone loses its excess packets.
#[test]
fn a_flow_that_grows_becomes_the_fattest() {
    let options = format!("besteffort flows {}", memory_for(80));
    let room = room(&options);
    let mut tree = tree(&options);
    let flows = u64::from(room / 3);
    for flow in 0..flows {
        assert!(push(&mut tree, flow, 3, 0).is_empty());
    }
    let _ = push(&mut tree, flows, room % 3, 0);
    let lost = push(&mut tree, flows - 1, 20, 0);
    assert_eq!(lost.len(), 20);
    let others = lost.iter().filter(|flow| **flow != flows - 1).count();
    assert!(others <= 1, "{lost:?}");
}

/// `cake` has two tins (priority queues), and the tin for voice is served first. A flow does not
/// lose packets because of packets that have already left its queue.
#[test]
fn a_flow_that_shrank_is_not_the_fattest() {
    let options = format!("diffserv3 bandwidth 1gbit flows {}", memory_for(40));
    let room = room(&options);
    let mut tree = tree(&options);
    // Priority 6 belongs to the tin for voice.
    let fat = room / 2;
    assert!(push(&mut tree, 1, fat, 6).is_empty());
    let rest = room - fat;
    for flow in 10..15 {
        assert!(push(&mut tree, flow, rest / 5, 0).is_empty());
    }
    let _ = push(&mut tree, 15, rest % 5, 0);
    assert_eq!(push(&mut tree, 16, 1, 0), [1]);
    let mut now = NOW;
    let mut left = fat - 1;
    while left > 1 {
        match tree.dequeue(now) {
            Dequeue::Ready(pkt) => left -= u32::from(pkt.flow == 1),
            Dequeue::NotBefore(then) => now = then,
            Dequeue::Empty => panic!("it holds more"),
        }
    }
    // Packets have left, so that there is room in memory again. Fill it, and add one packet too
    // many. Then a flow that has more than one packet loses one.
    let free = room - tree.backlog().packets;
    let lost = push(&mut tree, 20, free + 1, 0);
    assert!(!lost.is_empty() && !lost.contains(&1), "{lost:?}");
}

/// By default, the memory limit is four times the number of bytes that the rate sends in a
/// round-trip time, but at least 4 MiB and at most 10,240 MTUs.
#[test]
fn memory_by_rate_and_round_trip() {
    let limit = |options: &str| {
        let mut found = 0;
        tree(options).stats(&mut |name, value| {
            found = if name == "memory_limit" { value } else { found };
        });
        found
    };
    for (options, bytes) in [
        ("unlimited", 10_240 * 1_514),
        ("bandwidth 10gbit rtt 100ms", 10_240 * 1_514),
        ("bandwidth 100mbit rtt 100ms", 5_000_000),
        ("bandwidth 100mbit rtt 200ms", 10_000_000),
        ("bandwidth 10mbit rtt 100ms", 4 << 20),
        ("bandwidth 100mbit rtt 100ms memlimit 1mb", 1 << 20),
        ("unlimited memlimit 5000b", 5_000),
    ] {
        assert_eq!(limit(options), bytes, "{options}");
    }
}

/// When a change removes tins, the packets in these tins are dropped, and their memory is free
/// again.
#[test]
fn a_change_to_fewer_tins() {
    let options = format!("diffserv4 flows {}", memory_for(30));
    let room = room(&options);
    let mut tree = tree(&options);
    // The priorities 1:1 to 1:4 select the tins bulk, best effort, video and voice.
    for (minor, packets) in [(1, 3), (2, 4), (3, 5), (4, 6)] {
        assert!(push(&mut tree, 1, packets, 0x1_0000 + minor).is_empty());
    }
    let line = "qdisc change dev e root handle 1: cake besteffort";
    tree.apply(NOW, line).expect(line);
    let purged = Some(onramp_queue::DropReason::Purged);
    let lost: Vec<_> = tree.drops().map(|pkt| pkt.drop_reason).collect();
    assert!(lost.len() == 14 && lost.iter().all(|reason| *reason == purged), "{lost:?}");
    assert_eq!((tree.backlog().packets, tree.backlog().bytes), (4, 4_000));
    assert_eq!(tree.views()[0].classes.iter().map(|flow| flow.backlog.packets).sum::<u32>(), 4);
    let free = room - 4;
    assert!(push(&mut tree, 2, free, 0).is_empty());
    assert_eq!(push(&mut tree, 3, 1, 0).len(), 1);
    let mut sent = 0;
    while let Dequeue::Ready(_) = tree.dequeue(NOW) {
        sent += 1;
    }
    assert_eq!((sent, tree.backlog().packets), (room, 0));
}

/// Without a rate, tins share by their quanta: 1,024 for best effort, a sixteenth of that for bulk
/// and a quarter for voice.
#[test]
fn tins_without_rates_share_in_turn() {
    let mut tree = tree("diffserv3 unlimited flows rtt 1000s");
    for (minor, flow) in [(1, 1), (2, 2), (3, 3)] {
        assert!(push(&mut tree, flow, 2_000, 0x1_0000 + minor).is_empty());
    }
    let mut sent = [0_i32; 3];
    for _ in 0..1_344 {
        let Dequeue::Ready(pkt) = tree.dequeue(NOW) else { panic!("it holds more") };
        sent[usize::try_from(pkt.flow).unwrap() - 1] += 1;
    }
    for (sent, part) in sent.into_iter().zip([64, 1_024, 256]) {
        assert!((sent - part).abs() <= 3, "{sent} of 1,344 are not {part}");
    }
}

/// The length that a sender states may be any number, also for a packet that says that it carries
/// several datagrams.
#[test]
fn a_packet_may_state_any_length() {
    for options in
        ["unlimited", "bandwidth 10gbit", "bandwidth 10gbit no-split-gso atm overhead 99"]
    {
        let mut tree = tree(options);
        for (payload, gso_size) in [(100, 1_000), (1_500, 1_000), (0, 1), (3, 1), (100, u16::MAX)] {
            for len in [u32::MAX, u32::MAX - 999, u32::MAX / 2 + 1] {
                let mut pkt = Packet::with_payload(&vec![0; payload]);
                (pkt.len, pkt.gso_size, pkt.enqueued_ns) = (len, gso_size, NOW.0);
                let _ = tree.enqueue(NOW, pkt);
                let mut now = NOW;
                while tree.backlog().packets > 0 {
                    match tree.dequeue(now) {
                        Dequeue::Ready(_) => {}
                        Dequeue::NotBefore(at) => now = at,
                        Dequeue::Empty => break,
                    }
                }
                drop(tree.drops());
            }
        }
        assert_eq!((tree.backlog().packets, tree.backlog().bytes), (0, 0), "{options}");
    }
}
