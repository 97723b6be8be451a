//! The commands `onramp fleet show` and `onramp fleet top`.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use onramp_fleet::Definitions;
use onramp_redis::{Engine, EngineError, Held};
use serde_json::{Value, json};

use super::{EngineArgs, shown, table, wait};
use crate::error::usage;
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

/// A limit with all that its ledgers say.
struct Limit {
    name: String,
    rate: u64,
    hosts_max: u32,
    members: Vec<Member>,
}

/// A member of a limit, and what it sends, in bytes per second.
struct Member {
    held: Held,
    used: u64,
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
        for update in 0..args.updates.unwrap_or(u64::MAX) {
            if update > 0 {
                tokio::time::sleep(Duration::from_secs_f64(args.delay)).await;
            }
            // An engine that does not answer may answer the next time.
            let shown = match engine_read(&engine, args.limit.as_deref()).await {
                Ok(limits) => match &args.limit {
                    Some(name) if limits.is_empty() => no_limit(name) + "\n",
                    _ => text(&limits),
                },
                Err(EngineError::Unreachable(why)) => {
                    format!("the engine does not answer: {why}\n")
                }
                Err(error) => return Err(anyhow!("{error}")),
            };
            output::print(&format!("{clear}{shown}"))?;
        }
        Ok(())
    })?
}

fn no_limit(name: &str) -> String {
    format!("there is no limit {name:?}; `onramp fleet limit list` lists them")
}

async fn read(engine: &Engine, only: Option<&str>) -> Result<Vec<Limit>> {
    let limits = engine_read(engine, only).await.map_err(|error| anyhow!("{error}"))?;
    match only {
        Some(name) if limits.is_empty() => Err(anyhow!(no_limit(name))),
        _ => Ok(limits),
    }
}

async fn engine_read(engine: &Engine, only: Option<&str>) -> Result<Vec<Limit>, EngineError> {
    let all = engine.limits().await?;
    let mut limits = Vec::new();
    for (name, definition) in all.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let mut members = Vec::new();
        for held in engine.members(&all, name).await? {
            let used = used(engine, &all, name, &held).await?;
            members.push(Member { held, used });
        }
        limits.push(Limit {
            name: name.to_owned(),
            rate: definition.rate,
            hosts_max: definition.hosts,
            members,
        });
    }
    Ok(limits)
}

/// Returns what a member of `limit` sends: for a limit that is a part of it, what its hosts send.
async fn used(
    engine: &Engine,
    all: &Definitions,
    limit: &str,
    member: &Held,
) -> Result<u64, EngineError> {
    // What operators have set has no circle; what hosts wrote into a ledger might.
    let is_part = |part: &str, of: &str| {
        all.get(part).is_some_and(|definition| definition.parent.as_deref() == Some(of))
    };
    let mut sum = member.used.unwrap_or(0);
    if member.used.is_some() || !is_part(&member.name, limit) {
        return Ok(sum);
    }
    let mut parts = vec![member.name.as_str()];
    while let Some(part) = parts.pop() {
        for held in engine.members(all, part).await? {
            sum = held.used.unwrap_or(0).saturating_add(sum);
        }
        parts.extend(all.iter().map(|(name, _)| name).filter(|name| is_part(name, part)));
    }
    Ok(sum)
}

fn sum(members: &[Member], of: impl Fn(&Member) -> u64) -> u64 {
    members.iter().fold(0, |sum, member| sum.saturating_add(of(member)))
}

fn text(limits: &[Limit]) -> String {
    if limits.is_empty() {
        return "no limits; `onramp fleet limit set` makes one\n".to_owned();
    }
    let limit = |limit: &Limit| {
        let Limit { name, rate, hosts_max, members } = limit;
        let of = match hosts_max {
            0 => format!("{} parts", members.len()),
            most => format!("{} of at most {most} hosts", members.len()),
        };
        let held = shown(sum(members, |member| member.held.held));
        let demand = shown(sum(members, |member| member.held.claim.demand()));
        let used = shown(sum(members, |member| member.used));
        let head = format!(
            "{name}: {} for {of}; they want {demand}, hold {held}, send {used}\n",
            shown(*rate)
        );
        let rows: Vec<Vec<String>> = members
            .iter()
            .map(|Member { held: member, used }| {
                vec![
                    member.name.clone(),
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

fn document(limits: &[Limit]) -> Value {
    let member = |Member { held: member, used }: &Member| {
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
    let limit = |limit: &Limit| {
        json!({
            "name": limit.name,
            "bytes_per_second": limit.rate,
            "hosts_max": limit.hosts_max,
            "members": limit.members.iter().map(member).collect::<Vec<_>>(),
        })
    };
    let limits: Vec<Value> = limits.iter().map(limit).collect();
    json!({ "schema": "onramp.fleet", "version": 1, "limits": limits })
}
