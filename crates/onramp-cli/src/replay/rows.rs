//! Writes a row of comma-separated values for each packet that leaves the tree of qdiscs or is
//! dropped.

use std::io::{BufWriter, Write};

use anyhow::Result;
use onramp_queue::DropReason;
use onramp_sim::Fate;
use onramp_sim::capture::Player;

use super::{numbers, since_first};
use crate::output::Stream;

const HEAD: &str = "packet,interface,flow,bytes,priority,ecn_in,in_ns,out_ns,drop,sojourn_ns,\
                    ecn_out,queue_packets,queue_bytes,copy";

/// Writes comma-separated values.
pub(super) struct Rows<'s> {
    out: BufWriter<Stream<'s>>,
}

impl<'s> Rows<'s> {
    pub(super) fn new(out: Stream<'s>) -> Result<Self> {
        let mut out = BufWriter::new(out);
        writeln!(out, "{HEAD}").map_err(|error| out.get_ref().failed(&error))?;
        Ok(Self { out })
    }

    pub(super) fn write(&mut self, fate: &Fate, player: &Player<'_>) -> Result<()> {
        let (packet, interface) = numbers(fate);
        let pkt = &fate.packet;
        let flow = player.read().number(pkt.flow);
        let left = fate.arrives.map(|_| since_first(fate.at).to_string()).unwrap_or_default();
        let drop = match fate.arrives {
            None => pkt.drop_reason.map_or("", DropReason::name),
            Some(_) => "",
        };
        let written = writeln!(
            self.out,
            "{packet},{interface},{flow},{},{},{},{},{left},{drop},{},{},{},{},{}",
            pkt.len,
            pkt.priority,
            fate.ecn,
            since_first(fate.came),
            fate.sojourn_ns(),
            pkt.ecn,
            fate.met.packets,
            fate.met.bytes,
            u8::from(fate.copy),
        );
        written.map_err(|error| self.out.get_ref().failed(&error))
    }

    pub(super) fn finish(self) -> Result<()> {
        super::write::finish(self.out)
    }
}
