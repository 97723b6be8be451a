//! The commands `onramp fleet show` and `onramp fleet top`.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_daemon::fleet::{LimitView, MemberView, read as read_limits};
use onramp_redis::{Engine, EngineError};
use serde_json::{Value, json};

use super::{EngineArgs, no_limit, shown, shown_bytes, table, wait};
use crate::error::{self, usage};
use crate::output::{self, Output};
use crate::report::json;

/// Show limits with their hosts: what each wants, holds and sends, and the age of its last report
///
/// The engine's ledgers are read, and nothing changes. A host that has not reported for 1.2 s is
/// not in a ledger any more.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp fleet show
  onramp fleet show tenant-a --json -")]
pub(crate) struct ShowArgs {
    /// Show only this limit [default: all]
    #[arg(value_name = "LIMIT")]
    limit: Option<String>,
    /// Write it as JSON (docs/json.md: onramp.fleet); - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Show limits with their hosts, again and again
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  onramp fleet top
  onramp fleet top tenant-a -d 0.5
  onramp fleet top -n 3 | cat")]
pub(crate) struct TopArgs {
    /// Show only this limit [default: all]
    #[arg(value_name = "LIMIT")]
    limit: Option<String>,
    /// Seconds between two updates, 0.1 to 3600
    #[arg(short = 'd', long, value_name = "SECONDS", default_value_t = 1.0,
          value_parser = crate::cmd::values::number)]
    delay: f64,
    /// End after this number of updates
    #[arg(short = 'n', value_name = "N",
          value_parser = crate::cmd::values::whole::<u64>(1..=u64::MAX))]
    updates: Option<u64>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs `onramp fleet show`.
pub(crate) fn show(args: &ShowArgs) -> Result<()> {
    let output = args.json.as_deref().map(Output::new).transpose()?;
    let engine = args.engine.engine()?;
    let limits = wait(read(&engine, args.limit.as_deref()))??;
    match output {
        Some(output) => output.write(&json::pretty(&document(&limits))),
        None => output::print(&text(&limits)),
    }
}

/// Runs `onramp fleet top`.
pub(crate) fn top(args: &TopArgs) -> Result<()> {
    if !(0.1..=3_600.0).contains(&args.delay) {
        return Err(usage(format!("--delay {}: expected 0.1 to 3600 seconds", args.delay)));
    }
    let engine = args.engine.engine()?;
    let clear = if io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
    wait(async {
        let (mut answered, mut found) = (false, false);
        for update in 0..args.updates.unwrap_or(u64::MAX) {
            if update > 0 {
                tokio::time::sleep(Duration::from_secs_f64(args.delay)).await;
            }
            // An engine that does not answer may answer the next time.
            let read = read_limits(&engine, args.limit.as_deref()).await;
            answered |= read.is_ok();
            found |= read.as_ref().is_ok_and(|limits| !limits.is_empty());
            let shown = match read {
                Ok(limits) => match &args.limit {
                    Some(name) if limits.is_empty() => no_limit(name) + "\n",
                    _ => text(&limits),
                },
                Err(EngineError::Unreachable(why)) => {
                    format!("the engine does not answer: {why}\n")
                }
                Err(error) => return Err(anyhow!("{error}")),
            };
            // Without a reader, the command ends.
            output::show(&format!("{clear}{shown}"))?;
        }
        match &args.limit {
            _ if !answered => Err(anyhow!(
                "the engine has not answered once: is a Redis running where --engine says?"
            )),
            // It may come while the command runs.
            Some(name) if !found => Err(anyhow!(no_limit(name))),
            _ => Ok(()),
        }
    })?
}

async fn read(engine: &Engine, only: Option<&str>) -> Result<Vec<LimitView>> {
    let limits = read_limits(engine, only).await.map_err(|error| anyhow!("{error}"))?;
    match only {
        Some(name) if limits.is_empty() => Err(anyhow!(no_limit(name))),
        _ => Ok(limits),
    }
}

fn text(limits: &[LimitView]) -> String {
    if limits.is_empty() {
        return "no limits; `onramp fleet limit set` makes one\n".to_owned();
    }
    let limit = |limit: &LimitView| {
        let LimitView { name, rate, burst, hosts_max, members, .. } = limit;
        let burst =
            burst.map_or_else(String::new, |bytes| format!(" and {} at once", shown_bytes(bytes)));
        let of = match hosts_max {
            0 => format!("{} parts", members.len()),
            most => format!("{} of at most {most} hosts", members.len()),
        };
        let held = shown(limit.sum(|member| member.held.held));
        let demand = shown(limit.sum(|member| member.held.claim.demand()));
        let used = shown(limit.sum(|member| member.used));
        let head = format!(
            "{name}: {}{burst} for {of}; they want {demand}, hold {held}, send {used}\n",
            shown(*rate)
        );
        let rows: Vec<Vec<String>> = members
            .iter()
            .map(|MemberView { held: member, used, .. }| {
                vec![
                    // A host that breaks the rules may write any name into a ledger.
                    error::line(&member.name),
                    member.claim.weight().to_string(),
                    shown(member.claim.demand()),
                    shown(member.held),
                    shown(*used),
                    format!("{:.2} s", member.age.as_secs_f64()),
                ]
            })
            .collect();
        match rows.is_empty() {
            true => head,
            false => {
                let names = ["  HOST", "WEIGHT", "WANTS", "HOLDS", "SENDS", "AGE"];
                head + &table(&names, &indented(rows))
            }
        }
    };
    limits.iter().map(limit).collect::<Vec<_>>().join("\n")
}

fn indented(mut rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    rows.iter_mut().for_each(|row| row[0].insert_str(0, "  "));
    rows
}

fn document(limits: &[LimitView]) -> Value {
    let member = |MemberView { held: member, used, .. }: &MemberView| {
        json!({
            "name": member.name,
            "weight": member.claim.weight(),
            "demand_bytes_per_second": member.claim.demand(),
            "floor_bytes_per_second": member.claim.floor(),
            "share_bytes_per_second": member.held,
            "used_bytes_per_second": used,
            "report_age_seconds": json::number(member.age.as_secs_f64()),
            "left_seconds": json::number(member.left.as_secs_f64()),
        })
    };
    let limit = |limit: &LimitView| {
        json!({
            "name": limit.name,
            "bytes_per_second": limit.rate,
            "burst_bytes": limit.burst,
            "hosts_max": limit.hosts_max,
            "members": limit.members.iter().map(member).collect::<Vec<_>>(),
        })
    };
    let limits: Vec<Value> = limits.iter().map(limit).collect();
    json!({ "schema": "onramp.fleet", "version": 1, "limits": limits })
}
