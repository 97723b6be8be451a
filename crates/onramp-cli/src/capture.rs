//! Reads captures in the formats pcap and pcapng as a stream of blocks, with the errors of the
//! program.

use std::io::Read;
use std::path::Path;

use anyhow::{Error, Result};
use onramp_dev::capture::Broken;
pub(crate) use onramp_dev::capture::{Advice, Beginning, begins};
use pcap_parser::PcapBlockOwned;

/// The blocks of a capture, read one after another.
pub(crate) struct Blocks<'i>(onramp_dev::capture::Blocks<'i>);

impl Blocks<'static> {
    /// Opens the capture in the file at `path`.
    pub(crate) fn open(path: &Path, advice: Advice) -> Result<Self> {
        Ok(Self(onramp_dev::capture::Blocks::open(path, advice)?))
    }
}

impl<'i> Blocks<'i> {
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
