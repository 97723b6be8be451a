//! Capture files: what a device has written is what a receiver, and `tcpdump`, read.

#[path = "../ops/play.rs"]
mod ops;

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use onramp_core::Instant;
use onramp_dev::Receive;
use onramp_dev::capture::{
    Advice, Blocks, CaptureFile, CaptureFormat, CaptureOptions, CaptureReceiver, Interfaces,
    PlayOptions,
};
use onramp_queue::{DropReason, Layer, Packet, PacketList, PartialChecksum};
use proptest::prelude::*;

use super::common::transmit;

/// A folder that is removed with all its files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("onramp-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const YEAR_2026: u64 = 1_770_000_000_000_000_000;

fn options() -> CaptureOptions {
    CaptureOptions { unix_ns_at_zero: YEAR_2026, ..CaptureOptions::default() }
}

fn ethernet(payload: &[u8]) -> Packet {
    let mut packet = Packet::with_payload(payload);
    packet.set_layer(Layer::Ethernet);
    packet
}

/// A packet of a capture: its time in nanoseconds since 1970, its link type, its bytes, its length
/// on the wire.
type Row = (u64, i32, Vec<u8>, u32);

/// Reads a capture.
fn rows(bytes: &[u8]) -> Result<Vec<Row>, String> {
    let said = |error: std::io::Error| error.to_string();
    let mut blocks = Blocks::new(bytes, "bytes", Advice::default()).map_err(said)?;
    let (mut interfaces, mut rows) = (Interfaces::default(), Vec::new());
    let mut take = || {
        blocks.next(|block| -> Result<(), String> {
            if let Some(it) = interfaces.record(&block)? {
                let link_type = interfaces.all()[it.interface].link_type.0;
                let time = it.unix_ns.unwrap_or(0);
                rows.push((time, link_type, it.data.to_vec(), it.original));
            }
            Ok(())
        })
    };
    while take().map_err(|error| format!("{error:?}"))?.is_some() {}
    Ok(rows)
}

/// Receives everything that a capture has.
fn received(path: &Path) -> Vec<Packet> {
    let options = PlayOptions { fast: true, ..PlayOptions::default() };
    let mut receiver = CaptureReceiver::open(path, options).expect("a capture");
    let (mut list, stats) = (PacketList::new(), receiver.stats());
    let mut make = |bytes: usize| Some(Packet::with_capacity(bytes.try_into().expect("a frame")));
    while stats.ended().is_none() {
        receiver.receive(3, &mut make, &mut list).expect("it is whole");
    }
    assert_eq!(stats.ended().as_deref(), Some("end of file"));
    list.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Random frames in random bursts come back with their bytes and times, in both formats.
    #[test]
    fn frames_come_back(
        frames in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..300), 1..5_u64), 1..40,
        ),
        pcap in any::<bool>(),
    ) {
        let folder = Folder::new("random");
        let path = folder.file(if pcap { "a.pcap" } else { "a.other" });
        let mut device = CaptureFile::create(&path, options()).expect("a file");
        let (mut now, mut times, mut burst) = (0, Vec::new(), Vec::new());
        for (index, (bytes, gap)) in frames.iter().enumerate() {
            let mut packet = ethernet(bytes);
            packet.len = 400;
            burst.push(packet);
            if gap % 2 == 0 || index + 1 == frames.len() {
                now += gap * 1_000_000_007;
                let out = transmit(&mut device, std::mem::take(&mut burst), Instant(now));
                prop_assert!(out.done.iter().all(|(_, reason)| reason.is_none()));
                times.resize(index + 1, now);
            }
        }
        prop_assert_eq!(device.stats().frames.get(), frames.len() as u64);
        let bytes = fs::read(&path).expect("it is there");
        prop_assert_eq!(device.stats().bytes.get(), bytes.len() as u64);
        prop_assert_eq!(bytes[..4] == [0x4d, 0x3c, 0xb2, 0xa1], pcap, "nanoseconds");
        let rows = rows(&bytes).expect("a capture");
        prop_assert_eq!(rows.len(), frames.len());
        for ((row, (bytes, _)), at) in rows.iter().zip(&frames).zip(&times) {
            prop_assert_eq!((row.0, row.1, &row.2, row.3), (YEAR_2026 + at, 1, bytes, 400));
        }
        let packets = received(&path);
        prop_assert_eq!(packets.len(), frames.len());
        for (packet, (bytes, _)) in packets.iter().zip(&frames) {
            prop_assert_eq!((packet.payload(), packet.len), (&bytes[..], 400));
            prop_assert_eq!(packet.layer(), Layer::Ethernet);
        }
    }

    /// No change of a byte, and no end in the middle, makes the reader panic; an error names the
    /// byte, and what was read before is what was written.
    #[test]
    fn no_bytes_break_the_reader(
        pcap in any::<bool>(), cut in any::<usize>(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
    ) {
        let folder = Folder::new("broken");
        let path = folder.file(if pcap { "a.pcap" } else { "a.pcapng" });
        let mut device = CaptureFile::create(&path, options()).expect("a file");
        let burst = (0..5_u8).map(|index| ethernet(&[index; 60]));
        transmit(&mut device, burst.collect(), Instant(7));
        drop(device);
        let whole = fs::read(&path).expect("it is there");
        let cut = cut % whole.len();
        match rows(&whole[..cut]) {
            Ok(rows) => prop_assert!(rows.len() <= 5),
            Err(why) => prop_assert!(why.contains("at byte") || cut < 24, "{}", why),
        }
        let mut bytes = whole;
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        fs::write(&path, &bytes).expect("it can be written");
        let Ok(mut receiver) = CaptureReceiver::open(&path, PlayOptions { fast: true, seed: 0 })
        else { return Ok(()) };
        let mut make = |bytes: usize| Some(Packet::with_capacity(bytes.try_into().expect("fits")));
        let mut list = PacketList::new();
        let stats = receiver.stats();
        while stats.ended().is_none() {
            if let Err(error) = receiver.receive(64, &mut make, &mut list) {
                prop_assert!(error.to_string().contains("at byte "), "{}", error);
            }
        }
        prop_assert!(list.len() <= 10, "{}", list.len());
    }
}

/// Inputs that fuzzing found, those for `onramp replay` included.
#[test]
fn the_corpora_are_played_and_written() {
    let folder = Folder::new("corpora");
    for name in ["capture", "play"] {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        let inputs = fs::read_dir(&corpus).expect("the corpus is in the repository");
        let inputs: Vec<_> = inputs.map(|input| input.expect("readable").path()).collect();
        assert!(!inputs.is_empty(), "{} is empty", corpus.display());
        for input in inputs {
            ops::run(&fs::read(input).expect("a file"), &folder.0);
        }
    }
}

/// Both byte orders, times in microseconds and nanoseconds, and raw IP.
#[test]
fn every_pcap_can_be_played() {
    let folder = Folder::new("orders");
    for big in [false, true] {
        for (magic, part, link) in [(0xa1b2_c3d4, 7_000, 1), (0xa1b2_3c4d, 7_000_000, 101)] {
            let word = |word: u32| if big { word.to_be_bytes() } else { word.to_le_bytes() };
            let version = if big { 2 << 16 | 4 } else { 2 | 4 << 16 };
            let mut file = [magic, version, 0, 0, 65_535, link].map(word).concat();
            let mut ip = [0; 28];
            ip[0] = 0x45;
            for second in [5, 6] {
                file.extend([second, part, 28, 99].map(word).concat());
                file.extend(ip);
            }
            let rows = rows(&file).expect("a capture");
            let times: Vec<u64> = rows.iter().map(|row| row.0).collect();
            assert_eq!(times, [5_007_000_000, 6_007_000_000], "{magic:#x}");
            let path = folder.file("in.pcap");
            fs::write(&path, &file).expect("it can be written");
            let packets = received(&path);
            let layer = if link == 1 { Layer::Ethernet } else { Layer::Ip };
            assert_eq!(packets.len(), 2);
            for packet in packets {
                assert_eq!((packet.payload(), packet.len), (&ip[..], 99));
                assert_eq!(packet.layer(), layer);
            }
        }
    }
}

/// A super-frame of TCP over IPv4 with 3 segments of 100 bytes and one of 50, without checksum, as
/// a sender leaves it to its device.
fn super_frame() -> Packet {
    use etherparse::PacketBuilder;
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let mut frame = Vec::new();
    builder.tcp(1, 2, 3, 4).write(&mut frame, &[9; 350]).expect("a vector takes everything");
    // The sum of the pseudo-header.
    let sum = 0x0a00 + 1 + 0x0a00 + 2 + 6 + 370;
    frame[50..52].copy_from_slice(&u16::try_from(sum).expect("small").to_be_bytes());
    let mut packet = ethernet(&frame);
    packet.set_partial_checksum(Some(PartialChecksum { start: 34, offset: 16 }));
    packet.gso_size = 100;
    (packet.ecn, packet.payload_mut()[15]) = (3, 2);
    packet
}

/// The file has the bytes of the wire: segments, checksums, the mark CE. tcpdump agrees.
#[test]
fn the_bytes_are_those_of_the_wire() {
    let folder = Folder::new("wire");
    for name in ["a.pcap", "a.pcapng"] {
        let path = folder.file(name);
        let mut device = CaptureFile::create(&path, options()).expect("a file");
        let mut no_payload = Packet::new(1_000);
        no_payload.set_layer(Layer::Ethernet);
        let out = transmit(&mut device, vec![super_frame(), no_payload], Instant(5));
        assert_eq!(out.out.messages, 5, "four segments, and a packet without payload");
        assert_eq!(out.out.calls, 1);
        let rows = rows(&fs::read(&path).expect("it is there")).expect("a capture");
        let lengths: Vec<_> = rows.iter().map(|row| (row.2.len(), row.3)).collect();
        assert_eq!(lengths, [(154, 154), (154, 154), (154, 154), (104, 104), (0, 1_000)]);
        assert!(rows.iter().all(|row| row.0 == YEAR_2026 + 5));
        assert!(rows[..4].iter().all(|row| row.2[15] & 3 == 3), "marked");
        let Some(text) = tcpdump(&path) else { continue };
        assert_eq!(text.matches("(correct)").count(), 4, "{text}");
        assert!(!text.contains("bad cksum") && !text.contains("incorrect"), "{text}");
        assert_eq!(text.matches("tos 0x3,CE").count(), 4, "{text}");
        assert_eq!(text.matches("1770000000.000000005").count(), 4, "{text}");
        assert_eq!(text.matches("caplen==0").count(), 1, "the packet without payload: {text}");
    }
}

/// Returns what tcpdump says about a capture, or `None` if there is no tcpdump.
fn tcpdump(path: &Path) -> Option<String> {
    let precision = "--time-stamp-precision=nano";
    let run = Command::new("tcpdump").args(["-nvvtt", precision, "-r"]).arg(path).output();
    let Ok(output) = run else {
        eprintln!("skipped in part: there is no tcpdump");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A pcapng file has packets of every layer; a pcap file refuses those of another.
#[test]
fn layers_have_their_link_types() {
    let folder = Folder::new("layers");
    let burst = || {
        let layers = [Layer::Ip, Layer::Ethernet, Layer::Datagram, Layer::Ip, Layer::Ethernet];
        let packet = |layer| {
            let mut packet = ethernet(b"bytes");
            packet.set_layer(layer);
            packet
        };
        layers.map(packet).into_iter().collect::<Vec<_>>()
    };
    let path = folder.file("a.pcapng");
    let mut device = CaptureFile::create(&path, options()).expect("a file");
    let out = transmit(&mut device, burst(), Instant(5));
    assert!(out.done.iter().all(|(_, reason)| reason.is_none()));
    let read = rows(&fs::read(&path).expect("it is there")).expect("a capture");
    let types: Vec<_> = read.iter().map(|row| row.1).collect();
    assert_eq!(types, [101, 1, 147, 101, 1]);
    let path = folder.file("a.pcap");
    let mut device = CaptureFile::create(&path, options()).expect("a file");
    let out = transmit(&mut device, burst(), Instant(5));
    let dropped: Vec<_> = out.done.iter().map(|(_, reason)| reason.is_some()).collect();
    assert_eq!(dropped, [true, false, true, true, false]);
    assert_eq!((device.stats().frames.get(), device.stats().failed.get()), (2, 3));
    let why = device.stats().last_error().expect("it says why");
    assert!(why.contains("write a pcapng file"), "{why}");
    assert_eq!(rows(&fs::read(&path).expect("it is there")).expect("a capture").len(), 2);
}

#[test]
fn files_are_not_overwritten_by_accident() {
    let folder = Folder::new("exists");
    let path = folder.file("a.pcap");
    fs::write(&path, b"precious").expect("it can be written");
    let error = CaptureFile::create(&path, options()).expect_err("it exists");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).expect("it is there"), b"precious");
    let replacing = CaptureOptions { replace: true, ..options() };
    let device = CaptureFile::create(&path, replacing).expect("it may be replaced");
    assert_eq!(fs::read(&path).expect("it is there").len(), 24);
    for _ in 0..2 {
        let error = CaptureFile::create(&path, replacing).expect_err("it is written");
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
    }
    drop(device);
    let receiver = CaptureReceiver::open(&path, PlayOptions::default()).expect("a capture");
    let error = CaptureFile::create(&path, replacing).expect_err("it is read");
    assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
    drop(receiver);
    drop(CaptureFile::create(&path, replacing).expect("it is free again"));
    let error = CaptureFile::create(&folder.0, replacing).expect_err("it is a folder");
    assert!(error.to_string().starts_with("cannot write /"), "{error}");
    let error = CaptureReceiver::open(&folder.0, PlayOptions::default()).expect_err("a folder");
    assert!(error.to_string().ends_with("it is no file"), "{error}");
}

/// A full disk is an error at once; a pipe that nobody reads drops the packets that follow.
#[test]
fn errors_of_writing_are_counted() {
    let full = CaptureOptions { replace: true, ..options() };
    let error = CaptureFile::create(Path::new("/dev/full"), full).expect_err("it is full");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let writer = File::from(std::os::fd::OwnedFd::from(writer));
    let mut device =
        CaptureFile::new(writer, "pipe", CaptureFormat::Pcap, options()).expect("room");
    let burst = || vec![ethernet(&[1; 60]), ethernet(&[2; 60])];
    let out = transmit(&mut device, burst(), Instant(5));
    assert!(out.done.iter().all(|(_, reason)| reason.is_none()));
    drop(reader);
    for turn in 1..=2 {
        let out = transmit(&mut device, burst(), Instant(6));
        let dropped = out.done.iter().all(|it| it.1 == Some(DropReason::DeviceError));
        assert!(dropped && out.done.len() == 2);
        assert_eq!((device.stats().frames.get(), device.stats().failed.get()), (2, 2 * turn));
    }
    let why = device.stats().last_error().expect("it says why");
    assert!(why.starts_with("capture pipe: "), "{why}");
}

/// If only some of the packets fit, the file ends behind the last that does, and goes on when there
/// is room again. Needs a file system of its own, in a namespace of its own.
#[test]
fn a_disk_that_fills_up_keeps_whole_packets() {
    const PLACE: &str = "ONRAMP_TEST_SMALL_DISK";
    let Some(place) = std::env::var_os(PLACE) else {
        let folder = Folder::new("small");
        let script = "mount -t tmpfs -o size=16k none \"$0\" && exec \"$1\" --exact \
                      capture::a_disk_that_fills_up_keeps_whole_packets --nocapture";
        let program = std::env::current_exe().expect("it runs");
        let mut unshare = Command::new("unshare");
        unshare.args(["-rm", "sh", "-c", script]).arg(&folder.0).arg(program);
        let Ok(output) = unshare.env(PLACE, &folder.0).output() else {
            return eprintln!("skipped: there is no unshare");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("Operation not permitted") || said.contains("permission denied") {
            return eprintln!("skipped: no namespaces: {said}");
        }
        return assert!(output.status.success(), "{said}");
    };
    for name in ["a.pcap", "a.pcapng"] {
        let path = Path::new(&place).join(name);
        let ballast = Path::new(&place).join("ballast");
        fs::write(&ballast, [0; 8 << 10]).expect("there is room");
        let mut device = CaptureFile::create(&path, options()).expect("a file");
        // The packets of a new layer come last: their interface goes with them.
        let mut burst: Vec<_> = (0..20_u8).map(|index| ethernet(&[index; 999])).collect();
        burst[15].set_layer(if name == "a.pcap" { Layer::Ethernet } else { Layer::Ip });
        let out = transmit(&mut device, burst, Instant(5));
        let kept = out.done.iter().take_while(|(_, reason)| reason.is_none()).count();
        assert!((4..9).contains(&kept), "{kept}");
        assert!(out.done[kept..].iter().all(|it| it.1 == Some(DropReason::DeviceError)));
        let read = || rows(&fs::read(&path).expect("it is there")).expect("a whole capture");
        assert_eq!((read().len() as u64, device.stats().frames.get()), (kept as u64, kept as u64));
        let why = device.stats().last_error().expect("it says why");
        assert!(why.contains("No space left"), "{why}");
        fs::remove_file(&ballast).expect("it is there");
        let mut last = ethernet(b"last");
        last.set_layer(if name == "a.pcap" { Layer::Ethernet } else { Layer::Ip });
        let out = transmit(&mut device, vec![last], Instant(6));
        assert_eq!(out.done[0].1, None);
        let rows = read();
        assert_eq!((rows.len(), &rows[kept].2[..]), (kept + 1, &b"last"[..]));
        let mut file = File::open(&path).expect("it is there");
        file.seek(std::io::SeekFrom::Start(0)).expect("a file");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("it can be read");
        assert_eq!(bytes.len() as u64, device.stats().bytes.get());
        fs::remove_file(&path).expect("it is there");
    }
}

/// The end of a file within a packet is an end; other damage is an error that names the byte.
#[test]
fn damage_is_told() {
    let folder = Folder::new("damage");
    let path = folder.file("a.pcapng");
    let mut device = CaptureFile::create(&path, options()).expect("a file");
    transmit(&mut device, vec![ethernet(&[1; 60]), ethernet(&[2; 60])], Instant(5));
    drop(device);
    let whole = fs::read(&path).expect("it is there");
    let fast = PlayOptions { fast: true, seed: 0 };
    let mut make = |bytes: usize| Some(Packet::with_capacity(bytes.try_into().expect("fits")));
    fs::write(&path, &whole[..whole.len() - 10]).expect("it can be written");
    let mut receiver = CaptureReceiver::open(&path, fast).expect("a capture");
    let mut list = PacketList::new();
    assert_eq!(receiver.receive(9, &mut make, &mut list).expect("an end"), 1);
    let ended = receiver.stats().ended().expect("it has ended");
    let at = whole.len() - 92;
    assert_eq!(ended, format!("{}: at byte {at}: the capture is cut off", path.display()));
    assert_eq!(receiver.receive(9, &mut make, &mut list).expect("still an end"), 0);
    let mut bytes = whole;
    // The second packet belongs to an interface that there is not.
    bytes[at + 8] = 7;
    fs::write(&path, &bytes).expect("it can be written");
    let mut receiver = CaptureReceiver::open(&path, fast).expect("a capture");
    assert_eq!(receiver.receive(9, &mut make, &mut list).expect("the first"), 1);
    for _ in 0..2 {
        let error = receiver.receive(9, &mut make, &mut list).expect_err("damaged");
        let why = "the capture is damaged: there is no description of interface 7";
        assert_eq!(error.to_string(), format!("{}: at byte {at}: {why}", path.display()));
    }
    fs::write(&path, b"no capture").expect("it can be written");
    let error = CaptureReceiver::open(&path, fast).expect_err("no capture");
    assert!(error.to_string().ends_with("is neither a pcap nor a pcapng capture"), "{error}");
}
