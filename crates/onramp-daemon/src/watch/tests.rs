//! What those who watch are told.

use onramp::host::What;

use super::*;
use crate::snapshot::tests::{at, nested, steady};

fn options(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn watched() -> Watched {
    Watched::new(Hub::default())
}

async fn told(watch: &mut Watch) -> Value {
    let line = watch.next(Some(7)).await.expect("a line");
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    serde_json::from_slice(&line).expect("JSON")
}

#[tokio::test]
async fn what_cannot_be_watched_is_told() {
    let wrong = [
        ("traffic", json!({}), "stats and events"),
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

#[tokio::test]
async fn looks_have_rates_from_the_second_on() {
    let asked = json!({"interval_ms": 110, "sort": "rate", "limit": 5});
    let mut watch = watched().watch("stats", options(&asked)).await.expect("it can be watched");
    let first = told(&mut watch).await;
    assert_eq!((&first["v"], &first["id"]), (&1.into(), &7.into()));
    assert_eq!(first["stats"]["seconds"], Value::Null);
    assert!(told(&mut watch).await["stats"]["seconds"].as_f64() >= Some(0.1));
}

#[tokio::test]
async fn the_oldest_events_are_lost_and_counted() {
    let watched = watched();
    let mut watch = watched.watch("events", Map::new()).await.expect("it can be watched");
    let count = 5000;
    for number in 0..count {
        let line = format!("qdisc fq {number}: root");
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(number);
        let event = Event { at, device: "d0".into(), what: What::Added, line };
        assert!(tell(&Arc::downgrade(&watched.events), &event));
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
    let mut watch = watched.watch("events", Map::new()).await.expect("it can be watched");
    let words = ["ip", "link", "add", "dev", "d0", "type", "dummy"].map(str::to_owned);
    let reply = watched.hub.exec(&words);
    assert_eq!(reply.code, 0, "{reply:?}");
    let event = &told(&mut watch).await["event"];
    assert_eq!((&event["what"], &event["device"]), (&"added".into(), &"d0".into()), "{event}");
    assert!(event["unix_us"].as_u64() > Some(1_600_000_000_000_000), "{event}");
    let (events, hub) = (Arc::downgrade(&watched.events), watched.hub.clone());
    drop((watch, watched));
    // With the last watcher the host's listener goes as well.
    assert!(events.upgrade().is_none());
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
    // A device that is new, and one that is another by the same name.
    let told = drops.since(&at(4, vec![steady("d0", 9, 1, 2)]));
    assert_eq!(lines(&told), ["10 packets on d0 fq 8001: overlimit"]);
}
