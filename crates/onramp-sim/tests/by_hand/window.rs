//! Tests of the window source, packet by packet: RFC 5681, RFC 6298, RFC 6675, RFC 3042, RFC 3168.

use std::collections::VecDeque;

use onramp_core::Instant;
use onramp_sim::SEC;
use onramp_sim::source::{News, Source, Traffic, Window};

use super::{MS, at};

/// Sends all packets that the window may send at `now`. Returns their number, and the time at which
/// the window would send next.
fn fill(window: &mut Window, now: Instant) -> (usize, Option<Instant>) {
    let mut sent = 0;
    while window.due().is_some_and(|due| due <= now) {
        window.packet(now).expect("it is due");
        sent += 1;
    }
    (sent, window.due())
}

/// Tells the window at `now` that packet `cookie` has arrived without a mark.
fn hear(window: &mut Window, now: Instant, cookie: u64) {
    window.hear(now, &News { cookie, ce: false });
}

fn endless() -> Window {
    Window::new(Traffic::of(1), 5)
}

/// RFC 6928: the first window is ten packets. RFC 6298, 2.1: the first timeout is a second, until a
/// round trip is measured.
#[test]
fn ten_packets_and_a_second() {
    let mut window = Window::new(Traffic::of(1).between(3, u64::MAX), 5);
    assert_eq!(window.back_ns(), Some(5));
    assert_eq!(window.due(), Some(at(3)));
    assert_eq!(fill(&mut window, at(4)), (10, Some(at(4 + SEC))));
}

/// RFC 6298, 2.2 and 2.3: the timeout comes `SRTT + max(4 RTTVAR, 200 ms)` after the last arrival
/// was heard of. As in Linux, it is at least 200 ms longer than a round trip.
#[test]
fn the_timeout_follows_the_trips() {
    let mut window = endless();
    fill(&mut window, at(0));
    // After the first round trip R, SRTT = R and RTTVAR = R/2.
    let heard = at(200 * MS);
    hear(&mut window, heard, 0);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after((200 + 4 * 100) * MS))));
    // After a round trip of 400 ms, RTTVAR = 3/4 100 + 1/4 |200 - 400| = 125 and SRTT = 7/8 200 +
    // 1/8 400 = 225.
    let heard = at(400 * MS);
    hear(&mut window, heard, 1);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after((225 + 4 * 125) * MS))));
    // A packet sent at 200 ms arrives at 500 ms, which is a round trip of 300 ms: RTTVAR = 93.75 +
    // 18.75 = 112.5 and SRTT = 196.875 + 37.5 = 234.375. This arrival shows that the missing
    // packets before it are lost.
    let heard = at(500 * MS);
    hear(&mut window, heard, 10);
    assert_eq!(fill(&mut window, heard).1, Some(heard.after(684_375_000)));
    // If round trips are short and even, the timeout is 200 ms longer than a round trip.
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(MS), 0);
    assert_eq!(fill(&mut window, at(MS)), (2, Some(at(202 * MS))));
}

/// Returns the number of packets sent in each round trip of 100 ms. The function `way` says what
/// happens to each packet: `None` means lost, `Some(true)` means marked.
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

/// RFC 5681, 3.1: after a timeout the window is one packet, and slow start ends at half of the old
/// window. From a window of 10 packets: 1, 2, 4, then 5 and about a fifth more for each arrival.
#[test]
fn after_a_timeout_it_starts_slowly_up_to_half() {
    // The timeout comes after 1 s, at the beginning of the 11th round trip.
    let sent = by_trip(endless(), 16, |number| (number >= 10).then_some(false));
    let mut expected = vec![0; 16];
    expected[0] = 10;
    // The window after each arrival: four packets arrive, 5, 5.2, 5.39, 5.58; five more arrive,
    // 5.76, 5.93, 6.10, 6.26, 6.42; six more arrive, up to 7.30.
    expected[10..].copy_from_slice(&[1, 2, 4, 5, 6, 7]);
    assert_eq!(sent, expected);
    // After two timeouts in a row, the second after 2 s, half of the window is less than two
    // packets, and slow start ends at the minimum of two. The window after each arrival, by round
    // trip: one packet: 2; two packets: 2.5, 2.9; two packets: 3.24, 3.55; three packets: 3.83,
    // 4.09, 4.34; then four packets are sent.
    let sent = by_trip(endless(), 36, |number| (number >= 11).then_some(false));
    let mut expected = vec![0; 36];
    (expected[0], expected[10]) = (10, 1);
    expected[30..].copy_from_slice(&[1, 2, 2, 3, 4, 5]);
    assert_eq!(sent, expected);
}

/// RFC 6298, 5.5 and 5.7: each timeout is twice the one before; in this source, at most six times.
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
    // After an arrival, the timeout follows from the round trip again: it is 3 times the first
    // round trip.
    let heard = now.after(SEC);
    hear(&mut window, heard, 18);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after(3 * SEC))));
}

/// RFC 3168, 6.1.2: a mark halves the window once for all packets that were sent before.
#[test]
fn a_mark_halves_once_a_trip() {
    let mut window = endless();
    fill(&mut window, at(0));
    window.hear(at(1), &News { cookie: 0, ce: true });
    // The first mark halves the window from ten to five. So the window sends only when fewer than
    // five packets are in flight.
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
    // Five packets were sent since the mark. Each of their arrivals adds about a fifth of a packet
    // to the window, and the next arrival lets the window pass 6.
    for cookie in 10..15 {
        hear(&mut window, at(3), cookie);
    }
    // The window is 5 + 0.2 + 0.192 + 0.186 + 0.179 + 0.174 = 5.93.
    assert_eq!(fill(&mut window, at(3)).0, 5);
    hear(&mut window, at(4), 15);
    assert_eq!(fill(&mut window, at(4)).0, 2, "6.10");
    // A mark in the next round trip halves the window again, to 3.05, while six packets are in
    // flight. So the window sends only after more than three of the six have arrived.
    window.hear(at(5), &News { cookie: 16, ce: true });
    assert_eq!(fill(&mut window, at(5)).0, 0);
    for (cookie, sent) in [(17, 0), (18, 0), (19, 1), (20, 1)] {
        hear(&mut window, at(6), cookie);
        assert_eq!(fill(&mut window, at(6)).0, sent, "{cookie}");
    }
}

/// RFC 3042: each of the first two arrivals after a missing packet allows one packet beyond the
/// window. RFC 5681, 3.2: the third such arrival shows the loss and halves the window.
#[test]
fn three_later_arrivals_tell_of_a_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    // In slow start each arrival allows two packets, and here one more because a packet is missing.
    hear(&mut window, at(1), 1);
    assert_eq!(fill(&mut window, at(1)).0, 3);
    hear(&mut window, at(2), 2);
    assert_eq!(fill(&mut window, at(2)).0, 3);
    // Packets 0 and 3 to 15 are in flight, and the window is 12. The arrival of packet 3 shows the
    // loss of packet 0: packets 4 to 15 remain in flight, and the window is halved to 6.
    hear(&mut window, at(3), 3);
    for cookie in 4..10 {
        assert_eq!(fill(&mut window, at(3)).0, 0, "{cookie}");
        hear(&mut window, at(3), cookie);
    }
    assert_eq!(fill(&mut window, at(3)).0, 0);
    hear(&mut window, at(3), 10);
    assert_eq!(fill(&mut window, at(3)).0, 1);
}

/// After a loss of several packets at once, no more packets than half of the window may be in
/// flight.
#[test]
fn what_was_sent_for_arrivals_ends_with_the_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 9);
    // Packets 0 to 6 are lost. Packets 7 and 8 are in flight, and five may be.
    assert_eq!(fill(&mut window, at(1)).0, 3);
    // After a timeout, one packet is sent, whatever has arrived before.
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 1);
    hear(&mut window, at(1), 2);
    let due = fill(&mut window, at(1)).1.expect("a timeout");
    assert_eq!(fill(&mut window, due).0, 1);
}

/// If a missing packet arrives before three later ones, nothing is lost, and the packets allowed
/// beyond the window are taken back.
#[test]
fn what_arrives_late_is_no_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 1);
    hear(&mut window, at(1), 2);
    hear(&mut window, at(1), 0);
    // The window is 13, and 7 packets are in flight.
    assert_eq!(fill(&mut window, at(1)).0, 6);
    // The arrival of an unknown packet, or of a packet that was heard of before, changes nothing.
    let due = window.due();
    hear(&mut window, at(9), 2);
    hear(&mut window, at(9), 1_000);
    assert_eq!(window.due(), due);
}

/// A flow with an end never has more packets in flight than it still needs, and sends nothing when
/// it is done.
#[test]
fn a_flow_ends() {
    let mut window = endless().packets(3);
    assert_eq!(fill(&mut window, at(0)), (3, Some(at(SEC))));
    hear(&mut window, at(1), 0);
    assert_eq!(fill(&mut window, at(1)).0, 0);
    hear(&mut window, at(1), 2);
    // Packet 1 has not arrived. After its timeout another packet is sent, which completes the flow.
    let (sent, due) = fill(&mut window, at(1));
    assert_eq!((sent, due), (0, Some(at(200 * MS + 2))));
    assert_eq!(fill(&mut window, at(200 * MS + 2)).0, 1);
    hear(&mut window, at(200 * MS + 3), 3);
    assert_eq!(window.due(), None);
    // A flow of zero packets sends nothing.
    assert_eq!(endless().packets(0).due(), None);
}

#[test]
fn a_window_ends_with_its_traffic() {
    let window = |until_ns| Window::new(Traffic::of(1).between(5, until_ns), 0);
    assert_eq!((window(5).due(), window(6).due()), (None, Some(at(5))));
    let mut waits = window(SEC + 5);
    assert_eq!(fill(&mut waits, at(5)), (10, None), "the timeout is too late");
}
