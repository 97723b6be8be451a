//! Tests of the source with a congestion window, packet by packet, after RFC 5681, RFC 6298, RFC
//! 6675, RFC 3042 and RFC 3168.

use std::collections::VecDeque;

use onramp_core::Instant;
use onramp_sim::SEC;
use onramp_sim::source::{News, Source, Traffic, Window};

use super::{MS, at};

/// Sends all packets that the source may send at `now`. Returns the number of these packets, and
/// the time at which the source would send next.
fn fill(window: &mut Window, now: Instant) -> (usize, Option<Instant>) {
    let mut sent = 0;
    while window.due().is_some_and(|due| due <= now) {
        window.packet(now).expect("it is due");
        sent += 1;
    }
    (sent, window.due())
}

/// Tells the source at `now` that the packet with the cookie `cookie` has arrived without a mark.
fn hear(window: &mut Window, now: Instant, cookie: u64) {
    window.hear(now, &News { cookie, ce: false });
}

fn endless() -> Window {
    Window::new(Traffic::of(1), 5)
}

/// RFC 6928: the initial window is ten packets. RFC 6298, 2.1: the timeout is one second until a
/// round trip has been measured.
#[test]
fn ten_packets_and_a_second() {
    let mut window = Window::new(Traffic::of(1).between(3, u64::MAX), 5);
    assert_eq!(window.back_ns(), Some(5));
    assert_eq!(window.due(), Some(at(3)));
    assert_eq!(fill(&mut window, at(4)), (10, Some(at(4 + SEC))));
}

/// RFC 6298, 2.2 and 2.3: the timeout comes `SRTT + max(4 RTTVAR, 200 ms)` after the source last
/// heard of an arrival (SRTT is the smoothed round trip, RTTVAR its mean deviation). As in Linux,
/// the timeout is at least 200 ms longer than the smoothed round trip.
#[test]
fn the_timeout_follows_the_trips() {
    let mut window = endless();
    fill(&mut window, at(0));
    // After the first measured round trip R, SRTT = R and RTTVAR = R/2.
    let heard = at(200 * MS);
    hear(&mut window, heard, 0);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after((200 + 4 * 100) * MS))));
    // After a second round trip of 400 ms, RTTVAR = 3/4 * 100 + 1/4 * |200 - 400| = 125 ms, and
    // SRTT = 7/8 * 200 + 1/8 * 400 = 225 ms.
    let heard = at(400 * MS);
    hear(&mut window, heard, 1);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after((225 + 4 * 125) * MS))));
    // Next, packet 10 arrives, 300 ms after it was sent: RTTVAR = 93.75 + 18.75 = 112.5 ms, and
    // SRTT = 196.875 + 37.5 = 234.375 ms. The arrival also shows that packets 2 to 7 are lost,
    // because packet 10 was sent at least three packets after each of them.
    let heard = at(500 * MS);
    hear(&mut window, heard, 10);
    assert_eq!(fill(&mut window, heard).1, Some(heard.after(684_375_000)));
    // If round trips are short and even, the timeout is 200 ms longer than a round trip.
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(MS), 0);
    assert_eq!(fill(&mut window, at(MS)), (2, Some(at(202 * MS))));
}

/// Returns the number of packets that the source sends in each of the first `trips` round trips of
/// 100 ms. The function `way` says what happens to each packet: `None` means lost, `Some(true)`
/// arrives with a mark, `Some(false)` without.
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

/// RFC 5681, 3.1: after a timeout the window is one packet, and slow start (doubling in each round
/// trip) ends at half of the window before. After a window of 10 packets, the windows are 1, 2, 4
/// and 5 packets, and from then on each arrival adds about a fifth of a packet.
#[test]
fn after_a_timeout_it_starts_slowly_up_to_half() {
    // The first ten packets are lost. The timeout comes after 1 s, at the beginning of the 11th
    // round trip.
    let sent = by_trip(endless(), 16, |number| (number >= 10).then_some(false));
    let mut expected = vec![0; 16];
    expected[0] = 10;
    // The window after each arrival: when four packets arrive, 5, 5.2, 5.39, 5.58; when five more
    // arrive, 5.76, 5.93, 6.10, 6.26, 6.42; when six more arrive, up to 7.30.
    expected[10..].copy_from_slice(&[1, 2, 4, 5, 6, 7]);
    assert_eq!(sent, expected);
    // After two timeouts in a row, the second of them after 2 s, half of the window is less than
    // two packets, so slow start ends at its minimum of two. The window after each arrival, by
    // round trip: one packet arrives: 2; two arrive: 2.5, 2.9; two arrive: 3.24, 3.55; three
    // arrive: 3.83, 4.09, 4.34; then four packets are sent.
    let sent = by_trip(endless(), 36, |number| (number >= 11).then_some(false));
    let mut expected = vec![0; 36];
    (expected[0], expected[10]) = (10, 1);
    expected[30..].copy_from_slice(&[1, 2, 2, 3, 4, 5]);
    assert_eq!(sent, expected);
}

/// RFC 6298, 5.5 and 5.7: each timeout in a row is twice as long as the one before. This source
/// doubles the timeout at most six times.
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
    // After an arrival, the source computes the timeout from round trips again. The only round trip
    // R that it has measured is 1 s, so the timeout is SRTT + 4 RTTVAR = R + 4 R/2 = 3 s.
    let heard = now.after(SEC);
    hear(&mut window, heard, 18);
    assert_eq!(fill(&mut window, heard), (2, Some(heard.after(3 * SEC))));
}

/// RFC 3168, 6.1.2: marks halve the window only once for all packets that were sent before the
/// window was halved.
#[test]
fn a_mark_halves_once_a_trip() {
    let mut window = endless();
    fill(&mut window, at(0));
    window.hear(at(1), &News { cookie: 0, ce: true });
    // The first mark halves the window from ten to five. From then on, the source sends only when
    // fewer than five packets are in flight.
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
    // Five packets were sent after the halving. The arrival of each adds about a fifth of a packet
    // to the window; one more arrival will make the window larger than 6.
    for cookie in 10..15 {
        hear(&mut window, at(3), cookie);
    }
    // Each arrival adds one packet divided by the window, so the window is now
    // 5 + 0.2 + 0.192 + 0.186 + 0.179 + 0.174 = 5.93 packets.
    assert_eq!(fill(&mut window, at(3)).0, 5);
    hear(&mut window, at(4), 15);
    assert_eq!(fill(&mut window, at(4)).0, 2, "6.10");
    // A mark in the next round trip halves the window again, to 3.05, while six packets are in
    // flight. The source does not send before more than three of the six have arrived.
    window.hear(at(5), &News { cookie: 16, ce: true });
    assert_eq!(fill(&mut window, at(5)).0, 0);
    for (cookie, sent) in [(17, 0), (18, 0), (19, 1), (20, 1)] {
        hear(&mut window, at(6), cookie);
        assert_eq!(fill(&mut window, at(6)).0, sent, "{cookie}");
    }
}

/// RFC 3042: if a packet is missing, each of the first two arrivals of later packets lets the
/// source send one packet more than the window allows. RFC 5681, 3.2: the third such arrival shows
/// that the missing packet is lost, and the window is halved.
#[test]
fn three_later_arrivals_tell_of_a_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    // In slow start, each arrival lets the source send two packets. Here it may send one packet
    // more, because packet 0 is missing.
    hear(&mut window, at(1), 1);
    assert_eq!(fill(&mut window, at(1)).0, 3);
    hear(&mut window, at(2), 2);
    assert_eq!(fill(&mut window, at(2)).0, 3);
    // Packets 0 and 3 to 15 are in flight, and the window is 12. The arrival of packet 3 shows that
    // packet 0 is lost. So packets 4 to 15 are in flight, and the window is halved to 6.
    hear(&mut window, at(3), 3);
    for cookie in 4..10 {
        assert_eq!(fill(&mut window, at(3)).0, 0, "{cookie}");
        hear(&mut window, at(3), cookie);
    }
    assert_eq!(fill(&mut window, at(3)).0, 0);
    hear(&mut window, at(3), 10);
    assert_eq!(fill(&mut window, at(3)).0, 1);
}

/// When several packets are lost at once, the source may have no more packets in flight than half
/// of the window before.
#[test]
fn what_was_sent_for_arrivals_ends_with_the_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 9);
    // Packets 0 to 6 are lost, and packets 7 and 8 are in flight. The window is five, so three more
    // packets may be sent.
    assert_eq!(fill(&mut window, at(1)).0, 3);
    // After a timeout the source sends one packet, even if packets that were sent later than the
    // missing one have arrived.
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 1);
    hear(&mut window, at(1), 2);
    let due = fill(&mut window, at(1)).1.expect("a timeout");
    assert_eq!(fill(&mut window, due).0, 1);
}

/// If a packet arrives late, but before three packets that were sent after it, it does not count as
/// lost. The source may then no longer send the extra packets that the window does not allow.
#[test]
fn what_arrives_late_is_no_loss() {
    let mut window = endless();
    fill(&mut window, at(0));
    hear(&mut window, at(1), 1);
    hear(&mut window, at(1), 2);
    hear(&mut window, at(1), 0);
    // The window is 13 and 7 packets are in flight, so 6 packets may be sent.
    assert_eq!(fill(&mut window, at(1)).0, 6);
    // News of a packet that is not in flight, because it was never sent or has arrived before,
    // change nothing.
    let due = window.due();
    hear(&mut window, at(9), 2);
    hear(&mut window, at(9), 1_000);
    assert_eq!(window.due(), due);
}

/// A flow with a limited number of packets never has more packets in flight than must still arrive,
/// and sends nothing after they have arrived.
#[test]
fn a_flow_ends() {
    let mut window = endless().packets(3);
    assert_eq!(fill(&mut window, at(0)), (3, Some(at(SEC))));
    hear(&mut window, at(1), 0);
    assert_eq!(fill(&mut window, at(1)).0, 0);
    hear(&mut window, at(1), 2);
    // Packet 1 has not arrived. After the timeout another packet is sent in its place, and its
    // arrival completes the flow.
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
