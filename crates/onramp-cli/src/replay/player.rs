//! Reads the packets of a capture one after the other, and prepares each for a qdisc.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use anyhow::{Error, Result, bail};
use onramp_core::Instant;
use onramp_dev::capture::{Interface, Interfaces, Record};
use onramp_queue::{PAYLOAD_MAX, Packet};
use onramp_sim::BEGIN;

use super::FLOWS_MAX;
use super::frame::{self, Flow, Head, priority};
use crate::capture::Blocks;

/// Largest size of a packet on the wire in bytes, far more than any device sends.
const PACKET_MAX: u32 = 16 << 20;

/// Counts of the packets that were read from a capture, and the flows of these packets.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) packets: u64,
    /// Number of bytes of the packets that were read, as a qdisc counts them.
    pub(crate) bytes: u64,
    /// Number of packets read that have no IP header.
    pub(crate) not_ip: u64,
    /// Number of packets read whose time lies before that of an earlier packet.
    pub(crate) out_of_order: u64,
    /// Number of packets read that have no time.
    pub(crate) untimed: u64,
    /// The time at which the first packet was captured, in nanoseconds since 1970.
    pub(crate) first_unix_ns: Option<u64>,
    /// The time from the first to the last packet in the capture, in nanoseconds.
    pub(crate) span_ns: u64,
    /// The flows, in the order in which their first packets were read; at most 65,536.
    pub(crate) flows: Vec<Flow>,
    /// The index in `flows` of each flow, by flow key.
    numbers: HashMap<u64, usize>,
    /// The headers that packets have only in the capture, by the packets' cookies. A header is kept
    /// here while its packet is in the tree of qdiscs.
    heads: HashMap<u64, Head>,
}

impl Read {
    /// Returns the number of a flow, counted from 1; 0 if the flow is not in `flows` because that
    /// list was already full.
    pub(crate) fn number(&self, key: u64) -> usize {
        self.numbers.get(&key).map_or(0, |place| place + 1)
    }

    /// Returns the flow with this key; `None` if the flow is not in `flows`.
    pub(crate) fn flow(&self, key: u64) -> Option<&Flow> {
        self.flows.get(*self.numbers.get(&key)?)
    }

    fn know(&mut self, key: u64, flow: Flow) {
        let place = self.flows.len();
        if let Entry::Vacant(entry) = self.numbers.entry(key)
            && place < FLOWS_MAX
        {
            entry.insert(place);
            self.flows.push(flow);
        }
    }
}

/// A capture that is being played.
pub(crate) struct Player<'i> {
    blocks: Blocks<'i>,
    interfaces: Interfaces,
    next: Option<(Instant, Packet)>,
    /// Whether the capture has ended or is broken.
    done: bool,
    latest_unix_ns: u64,
    read: Read,
    failed: Result<()>,
}

impl<'i> Player<'i> {
    pub(crate) fn new(blocks: Blocks<'i>) -> Self {
        Self {
            blocks,
            interfaces: Interfaces::default(),
            next: None,
            done: false,
            latest_unix_ns: 0,
            read: Read::default(),
            failed: Ok(()),
        }
    }

    /// Returns the number of bytes of the capture that were read so far.
    pub(super) fn consumed(&self) -> u64 {
        self.blocks.consumed()
    }

    /// Returns the counts and the flows of what was read so far.
    pub(super) fn read(&self) -> &Read {
        &self.read
    }

    /// Returns the interfaces that the capture has described so far.
    pub(super) fn interfaces(&self) -> &[Interface] {
        self.interfaces.all()
    }

    /// Returns the counts and the flows of what was read, and the error that ended reading, if
    /// there was one.
    pub(super) fn into_read(self) -> (Read, Result<()>) {
        (self.read, self.failed)
    }

    /// Removes and returns the header that the packet with this cookie has only in the capture;
    /// `None` if the packet has no such header.
    pub(super) fn head(&mut self, cookie: u64) -> Option<Head> {
        self.read.heads.remove(&cookie)
    }

    /// Returns the time at which the next packet comes to the tree; `None` if no packet is left.
    pub(super) fn due(&mut self) -> Option<Instant> {
        self.fill();
        self.next.as_ref().map(|(due, _)| *due)
    }

    /// Returns the next packet; `None` if no packet is left.
    pub(super) fn packet(&mut self) -> Option<Packet> {
        self.fill();
        self.next.take().map(|(_, pkt)| pkt)
    }

    /// Reads blocks of the capture until one contains a packet, and stores the packet in `next`.
    /// Reads none if `next` has a packet, and stops when the capture ends or is broken.
    fn fill(&mut self) {
        while self.next.is_none() && !self.done {
            let Self { interfaces, read, latest_unix_ns, .. } = self;
            let taken = self.blocks.next(|block| {
                let Some(record) = interfaces.record(&block).map_err(Error::msg)? else {
                    return Ok(None);
                };
                packet(&record, interfaces.all(), read, latest_unix_ns).map(Some)
            });
            match taken {
                Ok(Some(next)) => self.next = next,
                Ok(None) => self.done = true,
                Err(error) => {
                    self.failed = Err(error);
                    self.done = true;
                }
            }
        }
    }
}

/// Makes the packet that goes through the qdiscs from a packet in the capture.
fn packet(
    record: &Record<'_>,
    interfaces: &[Interface],
    read: &mut Read,
    latest_unix_ns: &mut u64,
) -> Result<(Instant, Packet)> {
    let link = interfaces[record.interface].known_link().map_err(Error::msg)?;
    let data = record.data;
    let captured = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let original = record.original.max(captured);
    if original > PACKET_MAX {
        bail!("the capture is damaged: a packet has {original} bytes");
    }
    let (head, opened) = link.open(data);
    let layer = link.layer();
    let mut pkt = Packet::with_payload(&opened[..opened.len().min(PAYLOAD_MAX)]);
    pkt.set_layer(layer);
    pkt.len = link.wire(original);
    pkt.cookie = read.packets << 8 | record.interface as u64;
    if link.has_head() {
        read.heads.insert(pkt.cookie, head);
    }
    let tos = frame::tos(layer, &opened);
    pkt.priority = tos.map_or(0, priority);
    pkt.ecn = tos.map_or(0, |tos| tos & 3);
    let flow = frame::flow(layer, &opened);
    pkt.flow = flow.key();
    read.know(pkt.flow, flow);

    let unix_ns = record.unix_ns.unwrap_or(*latest_unix_ns);
    let first = *read.first_unix_ns.get_or_insert(unix_ns);
    read.packets += 1;
    read.bytes += u64::from(pkt.len);
    read.not_ip += u64::from(tos.is_none());
    read.untimed += u64::from(record.unix_ns.is_none());
    read.out_of_order += u64::from(unix_ns < *latest_unix_ns);
    *latest_unix_ns = unix_ns.max(*latest_unix_ns);
    read.span_ns = *latest_unix_ns - first.min(*latest_unix_ns);
    Ok((BEGIN.after(latest_unix_ns.saturating_sub(first)), pkt))
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::super::any::played;

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
                let said = format!("{:#}", ended.expect_err("it is damaged"));
                let expected = format!(
                    "bytes: at byte 28: the capture is damaged: a block has a length of {length} \
                     bytes"
                );
                assert_eq!((packets, said), (0, expected), "{kind:#x}");
            }
        }
    }
}
