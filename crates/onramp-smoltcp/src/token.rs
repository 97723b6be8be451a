//! Tokens of received frames.

use onramp_queue::Packet;
use smoltcp::phy::{self, PacketMeta};

/// A frame that has come through a tree.
#[derive(Debug)]
pub struct Arrived {
    pub(crate) packet: Packet,
    pub(crate) meta: PacketMeta,
}

impl phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.packet.payload())
    }

    fn meta(&self) -> PacketMeta {
        self.meta
    }
}

/// A received frame: from the inner device, whose token is `T`, or through the tree of the ingress.
#[derive(Debug)]
pub enum Received<T> {
    /// There is no tree for received frames.
    Direct(T),
    /// The frame has come through the tree.
    Arrived(Arrived),
}

impl<T: phy::RxToken> phy::RxToken for Received<T> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        match self {
            Self::Direct(token) => token.consume(read),
            Self::Arrived(token) => token.consume(read),
        }
    }

    fn meta(&self) -> PacketMeta {
        match self {
            Self::Direct(token) => token.meta(),
            Self::Arrived(token) => token.meta(),
        }
    }
}
