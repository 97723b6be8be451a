//! A wire without namespaces: `onramp wire --relay`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use onramp_core::Clock as _;
use onramp_dev::MonotonicClock;

use super::{Tun, assert_conserved, document, ordinary, program};
use crate::{assert_fails, run, skip, stderr};

/// Far more than the tests need.
const LONG: Duration = Duration::from_secs(120);

/// An ordinary user's client is in the namespaces of this program, and finds its relay.
#[test]
fn a_relay_needs_no_namespace() {
    let target = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = target.local_addr().expect("an address");
    let (first, second) = (format!("127.0.0.1:0={address}"), format!("udp:[::1]:0={address}"));
    let onramp = program().display();
    let script = format!(
        "set -e; echo $ONRAMP_RELAY; readlink /proc/self/ns/net /proc/self/ns/user
         {onramp} wire list; {onramp} wire set up delay 70ms; {onramp} wire list; exit 5"
    );
    let words = ["--relay", &first, "--relay", &second, "--json", "-", "--", "sh", "-c", &script];
    let Some(mut command) = ordinary(Tun::Open, words) else { return skip("not as this user") };
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let mut lines = text.lines();
    let addresses: Vec<_> = lines.next().expect("a line").split(',').collect();
    assert!(addresses.len() == 2 && addresses[1].starts_with("[::1]:"), "{text}");
    for kind in ["net", "user"] {
        let own = fs::read_link(format!("/proc/self/ns/{kind}")).expect("Linux");
        assert_eq!(lines.next(), own.to_str());
    }
    assert!(text.contains("delay 70ms"), "{text}");
    for at in &addresses {
        assert!(stderr(&output).contains(&format!("{at} leads to {address}")), "{text}");
    }
    let document = document(&output);
    assert_conserved(&document);
    assert_eq!(document["relay"]["addresses"].as_array().map(Vec::len), Some(2));
    assert_eq!((&document["exit_code"], &document["relay"]["connections"]), (&5.into(), &0.into()));
}

/// Without a client, the relay carries until a signal comes, and says what it has carried.
#[test]
fn a_relay_without_a_client_runs_until_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let entry = format!("tcp:127.0.0.1:0={address}");
    let words = ["--qdisc", "netem delay 10ms", "--relay", &entry, "--json", "-"];
    let Some(mut command) = ordinary(Tun::Open, words) else { return skip("not as this user") };
    let mut onramp =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut told = BufReader::new(onramp.stderr.take().expect("a pipe"));
    let mut line = String::new();
    told.read_line(&mut line).expect("a line");
    let at = line.split(' ').nth(1).expect("an address").to_owned();
    let begin = MonotonicClock.now();
    let mut near = TcpStream::connect(&at).expect("the relay listens");
    near.set_read_timeout(Some(LONG)).expect("it is open");
    near.write_all(b"hello").expect("there is room");
    near.shutdown(std::net::Shutdown::Write).expect("it is open");
    let mut text = String::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut far = listener.accept().expect("a connection").0;
            let mut text = String::new();
            far.read_to_string(&mut text).expect("it ends");
            far.write_all(text.to_uppercase().as_bytes()).expect("there is room");
        });
        near.read_to_string(&mut text).expect("it ends");
    });
    let took = MonotonicClock.now().since(begin);
    assert!(text == "HELLO" && took >= 40_000_000, "{text} {took} ns");
    drop(listener);
    // Nobody listens at the target any more.
    let mut refused = TcpStream::connect(&at).expect("the relay listens");
    refused.set_read_timeout(Some(LONG)).expect("it is open");
    refused.read(&mut [0]).expect_err("it is reset");
    let pid = onramp.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("it runs").success());
    let output = onramp.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let document = document(&output);
    assert_conserved(&document);
    let relay = &document["relay"];
    assert!(document["exit_code"].is_null(), "{document}");
    assert_eq!((&relay["connections"], &relay["connections_refused"]), (&2.into(), &1.into()));
    let failure = relay["failure"].as_str().expect("a text");
    assert!(failure.contains(&address.to_string()) && failure.contains("refused"), "{failure}");
}

#[test]
fn what_is_wrong_with_a_relay_is_told_in_a_line() {
    assert_fails(&run("wire --relay 80 -- true"), 2, &["--relay", "ADDRESS:PORT=HOST:PORT"]);
    assert_fails(&run("wire --relay 127.0.0.1:x=h:1 -- true"), 2, &["127.0.0.1:x", "[::1]:0"]);
    for other in ["--forward 80", "--pcap x", "--device tap", "--no-offload"] {
        let line = format!("wire --relay 127.0.0.1:0=h:1 {other} -- true");
        let option = other.split(' ').next().unwrap_or_default();
        assert_fails(&run(&line), 2, &["--relay", option]);
    }
    let server = "wire --relay 127.0.0.1:0=127.0.0.1:9 -- true -- true";
    assert_fails(&run(server), 2, &["--relay has no far end"]);
    let own = "wire --relay 127.0.0.1:47361=127.0.0.1:47361 -- true";
    assert_fails(&run(own), 1, &["127.0.0.1:47361", "the address itself"]);
    let unknown = "wire --relay 127.0.0.1:0=no-such-name.invalid:1 -- true";
    assert_fails(&run(unknown), 1, &["no-such-name.invalid", "cannot look the target up"]);
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|at| (at, taken)).expect("an address");
    let line = format!("wire --relay udp:{}=127.0.0.1:9 -- true", taken.0);
    assert_fails(&run(&line), 1, &["in use", "name another port"]);
    let missing = "wire --quiet --relay 127.0.0.1:0=127.0.0.1:9 -- /no/such/program";
    assert_fails(&run(missing), 1, &["the client", "/no/such/program", "No such file"]);
}
