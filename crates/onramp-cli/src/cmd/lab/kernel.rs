//! The command `onramp lab kernel`: measures the transmit path of the running kernel and, for
//! comparison, that of Onramp.

use std::fmt::Write;

use anyhow::Result;
use onramp_lab::kernel::{self, Found, Measurement, PACKET, Plan, Ratio, Round};
use onramp_lab::{Error, pin};
use serde_json::{Map, Value, json};

use super::common::{self, Common, Run, counts, figure, insert, once};
use crate::cmd::values::whole;
use crate::error::{tell, usage};
use crate::limits;
use crate::report::json::number;
use crate::report::table::dash;

/// Compare this kernel's transmit path with Onramp's: what a qdisc costs, what a second CPU adds
///
/// The kernel's side: packet sockets on a device that discards all packets, in a network namespace
/// that ends with the run. Onramp's side: a link in front of a device that takes all packets. On
/// each side, the cost of the same senders without a qdisc (noqueue, none) is the floor, and the
/// cost of a qdisc is what it adds to the floor. Each sender is bound to a processor of its own.
/// The kernel's side needs root or user namespaces, and iproute2; without them only Onramp's side
/// is measured.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab kernel
  onramp lab kernel --qdiscs pfifo,htb --rounds 9
  onramp lab kernel --cpus 1,2,4,8 --json kernel.json")]
pub(crate) struct Args {
    /// Numbers of CPUs, with one sender on each; rates are compared with those of the first number
    /// [default: 1,2]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = whole::<u32>(1..=1_024))]
    cpus: Vec<u32>,
    /// Qdiscs, in the syntax of tc; htb gets one class [default: pfifo, pfifo_fast, fq, fq_codel,
    /// htb, and the other kinds that Onramp has]
    #[arg(long, value_name = "QDISC,...", value_delimiter = ',',
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    qdiscs: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// A figure of a round: its key in JSON, and the function that returns its value.
type Figure = (&'static str, fn(&Round) -> Option<f64>);

const RATE: Figure = ("packets_per_second", |round| Some(round.packets_per_second));
const CPU: Figure = ("cpu_ns_per_packet", |round| round.cpu_ns_per_packet);
const ABOVE: Figure = ("above_floor_ns", |round| round.above_floor_ns);
const SHARE: Figure = ("cpu_share", |round| Some(round.cpu_share));
const SCALING: Figure = ("scaling", |round| round.scaling);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    prepare_namespaces();
    let plan = plan(args);
    check_cpus(&plan.cpus)?;
    let qdiscs = 2 * (plan.qdiscs.len() + 1);
    let mut run = Run::new(&args.common, qdiscs * plan.cpus.len() * plan.rounds)?;
    limits::check(plan.cpus.iter().copied().max().unwrap_or(0) + 2, 0)?;
    let found = run.measure(|steps| kernel::run(&plan, steps))?.map_err(|error| match error {
        Error::Qdisc(..) => usage(format!("--qdiscs {error}")),
        error => error.into(),
    })?;
    if let Err(why) = &found.device {
        tell(&format!("warning: only Onramp's side is measured: {why}"));
    }
    let parameters = json!({
        "cpus": plan.cpus,
        "qdiscs": plan.qdiscs,
        "packet": PACKET,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
    });
    run.conclude("kernel", parameters, results(&found), &table(&found))
}

fn plan(args: &Args) -> Plan {
    let mut cpus = counts(&args.cpus);
    if cpus.is_empty() {
        cpus = (1..=common::cpus().min(2)).collect();
    }
    let mut qdiscs = once(args.qdiscs.iter().cloned());
    if qdiscs.is_empty() {
        qdiscs = kernel::qdiscs();
    }
    let rounds = args.common.rounds as usize;
    Plan { qdiscs, cpus, window: args.common.seconds, rounds }
}

/// Checks that this process may use at least as many processors as it will have senders.
fn check_cpus(asked: &[usize]) -> Result<()> {
    let allowed = pin::allowed()?.len();
    match asked.iter().find(|cpus| **cpus > allowed) {
        Some(cpus) => Err(usage(format!(
            "--cpus {cpus}: this process may use {allowed}, and each sender needs one of its own; \
             give at most {allowed}, or allow more (taskset, cpuset)"
        ))),
        None => Ok(()),
    }
}

/// Makes sure that the process may make network namespaces, if the kernel lets it. Call it before
/// the process starts a second thread. A failure is not reported here: making the network namespace
/// will fail, too, and that failure is reported.
pub(super) fn prepare_namespaces() {
    drop(onramp_wire::enter());
}

fn results(found: &Found) -> Map<String, Value> {
    let lacking = found.lacking.iter().map(
        |lacking| json!({"path": lacking.side.name(), "qdisc": lacking.qdisc, "why": lacking.why}),
    );
    let mut results = Map::new();
    results.insert("device".into(), json!(found.device.as_ref().ok()));
    results.insert("why_no_device".into(), json!(found.device.as_ref().err()));
    results.insert("lacking".into(), lacking.collect());
    results.insert("rows".into(), found.cells.iter().map(row).collect());
    results.insert("ratios_to_kernel".into(), found.ratios().iter().map(ratio).collect());
    results
}

fn row(cell: &Measurement) -> Value {
    let mut map = Map::new();
    map.insert("path".into(), cell.side.name().into());
    map.insert("qdisc".into(), cell.qdisc.as_str().into());
    map.insert("cpus".into(), cell.cpus.into());
    for (name, of) in [RATE, CPU, ABOVE, SCALING, SHARE] {
        insert(&mut map, name, cell.spread(of));
    }
    map.insert("packets".into(), total(cell, |round| round.packets).into());
    map.insert("dropped".into(), total(cell, |round| round.dropped).into());
    Value::Object(map)
}

fn ratio(ratio: &Ratio) -> Value {
    let mut map = Map::new();
    map.insert("qdisc".into(), ratio.qdisc.as_str().into());
    map.insert("cpus".into(), ratio.cpus.into());
    insert(&mut map, RATE.0, ratio.packets_per_second);
    map.insert(ABOVE.0.into(), ratio.above_floor.map_or(Value::Null, number));
    Value::Object(map)
}

fn total(cell: &Measurement, figure: fn(&Round) -> u64) -> u64 {
    cell.rounds.iter().map(figure).sum()
}

fn table(found: &Found) -> String {
    let wide = found.cells.iter().map(|cell| cell.qdisc.len() + 2).max().unwrap_or(0).max(12);
    let name = wide + 8;
    let mut text = format!(
        "{:<8}{:<wide$}{:>4} {:>19} {:>18} {:>18} {:>17} {:>6} {:>8}\n",
        "path",
        "qdisc",
        "CPUs",
        "Mpps",
        "CPU ns/packet",
        "above floor",
        "scaling",
        "CPU",
        "dropped"
    );
    // The results of `writeln!` are ignored, because writing into a string cannot fail.
    for cell in &found.cells {
        let figure = |of: Figure, unit, digits| figure(cell.spread(of.1), unit, digits);
        let share = cell.spread(SHARE.1);
        let _ = writeln!(
            text,
            "{:<8}{:<wide$}{:>4} {:>19} {:>18} {:>18} {:>17} {:>6} {:>8}",
            cell.side.name(),
            cell.qdisc,
            cell.cpus,
            figure(RATE, 1e6, 2),
            figure(CPU, 1.0, 0),
            figure(ABOVE, 1.0, 0),
            figure(SCALING, 1.0, 2),
            share.map_or_else(dash, |share| format!("{:.0}%", 100.0 * share.median)),
            total(cell, |round| round.dropped),
        );
    }
    let ratios = found.ratios();
    if !ratios.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<name$}{:>4} {:>19} {:>18}",
            "onramp by kernel", "CPUs", "rate", "above floor"
        );
    }
    for ratio in &ratios {
        let cost = ratio.above_floor.map_or_else(dash, |cost| format!("{cost:.2}"));
        let rate = figure(ratio.packets_per_second, 1.0, 2);
        let _ = writeln!(text, "{:<name$}{:>4} {rate:>19} {cost:>18}", ratio.qdisc, ratio.cpus);
    }
    let _ = match &found.device {
        Ok(device) => writeln!(text, "\ndevice of the kernel's side: {device}"),
        Err(why) => writeln!(text, "\nthe kernel's side is missing: {why}"),
    };
    for lacking in &found.lacking {
        let _ = writeln!(text, "{} lacks {}: {}", lacking.side.name(), lacking.qdisc, lacking.why);
    }
    text
}
