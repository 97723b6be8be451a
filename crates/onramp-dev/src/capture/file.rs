//! A device that writes its packets into a capture file.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use onramp_core::frame::{self, SuperFrame};
use onramp_core::{Clock as _, Device, DeviceInfo, Instant, Transmitted};
use onramp_queue::{Counter, DropReason, Layer, Packet, PacketList};

use super::pcapng::{Block, PACKET};
use crate::clock::MonotonicClock;
use crate::sys::Maker;

/// The first number of a pcap file whose times are in nanoseconds.
const PCAP: u32 = 0xa1b2_3c4d;
/// The most bytes of a packet that a pcap file may have, as `tcpdump` writes it.
const SNAPLEN: u32 = 262_144;
const SEC: u64 = 1_000_000_000;

/// The format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFormat {
    /// One link type for all packets; times up to the year 2106. Every tool reads it.
    Pcap,
    /// Packets of several link types.
    Pcapng,
}

impl CaptureFormat {
    /// Returns the format that the name of a file asks for: pcap if it ends in `.pcap` or `.cap`,
    /// else pcapng.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let ends = |end: &str| path.extension().is_some_and(|has| has.eq_ignore_ascii_case(end));
        if ends("pcap") || ends("cap") { Self::Pcap } else { Self::Pcapng }
    }
}

/// Options of a [`CaptureFile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// The format; `None` lets the name of the file decide ([`CaptureFormat::of`]).
    pub format: Option<CaptureFormat>,
    /// The layer at which packets begin. It decides the link type of the file, or of the first
    /// interface of a pcapng file: Ethernet (1), raw IP (101), or for datagrams without headers
    /// `USER0` (147).
    pub layer: Layer,
    /// Size of the largest packet in bytes, link header included, for the qdiscs. Larger packets
    /// are written all the same.
    pub mtu: u32,
    /// Whether a file that exists loses its contents. Otherwise it is an error that it exists.
    pub replace: bool,
    /// The time in nanoseconds since 1970 at which the clock of the device's callers
    /// ([`Instant`]) was zero.
    pub unix_ns_at_zero: u64,
}

impl Default for CaptureOptions {
    /// Ethernet frames of 1,514 bytes in a new file, for callers whose clock is [`MonotonicClock`].
    fn default() -> Self {
        let (format, layer, replace) = (None, Layer::Ethernet, false);
        Self { format, layer, mtu: 1_514, replace, unix_ns_at_zero: unix_ns_at_zero() }
    }
}

/// Returns the time in nanoseconds since 1970 at which [`MonotonicClock`] was zero.
#[expect(clippy::disallowed_methods, reason = "the wall clock, for the times in the file")]
fn unix_ns_at_zero() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let unix_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    unix_ns.saturating_sub(MonotonicClock.now().0)
}

/// A device that writes its packets into a capture file: a [`Device`] whose packets leave for good.
///
/// Each packet has the time at which it left the qdisc, in nanoseconds, and the bytes that it would
/// have on the wire: the mark CE is written, a missing checksum is computed, and a super-frame is
/// cut into its segments, which all have the same time. A packet without payload has its length,
/// and no bytes. A packet that was captured in part keeps its length on the wire.
///
/// Each burst is written with one call, so nothing waits in the program; [`transmit`] blocks while
/// the kernel's own buffer for the disk is full. If a write fails, for example because the disk is
/// full, the packets that did not fit are dropped as `DeviceError`, the file is cut behind its last
/// whole packet, and the next burst is tried again. If it cannot be cut because it is a pipe, all
/// further packets are dropped. A pcap file has one link type, so packets of another layer are
/// dropped as `DeviceError`. [`CaptureStats::last_error`] has the reason.
///
/// Use it to look at what leaves a qdisc, or to run a capture through a qdisc in real time.
///
/// [`transmit`]: Device::transmit
#[derive(Debug)]
pub struct CaptureFile {
    info: DeviceInfo,
    file: File,
    /// The process that locked the file, if one did.
    locker: Option<Maker>,
    format: CaptureFormat,
    unix_ns_at_zero: u64,
    /// The layers of the file's interfaces.
    layers: Vec<Layer>,
    /// Bytes of the file up to its last whole packet.
    whole: u64,
    /// Whether the file ends within a packet, and cannot be cut.
    broken: bool,
    block: Block,
    /// The packets of the burst, as they stand in the file, and the buffer for a segment.
    batch: Vec<u8>,
    segment: Vec<u8>,
    /// Where in the batch each packet of the burst ends, with the number of interfaces and of
    /// records up to there.
    ends: Vec<End>,
    stats: Arc<CaptureStats>,
}

#[derive(Clone, Copy, Debug, Default)]
struct End {
    bytes: usize,
    layers: usize,
    records: u64,
    /// Whether the packet could not be put into the batch.
    refused: bool,
}

/// Counters of a [`CaptureFile`].
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CaptureStats {
    /// Number of packets in the file: frames, or segments of a super-frame.
    pub frames: Counter,
    /// Number of bytes that were written, the headers of the file included.
    pub bytes: Counter,
    /// Number of packets that were dropped because they could not be written.
    pub failed: Counter,
    error: Mutex<Option<String>>,
}

impl CaptureStats {
    /// Returns the text of the last error, if there was one.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fail(&self, why: String) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

impl CaptureFile {
    /// Makes the file at `path`, and writes the beginning of a capture. The file may be a character
    /// device, such as `/dev/null`, but no pipe, for which a program could wait without end.
    ///
    /// # Errors
    ///
    /// The text names the file, and says what is wrong: it exists (`AlreadyExists`) and the options
    /// do not allow to replace it, it cannot be made or written, or another [`CaptureFile`] or a
    /// reader of [`Blocks`](super::Blocks) uses it (`ResourceBusy`).
    pub fn create(path: &Path, options: CaptureOptions) -> io::Result<Self> {
        let name = path.display();
        let told = |error: &io::Error| {
            let why = match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    format!("{name} exists: allow to replace it, or name another file")
                }
                _ => format!("cannot write {name}: {error}"),
            };
            io::Error::new(error.kind(), why)
        };
        let mut how = OpenOptions::new();
        // A pipe without a reader is an error then, and does not block.
        how.write(true).custom_flags(libc::O_NONBLOCK);
        if options.replace {
            how.create(true).truncate(false)
        } else {
            how.create_new(true)
        };
        let file = how.open(path).map_err(|error| told(&error))?;
        let kind = file.metadata().map_err(|error| told(&error))?.file_type();
        if kind.is_file() {
            // Nobody reads or writes the file: see `Blocks::open`.
            file.try_lock().map_err(|_| {
                let why = format!("cannot write {name}: a program of Onramp uses the file");
                io::Error::new(io::ErrorKind::ResourceBusy, why)
            })?;
            file.set_len(0).map_err(|error| told(&error))?;
        } else if !kind.is_char_device() {
            let why = format!("cannot write {name}: it is no file");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let format = options.format.unwrap_or_else(|| CaptureFormat::of(path));
        let device = Self::new(file, &name.to_string(), format, options);
        let mut device = device.map_err(|error| told(&error))?;
        device.locker = kind.is_file().then(Maker::this_process);
        Ok(device)
    }

    /// Writes the beginning of a capture to `out`, an empty file or a pipe. [`DeviceInfo::name`]
    /// calls it `name`. Ignores the format and the option `replace` in `options`.
    ///
    /// # Errors
    ///
    /// The error of the first write.
    pub fn new(
        out: File,
        name: &str,
        format: CaptureFormat,
        options: CaptureOptions,
    ) -> io::Result<Self> {
        let mut device = Self {
            info: DeviceInfo::new(format!("capture {name}"), options.mtu),
            file: out,
            locker: None,
            format,
            unix_ns_at_zero: options.unix_ns_at_zero,
            layers: Vec::new(),
            whole: 0,
            broken: false,
            block: Block::default(),
            batch: Vec::new(),
            segment: Vec::new(),
            ends: Vec::new(),
            stats: Arc::default(),
        };
        device.begin(options.layer);
        device.file.write_all(&device.batch)?;
        device.whole = device.batch.len() as u64;
        device.stats.bytes.add(device.whole);
        device.batch.clear();
        Ok(device)
    }

    /// Returns the counters of the file, which any thread may read at any time.
    #[must_use]
    pub fn stats(&self) -> Arc<CaptureStats> {
        Arc::clone(&self.stats)
    }

    /// Puts the beginning of the file into the batch.
    fn begin(&mut self, layer: Layer) {
        match self.format {
            CaptureFormat::Pcapng => {
                in_memory(self.block.section(&mut self.batch));
                self.interface(layer);
            }
            CaptureFormat::Pcap => {
                let version = 2 | 4 << 16;
                for word in [PCAP, version, 0, 0, SNAPLEN, link_type(layer)] {
                    self.batch.extend_from_slice(&word.to_le_bytes());
                }
                self.layers.push(layer);
            }
        }
    }

    /// Returns the number of the interface for packets of this layer, and describes it in the batch
    /// if it is new. `None` if the file cannot have such packets.
    fn interface(&mut self, layer: Layer) -> Option<usize> {
        let known = self.layers.iter().position(|known| *known == layer);
        if known.is_some() || self.format == CaptureFormat::Pcap {
            return known;
        }
        in_memory(self.block.interface(link_type(layer), None, &mut self.batch));
        self.layers.push(layer);
        Some(self.layers.len() - 1)
    }

    /// Puts a packet into the batch, or its segments. Returns their number.
    fn add(&mut self, packet: &mut Packet, unix_ns: u64) -> Result<u64, String> {
        if packet.payload().is_empty() {
            self.record(0, unix_ns, &[], packet.len);
            return Ok(1);
        }
        let layer = packet.layer();
        let Some(interface) = self.interface(layer) else {
            return Err(format!(
                "a pcap file has packets of one layer, here {:?}, and the packet is of {layer:?}: \
                 write a pcapng file",
                self.layers[0]
            ));
        };
        if packet.ecn == 3 {
            frame::write_ce(packet);
        }
        let Some(whole) = SuperFrame::of(packet) else {
            frame::complete_checksum(packet);
            // The length of a datagram counts headers that are not here.
            let original = if layer == Layer::Datagram { 0 } else { packet.len };
            self.record(interface, unix_ns, packet.payload(), original);
            return Ok(1);
        };
        let mut bytes = std::mem::take(&mut self.segment);
        for index in 0..whole.count() {
            whole.write_segment(packet.payload(), index, &mut bytes);
            frame::write_checksum(whole.partial_checksum(), &mut bytes);
            self.record(interface, unix_ns, &bytes, 0);
        }
        self.segment = bytes;
        Ok(whole.count() as u64)
    }

    /// Puts a record into the batch. `original` is the length on the wire; the bytes themselves
    /// count if they are more.
    fn record(&mut self, interface: usize, unix_ns: u64, bytes: &[u8], original: u32) {
        let captured = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match self.format {
            CaptureFormat::Pcapng => {
                self.block.packet(interface, unix_ns, |block| block.extend_from_slice(bytes));
                self.block.original(original);
                in_memory(self.block.end(PACKET, &mut self.batch));
            }
            CaptureFormat::Pcap => {
                let seconds = u32::try_from(unix_ns / SEC).unwrap_or(u32::MAX);
                let rest = u32::try_from(unix_ns % SEC).unwrap_or(0);
                for word in [seconds, rest, captured, original.max(captured)] {
                    self.batch.extend_from_slice(&word.to_le_bytes());
                }
                self.batch.extend_from_slice(bytes);
            }
        }
    }

    /// Writes the batch. Returns how many of its bytes belong to packets that stand in the file
    /// whole, and the number of calls.
    fn write(&mut self) -> (usize, u32) {
        let (mut at, mut calls) = (0, 0);
        let error = loop {
            if at == self.batch.len() {
                self.whole += at as u64;
                return (at, calls);
            }
            calls += 1;
            match self.file.write(&self.batch[at..]) {
                Ok(0) => break io::ErrorKind::WriteZero.into(),
                Ok(written) => at += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        self.stats.fail(format!("{}: {error}", self.info.name));
        let whole = self.ends.iter().rev().map(|end| end.bytes).find(|end| *end <= at).unwrap_or(0);
        self.whole += whole as u64;
        if at > whole {
            // Otherwise no reader would find a packet behind these bytes.
            let cut = self.file.set_len(self.whole);
            self.broken = cut.and_then(|()| self.file.seek(SeekFrom::Start(self.whole))).is_err();
        }
        (whole, calls)
    }
}

impl Drop for CaptureFile {
    /// Releases the lock, because closing the file need not do so: a process that was forked from
    /// this one has copies of its descriptors, and each of them would keep the lock. Such a process
    /// does not release the lock, which is its parent's.
    fn drop(&mut self) {
        if self.locker.is_some_and(Maker::is_here) {
            let _ = self.file.unlock();
        }
    }
}

impl Device for CaptureFile {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn transmit(
        &mut self,
        burst: &mut PacketList,
        done: &mut PacketList,
        now: Instant,
    ) -> Transmitted {
        let unix_ns = self.unix_ns_at_zero.saturating_add(now.0);
        let mut added = PacketList::new();
        let mut end = End { layers: self.layers.len(), ..End::default() };
        let before = end;
        self.batch.clear();
        self.ends.clear();
        while let Some(mut packet) = burst.pop_front() {
            end.refused = self.broken;
            if !self.broken {
                match self.add(&mut packet, unix_ns) {
                    Ok(records) => end.records += records,
                    Err(why) => {
                        self.stats.fail(format!("{}: {why}", self.info.name));
                        end.refused = true;
                    }
                }
            }
            (end.bytes, end.layers) = (self.batch.len(), self.layers.len());
            self.ends.push(end);
            added.push_back(packet);
        }
        let (whole, calls) = self.write();
        // A packet that was refused ends where the one before it ends.
        let last = self.ends.iter().rev().find(|end| end.bytes <= whole).copied();
        let last = last.unwrap_or(before);
        self.layers.truncate(last.layers);
        for (packet, end) in added.metas_mut().zip(&self.ends) {
            if end.refused || end.bytes > whole {
                packet.drop_reason = Some(DropReason::DeviceError);
                self.stats.failed.add(1);
            }
        }
        self.stats.frames.add(last.records);
        self.stats.bytes.add(whole as u64);
        done.append(&mut added);
        let messages = u32::try_from(last.records).unwrap_or(u32::MAX);
        Transmitted { calls, messages, retry_at: None }
    }
}

/// Returns the number of the link type of packets that begin at this layer.
const fn link_type(layer: Layer) -> u32 {
    match layer {
        Layer::Ethernet => 1,
        Layer::Ip => 101,
        Layer::Datagram => 147,
    }
}

/// Checks that a write into memory succeeded, which takes everything.
fn in_memory(written: io::Result<()>) {
    debug_assert!(written.is_ok(), "memory takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of the descriptor, such as a forked process has, keeps neither a writer's lock nor a
    /// reader's.
    #[test]
    fn a_lock_ends_with_its_device() {
        let name = format!("onramp-{}-locked.pcapng", std::process::id());
        let path = std::env::temp_dir().join(name);
        let options = || CaptureOptions { replace: true, ..CaptureOptions::default() };
        let device = CaptureFile::create(&path, options()).expect("a file");
        let copy = device.file.try_clone().expect("a copy");
        let busy = CaptureFile::create(&path, options()).expect_err("the device has it");
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        drop(device);
        CaptureFile::create(&path, options()).expect("nobody has it");
        let reader = super::super::blocks::Shared::lock(File::open(&path).expect("it is there"));
        let second = reader.copy();
        CaptureFile::create(&path, options()).expect_err("the reader has it");
        drop(reader);
        CaptureFile::create(&path, options()).expect("nobody has it");
        drop((copy, second));
        std::fs::remove_file(&path).expect("it is there");
    }
}
