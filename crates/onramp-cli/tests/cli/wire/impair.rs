//! Losses, duplicates and reordering, as a receiver of datagrams sees them.

use serde_json::Value;

use super::{has, shared, wire};
use crate::stderr;

/// Number of datagrams.
const COUNT: u32 = 2_000;

/// Sends numbered datagrams, one a millisecond, and then ends until the server has one.
const CLIENT: &str = "\
import os, socket, time
to = (os.environ['ONRAMP_PEER'], 7000)
s = socket.socket(type=socket.SOCK_DGRAM)
for number in range(2000):
    s.sendto(number.to_bytes(4, 'big'), to)
    time.sleep(0.001)
time.sleep(0.5)
s.settimeout(0.1)
for _ in range(100):
    s.sendto(b'end', to)
    try:
        s.recv(10)
        break
    except TimeoutError:
        pass
";

/// Counts datagrams that are missing, that come again, and that come before an earlier one; and
/// those for which the receive buffer had no room.
const SERVER: &str = "\
import json, socket
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
s.bind(('0.0.0.0', 7000))
seen, again, before, least = set(), 0, 0, 0
while True:
    data, sender = s.recvfrom(10)
    if data == b'end':
        break
    number = int.from_bytes(data, 'big')
    again += number in seen
    before += number not in seen and number > least
    seen.add(number)
    while least in seen:
        least += 1
full = sum(int(line.split()[-1]) for line in list(open('/proc/net/udp'))[1:])
counts = {'missing': 2000 - len(seen), 'again': again, 'before': before, 'full': full}
print(json.dumps(counts), flush=True)
s.sendto(b'end', sender)
";

/// Sends datagrams over a wire with this qdisc. Returns what the server has counted.
fn counted(folder: &tempfile::TempDir, qdisc: &str) -> Option<Value> {
    let [client, server] = [("client.py", CLIENT), ("server.py", SERVER)]
        .map(|(name, text)| shared(folder, name, text));
    let words = ["--seed", "11", "--up", qdisc, "--", "python3", &client, "--"];
    let output = wire(words.into_iter().chain(["python3", &server]))?;
    assert!(output.status.success(), "{}", stderr(&output));
    Some(serde_json::from_slice(&output.stdout).expect("the server has printed it"))
}

/// Shares are those of the qdisc: within four standard deviations. A machine that is so busy that
/// the receive buffer overflows, or that packets do not come within 20 ms of one another, is asked
/// again.
#[test]
fn shares_are_those_of_the_qdisc() {
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (qdisc, key, share) in [
        ("netem loss 10%", "missing", 0.1),
        ("netem duplicate 20%", "again", 0.2),
        // A packet that is not delayed comes before the 20 that were sent just before it.
        ("netem delay 20ms reorder 25%", "before", 0.25),
    ] {
        let count = f64::from(COUNT);
        let (mean, deviation) = (share * count, (share * (1.0 - share) * count).sqrt());
        let mut tries = Vec::new();
        loop {
            let Some(found) = counted(&folder, qdisc) else { return };
            let of = |key: &str| found[key].as_f64().expect("a number");
            // After a loss, later packets come before the one that is missing.
            let others = ["missing", "again", "before"]
                .into_iter()
                .filter(|other| *other != key && !(key == "missing" && *other == "before"));
            let pure = others.map(of).sum::<f64>() == 0.0;
            let close = (of(key) - mean).abs() <= 4.0 * deviation;
            // Nothing but the qdisc loses and copies, if no buffer was full. Packets may come late
            // because of the machine.
            let is_disturbed = !pure || of("full") > 0.0 || key == "before";
            assert!(close || is_disturbed, "{qdisc}: {mean} +- {deviation}: {found}");
            if of("full") == 0.0 && close && pure {
                break;
            }
            tries.push(found);
            assert!(tries.len() < 5, "{qdisc}: {mean} +- {deviation}: {tries:?}");
        }
    }
}
