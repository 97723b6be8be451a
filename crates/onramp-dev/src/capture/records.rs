//! The packets of a capture, out of its blocks.

use pcap_parser::pcapng::{Block, InterfaceDescriptionBlock};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{IDB_MAGIC, Linktype, PcapBlockOwned};

use super::link::Link;

/// Largest number of interfaces of a capture. It is 256 because the replay knows a packet by a
/// number that has eight bits for the interface.
const INTERFACES_MAX: usize = 256;

/// The types, as read from the least significant byte, of a packet block in a section whose numbers
/// begin with the least, and with the most significant byte. Old programs wrote such blocks.
const PACKET_BLOCKS: [u32; 2] = [2, 2 << 24];

const SEC: u64 = 1_000_000_000;
const BEYOND: &str = "the capture is damaged: a packet has a time before 1970 or after 2262";

/// An interface of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// The number of the link type.
    pub link_type: Linktype,
    link: Option<Link>,
    snaplen: u32,
    /// Number of time units in a second, for the times of this interface; `None` if the number in
    /// the file is impossible.
    units: Option<u128>,
    /// Seconds to add to the times of this interface.
    offset: i64,
}

impl Interface {
    fn new(link_type: Linktype, snaplen: u32, units: u128) -> Self {
        let link = Link::of(link_type);
        Self { link_type, link, snaplen, units: Some(units), offset: 0 }
    }

    fn described(block: &InterfaceDescriptionBlock<'_>) -> Self {
        // The highest bit of `if_tsresol` tells whether time units are powers of two or of ten.
        let power = u32::from(block.if_tsresol & 0x7f);
        let base = if block.if_tsresol & 0x80 == 0 { 10_u128 } else { 2 };
        let units = base.checked_pow(power).filter(|units| *units <= 1 << 64);
        // The parser reads the time offset of an interface (`if_tsoffset`) as little endian even in
        // a big-endian section, so its bytes must be swapped there.
        let big = block.block_type != IDB_MAGIC;
        let offset = if big { block.if_tsoffset.swap_bytes() } else { block.if_tsoffset };
        Self { units, offset, ..Self::new(block.linktype, block.snaplen, 1) }
    }

    /// Converts a time of this interface into nanoseconds since 1970.
    fn unix_ns(&self, time: u64) -> Result<u64, String> {
        let Some(units) = self.units else {
            return Err("the capture is damaged: an interface has an invalid unit of time".into());
        };
        let ns = u128::from(time) * u128::from(SEC) / units;
        let offset = i128::from(self.offset) * i128::from(SEC);
        let ns = i128::try_from(ns).ok().and_then(|ns| ns.checked_add(offset));
        match ns.and_then(|ns| u64::try_from(ns).ok()).filter(|ns| *ns <= u64::MAX / 2) {
            Some(ns) => Ok(ns),
            None => Err(BEYOND.to_owned()),
        }
    }

    /// Returns the form of the packets, or `None` if Onramp does not know the link type.
    #[must_use]
    pub const fn link(&self) -> Option<Link> {
        self.link
    }

    /// Returns the form of the packets.
    ///
    /// # Errors
    ///
    /// The text says that Onramp does not know the link type.
    pub fn known_link(&self) -> Result<Link, String> {
        self.link.ok_or_else(|| {
            format!(
                "the capture's link type {} is not one of Ethernet, Linux cooked, raw IP and BSD \
                 loopback",
                self.link_type.0
            )
        })
    }
}

/// A packet in a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'d> {
    /// Index of the packet's interface in [`Interfaces::all`].
    pub interface: usize,
    /// The time at which the packet was captured, in nanoseconds since 1970; `None` if it has no
    /// time.
    pub unix_ns: Option<u64>,
    /// The bytes that were captured.
    pub data: &'d [u8],
    /// The length of the packet on the wire, bytes.
    pub original: u32,
}

/// The interfaces that a capture has described so far.
#[derive(Debug, Default)]
pub struct Interfaces {
    all: Vec<Interface>,
    /// Number of interfaces that earlier sections of the pcapng file described.
    before: usize,
    /// Whether the times in a pcap file count nanoseconds, not microseconds.
    nanoseconds: bool,
}

impl Interfaces {
    /// Returns the interfaces, in the order in which they were described.
    #[must_use]
    pub fn all(&self) -> &[Interface] {
        &self.all
    }

    /// Looks at one block of the capture. Stores the interface that the block describes, or returns
    /// the packet that it contains.
    ///
    /// # Errors
    ///
    /// The text says in which way the block is damaged, or that Onramp does not know the link type
    /// of a pcap file.
    pub fn record<'b>(
        &mut self,
        block: &'b PcapBlockOwned<'_>,
    ) -> Result<Option<Record<'b>>, String> {
        let units = |nanoseconds| if nanoseconds { SEC } else { SEC / 1_000 };
        let (interface, time, data, original) = match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.nanoseconds = header.is_nanosecond_precision();
                let units = units(self.nanoseconds);
                // The upper half says whether frames end with a checksum, and how long it is.
                let link_type = Linktype(header.network.0 & 0xffff);
                let interface = Interface::new(link_type, header.snaplen, units.into());
                self.all.push(interface);
                interface.known_link()?;
                return Ok(None);
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.before = self.all.len();
                return Ok(None);
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(block)) => {
                if self.all.len() == INTERFACES_MAX {
                    return Err(format!("the capture has more than {INTERFACES_MAX} interfaces"));
                }
                self.all.push(Interface::described(block));
                return Ok(None);
            }
            PcapBlockOwned::Legacy(block) => {
                let time = u64::from(block.ts_sec) * units(self.nanoseconds);
                (0, Some(time + u64::from(block.ts_usec)), block.data, block.origlen)
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(block)) => {
                let time = u64::from(block.ts_high) << 32 | u64::from(block.ts_low);
                (block.if_id as usize, Some(time), block.packet_data(), block.origlen)
            }
            PcapBlockOwned::NG(Block::SimplePacket(block)) => {
                (0, None, block.packet_data(), block.origlen)
            }
            PcapBlockOwned::NG(Block::Unknown(block))
                if PACKET_BLOCKS.contains(&block.block_type) =>
            {
                packet_block(block.data, block.block_type != PACKET_BLOCKS[0])
                    .ok_or("the capture is damaged: a packet block is too short")?
            }
            PcapBlockOwned::NG(_) => return Ok(None),
        };
        let number = self.before.saturating_add(interface);
        let Some(of) = self.all.get(number) else {
            return Err(format!(
                "the capture is damaged: there is no description of interface {interface}"
            ));
        };
        // A simple packet block does not say how many bytes were captured, so padding may follow
        // the packet's bytes.
        let kept = match (time, of.snaplen) {
            (None, 1..) => data.len().min(of.snaplen as usize),
            _ => data.len(),
        };
        let unix_ns = time.map(|time| of.unix_ns(time)).transpose()?;
        Ok(Some(Record { interface: number, unix_ns, data: &data[..kept], original }))
    }
}

/// Reads the content of a packet block: the number of the interface, the time, the bytes that were
/// captured, and the length on the wire. The parser does not know these blocks.
fn packet_block(content: &[u8], big: bool) -> Option<(usize, Option<u64>, &[u8], u32)> {
    let (head, data) = content.split_first_chunk::<20>()?;
    let read = if big { u32::from_be_bytes } else { u32::from_le_bytes };
    let [first, high, low, captured, original] = *head.as_chunks::<4>().0 else { return None };
    // Beside the interface stands a count of packets that were dropped.
    let interface = if big { read(first) >> 16 } else { read(first) & 0xffff };
    let time = u64::from(read(high)) << 32 | u64::from(read(low));
    Some((interface as usize, Some(time), data.get(..read(captured) as usize)?, read(original)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_blocks_of_both_byte_orders() {
        let data = *b"data, and padding";
        let little = [0x0304_0102, 5, 6, 4, 8].map(u32::to_le_bytes).concat();
        let big = [0x0102_0304, 5, 6, 4, 8].map(u32::to_be_bytes).concat();
        for (head, is_big) in [(little, false), (big, true)] {
            let content = [&head[..], &data].concat();
            let expected = (0x0102, Some(5 << 32 | 6), &b"data"[..], 8);
            assert_eq!(packet_block(&content, is_big), Some(expected));
            assert_eq!(packet_block(&content[..23], is_big), None, "less than it says");
            assert_eq!(packet_block(&content[..19], is_big), None, "no whole head");
        }
    }

    #[test]
    fn times_of_every_unit() {
        let at = |resolution: u8, offset, time: u64| {
            let power = u32::from(resolution & 0x7f);
            let units =
                if resolution < 0x80 { 10_u128.checked_pow(power) } else { Some(1 << power) };
            let interface = Interface { units, offset, ..Interface::new(Linktype(1), 0, 1) };
            interface.unix_ns(time).ok()
        };
        assert_eq!(at(6, 0, 1_000_001), Some(1_000_001_000));
        assert_eq!(at(9, 0, 7), Some(7));
        assert_eq!(at(0, 0, 7), Some(7 * SEC));
        assert_eq!(at(12, 0, 7_999), Some(7));
        assert_eq!(at(0x80 | 10, 0, 1_536), Some(1_500_000_000));
        assert_eq!(at(0x80 | 10, -1, 1_536), Some(500_000_000));
        assert_eq!(at(9, 5, 7), Some(5 * SEC + 7));
        assert_eq!(at(9, -1, 7), None);
        assert_eq!(at(0, 0, u64::MAX), None);
        assert_eq!(at(0, i64::MAX, u64::MAX), None);
        assert_eq!(at(120, 0, 7), None);
    }
}
