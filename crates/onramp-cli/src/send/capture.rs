//! Reads captures and finds the UDP payloads in them.

use std::io::Read;
use std::path::Path;

use anyhow::{Result, bail};
use pcap_parser::pcapng::Block;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Linktype, PcapBlockOwned};

use super::dissect::{self, Frame};
use super::{Counts, FlowId};
use crate::capture::{Advice, Blocks};

const ADVICE: Advice = Advice {
    compressed: "give --from -",
    other: "; to send lines of text, pipe them to standard input, and give --from -",
};

/// Reads the capture at `path` and passes each UDP payload, with its flow, to `each`.
///
/// If reading fails, the error says at which byte of the file. The payloads before that byte have
/// been passed to `each`.
pub(crate) fn read(
    path: &Path,
    counts: &mut Counts,
    each: impl FnMut(FlowId, &[u8]) -> Result<()>,
) -> Result<()> {
    read_blocks(Blocks::open(path, ADVICE)?, counts, each)
}

/// Reads the capture in `input`, which error messages call `name`, and passes each UDP payload,
/// with its flow, to `each`.
pub(crate) fn read_from(
    input: impl Read + Send,
    name: &str,
    counts: &mut Counts,
    each: impl FnMut(FlowId, &[u8]) -> Result<()>,
) -> Result<()> {
    read_blocks(Blocks::new(input, name, ADVICE)?, counts, each)
}

fn read_blocks(
    mut blocks: Blocks<'_>,
    counts: &mut Counts,
    mut each: impl FnMut(FlowId, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut links = Links::default();
    while blocks.next(|block| links.take(&block, counts, &mut each))?.is_some() {}
    Ok(())
}

/// The link type of each interface of the capture. A pcap file has only one interface.
#[derive(Debug, Default)]
struct Links(Vec<Linktype>);

impl Links {
    fn take(
        &mut self,
        block: &PcapBlockOwned<'_>,
        counts: &mut Counts,
        each: &mut impl FnMut(FlowId, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (interface, data, original) = match block {
            PcapBlockOwned::LegacyHeader(header) => {
                if !dissect::understands(header.network) {
                    bail!(
                        "the capture's link type {} is not one of Ethernet, Linux cooked, raw IP \
                         and BSD loopback",
                        header.network.0
                    );
                }
                self.0 = vec![header.network];
                return Ok(());
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.0.clear();
                return Ok(());
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                self.0.push(interface.linktype);
                return Ok(());
            }
            PcapBlockOwned::Legacy(record) => (0, record.data, record.origlen),
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                (packet.if_id as usize, packet.packet_data(), packet.origlen)
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                (0, packet.packet_data(), packet.origlen)
            }
            PcapBlockOwned::NG(_) => return Ok(()),
        };
        let Some(link) = self.0.get(interface) else {
            bail!("the capture is damaged: there is no description of interface {interface}");
        };
        counts.read += 1;
        match dissect::frame(*link, data, original as usize) {
            Frame::Udp(flow, payload) => each(flow, payload),
            Frame::Skip(reason) => {
                *counts.skipped.entry(reason).or_default() += 1;
                Ok(())
            }
        }
    }
}
