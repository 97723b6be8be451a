//! The command `onramp demo`: shows what Onramp is for, without any options.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::bench::{self, Kind, Plan, Results, SinkKind};
use crate::cmd::bench::{check, failures};
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
    conclude(&results, &plan.methods, &report, args)
}

/// Prints and writes the results, even if something was wrong with the run, and then returns the
/// failure if there is one. The same is a failure as for `onramp bench udp`.
fn conclude(results: &Results, kinds: &[Kind], report: &Output, args: &Args) -> Result<()> {
    results.outcome.has_results(results.rounds.len())?;
    let mut done = failures(results, kinds);
    let page = html::bench_udp(results, kinds);
    if report.is_stdout() {
        done.push(report.write(&page));
        return output::all(done);
    }
    let table = table::bench_udp(results, kinds);
    done.push(output::print(&format!(
        "{table}\n(gso: each thread hands 32 datagrams of its own flow to the kernel with one \
         call.)\n\n{}",
        meaning::paragraphs(results, kinds),
    )));
    done.push(report.write(&page).and_then(|()| {
        output::print(&format!(
            "\nThe report is in {}.\n",
            error::line(&args.html.display().to_string())
        ))
    }));
    output::all(done)
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::*;
    use crate::bench::planted;
    use crate::machine::Machine;
    use crate::watch::Outcome;

    /// Ends a demo of one method that had this round. Asserts that it fails with exit code 1 and
    /// writes the report nevertheless, and returns the message.
    fn failure(round: bench::Round) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let args = Args { html: folder.path().join("out.html") };
        let report = Output::new(&args.html).expect("a file that can be written");
        let (machine, parameters) = (Machine::here(), planted::plan().parameters());
        let results =
            Results { machine, parameters, rounds: vec![round], outcome: Outcome::default() };
        let error = conclude(&results, &[Kind::OURS], &report, &args).expect_err("it failed");
        assert_eq!(error::report(&error), ExitCode::FAILURE);
        assert!(std::fs::read_to_string(&args.html).expect("the page").contains("onramp"));
        format!("{error:#}")
    }

    #[test]
    fn a_port_that_died_fails() {
        let deaths = vec![(3, "it has had enough".to_owned())];
        let message = failure(bench::Round { deaths, ..planted::round(Kind::OURS, 8, 1) });
        assert!(message.starts_with("method onramp: port 3 of the link died"), "{message}");
        assert!(message.contains("it has had enough"), "{message}");
    }

    #[test]
    fn a_method_that_delivers_nothing_fails() {
        let round = bench::Round { delivered: Some(0), ..planted::round(Kind::OURS, 8, 1) };
        let message = failure(round);
        assert!(message.starts_with("method onramp: nothing was delivered"), "{message}");
    }
}
