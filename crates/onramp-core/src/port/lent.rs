//! How a large packet passes through an idle port without a copy of its payload.
//!
//! A packet normally carries a copy of its payload, because it may have to wait. If nothing waits
//! in the port, and the qdisc would let the packet through at once, the device can just as well
//! read the payload from the sender's memory, during the call of the sender. Linux's
//! `TCQ_F_CAN_BYPASS` (`__dev_xmit_skb` in `net/core/dev.c`, 7.2) passes packets by an empty qdisc
//! in the same way.

use std::panic::{AssertUnwindSafe, catch_unwind};

use onramp_queue::{Packet, PacketList};

use super::control::JOB_LOOKS;
use super::run::{Caller, Run};
use super::state::{Offer, PortState};
use super::{Device, Mode, Port, PortWaker, Ran, Transmitted};
use crate::base::Instant;

impl<D: Device> Port<D> {
    /// Whether [`xmit_lent`](Self::xmit_lent) may send a packet now: senders send, and nobody uses
    /// the port. This is a hint: the answer may be stale as soon as it is read.
    pub fn may_lend(&self) -> bool {
        self.known.mode != Mode::Dedicated && self.intake.is_idle()
    }

    /// Sends a packet whose payload is `payload`, and not in the packet itself, if the port is idle
    /// and nothing makes the packet wait. The packet must be one that was just submitted; its
    /// [length](onramp_queue::Meta::len) counts the payload.
    ///
    /// # Errors
    ///
    /// Returns the packet if it was not sent, and what the thread did as owner of the port. The
    /// caller should then copy the payload into a packet and push that packet with
    /// [`xmit`](Self::xmit).
    pub fn xmit_lent(
        &self,
        packet: Packet,
        payload: &[u8],
        now: Instant,
        waker: &dyn PortWaker,
    ) -> Result<Ran, (Packet, Option<Ran>)> {
        let Some(mut owner) = self.intake.own_idle() else { return Err((packet, None)) };
        let mut run = self.begin(&mut owner, 1, Caller { now, waker, is_runner: false });
        let mut packet = Some(packet);
        let pass = AssertUnwindSafe(|| owner.pass(&mut packet, payload, &mut run));
        if let Err(panic) = catch_unwind(pass) {
            self.die(&mut owner, &run, panic);
        }
        // As after every call of the device, requests come before the packets that came meanwhile.
        if self.has_requests(&owner, JOB_LOOKS) {
            self.take_requests(&mut owner);
        }
        let ran = self.go_on(owner, PacketList::new(), run);
        packet.map_or(Ok(ran), |packet| Err((packet, Some(ran))))
    }
}

impl<D: Device> PortState<D> {
    /// Gives `packet`, whose payload is `payload`, to the device, if nothing makes the packet wait.
    /// Leaves the packet in its place if it was not sent.
    fn pass(&mut self, packet: &mut Option<Packet>, payload: &[u8], run: &mut Run<'_>) {
        let (now, is_empty) = (run.now, self.inbox.is_empty() && self.burst.is_empty());
        let is_free = is_empty && !self.is_closed() && !self.has_jobs() && self.share.is_none();
        let sent = packet.take_if(|packet| {
            is_free
                && now >= self.retry_at
                && !self.has_leases_to_end(run)
                && self.root.lets_pass(packet, now)
                && self.device.transmit_lent(packet, payload, now)
        });
        let Some(packet) = sent else { return };
        let datagrams = packet.datagrams_in(payload.len());
        self.own_time.skip_to(now);
        self.came += 1;
        self.pace.received(now);
        self.pace.enqueued(1);
        run.stats.staging_ns.record(0);
        run.stats.enqueued.add(1);
        let mut out = PacketList::from_iter([packet]);
        let offer = Offer::of(&out, run);
        let answer = Transmitted { calls: 1, messages: 1, retry_at: None };
        self.transmitted(&offer, answer, &mut out, run);
        // The qdisc comes last: if it panics, the port has counted the packet as sent.
        if let Some(packet) = run.done.back() {
            let mut drops = PacketList::new();
            let cx = self.root.call(now, &mut drops);
            self.root.passed_lent(packet, u32::try_from(datagrams).unwrap_or(u32::MAX), &cx);
        }
    }
}
