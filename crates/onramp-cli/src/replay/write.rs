//! Writes a capture in the format pcapng.
//!
//! Source: draft-ietf-opsawg-pcapng. This module writes three of the blocks of that format: Section
//! Header, Interface Description and Enhanced Packet. It uses no crate, because it needs only a few
//! lines, and the crates that write these blocks have no stable release of their current interface
//! (`pcap-file` 3.0.0-rc.3) or copy each packet (`pcap-parser`).

use std::io::{self, BufWriter, Write};

use anyhow::Result;
use onramp_sim::Fate;

use super::frame::{self, Head};
use super::player::{Interface, Player};
use super::{numbers, since_first};
use crate::output::Stream;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// The number by which a reader of the file recognizes its byte order.
const MAGIC: u32 = 0x1a2b_3c4d;

const APPLICATION: u16 = 4;
const RESOLUTION: u16 = 9;

/// Writes the packets that leave the tree of qdiscs into a pcapng file.
pub(super) struct Writer {
    out: BufWriter<Stream>,
    /// Number of interfaces whose descriptions have been written so far.
    described: usize,
    block: Vec<u8>,
    frame: Vec<u8>,
}

impl Writer {
    pub(super) fn new(out: Stream) -> Result<Self> {
        let mut writer =
            Self { out: BufWriter::new(out), described: 0, block: Vec::new(), frame: Vec::new() };
        writer.begin();
        for word in [MAGIC, 1, u32::MAX, u32::MAX] {
            writer.word(word);
        }
        writer.option(APPLICATION, b"onramp");
        writer.option(0, &[]);
        let written = writer.end(SECTION);
        written.map_err(|error| writer.out.get_ref().failed(&error))?;
        Ok(writer)
    }

    /// Writes one packet that was sent, with the time at which it left, and with the mark CE if a
    /// qdisc marked it.
    pub(super) fn write(
        &mut self,
        fate: &Fate,
        head: Option<Head>,
        player: &Player<'_>,
    ) -> Result<()> {
        if fate.arrives.is_none() {
            return Ok(());
        }
        let written =
            self.describe(player.interfaces()).and_then(|()| self.packet(fate, head, player));
        written.map_err(|error| self.out.get_ref().failed(&error))
    }

    pub(super) fn finish(mut self, player: &Player<'_>) -> Result<()> {
        let described = self.describe(player.interfaces());
        described.map_err(|error| self.out.get_ref().failed(&error))?;
        finish(self.out)
    }

    /// Writes the descriptions of those `interfaces` that are not yet described in the file.
    fn describe(&mut self, interfaces: &[Interface]) -> io::Result<()> {
        for interface in &interfaces[self.described..] {
            self.begin();
            // Link types have 16 bits in the file.
            self.word(interface.link_type.0.cast_unsigned() & 0xffff);
            self.word(0);
            self.option(RESOLUTION, &[9]);
            self.option(0, &[]);
            self.end(INTERFACE)?;
            self.described += 1;
        }
        Ok(())
    }

    fn packet(&mut self, fate: &Fate, head: Option<Head>, player: &Player<'_>) -> io::Result<()> {
        let (_, interface) = numbers(fate);
        let first = player.read().first_unix_ns.unwrap_or(0);
        let time = first.saturating_add(since_first(fate.at));
        let link = player.interfaces().get(interface).and_then(Interface::link);
        let original = link.map_or(fate.packet.len, |link| link.captured(fate.packet.len));
        self.frame.clear();
        self.frame.extend_from_slice(fate.packet.payload());
        if fate.marked {
            frame::mark(fate.packet.layer(), &mut self.frame);
        }
        self.begin();
        // The lengths at the beginning of the block are filled in after the frame has been written,
        // because they are not known earlier.
        let head_words = 5;
        self.block.resize(head_words * 4, 0);
        match link {
            Some(link) => link.close(head.as_ref(), &self.frame, &mut self.block),
            None => self.block.extend_from_slice(&self.frame),
        }
        let captured = u32::try_from(self.block.len() - head_words * 4).unwrap_or(u32::MAX);
        let [high, low] = [time >> 32, time & 0xffff_ffff];
        let words = [interface as u64, high, low, captured.into(), original.max(captured).into()];
        for (place, word) in self.block.chunks_mut(4).zip(words) {
            place.copy_from_slice(&u32::try_from(word).unwrap_or(u32::MAX).to_le_bytes());
        }
        self.end(PACKET)
    }

    fn begin(&mut self) {
        self.block.clear();
    }

    fn word(&mut self, word: u32) {
        self.block.extend_from_slice(&word.to_le_bytes());
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        self.block.extend_from_slice(&code.to_le_bytes());
        self.block.extend_from_slice(&length.to_le_bytes());
        self.block.extend_from_slice(value);
        self.pad();
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn end(&mut self, kind: u32) -> io::Result<()> {
        self.pad();
        let length = u32::try_from(self.block.len() + 12).unwrap_or(u32::MAX).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&length)
    }
}

/// Writes the buffered data and finishes the output.
pub(super) fn finish(out: BufWriter<Stream>) -> Result<()> {
    match out.into_inner() {
        Ok(stream) => stream.finish(),
        Err(failed) => {
            let (error, out) = failed.into_parts();
            Err(out.get_ref().failed(&error))
        }
    }
}
