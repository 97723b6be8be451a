//! The streams that clients get when they watch statistics or events.

use std::collections::VecDeque;

use onramp_host::What;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::snapshot::tests::{at, nested, steady};
use crate::snapshot::{Class, Qdisc};

fn options(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn watched() -> Watched {
    Watched::new(Hub::default())
}

/// A stream, and those of its lines that were sent together with earlier ones.
struct Reader(Watch, VecDeque<Value>);

impl Reader {
    fn new(watch: Result<Watch, String>) -> Self {
        Self(watch.expect("it can be watched"), VecDeque::new())
    }
}

async fn told(Reader(watch, lines): &mut Reader) -> Value {
    if lines.is_empty() {
        let more = watch.next(Some(7)).await.expect("a line");
        *lines = read_lines(&more);
    }
    lines.pop_front().expect("a line")
}

fn read_lines(lines: &[u8]) -> VecDeque<Value> {
    let lines = lines.strip_suffix(b"\n").expect("whole lines");
    let lines = lines.split(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

#[tokio::test]
async fn what_cannot_be_watched_is_told() {
    let wrong = [
        ("traffic", json!({}), "stats or events"),
        ("stats", json!({"interval_ms": 99}), "100 or more"),
        ("stats", json!({"interval_ms": "1"}), "invalid type"),
        ("stats", json!({"every": 5}), "unknown field `every`"),
        ("events", json!({"device": "d0"}), "unknown field `device`"),
    ];
    for (what, asked, why) in wrong {
        let said = watched().watch(what, options(&asked)).await.expect_err(what);
        assert!(said.contains(why), "{what} {asked}: {said}");
    }
}

#[tokio::test(start_paused = true)]
async fn looks_have_rates_from_the_second_on() {
    let asked = json!({"interval_ms": 110, "sort": "rate", "limit": 5});
    let mut watch = Reader::new(watched().watch("stats", options(&asked)).await);
    let first = told(&mut watch).await;
    assert_eq!((&first["v"], &first["id"]), (&1.into(), &7.into()));
    assert_eq!(first["stats"]["seconds"], Value::Null);
    assert_eq!(told(&mut watch).await["stats"]["seconds"], 0.11);
}

#[tokio::test]
async fn the_oldest_events_are_lost_and_counted() {
    let watched = watched();
    let mut watch = Reader::new(watched.watch("events", Map::new()).await);
    let count = 5000;
    for number in 0..count {
        happens(&watched, number);
    }
    let first = told(&mut watch).await;
    let lost = first["lost"].as_u64().expect("some are lost");
    assert!(lost >= count - KEPT as u64, "{lost}");
    for number in lost..count {
        let event = &told(&mut watch).await["event"];
        let line = format!("qdisc fq {number}: root");
        let expected = json!({"unix_us": number, "what": "added", "device": "d0", "line": line});
        assert_eq!(*event, expected);
    }
}

#[tokio::test]
async fn what_happens_on_the_host_is_told() {
    let watched = watched();
    let mut watch = Reader::new(watched.watch("events", Map::new()).await);
    let words = ["ip", "link", "add", "dev", "d0", "type", "dummy"].map(str::to_owned);
    let reply = watched.hub.exec(&words);
    assert_eq!(reply.code, 0, "{reply:?}");
    let event = &told(&mut watch).await["event"];
    assert_eq!((&event["what"], &event["device"]), (&"added".into(), &"d0".into()), "{event}");
    assert!(event["unix_us"].as_u64() > Some(1_600_000_000_000_000), "{event}");
    let (events, hub) = (Arc::downgrade(&watched.events), watched.hub.clone());
    drop((watch, watched));
    // When the last client that watches events has left, the listener that was registered at the
    // host is removed, once a look for drops that has begun is over.
    let is_gone = async {
        while events.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_gone).await.expect("nobody keeps it");
    assert_eq!(hub.exec(&["ip", "link", "del", "d0"].map(str::to_owned)).code, 0);
}

fn lines(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["line"].as_str()).collect()
}

#[test]
fn drops_are_told_of_whoever_dropped() {
    let mut drops = Drops::default();
    let device = |below: u64, root: u64, queue: u64| {
        let mut device = nested("d0", 1);
        let all = &mut device.queues[0];
        all.qdiscs[2].drops = [("congested".into(), below)].into();
        all.qdiscs[0].drops = [("congested".into(), below), ("unclassified".into(), root)].into();
        all.drops = all.qdiscs[0].drops.clone();
        all.drops.insert("no_buffers".into(), queue);
        vec![device]
    };
    assert_eq!(drops.since(&at(0, device(5, 5, 5))), [] as [Value; 0]);
    assert_eq!(drops.since(&at(1, device(5, 5, 5))), [] as [Value; 0]);
    let told = drops.since(&at(2, device(125, 6, 5)));
    let expected =
        ["1 packets on d0 htb 1: unclassified", "120 packets on d0 fq_codel 10: congested"];
    assert_eq!(lines(&told), expected);
    assert_eq!((&told[1]["packets"], &told[1]["handle"]), (&120.into(), &"10:".into()));
    let told = drops.since(&at(3, device(125, 6, 8)));
    assert_eq!(lines(&told), ["3 packets on d0 queue 0 no_buffers"]);
    // A device with the name of an earlier device but with another index is a new device: all of
    // its drops are new.
    let told = drops.since(&at(4, vec![steady("d0", 9, 1, 2)]));
    assert_eq!(lines(&told), ["10 packets on d0 fq 8001: overlimit"]);
}

/// An event that reports drops has all documented keys.
#[test]
fn an_event_of_drops_is_whole() {
    let mut drops = Drops::default();
    let mut look = |second, count| {
        let mut device = nested("d0", 1);
        let queue = &mut device.queues[0];
        queue.queue = 3;
        queue.qdiscs[2].drops = [("congested".into(), count)].into();
        queue.qdiscs[0].drops = queue.qdiscs[2].drops.clone();
        queue.drops = [("congested".into(), count), ("late".into(), count * 2)].into();
        drops.since(&at(second, vec![device]))
    };
    assert_eq!(look(0, 1), [] as [Value; 0]);
    let expected = [
        json!({
            "unix_us": 1_700_000_001_000_000_u64, "what": "dropped", "device": "d0",
            "line": "4 packets on d0 fq_codel 10: congested", "queue": 3, "handle": "10:",
            "reason": "congested", "packets": 4,
        }),
        json!({
            "unix_us": 1_700_000_001_000_000_u64, "what": "dropped", "device": "d0",
            "line": "8 packets on d0 queue 3 late", "queue": 3, "handle": null,
            "reason": "late", "packets": 8,
        }),
    ];
    assert_eq!(look(1, 5), expected);
    // A counter that has decreased was reset and causes no event, and neither does an unchanged
    // counter.
    assert_eq!(look(2, 3), [] as [Value; 0]);
    assert_eq!(lines(&look(3, 4)).len(), 2);
}

/// A qdisc without classes also counts the drops of the qdisc below it; an event reports these
/// drops only for the qdisc below.
#[test]
fn drops_below_a_qdisc_are_not_its_own() {
    let mut drops = Drops::default();
    let mut look = |second, [root, leaf, below]: [u64; 3]| {
        let mut device = nested("d0", 1);
        let queue = &mut device.queues[0];
        let qdisc = |handle: &str, parent: Option<&str>, count| Qdisc {
            handle: handle.into(),
            parent: parent.map(str::to_owned),
            kind: "tbf".into(),
            drops: [("overlimit".into(), count)].into(),
            ..Qdisc::default()
        };
        // The qdisc `3:` names itself as its parent. Such a qdisc counts as one without a parent,
        // so its drops are subtracted from the drops of the queue.
        queue.qdiscs = vec![
            qdisc("1:", None, root),
            qdisc("2:", Some("1:"), leaf),
            qdisc("3:", Some("3:"), below),
        ];
        queue.drops = [("overlimit".into(), root + below)].into();
        drops.since(&at(second, vec![device]))
    };
    look(0, [0, 0, 0]);
    let told = look(1, [10, 7, 5]);
    let expected = [
        "3 packets on d0 tbf 1: overlimit",
        "7 packets on d0 tbf 2: overlimit",
        "5 packets on d0 tbf 3: overlimit",
    ];
    assert_eq!(lines(&told), expected);
    // The counters of `1:` and of `2:` below it may have been read at different times. Here `2:`
    // has more drops than `1:`, so the drops of `1:` itself would be negative; they count as zero.
    assert_eq!(lines(&look(2, [11, 20, 5])), ["13 packets on d0 tbf 2: overlimit"]);
}

/// An `mq`, which counts the drops of all queues, stands in the first queue.
#[test]
fn drops_below_an_mq_are_told_once() {
    let mut drops = Drops::default();
    let mut look = |second: u64, step: u64| {
        let mut device = steady("d0", 1, 2, step);
        for (queue, parent) in device.queues.iter_mut().zip(["1:1", "1:2"]) {
            queue.qdiscs[0].parent = Some(parent.to_owned());
        }
        let class = |handle: &str| Class { handle: handle.to_owned(), ..Class::default() };
        let mq = Qdisc {
            handle: "1:".to_owned(),
            kind: "mq".into(),
            drops: [("overlimit".into(), 15 * step)].into(),
            classes: vec![class("1:1"), class("1:2")],
            ..Qdisc::default()
        };
        device.queues[0].qdiscs.insert(0, mq);
        drops.since(&at(second, vec![device]))
    };
    look(0, 1);
    let expected = ["5 packets on d0 fq 8001: overlimit", "10 packets on d0 fq 8002: overlimit"];
    assert_eq!(lines(&look(1, 2)), expected);
}

/// A qdisc that is replaced, or whose port does not answer in time, makes no drops of those that it
/// has counted before.
#[test]
fn counts_that_go_are_no_drops() {
    let mut drops = Drops::default();
    let mut look = |second, counts: Option<[u64; 2]>, all| {
        let mut device = nested("d0", 1);
        let queue = &mut device.queues[0];
        if let Some([leaf, root]) = counts {
            queue.qdiscs[2].drops = [("congested".into(), leaf)].into();
            queue.qdiscs[0].drops = [("congested".into(), root)].into();
        } else {
            queue.qdiscs.clear();
        }
        queue.drops = [("congested".into(), all)].into();
        drops.since(&at(second, vec![device]))
    };
    look(0, Some([100, 100]), 100);
    assert_eq!(look(1, None, 102), [] as [Value; 0]);
    let told = look(2, Some([102, 102]), 102);
    assert_eq!(lines(&told), ["2 packets on d0 fq_codel 10: congested"]);
    assert_eq!(look(3, Some([0, 102]), 102), [] as [Value; 0]);
    assert_eq!(look(4, Some([0, 0]), 102), [] as [Value; 0]);
    let told = look(5, Some([7, 7]), 109);
    assert_eq!(lines(&told), ["7 packets on d0 fq_codel 10: congested"]);
}

/// The qdiscs of a dead port never answer again. What it drops is told all the same.
#[test]
fn drops_of_a_dead_port_are_told() {
    let mut drops = Drops::default();
    let mut device = steady("d0", 1, 1, 1);
    drops.since(&at(0, vec![device.clone()]));
    device.queues[0].qdiscs.clear();
    device.queues[0].drops.insert("port_dead".into(), 7);
    let told = drops.since(&at(1, vec![device]));
    assert_eq!(lines(&told), ["7 packets on d0 queue 0 port_dead"]);
}

/// Makes a hub whose host has devices with these names.
fn host(names: &[&str]) -> Hub {
    let hub = Hub::default();
    for name in names {
        let words = ["ip", "link", "add", "dev", name, "type", "dummy"].map(str::to_owned);
        assert_eq!(hub.exec(&words).code, 0);
    }
    hub
}

fn rows(stats: &Value) -> Vec<&str> {
    let rows = stats["stats"]["rows"].as_array().expect("rows");
    rows.iter().filter_map(|row| row["id"].as_str()).collect()
}

#[tokio::test]
async fn looks_are_selected() {
    let watched = Watched::new(host(&["a0", "b0"]));
    for (asked, ids, omitted) in [
        (json!({}), &["a0", "a0/0", "a0/0/0:", "b0", "b0/0", "b0/0/0:"][..], 0),
        (json!({"device": "b0"}), &["b0", "b0/0", "b0/0/0:"], 3),
        (json!({"filter": "a0 0:"}), &["a0", "a0/0", "a0/0/0:"], 3),
        (json!({"limit": 2}), &["a0", "b0"], 4),
        (json!({"limit": 1, "sort": "tree"}), &["b0"], 5),
    ] {
        let mut watch = Reader::new(watched.watch("stats", options(&asked)).await);
        let stats = told(&mut watch).await;
        assert_eq!(rows(&stats), ids, "{asked}");
        assert_eq!(stats["stats"]["omitted"], omitted, "{asked}");
    }
}

/// Clients get statistics once per second unless they ask for another interval. A client that did
/// not read for a while gets one set of statistics, which covers the whole time.
#[tokio::test(start_paused = true)]
async fn looks_are_a_second_apart() {
    for (asked, seconds) in [(json!({}), 1.0), (json!({"interval_ms": 100}), 0.1)] {
        let watched = Watched::new(host(&["a0"]));
        let mut watch = Reader::new(watched.watch("stats", options(&asked)).await);
        let mut next = async || told(&mut watch).await["stats"]["seconds"].clone();
        assert_eq!(next().await, Value::Null);
        assert_eq!([next().await, next().await], [json!(seconds), json!(seconds)]);
        tokio::time::sleep(Duration::from_millis(3_550)).await;
        assert_eq!(next().await, json!(3.55));
        // Statistics that the client missed are not sent afterwards.
        assert_eq!([next().await, next().await], [json!(seconds), json!(seconds)]);
    }
}

/// However many clients watch events, each client gets each event exactly once.
#[tokio::test]
async fn listeners_hear_everything_once() {
    let watched = watched();
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(Reader::new(watched.watch("events", Map::new()).await));
    }
    for name in ["d0", "d1"] {
        let words = ["ip", "link", "add", "dev", name, "type", "dummy"].map(str::to_owned);
        assert_eq!(watched.hub.exec(&words).code, 0);
    }
    for watch in &mut all {
        for name in ["d0", "d1"] {
            assert_eq!(told(watch).await["event"]["device"], name);
        }
    }
}

/// When a device has dropped packets, the next snapshot finds the drops, and clients get them as an
/// event.
#[tokio::test(start_paused = true)]
async fn drops_on_the_host_are_told() {
    let hub = host(&["d0"]);
    let exec = |line: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(hub.exec(&words).code, 0, "{line}");
    };
    exec("ip link set dev d0 up");
    exec("tc qdisc add dev d0 root blackhole");
    let link = hub.host().lock().expect("it lives").link("d0").expect("it is there");
    let drop_one = || {
        let mut sender = link.sender();
        let flow = sender.flow(None);
        sender.send(&flow, &[7; 100]).expect("it is taken");
        assert!(sender.flush(Duration::from_secs(30)), "nothing stays");
    };
    drop_one();
    let watched = Watched::new(hub.clone());
    let mut watch = Reader::new(watched.watch("events", Map::new()).await);
    // The first snapshot causes no event, because its drops happened before the client began to
    // watch.
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop_one();
    drop_one();
    let event = told(&mut watch).await["event"].clone();
    assert_eq!((&event["what"], &event["device"]), (&"dropped".into(), &"d0".into()), "{event}");
    assert_eq!(event["packets"], 2, "{event}");
    // While nobody watches, the daemon forgets. The next client is told of what is dropped just
    // after it has come.
    drop(watch);
    tokio::time::sleep(3 * PERIOD).await;
    drop_one();
    tokio::time::sleep(PERIOD).await;
    let mut watch = Reader::new(watched.watch("events", Map::new()).await);
    drop_one();
    let event = told(&mut watch).await["event"].clone();
    assert_eq!((&event["what"], &event["packets"]), (&"dropped".into(), &1.into()), "{event}");
}

fn happens(watched: &Watched, number: u64) {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(number);
    let line = format!("qdisc fq {number}: root");
    let event = Event { at, device: "d0".into(), what: What::Added, line };
    assert!(tell(&Arc::downgrade(&watched.events), &event));
}

/// Waits for the next lines of events. Returns the numbers of the events, and how long it waited.
async fn numbers(Reader(watch, _): &mut Reader) -> (Vec<u64>, Duration) {
    let begin = Instant::now();
    let lines = read_lines(&watch.next(None).await.expect("lines"));
    let number = |line: &Value| line["event"]["unix_us"].as_u64().expect("an event");
    (lines.iter().map(number).collect(), begin.elapsed())
}

/// An event that comes alone is sent at once. Events that come just after others are sent together.
#[tokio::test(start_paused = true)]
async fn events_that_come_together_are_sent_together() {
    let watched = watched();
    let mut watch = Reader::new(watched.watch("events", Map::new()).await);
    let pause = Duration::from_millis(1);
    happens(&watched, 0);
    assert_eq!(numbers(&mut watch).await, (vec![0], Duration::ZERO));
    (1..4).for_each(|number| happens(&watched, number));
    let (sent, waited) = numbers(&mut watch).await;
    assert_eq!(sent, [1, 2, 3]);
    assert!(waited <= 2 * pause, "{waited:?}");
    tokio::time::sleep(10 * pause).await;
    happens(&watched, 4);
    assert_eq!(numbers(&mut watch).await, (vec![4], Duration::ZERO));
    // When the daemon ends, the client gets the events that it was not sent yet.
    (5..8).for_each(|number| happens(&watched, number));
    let rest = read_lines(&watch.0.rest(None));
    assert_eq!(
        rest.iter().map(|line| line["event"]["unix_us"].clone()).collect::<Vec<_>>(),
        [5, 6, 7]
    );
}

/// If more events wait than one write takes, the next ones are sent without a pause.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_behind_catches_up_without_pauses() {
    let watched = watched();
    let mut watch = Reader::new(watched.watch("events", Map::new()).await);
    let count = 2_000;
    (0..count).for_each(|number| happens(&watched, number));
    let mut all = Vec::new();
    let mut writes = 0;
    while all.len() < 2_000 {
        let (sent, waited) = numbers(&mut watch).await;
        assert_eq!(waited, Duration::ZERO);
        all.extend(sent);
        writes += 1;
    }
    assert_eq!(all, (0..count).collect::<Vec<_>>());
    assert!((2..20).contains(&writes), "{writes}");
}
