//! Captures for tests, whose bytes are written and read here without the program's own code.

use etherparse::PacketBuilder;
use pcap_parser::pcapng::Block;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{PcapBlockOwned, PcapNGReader};

/// Number of bytes in the Ethernet, IPv4 and UDP headers together.
pub(crate) const HEADERS: usize = 42;
/// The time at which the captures of tests begin, in seconds since 1970.
pub(crate) const BEGIN: u64 = 1_700_000_000;
pub(crate) const MSEC: u64 = 1_000_000;

/// Returns a frame of `length` bytes with the type of service `tos`. Its source port is `port`, so
/// frames with the same port belong to the same flow.
pub(crate) fn frame(length: usize, port: u16, tos: u8) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64)
        .udp(port, 53);
    let mut frame = Vec::new();
    builder.write(&mut frame, &vec![0; length - HEADERS]).expect("a vector takes everything");
    // The IP checksum includes the type of service. The checksum must be correct from the
    // beginning, because marking a packet only updates it, as in Linux.
    let sum = u32::from(u16::from_be_bytes([frame[24], frame[25]]) ^ 0xffff) + u32::from(tos);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[15] = tos;
    frame
}

/// Frames, each with the time at which it was captured, in nanoseconds after [`BEGIN`].
pub(crate) type Frames = Vec<(u64, Vec<u8>)>;

/// Returns a pcap file. `unit` is the length of its time unit in nanoseconds, `link` its link type.
pub(crate) fn pcap(unit: u64, link: u32, frames: &Frames) -> Vec<u8> {
    let magic = if unit == 1 { 0xa1b2_3c4d_u32 } else { 0xa1b2_c3d4 };
    let mut file = Vec::new();
    for word in [magic, 0x0004_0002, 0, 0, 262_144, link] {
        file.extend(word.to_le_bytes());
    }
    for (ns, bytes) in frames {
        let parts = [BEGIN + ns / 1_000_000_000, ns % 1_000_000_000 / unit];
        for word in parts.into_iter().chain([bytes.len() as u64; 2]) {
            file.extend(u32::try_from(word).expect("small").to_le_bytes());
        }
        file.extend(bytes);
    }
    file
}

/// Returns a pcapng block, big endian if `big` is true. Its body is the numbers in `words`,
/// followed by `bytes`.
pub(crate) fn block(big: bool, kind: u32, words: &[u32], bytes: &[u8]) -> Vec<u8> {
    let order = |word: u32| if big { word.to_be_bytes() } else { word.to_le_bytes() };
    let padded = bytes.len().next_multiple_of(4);
    let length = u32::try_from(12 + words.len() * 4 + padded).expect("small");
    let mut block = [order(kind), order(length)].concat();
    words.iter().for_each(|word| block.extend(order(*word)));
    block.extend(bytes);
    block.resize(block.len() + padded - bytes.len(), 0);
    block.extend(order(length));
    block
}

pub(crate) fn section(big: bool) -> Vec<u8> {
    // The two 16-bit version numbers share a 32-bit word.
    let version = if big { 0x0001_0000 } else { 1 };
    block(big, 0x0a0d_0d0a, &[0x1a2b_3c4d, version, u32::MAX, u32::MAX], &[])
}

/// Returns the block that describes an Ethernet interface, with the code of its time resolution and
/// the offset of its times in seconds.
pub(crate) fn interface(big: bool, resolution: u8, offset: i64) -> Vec<u8> {
    let half = |code: u16, length: u16| {
        let order = |half: u16| if big { half.to_be_bytes() } else { half.to_le_bytes() };
        [order(code), order(length)].concat()
    };
    let offset = if big { offset.to_be_bytes() } else { offset.to_le_bytes() };
    let options =
        [half(9, 1), vec![resolution, 0, 0, 0], half(14, 8), offset.to_vec(), half(0, 0)].concat();
    block(big, 1, &[if big { 1 << 16 } else { 1 }, 0], &options)
}

pub(crate) fn packet(big: bool, interface: u32, time: u64, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("small");
    let half = |word: u64| u32::try_from(word & 0xffff_ffff).expect("half");
    block(big, 6, &[interface, half(time >> 32), half(time), length, length], bytes)
}

/// A packet of a capture that the program has written: its interface, its time in nanoseconds after
/// [`BEGIN`], its bytes, and its original length.
pub(crate) type Written = (u32, u64, Vec<u8>, u32);

/// Returns the link types and the packets of a pcapng file.
pub(crate) fn packets(file: &[u8]) -> (Vec<i32>, Vec<Written>) {
    let mut reader = PcapNGReader::new(1 << 20, file).expect("a pcapng");
    let (mut links, mut packets) = (Vec::new(), Vec::new());
    loop {
        match reader.next() {
            Ok((length, block)) => {
                match block {
                    PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
                        assert_eq!(block.if_tsresol, 9);
                        links.push(block.linktype.0);
                    }
                    PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
                        let ns = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
                        let since = ns - BEGIN * 1_000_000_000;
                        let data = block.packet_data().to_vec();
                        packets.push((block.if_id, since, data, block.origlen));
                    }
                    _ => {}
                }
                reader.consume(length);
            }
            Err(pcap_parser::PcapError::Eof) => return (links, packets),
            Err(pcap_parser::PcapError::Incomplete(_)) => reader.refill().expect("all is there"),
            Err(error) => panic!("{error:?}"),
        }
    }
}
