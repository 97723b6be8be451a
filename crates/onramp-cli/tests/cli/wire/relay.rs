//! A wire without namespaces: `onramp wire --relay`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use onramp_core::Clock as _;
use onramp_dev::MonotonicClock;

use super::{Net, Tun, as_ordinary, assert_conserved, document, ordinary, program};
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

/// A command that names no wire says which one it has changed. A wire whose process was stopped is
/// listed, and keeps no other from being listed.
#[test]
fn wires_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let command = |words: &[&str]| {
        let mut command = ordinary(Tun::Open, words.iter().copied())?;
        command.env("TMPDIR", folder.path()).env_remove("XDG_RUNTIME_DIR");
        Some(command)
    };
    let done = |words: &[&str]| {
        let output = command(words).expect("it was possible before").output().expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
    };
    let start = || {
        let words = ["--quiet", "--relay", "udp:127.0.0.1:0=127.0.0.1:9"];
        let running = command(&words)?.stderr(Stdio::null()).spawn().expect("it runs");
        let shown = format!("{}  the relay", running.id());
        let end = MonotonicClock.now().after(120_000_000_000);
        while !done(&["list"]).0.contains(&shown) {
            assert!(MonotonicClock.now() < end, "it never begins");
        }
        Some(Running(running))
    };
    let Some(first) = start() else { return skip("not as this user") };
    let (_, told) = done(&["set", "rate", "1mbit"]);
    let changed = format!("changed the only wire that runs, {}: the relay at 127", first.0.id());
    assert!(told.contains(&changed), "{told}");
    let pid = first.0.id().to_string();
    assert_eq!(done(&["set", "--wire", &pid, "rate", "2mbit"]).1, "");
    first.signal("-STOP");
    let second = start().expect("it was possible before");
    let lists = |words: &str| {
        let end = MonotonicClock.now().after(120_000_000_000);
        loop {
            let (list, _) = done(&["list"]);
            if list.contains(words) {
                return list;
            }
            assert!(MonotonicClock.now() < end, "{words}: {list}");
        }
    };
    let list = lists(&format!("{}  the relay", second.0.id()));
    assert!(list.contains(&format!("{pid}  (does not answer: its process may be")), "{list}");
    first.signal("-CONT");
    lists(&format!("{pid}  the relay"));
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("it runs").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Sends a byte from one end of a connection to the other, and another back.
fn exchange((near, far): &mut (TcpStream, TcpStream)) {
    let mut byte = [0];
    near.write_all(b"q").expect("there is room");
    far.read_exact(&mut byte).expect("it comes");
    far.write_all(b"a").expect("there is room");
    near.read_exact(&mut byte).expect("it comes");
    assert_eq!(byte, *b"a");
}

/// Connects, and returns both ends as soon as a byte has come to the far end. Connections that have
/// ended before are taken, too, and dropped.
fn connect(at: &str, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut near = TcpStream::connect(at).expect("the relay listens");
    near.set_read_timeout(Some(LONG)).expect("it is open");
    near.write_all(b"b").expect("there is room");
    let end = MonotonicClock.now().after(120_000_000_000);
    while MonotonicClock.now() < end {
        let Ok((mut far, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        far.set_nonblocking(false).expect("it is open");
        far.set_read_timeout(Some(LONG)).expect("it is open");
        if far.read(&mut [0]).is_ok_and(|count| count == 1) {
            return (near, far);
        }
    }
    panic!("the connection does not come through");
}

/// While no file descriptor is left, connections wait and datagrams of new clients are discarded,
/// both are counted, and what is connected goes on. Later, new ones come through again.
#[test]
fn a_relay_outlives_the_lack_of_descriptors() {
    const DESCRIPTORS: usize = 48;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it is open");
    let target = listener.local_addr().expect("an address");
    let Ok(server) = UdpSocket::bind(target) else { return skip("the port has another user") };
    server.set_read_timeout(Some(Duration::from_millis(50))).expect("it is open");
    let onramp = program().to_str().expect("UTF-8");
    let (limited, entry) =
        (format!("ulimit -n {DESCRIPTORS} && exec \"$@\""), format!("127.0.0.1:0={target}"));
    let words = ["sh", "-c", &limited, "sh", onramp, "wire", "--relay", &entry, "--json", "-"];
    let Some(mut command) = as_ordinary(Tun::Open, words, Net::Machine) else {
        return skip("not as this user");
    };
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut running = Running(running.expect("it runs"));
    let mut told = BufReader::new(running.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    told.read_line(&mut line).expect("a line");
    let at = line.split(' ').nth(1).expect("an address").to_owned();

    let mut pairs: Vec<_> = (0..3).map(|_| connect(&at, &listener)).collect();
    let many = || TcpStream::connect(&at).expect("the kernel lets it wait");
    let flood: Vec<_> = (0..DESCRIPTORS).map(|_| many()).collect();
    let descriptors = format!("/proc/{}/fd", running.0.id());
    let end = MonotonicClock.now().after(120_000_000_000);
    while fs::read_dir(&descriptors).expect("it runs").count() < DESCRIPTORS {
        assert!(MonotonicClock.now() < end, "the descriptors last");
        thread::sleep(Duration::from_millis(10));
    }
    let client = UdpSocket::bind("127.0.0.1:0").expect("a port");
    client.send_to(b"discarded", &at).expect("it is sent");
    pairs.iter_mut().for_each(exchange);

    drop(flood);
    pairs.push(connect(&at, &listener));
    pairs.iter_mut().for_each(exchange);
    let mut bytes = [0; 9];
    let comes = |_: &u32| {
        client.send_to(b"comes", &at).expect("it is sent");
        server.recv(&mut bytes).is_ok_and(|count| bytes[..count] == *b"comes")
    };
    (0..600).find(comes).expect("a datagram comes through");

    running.signal("-INT");
    let mut text = String::new();
    running.0.stdout.take().expect("a pipe").read_to_string(&mut text).expect("it ends");
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_conserved(&document);
    let relay = &document["relay"];
    assert_eq!(relay["connections"], 4 + DESCRIPTORS, "{relay}");
    assert!(relay["waits"].as_u64() > Some(0) && relay["no_socket"].as_u64() > Some(0), "{relay}");
    assert!(relay["failure"].as_str().is_some_and(|why| why.contains("Too many open")), "{relay}");
}

/// A filter that matches what packets in a relay do not have is told of.
#[test]
fn filters_without_headers_to_match_are_told_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lines");
    let lines = "qdisc add dev x root handle 1: prio
        filter add dev x parent 1: protocol ip flower dst_ip 192.0.2.1 classid 1:1
        filter add dev x parent 1: protocol ip basic match 'cmp(u8 at 9 layer network eq 6)' \
            flowid 1:1
        filter add dev x parent 1: protocol all matchall classid 1:2
";
    fs::write(&file, lines.replace("\\\n", "")).expect("a file");
    let line = format!("wire --relay 127.0.0.1:0=127.0.0.1:9 --setup {} -- true", file.display());
    let told = stderr(&run(&line));
    let notes: Vec<_> = told.lines().filter(|line| line.contains("have no headers")).collect();
    assert_eq!(notes.len(), 2, "{told}");
    for words in ["flower dst_ip 192.0.2.1", "cmp ( u8 at 9 layer network eq 6 )"] {
        assert!(notes.iter().any(|note| note.contains(words)), "{words}: {told}");
    }
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
    assert_fails(&run(missing), 127, &["the client", "/no/such/program", "No such file"]);
}
