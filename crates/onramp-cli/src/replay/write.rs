//! Writes the packets that a replay has sent into a capture in the format pcapng.

use std::io::{self, BufWriter};

use anyhow::Result;
use onramp_dev::capture::{Block, Head, Interface, PACKET};
use onramp_sim::Fate;
use onramp_sim::capture::{Player, mark};

use super::{numbers, since_first};
use crate::output::Stream;

/// Writes the packets that leave the tree of qdiscs into a pcapng file.
pub(super) struct Writer<'s> {
    out: BufWriter<Stream<'s>>,
    /// Number of interfaces whose descriptions have been written so far.
    described: usize,
    block: Block,
    frame: Vec<u8>,
}

impl<'s> Writer<'s> {
    pub(super) fn new(out: Stream<'s>) -> Result<Self> {
        let mut writer = Self {
            out: BufWriter::new(out),
            described: 0,
            block: Block::default(),
            frame: Vec::new(),
        };
        let written = writer.block.section(&mut writer.out);
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
            // Link types have 16 bits in the file.
            let link_type = interface.link_type.0.cast_unsigned() & 0xffff;
            self.block.interface(link_type, None, &mut self.out)?;
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
            mark(fate.packet.layer(), &mut self.frame);
        }
        self.block.packet(interface, time, |bytes| match link {
            Some(link) => link.close(head.as_ref(), &self.frame, bytes),
            None => bytes.extend_from_slice(&self.frame),
        });
        self.block.original(original);
        self.block.end(PACKET, &mut self.out)
    }
}

/// Writes the buffered data and finishes the output.
pub(super) fn finish(out: BufWriter<Stream<'_>>) -> Result<()> {
    match out.into_inner() {
        Ok(stream) => stream.finish(),
        Err(failed) => {
            let (error, out) = failed.into_parts();
            Err(out.get_ref().failed(&error))
        }
    }
}
