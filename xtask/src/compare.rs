//! Compares the speed of two builds of the program `onramp`.
//!
//! On a noisy machine, the speed of one and the same program changes by a tenth and more within
//! minutes. So the comparison makes many short runs. Each round runs both programs, and a copy of
//! the older one as a control, directly after each other and in an order that changes from round to
//! round. Each round gives a ratio; the report shows the median of the ratios and the interval that
//! contains the true median with a probability of 95 %. The control shows what the method makes of
//! two equal programs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::shell::{output, timed};
use crate::{Failure, Outcome};

const HELP: &str = "\
usage: cargo xtask compare OLD NEW [--minutes N] [--only WORD]

Compares two builds of the program `onramp` by many short runs of `bench udp`, `lab contention` and
`lab qdisc`. Prints the cost of NEW divided by the cost of OLD (above 1: NEW is slower), with an
interval of 95 %, and the same of a copy of OLD as a control. Fails if a whole interval lies above
1.03. Each figure is judged alone: of many figures, one may fail by chance; then measure it again
with --only.

OLD, NEW: the two programs. Compile both with aligned code, so that the position of a loop does not
decide:
RUSTFLAGS=\"-C llvm-args=-align-all-nofallthru-blocks=5 -C llvm-args=-align-all-functions=6\"
--minutes N: measure for N minutes (default 30), at least 8 rounds
--only WORD: only measurements whose command contains WORD
";

/// Commands of the measurements. Each accepts `--json FILE`.
const COMMANDS: &[&str] = &[
    "bench udp --methods onramp --threads 1 --size 120 --rounds 1 --seconds 0.2",
    "bench udp --methods onramp --threads 2 --size 120 --rounds 1 --seconds 0.2",
    "bench udp --methods onramp --threads 16 --size 120 --rounds 1 --seconds 0.2",
    "bench udp --methods onramp --threads 240 --size 120 --rounds 1 --seconds 0.2",
    "lab contention --designs onramp --threads 1,2,16,240 --rounds 1 --seconds 0.1 --qdisc pfifo",
    "lab contention --designs onramp --threads 1,2,16,240 --rounds 1 --seconds 0.1 --qdisc fq",
    "lab qdisc --flows 1000 --rounds 1 --seconds 0.05",
    "lab qdisc --flows 100000 --rounds 1 --seconds 0.05",
];

/// The arrays of results in the programs' JSON, the keys that tell results apart, and the keys of
/// costs. Where a result has only a rate, its inverse is the cost.
const ARRAYS: &[&str] = &["methods", "rows"];
const NAMES: &[&str] = &["design", "name", "manners", "threads", "flows"];
const COSTS: &[&str] = &["cpu_ns_per_packet", "ns_per_packet"];
const RATES: &[&str] = &["delivered_per_second", "packets_per_second"];

/// The least number of rounds. With 8, the interval reaches from the least to the greatest ratio.
const ROUNDS: usize = 8;
/// A figure fails if the whole interval lies above this ratio.
const SLOWER: f64 = 1.03;

/// The costs that one program has shown in one round, by measurement.
type Costs = BTreeMap<String, f64>;

/// What a user asks for.
struct Request {
    old: PathBuf,
    new: PathBuf,
    time: Duration,
    commands: Vec<&'static str>,
}

/// Compares the programs that `args` name.
pub(crate) fn run(args: &[String]) -> Outcome {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let wrong = |why: String| Failure::Failed(format!("compare: {why}\n\n{HELP}"));
    let request = request(args).map_err(wrong)?;
    for program in [&request.old, &request.new] {
        print!("{}: {}", program.display(), output(Command::new(program).arg("--version"))?);
    }
    let folder = tempfile::tempdir().map_err(|err| Failure::Unable(err.to_string()))?;
    let copy = folder.path().join("onramp");
    fs::copy(&request.old, &copy).map_err(|err| Failure::Unable(err.to_string()))?;
    let programs = [&request.old, &request.new, &copy];
    let (mut rounds, mut passed) = (Vec::new(), Duration::ZERO);
    while passed < request.time || rounds.len() < ROUNDS {
        let (round, took) = timed(|| round(programs, &request.commands, rounds.len(), &folder));
        rounds.push(round?);
        passed += took;
        eprint!("\r{} rounds, {} s", rounds.len(), passed.as_secs());
    }
    eprintln!();
    judge(&rounds)
}

fn request(args: &[String]) -> Result<Request, String> {
    let (mut programs, mut minutes, mut only) = (Vec::new(), 30.0, "");
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} has no value"));
        match arg.as_str() {
            "--minutes" => {
                minutes = value()?.parse().map_err(|err| format!("--minutes: {err}"))?;
            }
            "--only" => only = value()?,
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}")),
            _ => programs.push(PathBuf::from(arg)),
        }
    }
    let [old, new] = <[PathBuf; 2]>::try_from(programs)
        .map_err(|programs| format!("two programs are needed, not {}", programs.len()))?;
    let time = Duration::try_from_secs_f64(minutes * 60.0)
        .map_err(|err| format!("--minutes {minutes}: {err}"))?;
    let commands: Vec<_> =
        COMMANDS.iter().copied().filter(|command| command.contains(only)).collect();
    if commands.is_empty() {
        return Err(format!("no measurement's command contains `{only}`"));
    }
    Ok(Request { old, new, time, commands })
}

/// Runs each command with each program. Returns the costs of each program.
fn round(
    programs: [&PathBuf; 3],
    commands: &[&str],
    number: usize,
    folder: &tempfile::TempDir,
) -> Result<[Costs; 3], Failure> {
    let mut costs = [Costs::new(), Costs::new(), Costs::new()];
    for command in commands {
        for which in order(number) {
            let json = results(programs[which], command, &folder.path().join("results.json"))?;
            let found = read(command, &json);
            if found.is_empty() {
                return Err(Failure::Failed(format!("`onramp {command}` wrote no results")));
            }
            costs[which].extend(found);
        }
    }
    Ok(costs)
}

/// Returns the order of the three programs in a round. Six rounds have all orders.
fn order(number: usize) -> [usize; 3] {
    [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]][number % 6]
}

fn results(program: &Path, command: &str, file: &Path) -> Result<Value, Failure> {
    let unable = |why: String| Failure::Unable(format!("`{} {command}`: {why}", program.display()));
    let _ = fs::remove_file(file);
    let words = command.split(' ').map(OsString::from);
    let mut run = Command::new(program);
    run.args(words).arg("--json").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
    let output = run.stderr(Stdio::piped()).output().map_err(|err| unable(err.to_string()))?;
    if !output.status.success() {
        return Err(unable(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = fs::read_to_string(file).map_err(|err| unable(err.to_string()))?;
    serde_json::from_str(&text).map_err(|err| unable(err.to_string()))
}

/// Returns the costs in the JSON that `command` wrote, each with a name of its own.
fn read(command: &str, json: &Value) -> Costs {
    let options = command.split(" --").filter(|part| {
        ["threads ", "qdisc "].iter().any(|word| part.starts_with(word)) && !part.contains(',')
    });
    let about: Vec<&str> = command.split(" --").take(1).chain(options).collect();
    let rows = ARRAYS.iter().filter_map(|array| json[*array].as_array()).flatten();
    let mut costs = Costs::new();
    for row in rows {
        let names = NAMES.iter().filter_map(|name| match &row[*name] {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(format!("{name} {number}")),
            _ => None,
        });
        let names: Vec<String> = about.iter().map(ToString::to_string).chain(names).collect();
        let mut add = |key: &str, cost: f64| {
            costs.insert(format!("{}: {key}", names.join(", ")), cost);
        };
        for key in COSTS {
            if let Some(cost) = row[*key].as_f64() {
                add(key, cost);
            }
        }
        for key in RATES {
            if let Some(rate) = row[*key].as_f64() {
                add(&format!("1/{key}"), 1.0 / rate);
            }
        }
    }
    costs
}

/// Prints the ratios of all rounds. Fails if a figure of the new program is higher beyond doubt, or
/// if a program lacks a figure.
fn judge(rounds: &[[Costs; 3]]) -> Outcome {
    let names: BTreeSet<&String> = rounds.iter().flatten().flat_map(Costs::keys).collect();
    for costs in rounds.iter().flatten() {
        let has = |name: &&&String| costs.get(**name).is_some_and(|cost| *cost > 0.0);
        if let Some(name) = names.iter().find(|name| !has(name)) {
            return Err(Failure::Failed(format!("{name}: a program has no such figure")));
        }
    }
    let mut slower = Vec::new();
    println!("{:24} {:24} measurement ({} rounds)", "new/old", "control/old", rounds.len());
    for name in rounds.first().into_iter().flat_map(|round| round[0].keys()) {
        let ratios = |which: usize| {
            let ratio = |round: &[Costs; 3]| Some(round[which].get(name)? / round[0].get(name)?);
            interval(rounds.iter().filter_map(ratio).collect())
        };
        let (new, control) = (ratios(1), ratios(2));
        println!("{} {} {name}", show(new), show(control));
        if new[0] > SLOWER {
            slower.push(format!("{name}: {}", show(new).trim_end()));
        }
    }
    if slower.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!("slower by more than 3 %:\n{}", slower.join("\n"))))
}

/// Returns the least value of the interval, the median and the greatest value of the interval that
/// contains the true median with a probability of about 95 %.
///
/// The interval runs from one of the sorted ratios to another: the number of ratios below the true
/// median has a binomial distribution with a standard deviation of half the root of the number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers of rounds are small"
)]
fn interval(mut ratios: Vec<f64>) -> [f64; 3] {
    ratios.sort_by(f64::total_cmp);
    let Some(last) = ratios.len().checked_sub(1) else { return [f64::NAN; 3] };
    let middle = last as f64 / 2.0;
    let half = 0.98 * (ratios.len() as f64).sqrt();
    let low = (middle - half).floor().max(0.0) as usize;
    let median = f64::midpoint(ratios[last / 2], ratios[last - last / 2]);
    [ratios[low], median, ratios[last - low]]
}

fn show([low, median, high]: [f64; 3]) -> String {
    format!("{:24}", format!("{median:.3} ({low:.3}-{high:.3})"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn costs_have_names_and_rates_are_turned_over() {
        let rows = json!({ "rows": [
            { "design": "onramp", "manners": "equal", "threads": 2, "cpu_ns_per_packet": 50.0,
              "packets_per_second": 4.0, "packets_per_second_min": 1.0 },
        ]});
        let costs = read("lab contention --threads 1,2 --qdisc fq --seconds 1", &rows);
        let name = "lab contention, qdisc fq, onramp, equal, threads 2: ";
        let expected = [
            (format!("{name}cpu_ns_per_packet"), 50.0),
            (format!("{name}1/packets_per_second"), 0.25),
        ];
        assert_eq!(costs, Costs::from(expected));
        let methods = json!({ "methods": [{ "name": "onramp", "cpu_ns_per_packet": 1.0 }] });
        let costs = read("bench udp --threads 240", &methods);
        let name = "bench udp, threads 240, onramp: cpu_ns_per_packet".to_owned();
        assert_eq!(costs, Costs::from([(name, 1.0)]));
    }

    #[test]
    fn an_interval_narrows_with_the_number_of_rounds() {
        let ratios = |count: usize| (0..count).map(|n| n as f64).rev().collect::<Vec<_>>();
        assert_eq!(interval(ratios(8)), [0.0, 3.5, 7.0]);
        assert_eq!(interval(ratios(101)), [40.0, 50.0, 60.0]);
        assert!(interval(Vec::new())[1].is_nan());
    }

    #[test]
    fn a_program_that_costs_five_percent_more_is_found() {
        let round = |new: f64, noise: f64| {
            [1.0, new, 1.0].map(|cost| Costs::from([("a figure".to_owned(), cost * noise)]))
        };
        let rounds = |new: f64| (0..40).map(|n| round(new, 1.0 + f64::from(n % 7))).collect();
        let (equal, slower): (Vec<_>, Vec<_>) = (rounds(1.0), rounds(1.05));
        judge(&equal).expect("it costs the same");
        judge(&slower).expect_err("it costs more");
    }

    #[test]
    fn a_missing_figure_is_a_failure() {
        let costs = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 1.0)).collect();
        let round = |old: &[&str], new: &[&str]| [costs(old), costs(new), costs(old)];
        judge(&[round(&["a"], &["a"])]).expect("all have it");
        judge(&[round(&["a", "b"], &["a"])]).expect_err("the new one lacks b");
        judge(&[round(&["a"], &["a", "b"])]).expect_err("the old one lacks b");
        let nothing = [1.0, f64::NAN, 1.0].map(|cost| Costs::from([("a".to_owned(), cost)]));
        judge(&[nothing]).expect_err("not a number");
    }

    #[test]
    fn what_is_wrong_with_a_request_is_said() {
        let request = |line: &str| {
            request(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).map(|_| ())
        };
        assert_eq!(request("old new --minutes 5 --only fq"), Ok(()));
        for (line, why) in [
            ("old", "two programs"),
            ("old new older", "two programs"),
            ("old new --minutes", "no value"),
            ("old new --minutes soon", "--minutes"),
            ("old new --minutes -1", "--minutes"),
            ("old new --only nothing", "`nothing`"),
            ("old new --fast", "unknown option"),
        ] {
            assert!(request(line).is_err_and(|err| err.contains(why)), "{line}");
        }
    }
}
