//! `onramp lab`: the experiments of the laboratory.

mod common;
pub(crate) mod loopback;

use anyhow::Result;

/// Compare designs of the transmit path under contention
#[derive(Debug, clap::Args)]
pub(crate) struct ContentionArgs {
    /// Threads, one figure or a list
    #[arg(long, value_name = "N,...", default_value = "1,2,4,16,64,240")]
    threads: String,
}

/// Runs `onramp lab contention`.
pub(crate) fn contention(args: &ContentionArgs) -> Result<()> {
    let _ = &args.threads;
    Ok(())
}
