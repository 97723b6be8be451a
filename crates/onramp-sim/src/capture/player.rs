//! Reads the packets of a capture one after the other, and prepares each for a qdisc.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use onramp_core::Instant;
use onramp_core::frame::priority;
use onramp_dev::capture::{Blocks, Broken, Head, Interface, Interfaces, Record};
use onramp_queue::{PAYLOAD_MAX, Packet};

use super::FLOWS_MAX;
use super::frame::{self, Flow};
use crate::BEGIN;
use crate::source::Source;

/// Largest size of a packet on the wire in bytes, far more than any device sends.
const PACKET_MAX: u32 = 16 << 20;

/// Counts of the packets that were read from a capture, and the flows of these packets.
#[derive(Debug, Default)]
pub struct Read {
    /// Number of packets that were read.
    pub packets: u64,
    /// Number of bytes of the packets that were read, as a qdisc counts them.
    pub bytes: u64,
    /// Number of packets read that have no IP header.
    pub not_ip: u64,
    /// Number of packets read whose time lies before that of an earlier packet.
    pub out_of_order: u64,
    /// Number of packets read that have no time.
    pub untimed: u64,
    /// The time at which the first packet that has a time was captured, in nanoseconds since 1970.
    pub first_unix_ns: Option<u64>,
    /// The time from the first to the last packet in the capture, in nanoseconds.
    pub span_ns: u64,
    /// The flows, in the order in which their first packets were read; at most 65,536.
    pub flows: Vec<Flow>,
    /// The index in `flows` of each flow, by flow key.
    numbers: HashMap<u64, usize>,
    /// The headers that packets have only in the capture, by the packets' cookies. A header is kept
    /// here while its packet is in the tree of qdiscs.
    heads: HashMap<u64, Head>,
}

impl Read {
    /// Returns the number of a flow, counted from 1; 0 if the flow is not in `flows` because that
    /// list was already full.
    #[must_use]
    pub fn number(&self, key: u64) -> usize {
        self.numbers.get(&key).map_or(0, |place| place + 1)
    }

    /// Returns the flow with this key; `None` if the flow is not in `flows`.
    #[must_use]
    pub fn flow(&self, key: u64) -> Option<&Flow> {
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

/// A capture that is being played: its packets come at their times in the capture, which begins at
/// [`BEGIN`]. A packet whose time lies before that of an earlier packet comes when the earlier one
/// does, and so does a packet without a time.
///
/// The cookie of a packet is its number in the capture, counted from 0, times 256, plus the number
/// of its interface. Its flow, priority and ECN code point are those of its headers, and it carries
/// its bytes, so that filters can read them.
#[derive(Debug)]
pub struct Player<'i> {
    blocks: Blocks<'i>,
    interfaces: Interfaces,
    next: Option<(Instant, Packet)>,
    /// Whether the capture has ended or is broken.
    done: bool,
    latest_unix_ns: u64,
    read: Read,
    failed: io::Result<()>,
}

impl<'i> Player<'i> {
    /// Creates a player of the capture with these blocks. It has read nothing yet.
    #[must_use]
    pub fn new(blocks: Blocks<'i>) -> Self {
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
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.blocks.consumed()
    }

    /// Returns the counts and the flows of what was read so far.
    #[must_use]
    pub fn read(&self) -> &Read {
        &self.read
    }

    /// Returns the interfaces that the capture has described so far.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        self.interfaces.all()
    }

    /// Returns the counts and the flows of what was read, and the error that ended reading, if
    /// there was one.
    ///
    /// The error says at which byte of the capture it happened, and its kind is that of [`Broken`].
    pub fn into_read(self) -> (Read, io::Result<()>) {
        (self.read, self.failed)
    }

    /// Removes and returns the header that the packet with this cookie has only in the capture;
    /// `None` if the packet has no such header.
    pub fn head(&mut self, cookie: u64) -> Option<Head> {
        self.read.heads.remove(&cookie)
    }

    /// Returns the time at which the next packet comes to the tree; `None` if no packet is left.
    pub fn due(&mut self) -> Option<Instant> {
        self.fill();
        self.next.as_ref().map(|(due, _)| *due)
    }

    /// Returns the next packet; `None` if no packet is left.
    pub fn packet(&mut self) -> Option<Packet> {
        self.fill();
        self.next.take().map(|(_, pkt)| pkt)
    }

    /// Reads blocks of the capture until one contains a packet, and stores the packet in `next`.
    /// Reads none if `next` has a packet, and stops when the capture ends or is broken.
    fn fill(&mut self) {
        while self.next.is_none() && !self.done {
            let Self { interfaces, read, latest_unix_ns, .. } = self;
            let taken = self.blocks.next(|block| {
                let record = interfaces.record(&block).map_err(|error| error.to_string())?;
                let Some(record) = record else {
                    return Ok(None);
                };
                packet(&record, interfaces.all(), read, latest_unix_ns).map(Some)
            });
            match taken {
                Ok(Some(next)) => self.next = next,
                Ok(None) => self.done = true,
                Err(error) => {
                    self.failed = Err(match error {
                        Broken::Input(error) => error,
                        Broken::Refused(why) => {
                            let why = format!("{}: {why}", self.blocks.place());
                            io::Error::new(io::ErrorKind::InvalidData, why)
                        }
                    });
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
) -> Result<(Instant, Packet), String> {
    let link = interfaces[record.interface].known_link().map_err(|error| error.to_string())?;
    let data = record.data;
    let captured = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let original = record.original.max(captured);
    if original > PACKET_MAX {
        return Err(format!("the capture is damaged: a packet has {original} bytes"));
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

    read.packets += 1;
    read.bytes += u64::from(pkt.len);
    read.not_ip += u64::from(tos.is_none());
    read.untimed += u64::from(record.unix_ns.is_none());
    // A packet without a time comes with the one before it, or at the beginning.
    if let Some(unix_ns) = record.unix_ns {
        read.first_unix_ns.get_or_insert(unix_ns);
        read.out_of_order += u64::from(unix_ns < *latest_unix_ns);
        *latest_unix_ns = unix_ns.max(*latest_unix_ns);
    }
    read.span_ns = read.first_unix_ns.map_or(0, |first| *latest_unix_ns - first);
    Ok((BEGIN.after(read.span_ns), pkt))
}

/// The simulation takes packets from the player, and between them its caller asks the player about
/// the packets that were read. So both borrow the player.
impl Source for &RefCell<Player<'_>> {
    fn due(&mut self) -> Option<Instant> {
        self.borrow_mut().due()
    }

    fn packet(&mut self, _now: Instant) -> Option<Packet> {
        self.borrow_mut().packet()
    }
}
