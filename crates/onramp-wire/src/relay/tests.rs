//! Connections through real qdiscs in virtual time, without sockets.

use onramp_core::{Instant, Tree};

use super::half::{Half, WINDOW};
use super::message::{self, Content, Segment};
use super::stream::{End, Stream};
use crate::lane::Lane;
use crate::series;

const MS: u64 = 1_000_000;
const MSS: u32 = 1_448;

/// The byte at a place of what an end sends.
fn byte(place: u64, end: End) -> u8 {
    let mixed = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 + end as u64);
    mixed.to_be_bytes()[0]
}

/// What an end has still to send and has received.
#[derive(Clone, Copy, Debug)]
struct App {
    left: u64,
    sent: u64,
    received: u64,
    /// Whether the end ends its direction when all is sent.
    ends: bool,
    /// Whether the end reads.
    reads: bool,
    /// When the first byte came.
    first: Option<Instant>,
}

type Loses = dyn FnMut(usize, &Segment, u64) -> bool;

/// Connections that share a line in each direction.
struct World {
    now: Instant,
    lanes: [Lane; 2],
    streams: Vec<Stream>,
    apps: Vec<[App; 2]>,
    /// Decides by a segment, its direction and its number whether it is lost in front of the line.
    loses: Box<Loses>,
    segments: u64,
    /// The most bytes of a direction that were held.
    most_held: usize,
}

fn lane(stages: &[&str], seed: u64) -> Lane {
    let setup = series(stages).expect("qdiscs");
    Lane::new(Tree::of(&setup, MSS + 66, seed).expect("a root"))
}

impl World {
    /// Makes a world with this number of connections, each of which sends so many bytes up and
    /// down.
    fn new(stages: &[&str], connections: usize, bytes: [u64; 2]) -> Self {
        let app = |left| App { left, sent: 0, received: 0, ends: true, reads: true, first: None };
        let now = Instant(1_000 * MS);
        Self {
            now,
            lanes: [lane(stages, 1), lane(stages, 2)],
            streams: (0..connections).map(|_| Stream::new(MSS, now)).collect(),
            apps: vec![bytes.map(app); connections],
            loses: Box::new(|_, _, _| false),
            segments: 0,
            most_held: 0,
        }
    }

    /// Lets programs at the ends of a connection read and write. Returns whether they did.
    fn act(&mut self, index: usize) -> bool {
        let before = self.apps[index].map(|app| app.sent + app.received);
        let stream = &mut self.streams[index];
        if stream.wants_target() {
            stream.connected(self.now);
        }
        for end in End::BOTH {
            let app = &mut self.apps[index][end as usize];
            let room = (stream.room(end) as u64).min(app.left);
            let bytes: Vec<_> = (app.sent..app.sent + room).map(|at| byte(at, end)).collect();
            app.sent += room;
            app.left -= room;
            let half = stream.half_mut(end);
            half.push(&bytes);
            if app.ends && app.left == 0 {
                half.finish();
            }
            self.most_held = self.most_held.max(half.held());
            let receiver = &mut self.apps[index][end.other() as usize];
            while receiver.reads && !half.readable().is_empty() {
                let bytes = half.readable();
                for (place, found) in (receiver.received..).zip(bytes) {
                    assert_eq!(*found, byte(place, end), "byte {place}");
                }
                let count = bytes.len();
                receiver.received += count as u64;
                receiver.first.get_or_insert(self.now);
                half.consume(count);
            }
        }
        before != self.apps[index].map(|app| app.sent + app.received)
    }

    /// Takes what leaves the lines. Returns whether anything did.
    fn deliver(&mut self) -> bool {
        let mut some = false;
        for way in 0..2 {
            self.lanes[way].wake(self.now);
            while let Some((_, packet)) = self.lanes[way].take(self.now).expect("no trace") {
                let Some((id, Content::Segment(segment))) = message::read(packet.payload()) else {
                    continue;
                };
                let end = if way == 0 { End::Far } else { End::Near };
                let stream = &mut self.streams[usize::try_from(id).expect("it is small")];
                stream.arrive(end, segment, packet.ecn == 3, self.now);
                some = true;
            }
            self.lanes[way].line.forget_drops();
        }
        some
    }

    /// Runs until all connections are over, or nothing is left to do, or until this time.
    fn run(&mut self, until: Instant) {
        loop {
            self.deliver();
            let (mut has_entered, mut acted) = ([false; 2], false);
            for index in 0..self.streams.len() {
                self.act(index);
                let mut out = Vec::new();
                self.streams[index].run(self.now, |end, segment| out.push((end, segment)));
                acted |= self.act(index);
                for (end, segment) in out {
                    self.segments += 1;
                    if !(self.loses)(end as usize, &segment, self.segments) {
                        let packet = segment.packet(index as u64, 20);
                        self.lanes[end as usize].line.enqueue(packet, self.now);
                        has_entered[end as usize] = true;
                    }
                }
            }
            for way in (0..2).filter(|way| has_entered[*way]) {
                self.lanes[way].look(self.now);
            }
            if self.deliver() || acted {
                continue;
            }
            let streams = self.streams.iter().filter(|stream| !stream.is_over());
            let due = streams.filter_map(Stream::due);
            let lanes = self.lanes.iter_mut().filter_map(Lane::next);
            match due.chain(lanes).min().filter(|at| *at <= until) {
                Some(at) if !self.streams.iter().all(Stream::is_over) => {
                    self.now = self.now.max(at);
                }
                _ => return,
            }
        }
    }

    fn after(&self, ms: u64) -> Instant {
        self.now.after(ms * MS)
    }

    fn received(&self) -> Vec<[u64; 2]> {
        self.apps.iter().map(|both| both.map(|app| app.received)).collect()
    }

    /// Runs an hour at most, and checks that all has arrived at both ends.
    #[track_caller]
    fn assert_whole(&mut self, bytes: [u64; 2], about: &str) {
        self.run(self.after(3_600_000));
        assert_eq!(self.received(), vec![[bytes[1], bytes[0]]; self.streams.len()], "{about}");
        assert!(self.streams.iter().all(Stream::is_over), "{about}");
        assert!(self.streams.iter().all(|stream| stream.broken().is_none()), "{about}");
        assert!(self.most_held <= WINDOW, "{about}");
    }

    /// Runs for some seconds, and returns the bytes per second that came to the target of each
    /// connection.
    #[expect(clippy::cast_precision_loss, reason = "rates for comparison")]
    fn rates(&mut self, seconds: u64) -> Vec<f64> {
        let before = self.received();
        self.run(self.after(seconds * 1_000));
        let pairs = self.received().into_iter().zip(before);
        pairs.map(|(now, then)| (now[1] - then[1]) as f64 / seconds as f64).collect()
    }
}

#[test]
fn all_bytes_arrive_whatever_the_line_does() {
    let lines: [&[&str]; 9] = [
        &["pfifo limit 1000"],
        &["pfifo limit 3"],
        &["netem delay 5ms loss 2%"],
        &["netem delay 5ms loss 30%"],
        &["netem delay 20ms 15ms"],
        &["netem delay 10ms reorder 40% 50%"],
        &["netem delay 5ms duplicate 30%"],
        &["netem delay 5ms corrupt 5%"],
        &["tbf rate 2mbit burst 1514 limit 6000", "netem delay 30ms 20ms loss 3% duplicate 5%"],
    ];
    for line in lines {
        for bytes in [[0, 0], [1, 0], [200_000, 1], [300_001, 200_000]] {
            let mut world = World::new(line, 2, bytes);
            world.assert_whole(bytes, &format!("{line:?} {bytes:?}"));
        }
    }
}

/// Whichever segments are lost, alone, in pairs, or many in a row, the connection goes on.
#[test]
fn no_single_loss_stops_a_connection() {
    let bytes = [30_000, 20_000];
    for first in 1..130 {
        for count in [1, 2, 6] {
            let mut world = World::new(&["netem delay 10ms"], 1, bytes);
            world.loses = Box::new(move |_, _, number| (first..first + count).contains(&number));
            world.assert_whole(bytes, &format!("{count} segments from {first}"));
        }
    }
    for way in 0..2 {
        let mut world = World::new(&["netem delay 10ms"], 1, bytes);
        world.loses = Box::new(move |at, _, number| at == way && number % 3 != 0);
        world.assert_whole(bytes, &format!("two of three in direction {way}"));
    }
}

#[test]
fn a_connection_costs_a_round_trip_before_the_first_byte() {
    let mut world = World::new(&["netem delay 20ms"], 1, [1, 1]);
    let begin = world.now;
    world.run(world.after(1_000));
    let first = |end: End| world.apps[0][end as usize].first.expect("a byte").since(begin) / MS;
    // The target's byte leaves when the answer of the client to its `SynAck` has come.
    assert_eq!((first(End::Far), first(End::Near)), (60, 80));
}

/// 10 Mbit/s with 1,448 of 1,514 bytes of payload, less what the begin costs.
#[test]
fn one_connection_fills_the_line() {
    let mut world = World::new(&["netem delay 20ms rate 10mbit"], 1, [u64::MAX >> 1, 0]);
    let [rate] = world.rates(20)[..] else { panic!("one connection") };
    assert!(rate > 0.9 * 10e6 / 8.0 * 1_448.0 / 1_514.0, "{rate}");
    // A buffer of 32,000 bytes, a little more than half of what is on its way.
    let line = ["tbf rate 10mbit burst 5000 limit 32000", "netem delay 20ms"];
    let mut world = World::new(&line, 1, [u64::MAX >> 1, 0]);
    let [rate] = world.rates(60)[..] else { panic!("one connection") };
    assert!(rate > 0.8 * 10e6 / 8.0 * 1_448.0 / 1_514.0, "{rate}");
}

/// The rate of Reno (M. Mathis et al., 1997): MSS / RTT * sqrt(3/2 / p), with an answer to every
/// second segment sqrt(3/4 / p) at the least. RFC 5681's growth by bytes makes no difference.
#[test]
fn under_loss_or_marks_the_rate_is_that_of_reno() {
    for (stage, is_marked) in
        [("netem delay 20ms loss 1%", false), ("netem delay 20ms loss 1% ecn", true)]
    {
        let mut world = World::new(&[stage], 1, [u64::MAX >> 1, 0]);
        world.lanes[1] = lane(&["netem delay 20ms"], 2);
        let [rate] = world.rates(100)[..] else { panic!("one connection") };
        let reno = f64::from(MSS) / 0.04 * (1.5_f64 / 0.01).sqrt();
        assert!((0.6..1.4).contains(&(rate / reno)), "{stage}: {rate} of {reno}");
        assert_eq!(world.streams[0].resent() == 0, is_marked, "{stage}");
    }
}

#[test]
fn two_connections_share_the_line() {
    let line = ["tbf rate 10mbit burst 5000 limit 100000", "netem delay 20ms"];
    let mut world = World::new(&line, 2, [u64::MAX >> 1, 0]);
    world.rates(10);
    let [one, other] = world.rates(60)[..] else { panic!("two connections") };
    assert!(one + other > 0.9 * 10e6 / 8.0 * 1_448.0 / 1_514.0, "{one} {other}");
    assert!((0.6..1.67).contains(&(one / other)), "{one} {other}");
}

/// Packets that overtake each other are not taken for losses for long.
#[test]
fn reordering_does_not_keep_the_window_small() {
    let line = ["netem delay 20ms 5ms", "tbf rate 10mbit burst 5000 limit 400000"];
    let mut world = World::new(&line, 1, [u64::MAX >> 1, 0]);
    let [rate] = world.rates(30)[..] else { panic!("one connection") };
    assert!(rate > 0.7 * 10e6 / 8.0, "{rate}");
}

/// An end that does not read stops the other end, and what is held is bounded.
#[test]
fn an_end_that_does_not_read_holds_the_other_back() {
    let bytes = [3 * WINDOW as u64, 1_000];
    let mut world = World::new(&["netem delay 1ms"], 1, bytes);
    world.apps[0][End::Far as usize].reads = false;
    world.run(world.after(60_000));
    let near = world.apps[0][End::Near as usize];
    assert_eq!((near.sent, world.most_held), (WINDOW as u64, WINDOW));
    assert_eq!(near.received, 1_000, "the other direction goes on");
    world.apps[0][End::Far as usize].reads = true;
    world.assert_whole(bytes, "it goes on");
}

/// A direction that has ended does not end the other.
#[test]
fn half_a_connection_may_be_closed() {
    let mut world = World::new(&["netem delay 10ms loss 5%"], 1, [10, 1_000_000]);
    world.apps[0][End::Far as usize].ends = false;
    world.run(world.after(60_000));
    assert_eq!(world.received(), [[1_000_000, 10]]);
    assert!(world.streams[0].half(End::Near).has_ended());
    assert!(!world.streams[0].is_over());
    let far = &mut world.apps[0][End::Far as usize];
    (far.left, far.ends) = (5, true);
    world.assert_whole([10, 1_000_005], "the end");
}

/// A reset takes the time of the line, is sent again if it is lost, and ends the connection even if
/// the line carries nothing.
#[test]
fn a_reset_reaches_the_other_end() {
    for (lost, earliest_ms, latest_ms) in [(0, 20, 21), (2, 3_020, 3_021), (99, 100_000, 200_000)] {
        for end in End::BOTH {
            let mut world = World::new(&["netem delay 20ms"], 1, [50_000, 50_000]);
            world.run(world.after(70));
            assert!(!world.streams[0].is_over());
            let (begin, mut count) = (world.now, 0);
            world.loses = Box::new(move |_, segment, _| {
                count += u64::from(*segment == Segment::Reset);
                *segment == Segment::Reset && count <= lost
            });
            world.streams[0].fail(end, begin);
            world.run(world.after(1_000_000));
            assert!(world.streams[0].is_over() && world.streams[0].broken() == Some(end));
            let took = world.now.since(begin) / MS;
            assert!((earliest_ms..=latest_ms).contains(&took), "{lost} {end:?}: {took} ms");
        }
    }
}

/// A target that refuses, and a line that carries nothing.
#[test]
fn a_connection_that_cannot_begin_ends() {
    let mut world = World::new(&["netem delay 20ms"], 1, [1, 1]);
    let mut stream = Stream::new(MSS, world.now);
    stream.arrive(End::Far, Segment::Syn, false, world.now);
    assert!(stream.wants_target());
    stream.fail(End::Far, world.now);
    assert!(!stream.wants_target());
    world.streams = vec![stream];
    world.run(world.after(1_000));
    assert!(world.streams[0].is_over() && world.received() == [[0, 0]]);
    let mut world = World::new(&["netem loss 100%"], 1, [1, 1]);
    world.run(world.after(1_000_000));
    assert!(world.streams[0].is_over() && world.streams[0].broken().is_some());
    // A line that goes down in the middle.
    let mut world = World::new(&["netem delay 20ms"], 1, [u64::MAX >> 1, 0]);
    world.run(world.after(1_000));
    world.loses = Box::new(|_, _, _| true);
    world.run(world.after(7_200_000));
    assert!(world.streams[0].is_over() && world.streams[0].broken() == Some(End::Near));
}

/// A segment that counted as lost and was only late gives the window back.
#[test]
fn a_loss_that_was_none_is_taken_back() {
    let (now, mut half) = (Instant(MS), Half::new(1_000));
    half.push(&[0; 40_000]);
    let mut sent = Vec::new();
    half.send(now, |data| sent.push(data));
    assert_eq!(sent.len(), 10);
    let mut arrives = |index: usize| {
        half.arrive(sent[index], false, now);
        let answer = half.answer(now).expect("at once, because of the gap");
        half.acknowledged(&answer, now);
        let mut count = 0;
        half.send(now, |_| count += 1);
        count
    };
    // Each that arrives lets two others out, until the first counts as lost and the window halves.
    assert_eq!([1, 2, 3].map(&mut arrives), [2, 2, 0]);
    assert!(arrives(0) >= 2);
}

/// A fair queue serves connections and clients in turns: each is a flow of its own.
#[test]
fn each_connection_and_client_is_a_flow() {
    let (now, mut lane) = (Instant(MS), lane(&["fq_codel"], 1));
    let data = Segment::Data(message::Data { seq: 0, len: MSS, tx: 1 });
    let packets = [1, 1, 1, 2, 2].map(|id| data.packet(id, 20));
    let datagram = |id| message::datagram(id, &[0; 1_472], 20).expect("it fits");
    for packet in packets.into_iter().chain([3, 3].map(datagram)) {
        lane.line.enqueue(packet, now);
    }
    lane.look(now);
    let mut order = Vec::new();
    while let Some((_, packet)) = lane.take(now).expect("no trace") {
        order.push(message::read(packet.payload()).expect("it is whole").0);
    }
    assert_eq!(order, [1, 2, 3, 1, 2, 3, 1]);
}
