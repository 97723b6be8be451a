//! Reads captures in the formats pcap and pcapng as a stream of blocks.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{PcapBlockOwned, PcapError, create_reader};

use crate::sys::Maker;

/// Size in bytes of the buffer that blocks are read into. It grows for a block that is larger. In
/// unit tests and fuzzing the buffer is small, so that it has to grow.
const BUFFER: usize = if cfg!(any(test, fuzzing)) { 64 } else { 64 << 10 };
/// Largest allowed size of a block in bytes. If a block says that it is longer, the file is
/// damaged.
const BLOCK_MAX: usize = if cfg!(any(test, fuzzing)) { 16 << 10 } else { 16 << 20 };
/// Smallest size of a pcapng block in bytes: the type, the length, and the length again.
const BLOCK_MIN: u32 = 12;

/// The first bytes by which a capture is known. For pcap, in both byte orders: with times in
/// microseconds, with times in nanoseconds, and the variant with longer packet headers that patched
/// versions of libpcap wrote. Last, those of pcapng.
const MAGICS: [[u8; 4]; 7] = [
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x34, 0xcd, 0xb2, 0xa1],
    PATCHED_BIG,
    PCAPNG,
];
/// The parser does not read this variant.
const PATCHED_BIG: [u8; 4] = [0xa1, 0xb2, 0xcd, 0x34];
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The bytes 8 to 11 of a pcapng file whose numbers begin with the most significant byte.
const BIG_ENDIAN: &[u8; 4] = &[0x1a, 0x2b, 0x3c, 0x4d];
/// The first bytes by which compressed files are known, each with the program that decompresses
/// such files. [`DIGIT`] stands for any digit. The bytes of bzip2 are so many because text may
/// begin with the first three.
///
/// Source: RFC 1952; RFC 8878; the format descriptions of xz and bzip2.
const COMPRESSED: [(&[u8], &str); 4] = [
    (&[0x1f, 0x8b], "zcat"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstdcat"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "xzcat"),
    (b"BZh?1AY&SY", "bzcat"),
];
const DIGIT: u8 = b'?';
/// Number of the first bytes of an input that say what it is, and, if it is a capture, how long its
/// header is.
const HEAD: usize = 12;
/// Size in bytes of the header of a pcap file.
const PCAP_HEADER: u64 = 24;

/// What an input is, as far as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A capture, pcap or pcapng.
    Capture,
    /// Compressed data. The text is the name of the program that decompresses them, such as `zcat`.
    Compressed(&'static str),
    /// Something else, such as text.
    Other,
}

impl Beginning {
    /// Returns what an input is that begins with `head`, and whether further bytes may change that.
    fn of(head: &[u8]) -> (Self, bool) {
        let is = |magic: &[u8], length: usize| {
            let same = |(byte, magic): (&u8, &u8)| {
                byte == magic || (*magic == DIGIT && byte.is_ascii_digit())
            };
            head.len() >= length && head.iter().zip(magic).all(same)
        };
        let captures = MAGICS.iter().map(|magic| (&magic[..], Self::Capture));
        let compressed = COMPRESSED.iter().map(|(magic, tool)| (*magic, Self::Compressed(tool)));
        let mut all = captures.chain(compressed);
        match all.clone().find(|(magic, _)| is(magic, magic.len())) {
            Some((_, found)) => (found, false),
            None => (Self::Other, all.any(|(magic, _)| is(magic, 0))),
        }
    }
}

/// Reads the beginning of `input`, and returns the bytes read and what they are the beginning of.
/// Stops reading at the first byte that neither a capture nor compressed data can have there. So,
/// if a user types lines of text, each line can be handled at once: the function does not wait for
/// more input.
///
/// # Errors
///
/// The error with which reading failed.
pub fn begins(input: &mut impl Read) -> io::Result<(Vec<u8>, Beginning)> {
    let mut head = Vec::with_capacity(HEAD);
    loop {
        let (beginning, is_open) = Beginning::of(&head);
        if !is_open {
            return Ok((head, beginning));
        }
        let mut next = [0];
        match input.read(&mut next) {
            Ok(0) => return Ok((head, beginning)),
            Ok(_) => head.push(next[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Advice for the user, as parts of the error messages about a file that is not a capture.
#[derive(Clone, Copy, Debug, Default)]
pub struct Advice {
    /// The end of the message about a compressed file, after the advice to pipe its decompressed
    /// data to standard input. It does not stand in the message about an input that is no file.
    pub compressed: &'static str,
    /// The end of the message about a file that is neither a capture nor compressed.
    pub other: &'static str,
}

/// Error: the next block of a capture could not be taken.
#[derive(Debug)]
pub enum Broken<E> {
    /// The caller refused the block, for this reason. [`Blocks::place`] says where it stands.
    Refused(E),
    /// The input cannot be read or is damaged; the text says at which byte. The kind is
    /// `UnexpectedEof` if the input ends within a block, and `InvalidData` for other damage.
    Input(io::Error),
}

/// The blocks of a capture, read one after another.
pub struct Blocks<'i> {
    reader: Box<dyn PcapReaderIterator + Send + 'i>,
    pcapng: bool,
    capacity: usize,
    name: String,
    /// The error with which reading the input failed. It is kept here because the parser does not
    /// pass it on.
    failed: Failed,
}

type Failed = Arc<Mutex<Option<io::Error>>>;

impl fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A file that is being read, and that no [`CaptureFile`](super::CaptureFile) may empty meanwhile.
pub(super) struct Shared {
    file: File,
    maker: Maker,
}

impl Shared {
    /// Locks the file. If its file system has no locks, or the capture is being written, it can be
    /// read all the same.
    pub(super) fn lock(file: File) -> Self {
        let _ = file.try_lock_shared();
        Self { file, maker: Maker::this_process() }
    }

    #[cfg(test)]
    pub(super) fn copy(&self) -> File {
        self.file.try_clone().expect("a descriptor")
    }
}

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Drop for Shared {
    /// Releases the lock, which the copy of the descriptor in a forked process would keep. Such a
    /// process does not release the lock, which is its parent's.
    fn drop(&mut self) {
        if self.maker.is_here() {
            let _ = self.file.unlock();
        }
    }
}

impl Blocks<'static> {
    /// Opens the capture in the file at `path`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and if the file cannot be opened. The text says what to do.
    pub fn open(path: &Path, advice: Advice) -> io::Result<Self> {
        let name = path.display();
        let file = File::open(path).map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::NotFound => "check the path",
                io::ErrorKind::PermissionDenied => "ask its owner for permission to read it",
                _ => "name a pcap or pcapng file",
            };
            io::Error::new(error.kind(), format!("cannot read {name}: {error}; {advice}"))
        })?;
        let file = Shared::lock(file);
        Self::begin(file, &name.to_string(), advice.other, |tool| {
            let what = advice.compressed;
            format!("pipe the output of `{tool} {name}` to standard input, and {what}")
        })
    }
}

impl<'i> Blocks<'i> {
    /// Opens the capture in `input`. Error messages call the input `name`.
    ///
    /// # Errors
    ///
    /// Fails if the input cannot be read, or does not begin like a capture.
    pub fn new(input: impl Read + Send + 'i, name: &str, advice: Advice) -> io::Result<Self> {
        let unpack = |tool: &str| format!("decompress it first, as in `{tool} FILE | onramp ...`");
        Self::begin(input, name, advice.other, unpack)
    }

    /// Opens the capture in `input`. If it is compressed, `unpack` returns what to do, for the
    /// program that decompresses it. If it is something else, the message ends with `other`.
    fn begin(
        mut input: impl Read + Send + 'i,
        name: &str,
        other: &str,
        unpack: impl FnOnce(&str) -> String,
    ) -> io::Result<Self> {
        // The header is read by itself, because the parser expects that its first read returns the
        // whole header.
        let mut head = Vec::new();
        let read = input.by_ref().take(HEAD as u64).read_to_end(&mut head);
        let rest = header(&head).saturating_sub(HEAD as u64);
        let read = read.and_then(|_| input.by_ref().take(rest).read_to_end(&mut head));
        read.map_err(|error| cannot_read(name, &error))?;
        let (beginning, _) = Beginning::of(&head);
        let capacity = head.len().max(BUFFER);
        let capture = beginning == Beginning::Capture;
        let pcapng = head.starts_with(&PCAPNG);
        let patched = head.starts_with(&PATCHED_BIG) && head.len() as u64 == PCAP_HEADER;
        let failed = Failed::default();
        let source =
            Source { input: io::Cursor::new(head).chain(input), failed: Arc::clone(&failed) };
        let why = match create_reader(capacity, source) {
            Ok(reader) => {
                let name = name.to_owned();
                return Ok(Self { reader, pcapng, capacity, name, failed });
            }
            Err(PcapError::Eof) => format!("{name} is empty: expected a pcap or pcapng capture"),
            Err(PcapError::Incomplete(_)) if capture => {
                format!("{name}: at byte 0: the header is cut off")
            }
            Err(_) if patched => format!(
                "{name}: at byte 0: its packets have the longer headers of a patched libpcap in \
                 big-endian order, which Onramp does not read: convert it, with `tcpdump -r FILE \
                 -w OTHER`"
            ),
            Err(_) if capture => {
                format!("{name}: at byte 0: the header is cut off or damaged")
            }
            Err(_) => match beginning {
                Beginning::Compressed(tool) => format!("{name} is compressed: {}", unpack(tool)),
                _ => format!("{name} is neither a pcap nor a pcapng capture{other}"),
            },
        };
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, why);
        Err(taken(&failed).map_or_else(damaged, |failed| cannot_read(name, &failed)))
    }

    /// Returns the number of bytes read before the next block.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.reader.consumed() as u64
    }

    /// Returns where the next block stands, for messages: the name of the input and the byte.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}: at byte {}", self.name, self.consumed())
    }

    /// Calls `take` with the next block and returns the value that `take` returned; `None` if there
    /// are no more blocks.
    ///
    /// # Errors
    ///
    /// [`Broken`] if the input is, or if `take` refuses the block.
    pub fn next<T, E>(
        &mut self,
        take: impl FnOnce(PcapBlockOwned<'_>) -> Result<T, E>,
    ) -> Result<Option<T>, Broken<E>> {
        let taken_block = self.advance(take);
        taken_block.map_err(|error| match (taken(&self.failed), error) {
            (Some(failed), _) => Broken::Input(cannot_read(&self.name, &failed)),
            (None, Stop::Refused(error)) => Broken::Refused(error),
            (None, Stop::Damaged(kind, why)) => {
                Broken::Input(io::Error::new(kind, format!("{}: {why}", self.place())))
            }
        })
    }

    fn advance<T, E>(
        &mut self,
        take: impl FnOnce(PcapBlockOwned<'_>) -> Result<T, E>,
    ) -> Result<Option<T>, Stop<E>> {
        let damaged = |why: String| Err(Stop::Damaged(io::ErrorKind::InvalidData, why));
        let reader = &mut self.reader;
        loop {
            if let Some(length) = too_short(reader.data()).filter(|_| self.pcapng) {
                return damaged(format!(
                    "the capture is damaged: a block has a length of {length} bytes"
                ));
            }
            let problem = match reader.next() {
                Ok((length, block)) => {
                    let done = take(block).map_err(Stop::Refused)?;
                    reader.consume(length);
                    return Ok(Some(done));
                }
                Err(PcapError::Eof) => return Ok(None),
                Err(PcapError::Incomplete(_)) => Problem::More,
                Err(PcapError::BufferTooSmall) => Problem::Larger,
                Err(PcapError::UnexpectedEof) => Problem::CutOff,
                Err(_) => Problem::Damaged,
            };
            match problem {
                Problem::CutOff if reader.data().is_empty() => return Ok(None),
                Problem::CutOff => {
                    let why = "the capture is cut off".to_owned();
                    return Err(Stop::Damaged(io::ErrorKind::UnexpectedEof, why));
                }
                Problem::Damaged => return damaged("the capture is damaged".to_owned()),
                Problem::Larger if self.capacity >= BLOCK_MAX => {
                    return damaged(format!(
                        "the capture is damaged: a block has more than {BLOCK_MAX} bytes"
                    ));
                }
                Problem::Larger => {
                    self.capacity *= 2;
                    reader.grow(self.capacity);
                }
                Problem::More => {}
            }
            let before = reader.data().len();
            if reader.refill().is_err() {
                return damaged("the capture cannot be read".to_owned());
            }
            let stuck = reader.data().len() == before && !reader.reader_exhausted();
            if stuck && matches!(problem, Problem::More) {
                return damaged("the capture is damaged".to_owned());
            }
        }
    }
}

/// Why no block was taken.
enum Stop<E> {
    Refused(E),
    Damaged(io::ErrorKind, String),
}

enum Problem {
    More,
    Larger,
    CutOff,
    Damaged,
}

/// Returns the length in bytes of the header of the capture that begins with `head`, but at most
/// `BLOCK_MAX`. If it is no capture, returns zero.
fn header(head: &[u8]) -> u64 {
    if Beginning::of(head).0 != Beginning::Capture {
        return 0;
    }
    let words = head.as_chunks::<4>().0;
    let [PCAPNG, length, order] = words else { return PCAP_HEADER };
    let read = if order == BIG_ENDIAN { u32::from_be_bytes } else { u32::from_le_bytes };
    u64::from(read(*length)).min(BLOCK_MAX as u64)
}

/// Returns the length of a pcapng block if that length is less than `BLOCK_MIN`. The caller must
/// not pass such a block to the parser, which would subtract below zero. The function does not know
/// the byte order of the file, so it takes the smaller of both readings. If this one is wrong, the
/// right one is at least `BLOCK_MAX`, so the block is damaged anyway.
fn too_short(block: &[u8]) -> Option<u32> {
    let length: [u8; 4] = block.get(4..8)?.try_into().ok()?;
    let length = u32::from_le_bytes(length).min(u32::from_be_bytes(length));
    (length < BLOCK_MIN).then_some(length)
}

fn cannot_read(name: &str, error: &io::Error) -> io::Error {
    let why = format!("cannot read {name}: {error}; name a pcap or pcapng file");
    io::Error::new(error.kind(), why)
}

fn taken(failed: &Failed) -> Option<io::Error> {
    failed.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// An input that keeps the error with which a read failed.
struct Source<R> {
    input: R,
    failed: Failed,
}

impl<R: Read> Read for Source<R> {
    /// Returns what the input has, so that the packets of a capture that is being written can be
    /// taken as they come.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.input.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let kind = error.kind();
                    *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return Err(kind.into());
                }
                read => return read,
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
            assert_eq!(begins(&mut input).expect("bytes"), (magic.to_vec(), Beginning::Capture));
            assert_eq!(input, b"the rest");
            assert_eq!(begins(&mut &magic[..3]).expect("bytes").1, Beginning::Other, "cut off");
        }
        for (packed, tool) in [
            (&b"\x1f\x8b\x08"[..], "zcat"),
            (b"\x28\xb5\x2f\xfd\x04", "zstdcat"),
            (b"\xfd7zXZ\0", "xzcat"),
            (b"BZh91AY&SY\x99", "bzcat"),
        ] {
            let mut input = packed;
            let (head, found) = begins(&mut input).expect("bytes");
            assert_eq!(found, Beginning::Compressed(tool));
            assert_eq!([&head, input].concat(), packed);
        }
        // `begins` must read no byte more than it needs to see that the input is no capture,
        // because a read of a further byte could wait for the user's next line. `taken`: the bytes
        // read.
        for (text, taken) in [
            (&b"text"[..], 1),
            (b"", 0),
            (b"\n", 1),
            (b"\ntext", 2),
            (b"(text", 2),
            (b"BZhang: text", 4),
            (b"BZh?", 4),
        ] {
            let mut input = text;
            let (head, found) = begins(&mut input).expect("bytes");
            assert_eq!((found, head.len()), (Beginning::Other, taken), "{text:?}: {head:?}");
            assert_eq!([&head, input].concat(), text);
        }
    }

    #[test]
    fn what_the_parser_does_not_read_is_named() {
        let header = [0xa1b2_cd34, 0x0002_0004, 0, 0, 1_500, 1].map(u32::to_be_bytes).concat();
        let why = |bytes: &[u8]| {
            Blocks::new(bytes, "file", Advice::default()).expect_err("it cannot").to_string()
        };
        assert!(why(&header).contains("patched libpcap"), "{}", why(&header));
        assert!(why(&header[..20]).contains("cut off"), "{}", why(&header[..20]));
    }

    /// A pipe whose writer writes these pieces, and then waits for the packets to be taken.
    struct Live(std::vec::IntoIter<Vec<u8>>);

    impl Read for Live {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.as_mut_slice().first_mut().expect("the reader waits for ever");
            let count = piece.len().min(buffer.len());
            buffer[..count].copy_from_slice(&piece[..count]);
            piece.drain(..count);
            if piece.is_empty() {
                self.0.next();
            }
            Ok(count)
        }
    }

    #[test]
    fn a_packet_is_taken_before_the_next_one_is_written() {
        let pcap = |to: fn(u32) -> [u8; 4]| {
            let header = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 1_500, 1].map(to).concat();
            vec![header, [&[0, 0, 4, 4].map(to).concat()[..], b"data"].concat()]
        };
        let pcapng = |to: fn(u32) -> [u8; 4], option: &[u8]| {
            let block = |kind: u32, body: &[u8]| {
                let length = to(12 + u32::try_from(body.len()).expect("short"));
                [&to(kind)[..], &length, body, &length].concat()
            };
            let version = if to(1)[0] == 1 { [1, 0, 0, 0] } else { [0, 1, 0, 0] };
            let section = [&to(0x1a2b_3c4d)[..], &version, &[0xff; 8], option].concat();
            let packet = [&[0, 0, 0, 4, 4].map(to).concat()[..], b"data"].concat();
            let link = if to(1)[0] == 1 { [1, 0, 0, 0] } else { [0, 1, 0, 0] };
            let interface = [&link[..], &to(1_500)].concat();
            vec![block(0x0a0d_0d0a, &section), block(1, &interface), block(6, &packet)]
        };
        // The second section header is longer than the buffer: it has a comment of 80 bytes.
        let comment = [&b"\0\x01\0\x50"[..], &[b'x'; 80]].concat();
        let all = [
            pcap(u32::to_le_bytes),
            pcap(u32::to_be_bytes),
            pcapng(u32::to_le_bytes, b""),
            pcapng(u32::to_be_bytes, &comment),
        ];
        for pieces in all {
            let bytes: Vec<Vec<u8>> = pieces.concat().into_iter().map(|byte| vec![byte]).collect();
            for input in [pieces.clone(), bytes, vec![pieces.concat()]] {
                let live = Live(input.into_iter());
                let mut blocks = Blocks::new(live, "live", Advice::default()).expect("a header");
                let mut data = Vec::new();
                for _ in &pieces {
                    let take = |block: PcapBlockOwned<'_>| {
                        data = match block {
                            PcapBlockOwned::Legacy(record) => record.data.to_vec(),
                            PcapBlockOwned::NG(pcap_parser::Block::EnhancedPacket(packet)) => {
                                packet.data.to_vec()
                            }
                            _ => Vec::new(),
                        };
                        Ok::<(), ()>(())
                    };
                    blocks.next(take).expect("it is sound").expect("there is one more");
                }
                assert_eq!(data, b"data", "{pieces:?}");
            }
        }
    }
}
