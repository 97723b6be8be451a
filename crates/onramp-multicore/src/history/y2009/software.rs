//! What each step of the kernel of 2009 costs.

use onramp_machine::Machine;

use crate::machines::{Description, Unknown};
use crate::parameter::Draw;
use crate::software::Parameters;

/// Bytes of a datagram that netperf sends by default, and of one that fits in a full frame.
const DEFAULT_BYTES: f64 = 65_507.0;
const FRAME_BYTES: f64 = 1_472.0;

/// What the software costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Software {
    /// Local work of a send above the queue, and of each further fragment, picoseconds.
    pub(super) send_ps: u64,
    pub(super) fragment_ps: u64,
    /// Packets of one send.
    pub(super) packets: u32,
    /// Whether senders read a line that each transmit writes.
    pub(super) reads_transmit_line: bool,
    pub(super) enqueue_ps: u64,
    pub(super) dequeue_ps: u64,
    /// Lines that the owner reads of each packet, besides the route.
    pub(super) owner_lines: u32,
    pub(super) driver_ps: u64,
    pub(super) doorbell_ps: u64,
    /// Whether the heads of the bands have a line of their own.
    pub(super) has_band_line: bool,
    /// Most packets of a socket in flight, and how many are left when its sender is woken.
    pub(super) room: u32,
    pub(super) wakes_at: u32,
    pub(super) completion_ps: u64,
    /// Lines of each packet that its completion writes.
    pub(super) completion_lines: u32,
    /// Most packets that one pass of the softirq completes.
    pub(super) weight: u32,
    pub(super) interrupt_ps: u64,
    pub(super) switch_ps: u64,
    /// Time that the card needs for a packet.
    pub(super) wire_ps: u64,
    /// Time between two ticks of the clock.
    pub(super) tick_ps: u64,
}

impl Software {
    pub(super) fn draw(
        machine: &Machine,
        description: &Description,
        draw: &mut Draw,
    ) -> Result<Self, Unknown> {
        let all = Parameters::linux_2009()?;
        let ps = |draw: &mut Draw, name: &str| all.picoseconds(draw, name);
        let (send_ps, fragment_ps) = (ps(draw, "syscall_and_udp")?, ps(draw, "fragment_work")?);
        let shared_lines = all.count(draw, "stack_shared_lines")?;
        let room = all.count(draw, "sndbuf_packets")?;
        Ok(Self {
            send_ps,
            fragment_ps,
            packets: all.either(draw, "packets_per_send")?,
            reads_transmit_line: shared_lines > 1,
            enqueue_ps: ps(draw, "enqueue_pfifo_fast")?,
            dequeue_ps: ps(draw, "dequeue_pfifo_fast")?,
            // One of these lines is the route, which all packets share.
            owner_lines: all.count(draw, "owner_lines_per_packet")? - 1,
            driver_ps: ps(draw, "driver_xmit")?,
            doorbell_ps: ps(draw, "doorbell")?,
            has_band_line: all.count(draw, "qdisc_lines")? > 2,
            room,
            wakes_at: all.share_of(draw, "sndbuf_wake_share", room)?,
            completion_ps: ps(draw, "completion_per_packet")?,
            // Three of these lines are the socket's counter, the route's and the allocator's.
            completion_lines: all.count(draw, "completion_lines")? - 3,
            weight: all.count(draw, "dev_weight")?,
            interrupt_ps: draw.picoseconds(&description.interrupt),
            switch_ps: machine.costs.context_switch,
            wire_ps: all.period_ps(draw, "nic_pps_full", 1e6)?,
            tick_ps: all.period_ps(draw, "tick_hz", 1.0)?,
        })
    }

    /// Returns the payload of each packet, in bits.
    pub(super) fn payload_bits(&self) -> f64 {
        let bytes = match self.packets {
            1 => FRAME_BYTES,
            packets => DEFAULT_BYTES / f64::from(packets),
        };
        bytes * 8.0
    }

    /// Returns the number of the clock's tick at a moment.
    pub(super) fn tick(&self, at: u64) -> u64 {
        at / self.tick_ps
    }
}
