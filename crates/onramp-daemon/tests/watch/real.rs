//! Prometheus and a browser watch a daemon whose devices carry traffic, and show the same numbers
//! as `tc`.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::Value;

use super::alive::Alive;
use super::chromium::Browser;
use super::prometheus::{number, query, start};
use super::tool::{have, until};

/// A device that relays datagrams between two sockets, with a class that is too slow for the
/// traffic.
struct Relay {
    daemon: Alive,
    /// Address at which the device receives the datagrams that it relays (passes on).
    entry: SocketAddr,
    _sink: UdpSocket,
}

impl Relay {
    fn start() -> Self {
        let sink = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = sink.local_addr().expect("it is bound");
        let daemon = Alive::start();
        let ends = format!("local 127.0.0.1 remote {to} listen 127.0.0.1:0");
        daemon.exec(&format!("ip link add u0 up type udp {ends}"));
        daemon.exec("tc qdisc add dev u0 root handle 1: htb default 10");
        daemon.exec("tc class add dev u0 parent 1: classid 1:10 htb rate 20mbit");
        daemon.exec("tc qdisc add dev u0 parent 1:10 handle 10: fq_codel limit 50");
        let shown = daemon.exec("ip -d link show u0");
        let mut words = shown.split_whitespace().skip_while(|word| *word != "listen");
        let entry = words.nth(1).and_then(|word| word.parse().ok()).expect("an address");
        Self { daemon, entry, _sink: sink }
    }

    fn listing(&self) -> Value {
        let shown = self.daemon.exec("tc -s -j qdisc show dev u0");
        serde_json::from_str(&shown).expect("JSON")
    }

    /// Sends packets much faster than the class allows, and waits until all of them were sent or
    /// dropped.
    fn send(&self, datagrams: u64) -> Value {
        let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for number in 0..datagrams {
            client.send_to(&[7; 1_000], self.entry).expect("loopback takes it");
            if number % 40 == 39 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let mut last = Value::Null;
        until("it to come to rest", || {
            std::thread::sleep(Duration::from_millis(200));
            let before = std::mem::replace(&mut last, self.listing());
            (before == last && last[0]["qlen"] == 0).then_some(())
        });
        let link = self.daemon.exec("ip -s -j link show u0");
        let link: Value = serde_json::from_str(&link).expect("JSON");
        let count = |value: &Value| value.as_u64().expect("a count");
        let (sent, dropped) = (count(&last[0]["packets"]), count(&last[0]["drops"]));
        assert!(sent > 50 && dropped > 50, "{last}");
        assert_eq!(sent + dropped, count(&link[0]["stats64"]["rx"]["packets"]), "{last}\n{link}");
        last
    }
}

#[test]
fn prometheus_has_the_numbers_of_tc() {
    if !have("prometheus", "prometheus") {
        return;
    }
    let relay = Relay::start();
    let folder = tempfile::tempdir().expect("a folder");
    let (_running, address) = start(folder.path(), relay.daemon.web);
    let listing = relay.send(3_000);
    until("a scrape", || query(address, "up{job=\"onramp\"} == 1"));
    let series = [
        ("onramp_qdisc_sent_packets_total", "packets"),
        ("onramp_qdisc_sent_bytes_total", "bytes"),
        ("onramp_qdisc_drops_total", "drops"),
        ("onramp_qdisc_overlimits_total", "overlimits"),
    ];
    for qdisc in listing.as_array().expect("qdiscs") {
        let handle = qdisc["handle"].as_str().expect("a handle");
        let labels = format!("{{device=\"u0\",qdisc={},handle=\"{handle}\"}}", qdisc["kind"]);
        for (name, key) in series {
            // Repeat the query until it succeeds: when Prometheus scraped the server last, fewer
            // packets may have been counted.
            let expected = qdisc[key].as_f64().expect("a number");
            let ask = format!("{name}{labels} == {expected}");
            let found = until(&ask, || query(address, &ask));
            assert_eq!((found.len(), number(&found[0])), (1, expected), "{found:?}");
        }
    }
    let drops = listing[0]["drops"].as_f64().expect("a number");
    let reasons = "sum(onramp_qdisc_drop_reasons_total{device=\"u0\",handle=\"1:\"})";
    assert_eq!(number(&until(reasons, || query(address, reasons))[0]), drops);
}

#[test]
fn a_browser_shows_what_tc_shows() {
    if !have("chromium", "chromium") {
        return;
    }
    let relay = Relay::start();
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", relay.daemon.web));
    let names = ["u0udp", "htb1:", "class1:10", "fq_codel10:"];
    until("its tree", || (browser.texts("#rows .name") == names).then_some(()));
    let listing = relay.send(3_000);
    let exact = |key: &str| listing[0][key].as_u64().expect("a count");
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    until("the count of its drops", || {
        let reasons = browser.texts("#drops tbody td:first-child");
        let counts = browser.texts("#drops tbody td:nth-child(2)");
        let sum: u64 = counts.iter().filter_map(|text| digits(text).parse::<u64>().ok()).sum();
        (reasons.contains(&"overlimit".to_owned()) && sum == exact("drops")).then_some(())
    });
    assert_eq!(browser.text("#detail-name"), "u0");
    let clients = "1 of 1,024, 0 forgotten";
    until("its client", || browser.text("#facts").contains(clients).then_some(()));
    assert_eq!(browser.complaints(), [] as [String; 0]);
}
