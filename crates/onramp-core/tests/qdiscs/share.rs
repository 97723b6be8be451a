//! Tests a rate that several ports share (each gets a part of it), in virtual time.

use onramp_core::{Instant, Rate, Share, SharedRate};

const START: Instant = Instant(1_000_000_000);
const SECOND: u64 = 1_000_000_000;

/// A port that takes part in a shared rate. It always has packets to send during its turns, and
/// none between them.
struct Port {
    share: Share,
    /// The times at which the port starts and stops having packets, alternately, in nanoseconds
    /// from the start.
    turns: Vec<u64>,
    ask_at: Instant,
    sent: u64,
}

impl Port {
    /// Returns whether the port has packets at `at`, and when that changes, in nanoseconds from the
    /// start.
    fn at(&self, at: u64) -> (bool, u64) {
        let passed = self.turns.partition_point(|turn| *turn <= at);
        (passed % 2 == 1, self.turns.get(passed).copied().unwrap_or(u64::MAX))
    }

    /// Runs the port once, as its owner would: sends as many packets as the shared rate allows now,
    /// and sets the time of the next run.
    fn run(&mut self, now: Instant, packet: u32) {
        let (has_packets, changes) = self.at(now.since(START));
        self.share.update_active(now, has_packets);
        self.ask_at = START.after(changes);
        if !has_packets {
            return;
        }
        loop {
            if let Some(then) = self.share.not_before(now) {
                self.ask_at = self.ask_at.min(then);
                return;
            }
            self.share.charge(packet);
            self.sent += u64::from(packet);
        }
    }
}

/// Lets `ports`, which are given by their turns, send for `span` nanoseconds. Each run comes up to
/// `late` nanoseconds late. Returns the bytes sent by each port.
fn play(rate: &SharedRate, ports: Vec<Vec<u64>>, span: u64, packet: u32, late: u64) -> Vec<u64> {
    let mut ports: Vec<Port> = ports
        .into_iter()
        .enumerate()
        .map(|(member, turns)| {
            let ask_at = START.after(turns[0]);
            Port { share: rate.share(member), turns, ask_at, sent: 0 }
        })
        .collect();
    let (end, mut noise) = (START.after(span), 1_u64);
    loop {
        let next = ports.iter_mut().min_by_key(|port| port.ask_at).expect("a port");
        if next.ask_at >= end {
            return ports.iter().map(|port| port.sent).collect();
        }
        noise =
            noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let now = next.ask_at.after((noise >> 33) % (late + 1));
        next.run(now, packet);
    }
}

fn within(sum: u64, rate: Rate, span: u64, percent: f64, what: &str) {
    let ideal = rate.as_bytes_per_second() as f64 * span as f64 / 1e9;
    let error = (sum as f64 / ideal - 1.0) * 100.0;
    assert!(error.abs() <= percent, "{what}: {error:.3} % off");
}

/// If all ports always have packets, they together send at the shared rate, and each port gets its
/// share.
#[test]
fn the_sum_is_the_rate_at_1_to_64_ports() {
    for count in [1, 2, 3, 5, 8, 16, 31, 64] {
        for (rate, packet) in [
            (Rate::bytes_per_second(12_500_000), 1_514),
            (Rate::bytes_per_second(125_000_000), 1_514),
        ] {
            let span = 2 * SECOND;
            let shared = SharedRate::new(rate, count);
            let sent = play(&shared, vec![vec![0]; count], span, packet, 60_000);
            let what = format!("{count} ports at {rate}");
            within(sent.iter().sum(), rate, span, 1.0, &what);
            for port in sent {
                within(port * count as u64, rate, span, 3.0, &what);
            }
        }
    }
}

/// If ports start and stop having packets all the time, but at least one always has some, they
/// together still send at the shared rate.
#[test]
fn the_sum_is_the_rate_while_ports_come_and_go() {
    for count in [2, 3, 8, 16, 64] {
        let (rate, span) = (Rate::bytes_per_second(125_000_000), 4 * SECOND);
        let mut noise = 7_u64 * count as u64;
        let mut random = |below: u64| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (noise >> 33) % below
        };
        let turns = |member: usize| {
            if member == 0 {
                return vec![0];
            }
            let mut at = random(SECOND);
            let mut turns = vec![at];
            while at < span {
                at += SECOND / 10 + random(SECOND);
                turns.push(at);
            }
            turns
        };
        let ports: Vec<_> = (0..count).map(turns).collect();
        let shared = SharedRate::new(rate, count);
        let sent = play(&shared, ports, span, 1_514, 60_000);
        within(sent.iter().sum(), rate, span, 1.0, &format!("{count} ports"));
        assert!(sent.iter().all(|sent| *sent > 0), "{count} ports: each had a part: {sent:?}");
    }
}

/// Each port gets a packet now and then. No port ever holds more than one packet, but together they
/// get more than the shared rate allows. Even so, they together send at the shared rate.
#[test]
fn packets_now_and_then_are_counted() {
    for count in [2, 4, 8, 32] {
        let (rate, packet) = (Rate::bytes_per_second(1_000_000), 1_000);
        let shared = SharedRate::new(rate, count);
        let mut shares: Vec<_> = (0..count).map(|member| shared.share(member)).collect();
        let mut queued = vec![0_u32; count];
        let (mut sent, mut dropped) = (0_u64, 0);
        // Each port gets a packet every two milliseconds, at a different time than the others, and
        // has room for one packet.
        for step in 0..2_000_000_000_u64 / 10_000 {
            let now = START.after(step * 10_000);
            for (member, share) in shares.iter_mut().enumerate() {
                if (step + member as u64 * 200 / count as u64).is_multiple_of(200) {
                    dropped += queued[member];
                    queued[member] = 1;
                }
                if queued[member] == 1 {
                    share.update_active(now, true);
                    if share.not_before(now).is_none() {
                        share.charge(packet);
                        sent += u64::from(packet);
                        queued[member] = 0;
                    }
                }
                share.update_active(now, queued[member] > 0);
            }
        }
        let what = format!("{count} ports, {dropped} dropped");
        let offered =
            Rate::bytes_per_second(rate.as_bytes_per_second() / 2 * count as u64).min(rate);
        within(sent, offered, 2 * SECOND, 2.0, &what);
    }
}

/// When all ports but one have stopped, the remaining one soon gets the whole rate, even if the
/// rate is low.
#[test]
fn who_is_left_takes_over() {
    for rate in [Rate::bytes_per_second(125_000), Rate::bytes_per_second(12_500_000)] {
        let shared = SharedRate::new(rate, 8);
        let mut ports = vec![vec![0, SECOND]; 8];
        ports[3] = vec![0];
        let before = play(&shared, ports.clone(), SECOND, 1_000, 0);
        let after = play(&shared, ports, 11 * SECOND, 1_000, 0);
        within(after[3] - before[3], rate, 10 * SECOND, 1.0, "the one that is left");
    }
}

/// While a port has nothing to send, it does not save up bytes to send later. A port that had
/// something to send, but was woken late, catches up.
#[test]
fn idle_time_is_lost_and_late_time_is_not() {
    let shared = SharedRate::new(Rate::bytes_per_second(1_000_000), 1);
    let mut share = shared.share(0);
    share.update_active(START, true);
    assert_eq!(share.not_before(START), None);
    share.charge(1_000);
    let next = START.after(1_000_000);
    assert_eq!(share.not_before(START), Some(next));
    // The port is woken late, by half the time that a packet takes.
    let late = next.after(500_000);
    assert_eq!(share.not_before(late), None);
    share.charge(1_000);
    assert_eq!(share.not_before(late), Some(next.after(1_000_000)));
    share.update_active(late, false);
    let back = late.after(SECOND);
    share.update_active(back, true);
    assert_eq!(share.not_before(back), None);
    share.charge(1_000);
    assert_eq!(share.not_before(back), Some(back.after(1_000_000)), "one packet, not a thousand");
}

#[test]
fn a_rate_can_change_and_be_none() {
    let shared = SharedRate::new(Rate::bytes_per_second(1_000_000), 1);
    let mut share = shared.share(0);
    share.update_active(START, true);
    share.charge(1_000);
    shared.set(Rate::bytes_per_second(2_000_000));
    assert_eq!(shared.get(), Rate::bytes_per_second(2_000_000));
    assert_eq!(share.not_before(START), Some(START.after(500_000)));
    shared.set(Rate::bytes_per_second(0));
    assert_eq!(share.not_before(START), None);
    for _ in 0..10_000 {
        share.charge(1_000);
        assert_eq!(share.not_before(START), None);
    }
}

#[test]
#[should_panic(expected = "member 2 of 2")]
fn members_are_counted() {
    let _ = SharedRate::new(Rate::bytes_per_second(1), 2).share(2);
}
