//! The command `onramp sim calibrate`: measures the machine at hand and describes it for the
//! simulator.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use onramp_multicore::{calibrate, checks};

use crate::error::tell;
use crate::output::{self, Output};
use crate::progress::Line;

/// Measure this machine, and describe it as a machine for `onramp sim run`
///
/// The description has an interval for each cost of memory and scheduler, between the tenth and the
/// ninetieth percentile of 60 rounds. Nothing else should run meanwhile. A scenario names the file
/// as its machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp sim calibrate
  onramp sim calibrate --output here.toml
  onramp sim calibrate --output here.toml --check")]
pub(crate) struct Args {
    /// Write the description to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also play games of two threads here and on the simulated machine, and compare
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let output = args.output.as_deref().map(Output::new).transpose()?;
    tell(
        "measures this machine for some seconds, half a minute at most; nothing else should run \
         meanwhile",
    );
    let mut line = Line::new(true);
    let machine = calibrate(&mut |text| line.show(text));
    drop(line);
    let machine = machine.map_err(|why| anyhow!("cannot measure this machine: {why}"))?;
    match output {
        Some(output) => output.write(&machine.text())?,
        None => output::print(&machine.text())?,
    }
    if args.check {
        let checks = checks(&machine).map_err(|why| anyhow!("cannot compare: {why}"))?;
        for check in checks {
            let ratio = check.simulated / check.measured;
            output::print(&format!(
                "# {}: {:.1} ns here, {:.1} ns simulated, ratio {ratio:.2}\n",
                check.name, check.measured, check.simulated
            ))?;
        }
    }
    Ok(())
}
