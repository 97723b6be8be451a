//! A tree of qdiscs with packets that are used again and again, so that a tree whose number of
//! packets does not grow allocates nothing.

mod replay;

use std::fmt::Display;
use std::ptr;

use onramp::{DropReason, Instant, Layer, Line, Meta, Packet, PacketList, Setup, Stopped, Tree};

pub(crate) use self::replay::{Arrivals, Fates};
use crate::abi::{ONRAMP_HEAD_MAX, ONRAMP_LAYER_ETHERNET, ONRAMP_LAYER_IP, ONRAMP_LAYER_NONE, Pkt};
use crate::error::{Error, Result};

/// Room for headers in a packet that the caller has given, bytes. It is one more than the most that
/// are copied. So a packet with less room is the duplicate that netem has made of another: a
/// duplicate has just the room that it needs.
#[expect(clippy::cast_possible_truncation, reason = "the constant is small")]
const ROOM: u16 = ONRAMP_HEAD_MAX as u16 + 1;
/// Name of the device in lines of tc that name none.
pub(crate) const DEVICE: &str = "tree";
/// Size of the largest packet if the caller does not say it: Ethernet's, bytes.
const MTU: u32 = 1_514;

/// A tree, its caller's last time, and the packets that no call uses at present.
#[derive(Debug)]
pub(crate) struct Shaper {
    tree: Tree,
    /// Packets to use again, the last used one last, because it is likely to be in the cache.
    free: Vec<Packet>,
    /// Dropped packets that the caller has not taken yet.
    drops: PacketList,
    /// The latest time that a call has passed.
    now: Instant,
}

impl Shaper {
    pub(crate) fn new(lines: &str, mtu: u32, seed: u64) -> Result<Self> {
        let setup = setup(lines, DEVICE)?;
        let mtu = if mtu == 0 { MTU } else { mtu };
        let Some(tree) = Tree::of(setup.with_root()?, mtu, seed) else {
            return Err(Error::invalid("the lines of tc describe no qdisc at the root"));
        };
        Ok(Self { tree, free: Vec::new(), drops: PacketList::new(), now: Instant(0) })
    }

    /// Notes the time of a call, which must not be earlier than that of the call before.
    fn at(&mut self, now: u64) -> Result<Instant> {
        if now < self.now.0 {
            let text = format!(
                "the time {now} is before {}, that of an earlier call: a tree's time never goes \
                 back",
                self.now.0
            );
            return Err(Error::invalid(text));
        }
        self.now = Instant(now);
        Ok(self.now)
    }

    /// Enqueues packets whose headers `head` returns, in order. Returns how many packets were
    /// dropped meanwhile. If a packet is wrong, none is enqueued.
    pub(crate) fn enqueue<'a>(
        &mut self,
        now: u64,
        pkts: &'a [Pkt],
        head: impl Fn(&'a Pkt) -> &'a [u8],
    ) -> Result<usize> {
        let now = self.at(now)?;
        let mut list = PacketList::new();
        for (index, pkt) in pkts.iter().enumerate() {
            if let Err(error) = check(pkt) {
                self.free.extend(list);
                return Err(error.at(format_args!("packet {index}")));
            }
            list.push_back(self.packet(now, pkt, head(pkt)));
        }
        Ok(self.tree.enqueue_list(now, list) as usize)
    }

    fn packet(&mut self, now: Instant, pkt: &Pkt, head: &[u8]) -> Packet {
        let mut packet = self.free.pop().unwrap_or_else(|| Packet::with_capacity(ROOM));
        *packet = Meta {
            flow: pkt.flow,
            txtime_ns: pkt.txtime_ns,
            enqueued_ns: now.0,
            cookie: pkt.cookie,
            pacing_rate: pkt.pacing_rate,
            len: pkt.len,
            priority: pkt.priority,
            mark: pkt.mark,
            gso_size: pkt.gso_size,
            ecn: pkt.ecn,
            drop_reason: None,
        };
        packet.set_layer(layer(pkt.layer).unwrap_or_default());
        if head.is_empty() {
            packet.truncate_payload(0);
        } else {
            packet.set_payload(&head[..head.len().min(ONRAMP_HEAD_MAX as usize)]);
        }
        packet
    }

    /// Calls `put` with packets that may leave now, `most` at most. Returns when to ask again.
    pub(crate) fn dequeue(&mut self, now: u64, most: usize, put: impl FnMut(Pkt)) -> Result<u64> {
        let now = self.at(now)?;
        let mut list = PacketList::new();
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let next = match self.tree.dequeue_list(now, most, &mut list) {
            Stopped::Full => now.0,
            Stopped::NotBefore(then) => then.0,
            Stopped::Empty => u64::MAX,
        };
        give(&mut list, usize::MAX, put, &mut self.free);
        Ok(next)
    }

    /// Calls `put` with packets that were dropped, `most` at most. Returns their number.
    pub(crate) fn drops(&mut self, most: usize, put: impl FnMut(Pkt)) -> usize {
        self.drops.append(&mut self.tree.drops());
        give(&mut self.drops, most, put, &mut self.free)
    }

    /// Returns the numbers of packets and of bytes that the tree holds.
    pub(crate) fn backlog(&self) -> (u64, u64) {
        let backlog = self.tree.backlog();
        (backlog.packets.into(), backlog.bytes)
    }

    pub(crate) fn reset(&mut self, now: u64) -> Result<()> {
        let now = self.at(now)?;
        self.tree.reset(now);
        Ok(())
    }

    /// Carries out a command of tc, and returns what tc would print.
    pub(crate) fn tc(&mut self, now: u64, line: &str) -> Result<String> {
        let now = self.at(now)?;
        Ok(onramp_host::tc_tree(&mut self.tree, now, bare(line))?)
    }
}

/// Calls `put` with the packets of `list`, `most` at most, and removes them from the list. Returns
/// their number.
fn give(
    list: &mut PacketList,
    most: usize,
    mut put: impl FnMut(Pkt),
    free: &mut Vec<Packet>,
) -> usize {
    let mut count = 0;
    while count < most
        && let Some(packet) = list.pop_front()
    {
        put(told(&packet));
        keep(packet, free);
        count += 1;
    }
    count
}

/// Keeps a packet that has left, to use it again. Frees a duplicate, whose room is too small, and a
/// packet for which an action of a filter has chosen a queue, because that cannot be undone.
fn keep(packet: Packet, free: &mut Vec<Packet>) {
    if packet.capacity() == usize::from(ROOM) && packet.chosen_queue().is_none() {
        free.push(packet);
    }
}

/// Returns what the caller is told of a packet of a tree.
fn told(packet: &Packet) -> Pkt {
    let made = u8::from(packet.capacity() < usize::from(ROOM));
    Pkt { made, ..shown(packet) }
}

/// Returns the fields of a packet.
pub(crate) fn shown(packet: &Packet) -> Pkt {
    Pkt {
        cookie: packet.cookie,
        flow: packet.flow,
        txtime_ns: packet.txtime_ns,
        pacing_rate: packet.pacing_rate,
        enqueued_ns: packet.enqueued_ns,
        head: ptr::null(),
        len: packet.len,
        priority: packet.priority,
        mark: packet.mark,
        gso_size: packet.gso_size,
        head_len: 0,
        layer: number(packet.layer()),
        ecn: packet.ecn,
        drop_reason: reason_number(packet.drop_reason),
        made: 0,
        reserved: 0,
    }
}

/// Returns the number of a drop reason in the interface; 0 if there is none.
pub(crate) fn reason_number(reason: Option<DropReason>) -> u8 {
    reason.map_or(0, |reason| reason as u8 + 1)
}

/// Returns the drop reason with this number; `None` for 0 and for numbers that no reason has.
pub(crate) fn reason(number: u8) -> Option<DropReason> {
    DropReason::ALL.get(usize::from(number).checked_sub(1)?).copied()
}

/// Returns the layer with this number, if there is one.
pub(crate) fn layer(number: u8) -> Option<Layer> {
    match number {
        ONRAMP_LAYER_NONE => Some(Layer::Datagram),
        ONRAMP_LAYER_IP => Some(Layer::Ip),
        ONRAMP_LAYER_ETHERNET => Some(Layer::Ethernet),
        _ => None,
    }
}

/// Returns the number of a layer.
pub(crate) fn number(layer: Layer) -> u8 {
    match layer {
        Layer::Datagram => ONRAMP_LAYER_NONE,
        Layer::Ip => ONRAMP_LAYER_IP,
        Layer::Ethernet => ONRAMP_LAYER_ETHERNET,
    }
}

/// Checks what a caller says of a packet.
fn check(pkt: &Pkt) -> Result<()> {
    let wrong = |field: &str, value: &dyn Display, right: &str| {
        Err(Error::invalid(format!("{field} is {value}; expected {right}")))
    };
    if pkt.ecn > 3 {
        return wrong("ecn", &pkt.ecn, "0 to 3");
    }
    if pkt.reserved != 0 {
        return wrong("reserved", &pkt.reserved, "0");
    }
    if layer(pkt.layer).is_none() {
        return wrong("layer", &pkt.layer, "one of ONRAMP_LAYER_NONE, _IP and _ETHERNET");
    }
    if pkt.head_len > 0 && pkt.head.is_null() {
        return wrong("head", &"NULL", "the headers, because head_len is not 0");
    }
    if pkt.head_len > 0 && pkt.layer == ONRAMP_LAYER_NONE {
        return wrong("layer", &"ONRAMP_LAYER_NONE", "that of the headers at head");
    }
    Ok(())
}

/// Returns a line of tc without its comment.
pub(crate) fn bare(line: &str) -> &str {
    line.split('#').next().unwrap_or_default()
}

/// Reads the description of a tree from lines of tc, one command a line. The commands need not name
/// a device; `device` is then its name.
pub(crate) fn setup(lines: &str, device: &str) -> Result<Setup> {
    let mut setup = Setup::default();
    for (index, line) in lines.lines().enumerate() {
        let line = bare(line);
        if line.trim().is_empty() {
            continue;
        }
        let applied = setup.apply(&Line::from(line).on(device));
        applied.map_err(|error| Error::from(error).at(format_args!("line {}", index + 1)))?;
    }
    Ok(setup)
}

#[cfg(test)]
mod tests;
