//! How a connection learns that it may send again.
//!
//! quinn asks a connection's poller whether it may send, and then, in the same thread, calls the
//! socket's `try_send`, which knows the destination but not the poller. If there is no room, quinn
//! calls the poller again, which knows its task but not the destination. So the thread remembers
//! what the two calls have to tell each other.
//!
//! If a caller keeps another order, nothing worse happens than one more refusal, or a wait for the
//! room of another peer: a poller that knows no refusal says that the connection may send.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use onramp::{Peer, Room};
use quinn::UdpPoller;

thread_local! {
    /// Whether a poller has just said that its connection may send.
    static ASKED: Cell<bool> = const { Cell::new(false) };
    /// The refusal that the next poller takes.
    static REFUSED: Cell<Option<Room>> = const { Cell::new(None) };
}

/// Notes that the present call of `try_send` begins. Returns whether a poller will take a refusal;
/// otherwise the endpoint sends an answer of its own, for which nobody waits.
pub(crate) fn begin() -> bool {
    ASKED.take()
}

/// Leaves word of a refusal for the poller.
pub(crate) fn refuse(peer: &Arc<Peer>, payload: usize) {
    REFUSED.set(Some(peer.room(payload)));
}

/// Tells the task of one connection when it may send.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// The room for which the connection waits.
    room: Option<Room>,
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(room) = REFUSED.take() {
            self.room = Some(room);
        }
        if let Some(room) = &mut self.room {
            ready!(Pin::new(room).poll(cx));
            self.room = None;
        }
        ASKED.set(true);
        Poll::Ready(Ok(()))
    }
}
