//! Long transfers through a bridge, and floods of it.

use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use super::{TRIES, assert_conserved, assert_ok, in_network, in_network_for};
use crate::read_json;

/// For how long the test of a long transfer transfers, seconds, unless the variable
/// `ONRAMP_TRANSFER_SECONDS` says otherwise.
const SECONDS: u64 = 10;

/// What passes under loss and delay arrives unchanged.
#[test]
fn a_long_transfer_under_loss_arrives_whole() {
    const SEND: &str = "\
import hashlib, os, socket, sys, time
s = socket.create_connection(('192.0.2.2', 7000))
digest, end = hashlib.sha256(), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    block = os.urandom(65536)
    s.sendall(block)
    digest.update(block)
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(digest.hexdigest())
";
    let wanted = std::env::var("ONRAMP_TRANSFER_SECONDS").ok();
    let seconds = wanted.map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("send.py"), SEND).expect("a file");
    let script = format!(
        "\
shape --seed 3 --qdisc 'netem delay 10ms loss 1%'
listen sh -c 'nc -N -l -p 7000 | sha256sum | cut -d\" \" -f1 > got'
client python3 send.py {seconds} > sent
wait $!
cmp sent got
finish
"
    );
    let output = in_network_for(200 + seconds, folder.path(), 1_500, &script);
    let Some(output) = output else { return };
    assert_ok(folder.path(), &output);
    let document = read_json(&folder.path().join("shaped.json"));
    assert_conserved(&document);
    assert!(document["egress"]["drops"]["impaired"].as_u64() > Some(0), "{document}");
    assert_eq!(fs::read_to_string(folder.path().join("got")).expect("a digest").len(), 65);
    println!("{seconds} s: {document}");
}

/// Sends datagrams for four seconds: 1,442 bytes with the headers each, 50 Mbit/s (fewer on a busy
/// machine). Prints for how many seconds it sent.
const FLOOD: &str = "\
import socket, time
s, begin, sent = socket.socket(type=socket.SOCK_DGRAM), time.monotonic(), 0
while time.monotonic() < begin + 4:
    s.sendto(bytes(1400), ('192.0.2.2', 9))
    sent += 1
    time.sleep(max(0, begin + sent * 0.00023 - time.monotonic()))
print(time.monotonic() - begin)
";
/// Counts the datagrams that come, and ends when none has come for four seconds.
const COUNT: &str = "\
import socket
s, count = socket.socket(type=socket.SOCK_DGRAM), 0
s.bind(('192.0.2.1', 7000))
s.settimeout(4)
try:
    while True:
        s.recv(2000)
        count += 1
except TimeoutError:
    print(count)
";
/// Sends 2,000 datagrams, one a millisecond.
const SEND: &str = "\
import socket, time
s = socket.socket(type=socket.SOCK_DGRAM)
for _ in range(2000):
    s.sendto(bytes(1000), ('192.0.2.1', 7000))
    time.sleep(0.001)
";

/// The client floods the bridge with ten times of what the qdisc lets pass. The other direction
/// loses nothing, the qdisc counts what it drops, and no memory is taken.
#[test]
fn a_flood_leaves_the_other_direction_alone() {
    for device in ["packet", "xdp"] {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [("flood.py", FLOOD), ("count.py", COUNT), ("send.py", SEND)] {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        let script = format!(
            "\
shape --device {device} --ingress 'tbf rate 5mbit burst 16kb latency 50ms'
client ping -c1 -W5 192.0.2.2
grep VmRSS /proc/$shaper/status > before
client python3 flood.py > flooded &
flood=$!
client python3 count.py > count &
count=$!
sleep 1
server python3 send.py
wait $flood
wait $count
grep VmRSS /proc/$shaper/status > after
finish
"
        );
        let mut tries = Vec::new();
        loop {
            let Some(output) = in_network(folder.path(), 1_500, &script) else { return };
            assert_ok(folder.path(), &output);
            let document = read_json(&folder.path().join("shaped.json"));
            assert_conserved(&document);
            let flooded = &document["ingress"];
            let number = |of: &serde_json::Value| of.as_f64().expect("a number");
            let lasted: f64 = read_word(&folder.path().join("flooded"), 0);
            // The rate for as long as the flood lasted, the burst at its begin, and the queue that
            // it left: 50 ms and the burst. The rest is for the ping, and what ARP sends.
            let most = 625_000.0 * (lasted + 0.05) + 2.0 * 16_384.0 + 4_096.0;
            assert!(number(&flooded["sent_bytes"]) < most, "{lasted} s: {document}");
            assert!(number(&flooded["drops"]["overlimit"]) > 0.0, "{document}");
            let count: u64 = read_word(&folder.path().join("count"), 0);
            let other = &document["egress"];
            assert_eq!(other["drops"].as_object().map(serde_json::Map::len), Some(0), "{document}");
            assert_eq!(other["refused"], 0, "{document}");
            let memory: [u64; 2] =
                ["before", "after"].map(|name| read_word(&folder.path().join(name), 1));
            // In KiB. The flood was 24,000.
            assert!(memory[1] < memory[0] + 12_000, "{memory:?}");
            // A busy machine can lose datagrams before and behind the bridge.
            if count == 2_000 {
                break;
            }
            tries.push(count);
            assert!(tries.len() < TRIES as usize, "{device}: {tries:?}");
        }
    }
}

/// Returns the number that is a word of a file.
fn read_word<T: FromStr<Err: Debug>>(path: &Path, word: usize) -> T {
    let text = fs::read_to_string(path).expect("it was written");
    let word = text.split_whitespace().nth(word).expect("a word");
    word.parse().expect("a number")
}
