//! The files of `--trace`: what a wire does over time.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use onramp_core::Setup;
use onramp_wire::{Change, Trace, Which};

/// Largest size of a trace, bytes: days of Mahimahi's traces.
const TEXT_MAX: u64 = 64 << 20;
/// Length of an Ethernet header, bytes.
const ETHERNET: u32 = 14;

/// The files with traces that the user names.
#[derive(Debug, clap::Args)]
pub(super) struct Traces {
    /// A file that says what changes over time in both directions, from the client's start on:
    /// lines such as `5 rate 1mbit`, or a trace of Mahimahi (see docs/wire.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace_up", "trace_down"])]
    trace: Option<PathBuf>,
    /// The same, only from the client to the server
    #[arg(long, value_name = "FILE")]
    trace_up: Option<PathBuf>,
    /// The same, only from the server to the client
    #[arg(long, value_name = "FILE")]
    trace_down: Option<PathBuf>,
}

impl Traces {
    /// Reads the traces of both directions, first up, and checks that these trees can follow them
    /// after these changes. `mtu` is without the Ethernet header.
    pub(super) fn read(
        &self,
        trees: [&Setup; 2],
        changes: [&[Change]; 2],
        mtu: u32,
    ) -> Result<[Option<Trace>; 2]> {
        let files = [
            (&self.trace, Which::Both),
            (&self.trace_up, Which::Up),
            (&self.trace_down, Which::Down),
        ];
        let mut traces = [None, None];
        for (file, which) in files {
            let Some(file) = file else { continue };
            let read = Trace::read(&text(file)?, which).and_then(|read| {
                for ((trace, tree), changes) in read.iter().zip(trees).zip(changes) {
                    let trace = trace.as_ref();
                    let mtu = mtu + ETHERNET;
                    trace.map_or(Ok(()), |trace| trace.check_after(changes, tree, mtu))?;
                }
                Ok(read)
            });
            let read = read.map_err(|error| anyhow!("{}: {error}", file.display()))?;
            for (trace, read) in traces.iter_mut().zip(read) {
                *trace = read.or_else(|| trace.take());
            }
        }
        Ok(traces)
    }
}

fn text(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = fs::File::open(file).and_then(|opened| {
        opened.take(TEXT_MAX + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 {
            ..=TEXT_MAX => {}
            _ => return Err(io::Error::other(format!("it has more than {} MiB", TEXT_MAX >> 20))),
        }
        String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
    });
    let name = file.display();
    read.map_err(|error| {
        anyhow!("cannot read {name}: {error}; name a file with steps or a trace of Mahimahi")
    })
}
