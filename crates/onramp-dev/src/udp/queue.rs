//! One transmit queue of a UDP device: builds messages, sends them and handles errors.
//!
//! `sendmmsg` reports an error only if the first message fails. If the kernel took only some
//! messages, the queue offers the rest again. Then the message that failed is the first one, and
//! the kernel reports its error. An error that comes back by ICMP is reported on the next send,
//! even if that send is for another packet. So the queue drops no message before it has failed
//! twice.

#[cfg(test)]
mod tests;

use std::net::UdpSocket;
use std::sync::Arc;

use libc::c_int;
use onramp_core::{Instant, Transmitted};
use onramp_queue::{DropReason, Packet, PacketList};

use super::build::Builder;
use super::stats::UdpStats;
use super::verdict::{Segmented, Verdict, segmented, verdict};
use crate::backoff::Backoff;
use crate::sys::{Messages, Shape};

/// How often the queue offers a message for which the kernel has no memory, before dropping it.
pub(super) const STARVED_MAX: u32 = 8;
/// If signals interrupt more calls than this in a row, `transmit` asks to be called again later.
const INTERRUPTED_MAX: u32 = 16;
/// Number of segmented messages in a row that the kernel may refuse, while accepting their
/// datagrams one by one, before the queue stops segmenting.
pub(super) const STRIKES_MAX: u32 = 4;

/// Where a queue sends its messages: a socket, or in tests a simulated kernel.
pub(super) trait Wire {
    /// Offers the unfinished messages to the kernel, and returns how many the kernel took. If the
    /// kernel refused the first of them, returns the error number of the refusal.
    fn send(&mut self, messages: &mut Messages) -> Result<usize, c_int>;
}

impl Wire for Arc<UdpSocket> {
    #[inline]
    fn send(&mut self, messages: &mut Messages) -> Result<usize, c_int> {
        messages.send(self)
    }
}

/// Counts messages that the kernel took. Returns how many of them held several datagrams.
#[inline]
fn count_sent(stats: &UdpStats, shapes: &[Shape]) -> u64 {
    let (mut segments, mut bytes, mut gso) = (0, 0, 0);
    for shape in shapes {
        segments += u64::from(shape.segments);
        bytes += u64::from(shape.bytes);
        gso += u64::from(shape.segments > 1);
        stats.segments_per_message[UdpStats::bucket(shape.segments)].add(1);
    }
    stats.messages.add(shapes.len() as u64);
    stats.segments.add(segments);
    stats.bytes.add(bytes);
    stats.gso_messages.add(gso);
    gso
}

#[derive(Debug)]
pub(super) struct Queue<W> {
    pub(super) wire: W,
    builder: Builder,
    messages: Messages,
    backoff: Backoff,
    /// Number of times in a row that the first message failed for lack of memory.
    starved: u32,
    /// Number of segmented messages that the kernel has refused since it last took one.
    strikes: u32,
    stats: Arc<UdpStats>,
}

/// What `transmit` does after a call of `send`.
enum Next {
    /// Build messages from the packets that are left.
    Build,
    /// Build messages of one datagram each from the next packets. The field is the number of these
    /// packets.
    Singly(u32),
    /// Stop, and ask the caller to try again at the given time.
    Wait(Instant),
}

/// State of one call of `transmit`.
struct Round<'a> {
    done: &'a mut PacketList,
    now: Instant,
    /// Whether each message is one datagram, because the messages are built from packets of a
    /// segmented message that the kernel refused.
    singly: bool,
    /// Whether the kernel may have refused the segmented message because it cannot segment.
    suspect: bool,
    out: Transmitted,
}

impl<W: Wire> Queue<W> {
    pub(super) fn new(wire: W, builder: Builder, stats: Arc<UdpStats>) -> Self {
        stats.gso_off.set(u64::from(builder.segments_max == 1));
        let (messages, backoff) = (Messages::new(), Backoff::new());
        Self { wire, builder, messages, backoff, starved: 0, strikes: 0, stats }
    }

    pub(super) fn stats(&self) -> &Arc<UdpStats> {
        &self.stats
    }

    pub(super) fn builder(&self) -> &Builder {
        &self.builder
    }

    pub(super) fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let out = Transmitted::default();
        let mut round = Round { done, now, singly: false, suspect: false, out };
        let mut singles = 0;
        while !burst.is_empty() {
            let before = burst.len();
            round.singly = singles > 0;
            if round.singly {
                self.builder.build_singly(singles, burst, now, &mut self.messages);
            } else {
                self.builder.build(burst, now, &mut self.messages);
            }
            let next = self.send(&mut round);
            self.messages.give_back(burst);
            singles = singles.saturating_sub(before - burst.len());
            match next {
                Next::Build => {}
                Next::Singly(packets) => singles = packets,
                Next::Wait(at) => {
                    round.out.retry_at = Some(at);
                    break;
                }
            }
        }
        self.stats.calls.add(round.out.calls.into());
        round.out
    }

    /// Sends a packet whose payload is `payload`, in one message. Returns false if the packet does
    /// not fit one message, or if the kernel has not taken it; `transmit` then finds out why.
    pub(super) fn transmit_lent(&mut self, pkt: &Packet, payload: &[u8], now: Instant) -> bool {
        let Some(close) = self.builder.whole(pkt, payload.len(), now) else { return false };
        let mut offer = || {
            self.stats.calls.add(1);
            self.messages.send_lent(payload, &close, |messages| self.wire.send(messages))
        };
        let mut sent = offer();
        if let Err(Verdict::Condemned(_)) = sent.map_err(verdict) {
            // The error may belong to an earlier packet: see `send`.
            sent = offer();
            self.stats.earlier_errors.add(sent.is_ok().into());
        }
        let Ok(shape) = sent else { return false };
        let gso = count_sent(&self.stats, &[shape]);
        self.strikes = if gso > 0 { 0 } else { self.strikes };
        self.took();
        true
    }

    /// Sends the messages that were built. The loop ends, because the kernel takes a message or the
    /// queue drops it, after a limited number of attempts.
    #[inline]
    fn send(&mut self, round: &mut Round<'_>) -> Next {
        let (mut doubted, mut interrupted) = (false, 0);
        while let Some(&first) = self.messages.pending().first() {
            round.out.calls += 1;
            let errno = match self.wire.send(&mut self.messages) {
                Ok(0) => libc::EAGAIN,
                Ok(count) => {
                    self.stats.earlier_errors.add(doubted.into());
                    doubted = false;
                    let short = count < self.messages.pending().len();
                    self.stats.cut_short.add(short.into());
                    self.sent(count, round);
                    continue;
                }
                Err(errno) => errno,
            };
            let verdict = verdict(errno);
            self.stats.eagain.add((verdict == Verdict::Full).into());
            self.stats.enobufs.add((verdict == Verdict::Starved).into());
            let kind = if first.segments > 1 { segmented(errno) } else { Segmented::Unrelated };
            if kind != Segmented::Unrelated {
                round.suspect = kind == Segmented::Unsupported;
                self.stats.gso_fallbacks.add(1);
                return Next::Singly(first.packets().into());
            }
            match verdict {
                Verdict::Interrupted if interrupted < INTERRUPTED_MAX => interrupted += 1,
                Verdict::Starved if self.starved + 1 == STARVED_MAX => {
                    self.drop_first(DropReason::NoBuffers, round);
                }
                Verdict::Starved => {
                    self.starved += 1;
                    return Next::Wait(self.backoff.wait(round.now));
                }
                Verdict::Interrupted | Verdict::Full => {
                    return Next::Wait(self.backoff.wait(round.now));
                }
                Verdict::Condemned(_) if !doubted => doubted = true,
                Verdict::Condemned(reason) => {
                    doubted = false;
                    self.drop_first(reason, round);
                }
            }
        }
        Next::Build
    }

    #[inline]
    fn sent(&mut self, count: usize, round: &mut Round<'_>) {
        let gso = count_sent(&self.stats, &self.messages.pending()[..count]);
        #[expect(clippy::cast_possible_truncation, reason = "at most MESSAGES_MAX")]
        let messages = count as u32;
        round.out.messages += messages;
        if gso > 0 {
            self.strikes = 0;
        } else if round.singly && round.suspect {
            round.suspect = false;
            self.strike();
        }
        self.took();
        self.messages.sent(count, round.done);
    }

    /// Notes that the kernel has room.
    #[inline]
    fn took(&mut self) {
        self.starved = 0;
        self.backoff.reset();
    }

    /// Notes that the kernel refused a segmented message, but took a datagram of it. After
    /// [`STRIKES_MAX`] such messages in a row, the queue stops segmenting.
    fn strike(&mut self) {
        self.strikes += 1;
        if self.strikes == STRIKES_MAX {
            self.builder.segments_max = 1;
            self.stats.gso_off.set(1);
        }
    }

    #[cold]
    fn drop_first(&mut self, reason: DropReason, round: &mut Round<'_>) {
        self.starved = 0;
        self.messages.dropped(reason, round.done);
    }
}
