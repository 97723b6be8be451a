//! A daemon is queried and reconfigured while its devices carry traffic.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onramp::Link;
use onramp_daemon::client::Client;
use onramp_host::Host;
use serde_json::Value;

use super::alive::Alive;

/// The longest time that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a daemon with one device, and returns it with the link of the device.
fn with_device(link: &str) -> (Alive, Link) {
    let mut host = Host::new();
    let words: Vec<&str> = link.split(' ').collect();
    assert_eq!(host.exec(&words, Path::new("/")).code, 0, "{link}");
    let link = host.link("d0").expect("it was added");
    (Alive::with(host), link)
}

fn batch(client: &mut Client, lines: impl Iterator<Item = String>) {
    let lines: Vec<Vec<String>> =
        lines.map(|line| line.split(' ').map(str::to_owned).collect()).collect();
    // A client gives a request up after a minute, and a crowded machine is slow.
    for some in lines.chunks(100) {
        let done = client.batch(some, "/", false).expect("it answers");
        // A port whose owner gets no processor for a second is late, which is told, and no error.
        let wrong = done.said.iter().find(|(_, reply)| reply.code != 0);
        assert_eq!((done.tried, wrong), (some.len(), None));
    }
}

/// When dropped, tells the sending threads to end, even if the work that runs beside them panics.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while `senders` threads send packets, each with a pause after every hundred packets.
/// Returns the number of packets that these threads submitted.
fn beside_senders(
    link: &Link,
    senders: usize,
    pause: Duration,
    work: impl FnOnce(&AtomicU64),
) -> u64 {
    let (end, given) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..senders {
            scope.spawn(|| {
                let mut sender = link.sender();
                let flow = sender.flow(None);
                while !end.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        sender.send(&flow, &[7; 100]).expect("the device is there");
                        given.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(pause);
                }
                assert!(sender.flush(PATIENCE), "nothing stays");
            });
        }
        let _ending = Ending(&end);
        work(&given);
    });
    assert!(link.flush(PATIENCE), "nothing stays");
    given.into_inner()
}

/// Returns, for each qdisc of a listing, the number of packets that it sent and dropped.
fn counted(listing: &Value) -> Vec<[u64; 2]> {
    let qdiscs = listing.as_array().expect("a list").iter();
    let count = |qdisc: &Value, key: &str| qdisc[key].as_u64().expect("a count");
    qdiscs.map(|qdisc| ["packets", "drops"].map(|key| count(qdisc, key))).collect()
}

/// Requests a listing of all qdiscs, and checks that no counter has decreased since the previous
/// listing, whose counters are in `before`.
fn look(daemon: &Alive, before: &mut Vec<[u64; 2]>) -> Value {
    let shown = daemon.exec("tc -s -j qdisc show dev d0");
    let listing: Value = serde_json::from_str(&shown).expect("JSON");
    let counts = counted(&listing);
    for (before, now) in before.iter().zip(&counts) {
        assert!(before.iter().zip(now).all(|(before, now)| before <= now), "{before:?}\n{listing}");
    }
    *before = counts;
    listing
}

#[test]
fn ten_thousand_qdiscs_are_listed_while_traffic_flows() {
    const QUEUES: usize = 10_000;
    let (daemon, link) =
        with_device(&format!("ip link add dev d0 up numtxqueues {QUEUES} type dummy"));
    daemon.exec("tc qdisc add dev d0 root handle 1: mq");
    let mut seen = Vec::new();
    let given = beside_senders(&link, 1, Duration::from_millis(1), |given| {
        let mut client = Client::connect(&daemon.socket()).expect("it listens");
        let child = |queue| format!("tc qdisc add dev d0 parent 1:{queue:x} pfifo limit 1000");
        batch(&mut client, (1..=QUEUES).map(child));
        for round in 0..5 {
            let before = given.load(Ordering::Relaxed);
            let listing = look(&daemon, &mut seen);
            let kinds = listing.as_array().expect("a list").iter().map(|qdisc| &qdisc["kind"]);
            let kinds: Vec<_> = kinds.collect();
            assert_eq!((kinds.len(), kinds[0]), (QUEUES + 1, &Value::from("mq")));
            assert!(kinds[1..].iter().all(|kind| **kind == "pfifo"), "{round}");
            super::tool::until("the sender to go on", || {
                (given.load(Ordering::Relaxed) > before).then_some(())
            });
        }
    });
    let stats = link.stats();
    assert_eq!((stats.submitted, stats.sent, stats.held), (given, given, 0));
    assert_eq!(stats.dropped_total(), 0);
    // The listed packet count of `mq` is the sum of the counts of its `pfifo` children. It does not
    // include packets that the default children counted before the `pfifo` qdiscs replaced them.
    look(&daemon, &mut seen);
    assert!(seen[0][0] > 0 && seen.iter().all(|[_, drops]| *drops == 0), "{:?}", seen[0]);
    assert_eq!(seen[0][0], seen[1..].iter().map(|[packets, _]| packets).sum::<u64>());
}

#[test]
fn two_thousand_changes_under_full_load_lose_nothing() {
    let (daemon, link) = with_device("ip link add dev d0 up type dummy");
    daemon.exec("tc qdisc add dev d0 root handle 1: htb default 10");
    daemon.exec("tc class add dev d0 parent 1: classid 1:10 htb rate 1gbit");
    daemon.exec("tc qdisc add dev d0 parent 1:10 handle 10: fq_codel");
    let mut seen = Vec::new();
    let given = beside_senders(&link, 3, Duration::ZERO, |given| {
        let mut client = Client::connect(&daemon.socket()).expect("it listens");
        for round in 0..20 {
            let before = given.load(Ordering::Relaxed);
            let change = |number: u32| match number % 2 {
                0 => format!("tc class change dev d0 classid 1:10 htb rate {}mbit", 500 + number),
                _ => format!("tc qdisc change dev d0 parent 1:10 fq_codel limit {}", 1 + number),
            };
            batch(&mut client, (round * 100..round * 100 + 100).map(change));
            look(&daemon, &mut seen);
            super::tool::until("senders to go on", || {
                (given.load(Ordering::Relaxed) > before).then_some(())
            });
        }
    });
    let stats = link.stats();
    assert_eq!((stats.submitted, stats.held), (given, 0));
    assert_eq!(stats.submitted + stats.made, stats.sent + stats.dropped_total(), "{stats:?}");
    let listing = look(&daemon, &mut seen);
    assert_eq!(seen.len(), 2);
    assert_eq!(listing[0]["qlen"], 0, "{listing}");
    assert_eq!(seen[0][0], stats.sent, "the root sent all that the device got");
    assert_eq!(seen[0][0] + seen[0][1], given, "{listing}");
    let class = daemon.exec("tc class show dev d0");
    assert!(class.contains("rate 2498Mbit"), "the last change is there: {class}");
}
