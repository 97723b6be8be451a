//! Writes the blocks of the format pcapng.
//!
//! Source: draft-ietf-opsawg-pcapng. This module writes three of the blocks of that format: Section
//! Header, Interface Description and Enhanced Packet. It uses no crate, because it needs only a few
//! lines, and the crates that write these blocks have no stable release of their current interface
//! (`pcap-file` 3.0.0-rc.3) or copy each packet (`pcap-parser`).

use std::io::{self, Write};

/// The type of an Enhanced Packet Block.
pub const PACKET: u32 = 6;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// The number by which a reader of the file recognizes its byte order.
const MAGIC: u32 = 0x1a2b_3c4d;

const APPLICATION: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
/// Bytes at the beginning of an Enhanced Packet Block, before the packet; and where among them the
/// two lengths are.
const HEAD: usize = 20;
const CAPTURED: usize = 12;
const ORIGINAL: usize = 16;

/// Whether a packet came to its interface or went out from there (`epb_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It came to the interface.
    Inbound = 1,
    /// It went out from the interface.
    Outbound = 2,
}

/// A block that is being written. Its buffer is used again for the next.
#[derive(Debug, Default)]
pub struct Block(Vec<u8>);

impl Block {
    /// Writes the beginning of a file.
    ///
    /// # Errors
    ///
    /// The error of `out`.
    pub fn section(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.0.clear();
        for word in [MAGIC, 1, u32::MAX, u32::MAX] {
            self.word(word);
        }
        self.option(APPLICATION, b"onramp");
        self.option(0, &[]);
        self.end(SECTION, out)
    }

    /// Writes the description of an interface whose times are in nanoseconds.
    ///
    /// # Errors
    ///
    /// The error of `out`.
    pub fn interface(
        &mut self,
        link_type: u32,
        name: Option<&str>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        self.0.clear();
        self.word(link_type);
        self.word(0);
        if let Some(name) = name {
            self.option(NAME, name.as_bytes());
        }
        self.option(RESOLUTION, &[9]);
        self.option(0, &[]);
        self.end(INTERFACE, out)
    }

    /// Begins the block of a packet, which was seen at `unix_ns` and whose bytes `write` appends.
    /// [`end`](Self::end) ends it.
    pub fn packet(&mut self, interface: usize, unix_ns: u64, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.clear();
        let [high, low] = [unix_ns >> 32, unix_ns & 0xffff_ffff];
        for word in [interface as u64, high, low, 0, 0] {
            self.word(u32::try_from(word).unwrap_or(u32::MAX));
        }
        write(&mut self.0);
        // The lengths are filled in now, because they were not known before.
        let captured = u32::try_from(self.0.len() - HEAD).unwrap_or(u32::MAX);
        self.0[CAPTURED..ORIGINAL].copy_from_slice(&captured.to_le_bytes());
        self.original(captured);
        self.pad();
    }

    /// Says how long the packet was that was captured in part; at least the captured length counts.
    ///
    /// # Panics
    ///
    /// Panics if no [packet](Self::packet) was begun.
    pub fn original(&mut self, bytes: u32) {
        let captured: [u8; 4] = self.0[CAPTURED..ORIGINAL].try_into().expect("four bytes");
        let bytes = bytes.max(u32::from_le_bytes(captured));
        self.0[ORIGINAL..HEAD].copy_from_slice(&bytes.to_le_bytes());
    }

    /// Says in which direction the packet went.
    pub fn direction(&mut self, direction: Direction) {
        self.option(FLAGS, &(direction as u32).to_le_bytes());
        self.option(0, &[]);
    }

    /// Writes the block.
    ///
    /// # Errors
    ///
    /// The error of `out`.
    pub fn end(&mut self, kind: u32, out: &mut impl Write) -> io::Result<()> {
        let length = u32::try_from(self.0.len() + 12).unwrap_or(u32::MAX).to_le_bytes();
        out.write_all(&kind.to_le_bytes())?;
        out.write_all(&length)?;
        out.write_all(&self.0)?;
        out.write_all(&length)
    }

    fn word(&mut self, word: u32) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&code.to_le_bytes());
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(value);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}
