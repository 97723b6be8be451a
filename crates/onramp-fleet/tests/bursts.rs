//! Hosts with real qdiscs in virtual time: what all of them together send beyond the limit's rate
//! is never more than the limit's burst and a packet for each host.

use std::time::Duration;

use onramp_core::qdisc::Dequeue;
use onramp_core::{Facts, Handle, Instant, Rate, Setup, Tree};
use onramp_fleet::Definition;
use onramp_fleet::world::{Engine, World};
use onramp_queue::{DropReason, Packet};

/// The limit, in bytes per second.
const RATE: u64 = 1_000_000;
const BURST: u32 = 60_000;
/// The longest packet, in bytes.
const PACKET: u32 = 1_514;
/// What each qdisc may send at once if the limit has no burst, in bytes.
const OWN: u64 = 40_960;
const TBF: &[&str] = &["qdisc add dev d0 root handle 1: tbf rate 8bit burst 40kb limit 9mb"];
const HTB: &[&str] = &[
    "qdisc add dev d0 root handle 1: htb default 10",
    "class add dev d0 parent 1: classid 1:10 htb rate 8bit ceil 8bit burst 40kb cburst 40kb",
];
const HOSTS: [&[&str]; 5] = [TBF, HTB, HTB, TBF, HTB];

/// A host's qdisc, whose rate and burst follow what the host may send.
struct Sender {
    setup: Setup,
    tree: Tree,
    place: Handle,
    set: (u64, Option<u64>),
}

impl Sender {
    fn new(lines: &[&str]) -> Self {
        let mut setup = Setup::default();
        setup.of_device("d0", Facts { mtu: PACKET, ..Facts::default() });
        lines.iter().for_each(|line| setup.apply(line).expect(line));
        let tree = Tree::of(&setup, PACKET, 1).expect("there is a root");
        let place = Handle::new(1, if setup.has_class(Handle::new(1, 0x10)) { 0x10 } else { 0 });
        Self { setup, tree, place, set: (1, None) }
    }

    fn follow(&mut self, now: Instant, rate: u64, burst: Option<u64>) {
        if self.set == (rate, burst) {
            return;
        }
        self.set = (rate, burst);
        let rates = if self.place.minor == 0 { &["rate"][..] } else { &["rate", "ceil"] };
        let options = self.setup.burst_options(self.place, rates);
        let rate = Rate::bytes_per_second(rate.max(1)).to_string();
        let bursts: Vec<(&str, String)> = match burst {
            None => options.into_iter().map(|option| (option.key, option.given)).collect(),
            Some(bytes) => options.iter().map(|it| (it.key, it.text(bytes))).collect(),
        };
        let rates = rates.iter().map(|key| (*key, rate.as_str()));
        let bursts = bursts.iter().map(|(key, text)| (*key, text.as_str()));
        let edits: Vec<_> = rates.chain(bursts).collect();
        let line = self.setup.line("adjust", self.place, &edits).expect("it is there");
        self.setup.apply(&line).expect("a sound line");
        self.tree.apply(now, &line).expect("a sound line");
    }

    /// Sends what may leave at `now`, and returns how many bytes that was.
    fn send(&mut self, now: Instant) -> u64 {
        let mut sent = 0;
        while let Dequeue::Ready(pkt) = self.tree.dequeue(now) {
            sent += u64::from(pkt.len);
        }
        sent
    }
}

/// Lets five hosts pause and send again for some seconds, while their shares move from one to the
/// other, the engine dies and a host is cut off. Returns the most that they sent in any interval
/// beyond the rate, in bytes.
fn most(burst: Option<u32>) -> u64 {
    let mut world = World::new(7, Duration::from_millis(1)..Duration::from_millis(4));
    let floor = RATE / 20 / 5;
    let (rate, hosts) = (RATE, 5);
    let limit = Definition { rate, weight: 1, guaranteed: 0, hosts, floor, burst, parent: None };
    world.set("tenant", limit).expect("sound");
    let mut senders: Vec<Sender> = HOSTS.map(Sender::new).into();
    for weight in 1..=5 {
        world.join("tenant", weight);
    }
    let (mut level, mut most, mut last) = (0_u64, 0, Instant(0));
    for ms in 0..9_000_usize {
        if ms % 300 == 0 {
            for host in 0..5 {
                let wants = if (ms / 300 + host) % 3 == 0 { RATE } else { RATE / 20 };
                world.set_demand(host, wants);
            }
        }
        match ms {
            3_000 => world.set_engine(Engine::Down),
            5_000 => world.set_engine(Engine::Up),
            7_000 => world.cut(2, true),
            _ => {}
        }
        world.run(Instant((ms as u64 + 1) * 1_000_000), |world| {
            for (host, sender) in senders.iter_mut().enumerate() {
                sender.follow(world.now(), world.rate(host), world.burst(host));
            }
        });
        let now = world.now();
        // A bucket that loses a byte for each byte that the limit allows holds what was sent beyond
        // the rate in the interval in which that is the most.
        level = level.saturating_sub(RATE * now.since(last) / 1_000_000_000);
        last = now;
        for (host, sender) in senders.iter_mut().enumerate() {
            // All pause at the same time, so that all buckets are full, and then have much to send.
            if ms % 700 == 699 {
                for at in 0..40 {
                    let len = if (at + host) % 3 == 0 { 600 } else { PACKET };
                    let _ = sender.tree.enqueue(now, Packet::new(len));
                }
            }
            level += sender.send(now);
        }
        most = most.max(level);
    }
    let dropped = senders.iter().map(|it| it.tree.totals().dropped(DropReason::TooBig));
    assert_eq!(dropped.sum::<u64>(), 0, "every burst is as long as the longest packet");
    most
}

#[test]
fn the_sum_is_the_burst_and_a_packet_for_each_host() {
    let bound = u64::from(BURST) + 5 * u64::from(PACKET);
    let most = most(Some(BURST));
    assert!(most <= bound, "{most} bytes of {bound}");
    assert!(most >= u64::from(BURST) * 3 / 4, "the hosts use what they may: {most} bytes");
}

/// Without a burst of the limit, each host has that of its qdisc, whatever its share is.
#[test]
fn without_a_burst_each_qdisc_has_its_own() {
    let most = most(None);
    let bound = 5 * (OWN + u64::from(PACKET));
    assert!((2 * u64::from(BURST)..=bound).contains(&most), "{most} bytes of {bound}");
}
