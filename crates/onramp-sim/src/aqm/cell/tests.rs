//! Tests of the measurements of a run, computed from fates of packets that are written by hand.

use onramp_core::qdisc::Backlog;
use onramp_queue::Packet;

use super::*;
use crate::source::Traffic;

const MS: u64 = 1_000_000;

/// A plan with a link of a million bytes per second: two seconds of warm-up, and then three seconds
/// that are measured.
fn plan() -> Plan {
    Plan {
        rate: Rate::bytes_per_second(1_000_000),
        seconds: 3.try_into().expect("not zero"),
        seed: 1,
    }
}

fn member(role: Role, from_ms: u64) -> Member {
    let traffic = Traffic::of(1).between(from_ms * MS, u64::MAX);
    Member { role, trip_ns: 100 * MS, traffic }
}

fn cell(members: &[Member]) -> Measurement {
    let subject = Subject::new("codel").expect("a kind");
    Measurement::new(&plan(), Scenario::Ecn, &subject, members)
}

/// Returns the fate of a packet that the flow number `source` sent: the packet left at `at_ns`,
/// after a sojourn of `sojourn_ns`.
fn sent(source: usize, len: u32, at_ns: u64, sojourn_ns: u64) -> Fate {
    let at = BEGIN.after(at_ns);
    Fate {
        packet: Packet::new(len),
        source,
        came: Instant(at.0 - sojourn_ns),
        met: Backlog::default(),
        at,
        arrives: Some(at.after(100 * MS)),
        ecn: 0,
        marked: false,
        copy: false,
    }
}

fn died(source: usize, at_ns: u64) -> Fate {
    Fate { arrives: None, ..sent(source, 1, at_ns, 0) }
}

fn marked(fate: Fate) -> Fate {
    Fate { marked: true, ..fate }
}

const BULK: usize = 0;
const SECOND_BULK: usize = 1;
const WEB: usize = 2;
const EARLY_WEB: usize = 3;
const FLOOD: usize = 4;
const VIDEO: usize = 5;
const VOICE: usize = 6;
const PROMPT_WEB: usize = 7;

/// Returns measurements that contain flows of every role.
fn busy() -> Measurement {
    use Role::{Bulk, Flood, Video, Voice, Web};
    // The flow `PROMPT_WEB` begins at the first instant of the measured time, `EARLY_WEB` just
    // before that instant.
    let roles = [
        (Bulk, 0),
        (Bulk, 0),
        (Web, 2500),
        (Web, 1999),
        (Flood, 0),
        (Video, 0),
        (Voice, 0),
        (Web, 2000),
    ];
    let mut cell = cell(&roles.map(|(role, from_ms)| member(role, from_ms)));
    let mut fates = vec![
        // Just before the measured time begins, one packet leaves and one is dropped. The packet
        // after these leaves at the first instant of the measured time.
        sent(BULK, 700, 2000 * MS - 1, 10),
        died(BULK, 2000 * MS - 1),
        sent(BULK, 1500, 2000 * MS, 30),
        marked(died(BULK, 3000 * MS)),
        marked(sent(SECOND_BULK, 500, 3000 * MS, 50)),
        sent(FLOOD, 4000, 3000 * MS, 70),
        sent(VIDEO, 100, 3000 * MS, 80),
        died(VIDEO, 3000 * MS),
        sent(VOICE, 200, 3000 * MS, 9),
        // No flow has this number, so the measurement ignores the packet.
        sent(99, 1, 3000 * MS, 90),
        // The first of these packets leaves at the last instant of the measured time, the second
        // after the measured time has ended.
        sent(SECOND_BULK, 1, 5000 * MS - 1, 60),
        sent(SECOND_BULK, 1, 6000 * MS, 60),
    ];
    for number in 0..31 {
        let at_ns = (2600 + number) * MS;
        fates.extend([WEB, EARLY_WEB, PROMPT_WEB].map(|web| sent(web, 10, at_ns, 40)));
    }
    fates.iter().for_each(|fate| cell.note(fate));
    cell
}

#[test]
fn flows_have_their_counts() {
    let cell = busy();
    let counts = |flow: &Flow| (flow.packets, flow.sent_bytes, flow.dropped, flow.marked);
    let counts: Vec<_> = cell.flows().iter().map(counts).collect();
    let web = (31, 310, 0, 0);
    assert_eq!(
        counts,
        [
            (2, 1500, 1, 1),
            (3, 502, 0, 1),
            web,
            web,
            (1, 4000, 0, 0),
            (2, 100, 1, 0),
            (1, 200, 0, 0),
            web
        ]
    );
    assert!(cell.flows().iter().all(|flow| flow.trip_ns == 100 * MS));
    assert_eq!((cell.flows()[VIDEO].role, cell.scenario), (Role::Video, Scenario::Ecn));
    assert_eq!((cell.subject.name(), cell.line.as_str()), ("codel", "codel ecn"));
}

#[test]
fn delays_are_those_of_flows_that_answer() {
    let cell = busy();
    // The measured delays of flows that react to congestion are 30, 50, 60 and 60 nanoseconds, and
    // 93 times 40 nanoseconds.
    let delays = cell.delays();
    assert_eq!((delays.count(), delays.least(), delays.most()), (97, Some(30), Some(60)));
    assert_eq!(delays.mean(), Some((30.0 + 50.0 + 120.0 + 93.0 * 40.0) / 97.0));
    let voice = cell.voice_delays().expect("there is a call");
    assert_eq!((voice.count(), voice.least()), (1, Some(9)));
    // Two of the short flows began in the measured time. Their 30th and last packets left 129 ms
    // and 629 ms after the flow's beginning, and took 100 ms to arrive.
    let done = cell.completions().expect("two are done");
    assert_eq!((done.count(), done.least(), done.most()), (2, Some(229 * MS), Some(729 * MS)));
}

/// The 120 parts of a run's delays cover the whole time of five seconds: the warm-up and the
/// measured time.
#[test]
fn parts_begin_with_the_warm_up() {
    let cell = busy();
    assert_eq!(cell.part_seconds(), 0.041_666_667);
    let parts: Vec<_> = cell.parts().collect();
    assert_eq!(parts.len(), 120);
    let known: Vec<_> =
        parts.iter().enumerate().filter_map(|(at, mean)| Some((at, (*mean)?))).collect();
    // The instant 1 ns before 2,000 ms lies in part 47 (counted from 0). The packets of the short
    // flows left between 2,600 ms and 2,630 ms: those before 2,625 ms are in part 62, the later
    // ones in part 63.
    assert_eq!(known, [(47, 20.0), (62, 40.0), (63, 40.0), (71, 50.0), (119, 60.0)]);
    // Packets at the instants 2,000 ms and 2,625 ms lie in parts 47 and 62, too: a part is a little
    // longer than the 120th of the time.
    let bytes = cell.goodput_parts().map(|rate| (rate * cell.part_seconds() / 8.0).round());
    let sent: Vec<_> = bytes.enumerate().filter(|(_, bytes)| *bytes > 0.0).collect();
    assert_eq!(sent, [(47, 2200.0), (62, 780.0), (63, 150.0), (71, 500.0), (119, 1.0)]);
    assert_eq!(cell.goodput_parts().count(), 120);
}

#[track_caller]
fn near(figure: f64, expected: f64) {
    assert!((figure / expected - 1.0).abs() < 1e-12, "{figure}, not {expected}");
}

#[test]
fn shares_are_of_the_time_that_counts() {
    let cell = busy();
    near(cell.bits_per_second(&cell.flows()[BULK]), 1500.0 * 8.0 / 3.0);
    let answering = 1500.0 + 502.0 + 3.0 * 310.0;
    near(cell.goodput(), answering * 8.0 / 3.0);
    near(cell.utilisation(), (answering + 4000.0 + 100.0 + 200.0) / 3e6);
    near(cell.dropped_share(), 1.0 / 98.0);
    near(cell.marked_share(), 2.0 / 98.0);
    assert_eq!(cell.video_dropped_share(), Some(0.5));
    let (one, other) = (1500.0_f64, 502.0_f64);
    let jain = (one + other).powi(2) / (2.0 * (one * one + other * other));
    near(cell.jain().expect("two of them"), jain);
    // There are eight flows, two of them bulk flows, so the bulk flows' fair share is two eighths
    // of the link's rate.
    near(cell.share_of_fair().expect("one never answers"), answering / 3e6 * 8.0 / 2.0);
}

/// A figure for which nothing was measured is `None`, such as the delays of a voice call without a
/// voice call. The shares of dropped and of marked packets are zero if no packet was sent.
#[test]
fn what_is_not_there_has_no_figure() {
    let mut cell = cell(&[member(Role::Bulk, 0), member(Role::Web, 0)]);
    let none = |cell: &Measurement| {
        cell.voice_delays().is_none()
            && cell.completions().is_none()
            && cell.jain().is_none()
            && cell.share_of_fair().is_none()
            && cell.video_dropped_share().is_none()
    };
    assert!(none(&cell) && cell.delays().count() == 0);
    assert_eq!((cell.dropped_share(), cell.marked_share()), (0.0, 0.0));
    assert_eq!((cell.goodput(), cell.utilisation()), (0.0, 0.0));
    cell.note(&sent(0, 100, 3000 * MS, 1));
    assert!(none(&cell), "one flow is not fair by itself");
    assert!(cell.goodput() > 0.0);
}
