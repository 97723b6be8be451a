//! `cargo xtask conformance`: compares Onramp's qdiscs with recordings of a real kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use onramp_sim::recording::{Case, CaseError, Comparison, Mode};
use serde_json::{Value, json};

/// Plays recorded workloads through our qdiscs, and compares packet by packet with what the kernel
/// did.
#[derive(Parser)]
#[command(name = "cargo xtask conformance")]
struct Args {
    /// The folder with the cases.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Writes the results as JSON to FILE; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The cases to run; all cases if none is named.
    cases: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("conformance: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool, String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let folder = args.dir.as_ref().unwrap_or(&golden);
    let entries = fs::read_dir(folder).map_err(|error| {
        format!("{}: {error}: give a folder of recordings with --dir", folder.display())
    })?;
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join("tc.txt").exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    if let Some(unknown) = args.cases.iter().find(|case| !names.contains(case)) {
        return Err(format!("{unknown}: there is no such case in {}", folder.display()));
    }
    if !args.cases.is_empty() {
        names.retain(|name| args.cases.contains(name));
    }
    if names.is_empty() {
        return Err(format!(
            "{}: the folder has no cases (folders with a tc.txt)",
            folder.display()
        ));
    }
    println!(
        "{:22} {:>7} {:>12} {:>5} {:>5} {:>5} {:>16}",
        "case", "packets", "compared", "order", "drops", "marks", "worst time (ns)"
    );
    let mut rows = Vec::new();
    let (mut passed, mut missing) = (0, 0);
    for name in &names {
        let (row, pass) = match Case::read(folder.join(name)) {
            Ok(case) => {
                let verdict = case.replay();
                print(name, &verdict);
                (json(name, &verdict), verdict.pass)
            }
            Err(CaseError::Unsupported { line, error }) => {
                println!("{name:22} FAILED: `{line}`: {error}");
                missing += 1;
                (json!({"name": name, "pass": false, "error": error.to_string()}), false)
            }
            Err(error) => return Err(error.to_string()),
        };
        passed += usize::from(pass);
        rows.push(row);
    }
    println!(
        "{passed} of {} cases pass; {missing} use options that Onramp does not have",
        names.len()
    );
    if let Some(path) = &args.json {
        let text = json!({"schema": "onramp.conformance", "version": 1, "cases": rows});
        let text = format!("{text:#}\n");
        if path.as_os_str() == "-" {
            print!("{text}");
        } else {
            fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(passed == names.len())
}

fn print(name: &str, verdict: &Comparison) {
    let word = |equal: bool| if equal { "equal" } else { "-" };
    let compared = match verdict.mode {
        Mode::Exact => "exactly",
        Mode::Distribution => "distribution",
    };
    let worst = verdict.worst_time_difference_ns.map(|ns| ns.to_string());
    let worst = worst.unwrap_or_else(|| "-".into());
    println!(
        "{name:22} {:>7} {compared:>12} {:>5} {:>5} {:>5} {worst:>16}  {}",
        verdict.packets,
        word(verdict.order),
        word(verdict.drops),
        word(verdict.marks),
        if verdict.pass { "ok" } else { "FAILED" },
    );
    for difference in &verdict.differences {
        println!("    {difference}");
    }
}

fn json(name: &str, verdict: &Comparison) -> Value {
    json!({
        "name": name,
        "packets": verdict.packets,
        "compared": match verdict.mode {
            Mode::Exact => "exact",
            Mode::Distribution => "distribution",
        },
        "pass": verdict.pass,
        "order": verdict.order,
        "drops": verdict.drops,
        "marks": verdict.marks,
        "worst_time_difference_ns": verdict.worst_time_difference_ns,
        "dequeued": verdict.ours.0,
        "dropped": verdict.ours.1,
        "kernel_dequeued": verdict.theirs.0,
        "kernel_dropped": verdict.theirs.1,
        "differences": verdict.differences,
    })
}
