//! Devices of the type `pcap`: captures pass the qdiscs of a device into another capture.

use std::fs;
use std::path::PathBuf;

use onramp_core::Clock as _;
use onramp_dev::MonotonicClock;
use onramp_dev::capture::{Advice, Block, Blocks, Interfaces, PACKET};

use super::*;

/// Time limit for each wait in the tests, nanoseconds. No expected event takes so long.
const PATIENCE_NS: u64 = 120_000_000_000;

/// A folder that is removed with all its files.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("onramp-host-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes a capture of frames of 1,000 bytes, each a nanosecond after the one before.
pub(super) fn write_capture(path: &str, count: u64) {
    let (mut block, mut bytes) = (Block::default(), Vec::new());
    block.section(&mut bytes).expect("memory");
    block.interface(1, None, &mut bytes).expect("memory");
    for number in 0..count {
        block.packet(0, 1_000_000 + number, |bytes| {
            bytes.extend_from_slice(&number.to_be_bytes());
            bytes.resize(bytes.len() + 992, 0);
        });
        block.end(PACKET, &mut bytes).expect("memory");
    }
    fs::write(path, bytes).expect("it can be written");
}

/// Returns the time of each packet of a capture, in nanoseconds, and its bytes.
pub(super) fn packets(path: &str) -> Vec<(u64, Vec<u8>)> {
    let mut blocks = Blocks::open(path.as_ref(), Advice::default()).expect("a capture");
    let (mut interfaces, mut packets) = (Interfaces::default(), Vec::new());
    let mut take = || {
        blocks.next(|block| -> Result<(), String> {
            if let Some(it) = interfaces.record(&block)? {
                assert_eq!(it.data.len(), it.original as usize);
                packets.push((it.unix_ns.expect("it has a time"), it.data.to_vec()));
            }
            Ok(())
        })
    };
    while take().expect("it is whole").is_some() {}
    packets
}

/// Returns the time of each packet of a capture of frames of 1,000 bytes, in nanoseconds, and the
/// number in its first bytes.
fn rows(path: &str) -> Vec<(u64, u64)> {
    let row = |(time, bytes): (u64, Vec<u8>)| {
        assert_eq!(bytes.len(), 1_000);
        (time, u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes")))
    };
    packets(path).into_iter().map(row).collect()
}

/// Waits until `done` returns a value, and returns it.
fn wait<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let end = MonotonicClock.now().after(PATIENCE_NS);
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(MonotonicClock.now() < end, "{what} does not come");
        std::thread::yield_now();
    }
}

/// Waits until `ip -d link` says that the capture has been read. Returns its output.
fn played(host: &mut Host, device: &str) -> String {
    wait("the end of the capture", || {
        let shown = out(host, &format!("ip -d link show {device}"));
        shown.contains("read_ended").then_some(shown)
    })
}

/// Returns the packets and bytes received, and those sent, of `ip -s link`.
fn carried(host: &mut Host, device: &str) -> [u64; 4] {
    let shown = out(host, &format!("ip -s link show {device}"));
    let lines: Vec<Vec<&str>> = shown.lines().map(|it| it.split_whitespace().collect()).collect();
    [(3, 1), (3, 0), (5, 1), (5, 0)]
        .map(|(line, at): (usize, usize)| lines[line][at].parse().expect("a number"))
}

#[test]
fn a_capture_passes_the_qdisc_into_another() {
    let folder = Folder::new("tbf");
    for (key, name) in [("read", "out.pcap"), ("fast", "out.pcapng")] {
        let (input, output) = (folder.file("in.pcapng"), folder.file(name));
        write_capture(&input, 200);
        let mut host = host(&[
            &format!("ip link add cap0 type pcap file {output} {key} {input}"),
            // 1,000 bytes each 100 µs.
            "tc qdisc add dev cap0 root tbf rate 80mbit burst 1540 limit 1m",
        ]);
        assert!(rows(&output).is_empty(), "a capture without packets: nothing leaves yet");
        assert_eq!(carried(&mut host, "cap0"), [0; 4]);
        exec(&mut host, "ip link set cap0 up");
        played(&mut host, "cap0");
        wait("the last packet", || {
            (carried(&mut host, "cap0") == [200, 200_000, 200, 200_000]).then_some(())
        });
        let shown = out(&mut host, "tc -s qdisc show dev cap0");
        assert!(shown.contains("Sent 200000 bytes 200 pkt (dropped 0"), "{shown}");
        exec(&mut host, "ip link del cap0");
        let rows = rows(&output);
        let numbers: Vec<u64> = rows.iter().map(|row| row.1).collect();
        assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "all, in order");
        // The burst lets one packet and a half through at once.
        let span = rows[199].0 - rows[0].0;
        assert!(span >= 198 * 100_000, "{span} ns");
        fs::remove_file(&input).expect("it is there");
    }
}

#[test]
fn an_existing_file_is_replaced_only_on_request() {
    let folder = Folder::new("exists");
    let path = folder.file("a.pcapng");
    fs::write(&path, b"precious").expect("it can be written");
    let mut host = host(&[]);
    let reply = exec(&mut host, &format!("ip link add c0 type pcap file {path}"));
    assert_eq!(reply.code, 2);
    assert!(reply.err.contains("RTNETLINK answers: File exists"), "{}", reply.err);
    assert!(reply.err.contains(&path), "{}", reply.err);
    assert_eq!(fs::read(&path).expect("it is there"), b"precious");
    out(&mut host, &format!("ip link add c0 type pcap replace {path}"));
    let shown = out(&mut host, "ip -d link show c0");
    assert!(shown.contains(&format!("pcap replace {path} ")), "{shown}");
    let reply = exec(&mut host, &format!("ip link add c1 type pcap replace {path}"));
    assert!(reply.err.contains("Device or resource busy"), "{}", reply.err);
    // What is read is not what is written.
    let input = folder.file("in.pcapng");
    write_capture(&input, 3);
    let reply = exec(&mut host, &format!("ip link add c1 type pcap replace {input} read {input}"));
    assert!(reply.err.contains("Device or resource busy"), "{}", reply.err);
    assert_eq!(rows(&input).len(), 3);
    // A device that is deleted leaves its file.
    exec(&mut host, "ip link del c0");
    assert!(rows(&path).is_empty());
}

#[test]
fn wrong_options_are_told() {
    let folder = Folder::new("wrong");
    let path = folder.file("a.pcapng");
    let mut host = host(&[]);
    for (options, said) in [
        (String::new(), "give the file to write"),
        (format!("file {path} replace {path}"), "give file or replace, not both"),
        (format!("file {path} read {path} fast {path}"), "give read or fast, not both"),
        ("file a.pcapng".to_owned(), "expected an absolute path"),
        (format!("file {path}#1"), "expected an absolute path"),
        (format!("file {path} read {path}"), "No such file"),
        (format!("file {path}/no"), "No such file"),
        ("replace /dev/full".to_owned(), "No space left on device"),
    ] {
        let reply = exec(&mut host, &format!("ip link add c0 type pcap {options}"));
        assert!(reply.code != 0 && reply.err.contains(said), "{options}: {}", reply.err);
        assert!(!fs::exists(&path).expect("it can be asked"), "{options}");
    }
    let reply = exec(&mut host, &format!("ip link add c0 numtxqueues 2 type pcap file {path}"));
    assert!(reply.err.contains("one queue"), "{}", reply.err);
}

/// Damage ends the reading: the device loses its carrier, and the details say where.
#[test]
fn damage_takes_the_carrier_and_is_told() {
    let folder = Folder::new("damage");
    let (input, output) = (folder.file("in.pcapng"), folder.file("out.pcapng"));
    write_capture(&input, 2);
    let mut bytes = fs::read(&input).expect("it is there");
    let at = bytes.len() - 1_032;
    bytes[at + 8] = 9;
    fs::write(&input, &bytes).expect("it can be written");
    let line = format!("ip link add c0 up type pcap file {output} read {input}");
    let mut first = host(&[&line]);
    let shown = played(&mut first, "c0");
    let why = format!(
        "read_ended \"{input}: at byte {at}: the capture is damaged: there is no \
                       description of interface 9\""
    );
    assert!(shown.contains(&why), "{shown}");
    wait("the loss of the carrier", || {
        out(&mut first, "ip link show c0").contains("NO-CARRIER").then_some(())
    });
    wait("the first packet", || (carried(&mut first, "c0")[2] == 1).then_some(()));
    // The device can be saved all the same, and made of what was saved.
    let saved = first.save(None).expect("it can be saved").join("\n");
    assert!(saved.contains(&line.replace("ip link add c0 up ", "")), "{saved}");
    assert!(!saved.contains(" gone"), "{saved}");
    // A file that exists already would be refused if the device were made again.
    assert_eq!(first.configure(&saved, Path::new("/")), Ok(Vec::new()));
    drop(first);
    assert_eq!(rows(&output).len(), 1, "what came before the damage has left");
    // A file that is cut off ends, and the device stays.
    fs::remove_file(&output).expect("it is there");
    fs::write(&input, &bytes[..at + 100]).expect("it can be written");
    let mut second = host(&[&line]);
    let shown = played(&mut second, "c0");
    assert!(shown.contains("the capture is cut off") && !shown.contains("NO-CARRIER"), "{shown}");
}

/// The saved commands make the device again, and a trial touches no file.
#[test]
fn it_can_be_saved_and_configured() {
    let folder = Folder::new("saved");
    let path = folder.file("a.pcapng");
    let text = format!("ip link add c0 up type pcap replace {path}\n");
    let wrong = format!("{text}ip link add c1 type nonsense\n");
    let mut first = Host::new();
    assert_eq!(first.configure(&wrong, Path::new("/")).expect_err("nonsense").line, 2);
    assert!(!fs::exists(&path).expect("it can be asked"));
    first.configure(&text, Path::new("/")).expect("it can be made");
    let saved = first.save(None).expect("it can be saved").join("\n");
    assert!(saved.contains(&format!("type pcap replace {path}")), "{saved}");
    let steps = first.configure(&text, Path::new("/")).expect("nothing changes");
    assert!(steps.is_empty(), "{steps:?}");
    drop(first);
    Host::new().configure(&saved, Path::new("/")).expect("it can be made again");
}
