//! Tests of the source with a congestion window, without a wire: the known behaviour of TCP Reno
//! over a path that holds any number of packets.

use std::collections::VecDeque;

use onramp_core::Instant;
use onramp_sim::source::{News, Source, Traffic, Window};
use onramp_sim::{BEGIN, SEC};

const MS: u64 = 1_000_000;
const TRIP: u64 = 100 * MS;

/// What happens to a packet on its way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Passes,
    Lost,
    Marked,
}

/// Runs the source `window` up to the time `until`. The source hears of each arrival `trip`
/// nanoseconds after it sent the packet. Returns the times at which the source sends packets, in
/// nanoseconds since the beginning, and the number of packets that arrived.
fn play(mut window: Window, trip: u64, until: u64, way: impl Fn(u64) -> Way) -> (Vec<u64>, u64) {
    let (mut now, mut sent, mut arrived) = (BEGIN, Vec::new(), 0);
    let mut news: VecDeque<(Instant, News)> = VecDeque::new();
    loop {
        let heard = news.front().map(|(at, _)| *at);
        let due = window.due().map(|due| due.max(now));
        let Some(next) = heard.into_iter().chain(due).min() else { break };
        now = next;
        if now.since(BEGIN) >= until {
            break;
        }
        if heard == Some(now) {
            let (_, news) = news.pop_front().expect("it was looked at");
            window.hear(now, &news);
        } else {
            let number = sent.len() as u64;
            let pkt = window.packet(now).expect("it is due");
            assert_eq!(pkt.cookie, number);
            sent.push(now.since(BEGIN));
            let way = way(number);
            if way != Way::Lost {
                arrived += 1;
                let told = News { cookie: number, ce: way == Way::Marked };
                news.push_back((now.after(trip), told));
            }
        }
    }
    (sent, arrived)
}

fn endless() -> Window {
    Window::new(Traffic::of(1), TRIP)
}

/// Returns the number of packets sent in each of the first `trips` round trips.
fn by_trip(sent: &[u64], trips: usize) -> Vec<usize> {
    let trip = |number: usize| {
        let (from, to) = (number as u64 * TRIP, (number as u64 + 1) * TRIP);
        sent.iter().filter(|at| (from..to).contains(*at)).count()
    };
    (0..trips).map(trip).collect()
}

#[test]
fn slow_start_doubles() {
    let (sent, _) = play(endless(), TRIP, 5 * TRIP, |_| Way::Passes);
    assert_eq!(by_trip(&sent, 5), [10, 20, 40, 80, 160]);
}

#[test]
fn congestion_avoidance_adds_one_a_trip() {
    // After slow start has ended with one loss, the source sends one packet more in each round trip
    // than in the one before.
    let lost = |number| if number == 100 { Way::Lost } else { Way::Passes };
    let (sent, _) = play(endless(), TRIP, 40 * TRIP, lost);
    let counts = by_trip(&sent, 40);
    let grown = counts[38] - counts[18];
    assert!((19..=21).contains(&grown), "{counts:?}");
}

/// Mathis et al. 1997: if every `k`th packet is lost, the window rises from W/2 to W and falls back
/// again and again, like the teeth of a saw. On average `sqrt(3/2 k)` packets are sent per round
/// trip, which is proportional to 1/sqrt(p) for a loss rate p. The number measured here is a little
/// lower, because fractions of packets are not sent, and because the window does not grow in the
/// round trip after a loss.
#[test]
#[expect(clippy::cast_precision_loss, reason = "counts")]
fn the_rate_goes_with_one_over_the_root_of_loss_and_of_marks() {
    for period in [256, 1024, 4096] {
        for bad in [Way::Lost, Way::Marked] {
            let way = |number| if number % period == period - 1 { bad } else { Way::Passes };
            let (sent, _) = play(endless(), TRIP, 600 * SEC, way);
            let mean = sent.len() as f64 / 6_000.0;
            let law = (1.5 * period as f64).sqrt();
            assert!((mean / law - 1.0).abs() < 0.1, "1 in {period}: {mean} a trip, not {law}");
        }
    }
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "counts")]
fn at_the_same_loss_rates_are_as_one_to_the_trips() {
    let way = |number| if number % 256 == 255 { Way::Lost } else { Way::Passes };
    let count = |trip| play(Window::new(Traffic::of(1), trip), trip, 300 * SEC, way).0.len() as f64;
    let (short, long) = (count(50 * MS), count(200 * MS));
    assert!((short / long - 4.0).abs() < 0.2, "{short} to {long}");
}

#[test]
fn losses_of_one_trip_halve_the_window_once() {
    // Packets 310 to 629 are sent in the sixth round trip. The source learns only afterwards that
    // packet 320 is lost.
    let one = |number| if number == 320 { Way::Lost } else { Way::Passes };
    let many = |number| if (320..400).contains(&number) { Way::Lost } else { Way::Passes };
    let [one, many] =
        [play(endless(), TRIP, 30 * TRIP, one), play(endless(), TRIP, 30 * TRIP, many)]
            .map(|(sent, _)| by_trip(&sent, 30)[25]);
    assert!(one.abs_diff(many) <= one / 50, "{one} and {many}");
    let twice = |number| if number == 320 || number == 1_000 { Way::Lost } else { Way::Passes };
    let twice = by_trip(&play(endless(), TRIP, 30 * TRIP, twice).0, 30)[25];
    assert!(twice < one * 2 / 3, "{twice} after two of different trips, {one} after one");
}

#[test]
fn a_flow_with_an_end_repeats_what_is_lost_and_ends() {
    let flow = || endless().packets(500);
    let (sent, arrived) = play(flow(), TRIP, 60 * SEC, |_| Way::Passes);
    assert_eq!((sent.len(), arrived), (500, 500));
    // The source sends 10, 20, 40, 80 and 160 packets in the first five round trips, and the
    // remaining 190 of its 500 packets at the beginning of the sixth round trip.
    assert_eq!(sent.last(), Some(&(5 * TRIP)));
    let way = |number| if number % 10 == 3 { Way::Lost } else { Way::Passes };
    let (sent, arrived) = play(flow(), TRIP, 600 * SEC, way);
    let lost = (0..sent.len() as u64).filter(|number| number % 10 == 3).count();
    assert_eq!((sent.len(), arrived), (500 + lost, 500));
}

#[test]
fn the_loss_of_the_last_packet_is_found_by_a_timeout() {
    let lost = |number| if number == 29 { Way::Lost } else { Way::Passes };
    let (sent, arrived) = play(endless().packets(30), TRIP, 60 * SEC, lost);
    assert_eq!((sent.len(), arrived), (31, 30));
    // Packet 29, the last one, is lost. The packets before it have all arrived by the end of the
    // second round trip, at 200 ms. The timeout comes a round trip plus 200 ms after that.
    assert_eq!(sent[30] / MS, 200 + 300);
}

#[test]
fn a_loss_in_a_small_window_needs_no_timeout() {
    // Packet 8 is lost. In the first window only one packet follows it, but the last two packets of
    // the flow follow, too. So three packets that were sent later arrive, which shows the loss
    // without a timeout.
    let lost = |number| if number == 8 { Way::Lost } else { Way::Passes };
    let (sent, arrived) = play(endless().packets(12), TRIP, 60 * SEC, lost);
    assert_eq!((sent.len(), arrived), (13, 12));
    assert!(sent[12] <= 2 * TRIP, "{sent:?}");
}

#[test]
fn timeouts_double() {
    let way = |number| if number < 10 { Way::Passes } else { Way::Lost };
    let (sent, _) = play(endless(), TRIP, 60 * SEC, way);
    let gaps: Vec<u64> = sent[30..].windows(2).map(|pair| (pair[1] - pair[0]) / MS).collect();
    assert!(gaps.windows(2).take(4).all(|pair| pair[1] == 2 * pair[0]), "{gaps:?}");
}
