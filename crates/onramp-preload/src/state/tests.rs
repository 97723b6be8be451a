use std::collections::{HashSet, VecDeque};

use onramp_core::Setup;
use onramp_dev::exec::{Counts, Process};

use super::*;

const MS: u64 = 1_000_000;

/// What a datagram of 958 bytes costs.
const COST: u64 = 2_304;

/// Sockets of nobody's.
#[derive(Debug, Default)]
struct Fake {
    sent: Vec<(u64, Vec<u8>)>,
    /// The ECN code points of what was sent.
    ecn: Vec<u8>,
    /// What the next calls of `send` return, instead of sending.
    errors: VecDeque<Errno>,
    /// The sockets that have no room.
    full: HashSet<u64>,
    /// Number of calls of `send`.
    calls: u64,
    kept: HashSet<u64>,
    /// The sockets whose programs have closed them: what leaves needs a descriptor that was kept.
    closed: HashSet<u64>,
}

impl Sockets for Fake {
    fn send(&mut self, route: &Route, ecn: u8, payload: &[u8]) -> Result<(), Errno> {
        self.calls += 1;
        if let Some(error) = self.errors.pop_front() {
            return Err(error);
        }
        if self.full.contains(&route.socket) {
            return Err(Errno::AGAIN);
        }
        if self.closed.contains(&route.socket) && !self.kept.contains(&route.socket) {
            return Err(Errno::BADF);
        }
        self.sent.push((route.socket, payload.to_vec()));
        self.ecn.push(ecn);
        Ok(())
    }

    fn keep(&mut self, socket: u64) {
        self.kept.insert(socket);
    }

    fn release(&mut self, socket: u64) {
        self.kept.remove(&socket);
    }
}

struct World {
    state: State,
    out: Fake,
    folder: std::path::PathBuf,
    now: Instant,
}

impl World {
    fn new(name: &str, qdisc: &str) -> Self {
        let folder = format!("onramp-preload-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir(&folder).expect("a new folder");
        let mut setup = Setup::default();
        for line in format!("qdisc add dev d root {qdisc}").lines() {
            setup.change(line).expect("a qdisc");
        }
        let tree = Tree::of(&setup, 1_514, 1).expect("a root");
        let tally = Tally::create(&folder).expect("room");
        let state = State::new(tree, !qdisc.contains("netem"), tally);
        Self { state, out: Fake::default(), folder, now: Instant(1_000 * MS) }
    }

    /// Sends a datagram of 958 bytes, and so of 1,000 on the wire, whose first byte is `mark`.
    fn push(&mut self, socket: u64, mark: u8) -> Result<Pushed, Errno> {
        self.push_with(0, socket, mark)
    }

    /// Sends such a datagram with this ECN code point.
    fn push_with(&mut self, ecn: u8, socket: u64, mark: u8) -> Result<Pushed, Errno> {
        let route = Route { socket, name: vec![mark % 3], control: Vec::new(), flags: 0, ecn };
        let mut payload = [0; 958];
        payload[0] = mark;
        let datagram = Datagram {
            route: &route,
            payload: &payload,
            local: None,
            remote: "127.0.0.1:9".parse().ok(),
            priority: 0,
            mark: 0,
        };
        self.state.push(self.now, &datagram, &mut self.out)
    }

    /// Comes when there is something to do, until this time, each time so late. Returns when what
    /// left, in milliseconds from now.
    fn run(&mut self, until_ms: u64, late_ns: u64) -> Vec<(u64, u8)> {
        let (begin, mut left) = (self.now, Vec::new());
        while let Some(next) = self.state.next().filter(|next| next.since(begin) <= until_ms * MS) {
            self.now = next.max(self.now).after(late_ns);
            let before = self.out.sent.len();
            self.state.drain(self.now, &mut self.out, None).expect("nobody's datagram");
            let at = self.now.since(begin) / MS;
            left.extend(self.out.sent[before..].iter().map(|(_, payload)| (at, payload[0])));
            self.assert_conserved();
        }
        left
    }

    fn counts(&self) -> Counts {
        Process::read_all(&self.folder).expect("they are there").remove(0).counts
    }

    /// Asserts that each datagram is sent, dropped or held.
    fn assert_conserved(&self) {
        let refused: usize = self.state.refused.values().map(|refused| refused.packets.len()).sum();
        let held = u64::from(self.state.tree.backlog().packets) + refused as u64;
        assert_eq!(self.state.tally.held(), held);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).expect("the folder is there");
    }
}

/// 1,000 bytes take 8 ms at 1 Mbit/s.
#[test]
fn datagrams_of_all_sockets_share_one_rate() {
    let mut world = World::new("rate", "tbf rate 1mbit burst 1000 limit 100000");
    for mark in 0..5 {
        assert_eq!(world.push(u64::from(mark % 2), mark), Ok(Pushed::Taken));
    }
    assert_eq!(world.out.sent.len(), 1);
    assert_eq!(world.out.kept, HashSet::from([0, 1]));
    assert_eq!(world.run(1_000, 0), [(8, 1), (16, 2), (24, 3), (32, 4)]);
    assert_eq!(world.out.kept, HashSet::new());
    let counts = world.counts();
    assert_eq!((counts.datagrams, counts.sent, counts.sent_bytes), (5, 5, 5_000));
}

/// The thread comes 3 ms late each time, and yet no rate is lost.
#[test]
fn a_late_thread_keeps_the_rate() {
    let mut world = World::new("late", "tbf rate 1mbit burst 1000 limit 100000");
    for mark in 0..101 {
        world.push(0, mark).expect("room");
    }
    let left = world.run(10_000, 3 * MS);
    let last = left.last().expect("they left");
    assert_eq!((left.len(), *last), (100, (803, 100)));
}

#[test]
fn what_waits_takes_room_and_gives_it_back() {
    let mut world = World::new("room", "tbf rate 1mbit burst 1000 limit 3000");
    for mark in 0..6 {
        let pushed = if mark < 4 { Pushed::Taken } else { Pushed::Dropped };
        assert_eq!(world.push(7, mark), Ok(pushed));
    }
    assert_eq!(world.state.charged(7), 3 * COST);
    assert_eq!(world.state.charged(8), 0);
    // The first one has left, and two were dropped.
    assert!(world.state.take_freed() && !world.state.take_freed());
    world.run(8, 0);
    assert_eq!(world.state.charged(7), 2 * COST);
    assert!(world.state.take_freed());
    world.run(1_000, 0);
    assert_eq!(world.state.charged(7), 0);
    assert!(world.state.sockets.is_empty());
    assert_eq!(world.counts().drops, [(DropReason::Overlimit, 2)]);
}

/// The qdisc marks what can carry a mark (ECT), and drops the rest. What the program has marked
/// itself stays marked, and is not the qdisc's.
#[test]
fn marks_leave_with_their_datagrams() {
    let mut world = World::new("ecn", "netem loss 100% ecn");
    for ecn in 0..4 {
        assert_eq!(world.push_with(ecn, 1, 0), Ok(Pushed::Taken));
    }
    assert_eq!(world.out.ecn, [3, 3, 3]);
    let counts = world.counts();
    assert_eq!((counts.datagrams, counts.sent, counts.marked), (4, 3, 2));
    let mut world = World::new("no-ecn", "pfifo limit 10");
    for ecn in 0..4 {
        world.push_with(ecn, 1, 0).expect("room");
    }
    assert_eq!((&*world.out.ecn, world.counts().marked), (&[0, 1, 2, 3][..], 0));
}

#[test]
fn a_closed_socket_sends_what_waits() {
    let mut world = World::new("closed", "tbf rate 1mbit burst 1000 limit 100000");
    for mark in 0..3 {
        world.push(4, mark).expect("room");
    }
    world.out.closed.insert(4);
    assert_eq!(world.run(1_000, 0), [(8, 1), (16, 2)]);
    assert_eq!(world.counts().sent, 3);
}

/// Both the datagram and its copy leave after the socket was closed.
#[test]
fn a_copy_keeps_its_socket_open() {
    let mut world = World::new("copy", "netem delay 10ms duplicate 100%");
    world.push(4, 1).expect("room");
    world.out.closed.insert(4);
    assert_eq!(world.run(1_000, 0), [(10, 1), (10, 1)]);
    let counts = world.counts();
    assert_eq!((counts.datagrams, counts.made, counts.sent), (1, 1, 2));
    assert!(world.state.sockets.is_empty() && world.out.kept.is_empty());
    assert_eq!(world.state.charged(4), 0);
}

/// A stage of a series copies a datagram while another datagram is taken out of the series.
#[test]
fn a_copy_of_a_later_stage_keeps_its_socket_open() {
    let stages = "handle 1: series stages 2\n\
                  qdisc add dev d parent 1:1 handle 2: pfifo limit 9\n\
                  qdisc add dev d parent 1:2 handle 3: netem delay 10ms duplicate 100%";
    let mut world = World::new("stages", stages);
    world.push(4, 1).expect("room");
    world.out.closed.insert(4);
    assert_eq!(world.run(1_000, 0), [(10, 1), (10, 1)]);
    let counts = world.counts();
    assert_eq!((counts.made, counts.sent, counts.dropped()), (1, 2, 0));
    assert!(world.state.sockets.is_empty() && world.out.kept.is_empty());
}

/// However many sockets there were, a new one can send while others wait.
#[test]
fn only_what_waits_bounds_the_number_of_routes() {
    let mut world = World::new("routes", "netem delay 10ms limit 10");
    let most = ROUTES_MAX as u64 + 10;
    for socket in 0..most {
        world.push(socket, 0).expect("a route");
    }
    world.run(1_000, 0);
    let counts = world.counts();
    assert_eq!((counts.datagrams, counts.sent, counts.held()), (most, 10, 0));
    assert_eq!(counts.drops, [(DropReason::Overlimit, most - 10)]);
    assert_eq!(world.state.routes.len(), ROUTES_MAX);
}

/// As in Linux, a sender does not learn of packets that the network loses, but of a full queue.
#[test]
fn losses_are_no_error() {
    let mut world = World::new("lost", "netem loss 100%");
    assert_eq!(world.push(1, 0), Ok(Pushed::Taken));
    assert_eq!(world.counts().drops, [(DropReason::Impaired, 1)]);
    let mut world = World::new("nothing", "blackhole");
    assert_eq!(world.push(1, 0), Ok(Pushed::Taken));
    let filter = "handle 1: prio\n\
                  filter add dev d parent 1: protocol all matchall action drop";
    let mut world = World::new("filter", filter);
    assert_eq!(world.push(1, 0), Ok(Pushed::Taken));
    assert_eq!(world.counts().drops, [(DropReason::Filter, 1)]);
    let mut world = World::new("limit", "netem delay 1ms limit 1");
    assert_eq!(world.push(1, 0), Ok(Pushed::Taken));
    assert_eq!(world.push(1, 0), Ok(Pushed::Dropped));
}

#[test]
fn a_socket_without_room_gets_its_datagram_later() {
    let mut world = World::new("full", "pfifo limit 10");
    world.out.errors.extend([Errno::AGAIN, Errno::AGAIN]);
    for mark in 0..3 {
        assert_eq!(world.push(1, mark), Ok(Pushed::Taken));
    }
    assert_eq!(world.out.sent, []);
    world.assert_conserved();
    assert_eq!(world.run(1_000, 0), [(2, 0), (2, 1), (2, 2)]);
    assert_eq!((world.counts().sent, world.counts().dropped()), (3, 0));
}

/// Only the datagrams of the socket without room wait for it, in their order, and no datagram of
/// another socket waits for them.
#[test]
fn a_socket_without_room_holds_up_no_other_socket() {
    let mut world = World::new("other", "pfifo limit 1000");
    world.out.full.insert(1);
    for mark in 0..3 {
        assert_eq!(world.push(1, mark), Ok(Pushed::Taken));
        assert_eq!(world.push(2, 100 + mark), Ok(Pushed::Taken));
        world.assert_conserved();
        assert_eq!(world.out.sent.last().map(|(socket, _)| *socket), Some(2));
    }
    assert_eq!(world.out.sent.len(), 3);
    // The first one was offered, and the others wait behind it without a call.
    assert_eq!(world.out.calls, 4);
    assert_eq!(world.state.charged(1), 3 * COST);
    assert_eq!((world.state.charged(2), &world.out.kept), (0, &HashSet::from([1])));
    // The program closes the socket. Each millisecond, one datagram is offered.
    world.out.closed.insert(1);
    assert_eq!(world.run(5, 0), []);
    assert_eq!(world.out.calls, 9);
    world.out.full.clear();
    assert_eq!(world.run(1_000, 0), [(1, 0), (1, 1), (1, 2)]);
    assert!(world.state.sockets.is_empty() && world.out.kept.is_empty());
    assert_eq!((world.counts().sent, world.counts().dropped()), (6, 0));
}

/// The rate of the tree goes on for the other sockets, and what is due comes before the next try.
#[test]
fn a_rate_is_kept_beside_a_socket_without_room() {
    let mut world = World::new("beside", "tbf rate 16mbit burst 1000 limit 100000");
    world.out.full.insert(1);
    for mark in 0..6 {
        world.push(1 + u64::from(mark % 2), mark).expect("room");
    }
    // 1,000 bytes take 0.5 ms.
    assert_eq!(world.run(10, 0), [(0, 1), (1, 3), (2, 5)]);
    world.out.full.clear();
    assert_eq!(world.run(1_000, 0), [(0, 0), (0, 2), (0, 4)].map(|(_, mark)| (1, mark)));
}

/// In a `netem`, nothing bounds what a program sends but the bytes that a socket may have waiting.
#[test]
fn what_waits_for_a_socket_without_charges_is_bounded() {
    let mut world = World::new("bound", "netem delay 1ms");
    world.out.full.insert(1);
    let fit = REFUSED_MAX / COST;
    for _ in 0..fit + 10 {
        assert_eq!(world.push(1, 0), Ok(Pushed::Taken));
        world.now = world.now.after(2 * MS);
        world.push(2, 0).expect("room");
        world.assert_conserved();
    }
    world.run(10, 0);
    assert_eq!(world.counts().drops, [(DropReason::NoBuffers, 10)]);
    world.out.full.clear();
    world.run(1_000, 0);
    let sent = world.out.sent.iter().filter(|(socket, _)| *socket == 1).count();
    assert_eq!(sent as u64, fit);
    assert!(world.state.sockets.is_empty() && world.out.kept.is_empty());
}

#[test]
fn the_error_of_a_datagram_that_leaves_at_once_is_its_own() {
    let mut world = World::new("own", "pfifo limit 10");
    world.out.errors.push_back(Errno::CONNREFUSED);
    assert_eq!(world.push(1, 0), Err(Errno::CONNREFUSED));
    assert_eq!(world.push(1, 1), Ok(Pushed::Taken));
    assert_eq!((world.out.sent.len(), world.state.take_error(1)), (1, None));
    assert_eq!(world.counts().drops, [(DropReason::Refused, 1)]);
}

/// The kernel tells an earlier datagram's error instead of sending; so it is asked twice.
#[test]
fn an_error_of_a_datagram_that_has_waited_is_told_later() {
    let mut world = World::new("error", "tbf rate 1mbit burst 1000 limit 100000");
    for mark in 0..4 {
        world.push(1, mark).expect("room");
    }
    world.out.errors.push_back(Errno::CONNREFUSED);
    assert_eq!(world.run(8, 0), [(8, 1)]);
    world.out.errors.extend([Errno::MSGSIZE, Errno::MSGSIZE]);
    assert_eq!(world.run(1_000, 0), [(16, 3)]);
    assert_eq!(world.state.take_error(1), Some(Errno::CONNREFUSED));
    assert_eq!(world.state.take_error(1), None);
    assert!(world.state.sockets.is_empty());
    assert_eq!(world.counts().drops, [(DropReason::MessageSize, 1)]);
}

#[test]
fn a_datagram_whose_socket_is_gone_is_counted() {
    let mut world = World::new("gone", "tbf rate 1mbit burst 1000 limit 100000");
    world.push(1, 0).expect("room");
    world.push(1, 1).expect("room");
    world.out.kept.clear();
    world.out.closed.insert(1);
    assert_eq!(world.run(1_000, 0), []);
    assert_eq!(world.counts().drops, [(DropReason::DeviceError, 1)]);
}

#[test]
fn nothing_is_lost_or_counted_twice() {
    for (index, qdisc) in [
        "netem delay 3ms 2ms loss 10% duplicate 20% limit 20",
        "tbf rate 4mbit burst 2000 limit 5000",
        "fq_codel limit 10 target 1ms interval 2ms",
        "cake bandwidth 4mbit",
        "fq flow_limit 3 maxrate 2mbit",
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = World::new(&format!("all{index}"), qdisc);
        for step in 0..600_u64 {
            let wild = (step * 2_654_435_761) >> 7;
            if wild.is_multiple_of(11) {
                world.out.errors.push_back(Errno::AGAIN);
            }
            let mark = u8::try_from(wild % 256).expect("a byte");
            world.push(wild % 5, mark).expect("no error");
            world.assert_conserved();
            world.now = world.now.after(wild % MS);
        }
        world.run(60_000, 0);
        let counts = world.counts();
        assert_eq!((counts.datagrams, counts.held()), (600, 0), "{qdisc}: {counts:?}");
        assert_eq!(counts.sent, world.out.sent.len() as u64, "{qdisc}");
        assert!(world.out.kept.is_empty() && world.state.sockets.is_empty(), "{qdisc}");
        let processes = Process::read_all(&world.folder).expect("they are there");
        let flows = processes[0].flows.iter();
        let mut sum = Counts::default();
        flows.for_each(|flow| sum.add(&flow.counts));
        assert_eq!(sum, counts, "{qdisc}");
    }
}
