//! The rate of a wire, measured by iperf3.

use std::process::Output;

use serde_json::Value;

use super::{ENDS, has, shared, wire_with};
use crate::stderr;

/// What iperf3 has measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) mbit: f64,
    /// Share of the segments that TCP has sent again.
    pub(super) again: f64,
}

pub(super) fn measured(output: &Output) -> Measured {
    // The server's text stands before and behind the client's JSON.
    let text = String::from_utf8_lossy(&output.stdout);
    let begin = text.find("{\n\t\"start\"").expect("JSON");
    let json = serde_json::Deserializer::from_str(&text[begin..]).into_iter().next();
    let json: Value = json.expect("JSON").expect("JSON");
    let number = |sum: &str, key: &str| json["end"][sum][key].as_f64().expect("a number");
    let segments = number("sum_sent", "bytes") / 1_448.0;
    Measured {
        mbit: number("sum_received", "bits_per_second") / 1e6,
        again: number("sum_sent", "retransmits") / segments,
    }
}

/// A server is ready before the client starts, and TCP passes at the rate and no faster. A busy
/// machine can make it slow, so one of ten tries has to reach a tenth of the rate, and can once let
/// iperf3 begin its measurement late; `cake` also drops little.
#[test]
fn tcp_passes_at_the_rate() {
    if !has("iperf3") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Two chances in 20 ms: 1.2 Mbit/s, of which 1,448 of 1,500 bytes are data.
    let mahimahi = shared(&folder, "mahimahi", "3\n20\n");
    let steps = shared(&folder, "steps", "0 rate 2mbit delay 1ms\n0 up rate 1mbit\n");
    let links = [
        (&["--trace", &mahimahi, "--then", "netem delay 2ms"][..], "100K", 1.17),
        (&["--trace", &steps], "100K", 0.96),
        (&["--profile", "lte", "--set", "up rate 1mbit delay 1ms"], "100K", 0.96),
        // 1,448 of each 1,514 bytes are data.
        (&["--qdisc", "cake bandwidth 100mbit", "--then", "netem delay 2ms"], "5M", 97.0),
        (&["--qdisc", "cake bandwidth 100mbit", "--no-offload"], "5M", 97.0),
        (&["--profile", "lte", "--mtu", "9000"], "500K", 12.0),
    ];
    for ((device, tun), (link, bytes, most)) in
        ENDS.iter().flat_map(|&end| links.map(|link| (end, link)))
    {
        let client = [device, "--", "iperf3", "-c", "192.0.2.2", "-n", bytes, "-J"];
        let server = ["--", "iperf3", "-s", "-1"];
        let words = link.iter().copied().chain(client).chain(server);
        let words: Vec<_> = words.collect();
        let is_cake = link.iter().any(|word| word.starts_with("cake"));
        let mut tries = Vec::new();
        loop {
            let Some(output) = wire_with(tun, words.iter().copied()) else { return };
            assert!(output.status.success(), "{}", stderr(&output));
            let measured = measured(&output);
            let is_right = (0.1 * most..most).contains(&measured.mbit);
            if is_right && (!is_cake || measured.again < 0.05) {
                break;
            }
            tries.push(measured);
            let fast = tries.iter().filter(|measured| measured.mbit >= most).count();
            assert!(fast < 2, "{device} {link:?}: {tries:?}");
            assert!(tries.len() < 10, "{device} {link:?}: {tries:?}");
        }
    }
}
