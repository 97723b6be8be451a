//! Captures, whole and damaged, as sources of packets.

#[path = "ops/capture.rs"]
mod ops;

use etherparse::PacketBuilder;

use self::ops::played;

fn frame() -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64);
    let mut frame = Vec::new();
    builder.udp(1, 2).write(&mut frame, b"payload!").expect("a vector takes everything");
    frame
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pcap() -> Vec<u8> {
    let (frame, mut file) = (frame(), words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]));
    for second in 1..4 {
        let length = u32::try_from(frame.len()).expect("small");
        file.extend(words(&[second, 0, length, length]));
        file.extend(&frame);
    }
    file
}

fn pcapng() -> Vec<u8> {
    let block = |kind: u32, head: &[u32], bytes: &[u8]| {
        let padded = bytes.len().next_multiple_of(4);
        let length = u32::try_from(12 + head.len() * 4 + padded).expect("small");
        let mut block = [words(&[kind, length]), words(head), bytes.to_vec()].concat();
        block.resize(length as usize - 4, 0);
        [block, words(&[length])].concat()
    };
    let frame = frame();
    let length = u32::try_from(frame.len()).expect("small");
    [
        block(0x0a0d_0d0a, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX], &[]),
        block(1, &[1, 0, 0x0001_0009, 9, 0], &[]),
        block(6, &[0, 0, 7, length, length], &frame),
        block(3, &[length], &frame),
        block(6, &[0, 0, 9, length, length], &frame),
    ]
    .concat()
}

#[test]
fn no_bytes_break_it() {
    for whole in [pcap(), pcapng()] {
        let (packets, ended) = played(&whole);
        assert_eq!(packets, 3);
        ended.expect("it is whole");
        for length in 0..whole.len() {
            assert!(played(&whole[..length]).0 <= 3);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 6, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let (packets, _) = played(&bytes);
                assert!(packets <= 3, "{value} at {at}");
            }
        }
    }
}

#[test]
fn a_block_is_longer_than_its_own_length() {
    // The length of a block includes the 12 bytes of its type and its two lengths. A smaller
    // length must be refused in each kind of block that the parser knows, and in kind 77, which
    // it does not know.
    for kind in [1, 2, 3, 4, 5, 6, 9, 10, 0xbad, 0x4000_0bad, 0x8000_0001, 77] {
        for length in 0..12 {
            let section = &pcapng()[..28];
            let bytes = [section, &words(&[kind, length, 0, 0, 0])].concat();
            let (packets, ended) = played(&bytes);
            let said = ended.expect_err("it is damaged").to_string();
            let expected = format!(
                "bytes: at byte 28: the capture is damaged: a block has a length of {length} \
                 bytes"
            );
            assert_eq!((packets, said), (0, expected), "{kind:#x}");
        }
    }
}

#[test]
fn the_corpus_breaks_no_player() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/capture");
    let entries = std::fs::read_dir(corpus).expect("the corpus is in the repository");
    let mut packets = 0;
    for entry in entries {
        let bytes = std::fs::read(entry.expect("readable").path()).expect("a file");
        packets += played(&bytes).0;
    }
    assert!(packets > 0, "the corpus has captures");
}
