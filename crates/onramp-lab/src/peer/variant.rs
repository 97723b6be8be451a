//! `intake-*`: the one-word intake as it might have been: how a word names packets, what becomes of
//! a packet that finds the intake idle, and how the owner turns around what it takes.

use onramp_queue::{Counter, Packet, PacketList};

use super::{Peer, Sink};
use crate::cell::words::{Format, OneWord, Pushed};

/// How an owner turns newest first into oldest first.
pub(crate) trait Batch: Default + Send {
    /// Whether it asks for the header of the next older packet when it takes one.
    const PREFETCH: bool;

    /// Takes the next older packet in.
    fn put(&mut self, pkt: Packet);

    /// Gives all of them out, oldest first.
    fn each(&mut self, f: impl FnMut(Packet));
}

/// By links, as the product does; `PREFETCH` is the product's too.
#[derive(Debug, Default)]
pub(crate) struct List<const PREFETCH: bool>(PacketList);

impl<const PREFETCH: bool> Batch for List<PREFETCH> {
    const PREFETCH: bool = PREFETCH;

    #[inline]
    fn put(&mut self, pkt: Packet) {
        self.0.push_front(pkt);
    }

    #[inline]
    fn each(&mut self, f: impl FnMut(Packet)) {
        std::mem::take(&mut self.0).for_each(f);
    }
}

/// Packets that [`Ahead`] looks ahead.
const AHEAD: usize = 2;

/// By an array, which knows the packets to come: what is read of a packet is asked for two packets
/// before its turn.
#[derive(Debug, Default)]
pub(crate) struct Ahead(Vec<Packet>);

impl Batch for Ahead {
    const PREFETCH: bool = true;

    #[inline]
    fn put(&mut self, pkt: Packet) {
        self.0.push(pkt);
    }

    #[inline]
    fn each(&mut self, mut f: impl FnMut(Packet)) {
        self.0.iter().rev().take(AHEAD).for_each(Packet::prefetch);
        while let Some(pkt) = self.0.pop() {
            if let Some(ahead) = self.0.len().checked_sub(AHEAD) {
                self.0[ahead].prefetch();
            }
            f(pkt);
        }
    }
}

/// What the owner works on.
pub(crate) struct Works<B> {
    sink: Sink,
    batch: B,
}

/// The intake: names of `F`, batches of `B`. With `DIRECT`, a packet that finds it idle goes
/// straight on; otherwise it is pushed as all others, and taken.
#[derive(Debug)]
pub(crate) struct Variant<F: Format, B, const DIRECT: bool>(OneWord<F, Works<B>>);

impl<F: Format, B: Batch, const DIRECT: bool> Peer for Variant<F, B, DIRECT> {
    type End<'a>
        = F::Memo
    where
        Self: 'a;
    type Taker = ();

    fn new(_senders: usize, _credits: u32, sink: Sink) -> (Self, ()) {
        (Self(OneWord::new(Works { sink, batch: B::default() })), ())
    }

    fn end(&self, _sender: usize) -> F::Memo {
        F::Memo::default()
    }

    #[inline]
    fn push(&self, memo: &mut F::Memo, pkt: Packet, count: &Counter) -> Result<(), Packet> {
        let Pushed::Owner(mut owner, fresh) = self.0.push::<DIRECT>(pkt, memo)? else {
            return Ok(());
        };
        fresh.into_iter().for_each(|pkt| owner.sink.put(pkt));
        loop {
            let chain = owner.take(B::PREFETCH);
            let Works { sink, batch } = &mut *owner;
            chain.for_each(|pkt| batch.put(pkt));
            batch.each(|pkt| {
                sink.put(pkt);
                sink.free_run();
            });
            count.set(sink.taken);
            sink.free_rest();
            match owner.leave() {
                Ok(()) => return Ok(()),
                Err(still) => owner = still,
            }
        }
    }

    const DRAINED: bool = false;
}
