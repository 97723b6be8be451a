//! A daemon, and clients that watch it over its socket.

use std::io::{self, BufRead as _, Write as _};
use std::time::Duration;

use onramp_daemon::client::Client;
use onramp_daemon::feed::{Feed as _, FeedError, Remote};
use onramp_daemon::monitor;
use onramp_daemon::snapshot::Query;
use onramp_daemon::top::{self, Batch};
use serde_json::{Value, json};

use super::alive::Alive;
use super::tool::until;

/// A writer that fails once the given number of lines has been written.
struct Lines(Vec<u8>, usize);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.iter().filter(|byte| **byte == b'\n').count() >= self.1 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_monitor_hears_of_devices() {
    let daemon = Alive::start();
    let stream = daemon.watch("events", &json!({}));
    daemon.exec("ip link add dev d0 type dummy");
    daemon.exec("ip link set dev d0 up");
    daemon.exec("ip link set dev d0 down");
    daemon.exec("ip link del dev d0");
    daemon.exec("ip link add dev d1 type dummy");
    let mut out = Lines(Vec::new(), 4);
    let options = monitor::Options { device: Some("d0".into()), ..monitor::Options::default() };
    drop(daemon);
    let ended = monitor::run(stream, &mut out, &options);
    assert!(matches!(ended, Ok(()) | Err(FeedError::Gone)), "{ended:?}");
    let text = String::from_utf8(out.0).expect("text");
    let what: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(what, ["added", "up", "down", "deleted"], "{text}");
    assert!(text.starts_with("added 1: d0: <BROADCAST,NOARP> mtu 1500 "), "{text}");
}

#[test]
fn top_sees_devices_come_and_go() {
    let daemon = Alive::start();
    daemon.exec("ip link add dev d0 numtxqueues 3 type dummy");
    let mut feed = Remote::connect(&daemon.socket(), 100).expect("it listens");
    let mut out = Vec::new();
    let batch = Batch { tables: Some(1), json: false, query: Query::default() };
    top::print(&mut feed, &batch, &mut out).expect("it is there");
    let text = String::from_utf8(out).expect("text");
    assert!(text.contains("\nd0 ") && text.contains("\n  queue 2 "), "{text}");
    daemon.exec("ip link del dev d0");
    until("it to go", || feed.poll().expect("it is there").filter(|stats| stats.rows.is_empty()));
    let said = Remote::connect(&daemon.socket(), 1).expect("it listens").wait();
    let said = said.expect_err("that is too often").to_string();
    assert!(said.contains("\"interval_ms\" has to be 100 or more"), "{said}");
    drop(daemon);
    let gone = until("the end", || feed.poll().err());
    assert_eq!(gone.to_string(), "the daemon has ended");
}

/// A watching client that does not read delays nobody, and is told how many events it missed.
#[test]
fn a_watcher_that_sleeps_loses_the_oldest() {
    let daemon = Alive::start();
    let mut stream = daemon.watch("events", &json!({}));
    let mut client = Client::connect(&daemon.socket()).expect("it listens");
    let add = ["ip", "link", "add", "dev", "d0", "type", "dummy"].map(str::to_owned).to_vec();
    let del = ["ip", "link", "del", "dev", "d0"].map(str::to_owned).to_vec();
    let commands: Vec<Vec<String>> = (0..500).flat_map(|_| [add.clone(), del.clone()]).collect();
    let rounds = 12;
    for _ in 0..rounds {
        let done = client.batch(&commands, "/", false).expect("it answers");
        assert_eq!((done.tried, done.said.len()), (1000, 0));
    }
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(120))).expect("a time");
    let (mut told, mut lost) = (0, 0);
    while told + lost < rounds * 1000 {
        let mut line = String::new();
        stream.read_line(&mut line).expect("more to come");
        let document: Value = serde_json::from_str(&line).expect("JSON");
        match document["lost"].as_u64() {
            Some(count) => lost += count,
            None => told += 1,
        }
    }
    assert_eq!(told + lost, rounds * 1000);
    assert!(lost > 0 && told >= 4096, "{told} told, {lost} lost");
}

/// A daemon that runs with all of its parts serves the web page and the metrics.
#[test]
fn the_daemon_serves_its_page() {
    let daemon = Alive::start();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(daemon.web).expect("it listens");
        let head = format!("GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", daemon.web);
        stream.write_all(head.as_bytes()).expect("it reads");
        io::read_to_string(stream).expect("an answer")
    };
    assert!(get("/").contains("data-control=\"yes\""));
    daemon.exec("ip link add dev d0 type dummy");
    // The server may answer from a snapshot that is up to a tenth of a second old, so a new device
    // may appear late.
    until("the device", || {
        get("/metrics").contains("\nonramp_device_up{device=\"d0\"} 0\n").then_some(())
    });
    // A client that watches does not keep the daemon from ending.
    let _watcher = daemon.watch("stats", &json!({"interval_ms": 100}));
}
