//! Prometheus scrapes a server, and answers queries about the scraped series.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::made_up::MadeUp;
use super::serve::Server;
use super::tool::{Running, have, until};

/// Starts Prometheus with one target, both on the loopback address, and with its data in `folder`.
pub(crate) fn start(folder: &Path, target: SocketAddr) -> (Running, SocketAddr) {
    let config = folder.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\n\
         scrape_configs:\n- job_name: onramp\n  static_configs: [{{targets: ['{target}']}}]\n"
    );
    fs::write(&config, text).expect("it can be written");
    // Prometheus cannot choose a free port itself, so it gets one that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("it is bound");
    drop(free);
    let log = File::create(folder.join("log")).expect("a file");
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    (Running(child.expect("it runs")), address)
}

/// Returns the results of a query to Prometheus; `None` while Prometheus does not answer.
pub(crate) fn query(address: SocketAddr, query: &str) -> Option<Vec<Value>> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let query: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
    let head = format!(
        "GET /api/v1/query?query={query} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let document: Value = serde_json::from_str(body).ok()?;
    let results = document["data"]["result"].as_array()?.clone();
    (!results.is_empty()).then_some(results)
}

pub(crate) fn number(result: &Value) -> f64 {
    result["value"][1].as_str().and_then(|text| text.parse().ok()).expect("a number")
}

#[test]
fn prometheus_scrapes_and_computes() {
    if !have("prometheus", "prometheus") {
        return;
    }
    let server = Server::start(MadeUp::default(), false);
    let folder = tempfile::tempdir().expect("a folder");
    let (_running, address) = start(folder.path(), server.address);
    let ask = |text: &str| until(text, || query(address, text));
    let up = until("a scrape", || {
        query(address, "up{job=\"onramp\"}").filter(|up| number(&up[0]) > 0.0)
    });
    assert_eq!(up.len(), 1, "{up:?}");
    let sent = ask("onramp_qdisc_sent_bytes_total{device=\"uplink\",handle=\"10:\"}");
    assert_eq!(sent.len(), 1, "{sent:?}");
    let labels = &sent[0]["metric"];
    let expected = [("qdisc", "fq_codel"), ("parent", "1:10"), ("queue", "0"), ("job", "onramp")];
    for (name, value) in expected {
        assert_eq!(labels[name], value, "{labels}");
    }
    assert!(number(&sent[0]) > 0.0, "{sent:?}");
    // Queries for rates and quantiles, such as dashboards send.
    let rate = ask("sum by (device) (rate(onramp_qdisc_sent_bytes_total{handle=\"1:\"}[10s])) > 0");
    assert_eq!(rate[0]["metric"]["device"], "uplink");
    let text = "histogram_quantile(0.99, rate(onramp_sojourn_seconds_bucket[10s])) > 0";
    let p99 = number(&ask(text)[0]);
    assert!((1e-6..1.0).contains(&p99), "{p99}");
    let dropped = ask("onramp_drops_total{device=\"uplink\",reason=\"congested\"}");
    assert_eq!(dropped.len(), 1);
    let rejected = ask("scrape_samples_scraped - scrape_samples_post_metric_relabeling");
    assert_eq!(number(&rejected[0]), 0.0);
}
