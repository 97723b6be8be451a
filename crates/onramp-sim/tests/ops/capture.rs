//! Plays any bytes as if they were a capture, and checks what must hold for every input. The tests
//! and the fuzzing use this module.

use std::io;

use onramp_dev::capture::{Advice, Blocks};
use onramp_sim::BEGIN;
use onramp_sim::capture::Player;

/// Size in bytes of the smallest pcap or pcapng block with a packet: a pcapng simple packet block
/// without data.
const RECORD_MIN: usize = 16;
/// Size in bytes of an Ethernet header. The player puts a whole Ethernet header in the place of a
/// "Linux cooked" header, even if the capture cuts the packet off within the cooked header. So a
/// played packet has up to this many bytes more than the capture has of the packet.
const HEAD: usize = 14;

/// Plays `bytes` as a capture. Returns the number of packets that were read, and the error, if one
/// ended the reading early.
///
/// # Panics
///
/// Panics if more packets or more payload are read than the bytes can contain, if the clock goes
/// back, or if an error does not say at which byte it happened.
pub(crate) fn played(bytes: &[u8]) -> (u64, io::Result<()>) {
    let advice = Advice { compressed: "", other: "" };
    let blocks = match Blocks::new(bytes, "bytes", advice) {
        Ok(blocks) => blocks,
        Err(error) => {
            // No block was found: the bytes are not a capture, or end before the first block.
            let said = error.to_string();
            let known = ["neither a pcap nor", "empty", "compressed", "at byte 0:"];
            assert!(known.iter().any(|what| said.contains(what)), "{said}");
            return (0, Err(error));
        }
    };
    let mut player = Player::new(blocks);
    let (mut packets, mut payload) = (0, 0);
    let (mut last, mut consumed) = (BEGIN, 0);
    while let Some(due) = player.due() {
        assert!(due >= last, "the clock goes on");
        let pkt = player.packet().expect("it is due");
        assert!(player.consumed() >= consumed + RECORD_MIN as u64, "a packet is made of bytes");
        (last, consumed) = (due, player.consumed());
        (packets, payload) = (packets + 1, payload + pkt.payload().len());
    }
    assert!(player.consumed() <= bytes.len() as u64);
    assert!(payload <= bytes.len() + HEAD * packets, "{payload} bytes of {}", bytes.len());
    let (read, failed) = player.into_read();
    assert_eq!(read.packets, packets as u64);
    if let Err(error) = &failed {
        let said = error.to_string();
        let at = said.strip_prefix("bytes: at byte ").and_then(|rest| rest.split_once(": "));
        let at = at.and_then(|(at, _)| at.parse().ok());
        assert!(at.is_some_and(|at: usize| at <= bytes.len()), "{said}");
    }
    (read.packets, failed)
}
