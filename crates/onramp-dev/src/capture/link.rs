//! The link types of captures: the header in front of each packet.

use std::borrow::Cow;

use onramp_queue::Layer;
use pcap_parser::Linktype;

/// Size in bytes of an Ethernet header. [`Link::open`] replaces a "Linux cooked" header by one.
const ETHERNET: u32 = 14;

/// A copy of the header that a capture has in front of a packet, but that was never on the wire.
/// The longest such header, that of "Linux cooked" version 2, has 20 bytes.
pub type Head = [u8; 20];

/// The link types of a capture that Onramp understands.
///
/// Source: <https://www.tcpdump.org/linktypes.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Packets begin with an Ethernet header.
    Ethernet,
    /// Packets begin with an IPv4 or IPv6 header.
    Raw,
    /// A "Linux cooked" frame, which has a header of the capture's own in front of the network
    /// header.
    Cooked {
        /// Length of the capture's own header, bytes.
        head: u32,
        /// Offset of the type of the network header.
        kind: usize,
    },
    /// BSD loopback: four bytes with the number of the address family stand in front of the IP
    /// header.
    Loopback,
}

impl Link {
    /// Returns the form of the packets of a link type, or `None` if Onramp does not know it.
    #[must_use]
    pub const fn of(link: Linktype) -> Option<Self> {
        match link {
            Linktype::ETHERNET => Some(Self::Ethernet),
            Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => Some(Self::Raw),
            Linktype(12 | 14) => Some(Self::Raw),
            Linktype::LINUX_SLL => Some(Self::Cooked { head: 16, kind: 14 }),
            Linktype::LINUX_SLL2 => Some(Self::Cooked { head: 20, kind: 0 }),
            Linktype::NULL | Linktype::LOOP => Some(Self::Loopback),
            _ => None,
        }
    }

    /// Returns the number of bytes that a qdisc counts for a frame of which the capture has
    /// `captured` bytes. As in Linux, the link header of a packet counts, but a header that exists
    /// only in the capture does not.
    #[must_use]
    pub fn wire(self, captured: u32) -> u32 {
        let wire = match self {
            Self::Ethernet | Self::Raw => captured,
            Self::Cooked { head, .. } => captured.saturating_sub(head) + ETHERNET,
            Self::Loopback => captured.saturating_sub(4),
        };
        wire.max(1)
    }

    /// Splits a frame into the header that exists only in the capture, and the part that filters
    /// see: an Ethernet or IP header and all that follows. A cooked header does not have the
    /// addresses of an Ethernet header, so the Ethernet header that replaces it has zeros there.
    #[must_use]
    pub fn open(self, data: &[u8]) -> (Head, Cow<'_, [u8]>) {
        let mut head = Head::default();
        let keep = |head: &mut Head, length: usize| {
            let (kept, rest) = data.split_at(length.min(data.len()));
            head[..kept.len()].copy_from_slice(kept);
            rest
        };
        match self {
            Self::Ethernet | Self::Raw => (head, Cow::Borrowed(data)),
            Self::Loopback => {
                let rest = keep(&mut head, 4);
                (head, Cow::Borrowed(rest))
            }
            Self::Cooked { head: length, kind } => {
                let rest = keep(&mut head, length as usize);
                let mut payload = vec![0; ETHERNET as usize];
                payload[12..].copy_from_slice(&head[kind..kind + 2]);
                payload.extend_from_slice(rest);
                (head, Cow::Owned(payload))
            }
        }
    }

    /// Returns with which header, Ethernet or IP, the bytes begin that `open` returns.
    #[must_use]
    pub fn layer(self) -> Layer {
        match self {
            Self::Ethernet | Self::Cooked { .. } => Layer::Ethernet,
            Self::Raw | Self::Loopback => Layer::Ip,
        }
    }

    /// Puts together again a frame that `open` has split. A copy of a packet, which the tree has
    /// made, has no `head`; it gets a head in which only the type of the network header is filled
    /// in.
    pub fn close(self, head: Option<&Head>, payload: &[u8], frame: &mut Vec<u8>) {
        match self {
            Self::Ethernet | Self::Raw => frame.extend_from_slice(payload),
            Self::Loopback => {
                // The loopback header contains the number of the address family: 2 for IPv4. For
                // IPv6 the number differs between systems; 30 is that of macOS.
                let family =
                    if payload.first().is_some_and(|byte| byte >> 4 == 6) { 30 } else { 2 };
                frame.extend_from_slice(
                    &head.map_or([family, 0, 0, 0], |head| [head[0], head[1], head[2], head[3]]),
                );
                frame.extend_from_slice(payload);
            }
            Self::Cooked { head: length, kind } => {
                let mut own = Head::default();
                if let Some(type_of) = payload.get(12..14) {
                    own[kind..kind + 2].copy_from_slice(type_of);
                }
                frame.extend_from_slice(&head.unwrap_or(&own)[..length as usize]);
                frame.extend_from_slice(payload.get(ETHERNET as usize..).unwrap_or_default());
            }
        }
    }

    /// Whether `open` removes a header that `close` must add again.
    #[must_use]
    pub fn has_head(self) -> bool {
        matches!(self, Self::Cooked { .. } | Self::Loopback)
    }

    /// Returns the number of bytes that the capture has of a frame for which a qdisc counts `wire`
    /// bytes.
    #[must_use]
    pub fn captured(self, wire: u32) -> u32 {
        match self {
            Self::Ethernet | Self::Raw => wire,
            Self::Cooked { head, .. } => (wire + head).saturating_sub(ETHERNET),
            Self::Loopback => wire + 4,
        }
    }
}
