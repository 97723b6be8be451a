//! Reads captures and sends the UDP payloads in them.

use anyhow::{Error, Result};
use onramp_dev::capture::Interfaces;

use super::dissect::{self, Frame};
use super::{Counts, Outbox};
use crate::capture::{Advice, Blocks};

pub(crate) const ADVICE: Advice = Advice {
    compressed: "give --from -",
    other: "; to send lines of text, pipe them to standard input, and give --from -",
};

/// Sends each UDP payload of the capture in the flow that its addresses and ports say. A signal
/// ends it, also while it finds nothing to send.
///
/// If reading fails, the error says at which byte of the input. The payloads before that byte have
/// been sent.
pub(crate) fn read(
    mut blocks: Blocks<'_>,
    counts: &mut Counts,
    outbox: &mut Outbox<'_>,
) -> Result<()> {
    let mut interfaces = Interfaces::default();
    outbox.heed()?;
    loop {
        let taken = blocks.next(|block| {
            let Some(record) = interfaces.record(&block).map_err(Error::msg)? else {
                return outbox.heed();
            };
            counts.read += 1;
            let link = interfaces.all()[record.interface].link_type;
            match dissect::frame(link, record.data, record.original as usize) {
                Frame::Udp(flow, payload) => outbox.send(flow, payload),
                Frame::Skip(reason) => {
                    *counts.skipped.entry(reason).or_default() += 1;
                    outbox.heed()
                }
            }
        })?;
        if taken.is_none() {
            return Ok(());
        }
    }
}
