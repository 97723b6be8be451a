//! A wire keeps the rates, delays, retransmissions and times that its options name, within bounds
//! that a user would notice. The programs have a high priority where that is allowed, and one of
//! some tries has to be good, because other programs can make a wire slower. They cannot make it
//! faster: a wire that is too fast fails at once.

use std::ops::Range;
use std::process::{Command, Output, Stdio};

use super::rate::measured;
use super::{ENDS, Net, Tun, as_ordinary, has, ordinary, root, shared, skip, wire_with};
use crate::stderr;

/// Number of tries.
const TRIES: usize = 12;

/// Loads the wire with TCP for four seconds, of which iperf3 counts the last three, and pings
/// meanwhile.
const LOADED: &str = "\
iperf3 -c 192.0.2.2 -t 3 -O 1 -J &
iperf3=$!
sleep 2
ping -q -i 0.05 -c 40 192.0.2.2 >&2
wait $iperf3
";

/// Its results would stand between those of the client.
const SERVER: &str = "exec iperf3 -s -1 > /dev/null";

/// Returns this command, run with a high priority where that is allowed.
fn preferred(plain: &Command) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "-15"]).arg(plain.get_program()).args(plain.get_args());
    command.stdin(Stdio::null()).current_dir("/");
    command
}

/// Runs `onramp wire` with these words, as an ordinary user and with a high priority. Returns
/// `None`, and prints why, if this is not possible here.
fn favoured<'a>(tun: Tun, words: impl IntoIterator<Item = &'a str>) -> Option<Output> {
    let Some(plain) = ordinary(tun, words) else {
        return wire_with(tun, ["--", "true"]);
    };
    let output = preferred(&plain).output().expect("the program runs");
    if !output.status.success() {
        // Is a wire possible here at all?
        wire_with(tun, ["--", "true"])?;
    }
    Some(output)
}

/// The least, the mean and the greatest round-trip time in the summary of `ping`, milliseconds.
fn times(text: &str) -> [f64; 3] {
    let (_, times) = text.split_once("min/avg/max/mdev = ").expect("a summary");
    let mut numbers = times.split('/').map(|number| number.parse().expect("a number"));
    [(); 3].map(|()| numbers.next().expect("three numbers"))
}

/// What is asked of a wire.
struct Asked<'a> {
    words: &'a [&'a str],
    /// The rate of the data of TCP, Mbit/s.
    mbit: Range<f64>,
    /// The mean round-trip time of `ping` under load, ms.
    ping: Range<f64>,
    /// The greatest share of segments that TCP sends again.
    again: f64,
}

impl Asked<'_> {
    /// Checks that one of some wires keeps what was asked, if wires are possible here.
    fn is_had(&self, device: &str, tun: Tun) {
        let (mut tries, mut failed) = (Vec::new(), Vec::new());
        for _ in 0..TRIES {
            let programs = ["--", "sh", "-c", LOADED, "--", "sh", "-c", SERVER];
            let words = [device].into_iter().chain(self.words.iter().copied()).chain(programs);
            let Some(output) = favoured(tun, words) else { return };
            if !output.status.success() {
                // On a busy machine, a connection can fail.
                failed.push(stderr(&output));
                continue;
            }
            let (tcp, ping) = (measured(&output), times(&stderr(&output))[1]);
            let is_good = self.mbit.contains(&tcp.mbit)
                && self.ping.contains(&ping)
                && tcp.again < self.again;
            tries.push((tcp, ping));
            // On a busy machine, iperf3 can begin to count late, when bytes have come already.
            let fast = tries.iter().filter(|(tcp, _)| tcp.mbit >= self.mbit.end).count();
            let is_early = ping < self.ping.start;
            assert!(fast < 2 && !is_early, "{device} {:?}: {tries:?}", self.words);
            if is_good {
                return;
            }
        }
        panic!("{device} {:?}: {tries:?} {failed:?}", self.words);
    }
}

/// 1,448 of the 1,514 bytes of a frame are data, so 9.56 Mbit/s of 10 are possible.
#[test]
fn a_rate_is_had_within_four_percent() {
    if !has("iperf3") || !has("ping") {
        return;
    }
    let words = &["--qdisc", "netem delay 20ms rate 10mbit"];
    let asked = Asked { words, mbit: 9.18..9.66, ping: 40.0..5_000.0, again: 1.0 };
    for (device, tun) in ENDS {
        asked.is_had(device, tun);
    }
}

/// `cake` cuts super-frames: TCP has its rate, loses next to nothing, and a ping waits little.
#[test]
fn cake_keeps_queues_short_at_its_rate() {
    if !has("iperf3") || !has("ping") {
        return;
    }
    let words = &["--qdisc", "cake bandwidth 100mbit"];
    let asked = Asked { words, mbit: 92.0..97.0, ping: 0.0..10.0, again: 0.01 };
    for (device, tun) in ENDS {
        asked.is_had(device, tun);
    }
}

/// A queue of 1,000 packets of 1,514 bytes takes 605 ms at 20 Mbit/s. Datagrams fill it in less
/// than a second.
#[test]
fn a_long_fifo_takes_hundreds_of_milliseconds() {
    const FULL: &str = "\
iperf3 -u -c 192.0.2.2 -b 40M -t 4 > /dev/null &
iperf3=$!
sleep 2
ping -q -i 0.05 -c 20 192.0.2.2
wait $iperf3
";
    if !has("iperf3") || !has("ping") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let lines = "qdisc add dev w root handle 1: tbf rate 20mbit burst 16kb limit 10mb\n\
                 qdisc add dev w parent 1:1 pfifo limit 1000\n";
    let file = shared(&folder, "fifo", lines);
    let words = ["--setup", &file, "--", "sh", "-c", FULL, "--", "sh", "-c", SERVER];
    let mut tries = Vec::new();
    // A request that is dropped has no answer, so the others found the queue nearly full.
    while !tries.last().is_some_and(|(least, greatest)| *least >= 550.0 && *greatest < 700.0) {
        assert!(tries.len() < TRIES, "{tries:?}");
        let Some(output) = favoured(Tun::Open, words) else { return };
        assert!(output.status.success(), "{}", stderr(&output));
        let [least, _, greatest] = times(&String::from_utf8_lossy(&output.stdout));
        assert!(least < 650.0, "{least} ms are more than a full queue takes");
        tries.push((least, greatest));
    }
}

/// A wire of 1 Gbit/s carries 1 Gbit/s.
#[test]
fn a_gigabit_is_had() {
    if !has("iperf3") || !has("ping") {
        return;
    }
    let words = &["--qdisc", "tbf rate 1gbit burst 128kb latency 20ms"];
    let asked = Asked { words, mbit: 918.0..975.0, ping: 0.0..60.0, again: 1.0 };
    asked.is_had("--device=tap", Tun::Open);
}

/// TCP through a wire without any limit is at least as fast as through `pasta`, another program
/// that gives an ordinary user's command a network. Both run in turn, with the same programs.
#[test]
fn tcp_is_as_fast_as_through_pasta() {
    // `pasta` only runs in a network with a default route. In its own one, the gateway's address
    // stands for the loopback interface of the network around it.
    const NETWORK: &str = "\
ip link set lo up
ip link add outside type veth peer name far
ip link set far up
ip address add 198.51.100.2/24 dev outside
ip link set outside up
ip route add default via 198.51.100.1
exec \"$@\"
";
    const PASTA: &str = "\
timeout -k 1 30 iperf3 -s -1 > /dev/null &
for i in $(seq 200); do ss -ltn | grep -q :5201 && break; sleep 0.05; done
timeout -k 1 20 pasta --config-net -- iperf3 -c 198.51.100.1 -t 2 -O 1 -J
";
    const ROUNDS: usize = 3;
    if !has("iperf3") || !has("pasta") {
        return;
    }
    if !root() {
        return skip("onramp wire: only root can make a network in which pasta runs");
    }
    let wire = || {
        let client = ["--", "iperf3", "-c", "192.0.2.2", "-t", "2", "-O", "1", "-J"];
        let server = ["--", "sh", "-c", SERVER];
        favoured(Tun::Open, client.into_iter().chain(server))
    };
    let pasta = || {
        let plain = as_ordinary(Tun::Open, ["sh", "-c", PASTA], Net::Machine).expect("root runs");
        let preferred = preferred(&plain);
        // When the first process of a process namespace ends, the kernel ends the others: `pasta`
        // can leave one behind.
        let mut command = Command::new("unshare");
        command.args(["--net", "--pid", "--fork", "--mount-proc", "sh", "-c", NETWORK, "sh"]);
        command.arg(preferred.get_program());
        command.args(preferred.get_args()).stdin(Stdio::null()).current_dir("/");
        command.output().expect("the program runs")
    };
    let median = |rates: &[f64]| {
        let mut rates = rates.to_vec();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    // All rounds count, so that no single one in which `pasta` was disturbed decides.
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    loop {
        for _ in 0..ROUNDS {
            let Some(output) = wire() else { return };
            assert!(output.status.success(), "{}", stderr(&output));
            ours.push(measured(&output).mbit);
            let output = pasta();
            assert!(output.status.success(), "{}", stderr(&output));
            theirs.push(measured(&output).mbit);
        }
        if median(&ours) >= median(&theirs) {
            return;
        }
        assert!(ours.len() < TRIES, "{ours:?} {theirs:?}");
    }
}

/// A ping takes both delays, and at most a millisecond more in each direction.
#[test]
fn a_delay_is_had_within_a_millisecond() {
    // The first ping also waits for the address of the other end.
    const PING: &str = "ping -c 1 192.0.2.2 > /dev/null; exec ping -q -c 20 -i 0.05 192.0.2.2";
    if !has("ping") {
        return;
    }
    let ping = ["--", "sh", "-c", PING];
    for (device, tun) in ENDS {
        let mut tries = Vec::new();
        while !tries.last().is_some_and(|mean| (40.0..42.0).contains(mean)) {
            assert!(tries.len() < TRIES, "{device}: {tries:?}");
            let words = [device, "--qdisc", "netem delay 20ms"].into_iter().chain(ping);
            let Some(output) = favoured(tun, words) else { break };
            let [least, mean, _] = times(&String::from_utf8_lossy(&output.stdout));
            assert!(least >= 40.0, "{device}: {least}");
            tries.push(mean);
        }
    }
}

/// The steps of a trace come within 50 ms of their times. The link goes down for a second; the
/// server sees how long no datagram comes.
#[test]
fn steps_come_within_50_milliseconds() {
    const CLIENT: &str = "\
import os, socket, time
s = socket.socket(type=socket.SOCK_DGRAM)
for _ in range(3000):
    s.sendto(b'x', (os.environ['ONRAMP_PEER'], 7000))
    time.sleep(0.001)
for _ in range(20):
    s.sendto(b'end', (os.environ['ONRAMP_PEER'], 7000))
    time.sleep(0.05)
";
    const SERVER: &str = "\
import socket, time
s = socket.socket(type=socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 7000))
came = []
while s.recv(9) != b'end':
    came.append(time.monotonic())
print(max(later - earlier for earlier, later in zip(came, came[1:])), flush=True)
";
    if !has("python3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let trace = shared(&folder, "trace", "1 up link down\n2 up link up\n");
    let client = shared(&folder, "client.py", CLIENT);
    let server = shared(&folder, "server.py", SERVER);
    let words = ["--trace", &trace, "--", "python3", &client, "--", "python3", &server];
    let mut tries = Vec::new();
    while !tries.last().is_some_and(|gap: &f64| (gap - 1.0).abs() < 0.05) {
        assert!(tries.len() < TRIES, "{tries:?}");
        let Some(output) = favoured(Tun::Open, words) else { return };
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        tries.push(text.trim().parse().expect("a number"));
    }
}
