//! Captures, in the formats pcap and pcapng, read as a stream.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow, bail};
use pcap_parser::pcapng::Block;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Linktype, PcapBlockOwned, PcapError, create_reader};

use super::dissect::{self, Frame};
use super::{Counts, FlowId};

/// Buffer for blocks: several times the largest packet that tools capture (256 KiB).
const BUFFER: usize = 1 << 20;
/// Blocks of a capture, at most. A length beyond is a damaged file.
const BLOCK_MAX: usize = 16 << 20;

/// How captures begin: pcap in both byte orders, with times in micro- and in nanoseconds, and as
/// patched systems wrote it; pcapng.
const MAGICS: [[u8; 4]; 7] = [
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x34, 0xcd, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xcd, 0x34],
    PCAPNG,
];
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// How compressed files begin, and what reads them.
const COMPRESSED: [(&[u8], &str); 4] = [
    (&[0x1f, 0x8b], "zcat"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstdcat"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "xzcat"),
    (b"BZh", "bzcat"),
];

/// Reads the beginning of `input`, just as far as it could be that of a capture, so that a line of
/// text is not held up; true if it is one.
pub(crate) fn begins(input: &mut impl Read) -> io::Result<(Vec<u8>, bool)> {
    let mut head = Vec::with_capacity(PCAPNG.len());
    while head.len() < PCAPNG.len() && MAGICS.iter().any(|magic| magic.starts_with(&head)) {
        let mut next = [0];
        match input.read(&mut next) {
            Ok(0) => break,
            Ok(_) => head.push(next[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let capture = MAGICS.iter().any(|magic| head == *magic);
    Ok((head, capture))
}

/// Reads the capture at `path` and gives each UDP payload, and the flow it is of, to `each`.
///
/// An error says at which byte of the file; what comes before it was given to `each`.
pub(crate) fn read(
    path: &Path,
    counts: &mut Counts,
    each: impl FnMut(FlowId, &[u8]) -> Result<()>,
) -> Result<()> {
    let name = path.display();
    let file = File::open(path).map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "ask its owner for leave to read it",
            _ => "name a pcap or pcapng file",
        };
        anyhow!("cannot read {name}: {error}; {advice}")
    })?;
    read_from(file, &name.to_string(), counts, each)
}

/// The same from `input`, which messages call `name`.
pub(crate) fn read_from(
    mut input: impl Read + Send,
    name: &str,
    counts: &mut Counts,
    mut each: impl FnMut(FlowId, &[u8]) -> Result<()>,
) -> Result<()> {
    let cannot_read =
        |error: io::Error| anyhow!("cannot read {name}: {error}; name a pcap or pcapng file");
    let mut head = Vec::new();
    input.by_ref().take(8).read_to_end(&mut head).map_err(cannot_read)?;
    let capture = MAGICS.iter().any(|magic| head.starts_with(magic));
    let compressed = COMPRESSED.iter().find(|(magic, _)| head.starts_with(magic));
    let failed = Arc::new(Mutex::new(None));
    let source = Source { input: io::Cursor::new(head).chain(input), failed: Arc::clone(&failed) };
    let mut links = Links::default();
    let outcome = match create_reader(BUFFER, source) {
        Ok(mut reader) => {
            let read = blocks(&mut *reader, |block| links.take(&block, counts, &mut each));
            read.map_err(|error| error.context(format!("{name}: at byte {}", reader.consumed())))
        }
        Err(PcapError::Eof) => Err(anyhow!("{name} is empty, no capture")),
        Err(PcapError::Incomplete(_)) if capture => {
            Err(anyhow!("{name}: at byte 0: the header is cut off"))
        }
        Err(_) => Err(match compressed {
            Some((_, tool)) => anyhow!(
                "{name} is compressed: give what `{tool} {name}` writes to standard input, and \
                 --from -"
            ),
            None => anyhow!(
                "{name} is neither a pcap nor a pcapng capture; to send lines of text, give it to \
                 standard input, and --from -"
            ),
        }),
    };
    // The parser does not say what went wrong with the input.
    match failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(cannot_read(error)),
        None => outcome,
    }
}

/// An input that fills the whole buffer that it is given, unless it ends, and keeps its error.
struct Source<R> {
    input: R,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let kind = error.kind();
                    *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return Err(kind.into());
                }
            }
        }
        Ok(filled)
    }
}

/// Gives every block to `take`.
fn blocks(
    reader: &mut dyn PcapReaderIterator,
    mut take: impl FnMut(PcapBlockOwned<'_>) -> Result<()>,
) -> Result<()> {
    let mut capacity = BUFFER;
    loop {
        let problem = match reader.next() {
            Ok((length, block)) => {
                take(block)?;
                reader.consume(length);
                continue;
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::Incomplete(_)) => Problem::More,
            Err(PcapError::BufferTooSmall) => Problem::Larger,
            Err(PcapError::UnexpectedEof) => Problem::CutOff,
            Err(_) => Problem::Damaged,
        };
        match problem {
            Problem::CutOff if reader.data().is_empty() => return Ok(()),
            Problem::CutOff => bail!("the capture is cut off"),
            Problem::Damaged => bail!("the capture is damaged"),
            Problem::Larger if capacity >= BLOCK_MAX => {
                bail!("the capture is damaged: a block of more than {BLOCK_MAX} bytes");
            }
            Problem::Larger => {
                capacity *= 2;
                reader.grow(capacity);
            }
            Problem::More => {}
        }
        let before = reader.data().len();
        reader.refill().map_err(|_| anyhow!("the capture cannot be read"))?;
        let stuck = reader.data().len() == before && !reader.reader_exhausted();
        if stuck && matches!(problem, Problem::More) {
            bail!("the capture is damaged");
        }
    }
}

enum Problem {
    More,
    Larger,
    CutOff,
    Damaged,
}

/// Link types of a capture's interfaces; a pcap has one.
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
            bail!("the capture is damaged: a packet of interface {interface}, not described");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_begin_like_no_text() {
        for magic in MAGICS {
            let mut input = &[&magic[..], b"the rest"].concat()[..];
            assert_eq!(begins(&mut input).expect("bytes"), (magic.to_vec(), true));
            assert_eq!(input, b"the rest");
            assert!(!begins(&mut &magic[..3]).expect("bytes").1, "cut off");
        }
        // No more is read than it takes to tell: a line of text goes on at once.
        for (text, taken) in [(&b"text"[..], 1), (b"", 0), (b"\n", 1), (b"\ntext", 2)] {
            let mut input = text;
            let (head, capture) = begins(&mut input).expect("bytes");
            assert!(!capture && head.len() == taken, "{text:?}: {head:?}");
            assert_eq!([&head, input].concat(), text);
        }
    }
}
