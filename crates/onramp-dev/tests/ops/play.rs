//! Reads arbitrary bytes as a capture, as a `pcap` device plays it, writes what comes into another
//! capture, and plays that one. Used for fuzzing, and to replay the corpora that fuzzing produced.

use std::fs;
use std::path::Path;

use onramp_core::{Device as _, Instant};
use onramp_dev::Receive as _;
use onramp_dev::capture::{
    Advice, Blocks, CaptureFile, CaptureFormat, CaptureOptions, CaptureReceiver, Interfaces,
    PlayOptions,
};
use onramp_queue::{DropReason, Layer, Packet, PacketList};

/// Plays the bytes. The files for that are made in `folder`, which must exist.
///
/// # Panics
///
/// Panics if the receiver counts wrongly, or fails without saying where, or if the second capture
/// does not have what the device said that it has written.
pub(crate) fn run(bytes: &[u8], folder: &Path) {
    let (first, second) = (folder.join("first"), folder.join("second"));
    fs::write(&first, bytes).expect("there is room");
    let Some(packets) = played(&first, bytes.len()) else { return };
    let format = [CaptureFormat::Pcap, CaptureFormat::Pcapng][bytes.len() % 2];
    let layer = packets.first().map_or(Layer::Ethernet, Packet::layer);
    let (mut options, now) = (CaptureOptions::default(), Instant(7));
    (options.format, options.layer, options.replace) = (Some(format), layer, true);
    let mut device = CaptureFile::create(&second, options).expect("there is room");
    let (mut done, mut written) = (PacketList::new(), Vec::new());
    let mut packets = packets.into_iter().peekable();
    while packets.peek().is_some() {
        let mut burst: PacketList = packets.by_ref().take(5).collect();
        device.transmit(&mut burst, &mut done, now);
        assert!(burst.is_empty(), "a file takes everything");
        for packet in done.by_ref() {
            match packet.drop_reason {
                None => written.push(packet),
                // A pcap file has one link type.
                Some(why) => {
                    assert_eq!((why, packet.layer() == layer), (DropReason::DeviceError, false))
                }
            }
        }
    }
    assert_eq!(device.stats().frames.get(), written.len() as u64);
    drop(device);
    let len = usize::try_from(fs::metadata(&second).expect("it is there").len()).expect("small");
    let again = played(&second, len).expect("it is a capture");
    assert_eq!(again.len(), written.len());
    for (packet, written) in again.iter().zip(&written) {
        assert_eq!(packet.payload(), written.payload());
        assert_eq!((packet.len, packet.layer()), (written.len, written.layer()));
    }
}

/// Plays the capture of `len` bytes at `path`. Returns its packets up to the first damage, or
/// `None` if it is no capture.
fn played(path: &Path, len: usize) -> Option<Vec<Packet>> {
    let mut receiver = CaptureReceiver::open(path, PlayOptions { fast: true, seed: 0 }).ok()?;
    let (mut list, stats) = (PacketList::new(), receiver.stats());
    let mut make = |bytes: usize| Some(Packet::with_capacity(bytes.try_into().ok()?));
    let mut failure = None;
    while stats.ended().is_none() {
        let before = list.len();
        match receiver.receive(7, &mut make, &mut list) {
            Ok(count) => assert_eq!(u64::from(list.len() - before), count as u64),
            Err(error) => failure = Some(error.to_string()),
        }
    }
    // Whatever has ended the capture: nothing more comes, and an error stays.
    let after = receiver.receive(7, &mut make, &mut list);
    match after {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => {
            assert!(error.to_string().contains("at byte "), "{error}");
            assert!(failure.is_none_or(|before| before == error.to_string()));
        }
    }
    let packets: Vec<_> = list.collect();
    let bytes: usize = packets.iter().map(|packet| packet.payload().len()).sum();
    assert_eq!(stats.received.get(), packets.len() as u64);
    assert_eq!(receiver.discarded(), stats.no_room.get());
    // Each packet has a head in the file, and an Ethernet header may take the place of another.
    assert!(packets.len() * 16 <= len, "{} packets of {len} bytes", packets.len());
    assert_eq!(stats.received_bytes.get(), bytes as u64);
    let records = records(path);
    assert_eq!(records.len() as u64, stats.received.get() + stats.no_room.get());
    // Packets that are too long for one of Onramp are left out.
    let mut records = records.iter();
    for packet in &packets {
        let (wire, _) = records.find(|(_, bytes)| bytes == packet.payload()).expect("it is there");
        assert!(packet.len >= *wire, "{} bytes of {wire}", packet.len);
    }
    Some(packets)
}

/// Returns the records of the capture up to the first damage: their lengths on the wire and their
/// bytes.
fn records(path: &Path) -> Vec<(u32, Vec<u8>)> {
    let bytes = fs::read(path).expect("it is there");
    let mut blocks = Blocks::new(&bytes[..], "bytes", Advice::default()).expect("it was opened");
    let (mut interfaces, mut rows) = (Interfaces::default(), Vec::new());
    let mut next = || {
        blocks.next(|block| -> Result<_, String> {
            let Some(record) = interfaces.record(&block)? else { return Ok(None) };
            let link = interfaces.all()[record.interface].known_link()?;
            let (_, bytes) = link.open(record.data);
            Ok(Some((link.wire(record.original), bytes.into_owned())))
        })
    };
    while let Ok(Some(row)) = next() {
        rows.extend(row);
    }
    rows
}
