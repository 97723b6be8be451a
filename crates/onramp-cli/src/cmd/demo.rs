//! The command `onramp demo`: shows what Onramp is for, without any options.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::bench::{self, Kind, Plan, SinkKind};
use crate::cmd::bench::check;
use crate::error;
use crate::output::{self, Output};
use crate::report::{html, meaning, table};

/// Compare Onramp with send and GSO: 240 threads send 120-byte datagrams over loopback
///
/// Takes about 20 seconds, needs no root, and writes an HTML page with charts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp demo
  onramp demo --html /tmp/report.html")]
pub(crate) struct Args {
    /// The file for the report
    #[arg(long, value_name = "FILE", default_value = "onramp-demo.html")]
    html: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let report = Output::new(&args.html)?;
    let plan = Plan {
        threads: 240,
        flows_per_thread: 1,
        size: 120,
        window: Duration::from_millis(1_500),
        rounds: 3,
        methods: vec![Kind::Send, Kind::Gso, Kind::Onramp],
        queues: None,
        qdisc: "fq".to_owned(),
        batch: 1,
        sink: SinkKind::Loopback,
        verify: false,
        stall: Duration::ZERO,
    };
    check(&plan)?;
    let results = bench::run(&plan)?;
    results.outcome.has_results(results.rounds.len())?;
    let page = html::bench_udp(&results, &plan.methods);
    if report.is_stdout() {
        return output::all([results.outcome.verdict(), report.write(&page)]);
    }
    let table = table::bench_udp(&results, &plan.methods);
    let shown = output::print(&format!(
        "{table}\n(gso: each thread hands 32 datagrams of its own flow to the kernel with one \
         call.)\n\n{}",
        meaning::paragraphs(&results, &plan.methods),
    ));
    let written = report.write(&page).and_then(|()| {
        output::print(&format!(
            "\nThe report is in {}.\n",
            error::line(&args.html.display().to_string())
        ))
    });
    output::all([results.outcome.verdict(), shown, written])
}
