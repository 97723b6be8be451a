//! Captures of a form that is seldom met, and packets that never leave.

use serde_json::Value;

use super::files::{BEGIN, Frames, block, frame, interface, packet, pcap, section};
use super::{succeeded, write};
use crate::run;

/// Old programs wrote packet blocks, which have the number of the interface in 16 bits.
#[test]
fn packet_blocks_are_packets() {
    let folder = tempfile::tempdir().expect("a folder");
    let time = BEGIN * 1_000_000_000;
    let bytes = frame(100, 1, 0);
    for big in [false, true] {
        let half = |word: u64| u32::try_from(word & 0xffff_ffff).expect("half");
        let old = |time: u64| block(big, 2, &[0, half(time >> 32), half(time), 100, 100], &bytes);
        let parts = [section(big), interface(big, 9, 0), old(time), packet(big, 0, time, &bytes)];
        let file = write(folder.path(), "old.pcapng", &[parts.concat(), old(time + 5)].concat());
        let rows = succeeded(&run(&format!("replay {file} --qdisc pfifo --csv -")));
        let came: Vec<_> = rows.lines().skip(1).filter_map(|row| row.split(',').nth(6)).collect();
        assert_eq!(came, ["0", "0", "5"], "{big}");
    }
}

/// A flow whose packets stay in the tree has wanted to send, and got nothing.
#[test]
fn held_packets_count_for_their_flows() {
    let folder = tempfile::tempdir().expect("a folder");
    let frames: Frames = (0..10).map(|at| (at, frame(100, 1 + (at % 2) as u16, 0))).collect();
    let file = write(folder.path(), "two.pcap", &pcap(1, 1, &frames));
    let setup = "tc qdisc add dev eth0 root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 \
                 0 0 0 0\n\
                 tc qdisc add dev eth0 parent 1:2 plug\n\
                 tc filter add dev eth0 parent 1: protocol ip u32 match ip sport 2 0xffff classid \
                 1:2\n";
    let setup = write(folder.path(), "plug.tc", setup.as_bytes());
    let line = format!("replay {file} --setup {setup} --json -");
    let summary: Value = serde_json::from_str(&succeeded(&run(&line))).expect("JSON");
    assert_eq!((&summary["held"], &summary["flows_known"]), (&5.into(), &2.into()));
    assert_eq!(summary["max_min_fairness"], 0.5);
    let flows = summary["flows"].as_array().expect("flows").iter();
    let flows: Vec<_> = flows.map(|flow| [&flow["packets"], &flow["sent_packets"]]).collect();
    assert_eq!(flows, [[5, 5], [5, 0]]);
}

/// The upper half of the link type of a pcap file is about checksums behind the frames. A frame of
/// IEEE 802.3 has a length where others have a type.
#[test]
fn checksums_and_lengths_are_no_types() {
    let folder = tempfile::tempdir().expect("a folder");
    let lengths = [38_u16, 39].map(|length| {
        let mut frame = frame(100, 1, 0);
        frame[12..14].copy_from_slice(&length.to_be_bytes());
        (0, frame)
    });
    let file = write(folder.path(), "llc.pcap", &pcap(1, 0x1400_0001, &lengths.into()));
    let text = succeeded(&run(&format!("replay {file} --qdisc pfifo")));
    assert!(text.contains("came") && text.contains(" 2 packets of 1 flow"), "{text}");
}
