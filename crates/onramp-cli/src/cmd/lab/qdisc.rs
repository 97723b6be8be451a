//! The command `onramp lab qdisc`: measures what a qdisc costs.

use anyhow::Result;
use onramp_lab::qdisc::{self, BURST, LEN, Measurement, PACKET_NS, Plan, Round, Subject};
use serde_json::{Map, Value, json};

use super::common::{self, Column, Common, Figure, Run, insert_all};
use crate::cmd::values::whole;
use crate::error::{tell, usage};
use crate::report::json::number;
use crate::report::table::dash;

/// What a qdisc costs: nanoseconds for an enqueue and a dequeue, one thread, no device
///
/// The qdisc holds a constant backlog: again and again, 32 packets are dequeued, and enqueued for
/// flows in random order, so that caches are as cold as the size of the backlog makes them. No
/// memory is allocated. For comparison, a binary heap and a search tree by departure time run too:
/// a program without a qdisc could use these.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp lab qdisc
  onramp lab qdisc --kinds fq,fq-paced,binary-heap --flows 1000000
  onramp lab qdisc --flows 1,1000,100000 --backlog 1000000 --json qdisc.json")]
pub(crate) struct Args {
    /// Numbers of flows; for a qdisc with classes, numbers of classes [default: 1,1000,100000]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = whole::<u32>(1..=10_000_000))]
    flows: Vec<u32>,
    /// Numbers of packets in the backlog [default: one for each flow, at least 256]. Kinds
    /// are left out where they cannot hold them: choke holds at most 131069, red 689160, fq_codel,
    /// fq_pie, cake and dualpi2 1864135, bfifo and tbf 2863311, sfq 127, or 16 for each flow
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = whole::<u32>(64..=10_000_000))]
    backlog: Vec<u32>,
    /// Kinds of qdisc to measure; also fq-paced, binary-heap and btree-map [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    kinds: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Numbers of flows if the user gives none.
const FLOWS: [u32; 3] = [1, 1_000, 100_000];

const FIGURES: [Figure<Round>; 2] = [
    Figure::new("ns_per_packet", "ns/packet", (1.0, 1), |round| Some(round.ns_per_packet)),
    Figure::new("dropped_share", "dropped %", (0.01, 2), |round| Some(round.dropped_share)),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (rounds, subjects) = (args.common.rounds as usize, subjects(&args.kinds)?);
    let backlogs = args.backlog.clone();
    let flows = if args.flows.is_empty() { FLOWS.to_vec() } else { args.flows.clone() };
    let plan = Plan { subjects, flows, backlogs, window: args.common.seconds, rounds };
    check_room(&plan, args)?;
    let run = Run::expecting(&args.common.reports, plan.steps(), plan.expected())?;
    measured(run, &plan)
}

/// Checks that the kinds can hold the backlogs. If the user named both the kinds and the sizes, a
/// kind that cannot is an error; otherwise the kind is left out, and a warning says so.
fn check_room(plan: &Plan, args: &Args) -> Result<()> {
    let names_sizes = !args.flows.is_empty() || !args.backlog.is_empty();
    let is_asked_for = names_sizes && !args.kinds.is_empty();
    for left_out in plan.left_out() {
        let (name, most) = (left_out.subject.name(), left_out.most);
        let mut at = format!("--flows {}", commas(&left_out.flows));
        if !args.backlog.is_empty() {
            at = format!("{at} --backlog {}", commas(&left_out.backlogs));
        }
        let why = format!("{name} holds at most {most} packets of {LEN} bytes");
        if is_asked_for {
            return Err(usage(format!(
                "{at}: {why}; give at most {most}, or leave {name} out of --kinds"
            )));
        }
        tell(&format!("warning: {at} leaves {name} out: {why}"));
    }
    Ok(())
}

fn commas(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Measures, and writes and prints the results.
fn measured(mut run: Run, plan: &Plan) -> Result<()> {
    let cells = run.measure(|steps| qdisc::run(plan, steps))?;
    let mut results = Map::new();
    results
        .insert("rows".into(), cells.iter().map(|cell| json(cell, heap(&cells, cell))).collect());
    let parameters = json!({
        "kinds": plan.subjects.iter().map(Subject::name).collect::<Vec<_>>(),
        "flows": plan.flows,
        "backlog": plan.backlogs,
        "seconds": number(plan.window.as_secs_f64()),
        "rounds": plan.rounds,
        "burst": BURST,
        "packet_bytes": LEN,
        "packet_ns": PACKET_NS,
    });
    run.conclude("qdisc", parameters, results, &table(&cells))
}

/// Returns the kinds of qdiscs that the user named; all kinds if the user named none.
fn subjects(names: &[String]) -> Result<Vec<Subject>> {
    let all = qdisc::subjects();
    if names.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| {
        all.iter().find(|subject| subject.name() == name).copied().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(Subject::name).collect();
            usage(format!("--kinds {name}: unknown kind; expected {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

/// Returns the measurement of the binary heap with the same number of flows and of packets as the
/// measurement `cell`.
fn heap<'a>(cells: &'a [Measurement], cell: &Measurement) -> Option<&'a Measurement> {
    cells.iter().find(|other| {
        other.name == Subject::BinaryHeap.name()
            && (other.flows, other.backlog) == (cell.flows, cell.backlog)
    })
}

fn json(cell: &Measurement, heap: Option<&Measurement>) -> Value {
    let mut map = Map::new();
    map.insert("design".into(), cell.name.into());
    map.insert("flows".into(), cell.flows.into());
    map.insert("classes".into(), cell.classes.map_or(Value::Null, Value::from));
    map.insert("backlog".into(), cell.backlog.into());
    insert_all(&mut map, &FIGURES, |figure| figure.spread(cell));
    let mut ratios = Map::new();
    insert_all(&mut ratios, &FIGURES[..1], |figure| figure.ratio(cell, heap?));
    map.insert("ratios_to_binary_heap".into(), ratios.into());
    Value::Object(map)
}

fn table(cells: &[Measurement]) -> String {
    let mut columns = vec![
        Column::new("qdisc", |cell: &Measurement| cell.name.to_owned()),
        Column::new("flows", |cell: &Measurement| cell.flows.to_string()),
        Column::new("classes", |cell: &Measurement| {
            cell.classes.map_or_else(dash, |classes| classes.to_string())
        }),
        Column::new("backlog", |cell: &Measurement| cell.backlog.to_string()),
    ];
    columns.extend(FIGURES.iter().map(Figure::column));
    columns.push(FIGURES[0].ratio_column("x binary heap", |cell| heap(cells, cell)));
    common::table(cells, &columns)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onramp_core::qdisc::KINDS;

    use super::*;

    /// A `plug` holds its packets until somebody releases them.
    #[test]
    fn a_failed_cell_leaves_the_rest() {
        let kind = |id: &str| KINDS.iter().find(|kind| kind.id == id).expect("a kind");
        let subjects = ["plug", "pfifo"].map(|id| Subject::Kind(kind(id))).to_vec();
        let window = Duration::from_millis(1);
        let plan = Plan { subjects, flows: vec![1], backlogs: vec![64], window, rounds: 2 };
        let document = Run::failed(|run| measured(run, &plan));
        let failures = document["failures"].as_array().expect("failures");
        let cells: Vec<_> = failures.iter().map(|failure| failure["cell"].as_str()).collect();
        assert_eq!(cells, [Some("plug, 1 flows, backlog 64")]);
        let rows = document["rows"].as_array().expect("rows");
        let designs: Vec<_> = rows.iter().map(|row| row["design"].as_str()).collect();
        assert_eq!(designs, [Some("pfifo")]);
    }

    /// The help names the largest backlogs.
    #[test]
    fn the_help_knows_what_is_held() {
        use clap::Args as _;
        let command = Args::augment_args(clap::Command::new("qdisc"));
        let backlog = command.get_arguments().find(|it| it.get_id() == "backlog");
        let help = backlog.and_then(clap::Arg::get_help).expect("a help").to_string();
        for subject in qdisc::subjects() {
            let most = subject.backlog_max(1);
            let is_told = help.contains(subject.name()) && help.contains(&most.to_string());
            assert!(most == u32::MAX || is_told, "{}: {help}", subject.name());
        }
    }
}
