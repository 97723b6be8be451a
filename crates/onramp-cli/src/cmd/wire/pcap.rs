//! The capture of a wire (`--pcap`): a file in the format pcapng, with an interface for each end.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;
use std::{io, mem};

use anyhow::{Result, anyhow};
use onramp_core::{Clock as _, Instant};
use onramp_dev::MonotonicClock;
use onramp_wire::Watch;

use crate::output::Stream;
use onramp_dev::capture::{Block, Direction, PACKET};

/// Link type of Ethernet frames.
const ETHERNET: u32 = 1;
/// The interfaces of the file.
const ENDS: [&str; 2] = ["client", "server"];
/// Number of batches that may wait for the disk, and the bytes that may wait in the last one.
const BATCHES: usize = 64;
const BATCH_MAX: usize = 8 << 20;

/// A capture that is being written, by a thread of its own.
pub(super) struct Capture {
    writer: JoinHandle<Result<()>>,
    missed: Arc<AtomicU64>,
}

impl Capture {
    /// Begins a capture. Returns it, and what the directions of the wire tell it: first up.
    pub(super) fn start(out: Stream<'static>) -> Result<(Self, [Recorder; 2])> {
        let (give, batches) = mpsc::sync_channel(BATCHES);
        let missed = Arc::<AtomicU64>::default();
        let body = move || write(out, &batches);
        let writer = thread::Builder::new().name("capture".to_owned()).spawn(body)?;
        let began = (unix_ns(), MonotonicClock.now());
        let recorder = |from: usize| Recorder {
            from,
            began,
            block: Block::default(),
            batch: Vec::new(),
            frames: 0,
            give: give.clone(),
            missed: Arc::clone(&missed),
        };
        Ok((Self { writer, missed: Arc::clone(&missed) }, [recorder(0), recorder(1)]))
    }

    /// Waits until everything is written. The wire must have been cut.
    pub(super) fn finish(self) -> Result<()> {
        self.writer
            .join()
            .map_err(|_| anyhow!("the thread that writes the capture panicked"))??;
        // Relaxed: the thread that counts has ended, and its end came before this one's.
        match self.missed.load(Ordering::Relaxed) {
            0 => Ok(()),
            missed => Err(anyhow!(
                "{missed} frames are missing in the capture: the disk was too slow; name a file on \
                 a faster one, such as in /dev/shm"
            )),
        }
    }
}

/// Writes the batches that the wire's thread sends, until that thread can send none any more.
fn write(mut out: Stream<'_>, batches: &Receiver<Vec<u8>>) -> Result<()> {
    let begin = |out: &mut Stream<'_>| {
        let (mut block, mut bytes) = (Block::default(), Vec::new());
        block.section(&mut bytes)?;
        for end in ENDS {
            block.interface(ETHERNET, Some(end), &mut bytes)?;
        }
        out.write_all(&bytes)
    };
    let written =
        begin(&mut out).and_then(|()| batches.iter().try_for_each(|batch| out.write_all(&batch)));
    written.map_err(|error| out.failed(&error))?;
    out.finish()
}

#[expect(clippy::disallowed_methods, reason = "the wall clock, for a report")]
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Records the frames of one direction.
#[derive(Debug)]
pub(super) struct Recorder {
    /// The interface from which frames come; they go to the other.
    from: usize,
    /// The same instant on the wall and on the wire's clock.
    began: (u64, Instant),
    block: Block,
    /// Blocks for the writer, and the number of frames in them.
    batch: Vec<u8>,
    frames: u64,
    give: SyncSender<Vec<u8>>,
    missed: Arc<AtomicU64>,
}

impl Recorder {
    fn record(&mut self, at: Instant, interface: usize, direction: Direction, frame: &[u8]) {
        let (wall, clock) = self.began;
        let unix_ns = wall.saturating_add(at.since(clock));
        self.block.packet(interface, unix_ns, |bytes| bytes.extend_from_slice(frame));
        self.block.direction(direction);
        let written: io::Result<()> = self.block.end(PACKET, &mut self.batch);
        debug_assert!(written.is_ok(), "memory takes everything");
        self.frames += 1;
    }

    /// Counts the frames of the batch as missed.
    fn lose(&mut self) {
        // Relaxed: it is only a number; who reads it has waited for the end of this thread.
        self.missed.fetch_add(mem::take(&mut self.frames), Ordering::Relaxed);
        self.batch.clear();
    }
}

impl Watch for Recorder {
    fn entered(&mut self, at: Instant, frame: &[u8]) {
        self.record(at, self.from, Direction::Outbound, frame);
    }

    fn left(&mut self, at: Instant, frame: &[u8]) {
        self.record(at, 1 - self.from, Direction::Inbound, frame);
    }

    fn pause(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        match self.give.try_send(mem::take(&mut self.batch)) {
            Ok(()) => self.frames = 0,
            Err(TrySendError::Full(batch)) => {
                self.batch = batch;
                if self.batch.len() > BATCH_MAX {
                    self.lose();
                }
            }
            // The writer has ended with an error, which says enough.
            Err(TrySendError::Disconnected(_)) => self.frames = 0,
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The wire has ended, so that there is time to wait for the disk.
        drop(self.give.send(mem::take(&mut self.batch)));
    }
}

#[cfg(test)]
mod tests {
    use pcap_parser::PcapBlockOwned;
    use pcap_parser::pcapng::Block as Read;

    use super::*;
    use crate::capture::{Advice, Blocks};
    use crate::output::Output;

    #[test]
    fn each_frame_stands_at_its_end_with_its_time_and_direction() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pcap");
        let out = Output::new(&path).and_then(|output| output.stream(None)).expect("a file");
        let (capture, [mut up, mut down]) = Capture::start(out).expect("a thread");
        let (wall, clock) = up.began;
        down.began = up.began;
        up.entered(clock.after(7), b"request");
        up.left(clock.after(1_007), b"request");
        up.pause();
        down.entered(clock.after(2_000), b"answer..");
        down.left(clock.after(3_000), b"answer..");
        drop((up, down));
        capture.finish().expect("it is written");
        let advice = Advice { compressed: "", other: "" };
        let file = std::fs::File::open(&path).expect("it is there");
        let mut blocks = Blocks::new(file, "pcap", advice).expect("a capture");
        let (mut names, mut seen) = (Vec::new(), Vec::new());
        let more = |block: PcapBlockOwned<'_>, names: &mut Vec<_>, seen: &mut Vec<_>| match block {
            PcapBlockOwned::NG(Read::InterfaceDescription(interface)) => {
                names.push(interface.if_name().expect("it has one").expect("text").to_owned());
            }
            PcapBlockOwned::NG(Read::EnhancedPacket(packet)) => {
                let time = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let flags = packet.options.iter().find(|option| option.code.0 == 2);
                let flags = flags.expect("they are there").value[0];
                let data = packet.data[..packet.caplen as usize].to_vec();
                assert_eq!(packet.caplen, packet.origlen);
                seen.push((time - wall, packet.if_id, flags, data));
            }
            _ => {}
        };
        let mut read = || {
            blocks.next(|block| {
                more(block, &mut names, &mut seen);
                Ok(())
            })
        };
        while read().expect("the file is whole").is_some() {}
        assert_eq!(names, ENDS);
        let (request, answer) = (b"request".to_vec(), b"answer..".to_vec());
        let expected = [
            (7, 0, 2, request.clone()),
            (1_007, 1, 1, request),
            (2_000, 1, 2, answer.clone()),
            (3_000, 0, 1, answer),
        ];
        assert_eq!(seen, expected);
    }
}
