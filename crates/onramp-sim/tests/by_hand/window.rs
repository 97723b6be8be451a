//! A window by itself, from packet to packet: RFC 5681, RFC 6298, RFC 6675, RFC 3042, RFC 3168.

use std::collections::VecDeque;

use onramp_core::Instant;
use onramp_sim::SEC;
use onramp_sim::source::{News, Source, Traffic, Window};

use super::{MS, at};

/// Sends what may be sent at `now`: how many packets, and when it would send next.
fn fill(window: &mut Window, now: Instant) -> (usize, Option<Instant>) {
    let mut sent = 0;
    while window.due().is_some_and(|due| due <= now) {
        window.packet(now).expect("it is due");
        sent += 1;
    }
    (sent, window.due())
}

/// It hears at `now` that packet `cookie` has arrived.
fn hear(window: &mut Window, now: Instant, cookie: u64) {
    window.hear(now, &News { cookie, ce: false });
}

fn endless() -> Window {
    Window::new(Traffic::of(1), 5)
}

/// RFC 6928: ten packets at first; RFC 6298, 2.1: a second until something is known.
#[test]
fn ten_packets_and_a_second() {
    let mut window = Window::new(Traffic::of(1).between(3, u64::MAX), 5);
    assert_eq!(window.back_ns(), Some(5));
    assert_eq!(window.due(), Some(at(3)));
    assert_eq!(fill(&mut window, at(4)), (10, Some(at(4 + SEC))));
}

/// RFC 6298, 2.2, 2.3 and, as in Linux, at least 200 ms more than a trip: `SRTT + max(4 RTTVAR,
/// 200 ms)` after what was heard last.
#[test]
fn the_timeout_follows_the_trips() {
    let mut window = endless();
    fill(&mut window, at(0));
    // The first trip R: SRTT = R, RTTVAR = R/2.
    let heard = at(200 * MS);
    hear(&mut window, heard, 0);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after((200 + 4 * 100) * MS))));
    // 400 ms: RTTVAR = 3/4 100 + 1/4 |200 - 400| = 125, SRTT = 7/8 200 + 1/8 400 = 225.
    let heard = at(400 * MS);
    hear(&mut window, heard, 1);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after((225 + 4 * 125) * MS))));
    // Of 300 ms, a packet sent at 200 ms arrives at 500: RTTVAR = 93.75 + 18.75 = 112.5, SRTT =
    // 196.875 + 37.5 = 234.375. The lost ones before it are known to be lost.
    let heard = at(500 * MS);
    hear(&mut window, heard, 10);
    assert_eq!(fill(&mut window, heard).1, Some(heard.after(684_375_000)));
    // Where trips are short and even, 200 ms more than a trip.
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(MS), 0);
    assert_eq!(fill(&mut window, at(MS)), (2, Some(at(202 * MS))));
}

/// Packets sent in each trip of 100 ms, where `way` says what becomes of each: `None`: it is lost;
/// `Some(true)`: it is marked.
fn by_trip(mut window: Window, trips: usize, way: impl Fn(u64) -> Option<bool>) -> Vec<usize> {
    let trip = 100 * MS;
    let (mut counts, mut news, mut number) = (vec![0; trips], VecDeque::new(), 0);
    let mut now = at(0);
    loop {
        let heard = news.front().map(|(at, _): &(Instant, News)| *at);
        let due = window.due().map(|due| due.max(now));
        now = heard.into_iter().chain(due).min().expect("it has no end");
        let Some(count) = usize::try_from(now.since(at(0)) / trip).ok().filter(|at| *at < trips)
        else {
            return counts;
        };
        if heard == Some(now) {
            let (_, told) = news.pop_front().expect("there is one");
            window.hear(now, &told);
        } else {
            window.packet(now).expect("it is due");
            counts[count] += 1;
            if let Some(ce) = way(number) {
                news.push_back((now.after(trip), News { cookie: number, ce }));
            }
            number += 1;
        }
    }
}

/// RFC 5681, 3.1: a timeout leaves one packet, and half of the window as the end of slow start.
/// From 10: 1, 2, 4, then 5 and a fifth more for each packet.
#[test]
fn after_a_timeout_it_starts_slowly_up_to_half() {
    // The timeout is after 1 s, at the beginning of the 11th trip.
    let sent = by_trip(endless(), 16, |number| (number >= 10).then_some(false));
    let mut expected = vec![0; 16];
    expected[0] = 10;
    // Four packets: 5, 5.2, 5.39, 5.58. Five more: 5.76, 5.93, 6.10, 6.26, 6.42. Six more: 7.30.
    expected[10..].copy_from_slice(&[1, 2, 4, 5, 6, 7]);
    assert_eq!(sent, expected);
    // After two timeouts in a row, the second of 2 s, half of the window is two packets at least.
    // One: 2. Two: 2.5, 2.9. Two: 3.24, 3.55. Three: 3.83, 4.09, 4.34. Four.
    let sent = by_trip(endless(), 36, |number| (number >= 11).then_some(false));
    let mut expected = vec![0; 36];
    (expected[0], expected[10]) = (10, 1);
    expected[30..].copy_from_slice(&[1, 2, 2, 3, 4, 5]);
    assert_eq!(sent, expected);
}

/// RFC 6298, 5.5 and 5.7: each doubles; here no more than six times.
#[test]
fn timeouts_double_up_to_64_s() {
    let mut window = endless();
    let mut now = at(0);
    assert_eq!(fill(&mut window, now).0, 10);
    for gap in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
        assert_eq!(window.due(), Some(now.after(gap * SEC)));
        now = now.after(gap * SEC);
        assert_eq!(fill(&mut window, now).0, 1);
    }
    // Something arrives: it is as long as the trip says again, 3 times that of the first trip.
    let heard = now.after(SEC);
    hear(&mut window, heard, 18);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after(3 * SEC))));
}

/// RFC 3168, 6.1.2: a mark halves the window, once for all packets that were sent before.
#[test]
fn a_mark_halves_once_a_trip() {
    let mut window = endless();
    fill(&mut window, at(0));
    window.hear(at(1), &News { cookie: 0, ce: true });
    // Five of ten: the tenth to arrive is the first to be followed by another.
    for cookie in 1..5 {
        window.hear(at(1), &News { cookie, ce: true });
        assert_eq!(fill(&mut window, at(1)).0, 0, "{cookie}");
    }
    window.hear(at(1), &News { cookie: 5, ce: false });
    assert_eq!(fill(&mut window, at(1)).0, 1);
    for cookie in 6..10 {
        hear(&mut window, at(2), cookie);
        assert_eq!(fill(&mut window, at(2)).0, 1, "nothing grows for what was sent before");
    }
    // Five were sent since: each adds a fifth or so, the last one makes room for a sixth.
    for cookie in 10..15 {
        hear(&mut window, at(3), cookie);
    }
    // 5 + 0.2 + 0.192 + 0.186 + 0.179 + 0.174 = 5.93.
    assert_eq!(fill(&mut window, at(3)).0, 5);
    hear(&mut window, at(4), 15);
    assert_eq!(fill(&mut window, at(4)).0, 2, "6.10");
    // A mark of the next trip halves again: 3.05 of 6, so that three arrive before one is sent.
    window.hear(at(5), &News { cookie: 16, ce: true });
    assert_eq!(fill(&mut window, at(5)).0, 0);
    for (cookie, sent) in [(17, 0), (18, 0), (19, 1), (20, 1)] {
        hear(&mut window, at(6), cookie);
        assert_eq!(fill(&mut window, at(6)).0, sent, "{cookie}");
    }
}

/// RFC 3042: for each of two arrivals behind a missing one, a packet more than the window; RFC
/// 5681, 3.2: the third tells that it is lost, and the window is half.
#[test]
fn three_later_arrivals_tell_of_a_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    // Slow start: for each arrival two, and one more.
    hear(&mut window, at(1), 1);
    assert_eq!(fill(&mut window, at(1)).0, 3);
    hear(&mut window, at(2), 2);
    assert_eq!(fill(&mut window, at(2)).0, 3);
    // 0, 3 to 15 are under way, and the window is 12; of these 4 to 15 remain: half is 6.
    hear(&mut window, at(3), 3);
    for cookie in 4..10 {
        assert_eq!(fill(&mut window, at(3)).0, 0, "{cookie}");
        hear(&mut window, at(3), cookie);
    }
    assert_eq!(fill(&mut window, at(3)).0, 0);
    hear(&mut window, at(3), 10);
    assert_eq!(fill(&mut window, at(3)).0, 1);
}

/// Of several that are lost at once, no packet more than the half window may be sent.
#[test]
fn what_was_sent_for_arrivals_ends_with_the_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 9);
    // 0 to 6 are lost; 7 and 8 are under way, and five may be.
    assert_eq!(fill(&mut window, at(1)).0, 3);
    // After a timeout one is sent, whatever had arrived before.
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 1);
    hear(&mut window, at(1), 2);
    let due = fill(&mut window, at(1)).1.expect("a timeout");
    assert_eq!(fill(&mut window, due).0, 1);
}

/// What arrives late, but before three others: nothing is lost, and the packets more are given up.
#[test]
fn what_arrives_late_is_no_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 1);
    hear(&mut window, at(1), 2);
    hear(&mut window, at(1), 0);
    // 13 may be under way, and 7 are.
    assert_eq!(fill(&mut window, at(1)).0, 6);
    // A stranger's, and one that was heard of before, change nothing.
    let due = window.due();
    hear(&mut window, at(9), 2);
    hear(&mut window, at(9), 1_000);
    assert_eq!(window.due(), due);
}

/// A flow with an end has no more under way than is left, and is silent then.
#[test]
fn a_flow_ends() {
    let mut window = endless().packets(3);
    assert_eq!(fill(&mut window, at(0)), (3, Some(at(SEC))));
    hear(&mut window, at(1), 0);
    assert_eq!(fill(&mut window, at(1)).0, 0);
    hear(&mut window, at(1), 2);
    // Without the one between them: its timeout sends another, which is enough.
    let (sent, due) = fill(&mut window, at(1));
    assert_eq!((sent, due), (0, Some(at(200 * MS + 2))));
    assert_eq!(fill(&mut window, at(200 * MS + 2)).0, 1);
    hear(&mut window, at(200 * MS + 3), 3);
    assert_eq!(window.due(), None);
    // Who has nothing to send sends nothing.
    assert_eq!(endless().packets(0).due(), None);
}

#[test]
fn a_window_ends_with_its_traffic() {
    let window = |until_ns| Window::new(Traffic::of(1).between(5, until_ns), 0);
    assert_eq!((window(5).due(), window(6).due()), (None, Some(at(5))));
    let mut waits = window(SEC + 5);
    assert_eq!(fill(&mut waits, at(5)), (10, None), "the timeout is too late");
}
