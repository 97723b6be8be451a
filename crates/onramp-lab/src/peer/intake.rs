//! `onramp-intake`: Onramp's intake in front of a sink, which reads, counts and frees the packets;
//! there is no qdisc and no device. A thread that pushes into the idle intake drains it.

use onramp_queue::{Counter, Full, Intake, Owner, Packet, PacketList, Pushed};

use super::{Peer, Sink};

#[derive(Debug)]
pub(crate) struct Bare(Intake<Sink>);

impl Peer for Bare {
    type End<'a> = ();
    type Taker = ();

    fn new(_senders: usize, _credits: u32, sink: Sink) -> (Self, ()) {
        // The intake needs no tighter cap, because the senders' credits already bound the number of
        // waiting packets.
        (Self(Intake::new(sink, u16::MAX, u16::MAX)), ())
    }

    fn end(&self, _sender: usize) {}

    #[inline]
    fn push(&self, (): &mut (), pkt: Packet, count: &Counter) -> Result<(), Packet> {
        let mut list = PacketList::new();
        list.push_back(pkt);
        let pushed = match self.0.push(list) {
            Ok(pushed) => pushed,
            Err(Full(mut back)) => {
                let pkt = back.pop_front();
                return Err(pkt.unwrap_or_else(|| unreachable!("it was one packet")));
            }
        };
        let Pushed::Owner { mut owner, fresh } = pushed else { return Ok(()) };
        let mut batch = fresh;
        loop {
            for pkt in batch {
                owner.put(pkt);
                owner.free_run();
            }
            count.set(owner.taken);
            owner.free_rest();
            match owner.leave_idle() {
                Ok(()) => return Ok(()),
                Err(still) => owner = still,
            }
            batch = Owner::take(&mut owner);
        }
    }

    const DRAINED: bool = false;
}
