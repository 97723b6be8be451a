//! Reads captures in the formats pcap and pcapng as a stream of blocks, with the errors of the
//! program.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Context as _, Error, Result};
use onramp_dev::capture::Broken;
pub(crate) use onramp_dev::capture::{Advice, Beginning, begins};
use pcap_parser::PcapBlockOwned;
use rustix::fs::{Mode, OFlags};

use crate::signals::{Heedful, Signals};

/// The blocks of a capture, read one after another.
pub(crate) struct Blocks<'i>(onramp_dev::capture::Blocks<'i>);

impl<'i> Blocks<'i> {
    /// Opens the capture in the file at `path`: see [`open`].
    pub(crate) fn open(path: &Path, advice: Advice, signals: &'i Signals) -> Result<Self> {
        open(path, advice, signals).map(Self)
    }

    /// Opens the capture in `input`. Error messages call the input `name`.
    pub(crate) fn new(input: impl Read + Send + 'i, name: &str, advice: Advice) -> Result<Self> {
        Ok(Self(onramp_dev::capture::Blocks::new(input, name, advice)?))
    }

    /// Calls `take` with the next block and returns the value that `take` returned; `None` if there
    /// are no more blocks. An error says at which byte of the input it happened.
    pub(crate) fn next<T>(
        &mut self,
        take: impl FnOnce(PcapBlockOwned<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.0.next(take).map_err(|error| match error {
            Broken::Refused(error) => error.context(self.0.place()),
            Broken::Input(error) => Error::new(error),
        })
    }
}

/// Opens the capture in the file at `path`. A pipe or a device may keep the program waiting; a
/// signal ends the wait.
pub(crate) fn open<'s>(
    path: &Path,
    advice: Advice,
    signals: &'s Signals,
) -> Result<onramp_dev::capture::Blocks<'s>> {
    let kind = fs::metadata(path).map(|about| about.file_type());
    if !kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device()) {
        return Ok(onramp_dev::capture::Blocks::open(path, advice)?);
    }
    // Without NONBLOCK, opening waits until a program opens the pipe to write.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let name = path.display().to_string();
    let input = rustix::fs::open(path, flags, Mode::empty());
    let input = File::from(input.with_context(|| format!("cannot read {name}"))?);
    Ok(onramp_dev::capture::Blocks::new(Heedful { input, signals }, &name, advice)?)
}
