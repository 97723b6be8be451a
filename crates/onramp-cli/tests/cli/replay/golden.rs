//! Replays packets that a real Linux 7.2 was given, and compares the outcome with what Linux did
//! with these packets.
//!
//! The recordings lie outside the project, in `../shared/golden` beside the repository or in
//! `$ONRAMP_SHARED/golden`. Without them the test prints that it is skipped, and passes.

use std::fs;

use super::super::reference;
use super::files::{Frames, frame, pcap};
use super::{run, succeeded, write};

/// Cases recorded with a wire of 10 Mbit/s, in which a packet may bypass an empty qdisc, as it may
/// in `onramp replay`.
const CASES: [&str; 2] = ["pfifo100-bypass", "codel-bypass"];

/// Returns the values in the column `name` of a text of comma-separated values whose first line is
/// a header.
fn column<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let place = head.split(',').position(|column| column == name).expect("a column");
    lines.map(move |line| line.split(',').nth(place).expect("all columns"))
}

#[test]
fn a_capture_of_the_workload_is_shaped_as_linux_did() {
    let Some(golden) = reference("golden") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for name in CASES {
        let case = golden.join(name);
        let workload = fs::read_to_string(case.join("workload.csv")).expect("a recording");
        // A replay counts times from the first packet of the capture. If the recorded workload does
        // not begin at time 0, the test puts an extra packet of time 0 in front, so that the replay
        // and the recording count from the same moment.
        let late = column(&workload, "time_ns").next() != Some("0");
        let mut frames: Frames = if late { vec![(0, frame(60, 1, 0))] } else { Vec::new() };
        let before = u32::from(late);
        let [times, flows] = ["time_ns", "flow_id"].map(|name| column(&workload, name));
        let [sizes, marks] = ["size_bytes", "ecn"].map(|name| column(&workload, name));
        frames.extend(times.zip(flows).zip(sizes.zip(marks)).map(|((time, flow), (size, ecn))| {
            let port = 10_000 + flow.parse::<u16>().expect("a small number");
            let size = size.parse().expect("bytes");
            let frame = frame(size, port, ecn.parse().expect("a code point"));
            (time.parse().expect("nanoseconds"), frame)
        }));
        let file = write(folder.path(), "in.pcap", &pcap(1, 1, &frames));
        let setup = case.join("tc.txt");
        let line = format!("replay {file} --setup {} --rate 10mbit --csv -", setup.display());
        let rows = succeeded(&run(&line));

        let kernel = fs::read_to_string(case.join("kernel.csv")).expect("kernel.csv");
        let events = column(&kernel, "event").zip(column(&kernel, "time_ns"));
        let packets = column(&kernel, "idx").zip(column(&kernel, "ecn"));
        let left = events.zip(packets).filter(|((event, _), _)| *event == "deq");
        let theirs: Vec<_> = left
            .map(|((_, time), (idx, ecn))| (time, idx.parse::<u32>().expect("a number"), ecn))
            .collect();
        let times = column(&rows, "out_ns").zip(column(&rows, "packet"));
        let left = times.zip(column(&rows, "ecn_out")).filter(|((out, _), _)| !out.is_empty());
        let ours: Vec<_> = left
            .map(|((out, packet), ecn)| (out, packet.parse::<u32>().expect("a number"), ecn))
            .filter(|(_, packet, _)| *packet > before)
            .map(|(out, packet, ecn)| (out, packet - 1 - before, ecn))
            .collect();
        let same = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
        let at = (ours.get(same), theirs.get(same));
        assert_eq!((ours.len(), same), (theirs.len(), theirs.len()), "{name}: {at:?}");
    }
}
