//! Makes the captures in the folder `examples`, which the documents use.

use std::fs;
use std::path::Path;

use etherparse::PacketBuilder;

use super::{run, stderr};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
/// If this environment variable is set, the test writes the files that it would otherwise compare.
const WRITE: &str = "ONRAMP_WRITE_DOCS";
/// When the captures begin: the first second of 2026, in microseconds since 1970.
const START: u64 = 1_767_225_600_000_000;
/// Microseconds between two packets of a voice, and between two bursts of the upload.
const VOICE_EVERY: u64 = 20_000;
const BURST_EVERY: u64 = 13_000;
/// Packets of a burst, and microseconds between them: they come over a link of 100 Mbit/s.
const BURST: u32 = 16;
const BURST_GAP: u64 = 121;
/// Payload of a TCP packet, and length of the headers in front of it, in bytes.
const SEGMENT: usize = 1_460;
const HEADERS: usize = 54;

/// A captured packet.
struct Captured {
    /// Microseconds after the beginning of the capture.
    at: u64,
    frame: Vec<u8>,
    /// Length on the wire; more than that of `frame` if only the beginning was captured.
    length: usize,
}

/// Returns packet `number` of a voice that host `from` sends to host `to`: 20 ms of silence, in
/// G.711 over RTP.
fn voice(from: u8, to: u8, number: u16) -> Captured {
    let mut rtp = vec![0x80, 0];
    rtp.extend(number.to_be_bytes());
    rtp.extend((u32::from(number) * 160).to_be_bytes());
    rtp.extend([0, 0, 0, from]);
    rtp.resize(12 + 160, 0xff);
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, from], [2, 0, 0, 0, 0, to])
        .ipv4([192, 0, 2, from], [192, 0, 2, to], 64)
        .udp(16_384, 16_384);
    let mut frame = Vec::new();
    builder.write(&mut frame, &rtp).expect("a vector takes everything");
    let at = u64::from(number) * VOICE_EVERY + u64::from(from) * 1_000;
    Captured { at, length: frame.len(), frame }
}

/// Returns the headers of packet `number` of an upload in bursts.
fn upload(number: u32) -> Captured {
    let sequence = number * u32::try_from(SEGMENT).expect("it fits");
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 9])
        .ipv4([192, 0, 2, 3], [192, 0, 2, 9], 64)
        .tcp(40_000, 443, sequence, 65_000)
        .ack(1);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[0; SEGMENT]).expect("a vector takes everything");
    let length = frame.len();
    frame.truncate(HEADERS);
    let (burst, place) = (u64::from(number / BURST), u64::from(number % BURST));
    Captured { at: burst * BURST_EVERY + place * BURST_GAP, frame, length }
}

fn word(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("it fits").to_le_bytes()
}

/// Returns a capture in the classic format.
fn pcap(packets: &[Captured]) -> Vec<u8> {
    let mut file = Vec::new();
    for field in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend(field.to_le_bytes());
    }
    for Captured { at, frame, length } in packets {
        let at = usize::try_from(START + at).expect("64 bits");
        for field in [at / 1_000_000, at % 1_000_000, frame.len(), *length] {
            file.extend(word(field));
        }
        file.extend(frame);
    }
    file
}

/// Returns a capture in the format pcapng.
fn pcapng(packets: &[Captured]) -> Vec<u8> {
    let block = |kind: u32, mut body: Vec<u8>| {
        body.resize(body.len().next_multiple_of(4), 0);
        let length = word(body.len() + 12);
        [&kind.to_le_bytes()[..], &length, &body, &length].concat()
    };
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let mut file = block(0x0a0d_0d0a, section);
    file.extend(block(1, vec![1, 0, 0, 0, 0, 0, 4, 0]));
    for Captured { at, frame, length } in packets {
        let at = START + at;
        let [low, high] = [at & 0xffff_ffff, at >> 32]
            .map(|half| u32::try_from(half).expect("32 bits").to_le_bytes());
        let fields = [[0; 4], high, low, word(frame.len()), word(*length)].concat();
        file.extend(block(6, [fields, frame.clone()].concat()));
    }
    file
}

fn sorted(packets: impl Iterator<Item = Captured>) -> Vec<Captured> {
    let mut packets: Vec<_> = packets.collect();
    packets.sort_by_key(|packet| packet.at);
    packets
}

/// `voice.pcapng` has a second of a call in both directions. `uplink.pcap` has half a second on the
/// way up of a home: an upload of 15 Mbit/s, of which only headers were captured, and a call.
#[test]
fn the_captures_of_the_documents_can_be_made_again() {
    let call = (0..50).flat_map(|number| [voice(1, 2, number), voice(2, 1, number)]);
    let uplink = (0..38 * BURST).map(upload).chain((0..25).map(|number| voice(4, 8, number)));
    let files = [("voice.pcapng", pcapng(&sorted(call))), ("uplink.pcap", pcap(&sorted(uplink)))];
    for (name, bytes) in files {
        let path = Path::new(FOLDER).join(name);
        if std::env::var_os(WRITE).is_some() {
            fs::write(&path, &bytes).expect("the file can be written");
        } else {
            let there = fs::read(&path).expect("the file");
            assert!(there == bytes, "examples/{name} is stale: set {WRITE}=1 and run this test");
        }
    }
}

/// The documents replay `uplink.pcap` to show what a qdisc does.
#[test]
fn in_the_uplink_a_call_waits_behind_the_upload_unless_a_qdisc_parts_them() {
    let call = |qdisc: &str| {
        let line = format!("replay {FOLDER}/uplink.pcap --qdisc {qdisc} --rate 10mbit --json -");
        let output = run(&line);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(summary["flows"][1]["protocol"], "udp");
        summary["flows"][1]["sojourn_mean_ns"].as_f64().expect("a time")
    };
    assert!(call("pfifo") > 100e6);
    assert!(call("fq_codel") < 1e6);
}
