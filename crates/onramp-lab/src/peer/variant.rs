//! `intake-*`: variants of Onramp's intake. The whole state of a variant is one machine word. The
//! variants differ in how the word names packets, in what happens to a packet that finds the intake
//! idle, and in how the owner reverses the packets that it takes.

use onramp_queue::{Counter, Packet, PacketList};

use super::{Peer, Sink};
use crate::cell::words::{Format, OneWord, Pushed};

/// How an owner reverses the packets that it takes. They come newest first, and must be processed
/// oldest first.
pub(crate) trait Batch: Default + Send + 'static {
    /// Whether the owner prefetches the header of the next older packet when it takes a packet off
    /// the list.
    const PREFETCH: bool;

    /// Adds a packet that is older than all packets added before.
    fn put(&mut self, pkt: Packet);

    /// Passes all packets to `f`, oldest first.
    fn each(&mut self, f: impl FnMut(Packet));
}

/// Reverses packets by their links, as Onramp does. With `PREFETCH`, the owner also prefetches
/// headers, as Onramp does.
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

/// [`Ahead`] prefetches each packet when the owner begins with the packet that comes this many
/// packets earlier.
const AHEAD: usize = 2;

/// Reverses packets in an array. The array shows which packets come later, so each packet is
/// prefetched two packets before its turn.
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

/// The data that the owner of the intake works on.
pub(crate) struct Works<B> {
    sink: Sink,
    batch: B,
}

/// An intake whose machine word names packets in the format `F`, and whose owner reverses packets
/// by the type `B`. With `DIRECT`, the owner processes a packet that finds the intake idle at once;
/// without it, the packet is pushed like all others and then taken.
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
